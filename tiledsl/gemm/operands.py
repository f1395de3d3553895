"""The arrays of a call of `gemm`: what each library says of them, whether they fit together, and C if none is given.

All have three axes in the end, [batch, rows, columns]. A batch that only repeats an operand is a stride of 0, or no
batch at all: where one matrix multiplies all others, and these follow each other in memory, they are one matrix with
more rows or columns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from tiledsl.gemm.arguments import check_memory, described_bias
from tiledsl.gemm.formats import BLOCK, FORMATS, INTEGERS, NAMES, Format, Residues, Split, format_of
from tiledsl.ir.types import DTYPES, F32, F64, DType
from tiledsl.lang import cdiv
from tiledsl.layout.shared import row_major
from tiledsl.outside import python_number
from tiledsl.runtime.arrays import NUMPY_NAMES, describe, is_ndarray, is_torch
from tiledsl.signatures.specialize import ArrayInfo, Called, Named, argument_error, looking_at

LONG_NAMES = {short: long for long, short in NUMPY_NAMES.items()}
SHAPES = "pass [M, K] and [K, N], or [batch, M, K] and [batch, K, N]"


HANDLES = 1 << 64
"""A number above all handles of CUDA streams."""
GEMM = Called("gemm")
"""What errors name."""


class Operands(NamedTuple):
    """a, b, c: with three axes. a and b are tf32 if f32 is multiplied so. bias: None, or with one axis. given: A, B, C
    and the bias as they were passed. result: C itself. batch_invariant: the bits of a row of C must not depend on the
    number of rows. promoted, split: as of `Format`. scales: of A and of B, with three axes, or None."""

    a: ArrayInfo
    b: ArrayInfo
    c: ArrayInfo
    bias: ArrayInfo | None
    given: tuple[ArrayInfo, ...]
    result: Any
    batch_invariant: bool = False
    promoted: bool = False
    scales: tuple[ArrayInfo, ArrayInfo] | None = None
    split: Split | Residues | None = None

    @property
    def format(self) -> Format:
        """What is multiplied. Its results are those without an epilogue function."""
        return FORMATS[self.a.dtype.name, self.b.dtype.name]

    @property
    def addresses(self) -> tuple[int, ...]:
        """Of A, B, C, the bias and the scales of A and B, 0 for none."""
        optional = (self.bias, *(self.scales or (None, None)))
        more = (0 if info is None else info.pointer for info in optional)
        return self.a.pointer, self.b.pointer, self.c.pointer, *more


def described(
    A: Any, B: Any, C: Any, bias: Any, out_dtype: Any, epilogue: Any, precision: str | None = None,
    scale_a: Any = None, scale_b: Any = None,
) -> Operands:  # fmt: skip
    """Describe and check all arrays. Raises KernelArgumentError. C is allocated if it is None. epilogue: a function of
    the elements of C and their columns, or None for the default."""
    a, b = describe(GEMM, "A", A), describe(GEMM, "B", B)
    converts = epilogue is not None
    scaled = scale_a is not None or scale_b is not None
    format = format_of(GEMM, a.dtype, b.dtype, precision, converts, scaled)
    shape = _shape_of_result(a.shape, b.shape)
    wanted = None if out_dtype is None else dtype_named(out_dtype)
    made = wanted or format.results[0]
    result = new_array(GEMM, A, shape, None if made == a.dtype else made) if C is None else C
    c = describe(GEMM, "C", result)
    if c.dtype not in format.results:
        possible = ", ".join(dtype.name for dtype in format.results)
        tf32 = ', or precision="tf32"' if format.a == F32 else ""
        message = f"C is {c.dtype}; expected one of {possible} for {format}"
        raise argument_error(GEMM, message, f"pass C of such a dtype{tf32}", code="C802")
    if wanted not in (None, c.dtype):
        raise argument_error(GEMM, f"C is {c.dtype}, but out_dtype is {wanted}", "leave out one of them", code="C802")
    if c.shape != shape:
        message = f"C has the shape {c.shape}; expected {shape} for A {a.shape} and B {b.shape}"
        raise argument_error(GEMM, message, "pass C of that shape, or leave it out", code="C803")
    arrays = {"A": a, "B": b, "C": c}
    if bias is not None:
        arrays["bias"] = described_bias(GEMM, bias, shape[-1:])
        if format.sums != F32 and not converts:
            message = f"bias is f32, but the sums of {format} are {format.sums}"
            added = "x + bias.get(column).to(f64)" if format.sums == F64 else "x.to(f32) + bias.get(column)"
            raise argument_error(GEMM, message, f"add it by an epilogue function: {added}", code="C802")
    scales = described_scales(GEMM, scale_a, scale_b, a, b) if scaled else None
    arrays |= dict(zip(("scale_a", "scale_b"), scales or (), strict=False))
    check_memory(GEMM, arrays)
    of = folded(a, b, c, arrays.get("bias"), converts, result, scales)
    of = of._replace(a=replace(of.a, dtype=format.a), b=replace(of.b, dtype=format.b))
    return of._replace(promoted=format.promoted, split=format.split)


def dtype_named(value: Any, call: Named = GEMM) -> DType:
    """Return the dtype that `value` names: "bf16", or one of torch, NumPy or this language. call: what errors name."""
    with looking_at(call, "the dtype", value, "a dtype", 'pass "f32", for example'):
        found = getattr(value, "ir", value)
        if not isinstance(found, DType):
            text = str(getattr(value, "__name__", value)).removeprefix("torch.")
            found = DTYPES.get(NUMPY_NAMES.get(text, text))
    if found is None or found.name not in NAMES:
        raise argument_error(
            call, f"the dtype {value!r} is none of {', '.join(NAMES)}", 'pass "f32", for example', code="C802"
        )
    return found


def stream_handle(stream: Any, call: Named = GEMM) -> int:
    """Return the handle of a CUDA stream: an int, or a stream of torch, CuPy or any library with `__cuda_stream__`.
    call: what errors name."""
    number = python_number(stream)
    if type(number) is int and 0 <= number < HANDLES:
        return number
    fix = "pass its handle as an int, or a stream of torch or CuPy"
    with looking_at(call, "stream", stream, "a CUDA stream", fix):
        for name in ("cuda_stream", "ptr"):
            handle = getattr(stream, name, None)
            if isinstance(handle, int):
                return handle
        if hasattr(stream, "__cuda_stream__"):
            return int(stream.__cuda_stream__()[1])
    found = repr(number) if type(number) is int else f"a {type(stream).__name__}"
    message = f"stream is {found}; expected a CUDA stream"
    raise argument_error(call, message, fix, code="C805")


def _shape_of_result(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if not (len(a) in (2, 3) and len(b) in (2, 3)):
        raise argument_error(
            GEMM, f"A has the shape {a} and B {b}; expected two axes, or three with a batch", SHAPES, code="C803"
        )
    if a[-1] != b[-2]:
        message = f"K is {a[-1]} in A, of shape {a}, but {b[-2]} in B, of shape {b}"
        raise argument_error(GEMM, message, f"{SHAPES}; a transposed view will do", code="C803")
    batches = {shape[0] for shape in (a, b) if len(shape) == 3}
    if len(batches - {1}) > 1:
        raise argument_error(
            GEMM, f"A has a batch of {a[0]}, but B one of {b[0]}", "pass batches that agree, or of 1", code="C803"
        )
    batch = [next(iter(batches - {1}), 1)] if batches else []
    return (*batch, a[-2], b[-1])


def shapes_of_scales(a: tuple[int, ...], b: tuple[int, ...], dtype: DType) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of A and B of these shapes, of this dtype."""
    if dtype in INTEGERS:
        return (*a[:-1], 1), (*b[:-2], 1, b[-1])
    return (*a[:-1], cdiv(a[-1], BLOCK)), (*b[:-2], cdiv(b[-2], BLOCK), cdiv(b[-1], BLOCK))


def described_scales(call: Any, scale_a: Any, scale_b: Any, a: ArrayInfo, b: ArrayInfo) -> tuple[ArrayInfo, ArrayInfo]:
    """Of blocks, or of the rows of A and the columns of B where these are integers. call: what errors name."""
    of_a, of_b = shapes_of_scales(a.shape, b.shape, a.dtype)
    of_blocks = f"each row of A and each {BLOCK} of k", f"each {BLOCK} of k and each {BLOCK} columns of B"
    whats = ("each row of A", "each column of B") if a.dtype in INTEGERS else of_blocks
    found: list[ArrayInfo] = []
    for name, value, shape, what in (("scale_a", scale_a, of_a, whats[0]), ("scale_b", scale_b, of_b, whats[1])):
        expected = f"f32 of shape {shape}, one for {what}"
        if value is None:
            message = f"{name} is left out, and the other operand's scales are given; expected {expected}"
            raise argument_error(
                call, message, "pass both, the factors of an operand that has none being 1", code="C803"
            )
        info = describe(call, name, value)
        if info.dtype != F32 or info.shape != shape:
            transposed = info.dtype == F32 and info.shape == (*shape[:-2], shape[-1], shape[-2])
            message = f"{name} is {info.dtype} of shape {info.shape}; expected {expected}"
            raise argument_error(call, message, "pass its transposed view" if transposed else "convert it", code="C803")
        found.append(info)
    return found[0], found[1]


# -- three axes ----------------------------------------------------------------------------------------------


def folded(
    a: ArrayInfo, b: ArrayInfo, c: ArrayInfo, bias: ArrayInfo | None, by_column: bool, result: Any = None,
    scales: tuple[ArrayInfo, ArrayInfo] | None = None,
) -> Operands:  # fmt: skip
    """Return arrays that fit together, with three axes and the smallest batch.

    by_column: what an epilogue function does to an element depends on its column; a bias does, too."""
    by_column = by_column or bias is not None
    given = tuple(info for info in (a, b, c, bias, *(scales or ())) if info is not None)
    batch = c.shape[0] if len(c.shape) == 3 else 1
    a, b, c, *more = (_batched(info, batch) for info in (a, b, c, *(scales or ())))
    of_a, of_b = more[:1], more[1:]
    if batch > 1 and all(x.strides[0] == 0 for x in (b, *of_b)) and _in_a_row((a, c, *of_a), 1):
        a, c, *of_a = (_joined(x, 1) for x in (a, c, *of_a))
        b, *of_b = (_batched(x, 1) for x in (b, *of_b))
    elif batch > 1 and a.strides[0] == 0 and not (by_column or scales) and _in_a_row((b, c), 2):
        a, b, c = _batched(a, 1), _joined(b, 2), _joined(c, 2)
    found = (_canonical(of_a[0]), _canonical(of_b[0])) if scales else None
    return Operands(_canonical(a), _canonical(b), _canonical(c), bias, given, result, scales=found)


def _batched(info: ArrayInfo, batch: int) -> ArrayInfo:
    """With a batch: the matrix of a batch of 1 is repeated."""
    step = info.strides[0] if len(info.shape) == 3 and info.shape[0] > 1 and batch > 1 else 0
    return _view(info, (batch, *info.shape[-2:]), (step, *info.strides[-2:]))


def _view(info: ArrayInfo, shape: tuple[int, ...], strides: tuple[int, ...]) -> ArrayInfo:
    """The same memory. Its owner is no array of this shape."""
    return ArrayInfo(info.dtype, shape, strides, info.pointer, info.device, info.writable, (info.owner,), info.stream)


def _in_a_row(arrays: Iterable[ArrayInfo], axis: int) -> bool:
    """Does each matrix continue the one before along `axis`?"""
    return all(x.shape[axis] == 1 or x.strides[0] == x.shape[axis] * x.strides[axis] for x in arrays)


def _joined(info: ArrayInfo, axis: int) -> ArrayInfo:
    """The matrices of a batch as one that is longer along `axis`."""
    shape, strides = list(info.shape), list(info.strides)
    strides[axis] = strides[0] if shape[axis] == 1 else strides[axis]
    shape[axis] *= shape[0]
    return _view(info, (1, *shape[1:]), (0, *strides[1:]))


def _canonical(info: ArrayInfo) -> ArrayInfo:
    """With the strides along axes of extent 1, which are never used, that give it a contiguous axis and alignment."""
    _, rows, columns = info.shape
    step, down, across = info.strides
    if info.empty:
        return _view(info, info.shape, row_major(info.shape))
    aside = 16  # a multiple of 16 bytes, and not 1
    if columns == 1 and (rows == 1 or down != 1):
        across, down = 1, aside if rows == 1 else down
    elif columns == 1:
        across = aside
    elif rows == 1:
        down = aside if across == 1 else 1
    return _view(info, info.shape, (step, down, across))


# -- a new C -------------------------------------------------------------------------------------------------


def new_array(call: Any, like: Any, shape: tuple[int, ...], dtype: DType | None = None) -> Any:
    """An uninitialised array of the library of `like`, in the same memory. call: what errors name. dtype: None for that
    of `like`."""
    if is_torch(like):
        torch: Any = sys.modules["torch"]
        made = like.dtype if dtype is None else getattr(torch, LONG_NAMES[dtype.name])
        return torch.empty(shape, dtype=made, device=like.device)
    if type(like).__module__.split(".")[0] == "cupy":
        with like.device:
            return sys.modules["cupy"].empty(shape, dtype=_numpy_dtype(like, dtype))
    if is_ndarray(like):
        return sys.modules["numpy"].empty(shape, _numpy_dtype(like, dtype))
    message = (
        f"C is left out, and A is a {type(like).__module__}.{type(like).__name__}: nothing is known to allocate it"
    )
    raise argument_error(call, message, "pass C, or A as an array of NumPy, torch or CuPy")


def _numpy_dtype(like: Any, dtype: DType | None) -> Any:
    from tiledsl.ir.semantics import numpy_dtype

    return like.dtype if dtype is None else numpy_dtype(dtype)
