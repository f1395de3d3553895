"""Describes any array argument: NumPy, torch, CuPy, ``__cuda_array_interface__``, DLPack.

No array library is imported here: an argument of a library implies that the library is in `sys.modules`.
"""

from __future__ import annotations

import sys
from typing import Any

from tiledsl.ir.types import BF16, BOOL, DTYPES, E5M2, DType
from tiledsl.runtime.dlpack import describe_dlpack
from tiledsl.signatures.signature import Signature
from tiledsl.signatures.specialize import ARRAY_DTYPES, ArrayInfo, argument_error, looking_at

__all__ = ["describe", "host_array", "movable", "numpy_dtype_of", "same_bytes", "self_overlapping"]

NUMPY_NAMES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "bool": "bool",
    "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
}  # fmt: skip
"""NumPy's, torch's and CuPy's names of our dtypes. tf32 has none: its arrays are float32 (`specialize`)."""

ARRAYS = "pass a NumPy, torch or CuPy array, or one with __cuda_array_interface__ or DLPack"

CAI_KINDS = {"f": "f", "i": "i", "u": "u"}


def describe(signature: Signature, name: str, value: Any) -> ArrayInfo:
    """What the array `value`, argument `name`, is. Raises KernelArgumentError if it is no usable array."""
    with looking_at(signature, name, value, "an array", ARRAYS):
        info = _describe(signature, name, value)
        if any(extent < 0 for extent in info.shape):
            raise argument_error(signature, f"{name} has the shape {info.shape}", ARRAYS)
        return info


def _describe(signature: Signature, name: str, value: Any) -> ArrayInfo:
    module = type(value).__module__.split(".")[0]
    if isinstance(value, type):
        raise argument_error(signature, f"{name} is the class {value.__name__}; expected an array", ARRAYS)
    if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        return _describe_torch(signature, name, value)
    if _is_ndarray(value):
        return _describe_numpy(signature, name, value)
    if module == "cupy":
        return _describe_cupy(signature, name, value)
    if hasattr(value, "__cuda_array_interface__"):
        return _describe_interface(signature, name, value)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return describe_dlpack(signature, name, value)
    message = f"{name} is a {type(value).__name__}; expected an array"
    raise argument_error(signature, message, ARRAYS)


def _dtype(signature: Signature, name: str, text: str) -> DType:
    found = DTYPES.get(NUMPY_NAMES.get(text, ""))
    if found is None:
        message = f"{name} has the dtype {text}, which the language does not have"
        raise argument_error(signature, message, f"convert it to one of {', '.join(ARRAY_DTYPES)}")
    return found


def _elements(signature: Signature, name: str, strides: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
    if any(s % dtype.bytes for s in strides):
        message = f"{name} has strides {strides} bytes, no multiples of its {dtype.bytes}-byte elements"
        raise argument_error(signature, message, "pass a copy of it")
    return tuple(s // dtype.bytes for s in strides)


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


# -- one library each ------------------------------------------------------------------------------------


def _is_ndarray(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _describe_numpy(signature: Signature, name: str, array: Any) -> ArrayInfo:
    numpy: Any = sys.modules["numpy"]
    kind: Any = array.__class__
    if isinstance(array, numpy.ma.MaskedArray):
        fix = f"pass {name}.filled(value), or {name}.data for its elements whatever the mask says"
        raise argument_error(signature, f"{name} is a masked array, and a kernel knows no masks", fix)
    if kind.__array_ufunc__ is not numpy.ndarray.__array_ufunc__:  # a unit, a mask: what arithmetic means is its own
        message = f"{name} is a {kind.__module__}.{kind.__name__}, whose arithmetic is not that of its elements"
        raise argument_error(signature, message, f"pass np.asarray({name}) if the elements alone are meant")
    dtype = _dtype(signature, name, array.dtype.name)
    if not array.dtype.isnative:
        raise argument_error(
            signature, f"{name} has foreign byte order", "pass array.astype(array.dtype.newbyteorder())"
        )
    strides = _elements(signature, name, array.strides, dtype)
    return ArrayInfo(dtype, array.shape, strides, array.ctypes.data, -1, bool(array.flags.writeable), array)


def _describe_torch(signature: Signature, name: str, tensor: Any) -> ArrayInfo:
    torch: Any = sys.modules["torch"]
    kind: Any = tensor.__class__
    if tensor.is_nested:
        raise argument_error(signature, f"{name} is a nested tensor", "pass one dense tensor, padded")
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # fake, functional, distributed, ...
        message = f"{name} is a {kind.__name__}, which stands for a tensor and need not have its memory"
        raise argument_error(signature, message, "pass the plain tensor that it stands for")
    if tensor.layout is not torch.strided:
        raise argument_error(signature, f"{name} is a {tensor.layout} tensor", "pass a dense one: tensor.to_dense()")
    if tensor.is_neg():
        raise argument_error(signature, f"{name} is a lazily negated view", "pass tensor.resolve_neg()")
    dtype = _dtype(signature, name, str(tensor.dtype).removeprefix("torch."))
    if tensor.device.type not in ("cuda", "cpu"):
        raise argument_error(signature, f"{name} is on {tensor.device}", "move it to the CPU or to a CUDA device")
    device = tensor.get_device() if tensor.is_cuda else -1
    return ArrayInfo(
        dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.data_ptr(), device, True, tensor,
        torch._C._cuda_getCurrentRawStream(device) if device >= 0 else None,
    )  # fmt: skip


def _describe_cupy(signature: Signature, name: str, array: Any) -> ArrayInfo:
    dtype = _dtype(signature, name, array.dtype.name)
    strides = _elements(signature, name, array.strides, dtype)
    device = int(array.device.id)
    with array.device:
        stream = int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return ArrayInfo(dtype, tuple(array.shape), strides, int(array.data.ptr), device, True, array, stream)


def _describe_interface(signature: Signature, name: str, value: Any) -> ArrayInfo:
    """CUDA array interface, version 2 and 3 (numba's documentation)."""
    from tiledsl.runtime.driver import driver

    interface = value.__cuda_array_interface__
    missing = [field for field in ("typestr", "shape", "data") if interface.get(field) is None]
    if missing:
        message = f"{name} has a __cuda_array_interface__ without {' and '.join(missing)}"
        raise argument_error(signature, message, ARRAYS)
    if interface.get("mask") is not None:
        raise argument_error(signature, f"{name} is a masked array", "pass its data without the mask")
    dtype = _interface_dtype(signature, name, interface["typestr"])
    shape = tuple(int(n) for n in interface["shape"])
    strides = interface.get("strides")
    pointer, read_only = interface["data"]
    in_elements = _row_major(shape) if strides is None else _elements(signature, name, tuple(strides), dtype)
    stream = interface.get("stream")
    device = driver().pointer_device(int(pointer)) if pointer else driver().current_device()
    return ArrayInfo(dtype, shape, in_elements, int(pointer), device, not read_only, value, stream)


def _interface_dtype(signature: Signature, name: str, typestr: str) -> DType:
    order, kind, size = typestr[0], typestr[1], int(typestr[2:])
    if kind == "b" and size == 1:
        return BOOL
    found = DTYPES.get(f"{kind}{size * 8}") if kind in CAI_KINDS else None
    if kind == "V" and size == 2:  # how ml_dtypes.bfloat16 looks through the interface
        return BF16
    if kind == "f" and size == 1:  # ml_dtypes.float8_e5m2; its other 8-bit floats are V1
        return E5M2
    if kind == "V" and size == 1:
        message = f"{name} has the dtype {typestr}, which does not say which 8-bit format it is"
        raise argument_error(signature, message, "pass e4m3 as a torch tensor or by DLPack")
    if found is None or order == ">":
        message = f"{name} has the dtype {typestr}, which the language does not have"
        raise argument_error(signature, message, f"convert it to one of {', '.join(ARRAY_DTYPES)}")
    return found


# -- host memory -----------------------------------------------------------------------------------------


def numpy_dtype_of(dtype: DType) -> Any:
    """The NumPy dtype of an array of `dtype`; ml_dtypes has those that NumPy does not."""
    import ml_dtypes
    import numpy

    name = {ours: theirs for theirs, ours in NUMPY_NAMES.items()}[dtype.name]
    return numpy.dtype(getattr(ml_dtypes, name, name))


def host_array(info: ArrayInfo) -> Any:
    """A NumPy array on the same host memory as `info` (whose owner it keeps alive)."""
    import numpy

    if _is_ndarray(info.owner):
        return info.owner
    numpy_dtype = numpy_dtype_of(info.dtype)
    low, high = info.span()
    if low == high:
        return numpy.empty(info.shape, numpy_dtype)
    holder = _HostMemory(info, info.pointer + low, high - low)
    memory = numpy.asarray(holder)
    strides = tuple(s * info.dtype.bytes for s in info.strides)
    return numpy.ndarray(info.shape, numpy_dtype, memory, -low, strides)


class _HostMemory:
    """A span of host bytes, as NumPy's array interface."""

    def __init__(self, info: ArrayInfo, address: int, size: int) -> None:
        self.owner = info.owner
        self.__array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, not info.writable),
            "version": 3,
        }


def movable(info: ArrayInfo) -> Any:
    """The host array of `info` if its elements fill one span of memory in some order of axes, else a copy that may be
    moved as one.

    Padded rows stay padded, since what a kernel asks of an address holds for them: no more than half of the copy is
    gaps. Otherwise it has none.
    """
    import numpy

    array = host_array(info)
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    if array.transpose(order).flags.c_contiguous:
        return array
    low, high = info.span()
    if low == 0 and high <= 2 * array.nbytes and not self_overlapping(info):
        copied = numpy.ndarray(array.shape, array.dtype, numpy.empty(high, numpy.uint8), 0, array.strides)
        copied[...] = array
        return copied
    return numpy.array(array, order="K", copy=True)


def same_bytes(a: ArrayInfo, b: ArrayInfo) -> bool:
    """True if some byte belongs to an element of both (exact, not by range). The memory is not touched."""
    if a.empty or b.empty:
        return False
    first, second = a.pointer + a.span()[0], b.pointer + b.span()[0]
    if first + (a.span()[1] - a.span()[0]) <= second or second + (b.span()[1] - b.span()[0]) <= first:
        return False
    import numpy

    first_view, second_view = (numpy.asarray(_Address(info)) for info in (a, b))
    shares_memory: Any = numpy.shares_memory  # its stub knows no max_work between "ranges only" and "without end"
    try:
        return bool(shares_memory(first_view, second_view, max_work=100_000))
    except numpy.exceptions.TooHardError:
        return True


class _Address:
    """An array at an address that is only computed with: NumPy reads nothing to build a view."""

    def __init__(self, info: ArrayInfo) -> None:
        self.__array_interface__ = {
            "shape": info.shape,
            "typestr": f"|V{info.dtype.bytes}",
            "data": (info.pointer, True),
            "strides": tuple(s * info.dtype.bytes for s in info.strides),
            "version": 3,
        }


def self_overlapping(info: ArrayInfo) -> bool:
    """True if two indices reach the same element, as in a broadcast array (exact for nested strides)."""
    axes = sorted((abs(s), n) for n, s in zip(info.shape, info.strides, strict=True) if n > 1)
    reach = 0
    for stride, extent in axes:
        if stride <= reach:
            return True
        reach += stride * (extent - 1)
    return False
