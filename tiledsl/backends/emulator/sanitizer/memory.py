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
from tiledsl.backends.emulator.hooks import Access, Bools, Ints
from tiledsl.backends.emulator.sanitizer import advice
from tiledsl.backends.emulator.sanitizer.clocks import ALL, Clocks, Known, ProxyFences, View
from tiledsl.backends.emulator.sanitizer.reports import Reports, first_of_each
from tiledsl.backends.emulator.sanitizer.shadow import DOES, Cells, Ops, held_by
from tiledsl.errors import Accessed, HazardError, Side
from tiledsl.ir.core import Op

UNENDED = np.iinfo(np.int32).max
"""The time of an asynchronous read or write that has not ended."""
MANY = 64
"""Added to a lane: others of its warp as well."""


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
    `did`: "read" or "wrote". The arrays are made when `any` turns true: most kernels do few of these things.
    """

    latest: Known
    when: Known
    lane: NDArray[np.int8]
    op: NDArray[np.int16]

    def __init__(self, granules: int, warps: int, did: str = "read") -> None:
        self.granules, self.warps, self.did, self.any = granules, warps, did, False

    def begin(self) -> None:
        """Something is done."""
        if not self.any:
            self.any, shape = True, (self.granules, self.warps)
            self.latest, self.when = np.zeros(self.granules, np.int32), np.zeros(shape, np.int32)
            self.lane, self.op = np.zeros(shape, np.int8), np.zeros(shape, np.int16)

    def forget(self, cells: Ints) -> None:
        if self.any:
            known = cells[self.latest.take(cells) != 0]
            self.when[known] = 0
            self.latest[known] = 0

    def remember(self, cells: Ints, warps: Ints, lanes: Ints, now: Ints, synced: Ints, op: int) -> None:
        """`lanes` as `cells`; one entry a lane: `warps`, their counts, and those at which their lanes have met last."""
        self.begin()
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
    the commit (`commits`). `fences`: of threads. `labels`: of mbarriers, by column. `arrived` [blocks, mbarriers]: the
    phase that counts the last load that has arrived; `arrived_op`: which op that is, by column.

    `simple`: nothing but barriers of whole blocks orders warps.
    """

    def __init__(self, cells: Cells, clocks: Clocks, blocks: int, simple: bool, reports: Reports) -> None:
        self.cells, self.clocks, self.first, self.simple = cells, clocks, cells.first, simple
        self.reports, self.fenced = reports, "T104" in reports.selection
        self.warps = clocks.warps
        self.ops = Ops()
        self.labels: list[str] = []
        size = cells.count
        self.writer, self.epoch, self.writer_op = (np.zeros(size, np.int32) for _ in range(3))
        self.lane = np.zeros(size, np.int8)
        self.readers, self.atomic_readers, self.fetchers, self.workers = (_Times(size, self.warps) for _ in range(4))
        self.updates = _Times(size, self.warps, "wrote")
        self.reserved: Bools | None = None
        self.arrived = np.zeros((blocks, clocks.work - 2 * self.warps), np.int32)
        self.arrived_op: dict[int, Op] = {}
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
        alone = None if access.held or access.until == "wgmma" else lane  # whole warps do these
        if access.owners is not None:
            owners, cells = access.owners - self.first, cells.reshape(len(rows), -1)
        else:
            held = held_by(access, cells.shape[1], self.cells.granule)
            lanes = np.broadcast_to(lane[:, None], cells.shape) if held is None else held
        return Touch(access, owners, warps, rows, cells, self.clocks.view(owners, warps, alone), lanes)

    # -- conflicts -----------------------------------------------------------------------------

    def against_writers(self, touch: Touch) -> None:
        """It must happen after writes; committed work of one warp ends in order."""
        cells = touch.cells
        if self.reserved is not None and self.reserved[cells].any():
            at = np.argwhere(self.reserved[cells])[0]
            self.reports.tell(advice.race(*self.side(touch, at), None, advice.MBARRIER))
        if not touch.atomic:
            self.against(self.updates, touch)
        epoch = self.epoch.take(cells)
        if self.simple and not (epoch > self.clocks.met[touch.rows][:, None]).any():
            return
        writer = self.writer.take(cells)
        late = touch.known.of(writer) < epoch
        if self.clocks.by_lanes.of:
            agents = writer % self.clocks.agents
            by_warp = agents < self.warps
            released = self.unheard(touch, late & by_warp, np.where(by_warp, agents, 0), self.lane.take(cells), epoch)
            late &= ~by_warp | released
        if touch.access.until == "commit":
            late &= writer != self.clocks.ids(touch.owners, self.clocks.work + touch.warps)[:, None]
        if touch.lanes is not None:
            mine = self.clocks.ids(touch.owners, touch.warps)[:, None]
            synced = self.clocks.synced[touch.owners, touch.warps][:, None]
            late |= (writer == mine) & (self.lane.take(cells) != touch.lanes) & (epoch >= synced)
        self.tell_writers(touch, late)

    def require_delivered(self, touch: Touch) -> None:
        self.tell_writers(touch, self.epoch.take(touch.cells) == UNENDED)

    def against_readers(self, touch: Touch) -> None:
        """A write must happen after reads by threads, TMA, wgmma and committed work."""
        self.against(self.readers, touch)
        self.against_fetchers(touch)
        if not touch.atomic:
            self.against(self.atomic_readers, touch)

    def against_fetchers(self, touch: Touch) -> None:
        """It must happen after reads by TMA, wgmma and committed work."""
        self.against(self.fetchers, touch)
        self.against(self.workers, touch)

    def against(self, others: _Times, touch: Touch) -> None:
        """`touch` must happen after what warps have done."""
        if not others.any:
            return
        behind = self.clocks.met[touch.rows][:, None] if self.simple else 0
        recent = np.asarray((others.latest.take(touch.cells) > behind).any(axis=1))
        if not recent.any():
            return
        if not recent.all():
            touch = touch.part(recent)
        cells = touch.cells
        when = others.when[cells]
        late = when > self.seen(touch, self.clocks.work if others is self.workers else 0)
        if self.clocks.by_lanes.of and others is not self.workers:
            late = self.unheard(touch, late, np.arange(self.warps), others.lane[cells], when)
        own = np.arange(self.warps) == touch.warps[:, None]
        if others is self.workers and touch.access.until == "commit":
            late &= ~own[:, None, :]
        if touch.lanes is not None:
            synced = self.clocks.synced[touch.owners, touch.warps][:, None, None]
            lanes = others.lane[cells]
            other = (lanes != touch.lanes[:, :, None]) & (lanes != ALL)
            late |= own[:, None, :] & other & (when >= synced)
        late &= when > 0
        self.tell_warps(others, touch, late)

    def unheard(self, touch: Touch, late: Bools, warps: Any, lanes: Any, since: Any) -> Bools:
        """Which of `late` no lane has released alone, so that `touch` knows of it."""
        rows = touch.rows.reshape(-1, *[1] * (late.ndim - 1))
        known = touch.known.of(self.clocks.ids(rows, self.clocks.alone + warps))
        return self.clocks.by_lanes.missing(late, rows, warps, lanes, since, known)

    def heard(self, touch: Touch, ids: Ints) -> Any:
        """The counts of warps that `touch` knows, or has heard of from some of their lanes."""
        known = touch.known.of(ids)
        return np.maximum(known, touch.known.of(ids + self.clocks.alone)) if self.clocks.by_lanes.of else known

    def seen(self, touch: Touch, agents: int) -> Any:
        """The counts that `touch` has of agents `agents` ... of the block whose memory it is, one a warp: [entries, 1,
        warps]."""
        return touch.known.of(self.clocks.ids(touch.rows[:, None], agents + np.arange(self.warps)))[:, None, :]

    # -- proxies -------------------------------------------------------------------------------

    def against_unfenced(self, touch: Touch) -> None:
        """TMA or wgmma touch what threads have written."""
        if not self.fenced:
            return
        self.against_unfenced_warps(self.updates, touch)
        epoch, writer = self.epoch.take(touch.cells), self.writer.take(touch.cells)
        ranks, agents = np.divmod(writer, self.clocks.agents)
        by_warp = (epoch > 0) & (agents < self.warps)
        warps = np.where(by_warp, agents, 0)
        ids = ranks * self.clocks.agents + warps
        late = by_warp & (touch.known.of(ids + self.warps) <= epoch)
        if not late.any():
            return
        known, rows = self.heard(touch, ids), touch.rows[:, None]
        late = self.clocks.fenced_by_lanes.missing(late, rows, warps, self.lane[touch.cells], epoch, known)
        self.tell_writers(touch, late, unfenced=True)

    def against_unfenced_readers(self, touch: Touch) -> None:
        """TMA overwrites what threads have read."""
        if self.fenced:
            self.against_unfenced_warps(self.readers, touch)
        else:
            self.against(self.readers, touch)

    def against_unfenced_warps(self, others: _Times, touch: Touch) -> None:
        """`touch` must happen after a proxy fence that follows what warps have done."""
        if not others.any:
            return
        cells = touch.cells
        when = others.when[cells]
        late = (when >= self.seen(touch, self.warps)) & (when > 0)
        if not late.any():
            return
        self.against(others, touch)
        rows, warps, lanes = touch.rows[:, None, None], np.arange(self.warps), others.lane[cells]
        known = self.heard(touch, self.clocks.ids(touch.rows[:, None], np.arange(self.warps)))[:, None, :]
        late = self.clocks.fenced_by_lanes.missing(late, rows, warps, lanes, when, known)
        self.tell_warps(others, touch, late, unfenced=True)

    # -- what is remembered --------------------------------------------------------------------

    def remember_writes(self, touch: Touch) -> None:
        assert touch.lanes is not None
        if touch.atomic:
            self.remember(self.updates, touch)
            return
        self.write(touch, touch.lanes, self.clocks.now(touch.owners, touch.warps)[:, None])
        self.accessed(touch)

    def accessed(self, touch: Touch) -> None:
        """By threads; all lanes of a warp move a matrix."""
        if not self.simple:
            assert touch.lanes is not None
            lanes = slice(None) if touch.access.held else touch.lanes[:, 0]
            self.fences.accessed(touch.owners, touch.warps, lanes)
            self.clocks.accessed(touch.owners, touch.warps, lanes)

    def begin_writing(self, touch: Touch) -> None:
        """A copy begins. Nobody may touch its bytes, the thread that copies included, before it has waited for it."""
        lanes = (touch.access.threads[:: touch.access.run] % WARP)[:, None]
        self.write(touch, lanes, UNENDED)

    def write(self, touch: Touch, lanes: Ints, epochs: Ints | int) -> None:
        cells, mine = touch.cells, self.clocks.ids(touch.owners, touch.warps)[:, None]
        self.set_writer(touch.access.op, cells, mine, epochs)
        self.lane[cells] = lanes
        # Two lanes at one cell: the one that does not find itself there has lost.
        self.tell_writers(touch, (self.lane.take(cells) != lanes) | (self.writer.take(cells) != mine))

    def remember_arrival(self, op: Op, rows: Ints, cells: Ints, columns: Ints) -> None:
        """A load has arrived: whoever waits for the phase that its mbarrier is in knows."""
        agents = self.clocks.ids(rows, 2 * self.warps + columns)
        epochs = self.clocks.phases(rows, columns) + 1
        self.set_writer(op, cells, agents[:, None], epochs[:, None])
        self.arrived[rows, columns] = epochs
        self.arrived_op.update(dict.fromkeys(columns.tolist(), op))

    def set_writer(self, op: Op, cells: Ints, ids: Ints, epochs: NDArray[Any] | int) -> None:
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
        self.accessed(touch)

    def begin_reading(self, touch: Touch, lanes: Ints | int) -> None:
        """`lanes`: who will have waited for it; `ALL`."""
        at, fetchers = touch.cells * self.warps + touch.warps[:, None], self.fetchers
        fetchers.begin()
        fetchers.when.reshape(-1)[at], fetchers.lane.reshape(-1)[at] = UNENDED, lanes
        fetchers.latest[touch.cells] = UNENDED
        fetchers.op.reshape(-1)[at] = self.ops.number(touch.access.op)

    def remember_work(self, touch: Touch, epochs: Ints) -> None:
        """Work reads that has ended behind so many commits of its warp."""
        nobody = np.zeros_like(touch.cells)
        self.workers.remember(touch.cells, touch.warps, nobody, epochs, epochs, self.ops.number(touch.access.op))

    def end_reading(self, cells: Ints, rows: Ints, warps: Ints) -> None:
        """These warps have waited for it."""
        at, when = cells * self.warps + warps[:, None], self.fetchers.when.reshape(-1)
        before = when.take(at)
        when[at] = np.where(before == UNENDED, self.clocks.now(rows, warps)[:, None], before)
        self.clocks.tick(*np.divmod(np.unique(rows * self.warps + warps), self.warps))

    def end(self, known: Known) -> None:
        """The blocks have ended, with what each `known` [blocks, rank, agents]: of each copy that it has arrived."""
        left = np.flatnonzero(self.epoch == UNENDED)
        for cell in left[np.unique(self.writer_op[left], return_index=True)[1]].tolist():
            agent, lane = self.clocks.agent(self.writer[cell]), int(self.lane[cell])
            text = f"a copy that {self.cells.thread(agent, lane)} began has not arrived"
            self.tell_unawaited(cell // self.cells.each, self.ops[int(self.writer_op[cell])], text)
        rows, columns = np.nonzero(self.arrived)
        seen = known[rows, self.clocks.ranks[rows], 2 * self.warps + columns]
        for at in np.flatnonzero(seen < self.arrived[rows, columns]):
            row, column = int(rows[at]), int(columns[at])
            text = f"a copy counted by {self.labels[column]} may not have arrived"
            self.tell_unawaited(row, self.arrived_op[column], text)

    def tell_unawaited(self, row: int, op: Op, text: str) -> None:
        block = self.first + row
        if self.reports.involves(op.loc):  # or nobody could wait for it, since a wait went wrong
            return
        error = HazardError(
            f"{self.cells.launch.block_name(block)} ends, and {text}: nothing waits for it",
            op.loc,
            "wait for the copy, also on the last iteration; or do not begin it",
            code="T301",
            sides=(self.cells.launch.side(op, "began", block),),
            missing="copy-wait",
        )
        self.reports.tell(error)

    # -- messages ------------------------------------------------------------------------------

    def tell_writers(self, touch: Touch, late: Bools, unfenced: bool = False) -> None:
        """`touch` comes too early for what wrote the cells `late`. unfenced: a proxy fence is missing; else nothing
        orders the two."""
        if late.any():
            for at in first_of_each(late, self.writer_op[touch.cells]):
                self.tell_writer(touch, at, unfenced)

    def tell_writer(self, touch: Touch, at: NDArray[Any], unfenced: bool) -> None:
        cell = int(touch.cells[tuple(at)])
        op, lane = self.ops[int(self.writer_op[cell])], int(self.lane[cell])
        if self.reports.knows("T1", touch.access.label, touch.access.op.loc, op.loc):
            return
        agent = self.clocks.agent(self.writer[cell])
        if self.epoch[cell] == UNENDED:
            other = Side(op.loc, op.name, f"the copy of {self.cells.thread(agent, lane)}", "writes")
            text = f"which {other.who} at {op.loc} {advice.DELIVERY.text}"
            self.reports.tell(advice.race(*self.side(touch, at), other, advice.DELIVERY, text))
            return
        if agent < self.warps:
            other = self.other(touch, at, op, "wrote", agent, lane)
        elif agent >= self.clocks.work:
            other = Side(op.loc, op.name, f"work of warp {agent - self.clocks.work}", "wrote")
        else:
            other = Side(op.loc, op.name, f"a copy counted by {self.labels[agent - 2 * self.warps]}", "wrote")
        alone = agent < self.warps and self.is_heard(touch, at, int(self.writer[cell]), int(self.epoch[cell]))
        self.tell_unordered(
            touch, at, other, advice.LANES if alone else advice.PROXY if unfenced else None, touch.atomic
        )

    def tell_warps(self, others: _Times, touch: Touch, late: Bools, unfenced: bool = False) -> None:
        """The same of what warps have done, `late` [entries, cells, warps]."""
        if late.any():
            for at in first_of_each(late, others.op[touch.cells]):
                self.tell_warp(others, touch, at, unfenced)

    def tell_warp(self, others: _Times, touch: Touch, at: NDArray[Any], unfenced: bool) -> None:
        warp, cell = int(at[2]), int(touch.cells[tuple(at[:2])])
        op = self.ops[int(others.op[cell, warp])]
        if self.reports.knows("T1", touch.access.label, touch.access.op.loc, op.loc):
            return
        if others.when[cell, warp] == UNENDED:
            other = Side(op.loc, op.name, f"{op.name} of warp {warp}", "may still read", warps=(warp,))
            text = f"which {other.who} at {op.loc} {other.does}"
            self.reports.tell(advice.race(*self.side(touch, at), other, advice.READING, text))
            return
        if others in (self.fetchers, self.workers):
            other = Side(op.loc, op.name, f"work of warp {warp}", others.did, warps=(warp,))
        else:
            other = self.other(touch, at, op, others.did, warp, int(others.lane[cell, warp]))
        one_atomic = touch.atomic or others in (self.updates, self.atomic_readers)
        id_ = int(self.clocks.ids(touch.rows[at[:1]], warp)[0])
        alone = others is not self.workers and self.is_heard(touch, at, id_, int(others.when[cell, warp]))
        edge = advice.LANES if alone else advice.PROXY if unfenced else None
        self.tell_unordered(touch, at, other, edge, one_atomic)

    def tell_unordered(
        self, touch: Touch, at: NDArray[Any], other: Side, edge: advice.Edge | None, one_atomic: bool
    ) -> None:
        """edge: if it is known. one_atomic: one of the two is atomic, the other is not."""
        side, memory = self.side(touch, at)
        same_warp = other.thread is not None and (other.block, other.warps) == (side.block, side.warps)
        edge = edge or advice.unordered(other.thread is not None, same_warp, one_atomic)
        self.reports.tell(advice.race(side, memory, other, edge))

    def is_heard(self, touch: Touch, at: NDArray[Any], id_: int, when: int) -> bool:
        """Does `touch` know of a later arrival by another lane of the warp `id_`, and not of the warp's?"""
        known = touch.known.part(np.arange(len(touch.rows)) == at[0])
        ids = np.array([[id_]])
        return bool(self.clocks.by_lanes.of) and int(known.of(ids)[0, 0]) < when <= int(
            known.of(ids + self.clocks.alone)[0, 0]
        )

    def other(self, touch: Touch, at: NDArray[Any], op: Op, did: str, warp: int, lane: int) -> Side:
        """Who did the earlier access, of the block whose memory it is. lane: maybe with `MANY`."""
        thread = warp * WARP + lane % WARP
        same = (warp, lane % WARP) == self.thread(touch, at)
        who = "another thread" if same else self.cells.thread(warp, lane)
        return self.cells.launch.side(op, did, int(touch.rows[at[0]]) + self.first, thread=thread, who=who)

    def thread(self, touch: Touch, at: NDArray[Any]) -> tuple[int, int]:
        """Warp and lane of what fails; lane -1: not of one thread."""
        lane = -1 if touch.lanes is None else int(touch.lanes[tuple(at[:2])])
        return int(touch.warps[at[0]]), lane

    def side(self, touch: Touch, at: NDArray[Any]) -> tuple[Side, Accessed]:
        """Of what fails."""
        access, (warp, lane) = touch.access, self.thread(touch, at)
        thread = -1 if lane < 0 else warp * WARP + lane % WARP
        block = int(touch.owners[at[0]]) + self.first
        side = self.cells.launch.side(access.op, DOES[access.kind], block, warp=warp, thread=thread)
        return side, self.cells.memory(int(touch.cells[tuple(at[:2])]), access)
