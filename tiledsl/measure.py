"""`k.verify` and `k.time`: whether each element of a result is right, and how long a kernel takes."""

from __future__ import annotations

import math
import statistics
import timeit
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Callable, Mapping

from tiledsl.errors import KernelArgumentError
from tiledsl.ir.formats import FORMATS
from tiledsl.ir.types import DType
from tiledsl.outside import python_number
from tiledsl.signatures.specialize import argument_error, looking_at

if TYPE_CHECKING:
    from tiledsl.runtime.dispatch import Dispatcher


@dataclass(frozen=True)
class Product:
    """The dtypes and the accuracy of a product of matrices.

    operand: dtype of A and B. result: of C. roundoff: the unit roundoff of the result, 0 for integers. chain: the
    largest error of a sum of n products, relative to the sum of their absolute values.
    """

    operand: str
    result: str
    roundoff: float
    chain: Callable[[int], float]


def _rounded_chain(unit: float) -> Callable[[int], float]:
    """Of n fused multiply-adds, in any order (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1)."""
    return lambda n: n * unit / (1 - n * unit)


def _tensor_core(step: int, error: float, inputs: float = 0.0) -> Callable[[int], float]:
    """The error of tensor cores that add `step` products at once with `error`; `inputs`: of truncated operands."""
    return lambda n: ceil(n / step) * error + inputs


_U32 = FORMATS["f32"].unit_roundoff
_F8 = _tensor_core(32, 34 * 2.0**-13)
_F16 = _tensor_core(16, 5.25 * 2.0**-23)

PRODUCTS: dict[str, Product] = {
    "f32": Product("f32", "f32", _U32, _rounded_chain(_U32)),
    "f64": Product("f64", "f64", 2.0**-53, _rounded_chain(2.0**-52)),  # the reference is off as well
    "f16": Product("f16", "f16", 2.0**-11, _F16),
    "bf16": Product("bf16", "bf16", 2.0**-8, _F16),
    "tf32": Product("f32", "f32", _U32, _tensor_core(8, 3.25 * 2.0**-23, 2 * 2.0**-10)),
    "e4m3": Product("e4m3", "bf16", 2.0**-8, _F8),
    "e5m2": Product("e5m2", "bf16", 2.0**-8, _F8),
    "i8": Product("i8", "i32", 0.0, lambda n: 0.0),
    "u8": Product("u8", "i32", 0.0, lambda n: 0.0),
}
"""Products by name, which mostly is the operands' dtype; "tf32": f32, of which tensor cores use the upper 19 bits."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one run: the median, the least and the most of `runs`. `where`: "gpu" or "emulator"."""

    median: float
    min: float
    max: float
    runs: int
    where: str

    def __str__(self) -> str:
        return f"{_time(self.median)} ({_time(self.min)} to {_time(self.max)}, {self.runs} runs, {self.where})"


@dataclass(frozen=True)
class Mismatch:
    """The worst element of an output: its index, its value, the expected one, and its error as a share of its bound."""

    tensor: str
    index: tuple[int, ...]
    got: float
    expected: float
    error: float
    share: float


@dataclass(frozen=True)
class Verification:
    """The result of `k.verify`, which is true if `wrong` is 0. `elements` were compared; `worst` is the worst one."""

    kernel: str
    elements: int
    wrong: int
    worst: Mismatch | None

    def __bool__(self) -> bool:
        return self.wrong == 0

    def __str__(self) -> str:
        verdict = "right" if self else f"{self.wrong} WRONG"
        text = f"{self.kernel}(): {self.elements} elements, {verdict}"
        if self.worst is None:
            return text
        w = self.worst
        where = f"{w.tensor}[{', '.join(map(str, w.index))}]"
        share = f"{w.share:.3g} of its bound" if math.isfinite(w.share) else "outside any bound"
        return f"{text}; worst is {where}: got {w.got:.9g}, expected {w.expected:.9g}, error {w.error:.3g}, {share}"

    __repr__ = __str__


def gemm_bound(A: Any, B: Any) -> Any:
    """The largest error of ``A @ B`` in fp32 fma chains, in any order, for each element (without the final rounding).

    E(K) |A||B| with E(K) = K u / (1 - K u), u = 2^-24 (Higham, Accuracy and Stability of Numerical
    Algorithms, section 3.1).
    """
    import numpy

    left, right = (numpy.abs(x).astype(numpy.float64) for x in (A, B))
    return PRODUCTS["f32"].chain(A.shape[-1]) * (left @ right)


BOUNDS = "pass a number, or an array of one for each element (gemm_bound gives that of a product)"

# -- verify ----------------------------------------------------------------------------------------------


def verify(
    kernel: Dispatcher, reference: Callable[..., Any], values: Mapping[str, Any], bound: Any = 0.0, exact: bool = False,
    device: str | None = None,
) -> Verification:  # fmt: skip
    """Compare `kernel` with `reference` on copies of `values`. See `TileKernel.verify`."""
    import numpy

    name = kernel.signature.name
    if not callable(reference):
        message = f"verify(): the reference is {reference!r}; expected a function of the kernel's arguments"
        raise KernelArgumentError(f"{message}\n  fix: {name}.verify(reference, ...), the reference first")
    # Before anything is copied: raises the errors of the call.
    arguments = kernel.arguments(values, device)
    with looking_at(kernel.signature, "bound", bound, "numbers", BOUNDS):
        bound = numpy.asarray(bound, numpy.float64)
    tensors = [p.name for p in kernel.signature.tensors]
    mine, theirs = ({n: _copy(v) if n in tensors and v is not None else v for n, v in values.items()} for _ in range(2))
    outputs = [*kernel.run(mine, device)]
    expected = expected_of(kernel, reference(*(theirs[p.name] for p in kernel.signature.params)), theirs, outputs)
    declared = {p.name: p.dtype for p in kernel.signature.tensors if isinstance(p.dtype, DType)}
    dtypes = {n: declared.get(n, info.dtype) for n, info in arguments.present.items()}
    found = [_compare(n, _host(mine[n]), _host(expected[n]), dtypes[n], bound, exact) for n in outputs]
    worst = max((w for _, _, w in found if w is not None), key=lambda w: w.share, default=None)
    return Verification(name, sum(n for n, _, _ in found), sum(w for _, w, _ in found), worst)


def expected_of(kernel: Dispatcher, returned: Any, arrays: Mapping[str, Any], outputs: list[str]) -> dict[str, Any]:
    """What a reference says of each output: what it returned, or has written to `arrays`."""
    if returned is None:
        return {n: arrays[n] for n in outputs}
    results: list[Any] = [*returned] if isinstance(returned, tuple) else [returned]
    if len(results) != len(outputs):
        message = f"the reference returned {len(results)} arrays; the kernel writes {', '.join(outputs)}"
        fix = "return one array for each of them, or write into the arguments and return nothing"
        raise argument_error(kernel.signature, message, fix)
    return dict(zip(outputs, results, strict=True))


def require_shape(name: str, got: Any, expected: Any) -> None:
    """Raises KernelArgumentError."""
    if got.shape != expected.shape:
        message = f"the reference gives {name} the shape {expected.shape}; the kernel's is {got.shape}"
        raise KernelArgumentError(f"{message}\n  fix: let the reference return an array of that shape")


def _copy(array: Any) -> Any:
    """A copy in the same kind of memory, with the same order of axes."""
    if hasattr(array, "clone"):  # torch
        return array.detach().clone()
    if type(array).__module__.split(".")[0] == "numpy":
        return array.copy(order="K")
    if hasattr(array, "copy"):
        return array.copy()
    raise KernelArgumentError(f"verify() cannot copy a {type(array).__name__}\n  fix: pass NumPy, torch or CuPy arrays")


def _host(array: Any) -> Any:
    """`array` as a NumPy array."""
    import numpy

    if hasattr(array, "detach"):  # torch; dtypes that NumPy lacks are converted to f32, which is exact
        on_host = array.detach().cpu()
        foreign = str(on_host.dtype) in ("torch.bfloat16", "torch.float8_e4m3fn", "torch.float8_e5m2")
        return (on_host.float() if foreign else on_host).numpy()
    return array.get() if type(array).__module__.split(".")[0] == "cupy" else numpy.asarray(array)


def _compare(
    name: str, got: Any, expected: Any, dtype: DType, bound: Any, exact: bool
) -> tuple[int, int, Mismatch | None]:
    """(elements, wrong ones, the worst). NaN is right where NaN is expected, an infinity where the same one is."""
    import numpy

    require_shape(name, got, expected)
    if not got.size:
        return 0, 0, None
    with numpy.errstate(all="ignore"):
        if exact:
            expected = expected.astype(got.dtype)
        same = _same(got, expected)
        left, right = got.astype(numpy.float64), expected.astype(numpy.float64)
        error = numpy.where(same, 0.0, numpy.abs(left - right))
        limit, right_ones = numpy.zeros_like(error), same
        if not exact:
            try:
                bound = numpy.broadcast_to(bound, got.shape)
            except ValueError:
                message = f"bound has the shape {bound.shape}, which does not fit {name}, of shape {got.shape}"
                raise KernelArgumentError(f"verify(): {message}\n  fix: {BOUNDS}") from None
            form = FORMATS.get(dtype.name)  # None: an integer, to which nothing is rounded
            relative, least = (form.unit_roundoff, form.smallest) if form is not None else (0.0, 0.0)
            limit = relative * numpy.abs(right) + bound + least
            right_ones = same | (numpy.isfinite(right) & (error <= limit))
        share = numpy.where(right_ones & (limit == 0), 0.0, error / limit)
        share = numpy.where(right_ones, share, numpy.where(numpy.isnan(share), numpy.inf, numpy.maximum(share, 1.0)))
    index = numpy.unravel_index(int(numpy.argmax(share)), share.shape)
    worst = Mismatch(name, tuple(map(int, index)), *(float(of[index]) for of in (left, right, error, share)))
    return got.size, int(got.size - numpy.count_nonzero(right_ones)), worst


def _same(got: Any, expected: Any) -> Any:
    """Where both have the same value, or the same bits if their dtypes are equal, or both are NaN."""
    import numpy

    both_nan = (got != got) & (expected != expected)
    equal = got == expected
    if got.dtype == expected.dtype and got.dtype.kind == "f":
        equal = equal & (numpy.signbit(got) == numpy.signbit(expected))
    return equal | both_nan


# -- time ------------------------------------------------------------------------------------------------


def time_kernel(kernel: Dispatcher, values: Mapping[str, Any], repeat: int = 20, device: str | None = None) -> Timing:
    """Time runs of `kernel` on `values`. See `TileKernel.time`."""
    repeat = python_number(repeat)
    if type(repeat) is not int or repeat < 1:
        raise KernelArgumentError(f"time(): repeat is {repeat!r}; expected a number of runs\n  fix: pass 1 or more")
    arguments = kernel.arguments(values, device)
    where = kernel.place(arguments)
    if where == "emulator":
        kernel.emulate(arguments)
        seconds = timeit.repeat(lambda: kernel.emulate(arguments), number=1, repeat=repeat)
    else:
        with kernel.on_gpu(arguments) as prepared:
            seconds = time_by_events(prepared, repeat)
    return Timing(statistics.median(seconds), min(seconds), max(seconds), len(seconds), where)


def time_by_events(prepared: Any, repeat: int) -> list[float]:
    """Seconds of each run of a `CheckedLaunch`, one behind the other after a warm-up."""
    gpu, stream = prepared.plan.driver, prepared.stream
    with gpu.active(prepared.plan.device):
        prepared.run()
        gpu.synchronize(stream, "the warm-up run")
        marks = [gpu.event() for _ in range(2 * repeat)]
        for start, end in zip(marks[::2], marks[1::2], strict=True):
            gpu.record(start, stream)
            prepared.run()
            gpu.record(end, stream)
        gpu.synchronize(stream, "the timed runs")
        seconds = [gpu.elapsed(start, end) for start, end in zip(marks[::2], marks[1::2], strict=True)]
        for mark in marks:
            gpu.destroy(mark)
    return seconds


def _time(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e6:.3g} us"
