"""Reads a DLPack capsule (dlpack.h, version 1) without taking it over: the producer keeps the memory."""

from __future__ import annotations

import ctypes
import inspect
import math
from typing import Any

from tiledsl.ir.types import BF16, BOOL, DTYPES, E4M3, E5M2, DType
from tiledsl.signatures.signature import Signature
from tiledsl.signatures.specialize import ARRAY_DTYPES, ArrayInfo, argument_error

__all__ = ["describe_dlpack"]

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
"""DLDeviceType."""
INT, UINT, FLOAT, BFLOAT, BOOLEAN, FLOAT8_E4M3FN, FLOAT8_E5M2 = 0, 1, 2, 4, 6, 10, 12
"""DLDataTypeCode."""
READ_ONLY = 1
"""DLPACK_FLAG_BITMASK_READ_ONLY."""
LETTERS = {INT: "i", UINT: "u", FLOAT: "f"}
NAMED = {BFLOAT: BF16, BOOLEAN: BOOL, FLOAT8_E4M3FN: E4M3, FLOAT8_E5M2: E5M2}
"""Codes that are one dtype."""


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


def describe_dlpack(signature: Signature, name: str, value: Any) -> ArrayInfo:
    """What the array `value` is. The capsule is part of the owner: its memory lives until the call is over."""
    kind, device = value.__dlpack_device__()
    if kind not in (CPU, CUDA, CUDA_HOST, CUDA_MANAGED):
        message = f"{name} is on a device of DLPack type {int(kind)}"
        raise argument_error(signature, message, "pass an array in host or CUDA memory")
    on_gpu = kind in (CUDA, CUDA_MANAGED)
    capsule = _export(value, on_gpu)
    tensor, read_only = _open(capsule)
    dtype = _dtype(tensor)
    if dtype is None:
        message = f"{name} has the DLPack dtype code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
        raise argument_error(signature, message, f"convert it to one of {', '.join(ARRAY_DTYPES)}")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim))
    else:
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(tensor.ndim))
    pointer = (tensor.data or 0) + tensor.byte_offset
    # The legacy default stream was named to the producer, which has ordered its work before it.
    stream = 1 if on_gpu else None
    return ArrayInfo(
        dtype, shape, strides, pointer, int(device) if on_gpu else -1, not read_only, (value, capsule), stream
    )


def _export(value: Any, on_gpu: bool) -> Any:
    arguments: dict[str, Any] = {"stream": 1} if on_gpu else {}
    if _knows_versions(value.__dlpack__):
        arguments["max_version"] = (1, 0)
    return value.__dlpack__(**arguments)


def _knows_versions(export: Any) -> bool:
    """Does a producer take `max_version`, as DLPack asks of it from version 1 on? One that does not show what it takes
    is held to be no older: it says more of an array, whether it may be written."""
    try:
        parameters = inspect.signature(export).parameters
    except ValueError:  # written in C
        return True
    return "max_version" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _open(capsule: Any) -> tuple[_DLTensor, bool]:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    valid = ctypes.pythonapi.PyCapsule_IsValid
    valid.restype, valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
    if valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(get(capsule, b"dltensor_versioned"))
        return versioned.tensor, bool(versioned.flags & READ_ONLY)
    return _DLTensor.from_address(get(capsule, b"dltensor")), False


def _dtype(tensor: _DLTensor) -> DType | None:
    if tensor.lanes != 1:
        return None
    named = NAMED.get(tensor.code)
    if named is not None:
        return named if tensor.bits == named.bits else None
    return DTYPES.get(f"{LETTERS.get(tensor.code, '?')}{tensor.bits}")
