"""Encoded tensor maps: how a launch describes its tensors to the tensor memory accelerator.

(CUDA driver API: cuTensorMapEncodeTiled, which states every limit that is checked here.)
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, Collection, Mapping, Sequence

from tiledsl import arch
from tiledsl.errors import DeviceError, KernelArgumentError
from tiledsl.ir.tensor_maps import TensorMap
from tiledsl.lang import cdiv
from tiledsl.runtime.driver import Driver
from tiledsl.signatures.specialize import ArrayInfo

DATA_TYPES = {
    "u8": 0, "i8": 0, "bool": 0, "e4m3": 0, "e5m2": 0, "u16": 1, "i16": 1, "u32": 2, "i32": 3, "u64": 4, "i64": 5,
    "f16": 6, "f32": 7, "tf32": 7, "f64": 8, "bf16": 9,
}  # fmt: skip
"""CUtensorMapDataType of our dtypes. tf32 is loaded as FLOAT32: TFLOAT32 may round, and a load moves bits only."""
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
"""CUtensorMapSwizzle by bytes of the span."""
NO_INTERLEAVE, L2_PROMOTION_128B, FILL_WITH_ZEROS = 0, 2, 0
"""Promotion to 256 bytes makes loads slower, or no faster: docs/hardware.md."""

_PROTOTYPE = (
    ctypes.c_int,  # CUresult
    ctypes.c_void_p,  # the map, aligned to 64 bytes
    ctypes.c_int,  # CUtensorMapDataType
    ctypes.c_uint32,  # rank
    ctypes.c_void_p,  # address of the tensor
    ctypes.POINTER(ctypes.c_uint64),  # extents, the fastest axis first
    ctypes.POINTER(ctypes.c_uint64),  # strides in bytes, but of the fastest axis
    ctypes.POINTER(ctypes.c_uint32),  # box
    ctypes.POINTER(ctypes.c_uint32),  # steps in elements
    *[ctypes.c_int] * 4,  # interleave, swizzle, promotion in L2, fill
)


@dataclass(frozen=True)
class Encoding:
    """The fields of one map but the address. Extents and strides (in bytes) are in the order of the map's axes; the
    first axis, of stride 1, has no stride."""

    data_type: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


def encoding(tensor: TensorMap, info: ArrayInfo) -> Encoding:
    """How `tensor` is encoded for an array like `info`, which has passed `check_maps`.

    The driver refuses an extent of 0, so an empty array is described as one element. The stride along an axis of
    extent 1 is never used and becomes one that the driver accepts.
    """
    extents = tuple(1 if info.empty else info.shape[axis] for axis in tensor.axes)
    steps = [info.strides[axis] * info.dtype.bytes for axis in tensor.axes]
    if tensor.every > 1 and not info.empty:
        width, rows, *others = extents
        rows = cdiv(rows - tensor.first, tensor.every)
        # Of no rows, one is described that ends before the first coordinate of any box.
        width = tensor.first * info.strides[tensor.axes[1]] + width if rows > 0 else 1
        extents, steps[1] = (width, max(rows, 1), *others), steps[1] * tensor.every
    strides = tuple(step if n > 1 else arch.TMA_GRAIN for n, step in zip(extents[1:], steps[1:], strict=True))
    return Encoding(DATA_TYPES[info.dtype.name], extents, strides, tensor.box, SWIZZLES[tensor.swizzle])


def check_maps(kernel: str, maps: Sequence[TensorMap], arrays: Mapping[str, ArrayInfo]) -> None:
    """Raise KernelArgumentError unless every map can be encoded for its array.

    Only sizes are checked: boxes are the compiler's, and the specialisation says that strides are aligned and
    not negative (`ArrayInfo.alignment`).
    """
    for tensor in maps:
        info = arrays[tensor.tensor]
        head = f"{kernel}() reads or writes {tensor.tensor} by TMA, which cannot describe it"
        for axis in () if info.empty else tensor.axes:
            times = tensor.every if axis in tensor.axes[1:2] else 1
            extent, stride = info.shape[axis], info.strides[axis] * info.dtype.bytes * times
            if extent > arch.TMA_MOST_EXTENT:
                raise KernelArgumentError(
                    f"{head}: axis {axis} has {extent} elements; at most 2^32\n  fix: split it", code="C804"
                )
            if extent > 1 and stride >= arch.TMA_MOST_STRIDE:
                message = f"the stride of axis {axis} is {stride} bytes; expected less than 2^40"
                fix = "copy it to a contiguous tensor, or use a kernel without TMA"
                raise KernelArgumentError(f"{head}: {message}\n  fix: {fix}", code="C804")
        if tensor.every > 1 and not info.empty:
            _check_rows(head, tensor, info)


def _check_rows(head: str, tensor: TensorMap, info: ArrayInfo) -> None:
    """Of a map of every so many-th row the specialisation knows neither that the address is aligned, nor the strides,
    nor their signs."""
    row, size = tensor.axes[1], info.dtype.bytes
    for axis in tensor.axes[1:]:
        stride = info.strides[axis] * size * (tensor.every if axis == row else 1)
        if info.shape[axis] > 1 and (stride < 0 or stride % arch.TMA_GRAIN):
            what = f"the stride of {tensor.every} rows" if axis == row else f"the stride of axis {axis}"
            message = f"{what} is {stride} bytes; expected a multiple of {arch.TMA_GRAIN} that is not negative"
            raise KernelArgumentError(f"{head}: {message}\n  fix: copy it to a contiguous tensor", code="C804")
    if info.strides[row] * tensor.first + info.shape[tensor.axes[0]] >= 1 << 31:
        message = f"{tensor.first} rows and one more reach 2^31 elements, and coordinates have 32 bits"
        raise KernelArgumentError(f"{head}: {message}\n  fix: copy it to a tensor with narrower rows", code="C804")
    _check_address(head, info.pointer)


def _check_address(head: str, address: int) -> None:
    if address % arch.TMA_GRAIN:
        message = f"it begins at an address that is no multiple of {arch.TMA_GRAIN}"
        raise KernelArgumentError(f"{head}: {message}\n  fix: copy it to a new tensor", code="C804")


# -- encoding --------------------------------------------------------------------------------------------


class MapImages:
    """The encoded maps of one launch plan, by the addresses of its tensors: shapes and strides are the plan's. Of a
    launch on new addresses, only the maps of those are encoded."""

    LIMIT = 1024
    """Most images that are kept, so that addresses that keep changing do not fill the memory."""

    def __init__(
        self,
        driver: Driver,
        device: int,
        kernel: str,
        maps: Sequence[TensorMap],
        order: Sequence[str],
        arrays: Mapping[str, ArrayInfo],
        written: Collection[str],
    ) -> None:
        """`order`: names of the tensors, in the order in which a launch has their addresses. `written`: those that it
        may write."""
        self._driver, self._device, self._kernel = driver, device, kernel
        encodings = [encoding(m, arrays[m.tensor]) for m in maps]
        self._places = [order.index(m.tensor) for m in maps]
        self._unproven = {order.index(m.tensor): m.tensor for m in maps if m.every > 1}
        """Names of tensors whose address may not be aligned, by their place in `order`."""
        self._maps = [lru_cache(self.LIMIT)(partial(self._encoded, of, _arguments(of))) for of in encodings]
        self._empty = {order.index(m.tensor): m.tensor in written for m in maps if arrays[m.tensor].empty}
        """Whether an empty tensor may be written, by its place in `order`."""
        self.image = lru_cache(self.LIMIT)(self._image)
        self._store = struct.Struct(f"{arch.MAP_BYTES * len(maps)}s").pack_into

    def write(self, buffer: Any, offset: int, pointers: tuple[int, ...]) -> None:
        """Write the maps of tensors at `pointers` to an argument buffer."""
        self._store(buffer, offset, self.image(pointers))

    def _image(self, pointers: tuple[int, ...]) -> bytes:
        for i, name in self._unproven.items():
            _check_address(f"{self._kernel}() reads {name} by TMA, which cannot describe it", pointers[i])
        if self._empty:
            with self._driver.active(self._device) as context:
                blank = {i: self._driver.blank(context, writable) for i, writable in self._empty.items()}
            pointers = tuple(blank.get(i, address) for i, address in enumerate(pointers))
        return b"".join([made(pointers[i]) for made, i in zip(self._maps, self._places, strict=True)])

    def _encoded(self, of: Encoding, arguments: tuple[tuple[Any, ...], tuple[Any, ...]], address: int) -> bytes:
        """One map, of a tensor at `address`. `arguments`: those of the driver's function before it and behind."""
        memory = ctypes.create_string_buffer(arch.MAP_BYTES + arch.MAP_ALIGNMENT - 1)
        offset = -ctypes.addressof(memory) % arch.MAP_ALIGNMENT  # ctypes gives 16
        before, behind = arguments
        with self._driver.active(self._device):  # the driver looks the address up in the current context
            code = encoder(self._driver)(ctypes.addressof(memory) + offset, *before, address, *behind)
        if code:
            raise self._driver.error(code, f"describing a tensor of {self._kernel}() to TMA ({of})")
        return memory.raw[offset : offset + arch.MAP_BYTES]


def _arguments(of: Encoding) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What the driver's function gets before the address and behind it: made once, which takes longer than the call."""
    rank = len(of.extents)
    behind = (
        (ctypes.c_uint64 * rank)(*of.extents),
        (ctypes.c_uint64 * rank)(*of.strides),
        (ctypes.c_uint32 * rank)(*of.box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        NO_INTERLEAVE,
        of.swizzle,
        L2_PROMOTION_128B,
        FILL_WITH_ZEROS,
    )
    return (of.data_type, rank), behind


@cache
def encoder(driver: Driver) -> Any:
    """cuTensorMapEncodeTiled as a ctypes function: the wrapper of cuda.bindings has the driver write into memory
    that is aligned to 16 bytes only, where it asks for 64."""
    query = driver.cu.cuGetProcAddress(b"cuTensorMapEncodeTiled", 12000, 0)
    address = int(driver.check(query, "looking up cuTensorMapEncodeTiled")[0] or 0)
    if not address:
        message = "this NVIDIA driver has no tensor maps (cuTensorMapEncodeTiled), which kernels with TMA need"
        raise DeviceError(f"{message}\n  fix: update the driver to one of CUDA 12.0 or later")
    return ctypes.CFUNCTYPE(*_PROTOTYPE)(address)
