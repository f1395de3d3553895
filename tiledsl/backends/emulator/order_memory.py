"""Who has written each granule of a chunk's shared memory last, and who has read it since, by the clocks of `clocks`.

An access that does not come after those that it conflicts with is a hazard, whatever the order in which the emulator
ran them. What TMA and wgmma read is being read until it was waited for. What threads have written, TMA and wgmma may
touch after a proxy fence of the writers only; what threads have read, TMA may overwrite after one of the readers only.
(PTX ISA: memory consistency model; async proxy.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.backends.emulator.clocks import Clocks, Known
from tiledsl.backends.emulator.options import Access, AccessKind, LaunchInfo
from tiledsl.backends.emulator.order_fences import ProxyFences
from tiledsl.backends.emulator.shadow import DOES, Bools, Ints, Ops, holders
from tiledsl.errors import HazardError
from tiledsl.ir.core import Op
from tiledsl.ir.ops import mem, tma

if TYPE_CHECKING:
    from tiledsl.backends.emulator.machine import Chunk

__all__ = ["AGENTS", "SharedHistory", "Touch"]

NOBODY = -1
AGENTS = 1 << 12
"""More than a block has; a writer is ``rank * AGENTS + agent``."""
READING = np.iinfo(np.int32).max
"""The time of a read that has not ended."""
MANY = WARP
"""In the place of a lane: several."""

_UNKNOWN = "with no wait between that lets it know"
_FENCE = "let the threads that wrote it execute fence_proxy_async() before the barrier"
_READ_FENCE = "let the threads that read it execute fence_proxy_async() before they arrive where this one waits"
_WAIT = "let that warp wait for it (wgmma_wait, tma_wait), and let this one know: at an mbarrier or a barrier"
_MEET = "let the one wait for the other: at an mbarrier, or at a barrier where both are"


@dataclass(frozen=True, slots=True)
class Touch:
    """An access, one entry a lane or copy: whose, at which cells [entries, cells], and what its warp knows. `atomic`:
    does it not conflict with others that are?

    `rows`: of the blocks whose memory it is; `owners`: of those whose warps do it. `lanes`: None, or [entries, cells].
    """

    op: Op
    kind: AccessKind
    label: str
    base: int
    owners: Ints
    warps: Ints
    rows: Ints
    cells: Ints
    known: Known
    lanes: Ints | None = None
    atomic: bool = False

    def part(self, which: Bools) -> Touch:
        names = ("owners", "warps", "rows", "cells", "known")
        return replace(self, **{name: getattr(self, name)[which] for name in names})


class _Readers:
    """[granules, warps]: `when` each warp of the block read last, which `lane` of it, by which `op`. `any`: has one?"""

    def __init__(self, granules: int, warps: int) -> None:
        self.any = False
        self.when = np.zeros((granules, warps), np.int32)
        self.lane = np.zeros((granules, warps), np.int8)
        self.op = np.zeros((granules, warps), np.int16)

    def forget(self, cells: Ints) -> None:
        if self.any:
            self.when[cells] = 0


class SharedHistory:
    """Flat arrays over all granules: `writer`, `epoch` (its count), `lane`, `atomic`, `writer_op`; `reserved`: by an
    mbarrier. `readers`: warps that read themselves, `atomic_readers` by atomic operations; `fetchers`: those whose TMA
    or wgmma do. `fences`: of threads."""

    def __init__(self, chunk: Chunk, launch: LaunchInfo, clocks: Clocks) -> None:
        self.chunk, self.launch, self.clocks = chunk, launch, clocks
        self.first, self.warps, self.ranks = chunk.first, chunk.warps, chunk.clusters.rank
        self.granules = max(1, -(-launch.shared_bytes // launch.granule))
        self.ops = Ops()
        size = chunk.count * self.granules
        self.writer = np.full(size, NOBODY, np.int32)
        self.epoch, self.writer_op = np.zeros(size, np.int32), np.zeros(size, np.int32)
        self.lane, self.atomic = np.zeros(size, np.int8), np.zeros(size, np.bool_)
        self.readers, self.atomic_readers, self.fetchers = (_Readers(size, self.warps) for _ in range(3))
        self.reserved = np.zeros(size, np.bool_)
        self.fences = ProxyFences(clocks, chunk.count, self.warps)

    def cells(self, rows: Ints, at: Ints, width: int) -> Ints:
        """Of `width` bytes from each address in `at` [entries, any] on: [entries, cells]."""
        granule = self.launch.granule
        first = rows[:, None] * self.granules + at // granule
        return (first[:, :, None] + np.arange(max(1, width // granule))).reshape(len(rows), -1)

    def by_lanes(self, access: Access) -> Touch:
        """What threads do themselves."""
        rows, warps = access.blocks - self.first, access.threads // WARP
        cells = self.cells(rows, access.addresses[:, None], access.width)
        lanes = np.broadcast_to((access.threads % WARP)[:, None], cells.shape)
        if (held := holders(access.op, access.threads, cells.size, self.launch.granule)) is not None:
            lanes = held.reshape(cells.shape)
        known = self.clocks.known[rows, warps]
        atomic = access.order is not None
        return Touch(
            access.op, access.kind, access.label, access.base, rows, warps, rows, cells, known, lanes, atomic
        )  # fmt: skip

    # -- conflicts -----------------------------------------------------------------------------

    def against_writers(self, touch: Touch) -> None:
        cells = touch.cells
        if self.reserved[cells].any():
            at = np.argwhere(self.reserved[cells])[0]
            self.fail(touch, at, "where a live mbarrier is", "leave mbarriers to their own operations")
        writer = self.writer[cells]
        ranks, agents = np.divmod(np.maximum(writer, 0), AGENTS)
        late = self.clocks.of_agents(touch.known, ranks, agents) < self.epoch[cells]
        late |= self.within_warp(touch, (ranks == self.ranks[touch.owners][:, None]) & (agents == touch.warps[:, None]))
        late &= writer != NOBODY
        if touch.atomic:
            late &= ~self.atomic[cells]
        if late.any():
            at = np.argwhere(late)[0]
            op = self.ops[int(self.writer_op[cells[tuple(at)]])]
            self.fail(touch, at, f"which {self.agent(writer[tuple(at)])} {_wrote(op)} at {op.loc}, {_UNKNOWN}", _MEET)

    def within_warp(self, touch: Touch, own: Bools) -> Any:
        """Which cells another lane of the same warp has written, and the lanes have not met since."""
        if touch.lanes is None:
            return False
        synced = self.clocks.synced[touch.owners, touch.warps][:, None]
        return own & (self.lane[touch.cells] != touch.lanes) & (self.epoch[touch.cells] >= synced)

    def against_readers(self, touch: Touch) -> None:
        """What threads write, others have read, or TMA or wgmma have."""
        self.against(self.readers, touch)
        self.against(self.fetchers, touch)
        if not touch.atomic:
            self.against(self.atomic_readers, touch)

    def against(self, readers: _Readers, touch: Touch) -> None:
        if not readers.any:
            return
        cells = touch.cells
        reads = readers.when[cells]
        late = reads > self.seen(touch, 0)
        if touch.lanes is not None:
            own = np.arange(self.warps) == touch.warps[:, None]
            synced = self.clocks.synced[touch.owners, touch.warps][:, None, None]
            other = readers.lane[cells] != touch.lanes[:, :, None]
            late |= own[:, None, :] & other & (reads >= synced)
        late &= reads > 0
        if not late.any():
            return
        at = np.argwhere(late)[0]
        warp = int(at[2])
        op = self.ops[int(readers.op[cells[tuple(at[:2])], warp])]
        if reads[tuple(at)] == READING:
            self.fail(touch, at[:2], f"which {op.name} of warp {warp} at {op.loc} may still read", _WAIT)
        self.fail(touch, at[:2], f"which warp {warp} has read at {op.loc}, {_UNKNOWN}", _MEET)

    def seen(self, touch: Touch, agents: int) -> Any:
        """What is known of the warps of the block whose memory it is, [entries, 1, warps]: of so many agents on."""
        entries = np.arange(len(touch.rows))
        return touch.known[entries, self.ranks[touch.rows], agents : agents + self.warps][:, None, :]

    # -- proxies -------------------------------------------------------------------------------

    def against_unfenced(self, touch: Touch) -> None:
        """TMA or wgmma touch what threads have written."""
        cells = touch.cells
        writer = self.writer[cells]
        ranks, agents = np.divmod(np.maximum(writer, 0), AGENTS)
        by_warp = (writer != NOBODY) & (agents < self.warps)
        warps = np.where(by_warp, agents, 0)
        late = by_warp & (self.clocks.of_agents(touch.known, ranks, self.warps + warps) <= self.epoch[cells])
        if not late.any():
            return
        rows, known = touch.rows[:, None], self.clocks.of_agents(touch.known, ranks, warps)
        late = self.fences.missing(late, rows, warps, self.lane[cells], self.epoch[cells], known)
        if late.any():
            at = np.argwhere(late)[0]
            op = self.ops[int(self.writer_op[cells[tuple(at)]])]
            who = self.agent(writer[tuple(at)])
            self.fail(touch, at, f"which {who} {_wrote(op)} at {op.loc} with no proxy fence since", _FENCE)

    def against_unfenced_readers(self, touch: Touch) -> None:
        """TMA overwrites what threads have read. Who knows of a fence knows of what came before it."""
        if not self.readers.any:
            return
        cells = touch.cells
        reads = self.readers.when[cells]
        late = (reads >= self.seen(touch, self.warps)) & (reads > 0)
        if not late.any():
            return
        self.against(self.readers, touch)
        rows, warps, lanes = touch.rows[:, None, None], np.arange(self.warps), self.readers.lane[cells]
        late = self.fences.missing(late, rows, warps, lanes, reads, self.seen(touch, 0))
        if late.any():
            at = np.argwhere(late)[0]
            warp = int(at[2])
            op = self.ops[int(self.readers.op[cells[tuple(at[:2])], warp])]
            text = f"which warp {warp} has read at {op.loc} with no proxy fence since"
            self.fail(touch, at[:2], text, _READ_FENCE)

    # -- what is remembered --------------------------------------------------------------------

    def remember_writes(self, touch: Touch) -> None:
        assert touch.lanes is not None
        cells, lanes = touch.cells, touch.lanes
        self.set_writer(touch.op, cells, self.ranks[touch.owners] * AGENTS + touch.warps)
        self.epoch[cells] = self.clocks.now(touch.owners, touch.warps)[:, None]
        self.lane[cells] = lanes
        self.atomic[cells] = touch.atomic
        if not touch.atomic:
            self.atomic_readers.forget(cells)
        self.fences.accessed(touch.op, touch.owners, touch.warps, lanes[:, 0])
        # Two lanes at one cell: the one that does not find itself there has lost.
        lost = (self.lane[cells] != lanes) | (self.writer[cells] % AGENTS != touch.warps[:, None])
        if lost.any() and not touch.atomic:
            self.fail(touch, np.argwhere(lost)[0], f"which another thread writes, too, at {touch.op.loc}", _MEET)

    def remember_arrival(self, op: Op, rows: Ints, cells: Ints, columns: Ints) -> None:
        """A load has arrived: whoever waits for the phase that its mbarrier is in knows."""
        self.set_writer(op, cells, self.ranks[rows] * AGENTS + 2 * self.warps + columns)
        self.epoch[cells] = self.chunk.mbarriers.phase[rows, columns][:, None] + 1
        self.atomic[cells] = False

    def set_writer(self, op: Op, cells: Ints, agents: Ints) -> None:
        """Reads come before the write, and so before all that comes after it."""
        self.writer[cells] = agents[:, None]
        self.writer_op[cells] = self.ops.number(op)
        self.readers.forget(cells)
        self.fetchers.forget(cells)

    def remember_reads(self, touch: Touch) -> None:
        assert touch.lanes is not None
        readers, lanes = self.atomic_readers if touch.atomic else self.readers, touch.lanes
        warps = np.broadcast_to(touch.warps[:, None], touch.cells.shape)
        at = touch.cells, warps
        again = readers.when[at] >= self.clocks.synced[touch.owners, touch.warps][:, None]
        several = again & (readers.lane[at] != lanes)
        readers.any = True
        readers.when[at] = self.clocks.now(touch.owners, touch.warps)[:, None]
        readers.lane[at] = np.where(several, MANY, lanes)
        # Two lanes at one cell: the one that does not find itself there is the other.
        lost = (readers.lane[at] != lanes) & ~several
        readers.lane[touch.cells[lost], warps[lost]] = MANY
        readers.op[at] = self.ops.number(touch.op)
        self.fences.accessed(touch.op, touch.owners, touch.warps, lanes[:, 0])

    def begin_reading(self, touch: Touch, lanes: Ints | int = 0) -> None:
        """`lanes`: who will have waited for it."""
        at = touch.cells, touch.warps[:, None]
        self.fetchers.any = True
        self.fetchers.when[at], self.fetchers.lane[at] = READING, lanes
        self.fetchers.op[at] = self.ops.number(touch.op)

    def end_reading(self, cells: Ints, rows: Ints, warps: Ints) -> None:
        """These warps have waited for it."""
        at, when = (cells, warps[:, None]), self.fetchers.when
        when[at] = np.where(when[at] == READING, self.clocks.now(rows, warps)[:, None], when[at])
        self.clocks.tick(*np.unique(np.stack([rows, warps]), axis=1))

    # -- names ---------------------------------------------------------------------------------

    def who(self, row: Any, warp: Any) -> str:
        return f"warp {int(warp)} of block {self.launch.block_index(int(row) + self.first)}"

    def agent(self, writer: Any) -> str:
        agent = int(writer) % AGENTS
        if agent < self.warps:
            return f"warp {agent}"
        return f"a copy counted by {self.chunk.mbarriers.labels[agent - 2 * self.warps]}"

    def fail(self, touch: Touch, at: NDArray[Any], text: str, fix: str) -> None:
        entry = int(at[0])
        byte = int(touch.cells[tuple(at)]) % self.granules * self.launch.granule - touch.base
        who = self.who(touch.owners[entry], touch.warps[entry])
        raise HazardError(
            f"race: {who} {DOES[touch.kind]} byte {byte} of {touch.label} at {touch.op.loc}, {text}", touch.op.loc, fix
        )


def _wrote(op: Op) -> str:
    return "has filled" if isinstance(op, (tma.Load, tma.MapLoad, mem.CpAsync)) else "has written"
