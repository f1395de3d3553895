"""Describes array arguments of NumPy, torch, CuPy, ``__cuda_array_interface__`` and DLPack.

No array library is imported here: if an argument is of a library, that library is in `sys.modules`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

from tiledsl.arch import MOST_ACCESS
from tiledsl.ir.types import BF16, BOOL, DTYPES, E5M2, DType
from tiledsl.layout.shared import row_major
from tiledsl.runtime.dlpack import UnusableArray, describe_dlpack
from tiledsl.signatures.specialize import ARRAY_DTYPES, ArrayInfo, Named, argument_error, looking_at

NUMPY_NAMES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "bool": "bool",
    "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
}  # fmt: skip
"""NumPy's, torch's and CuPy's names of our dtypes. tf32 has none: its arrays are float32 (`specialize`)."""
INTERFACE_CODES = {"b1": BOOL, "V2": BF16, "f1": E5M2}
"""Type codes of the CUDA array interface besides those of integers and floats: V2 is ml_dtypes.bfloat16, and f1 is
ml_dtypes.float8_e5m2, whose other 8-bit floats are all V1."""

ARRAYS = "pass a NumPy, torch or CuPy array, or one with __cuda_array_interface__ or DLPack"


def describe(signature: Named, name: str, value: Any) -> ArrayInfo:
    """Describe the array `value`, which is argument `name`. Raises KernelArgumentError if it is not a usable array.

    A description stands for its array: a caller that has computed one needs no view."""
    if type(value) is ArrayInfo:
        return value
    with looking_at(signature, name, value, "an array", ARRAYS):
        try:
            info = _reader(value)(value)
            if any(extent < 0 for extent in info.shape):
                raise UnusableArray(f"has the shape {info.shape}", ARRAYS)
        except UnusableArray as found:
            raise argument_error(signature, f"{name} {found.message}", found.fix, code="C804") from None
    return info


def _reader(value: Any) -> Callable[[Any], ArrayInfo]:
    if isinstance(value, type):
        raise UnusableArray(f"is the class {value.__name__}; expected an array", ARRAYS)
    if is_torch(value):
        return _describe_torch
    if is_ndarray(value):
        return _describe_numpy
    if type(value).__module__.split(".")[0] == "cupy":
        return _describe_cupy
    if hasattr(value, "__cuda_array_interface__"):
        return _describe_interface
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return describe_dlpack
    raise UnusableArray(f"is a {type(value).__name__}; expected an array", ARRAYS)


def _dtype(text: str, found: DType | None) -> DType:
    """`found`, unless the language lacks the dtype that the array's library calls `text`."""
    if found is None:
        fix = f"convert it to one of {', '.join(ARRAY_DTYPES)}"
        raise UnusableArray(f"has the dtype {text}, which the language does not have", fix)
    return found


def _named_dtype(name: str) -> DType:
    return _dtype(name, DTYPES.get(NUMPY_NAMES.get(name, "")))


def _elements(strides: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
    """Strides in elements, of strides in bytes."""
    if any(s % dtype.bytes for s in strides):
        message = f"has strides {strides} bytes, no multiples of its {dtype.bytes}-byte elements"
        raise UnusableArray(message, "pass a copy of it")
    return tuple(s // dtype.bytes for s in strides)


# -- one library each ------------------------------------------------------------------------------------


def is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_ndarray(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _describe_numpy(array: Any) -> ArrayInfo:
    numpy: Any = sys.modules["numpy"]
    kind: Any = array.__class__
    if isinstance(array, numpy.ma.MaskedArray):
        fix = "pass its filled(value), or its data for the elements whatever the mask says"
        raise UnusableArray("is a masked array, and a kernel knows no masks", fix)
    if kind.__array_ufunc__ is not numpy.ndarray.__array_ufunc__:  # it has units, a mask, ...
        message = f"is a {kind.__module__}.{kind.__name__}, whose arithmetic is not that of its elements"
        raise UnusableArray(message, "pass np.asarray() of it if the elements alone are meant")
    dtype = _named_dtype(array.dtype.name)
    if not array.dtype.isnative:
        raise UnusableArray("has foreign byte order", "pass array.astype(array.dtype.newbyteorder())")
    strides = _elements(array.strides, dtype)
    return ArrayInfo(dtype, array.shape, strides, array.ctypes.data, -1, bool(array.flags.writeable), array)


def _describe_torch(tensor: Any) -> ArrayInfo:
    torch: Any = sys.modules["torch"]
    kind: Any = tensor.__class__
    if tensor.is_nested:
        raise UnusableArray("is a nested tensor", "pass one dense tensor, padded")
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # fake, functional, distributed, ...
        message = f"is a {kind.__name__}, which stands for a tensor and need not have its memory"
        raise UnusableArray(message, "pass the plain tensor that it stands for")
    if tensor.layout is not torch.strided:
        raise UnusableArray(f"is a {tensor.layout} tensor", "pass a dense one: tensor.to_dense()")
    if tensor.is_neg():
        raise UnusableArray("is a lazily negated view", "pass tensor.resolve_neg()")
    dtype = _named_dtype(str(tensor.dtype).removeprefix("torch."))
    if tensor.device.type not in ("cuda", "cpu"):
        raise UnusableArray(f"is on {tensor.device}", "move it to the CPU or to a CUDA device")
    device = tensor.get_device() if tensor.is_cuda else -1
    stream = torch._C._cuda_getCurrentRawStream(device) if device >= 0 else None
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return ArrayInfo(dtype, shape, strides, tensor.data_ptr(), device, True, tensor, stream)


def _describe_cupy(array: Any) -> ArrayInfo:
    dtype = _named_dtype(array.dtype.name)
    strides = _elements(array.strides, dtype)
    with array.device:
        stream = int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return ArrayInfo(dtype, tuple(array.shape), strides, int(array.data.ptr), int(array.device.id), True, array, stream)


def _describe_interface(value: Any) -> ArrayInfo:
    """CUDA array interface, version 2 and 3 (numba's documentation)."""
    from tiledsl.runtime.driver import driver

    interface = value.__cuda_array_interface__
    missing = [field for field in ("typestr", "shape", "data") if interface.get(field) is None]
    if missing:
        raise UnusableArray(f"has a __cuda_array_interface__ without {' and '.join(missing)}", ARRAYS)
    if interface.get("mask") is not None:
        raise UnusableArray("is a masked array", "pass its data without the mask")
    typestr = interface["typestr"]
    order, code = typestr[0], typestr[1:]
    if code == "V1":
        message = f"has the dtype {typestr}, which does not say which 8-bit format it is"
        raise UnusableArray(message, "pass e4m3 as a torch tensor or by DLPack")
    number = DTYPES.get(f"{code[0]}{int(code[1:]) * 8}")
    dtype = _dtype(typestr, INTERFACE_CODES.get(code, number) if order != ">" else None)
    shape = tuple(int(n) for n in interface["shape"])
    strides, stream = interface.get("strides"), interface.get("stream")
    pointer, read_only = interface["data"]
    in_elements = row_major(shape) if strides is None else _elements(tuple(strides), dtype)
    device = driver().pointer_device(int(pointer)) if pointer else driver().current_device()
    # Stream 1 is the legacy default one, whose handle is 0.
    stream = 0 if stream == 1 else stream
    return ArrayInfo(dtype, shape, in_elements, int(pointer), device, not read_only, value, stream)


# -- host memory -----------------------------------------------------------------------------------------


class _Memory:
    """The memory of an array, through NumPy's array interface. NumPy does not read it to build a view."""

    def __init__(self, info: ArrayInfo) -> None:
        self.owner = info.owner
        self.__array_interface__ = {
            "shape": info.shape,
            "typestr": f"|V{info.dtype.bytes}",
            "data": (info.pointer, not info.writable),
            "strides": tuple(s * info.dtype.bytes for s in info.strides),
            "version": 3,
        }


def host_array(info: ArrayInfo) -> Any:
    """A NumPy array on the host memory of `info`, whose owner it keeps alive."""
    import numpy

    from tiledsl.ir.semantics import numpy_dtype

    if is_ndarray(info.owner):
        return info.owner
    return numpy.asarray(_Memory(info)).view(numpy_dtype(info.dtype))


def movable(info: ArrayInfo) -> Any:
    """The host array of `info` if its elements fill one span of memory in some order of axes, else a copy that does but
    for padding: its rows begin at multiples of 16 bytes where those of `info` do, as TMA and wide loads need it."""
    import numpy

    array = host_array(info)
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis] or sys.maxsize))
    if array.transpose(order).flags.c_contiguous:
        return array
    strides, size = [0] * array.ndim, array.itemsize
    for i, axis in enumerate(reversed(order)):
        align = math.gcd(array.strides[axis], MOST_ACCESS) if i else 1
        strides[axis] = -(-size // align) * align
        size = strides[axis] * array.shape[axis]
    memory: Any = numpy.empty(size, numpy.uint8)
    copied = numpy.ndarray(array.shape, array.dtype, memory, 0, strides)
    copied[...] = array
    return copied


def same_bytes(a: ArrayInfo, b: ArrayInfo) -> bool:
    """True if some byte belongs to elements of both. This is exact, not by range; the memory is not read."""
    a_low, a_high = (a.pointer + end for end in a.span())
    b_low, b_high = (b.pointer + end for end in b.span())
    if a.empty or b.empty or a_high <= b_low or b_high <= a_low:
        return False
    import numpy

    first_view, second_view = (numpy.asarray(_Memory(info)) for info in (a, b))
    shares_memory: Any = numpy.shares_memory  # its stub knows no max_work between "ranges only" and "without end"
    try:
        return bool(shares_memory(first_view, second_view, max_work=100_000))
    except numpy.exceptions.TooHardError:
        return True


SEARCHED = 10_000
"""The most differences of indices that `self_overlapping` looks at before it takes an array for overlapping."""


def self_overlapping(info: ArrayInfo) -> bool:
    """Return True if two indices reach the same element, as in a broadcast array.

    This is exact for up to two axes, and for strides that nest. With more axes whose strides do not, it is exact as far
    as a bounded search finds an end; else the array is taken for overlapping.
    """
    axes = sorted(((abs(s), n - 1) for n, s in zip(info.shape, info.strides, strict=True) if n > 1), reverse=True)
    if any(stride == 0 for stride, _ in axes):
        return True
    rest = [sum(stride * most for stride, most in axes[i + 1 :]) for i in range(len(axes))]
    if all(stride > reach for (stride, _), reach in zip(axes, rest, strict=True)):
        return False
    return _meets(axes, 0, False, [SEARCHED])


def _meets(axes: list[tuple[int, int]], offset: int, moved: bool, left: list[int]) -> bool:
    """Return True if `offset` and steps along `axes` add up to 0, and not all of these are 0 unless `moved`.

    Args:
        axes: The stride of each axis, positive and decreasing, and how many steps it has in either direction.
        offset: What the steps along other axes have added up to.
        moved: Whether one of these was not 0.
        left: How many more steps may be tried. If none are left, the result is True.
    """
    if len(axes) <= 2:
        first, second, *_ = [*axes, (1, 0), (1, 0)]
        return _two_meet(first, second, offset, moved)
    (stride, most), rest = axes[0], axes[1:]
    reach = sum(step * count for step, count in rest)
    # The step that is negative is another one's mirror image, unless others have moved.
    low = max(-most if moved else 0, -((offset + reach) // stride))
    for step in range(low, min(most, (reach - offset) // stride) + 1):
        left[0] -= 1
        if left[0] < 0 or _meets(rest, offset + step * stride, moved or step != 0, left):
            return True
    return False


def _two_meet(first: tuple[int, int], second: tuple[int, int], offset: int, moved: bool) -> bool:
    """Do as `_meets` with two axes: x and y with x * stride + y * other = -offset, both within their bounds."""
    (stride, most), (other, most_of_other) = first, second
    divisor = math.gcd(stride, other)
    if offset % divisor:
        return False
    # All solutions: x + i * period and y - i * (stride / divisor), of which those within the bounds are counted.
    period, back = other // divisor, stride // divisor
    x = -offset // divisor * pow(back, -1, period) % period
    y = -(offset + x * stride) // other
    low = max(-((most + x) // period), -((most_of_other - y) // back))
    high = min((most - x) // period, (most_of_other + y) // back)
    return high - low + 1 > (0 if moved else 1)
