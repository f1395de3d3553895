"""Before the first call: kernels for a list of shapes are compiled and loaded, and their workspace is allocated."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from tiledsl.arch import target_named
from tiledsl.compilation.parallel import Job, build_all
from tiledsl.errors import short_traceback
from tiledsl.gemm.arguments import epilogue_of, flag, integer
from tiledsl.gemm.formats import checked_factors, format_of
from tiledsl.gemm.operands import Operands, dtype_named, folded, shapes_of_scales, stream_handle
from tiledsl.gemm.prepared import SOMEWHERE, planned, prepare
from tiledsl.ir.types import F32, DType
from tiledsl.layout.shared import row_major
from tiledsl.runtime.driver import driver
from tiledsl.signatures.specialize import ArrayInfo, Called, argument_error, looking_at

__all__ = ["operands_of", "warmup"]

WARMUP = Called("warmup")
"""The function that errors name."""
LAYOUTS = ("NN", "NT", "TN", "TT")
APART = 1 << 50
"""Between the addresses of arrays that do not exist."""


@short_traceback
def warmup(
    shapes: Iterable[Sequence[int]],
    dtype: Any = "bf16",
    *,
    dtype_b: Any = None,
    out_dtype: Any = None,
    precision: str | None = None,
    scales: bool = False,
    layouts: Sequence[str] = ("NN",),
    beta: float = 0.0,
    bias: bool = False,
    epilogue: Any = None,
    batch_invariant: bool = False,
    stream: Any = None,
    arch: str | None = None,
) -> None:
    """Compile and load what `gemm` needs for products of these shapes, and allocate the workspace of a stream.

    shapes: (m, n, k), or (batch, m, n, k). dtype, out_dtype: of A and B, and of C. dtype_b: of B, if it differs.
    layouts: how A and B are stored: N in rows, T transposed; "NT" is a B whose columns are contiguous. scales: calls
    pass scale_a and scale_b, each stored like what it scales. precision, beta, bias, epilogue, batch_invariant: as
    calls will pass them; any beta that does not round to 0 stands for all. stream: that of the calls, by default
    torch's current one, else CuPy's, else the default stream. Arrays are taken to be contiguous, and aligned to 16
    bytes.

    arch: compile for this target only, into the disk cache; no GPU is needed. Kernels that are not in the cache are
    compiled by several processes.
    """
    a = dtype_named(dtype, WARMUP)
    b = a if dtype_b is None else dtype_named(dtype_b, WARMUP)
    ending, (_, beta) = epilogue_of(WARMUP, epilogue), checked_factors(WARMUP, 1.0, beta, precision)
    flags = {"scales": scales, "bias": bias, "batch_invariant": batch_invariant}
    scales, bias, batch_invariant = (flag(WARMUP, name, value) for name, value in flags.items())
    format = format_of(WARMUP, a, b, precision, ending is not None, scales)
    out = format.results[0] if out_dtype is None else dtype_named(out_dtype, WARMUP)
    if out not in format.results:
        possible = ", ".join(found.name for found in format.results)
        raise argument_error(
            WARMUP, f"out_dtype is {out}; expected one of {possible} for {format}", "pass one of them", code="C802"
        )
    layouts = _listed("layouts", layouts, f"some of {', '.join(LAYOUTS)}")
    for layout in layouts:
        if not isinstance(layout, str) or layout not in LAYOUTS:
            message = f"layouts has {layout!r}; expected some of {', '.join(LAYOUTS)}"
            raise argument_error(WARMUP, message, 'pass layouts=("NN", "NT"), for example', code="C805")
    device = 0 if arch is not None else driver().current_device()
    products = [
        operands_of(shape, (format.a, format.b, out), layout, bias, ending is not None, device, scales)._replace(
            batch_invariant=batch_invariant, promoted=format.promoted, split=format.split
        )
        for shape in _listed("shapes", shapes, "a list of (m, n, k)")
        for layout in layouts
    ]
    on = None if stream is None else stream_handle(stream, WARMUP)
    if arch is not None:
        target_named(arch)
        _compile(products, beta, ending, arch)
        return
    gpu = driver()
    _compile(products, beta, ending, gpu.target_of(device), gpu.devices[device].processors)
    on = _current_stream(device) if on is None else on
    capturing = gpu.capturing(on)
    for of in products:
        made = prepare(gpu, of, beta, ending, capturing)
        made.reserve(on)
        if not capturing:
            made.prepare_graphs(on)


def _listed(name: str, values: Any, expected: str) -> list[Any]:
    """Return the items of an argument. Raises KernelArgumentError."""
    fix = "pass a list"
    with looking_at(WARMUP, name, values, expected, fix):
        if isinstance(values, str) or not hasattr(values, "__iter__"):
            raise argument_error(WARMUP, f"{name} is {values!r}; expected {expected}", fix, code="C805")
        return list(values)


def _compile(products: Sequence[Operands], beta: float, ending: Any, *target: Any) -> None:
    """Build the kernels of all these for the `target`: its name, and its SMs where these are known."""
    jobs: dict[Any, Job] = {}
    for of in products:
        for step in planned(of, beta, ending, *target).launches:
            values = step.values((*of.addresses, *SOMEWHERE), of.a.device)
            spec, arch = step.kernel.dispatcher.build_of(values, target[0])
            jobs[step.kernel.name, repr(spec)] = step.kernel, spec, arch
    build_all(list(jobs.values()))


def operands_of(
    shape: Sequence[int], dtypes: tuple[DType, ...], layout: str, bias: bool, by_column: bool, device: int,
    scaled: bool = False,
) -> Operands:  # fmt: skip
    """Arrays of this shape, which do not exist. scaled: with scales, stored as what they scale."""
    expected = "(m, n, k) or (batch, m, n, k)"
    extents = [integer(WARMUP, "an extent", n) for n in _listed("a shape", shape, expected)]
    if len(extents) not in (3, 4) or min(extents) < 1:
        message = f"a shape is {shape!r}; expected {expected}, of positive integers"
        raise argument_error(WARMUP, message, "pass shapes=[(512, 4096, 4096)], for example", code="C803")
    *batch, m, n, k = extents

    def array(number: int, dtype: DType, rows: int, columns: int, order: str) -> ArrayInfo:
        stored = (*batch, rows, columns) if order == "N" else (*batch, columns, rows)
        strides = row_major(stored)
        if order == "T":
            strides = (*strides[:-2], strides[-1], strides[-2])
        return ArrayInfo(dtype, (*batch, rows, columns), strides, APART * number, device, True, None)

    sizes = ((m, k, layout[0]), (k, n, layout[1]), (m, n, "N"))
    a, b, c = (array(number + 1, dtypes[number], *size) for number, size in enumerate(sizes))
    added = ArrayInfo(F32, (n,), (1,), APART * 4, device, True, None) if bias else None
    rows, columns = shapes_of_scales((m, k), (k, n), dtypes[0])
    of_a, of_b = array(5, F32, m, rows[1], layout[0]), array(6, F32, columns[0], columns[1], layout[1])
    return folded(a, b, c, added, by_column, scales=(of_a, of_b) if scaled else None)


def _current_stream(device: int) -> int:
    torch, cupy = (sys.modules.get(name) for name in ("torch", "cupy"))
    if torch is not None and torch.cuda.is_initialized():
        return torch._C._cuda_getCurrentRawStream(device)
    return int(cupy.cuda.get_current_stream().ptr) if cupy is not None else 0
