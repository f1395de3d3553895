"""Cases of `calls`: a kernel is called, compiled, pickled or checked with arguments as a user might get them wrong.

A case is a few lines of Python that bind `kernel`, `how`, `args` and `kwargs`, so that it can be read and run alone.
"""

from __future__ import annotations

import array
import copy
import ctypes
import decimal
import fractions
import io
import pickle
import warnings
from contextlib import redirect_stdout
from random import Random
from typing import Any

import ml_dtypes
import numpy as np

from tests.fuzz.call_kernels import EXPECTED, KERNELS
from tests.fuzz.corpus import words
from tests.fuzz.outcome import Outcome, in_program, judge, limit
from tiledsl.errors import TileError
from tiledsl.kernel import TileKernel

__all__ = ["SUFFIX", "generate", "run"]

SUFFIX = "txt"
SECONDS = 20.0

HOW = ("call",) * 12 + ("check", "trace", "time", "verify", "compile", "explain", "pickle", "copy", "deepcopy", "repr")

SHAPES, DTYPES, VIEWS, OBJECTS = words("shapes"), words("dtypes"), words("views"), words("objects")
AGAIN = {"pickle": lambda k: pickle.loads(pickle.dumps(k)), "copy": copy.copy, "deepcopy": copy.deepcopy}
DEVICES = ["'emulator'"] * 12 + ["None", "'gpu'", "'cpu'", "'cuda'", "0", "''", "['emulator']", "object()", "True"]
NAMES = ["X", "Y", "Q", "alpha", "n", "T", "mode", "s", "flag", "self", "arch", "device", "args", "D", "repeat"]


# -- what the expressions name ---------------------------------------------------------------------


def ramp(shape: tuple[int, ...], dtype: str = "f4") -> Any:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(_dtype(dtype))


def _dtype(name: str) -> Any:
    return getattr(ml_dtypes, name, None) or np.dtype(name)


def read_only(X: Any) -> Any:
    X.flags.writeable = False
    return X


def misaligned(X: Any) -> Any:
    return np.zeros(X.nbytes + 1, np.uint8)[1:].view(X.dtype).reshape(X.shape)


def overlapping(X: Any) -> Any:
    return np.lib.stride_tricks.as_strided(X, X.shape, (0,) * X.ndim)


def askew(X: Any) -> Any:
    """Rows a byte apart, but for objects: NumPy would follow what is no pointer."""
    return X if X.dtype == object else np.lib.stride_tricks.as_strided(X, X.shape, [1] * X.ndim)


class Subclass(np.ndarray):  # type: ignore[type-arg]
    pass


class Wrapped:
    """Has the protocol of NumPy only."""

    def __init__(self, X: Any) -> None:
        self.X = X

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.X


class Broken(Wrapped):
    @property
    def __array_interface__(self) -> Any:
        return {"shape": (-1,), "typestr": "f", "data": None, "version": 3}


class DlPack(Wrapped):
    def __dlpack__(self, **_: Any) -> Any:
        return self.X and self.X.__dlpack__() if not isinstance(self.X, np.ndarray) else self.X.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return (1, 0) if self.X is not None else (99, 0)


class CudaInterface(Wrapped):
    @property
    def __cuda_array_interface__(self) -> Any:
        return {"shape": (40,), "typestr": "<f4", "data": (16, False), "version": 3} if self.X is not None else {}


class Index:
    def __index__(self) -> int:
        return 32


class Unhashable:
    __hash__ = None  # type: ignore[assignment]


class Equal:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


class Hostile:
    """Raises whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __hash__(self) -> int:
        raise RuntimeError("hash")

    def __repr__(self) -> str:
        raise RuntimeError("repr")


# -- a case ----------------------------------------------------------------------------------------


def generate(seed: int, case: int) -> str:
    random = Random(f"calls {seed} {case}")
    kernel = KERNELS[random.choice(list(KERNELS))]
    signature = kernel.signature
    args = [_plausible(p, random) if random.random() < 0.75 else _any(random) for p in signature.params]
    kwargs = {"device": random.choice(DEVICES)}
    for const in signature.consts:
        if random.random() < 0.4:
            kwargs[const.name] = random.choice(OBJECTS) if random.random() < 0.6 else repr(const.default)
    match random.randrange(8):
        case 0 if args:
            args.pop(random.randrange(len(args)))
        case 1:
            args.append(_any(random))
        case 2:
            kwargs[random.choice(NAMES)] = _any(random)
        case 3 if args:
            at = random.randrange(len(args))
            kwargs |= {p.name: a for p, a in zip(signature.params[at:], args[at:], strict=False)}
            args = args[:at]
    how = random.choice(HOW)
    lines = [f"kernel, how = {kernel.name}, {how!r}", f"args = [{', '.join(args)}]"]
    return "\n".join([*lines, f"kwargs = {{{', '.join(f'{k!r}: {v}' for k, v in kwargs.items())}}}"]) + "\n"


def _plausible(param: Any, random: Random) -> str:
    """An argument that is right, but for what one view or one number changes."""
    dims = getattr(param, "dims", None)
    if dims is None:
        return random.choice(("0", "1", "2", "3.0", "True", random.choice(OBJECTS)))
    sizes = {"M": 5 if len(dims) > 1 else 40, "N": 40, "K": 7}
    shape = tuple(d if isinstance(d, int) else sizes[d] for d in dims)
    dtype = str(param.dtype).replace("f32", "f4").replace("f64", "f8").replace("D", "f2")
    text = f"ramp({shape}, {dtype!r})"
    return text if random.random() < 0.6 else random.choice(VIEWS).replace("X", text)


def _any(random: Random) -> str:
    if random.random() < 0.4:
        return random.choice(OBJECTS)
    text = f"ramp({random.choice(SHAPES)}, {random.choice(DTYPES)!r})"
    return text if random.random() < 0.5 else random.choice(VIEWS).replace("X", text)


def run(text: str, seed: int, case: int) -> Outcome:
    names: dict[str, Any] = {**globals(), **KERNELS, "array": array, "ctypes": ctypes, "copy": copy}
    names |= {"decimal": decimal, "fractions": fractions}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exec(text, names)
        except Exception as error:
            return Outcome("no call", type(error).__name__)  # NumPy has no such array
        try:
            with limit(SECONDS), redirect_stdout(io.StringIO()):
                return _done(names["kernel"], names["how"], names["args"], names["kwargs"])
        except BaseException as error:
            return _judge(error)


def _judge(error: BaseException) -> Outcome:
    """An exception of an argument's own methods is the user's; an error must survive being sent to another process."""
    if in_program(error):
        return Outcome("python", type(error).__name__)
    if isinstance(error, TileError):
        try:
            same = str(pickle.loads(pickle.dumps(error))) == str(error)
        except Exception as lost:
            return Outcome("wrong", f"{type(error).__name__} cannot be pickled: {type(lost).__name__}", str(lost))
        if not same:
            return Outcome("wrong", f"{type(error).__name__} is another error when unpickled", str(error))
    return judge(error)


def _done(kernel: TileKernel, how: str, args: list[Any], kwargs: dict[str, Any]) -> Outcome:
    without = {name: value for name, value in kwargs.items() if name != "device"}
    match how:
        case "call":
            return _called(kernel, args, kwargs)
        case "check":
            kernel.check(*args, **without)
        case "trace":
            kernel.trace()(*args, **without)
        case "time":
            kernel.time(*args, **{"repeat": 2, **kwargs})
        case "verify":
            kernel.verify(lambda *given: None, *args, **kwargs)
        case "compile":
            kernel.compile(**without)
        case "explain":
            kernel.explain("banks", **without)
        case "repr":
            repr(kernel)
            kernel._bind(tuple(args), without)
        case _:
            try:
                kernel = AGAIN[how](kernel)
            except Exception as error:
                return Outcome("wrong", f"{how} of a kernel: {type(error).__name__}", str(error))
            return _called(kernel, args, kwargs)
    return Outcome("ok")


def _called(kernel: TileKernel, args: list[Any], kwargs: dict[str, Any]) -> Outcome:
    before = [_snapshot(a) for a in args], {k: _snapshot(v) for k, v in kwargs.items()}
    kernel(*args, **kwargs)
    expected = EXPECTED.get(kernel.name)
    if expected is None:
        return Outcome("ok")
    given = kernel._bind(tuple(args), {k: v for k, v in kwargs.items() if k != "device"})
    old = kernel._bind(tuple(before[0]), {k: v for k, v in before[1].items() if k != "device"})
    for name, wanted in expected(**old).items():
        got = np.asarray(given[name])
        if got.shape != wanted.shape or not np.array_equal(got, wanted, equal_nan=got.dtype.kind == "f"):
            return Outcome("wrong", f"{name} of {kernel.name}", f"got {got}\nexpected {wanted}")
    return Outcome("ok")


def _snapshot(value: Any) -> Any:
    if isinstance(value, Wrapped):
        return copy.deepcopy(value)
    return np.array(value) if isinstance(value, np.ndarray) else value
