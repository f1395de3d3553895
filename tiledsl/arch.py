"""Facts about the hardware: constants that all targets share, and a row for each target.

All other modules read them here. What differs between targets is a field of `Target`; what is the same for all of them
is a constant. Sizes are in bytes, registers have 32 bits.

Sources, named at each fact: "guide" is the CUDA C++ Programming Guide, with "table" for its "Technical Specifications
per Compute Capability"; "PTX" is the PTX ISA, with the instruction or directive; "driver" is the CUDA driver API.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from tiledsl.errors import UNKNOWN_LOC, CompileError, Loc

# -- threads ---------------------------------------------------------------------------------------

WARP = 32
"""Lanes of a warp. (Guide, table: warp size.)"""
LANE_BITS = WARP.bit_length() - 1
"""Bits of a lane's number."""
WARPGROUP_WARPS = 4
"""Warps of a warpgroup; the first one's number is a multiple of it. (PTX: wgmma, warpgroup.)"""
WARPGROUP = WARPGROUP_WARPS * WARP
"""Threads of a warpgroup."""

MOST_THREADS = 1024
"""Most threads of a block. (Guide, table.)"""
MOST_THREADS_ALONG = (1024, 1024, 64)
"""Most threads of a block along x, y and z. (Guide, table.)"""
MOST_WARPS = MOST_THREADS // WARP
"""Most warps of a block."""
MOST_GRID = (2**31 - 1, 65535, 65535)
"""Most blocks of a grid along x, y and z. (Guide, table.)"""
PORTABLE_CLUSTER = 8
"""Blocks of a cluster that every GPU with clusters takes. (PTX: .maxclusterrank; guide: thread block clusters.)"""
PARTITIONS = 4
"""Partitions of a multiprocessor (SM), each with a scheduler and a share of the registers. (Guide: compute
capabilities.)"""
MOST_PROCESSORS = 1 << 16
"""An upper bound: no GPU has nearly so many multiprocessors."""

# -- registers -------------------------------------------------------------------------------------

REGISTERS_PER_SM = 65536
"""Registers of an SM, and so the most of a block. (Guide, table.)"""
MOST_REGISTERS = 255
"""Most registers of a thread. (Guide, table.)"""
REGISTER_UNIT = 8
"""Granularity of a thread's registers, at a launch and by setmaxnreg. (CUDA occupancy calculator; PTX: setmaxnreg.)"""
LEAST_SETMAXNREG, MOST_SETMAXNREG = 24, 256
"""Registers of a thread that setmaxnreg takes. (PTX: setmaxnreg.)"""

# -- memory ----------------------------------------------------------------------------------------

MOST_ACCESS = 16
"""The largest access of a lane, which is aligned to its size. (PTX: vectors; ld, st.)"""
SHARED_RESERVED = 1024
"""Shared memory that the system reserves for each block. (Guide, table: the most of an SM and of a block.)"""
SHARED_UNIT = 128
"""Granularity of a block's shared memory. (CUDA occupancy calculator.)"""
STATIC_SHARED = 48 * 1024
"""The most shared memory of a block without opt-in. (Guide: compute capabilities, shared memory.)"""

# -- barriers --------------------------------------------------------------------------------------

NAMED_BARRIERS = 16
"""Named barriers of a block; number 0 is that of `barrier()`. (PTX: barrier.)"""
MOST_ARRIVALS = 2**20 - 1
"""Of one phase of an mbarrier. (PTX: mbarrier, contents of the mbarrier object.)"""

MOST_TX_BYTES = 2**20 - 1
"""That one phase of an mbarrier counts. (The same.)"""

# -- the tensor memory accelerator -----------------------------------------------------------------

TMA_ALIGNMENT = 128
"""Alignment of a box in shared memory. (PTX: cp.async.bulk.tensor; tensors, shared memory alignment.)"""
TMA_GRAIN = 16
"""Divides a tensor's address, its strides other than 1, and a row of a box. (Driver: cuTensorMapEncodeTiled.)"""
TMA_MOST_BOX = 256
"""Most elements of a box along one axis. (Driver: cuTensorMapEncodeTiled.)"""
TMA_MOST_RANK, TMA_MOST_EXTENT, TMA_MOST_STRIDE = 5, 2**32, 2**40
"""Most axes of a tensor, most elements along one, and the bound of a stride. (Driver: cuTensorMapEncodeTiled.)"""
MAP_BYTES, MAP_ALIGNMENT = 128, 64
"""Size and alignment of an encoded tensor map, which is a kernel parameter. (Driver: CUtensorMap.)"""

# -- targets ---------------------------------------------------------------------------------------

# Features that some targets lack. (PTX: target notes of the instructions.)
#   fp8             conversions of e4m3 and e5m2 (cvt.rn.satfinite.e4m3x2)
#   bf16_of_int     conversions of integers to bf16 (cvt.rn.bf16.s32; older ones take 16 bits, by way of f32)
#   bf16_atomics    atomic additions of bf16 (atom.add.noftz.bf16)
#   stmatrix        stmatrix
#   mbarrier        mbarriers that count bytes, and their try_wait
#   tma             tensor memory access
#   cluster         clusters
#   cluster_scope   scope 'cluster' of atomic operations and fences
#   multicast       loads for several blocks of a cluster
#   elect           elect.sync
#   griddepcontrol  programmatic dependent launch
#   setmaxnreg      setmaxnreg
#   wgmma           wgmma
#   tcgen05         tensor memory, and the tensor core instructions that use it
INSTEAD = {"stmatrix": "store() writes a fragment with plain accesses", "cluster_scope": "or use scope 'gpu'"}
"""Alternatives for targets without a feature, for messages."""

_ADA = frozenset({"fp8"})
_HOPPER = _ADA | {
    "bf16_of_int", "bf16_atomics", "stmatrix", "mbarrier", "tma", "cluster", "cluster_scope", "elect", "griddepcontrol",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Resident blocks of an SM, the resource that limits them, and the share of possible warps that is resident."""

    blocks_per_sm: int
    limiter: str
    occupancy: float


@dataclass(frozen=True, slots=True)
class Target:
    """One architecture.

    capability: major, minor. ptx: lowest PTX version that knows the target, as major * 10 + minor. A driver refuses
    PTX that is newer than itself, so code is emitted with the lowest version that has what it uses.
    features: of the list above.
    """

    name: str
    capability: tuple[int, int]
    ptx: int
    shared_per_sm: int
    max_warps_per_sm: int
    max_blocks_per_sm: int
    features: frozenset[str]

    @property
    def shared_per_block(self) -> int:
        """The most shared memory of a block, with opt-in."""
        return self.shared_per_sm - SHARED_RESERVED

    @property
    def exact(self) -> bool:
        """True for architecture-specific targets (suffix ``a``), whose code runs on no other architecture."""
        return self.name.endswith("a")

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """True if a cubin for this target loads on a device of this compute capability.

        A plain cubin runs on later minor versions of the same major one; ``sm_90a`` runs on 9.0 only.
        """
        if self.exact:
            return capability == self.capability
        return capability[0] == self.capability[0] and capability[1] >= self.capability[1]

    def occupancy(self, *, registers: int, shared: int, threads: int) -> Occupancy:
        """How many blocks of `threads` threads, each with `registers`, and `shared` bytes fit on an SM."""
        limits = self.block_limits(registers=registers, shared=shared, threads=threads)
        limiter = min(limits, key=lambda name: limits[name])
        blocks = limits[limiter]
        return Occupancy(blocks, limiter, blocks * -(-threads // WARP) / self.max_warps_per_sm)

    def block_limits(self, *, registers: int, shared: int, threads: int) -> dict[str, int]:
        """How many such blocks each resource of an SM holds.

        Registers are allocated to warps of one partition of the SM, so its share is what must hold whole warps
        (CUDA occupancy calculator).
        """
        warps = -(-threads // WARP)
        of_warp = max(1, _up(registers, REGISTER_UNIT)) * WARP
        return {
            "threads": self.max_warps_per_sm // warps,
            "blocks": self.max_blocks_per_sm,
            "registers": REGISTERS_PER_SM // PARTITIONS // of_warp * PARTITIONS // warps,
            "shared memory": self.shared_per_sm // (_up(shared, SHARED_UNIT) + SHARED_RESERVED),
        }


def _up(number: int, unit: int) -> int:
    """The next multiple of `unit`."""
    return -(-number // unit) * unit


KIB = 1024
# Shared memory, resident warps and blocks of an SM: guide, table. PTX: the version that brought the target (releases).
TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        #      name     capability  PTX  shared     warps  blocks  features
        Target("sm_80", (8, 0), 70, 164 * KIB, 64, 32, frozenset()),
        Target("sm_86", (8, 6), 71, 100 * KIB, 48, 16, frozenset()),
        Target("sm_89", (8, 9), 78, 100 * KIB, 48, 24, _ADA),
        Target("sm_90", (9, 0), 78, 228 * KIB, 64, 32, _HOPPER | {"multicast"}),
        Target("sm_90a", (9, 0), 80, 228 * KIB, 64, 32, _HOPPER | {"multicast", "setmaxnreg", "wgmma"}),
        Target("sm_100a", (10, 0), 86, 228 * KIB, 64, 32, _HOPPER | {"multicast", "setmaxnreg", "tcgen05"}),
        # It has multicast, too, but ptxas makes a call of a function of it.
        Target("sm_120a", (12, 0), 87, 100 * KIB, 48, 24, _HOPPER | {"setmaxnreg"}),
    )
}
"""Targets by name."""

FEATURES: dict[str, tuple[str, ...]] = {
    feature: tuple(t.name for t in TARGETS.values() if feature in t.features)
    for feature in frozenset[str]().union(*(t.features for t in TARGETS.values()))
}
"""The names of the targets that have each feature."""

MOST_BLOCKS_PER_SM = max(t.max_blocks_per_sm for t in TARGETS.values())
MOST_SHARED = max(t.shared_per_block for t in TARGETS.values())
"""The most shared memory of a block on any target."""

MULTIPLY_ADDS: dict[tuple[int, int], dict[str, int]] = {
    (8, 0): {"f16": 1024, "bf16": 1024, "tf32": 512, "i8": 2048, "u8": 2048, "f32": 64, "f64": 64},
    (9, 0): {"f16": 2048, "bf16": 2048, "tf32": 1024, "e4m3": 4096, "e5m2": 4096, "i8": 4096, "u8": 4096,
             "f32": 128, "f64": 128},
}  # fmt: skip
"""Multiply-adds of an SM in a clock, by compute capability and operands; on tensor cores except for f32. (NVIDIA's
whitepapers of A100 and H100.) Other capabilities have GPUs with different rates, or their rate is not known here."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A product: compute capability, SMs, bytes of memory in a second, and the clock in MHz at which the datasheet's
    peak is that of `MULTIPLY_ADDS`."""

    name: str
    capability: tuple[int, int]
    processors: int
    mhz: int
    memory: float


GPUS = (
    Gpu("A100 SXM 80 GB", (8, 0), 108, 1410, 2.039e12),
    Gpu("H100 SXM", (9, 0), 132, 1830, 3.35e12),
    Gpu("H200 SXM", (9, 0), 132, 1830, 4.8e12),
)
"""Those of targets whose rates are known. (NVIDIA's datasheets of A100, H100 and H200.)"""
EMULATED_GPU = GPUS[-1]
"""The GPU that the emulator reproduces bit for bit."""
EMULATED_ARCH = "sm_90a"
"""The target of that GPU, whose limits the emulator applies to a kernel that names none."""


def target_named(name: str, loc: Loc = UNKNOWN_LOC) -> Target:
    """The target called `name`; CompileError at `loc`, with the possible names, for anything else."""
    if not isinstance(name, str) or name not in TARGETS:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CompileError(f"no target {name!r}", loc, f"one of {', '.join(TARGETS)}", code="C701")
    return TARGETS[name]


def targets_from(capability: tuple[int, int]) -> tuple[str, ...]:
    """The names of the targets of this compute capability and later ones."""
    return tuple(t.name for t in TARGETS.values() if t.capability >= capability)


def require(arch: str, have: Sequence[str], what: str, loc: Loc, instead: str = "") -> None:
    """CompileError at `loc` unless `arch` is one of the targets that `have` what `what` needs. instead: another fix."""
    if arch in have:
        return
    best = "sm_90a" if "sm_90a" in have else have[0]
    message = f"{what} needs {'one of ' * (len(have) > 1)}{', '.join(have)}, and this is compiled for {arch}"
    raise CompileError(
        message, loc, f'write @tile_kernel(arch="{best}")' + (f"; {instead}" if instead else ""), code="C702"
    )


def require_feature(arch: str, feature: str, what: str, loc: Loc) -> None:
    """CompileError at `loc` if the target `arch` lacks `feature`, a row of `FEATURES`, which `what` needs."""
    instead = INSTEAD.get(feature, "for other GPUs, copy_async() and mma() do the same work")
    require(arch, FEATURES[feature], what, loc, instead)
