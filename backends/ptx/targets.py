"""The one table of targets: what each architecture can hold, and which PTX and cubins it takes.

Sources: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; PTX ISA,
"Release Notes" (first PTX version of each target).
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.arch import FEATURES
from tiledsl.errors import CompileError, Loc
from tiledsl.layout.banks import WARP

__all__ = ["TARGETS", "Occupancy", "Target", "require_capability", "require_feature", "target_named"]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many blocks an SM holds, what stops another one, and resident warps over possible ones."""

    blocks_per_sm: int
    limiter: str
    occupancy: float


@dataclass(frozen=True, slots=True)
class Target:
    """One architecture. Sizes in bytes; register counts are 32-bit registers.

    ptx: lowest PTX version that knows the target, as major * 10 + minor. A driver refuses PTX that is
      newer than itself, so code is emitted with the lowest version that has what it uses.
    shared_per_block: the most that a block may ask for (opt-in); shared_reserved: what the system
      takes from the SM's shared memory for each block on top.
    register_unit: registers are given to a warp in multiples of this.
    """

    name: str
    capability: tuple[int, int]
    ptx: int
    max_threads_per_block: int
    max_registers_per_thread: int
    registers_per_sm: int
    register_unit: int
    shared_per_block: int
    shared_per_sm: int
    shared_reserved: int
    max_warps_per_sm: int
    max_blocks_per_sm: int

    @property
    def exact(self) -> bool:
        """True for architecture-specific targets (suffix ``a``), whose code runs nowhere else."""
        return self.name.endswith("a")

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """True if a cubin for this target loads on a device of this compute capability.

        A plain cubin runs on later minor versions of the same major one; ``sm_90a`` runs on 9.0 only.
        """
        if self.exact:
            return capability == self.capability
        return capability[0] == self.capability[0] and capability[1] >= self.capability[1]

    def allocated_registers(self, registers: int) -> int:
        """Registers that a warp of threads with this many each takes from the SM."""
        return -(-registers * WARP // self.register_unit) * self.register_unit

    def occupancy(self, *, registers: int, shared: int, threads: int) -> Occupancy:
        """How many blocks of `threads` threads, each with `registers`, and `shared` bytes fit on an SM.

        Registers are allocated to warps of one of four SM quarters, so a quarter's share is what
        must hold whole warps (CUDA occupancy calculator).
        """
        warps = -(-threads // WARP)
        quarter_warps = self.registers_per_sm // 4 // max(1, self.allocated_registers(registers))
        limits = {
            "threads": self.max_warps_per_sm // warps,
            "blocks": self.max_blocks_per_sm,
            "registers": quarter_warps * 4 // warps,
            "shared memory": self.shared_per_sm // (-(-shared // 128) * 128 + self.shared_reserved),
        }
        limiter = min(limits, key=lambda name: limits[name])
        blocks = limits[limiter]
        return Occupancy(blocks, limiter, blocks * warps / self.max_warps_per_sm)


def _target(name: str, capability: tuple[int, int], ptx: int, shared_kib: int, warps: int, blocks: int) -> Target:
    return Target(
        name=name,
        capability=capability,
        ptx=ptx,
        max_threads_per_block=1024,
        max_registers_per_thread=255,
        registers_per_sm=65536,
        register_unit=256,
        shared_per_block=(shared_kib - 1) * 1024,
        shared_per_sm=shared_kib * 1024,
        shared_reserved=1024,
        max_warps_per_sm=warps,
        max_blocks_per_sm=blocks,
    )


TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        #       name       capability  PTX  KiB/SM  warps  blocks
        _target("sm_80", (8, 0), 70, 164, 64, 32),
        _target("sm_86", (8, 6), 71, 100, 48, 16),
        _target("sm_89", (8, 9), 78, 100, 48, 24),
        _target("sm_90", (9, 0), 78, 228, 64, 32),
        _target("sm_90a", (9, 0), 80, 228, 64, 32),
        _target("sm_100a", (10, 0), 86, 228, 64, 32),
        _target("sm_120a", (12, 0), 87, 100, 48, 24),
    )
}
"""Targets by name."""


def target_named(name: str) -> Target:
    """The target called `name`; CompileError with the possible names for anything else."""
    if not isinstance(name, str) or name not in TARGETS:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CompileError(f"no target {name!r}", fix=f"one of {', '.join(TARGETS)}")
    return TARGETS[name]


def require_capability(target: Target, capability: tuple[int, int], what: str, loc: Loc, instead: str = "") -> None:
    """CompileError at `loc` if `target` is older than `what`, which names the targets that have it."""
    if target.capability >= capability:
        return
    have = ", ".join(t.name for t in TARGETS.values() if t.capability >= capability)
    fix = f"compile for one of {have}"
    raise CompileError(f"{target.name} does not have {what}", loc, f"{fix}; {instead}" if instead else fix)


def require_feature(target: Target, feature: str, what: str, loc: Loc) -> None:
    """CompileError at `loc` if `target` lacks `feature`, a row of `FEATURES`, which `what` needs."""
    have = FEATURES[feature]
    if target.name not in have:
        raise CompileError(f"{target.name} does not have {what}", loc, f"compile for {' or '.join(have)}")
