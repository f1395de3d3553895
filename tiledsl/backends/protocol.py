"""What a code-generating backend gives back, whatever the target."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Binary", "Resources"]


@dataclass(frozen=True, slots=True)
class Resources:
    """What the assembler says that one kernel uses. Sizes in bytes.

    registers: a thread. spill_stores, spill_loads, stack: a thread, all 0 in a good kernel.
    shared: a block, as laid out by the compiler. threads: of a block.
    blocks_per_sm: how many blocks an SM holds at once; limiter: what stops another one
    ("registers", "shared memory", "threads" or "blocks"). occupancy: resident warps over possible.
    assembler_level: how much the assembler was to optimise, 0 to 3.
    """

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int
    threads: int
    blocks_per_sm: int
    limiter: str
    occupancy: float
    assembler_level: int = 3

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Binary:
    """A kernel built for one target: texts of the stages, the loadable image, its resources."""

    name: str
    arch: str
    llvm: str
    ptx: str
    cubin: bytes
    resources: Resources
