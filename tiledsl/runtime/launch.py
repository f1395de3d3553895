"""Launch plans: everything about a launch that depends on shapes but not on addresses, made once.

A plan holds the loaded function, the grid and an argument buffer in which only pointers and scalars
are rewritten. The buffer is laid out as one 8-byte slot an argument, in the order that packing is
cheapest: pointers, scalars, then the fixed extents and strides; tensor maps follow, each on 64 bytes. The
driver gets an array of pointers to the slots in the order of the kernel's parameter list.
"""

from __future__ import annotations

import ctypes
import math
import struct
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Mapping, Sequence

from tiledsl.arch import MAP_ALIGNMENT, MAP_BYTES, MOST_GRID, PORTABLE_CLUSTER
from tiledsl.errors import KernelArgumentError
from tiledsl.ir.abi import AbiArg
from tiledsl.ir.expr import BinExpr, Expr, NameExpr, evaluate
from tiledsl.ir.types import DType
from tiledsl.runtime.driver import STICKY, WRONG_CONTEXT, Driver
from tiledsl.runtime.tensor_maps import MapImages
from tiledsl.specialize import ArrayInfo, bf16_bits

__all__ = [
    "ArgumentBuffer",
    "Frame",
    "LaunchPlan",
    "Shape",
    "check_cluster",
    "checked_grid",
    "overlap_windows",
    "packed_scalar",
    "uses_names",
]

SLOT = 8
FORMATS = {
    "f64": "d", "f32": "f4x", "f16": "e6x", "bf16": "H6x", "bool": "?7x",
    "i8": "b7x", "i16": "h6x", "i32": "i4x", "i64": "q", "u8": "B7x", "u16": "H6x", "u32": "I4x", "u64": "Q",
}  # fmt: skip
"""struct codes of a dtype, padded to a slot; a bf16 is packed as its bits."""

STREAMS = 64
"""For how many streams a plan keeps what it tells the driver of a launch."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Blocks of the grid and of a cluster and threads of a block along x, y, z; bytes of shared memory.

    dependent: the kernel waits by itself for the grid before it in its stream, and may be launched before that ends.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    cluster: tuple[int, int, int] = (1, 1, 1)
    dependent: bool = False

    @property
    def plain(self) -> bool:
        """True if cuLaunchKernel can launch it."""
        return self.cluster == (1, 1, 1) and not self.dependent


@dataclass(slots=True)
class Frame:
    """One argument buffer. `address`: of the array of pointers to the slots, which the driver reads.

    maps_at: offset of the tensor maps. packed: addresses of the tensors, in the buffer and in those; () at first. That
    their memory may be used so together was checked.
    """

    buffer: Any
    pointers: Any
    address: int
    maps_at: int = 0
    packed: tuple[int, ...] = ()


class ArgumentBuffer:
    """How the arguments of one plan are packed. `pack(buffer, 0, *pointers, *scalars)` writes the varying ones.

    Pointers are in the order of `abi`, scalars too; bf16 scalars are given as bits.
    """

    def __init__(
        self, abi: Sequence[AbiArg], extents: Mapping[str, int], strides: Mapping[str, tuple[int, ...]]
    ) -> None:
        varying = [a for kind in ("pointer", "scalar") for a in abi if a.kind == kind]
        fixed = [a for a in abi if a.kind in ("extent", "stride")]
        slots = {a: SLOT * i for i, a in enumerate([*varying, *fixed])}
        codes = ["Q" if a.kind == "pointer" else FORMATS[a.dtype.name] for a in varying]
        self.pack: Callable[..., None] = struct.Struct("<" + "".join(codes)).pack_into
        self.pointers = tuple(a.name for a in varying if a.kind == "pointer")
        self.scalars = tuple(a.name for a in varying if a.kind == "scalar")
        image = bytearray(SLOT * max(len(slots), 1))
        for arg in fixed:
            value = extents[arg.name] if arg.kind == "extent" else strides[arg.name][arg.axis]
            struct.pack_into("<" + FORMATS[arg.dtype.name], image, slots[arg], value)
        self._image = bytes(image)
        self._offsets = [slots[a] for a in abi if a.kind != "tensor_map"]
        self._maps = len(abi) - len(self._offsets)

    def new_frame(self) -> Frame:
        room = MAP_BYTES * self._maps + MAP_ALIGNMENT if self._maps else 0
        buffer = ctypes.create_string_buffer(self._image, len(self._image) + room)
        base = ctypes.addressof(buffer)
        maps_at = len(self._image) + -(base + len(self._image)) % MAP_ALIGNMENT
        offsets = [*self._offsets, *(maps_at + MAP_BYTES * number for number in range(self._maps))]
        pointers = (ctypes.c_void_p * max(len(offsets), 1))(*(base + offset for offset in offsets))
        return Frame(buffer, pointers, ctypes.addressof(pointers), maps_at)


def _launch_nothing(stream: int, params: int, extra: int) -> tuple[int]:
    """Stands in for the driver where the grid is empty, which the driver would refuse."""
    return (0,)


def _launcher(driver: Driver, function: Any, shape: Shape) -> Callable[..., Any]:
    """``launch(stream, params, 0)`` of `function`, by the call of the driver that costs least."""
    if shape.plain:
        return partial(driver.launch, function, *shape.grid, *shape.block, shape.shared)
    configs: dict[int, Any] = {}

    def launch(stream: int, params: int, extra: int) -> Any:
        config = configs.get(stream)
        if config is None:
            if len(configs) >= STREAMS:
                configs.clear()
            config = configs[stream] = driver.launch_config(stream, shape)
        return driver.launch_with(config, function, params, extra)

    return launch


@dataclass(slots=True)
class LaunchPlan:
    """One kernel for one set of shapes on one device.

    `launch(stream, params, 0)` calls the driver. `windows`: for each pair of pointers (i, j) of which one
    is written, the open interval of ``p[j] - p[i]`` in which their bytes may overlap. `maps`: the tensor
    maps of the kernel, if it has any. `written`: which of the signature's tensors it may write; `take` takes
    those out of a tuple of all. `frames`: argument buffers not in use. Taking and giving one back are single
    list operations, so that threads never share a buffer and never wait for each other.
    """

    driver: Driver
    kernel: str
    device: int
    context: int
    launch: Callable[..., Any]
    arguments: ArgumentBuffer
    windows: tuple[tuple[int, int, int, int], ...]
    maps: MapImages | None = None
    written: tuple[int, ...] = ()
    frames: list[Frame] = field(default_factory=list[Frame])
    pack: Callable[..., None] = field(init=False)

    def __post_init__(self) -> None:
        self.pack = self.arguments.pack

    @classmethod
    def make(
        cls, driver: Driver, kernel: str, device: int, context: int, function: Any, shape: Shape,
        arguments: ArgumentBuffer, windows: tuple[tuple[int, int, int, int], ...], maps: MapImages | None = None,
        written: Sequence[int] = (),
    ) -> LaunchPlan:  # fmt: skip
        launch = _launch_nothing if 0 in shape.grid else _launcher(driver, function, shape)
        return cls(driver, kernel, device, context, launch, arguments, windows, maps, tuple(written))

    def take(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(tensors[position] for position in self.written)

    def run(self, stream: int, pointers: tuple[int, ...], scalars: Sequence[Any]) -> None:
        """Pack the arguments and launch. The generated launcher does the same inline."""
        try:
            frame = self.frames.pop()
        except IndexError:
            frame = self.arguments.new_frame()
        self.arguments.pack(frame.buffer, 0, *pointers, *scalars)
        if self.maps is not None and frame.packed != pointers:
            self.maps.write(frame, pointers)
        frame.packed = pointers
        code = self.launch(stream, frame.address, 0)[0]
        if code:
            self.failed(code, stream, frame)
        self.driver.last_kernel = self.kernel
        self.frames.append(frame)

    def failed(self, code: int, stream: int, frame: Frame) -> None:
        """Launch again where the fault was that another context was current; raise DeviceError for any other."""
        code = int(code)
        if code in WRONG_CONTEXT:
            with self.driver.active(self.device):
                code = int(self.launch(stream, frame.address, 0)[0])
        if code:
            if code not in STICKY:
                self.driver.last_kernel = self.kernel
            raise self.driver.error(code, f"launching {self.kernel}()")


def checked_grid(kernel: str, exprs: Sequence[Expr], names: Mapping[str, int]) -> tuple[int, int, int]:
    """Blocks along x, y, z. Raises KernelArgumentError if there are more than a GPU takes."""
    values = [evaluate(e, names) for e in exprs]
    for axis, value, limit in zip("xyz", values, MOST_GRID, strict=False):
        if not 0 <= value <= limit:
            expr = exprs["xyz".index(axis)]
            message = f"{kernel}(): the grid is too large: {axis} = {expr} = {value} blocks; at most {limit}"
            fix = "use larger tiles, or put the long dimension on x, the first of grid(...)"
            if value < 0:
                message = f"{kernel}(): the grid is negative: {axis} = {expr} = {value} blocks"
                fix = "give grid(...) extents that are 0 or more for these arguments"
            raise KernelArgumentError(f"{message}\n  fix: {fix}")
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def check_cluster(kernel: str, cluster: tuple[int, int, int], grid: tuple[int, int, int]) -> None:
    """Raise KernelArgumentError unless clusters of that many blocks can be launched and make up the grid."""
    shown, blocks = " x ".join(map(str, cluster)), math.prod(cluster)
    if blocks > PORTABLE_CLUSTER:
        message = f"{kernel}(): a cluster of {shown} = {blocks} blocks; at most {PORTABLE_CLUSTER} run on every GPU"
        raise KernelArgumentError(f"{message}\n  fix: use smaller clusters")
    for axis, extent, size in zip("xyz", grid, cluster, strict=True):
        if extent % size:
            message = f"{kernel}(): the grid has {extent} blocks along {axis}, no multiple of the cluster's {size}"
            fix = f"round grid(...) up to a multiple of {size} and let the blocks past the edge do nothing"
            raise KernelArgumentError(f"{message} ({shown})\n  fix: {fix}")


def uses_names(exprs: Sequence[Expr], names: set[str]) -> bool:
    """True if the value of an expression depends on one of `names`."""

    def depends(expr: Expr) -> bool:
        if isinstance(expr, BinExpr):
            return depends(expr.a) or depends(expr.b)
        return isinstance(expr, NameExpr) and expr.name in names

    return any(depends(e) for e in exprs)


def overlap_windows(
    order: Sequence[str], arrays: Mapping[str, ArrayInfo], written: frozenset[str]
) -> tuple[tuple[int, int, int, int], ...]:
    """(i, j, low, high) for each pair of which one is written: byte ranges meet iff low < p[j] - p[i] < high."""
    found: list[tuple[int, int, int, int]] = []
    for i, first in enumerate(order):
        for j in range(i + 1, len(order)):
            a, b = arrays[first], arrays[order[j]]
            if a.empty or b.empty or not {first, order[j]} & written:
                continue
            (a_low, a_high), (b_low, b_high) = a.span(), b.span()
            found.append((i, j, a_low - b_high, a_high - b_low))
    return tuple(found)


def packed_scalar(dtype: DType, value: Any) -> Any:
    """`value` as `ArgumentBuffer.pack` takes it."""
    return bf16_bits(value) if dtype.name == "bf16" else value
