"""Cases of `sequences`: six calls of the library's products, with odd arguments, on stand-ins for torch and a GPU.

Each call must give the same bits, or the same error, as the same call when every call cache is empty. A case is six
lines of Python, one call each. `fresh` compares the same cases with a process of its own for each call.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.fuzz.outcome import Outcome, judge, limit
from tests.fuzz.sequence_kernels import EPILOGUES, many_scalars
from tests.unit.emulated_gpu import NAMES, EmulatedDriver, FakeTorch, aligned, clear_caches, install
from tiledsl.errors import TileError
from tiledsl.gemm import Int4Weights, gemm, grouped_gemm, int4_gemm, masked_gemm, pack_int4, release, warmup
from tiledsl.runtime.arrays import NUMPY_NAMES

__all__ = ["PATIENCE", "SECONDS", "SUFFIX", "Result", "compared", "generate", "in_turn", "run"]

SUFFIX = "txt"
SECONDS, PATIENCE = 120.0, 600.0
"""The seconds of CPU time, and of wall time, that a case may take: most of it compiles for the emulator."""
CALLS = 6

ORDINARY = *2 * ("1.0", "0.0", "0.5", "-1.0", "2.0"), "0", "1", "2", "np.float32(0.5)"
ROUNDED = (
    *("1e-50", "-1e-50", "0.5**149", "0.5**150", "0.5**151", "-(0.5**150)", "1e-44", "1e-40", "1e-310", "-0.0"),
    *("np.float64(1e-50)", "np.float16(6e-8)", "np.float32(0)", "np.int8(0)", "0.75 * 0.5**149", "2**24 + 1"),
)
ODD = (
    *("float('nan')", "float('inf')", "-float('inf')", "3.4028235e38", "3.5e38", "1e300", "10**400", "2**24"),
    *("bf16(0.5)", "np.int64(3)", "True", "False", "np.bool_(True)", "None", "'1'", "1j", "np.array(1.0)"),
    *("Fraction(1, 2)", "np.longdouble(1)"),
)
"""Values of alpha and beta: ordinary, tiny and rounded to 0 or not, and not finite, too large, or no numbers."""
SIZES = ((16, 16, 16), (40, 32, 24), (24, 31, 23), (1, 16, 40), (16, 8, 0))
"""m, n, and k of products."""
STREAMS = ("7", "11", "0", "'default'")


# -- what the lines name ---------------------------------------------------------------------------

_made: list[FakeTorch] = []
"""The tensors of the call that is evaluated now, whose memory is compared after it."""


def t(seed: int, shape: tuple[int, ...], dtype: str, order: str = "C", shift: int = 0, first: float = 0) -> FakeTorch:
    """Return a tensor of small numbers.

    Args:
        seed: What the numbers are drawn from.
        shape: Its shape.
        dtype: Its dtype, by the name in this language.
        order: How it lies in memory: "C" or "F" contiguous, "S" for every other column of a wider one, "P" for rows
            that are padded by 8 elements, "B" for a first row that is repeated.
        shift: Bytes after a multiple of 256 at which it starts.
        first: What its first element is, unless this is 0 or the tensor has integers, which have no NaN and infinity.
    """
    numbers = np.random.default_rng(seed).integers(-4, 5, shape).astype(DTYPES[dtype])
    if first and numbers.size and numbers.dtype.kind not in "iu":
        numbers.flat[0] = first
    tensor = FakeTorch(_laid_out(numbers, order, shift))
    _made.append(tensor)
    return tensor


def _laid_out(x: Any, order: str, shift: int) -> Any:
    *rest, columns = x.shape
    if order in "SP":
        wide = aligned(np.zeros((*rest, 2 * columns if order == "S" else columns + 8), x.dtype), shift)
        view = wide[..., ::2] if order == "S" else wide[..., :columns]
        view[...] = x
        return view
    if order == "B":
        return np.broadcast_to(aligned(x[..., :1, :], shift), x.shape)
    return aligned(np.asfortranarray(x) if order == "F" else x, shift)


def ints(numbers: list[int], dtype: str = "i32") -> FakeTorch:
    """Return offsets or counts of groups."""
    return FakeTorch(aligned(np.array(numbers, DTYPES[dtype])))


def weights(seed: int, k: int, n: int, group: int = 32, zeros: bool = False) -> Int4Weights:
    """Return packed weights in the memory of the GPU."""
    random, shape = np.random.default_rng(seed), (-(-k // group), n)
    points = random.integers(0, 16, shape) if zeros else None
    found = pack_int4(random.integers(0, 16, (k, n)), random.random(shape).astype(DTYPES["bf16"]), points, group=group)
    moved = (x if x is None else FakeTorch(aligned(x)) for x in (found.words, found.scales, found.zeros))
    return Int4Weights(*moved, found.k, found.n, found.group)


DTYPES: dict[str, Any] = {NUMPY_NAMES[name]: dtype for name, dtype in NAMES.items()}
FUNCTIONS = {f.__name__: f for f in (gemm, grouped_gemm, int4_gemm, masked_gemm, release, warmup)}
NAMED: dict[str, Any] = {
    **FUNCTIONS, **EPILOGUES, "many_scalars": many_scalars, "t": t, "ints": ints, "weights": weights, "np": np,
    "bf16": ml_dtypes.bfloat16, "Fraction": Fraction,
}  # fmt: skip


# -- cases -----------------------------------------------------------------------------------------


def generate(seed: int, case: int) -> str:
    """Return six calls of one or two kinds. Most differ from an earlier one in their numbers alone, so that they find
    what that has left in a cache."""
    random = Random(f"sequences {seed} {case}")
    makers = [KINDS[kind](random) for kind in random.sample(list(KINDS), random.choice((1, 2, 2)))]
    forms: list[str] = []
    for _ in range(CALLS):
        forms.append(random.choice(forms) if forms and random.random() < 0.8 else random.choice(makers)())
    return "".join(NUMBER.sub(lambda found: _number(random, found[1]), form) + "\n" for form in forms)


Maker = Callable[[], str]
"""Returns a call, in which an argument ``@alpha`` stands for any value of alpha."""
NUMBER = re.compile(r", @(\w+)")
NUMBERS = {
    "small": ("0", "1", "-128", "127", "128", "True", "1.0", "np.int8(5)", "np.int64(5)", "np.int64(300)", "None"),
    "large": ("0", "5", "2**32 - 1", "2**32", "-1", "np.uint32(7)", "np.int64(-1)", "False", "7.0"),
    "flag": ("True", "False", "1", "0", "np.bool_(True)", "None"),
    "COUNT": ("0", "1", "True", "2", "np.int64(2)", "1.0", "'1'"),
    "expected": ("3", "2.5", "True", "-1", "8", "None"),
}
"""Values of arguments that are no factors."""


def _number(random: Random, name: str) -> str:
    if random.random() < 0.3:
        return ""
    values = NUMBERS.get(name) or random.choice((*4 * (ORDINARY,), *3 * (ROUNDED,), ODD))
    return f", {name}={random.choice(values)}"


def _some(random: Random, likely: float, *others: str) -> str:
    """Return nothing with this probability, else one of the others, which are keyword arguments."""
    return "" if random.random() < likely else random.choice(others)


def _line(function: str, *arguments: str) -> str:
    return f"{function}({', '.join(argument for argument in arguments if argument)})"


def _tensor(random: Random, seed: int, shape: tuple[int, ...], dtype: str, orders: str) -> str:
    """Return a tensor of one of these orders, whose first element may be special, and whose address a worse one."""
    shift = _some(random, 0.85, "shift=8")
    first = _some(random, 0.7, "first=np.nan", "first=np.inf")
    return _line("t", str(seed), f"{shape}", f"{dtype!r}", f"{random.choice(orders)!r}", shift, first)


def _epilogue(random: Random) -> str:
    return _some(random, 0.7, *(f"epilogue={name}" for name in (*EPILOGUES, "None")))


def _of_gemm(random: Random, dtype: str, outs: tuple[str, ...], precision: str = "") -> Maker:
    """Return what makes calls of `gemm` for one shape."""
    (m, n, k), batch = random.choice(SIZES), random.choice(((), (), (2,)))

    def make() -> str:
        out = random.choice(outs)
        c = _tensor(random, 3, (*batch, m, n), out, "CCCCCCFPB") if random.random() < 0.8 else f"out_dtype={out!r}"
        return _line(
            "gemm", _tensor(random, 1, (*batch, m, k), dtype, "CCCFSP"), _tensor(random, 2, (k, n), dtype, "CCF"), c,
            "@alpha", "@beta", _some(random, 0.6, f"bias=t(4, ({n},), 'f32')", f"bias=t(4, ({n},), 'f32', shift=4)"),
            _epilogue(random),
            _some(random, 0.9, "batch_invariant=True", "batch_invariant=1", "device='gpu'", "device='emulator'"),
            _some(random, 0.9, "stream=7", "stream=11", "stream='default'"),
            precision and f"precision={precision!r}",
        )  # fmt: skip

    return make


def _gemm(random: Random) -> Maker:
    dtype = random.choice(("bf16", "f16", "f32"))
    return _of_gemm(random, dtype, ("f32",) if dtype == "f32" else (dtype, dtype, "f32", "f16"))


PRECISIONS = (
    ("tf32", "f32"),
    ("bf16x6", "f32"),
    ("f16x3", "f32"),
    ("i8x8", "f32"),
    ("i8x15", "f64"),
    ("promoted", "e4m3"),
)


def _precise(random: Random) -> Maker:
    precision, dtype = random.choice(PRECISIONS)
    return _of_gemm(random, dtype, (dtype if dtype == "f64" else "f32",), precision)


def _scaled(random: Random) -> Maker:
    """Return a maker of calls of `gemm` with scales per block, or per row and column; or of integers without scales."""
    (m, n, k), dtype = random.choice(SIZES[:4]), random.choice(("e4m3", "e5m2", "i8", "u8"))
    whole = dtype in ("i8", "u8")
    shapes = ((m, 1), (1, n)) if whole else ((m, -(-k // 128)), (-(-k // 128), -(-n // 128)))
    scales = ", ".join(f"scale_{'ab'[i]}=t({5 + i}, {shape}, 'f32')" for i, shape in enumerate(shapes))
    outs = ("bf16", "f32")
    if whole and random.random() < 0.3:
        scales, outs = "", ("i32",)

    def make() -> str:
        a, b = _line("t", "1", f"{(m, k)}", f"{dtype!r}"), _line("t", "2", f"{(k, n)}", f"{dtype!r}", "'F'")
        c = "" if random.random() < 0.2 else _tensor(random, 3, (m, n), random.choice(outs), "CCF")
        return _line("gemm", a, b, c, "@alpha", "@beta", scales)

    return make


def _grouped(random: Random, masked: bool = False) -> Maker:
    groups, rows, n, k = random.choice(((2, 16, 16, 16), (3, 24, 32, 24), (2, 16, 17, 16), (1, 8, 16, 0)))
    dtype = random.choice(("bf16", "f16", "e4m3"))
    batch = (groups,) if masked else ()
    scales = f"scale_a=t(5, {(*batch, rows, 1)}, 'f32'), scale_b=t(6, {(groups, 1, 1)}, 'f32')"
    if dtype != "e4m3" or not k or random.random() < 0.4:
        scales = ""
    bounds = [rows // 3, 0, rows][:groups] if masked else [*[0, rows // 3, rows // 2][:groups], rows]

    def make() -> str:
        out = "bf16" if dtype == "e4m3" else dtype
        c = _tensor(random, 3, (*batch, rows, n), out, "CCCCCFB") if random.random() < 0.5 else ""
        return _line(
            "masked_gemm" if masked else "grouped_gemm", _tensor(random, 1, (*batch, rows, k), dtype, "CCCFP"),
            _tensor(random, 2, (groups, k, n), dtype, "CCF"), f"ints({bounds}, {random.choice(('i32', 'i64'))!r})", c,
            "@alpha", "@expected" if masked else "", _some(random, 0.5, f"bias=t(4, {(groups, n)}, 'f32')"),
            _epilogue(random), scales,
        )  # fmt: skip

    return make


def _masked(random: Random) -> Maker:
    return _grouped(random, True)


def _int4(random: Random) -> Maker:
    (m, n, k), group = random.choice(((8, 16, 32), (4, 64, 64), (70, 16, 33))), random.choice((32, 64, 128))
    dtype, zeros = random.choice(("bf16", "f16")), random.choice((False, True))

    def make() -> str:
        c = _tensor(random, 3, (m, n), random.choice((dtype, "f32")), "CCF") if random.random() < 0.6 else ""
        x, bias = _tensor(random, 1, (m, k), dtype, "CCCFS"), _some(random, 0.5, f"bias=t(4, ({n},), 'f32')")
        return _line("int4_gemm", x, f"weights(2, {k}, {n}, {group}, {zeros})", c, "@alpha", bias, _epilogue(random))

    return make


def _warmup(random: Random) -> Maker:
    """Return a maker of calls of `gemm`, with warm-ups and releases of workspaces between them."""
    sizes, calls = random.choice(SIZES[:4]), _gemm(random)
    more = "bias=True", "batch_invariant=True", "layouts=('NT', 'TN')", "stream=11", "epilogue=None", "epilogue=relu"

    def make() -> str:
        if random.random() < 0.5:
            return calls()
        if random.random() < 0.2:
            return "release()"
        return _line("warmup", f"[{sizes}]", random.choice(("'bf16'", "'f32'")), "@beta", _some(random, 0.5, *more))

    return make


def _kernel(random: Random) -> Maker:
    names = ("x", "half", "brain", "small", "large", "flag", "FACTOR", "COUNT")

    def make() -> str:
        given = sorted(random.sample(names, random.choice((1, 1, 2, 3))))
        return _line("many_scalars", _tensor(random, 1, (32,), "f32", "C"), *(f"@{name}" for name in given))

    return make


KINDS: dict[str, Callable[[Random], Maker]] = {
    "gemm": _gemm, "precision": _precise, "scales": _scaled, "grouped_gemm": _grouped, "masked_gemm": _masked,
    "int4_gemm": _int4, "warmup": _warmup, "kernel": _kernel,
}  # fmt: skip


# -- running ---------------------------------------------------------------------------------------

Result = tuple[str, str]
"""The result of a call: its error, or what it returned, in words; and a digest of the memory of its tensors."""
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def result_of(line: str) -> tuple[Result, BaseException | None]:
    """Evaluate one call. Return its result, and the error that it raised."""
    _made.clear()
    error, words, returned = None, "", ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got: Any = eval(line, dict(NAMED))
        returned = (got,) if isinstance(got, FakeTorch) else ()
        words = f"{got.dtype} {got.shape} {got.stride()}" if returned else repr(got)
    except Exception as found:
        error, words = found, f"{type(found).__name__} {getattr(found, 'code', '')}: {ADDRESS.sub('#', str(found))}"
    digest = hashlib.sha256()
    for tensor in (*_made, *returned):
        digest.update(tensor.array.tobytes())
    digest.update(repr([tensor.version for tensor in _made]).encode())
    return (words, digest.hexdigest()[:16]), error


def in_turn(lines: list[str]) -> tuple[list[Result], list[BaseException | None]]:
    """Return the results of calls one after the other, in a process whose call caches are empty before, and their
    errors."""
    patch = pytest.MonkeyPatch()
    install(patch, EmulatedDriver())
    try:
        found = [result_of(line) for line in lines]
    finally:
        patch.undo()
        clear_caches()
    return [result for result, _ in found], [error for _, error in found]


def run(text: str, seed: int, case: int) -> Outcome:
    try:
        with limit(SECONDS):
            lines = text.splitlines()
            together, errors = in_turn(lines)
            apart = [in_turn([line])[0][0] for line in lines]
    except BaseException as error:
        return judge(error)
    return compared(lines, together, apart, errors)


def compared(
    lines: list[str], together: list[Result], apart: list[Result], errors: list[BaseException | None]
) -> Outcome:
    """Return a finding for the first call that became something else after the others; or for an error that is none of
    tiledsl's."""
    for i, (line, one, other) in enumerate(zip(lines, together, apart, strict=True)):
        if one != other:
            detail = "\n".join([*lines[: i + 1], "", f"after the others: {one}", f"alone: {other}"])
            return Outcome("stale", line.split("(")[0], detail)
    for line, error in zip(lines, errors, strict=True):
        found = None if error is None else judge(error)
        if found is not None and (found.is_finding or not isinstance(error, TileError)):
            return Outcome("internal", found.place or type(error).__name__, f"{line}\n{found.detail}")
    return Outcome("ok" if None in errors else "refused")
