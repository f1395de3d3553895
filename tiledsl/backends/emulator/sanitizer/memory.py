"""The history of a chunk's shared memory: the last write of each granule and the reads since, with their clocks.

An access that does not happen after those that it conflicts with is a hazard. TMA and wgmma read until they were waited
for. They may access what threads have written only after a proxy fence of the writers, and TMA may overwrite what
threads have read only after a proxy fence of the readers. (PTX ISA: memory consistency model; async proxy.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.backends.emulator.hooks import Access
from tiledsl.backends.emulator.sanitizer.clocks import Clocks, ProxyFences, View
from tiledsl.backends.emulator.sanitizer.shadow import Bools, Cells, Ints, Ops, Words, held_by
from tiledsl.ir.core import Op

READING = np.iinfo(np.int32).max
"""The time of a read that has not ended."""
MANY = 64
"""Added to a lane: others of its warp as well."""

_FENCE = "let the threads that wrote it execute fence_proxy_async() before the barrier"
_READ_FENCE = "let the threads that read it execute fence_proxy_async() before they arrive where this one waits"
_WAIT = "let that warp wait for it (wgmma_wait, tma_wait), and let this one know: at an mbarrier or a barrier"


@dataclass(frozen=True, slots=True)
class Touch:
    """An access, one entry a lane or copy: its warp, its cells [entries, cells], and the clock of its warp, `known`.

    `rows`: of the blocks whose memory it is; `owners`: of those whose warps do it. `lanes`: None for what TMA or wgmma
    do, or [entries, cells].
    """

    access: Access
    owners: Ints
    warps: Ints
    rows: Ints
    cells: Ints
    known: View
    lanes: Ints | None

    @property
    def atomic(self) -> bool:
        """Does it not conflict with others that are?"""
        return self.access.order is not None

    def part(self, which: Bools) -> Touch:
        lanes = None if self.lanes is None else self.lanes[which]
        owners, warps, rows, cells = (x[which] for x in (self.owners, self.warps, self.rows, self.cells))
        return Touch(self.access, owners, warps, rows, cells, self.known.part(which), lanes)


class _Times:
    """When each warp of the block has done something to each granule last, [granules, warps]: its count, `when`, which
    `lane` of it (and `MANY` if others did), by which `op`. `latest` [granules]: no `when` is above, 0 if all are over.
    """

    def __init__(self, granules: int, warps: int) -> None:
        self.warps, self.any = warps, False
        self.latest = np.zeros(granules, np.int32)
        self.when = np.zeros((granules, warps), np.int32)
        self.lane = np.zeros((granules, warps), np.int8)
        self.op = np.zeros((granules, warps), np.int16)

    def forget(self, cells: Ints) -> None:
        if self.any:
            known = cells[self.latest.take(cells) != 0]
            self.when[known] = 0
            self.latest[known] = 0

    def remember(self, cells: Ints, warps: Ints, lanes: Ints, now: Ints, synced: Ints, op: int) -> None:
        """`lanes` as `cells`; one entry a lane: `warps`, their counts, and those at which their lanes have met last."""
        self.any = True
        at = cells * self.warps + warps[:, None]
        when, lane = self.when.reshape(-1), self.lane.reshape(-1)
        before = lane.take(at)
        several = (when.take(at) >= synced[:, None]) & (before != lanes)
        self.latest[cells] = when[at] = np.broadcast_to(now.astype(np.int32)[:, None], at.shape)
        lane[at] = lanes
        # Two lanes at one cell: the one that does not find itself there is the other.
        several |= lane.take(at) != lanes
        if several.any():
            lane[at[several]] |= MANY
        self.op.reshape(-1)[at] = op


class SharedHistory:
    """Flat arrays over all granules: `writer`, `epoch` (its count; 0: nobody), `lane`, `writer_op`; `reserved`: by an
    mbarrier. `readers`: warps that read themselves; `atomic_readers`, `updates`: those that read or write by atomic
    operations; `fetchers`: those whose TMA or wgmma read; `workers`: those whose committed work does, by the number of
    the commit (`commits`). `fences`: of threads. `labels`: of mbarriers, by column.

    `simple`: nothing but barriers of whole blocks orders warps.
    """

    def __init__(self, words: Words, clocks: Clocks, cells: Cells, blocks: int) -> None:
        self.words, self.clocks, self.first, self.simple = words, clocks, words.first, words.simple
        self.cells, self.warps = cells, clocks.warps
        self.ops = Ops()
        self.labels: list[str] = []
        size = cells.count
        self.writer, self.epoch, self.writer_op = (np.zeros(size, np.int32) for _ in range(3))
        self.lane = np.zeros(size, np.int8)
        self.readers, self.atomic_readers, self.updates = (_Times(size, self.warps) for _ in range(3))
        self.fetchers, self.workers = _Times(size, self.warps), _Times(size, self.warps)
        self.reserved: Bools | None = None
        self.fences = ProxyFences(clocks, blocks, self.warps)

    def reserve(self, rows: Ints, at: Ints, width: int) -> None:
        """For mbarriers."""
        if self.reserved is None:
            self.reserved = np.zeros(len(self.writer), np.bool_)
        self.reserved[self.cells.of(rows, at[:, None], width)] = True

    def touch(self, access: Access, cells: Ints) -> Touch:
        """`cells`: of each entry of the access."""
        rows = access.blocks[:: access.run] - self.first
        warps, lane = np.divmod(access.threads[:: access.run], WARP)
        owners, lanes = rows, None
        if access.owners is not None:
            owners, cells = access.owners - self.first, cells.reshape(len(rows), -1)
        else:
            held = held_by(access, cells.shape[1], self.cells.granule)
            lanes = np.broadcast_to(lane[:, None], cells.shape) if held is None else held
        return Touch(access, owners, warps, rows, cells, self.clocks.view(owners, warps), lanes)

    # -- conflicts -----------------------------------------------------------------------------

    def against_writers(self, touch: Touch, in_order: Ints | None = None) -> None:
        """It must happen after writes. in_order: of each entry the agent whose writes come before it in any case."""
        cells = touch.cells
        if self.reserved is not None and self.reserved[cells].any():
            at = np.argwhere(self.reserved[cells])[0]
            self.fail(touch, at, "where a live mbarrier is", "leave mbarriers to their own operations")
        if not touch.atomic:
            self.against(self.updates, touch, "wrote")
        epoch = self.epoch.take(cells)
        if self.simple and not (epoch > self.clocks.met[touch.rows][:, None]).any():
            return
        writer = self.writer.take(cells)
        late = touch.known.of(writer) < epoch
        if in_order is not None:
            late &= writer != in_order[:, None]
        if touch.lanes is not None:
            mine = self.clocks.ids(touch.owners, touch.warps)[:, None]
            synced = self.clocks.synced[touch.owners, touch.warps][:, None]
            late |= (writer == mine) & (self.lane.take(cells) != touch.lanes) & (epoch >= synced)
        if late.any():
            self.fail_writer(touch, np.argwhere(late)[0])

    def against_readers(self, touch: Touch, in_order: Ints | None = None) -> None:
        """A write must happen after reads by threads, TMA, wgmma and committed work. in_order: the warps whose work it
        is, which ends in order."""
        self.against(self.readers, touch)
        self.against_fetchers(touch, in_order)
        if not touch.atomic:
            self.against(self.atomic_readers, touch)

    def against_fetchers(self, touch: Touch, in_order: Ints | None = None) -> None:
        """It must happen after reads by TMA, wgmma and committed work."""
        self.against(self.fetchers, touch)
        self.against(self.workers, touch, agents=self.clocks.work, in_order=in_order)

    def against(
        self, others: _Times, touch: Touch, did: str = "read", agents: int = 0, in_order: Ints | None = None
    ) -> None:
        """`touch` must happen after what warps have done. agents: whose counts say when that was."""
        if not others.any:
            return
        behind = self.clocks.met[touch.rows][:, None] if self.simple else 0
        recent = np.asarray((others.latest.take(touch.cells) > behind).any(axis=1))
        if not recent.any():
            return
        if not recent.all():
            touch, in_order = touch.part(recent), None if in_order is None else in_order[recent]
        cells = touch.cells
        when = others.when[cells]
        late = when > self.seen(touch, agents)
        if in_order is not None:
            late &= (np.arange(self.warps) != in_order[:, None])[:, None, :]
        if touch.lanes is not None:
            own = np.arange(self.warps) == touch.warps[:, None]
            synced = self.clocks.synced[touch.owners, touch.warps][:, None, None]
            other = others.lane[cells] != touch.lanes[:, :, None]
            late |= own[:, None, :] & other & (when >= synced)
        late &= when > 0
        if late.any():
            self.fail_warp(others, touch, np.argwhere(late)[0], did)

    def seen(self, touch: Touch, agents: int) -> Any:
        """The counts that `touch` has of agents `agents` ... of the block whose memory it is, one a warp: [entries, 1,
        warps]."""
        return touch.known.of(self.clocks.ids(touch.rows[:, None], agents + np.arange(self.warps)))[:, None, :]

    # -- proxies -------------------------------------------------------------------------------

    def against_unfenced(self, touch: Touch) -> None:
        """TMA or wgmma touch what threads have written."""
        self.against_unfenced_warps(self.updates, touch, "wrote", _FENCE)
        epoch, writer = self.epoch.take(touch.cells), self.writer.take(touch.cells)
        ranks, agents = np.divmod(writer, self.clocks.agents)
        by_warp = (epoch > 0) & (agents < self.warps)
        warps = np.where(by_warp, agents, 0)
        ids = ranks * self.clocks.agents + warps
        late = by_warp & (touch.known.of(ids + self.warps) <= epoch)
        if not late.any():
            return
        known, rows = touch.known.of(ids), touch.rows[:, None]
        late = self.fences.missing(late, rows, warps, self.lane[touch.cells], epoch, known)
        if late.any():
            self.fail_writer(touch, np.argwhere(late)[0], _FENCE)

    def against_unfenced_readers(self, touch: Touch) -> None:
        """TMA overwrites what threads have read."""
        self.against_unfenced_warps(self.readers, touch, "read", _READ_FENCE)

    def against_unfenced_warps(self, others: _Times, touch: Touch, did: str, fix: str) -> None:
        """`touch` must happen after a proxy fence that follows what warps `did`."""
        if not others.any:
            return
        cells = touch.cells
        when = others.when[cells]
        late = (when >= self.seen(touch, self.warps)) & (when > 0)
        if not late.any():
            return
        self.against(others, touch, did)
        rows, warps, lanes = touch.rows[:, None, None], np.arange(self.warps), others.lane[cells]
        late = self.fences.missing(late, rows, warps, lanes, when, self.seen(touch, 0))
        if late.any():
            self.fail_warp(others, touch, np.argwhere(late)[0], did, fix)

    # -- what is remembered --------------------------------------------------------------------

    def remember_writes(self, touch: Touch) -> None:
        assert touch.lanes is not None
        if touch.atomic:
            self.remember(self.updates, touch)
            return
        cells, lanes = touch.cells, touch.lanes
        mine = self.clocks.ids(touch.owners, touch.warps)[:, None]
        self.set_writer(touch.access.op, cells, mine, self.clocks.now(touch.owners, touch.warps)[:, None])
        self.lane[cells] = lanes
        if not self.simple:
            self.fences.accessed(touch.owners, touch.warps, lanes[:, 0], touch.access.held != "")
        # Two lanes at one cell: the one that does not find itself there has lost.
        lost = (self.lane.take(cells) != lanes) | (self.writer.take(cells) != mine)
        if lost.any():
            at = np.argwhere(lost)[0]
            cell = cells[tuple(at)]
            who = self.words.thread(self.clocks.agent(self.writer[cell]), int(self.lane[cell]))
            text = f"which {who} writes, too, at {touch.access.loc}{self.words.unknown}"
            self.fail(touch, at, text, self.words.meet())

    def remember_arrival(self, op: Op, rows: Ints, cells: Ints, columns: Ints) -> None:
        """A load has arrived: whoever waits for the phase that its mbarrier is in knows."""
        agents = self.clocks.ids(rows, 2 * self.warps + columns)
        self.set_writer(op, cells, agents[:, None], self.clocks.phases(rows, columns)[:, None] + 1)

    def set_writer(self, op: Op, cells: Ints, ids: Ints, epochs: NDArray[Any]) -> None:
        """Reads and atomic updates come before the write, and so before all that comes after it."""
        self.writer[cells], self.epoch[cells] = ids, epochs
        self.writer_op[cells] = self.ops.number(op)
        for times in (self.readers, self.fetchers, self.workers, self.atomic_readers, self.updates):
            times.forget(cells)

    def remember_reads(self, touch: Touch) -> None:
        self.remember(self.atomic_readers if touch.atomic else self.readers, touch)

    def remember(self, times: _Times, touch: Touch) -> None:
        assert touch.lanes is not None
        who = touch.owners, touch.warps
        number = self.ops.number(touch.access.op)
        times.remember(touch.cells, touch.warps, touch.lanes, self.clocks.now(*who), self.clocks.synced[who], number)
        if not self.simple:
            self.fences.accessed(*who, touch.lanes[:, 0], touch.access.held != "")

    def begin_reading(self, touch: Touch, lanes: Ints | int = 0) -> None:
        """`lanes`: who will have waited for it."""
        at = touch.cells, touch.warps[:, None]
        self.fetchers.any = True
        self.fetchers.when[at], self.fetchers.lane[at] = READING, lanes
        self.fetchers.latest[touch.cells] = READING
        self.fetchers.op[at] = self.ops.number(touch.access.op)

    def remember_work(self, touch: Touch, epochs: Ints) -> None:
        """Work reads that has ended behind so many commits of its warp."""
        nobody = np.zeros_like(touch.cells)
        self.workers.remember(touch.cells, touch.warps, nobody, epochs, epochs, self.ops.number(touch.access.op))

    def end_reading(self, cells: Ints, rows: Ints, warps: Ints) -> None:
        """These warps have waited for it."""
        at, when = (cells, warps[:, None]), self.fetchers.when
        when[at] = np.where(when[at] == READING, self.clocks.now(rows, warps)[:, None], when[at])
        self.clocks.tick(*np.divmod(np.unique(rows * self.warps + warps), self.warps))

    # -- messages ------------------------------------------------------------------------------

    def fail_writer(self, touch: Touch, at: NDArray[Any], fence: str = "") -> None:
        """fence: the fix, if a proxy fence is missing; else nothing orders the two."""
        cell = int(touch.cells[tuple(at)])
        op, agent = self.ops[int(self.writer_op[cell])], self.clocks.agent(self.writer[cell])
        if agent < self.warps:
            who = self.words.other(agent, int(self.lane[cell]), *self.thread(touch, at))
        elif agent >= self.clocks.work:
            who = f"work of warp {agent - self.clocks.work}"
        else:
            who = f"a copy counted by {self.labels[agent - 2 * self.warps]}"
        did = "copied" if op in self.words.copies else "wrote"
        self.fail_unordered(touch, at, who, did, op, fence, touch.atomic)

    def fail_warp(self, others: _Times, touch: Touch, at: NDArray[Any], did: str, fence: str = "") -> None:
        warp, cell = int(at[2]), int(touch.cells[tuple(at[:2])])
        op = self.ops[int(others.op[cell, warp])]
        if others.when[cell, warp] == READING:
            self.fail(touch, at, f"which {op.name} of warp {warp} at {op.loc} may still read", _WAIT)
        who = self.words.other(warp, int(others.lane[cell, warp]), *self.thread(touch, at))
        who = f"work of {who}" if others is self.workers else who
        one_atomic = touch.atomic or others in (self.updates, self.atomic_readers)
        self.fail_unordered(touch, at, who, did, op, fence, one_atomic)

    def fail_unordered(
        self, touch: Touch, at: NDArray[Any], who: str, did: str, op: Op, fence: str, one_atomic: bool
    ) -> None:
        why = " with no proxy fence since" if fence else self.words.unknown
        text = f"which {who} {self.words.did(did)} at {op.loc}{why}"
        self.fail(touch, at, text, fence or self.words.meet(one_atomic))

    def thread(self, touch: Touch, at: NDArray[Any]) -> tuple[int, int]:
        """Warp and lane of what fails; lane -1: not of one thread."""
        lane = -1 if touch.lanes is None else int(touch.lanes[tuple(at[:2])])
        return int(touch.warps[at[0]]), lane

    def fail(self, touch: Touch, at: NDArray[Any], text: str, fix: str) -> None:
        where = self.cells.byte(int(touch.cells[tuple(at[:2])]), touch.access)
        block = int(touch.owners[at[0]]) + self.first
        self.words.fail(touch.access, block, *self.thread(touch, at), where, text, fix)
