"""Launch plans: the part of a launch that depends on shapes but not on addresses, computed once.

A plan holds the loaded function, the grid, and argument buffers in which only pointers and scalars are
rewritten. A buffer has one 8-byte slot for each argument: pointers, scalars, then the extents and strides, which are
constant; tensor maps follow, each aligned to 64 bytes. The driver gets an array of pointers to the slots, in the order
of the kernel's parameters.

Every launch runs the same code, `SEQUENCE`.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations
from typing import Any, Callable, Collection, Mapping, Sequence

from tiledsl.arch import MAP_ALIGNMENT, MAP_BYTES
from tiledsl.ir.abi import AbiArg
from tiledsl.runtime.driver import STICKY, WRONG_CONTEXT, Driver
from tiledsl.runtime.tensor_maps import MapImages
from tiledsl.signatures.specialize import ArrayInfo, bf16_bits

SLOT = 8
FORMATS = {
    "f64": "d", "f32": "f4x", "f16": "e6x", "bf16": "H6x", "bool": "?7x",
    "i8": "b7x", "i16": "h6x", "i32": "i4x", "i64": "q", "u8": "B7x", "u16": "H6x", "u32": "I4x", "u64": "Q",
}  # fmt: skip
"""struct codes of a dtype, padded to a slot; a bf16 is packed as its bits."""

STREAMS = 64
"""Launch configurations that a plan keeps, one for each stream."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Blocks of the grid, threads of a block and blocks of a cluster along x, y, z; bytes of dynamic shared memory.

    dependent: the kernel may start before the previous grid of its stream ends; it waits for that itself.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    cluster: tuple[int, int, int] = (1, 1, 1)
    dependent: bool = False


@dataclass(slots=True)
class Frame:
    """One argument buffer, and the array of pointers to its slots, at `address`, that the driver reads.

    pack: ``pack(*addresses)`` writes the addresses of the tensors. maps_at: offset of the tensor maps. packed: the
    addresses in the buffer and its maps, which were checked for overlap; () at first.
    """

    buffer: Any
    pointers: Any
    address: int
    pack: Callable[..., None]
    maps_at: int = 0
    packed: tuple[int, ...] = ()


class ArgumentBuffer:
    """The layout of the argument buffers of one plan.

    pointers, scalars: names, in the order in which `Frame.pack` takes addresses and
    ``pack_scalars(frame.buffer, scalars_at, *values)`` takes scalars.
    """

    def __init__(
        self, abi: Sequence[AbiArg], extents: Mapping[str, int], strides: Mapping[str, tuple[int, ...]]
    ) -> None:
        pointers, scalars = ([a for a in abi if a.kind == kind] for kind in ("pointer", "scalar"))
        fixed = [a for a in abi if a.kind in ("extent", "stride")]
        slots = {a: SLOT * i for i, a in enumerate([*pointers, *scalars, *fixed])}
        self._pack_pointers = struct.Struct(f"<{len(pointers)}Q").pack_into
        self.pack_scalars = _scalar_packer([a.dtype.name for a in scalars])
        self.scalars_at = SLOT * len(pointers)
        self.pointers = tuple(a.name for a in pointers)
        self.scalars = tuple(a.name for a in scalars)
        image = bytearray(SLOT * max(len(slots), 1))
        for arg in fixed:
            value = extents[arg.name] if arg.kind == "extent" else strides[arg.name][arg.axis]
            if arg.dtype.bits == 32 and abs(value) >= 2**31:
                value = 0  # the stride along an axis of extent 1, which is never used
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
        return Frame(buffer, pointers, ctypes.addressof(pointers), partial(self._pack_pointers, buffer, 0), maps_at)


def _scalar_packer(dtypes: Sequence[str]) -> Callable[..., None]:
    """``pack(buffer, offset, *values)`` of scalars of these dtypes. Raises OverflowError or struct.error."""
    pack = struct.Struct("<" + "".join(FORMATS[name] for name in dtypes)).pack_into

    def pack_bits(buffer: Any, offset: int, *values: Any) -> None:
        bits = (bf16_bits(v) if name == "bf16" else v for name, v in zip(dtypes, values, strict=True))
        pack(buffer, offset, *bits)

    return pack_bits if "bf16" in dtypes else pack


def _launch_nothing(stream: int, params: int, extra: int) -> tuple[int]:
    """Replaces the driver's launch for an empty grid, which the driver refuses."""
    return (0,)


def _launcher(driver: Driver, function: Any, shape: Shape) -> Callable[..., Any]:
    """``launch(stream, params, 0)`` for `function`, by the cheapest call of the driver that can do it."""
    if shape.cluster == (1, 1, 1) and not shape.dependent:
        return partial(driver.launch, function, *shape.grid, *shape.block, shape.shared)
    config = lru_cache(STREAMS)(partial(_launch_config, driver.cu, shape))

    def launch(stream: int, params: int, extra: int) -> Any:
        return driver.launch_with(config(stream), function, params, extra)

    return launch


def processors_for(driver: Driver, function: Any, shape: Shape) -> int:
    """SMs that blocks of `shape`'s clusters can hold at once: those of a cluster are in one GPC (GPU processing
    cluster), whose SMs are not always a multiple of its size. `shape.grid` may be any. The context is active."""
    config = _launch_config(driver.cu, shape, 0)
    clusters = driver.check(driver.cu.cuOccupancyMaxActiveClusters(function, config), "counting resident clusters")
    return clusters * math.prod(shape.cluster)


def _launch_config(cu: Any, shape: Shape, stream: int) -> Any:
    """The CUlaunchConfig of a launch: all but its function and arguments."""
    config, attributes = cu.CUlaunchConfig(), list[Any]()
    config.gridDimX, config.gridDimY, config.gridDimZ = shape.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = shape.block
    config.sharedMemBytes, config.hStream = shape.shared, stream
    if shape.cluster != (1, 1, 1):
        cluster = cu.CUlaunchAttribute()
        cluster.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = cluster.value.clusterDim
        size.x, size.y, size.z = shape.cluster
        attributes.append(cluster)
    if shape.dependent:
        early = cu.CUlaunchAttribute()
        early.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        early.value.programmaticStreamSerializationAllowed = 1
        attributes.append(early)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def count_versions(tensors: Sequence[Any]) -> None:
    """Increment the versions of torch tensors that were written, so that autograd sees that saved ones are stale."""
    if tensors:
        sys.modules["torch"].autograd.graph.increment_version(tensors)


SEQUENCE = """\
    try:
        _frame = _plan.frames.pop()
    except _IndexError:
        _frame = _plan.arguments.new_frame()
    if _frame.packed != _pointers:
        for _i, _j, _low, _high in {windows}:
            if _low < _pointers[_j] - _pointers[_i] < _high:
                return {refused}
        _frame.pack(*_pointers)
        if _plan.maps is not None:
            _plan.maps.write(_frame.buffer, _frame.maps_at, _pointers)
        _frame.packed = _pointers
{pack}    _code = _plan.launch(_stream, _frame.address, 0)[0]
    if _code:
        _plan.failed(_int(_code), _stream, _frame)
    _plan.driver.last_kernel = _plan.kernel
{count}    _plan.frames.append(_frame)
"""
"""The code of every launch, of `_plan` on `_stream` with tensors at `_pointers`. It is source text, since the generated
function of each kernel (`launcher`) contains it inline. `refused`: what it returns without launching if a written
tensor may overlap another one, or a scalar does not fit."""
PACK = """\
    try:
        _plan.pack_scalars(_frame.buffer, _plan.scalars_at, {scalars})
    except _unpackable:
        return {refused}
"""
"""Scalars are packed at each launch, addresses only if they differ from those in the buffer."""
SEQUENCE_NAMES = {"_IndexError": IndexError, "_int": int, "_unpackable": (OverflowError, struct.error)}


def launch_sequence(windows: str, scalars: str, tensors: str, refused: str) -> str:
    """`SEQUENCE` with its fields filled by source text: the `scalars` to pack, the tuple `tensors` of torch tensors
    that are written, and the overlap `windows` to check."""
    pack = PACK.format(scalars=scalars, refused=refused) if scalars else ""
    count = f"    _plan.count({tensors})\n" if tensors != "()" else ""
    return SEQUENCE.format(windows=windows, pack=pack, count=count, refused=refused)


def _generated_run(windows: str) -> Callable[..., bool]:
    names: dict[str, Any] = {**SEQUENCE_NAMES}
    head = "def run(_plan, _stream, _pointers, _scalars, _tensors=()):\n"
    exec(f"{head}{launch_sequence(windows, '*_scalars', '_tensors', 'False')}    return True", names)
    return names["run"]


class LaunchPlan:
    """How to launch one kernel for one set of shapes on one device.

    `launch(stream, params, 0)` calls the driver. `windows`: see `overlap_windows`. `maps`: the kernel's tensor maps,
    if it has any. `written`: names of the tensors that it may write; `count(tensors)` increments their versions.
    `frames`: free argument buffers. One is taken or released by a single list operation, so threads never share one
    and need no lock.
    """

    def __init__(
        self, driver: Driver, kernel: str, device: int, function: Any, shape: Shape, arguments: ArgumentBuffer,
        windows: tuple[tuple[int, int, int, int], ...], maps: MapImages | None = None, written: Sequence[str] = (),
    ) -> None:  # fmt: skip
        torch = sys.modules.get("torch")
        self.driver, self.kernel, self.device = driver, kernel, device
        self.launch = _launch_nothing if 0 in shape.grid else _launcher(driver, function, shape)
        self.arguments, self.windows, self.maps, self.written = arguments, windows, maps, tuple(written)
        self.pack_scalars, self.scalars_at = arguments.pack_scalars, arguments.scalars_at
        self.count: Callable[[Any], None] = count_versions if torch is None else torch._C._increment_version
        self.frames: list[Frame] = []

    run = _generated_run("()")
    """``run(stream, pointers, scalars, tensors=())``: launch on checked arguments. `tensors`: torch tensors that are
    written. False if a scalar does not fit."""
    run_apart = _generated_run("_plan.windows")
    """`run` of arrays whose addresses are new: also False if one that is written may overlap another."""

    def failed(self, code: int, stream: int, frame: Frame) -> None:
        """Launch again if another context was current, which is no error; raise DeviceError for any other failure."""
        if code in WRONG_CONTEXT:
            with self.driver.active(self.device):
                code = int(self.launch(stream, frame.address, 0)[0])
        if code:
            if code not in STICKY:
                self.driver.last_kernel = self.kernel
            raise self.driver.error(code, f"launching {self.kernel}()")


def overlap_windows(
    order: Sequence[str], arrays: Mapping[str, ArrayInfo], written: Collection[str]
) -> tuple[tuple[int, int, int, int], ...]:
    """(i, j, low, high) for each pair with a written tensor: their byte ranges overlap iff low < p[j] - p[i] < high."""
    found: list[tuple[int, int, int, int]] = []
    for (i, first), (j, second) in combinations(enumerate(order), 2):
        a, b = arrays[first], arrays[second]
        if a.empty or b.empty or not (first in written or second in written):
            continue
        (a_low, a_high), (b_low, b_high) = a.span(), b.span()
        found.append((i, j, a_low - b_high, a_high - b_low))
    return tuple(found)
