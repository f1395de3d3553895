"""Reads a DLPack capsule (dlpack.h, version 1) without consuming it: the producer keeps the memory."""

from __future__ import annotations

import ctypes
import inspect
from typing import Any

from tiledsl.ir.types import DTYPES
from tiledsl.layout.shared import row_major
from tiledsl.signatures.specialize import ARRAY_DTYPES, ArrayInfo

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
"""DLDeviceType."""
CODES = {"int": 0, "uint": 1, "float": 2, "bf16": 4, "bool": 6, "e4m3": 10, "e5m2": 12}
"""DLDataTypeCode of dtypes, by name or kind."""
BY_CODE = {(CODES.get(t.name, CODES.get(t.kind)), t.bits): t for t in map(DTYPES.__getitem__, ARRAY_DTYPES)}
READ_ONLY = 1
"""DLPACK_FLAG_BITMASK_READ_ONLY."""


class UnusableArray(Exception):  # noqa: N818 - becomes an error of the argument
    """An array that cannot be an argument. `message` continues a sentence that begins with the argument's name."""

    def __init__(self, message: str, fix: str) -> None:
        self.message, self.fix = message, fix
        super().__init__(message)


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


def describe_dlpack(value: Any) -> ArrayInfo:
    """Describe the array `value`. Its owner includes the capsule, so the memory lives until the call is over."""
    kind, device = value.__dlpack_device__()
    if kind not in (CPU, CUDA, CUDA_HOST, CUDA_MANAGED):
        raise UnusableArray(f"is on a device of DLPack type {int(kind)}", "pass an array in host or CUDA memory")
    on_gpu = kind in (CUDA, CUDA_MANAGED)
    arguments: dict[str, Any] = {"stream": 1} if on_gpu else {}
    if _knows_versions(value.__dlpack__):
        arguments["max_version"] = (1, 0)
    capsule = value.__dlpack__(**arguments)
    tensor, read_only = _open(capsule)
    dtype = BY_CODE.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        message = f"has the DLPack dtype code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
        raise UnusableArray(message, f"convert it to one of {', '.join(ARRAY_DTYPES)}")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else row_major(shape)
    pointer = (tensor.data or 0) + tensor.byte_offset
    owner = value, capsule
    if not on_gpu:
        return ArrayInfo(dtype, shape, strides, pointer, -1, not read_only, owner)
    # The legacy default stream was named to the producer, which has ordered its work before it. Its handle is 0.
    return ArrayInfo(dtype, shape, strides, pointer, int(device), not read_only, owner, stream=0)


def _knows_versions(export: Any) -> bool:
    """Does a producer take `max_version`, as DLPack requires from version 1 on? If its signature cannot be read, assume
    so: only version 1 says whether an array is read-only."""
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
