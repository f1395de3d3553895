"""What a caller may ask of one run, what a hook sees of it, and what comes back."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Literal, TextIO

import numpy as np
from numpy.typing import NDArray

from tiledsl.errors import KernelArgumentError, Loc
from tiledsl.ir.core import Op
from tiledsl.ir.ops import mem, tile
from tiledsl.ir.types import Space

__all__ = ["Access", "Hook", "LaunchInfo", "Options", "RunResult", "TraceRow"]

AccessKind = Literal["read", "write", "atomic", "async", "fetch", "mbarrier"]
"""async: what an asynchronous copy will write to shared memory; it has begun, or is arriving (`Hook.on_delivery`).
atomic: an element is read and written in one step. fetch: what TMA or wgmma begin to read there. mbarrier: an operation
on one."""


@dataclass(frozen=True, slots=True)
class LaunchInfo:
    """The shape of a launch: blocks and threads along x, y, z, and shared memory of a block in bytes.

    `granule`: bytes of the narrowest element that the kernel accesses in shared memory. `cluster`: blocks of a cluster.
    """

    kernel: str
    grid: tuple[int, int, int]
    threads: tuple[int, int, int]
    shared_bytes: int
    granule: int = 1
    cluster: tuple[int, int, int] = (1, 1, 1)

    def block_index(self, block: int) -> tuple[int, ...]:
        """Coordinates (x, y, z) of a linear block index; x is fastest."""
        return _coordinates(block, self.grid)

    def thread_index(self, thread: int) -> tuple[int, ...]:
        return _coordinates(thread, self.threads)


def _coordinates(linear: int, extents: tuple[int, int, int]) -> tuple[int, ...]:
    x, y, _ = extents
    return linear % x, linear // x % y, linear // (x * y)


@dataclass(frozen=True, slots=True)
class Access:
    """One memory operation as the active lanes of a cohort made it; the arrays have one entry a lane,
    in block, warp and lane order.

    `addresses`: bytes; from the start of the block's shared memory, or a virtual global address
    (tensor `label` starts at `base`). `width`: bytes that each lane accesses. `blocks`, `threads`: linear indices.
    """

    op: Op
    kind: AccessKind
    space: Space
    label: str
    base: int
    addresses: NDArray[np.int64]
    width: int
    blocks: NDArray[np.int64]
    threads: NDArray[np.int64]

    @property
    def loc(self) -> Loc:
        return self.op.loc

    @property
    def order(self) -> str | None:
        """Of an atomic operation, which a "read" or "write" may be as well ("relaxed", "acquire", ...); None: plain."""
        return self.op.order if isinstance(self.op, (tile.Atomic, mem.Atomic)) else None

    @property
    def reach(self) -> str | None:
        """Among which threads an atomic operation is one ("cta", "cluster", "gpu", "sys"); None: plain."""
        return self.op.reach if isinstance(self.op, (tile.Atomic, mem.Atomic)) else None


class Hook:
    """Base of clients that watch a run. Override what is needed; an error raised here stops the launch.

    Blocks run in chunks of neighbours; between `on_blocks_begin` and `on_blocks_end` for the same
    range come all events of these blocks. Several ranges may be open at once.
    """

    def on_launch(self, launch: LaunchInfo) -> None:
        """Before anything runs."""

    def on_blocks_begin(self, first: int, count: int) -> None:
        """Blocks `first` ... `first + count - 1` start."""

    def on_blocks_end(self, first: int, count: int) -> None:
        """These blocks have finished."""

    def on_access(self, access: Access) -> None:
        """Before the access takes place, but after its bounds and alignment were checked."""

    def on_delivery(self, access: Access) -> None:
        """Before an asynchronous copy, `access.op`, writes what it has brought for threads that waited for it."""

    def on_barrier(self, op: Op, blocks: NDArray[np.int64]) -> None:
        """All threads of `blocks` (linear indices) have reached a barrier."""

    def on_sync_warp(self, op: Op, blocks: NDArray[np.int64], warps: NDArray[np.int64]) -> None:
        """The warps `warps` of `blocks` (pairs) have reached a `sync_warp`."""


def _default_steps() -> int:
    text = os.environ.get("TILEDSL_MAX_STEPS", "2000000")
    if not text.isdecimal() or int(text) < 1:
        raise KernelArgumentError(
            f"TILEDSL_MAX_STEPS is {text!r}\n  fix: set it to a number of iterations, or unset it"
        )
    return int(text)


@dataclass(frozen=True)
class Options:
    """How to run.

    checks: report races on shared memory, reads of shared bytes that nobody wrote, asynchronous copies that
        nobody waited for, and what TMA and wgmma must not meet.
    hooks: clients that see every access and barrier.
    stdout: where `print` writes; None is `sys.stdout`.
    trace: (block, thread), each a linear index or coordinates, whose every result is recorded.
    max_steps: iterations of loops, of whatever kind, that the run may have in all; a cohort's iteration is one, a
        chunk and a row of a trace are some. A run that has more is said not to end. TILEDSL_MAX_STEPS sets the default.
    chunk_threads: how many threads are emulated at once (it sets the size of the arrays).
    processors: SMs of the GPU that is emulated, for grids that depend on them.
    """

    checks: bool = False
    hooks: tuple[Hook, ...] = ()
    stdout: TextIO | None = None
    trace: tuple[int | tuple[int, ...], int | tuple[int, ...]] | None = None
    max_steps: int = field(default_factory=_default_steps)
    chunk_threads: int = 65536
    processors: int = 8


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One op as one thread executed it: `values` are its results, NumPy scalars. `str` gives line, op, results."""

    loc: Loc
    name: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"line {self.loc.line}: {self.name} {', '.join(map(str, self.values))}".rstrip()


@dataclass
class RunResult:
    """`trace`: the rows of the thread that `Options.trace` names, in program order."""

    trace: list[TraceRow] = field(default_factory=list[TraceRow])
