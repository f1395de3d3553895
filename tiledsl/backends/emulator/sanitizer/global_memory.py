"""The history of global memory: every access must happen after those that it conflicts with, of whichever block of
whichever launch of the run.

Inside a cluster the clocks of its warps say what happens before what; between clusters, what releases have published
and acquires have learnt (`atomics`). Two atomic operations conflict only where the scope of one leaves out the thread
of the other. A load by TMA has ended for those who have waited for the mbarrier that counts its bytes, a store by TMA
and the read of a `cp.async` for the thread that has waited for their group, and for whom it lets know. What threads
have written in the same run TMA may touch if a proxy fence for global memory, of any thread, comes between the two.
(PTX ISA: memory consistency model; async proxy; cp.async.bulk completion mechanisms.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.hooks import Access, Bools, Group, Ints, LaunchInfo
from tiledsl.backends.emulator.positions import Clusters
from tiledsl.backends.emulator.sanitizer import advice
from tiledsl.backends.emulator.sanitizer.atomics import WIDTH, Published
from tiledsl.backends.emulator.sanitizer.clocks import Clocks
from tiledsl.backends.emulator.sanitizer.global_fences import Fence, Fenced, Threads
from tiledsl.backends.emulator.sanitizer.global_shadow import (
    BY_TMA,
    MANY,
    MOST_LAYERS,
    PLAIN,
    STRIDE,
    Accesses,
    Entries,
    Region,
    Use,
    lay_out,
    no_entries,
)
from tiledsl.backends.emulator.sanitizer.memory import UNENDED
from tiledsl.backends.emulator.sanitizer.reports import Reports, first_of_each
from tiledsl.backends.emulator.sanitizer.shadow import DOES, Ops
from tiledsl.errors import Side
from tiledsl.ir.core import Op
from tiledsl.ir.ops import tma


@dataclass(frozen=True, slots=True)
class _Started:
    """A chunk that has started. `agents`, `warps`: of each block."""

    launch: LaunchInfo
    clusters: Clusters
    first: int
    agents: int
    warps: int

    def block(self, cluster: int, rank: int) -> int:
        """The linear index of a block."""
        at = (self.clusters.in_run == cluster) & (self.clusters.rank == rank)
        return self.first + int(np.flatnonzero(at)[0])


class GlobalShadow:
    """Of one run. `writes`: the last plain write of each cell; `reads`, `atomic_reads`, `updates` (atomic writes):
    those since. `chunks`: those that have started; `copying`: where a `cp.async` is open; `fences`: proxy fences for
    global memory. `starts`: the number of the first cluster of each launch; `ranks`: on which GPU it is."""

    def __init__(self, launches: Sequence[tuple[LaunchInfo, Mapping[str, Use]]], reports: Reports) -> None:
        self.published, self.reports = Published(), reports
        self.regions, cells, self.narrow = lay_out(launches)
        self.writes, self.written = no_entries(cells), False
        self.reads, self.atomic_reads = Accesses(cells, "read"), Accesses(cells, "atomically read")
        self.updates = Accesses(cells, "atomically wrote")
        self.ops = Ops()
        self.chunks: list[_Started] = []
        self.copying: dict[GlobalHistory, None] = {}
        self.fences: list[Fence] = []
        self.starts = np.array([launch.first for launch, _ in launches])
        self.ranks = np.array([launch.rank or 0 for launch, _ in launches])

    def of_cluster(self, cluster: int) -> _Started:
        """The chunk that a cluster, which has started, is of."""
        return next(chunk for chunk in self.chunks if (chunk.clusters.in_run == cluster).any())

    def rank_of(self, clusters: Ints) -> Ints:
        """On which GPU these clusters run."""
        return self.ranks[np.searchsorted(self.starts, clusters, "right") - 1]


@dataclass(frozen=True, slots=True)
class _Touch(Threads):
    """An access by these threads; `cells` [entries, cells]."""

    access: Access
    region: Region
    cells: Ints
    how: int

    def part(self, which: Any) -> _Touch:
        arrays = (self.rows, self.threads, self.warps, self.clusters)
        rows, threads, warps, clusters = (array[which] for array in arrays)
        known, synced, cells = self.known.part(which), self.synced[which], self.cells[which]
        return _Touch(rows, threads, warps, clusters, known, synced, self.access, self.region, cells, self.how)


@dataclass(frozen=True, slots=True)
class _Open:
    """An asynchronous access that goes on until its group was waited for; `groups`: of each entry's thread."""

    touch: _Touch
    groups: Ints


class GlobalHistory:
    """What the blocks of one chunk do. `open`: what they have not waited for; `committed` [blocks, threads]: how many
    groups each thread has. `fenced`: what threads knew at their last proxy fence for global memory; None: there was
    none."""

    def __init__(
        self, shadow: GlobalShadow, launch: LaunchInfo, clocks: Clocks, clusters: Clusters, first: int, blocks: int
    ) -> None:
        self.shadow, self.launch, self.clocks, self.clusters, self.first = shadow, launch, clocks, clusters, first
        self.fenced: Fenced | None = None
        self.groups: tuple[Group, ...] = ("bulk", "cp_async")
        self.open: dict[Group, list[_Open]] = {group: [] for group in self.groups}
        shape = blocks, clocks.warps * WARP
        self.committed = {group: np.zeros(shape, np.int64) for group in self.groups}
        shadow.chunks.append(_Started(launch, clusters, first, clocks.agents, clocks.warps))

    # -- accesses ------------------------------------------------------------------------------

    def access(self, access: Access, columns: Ints | None = None) -> None:
        """columns: of a load by TMA, the mbarrier's."""
        region = self.shadow.regions.get((self.launch.first, access.label))
        if region is None:
            return
        touch = self.touch(access, region)
        if touch.how != BY_TMA:
            self.clocks.accessed(touch.rows, touch.threads // WARP, touch.lanes)
        if access.kind == "fetch":
            assert columns is not None
            self.load(touch, columns)
        elif access.kind == "async":
            self.store(touch)
        elif access.until == "cp_async":
            self.after_writes(touch)
            self.begin(touch, "cp_async")
        elif access.order is not None:
            self.atomic(touch)
        elif access.kind == "read":
            self.after_writes(touch)
            self.remember(self.shadow.reads, touch)
        else:
            self.after_all(touch)
            self.write(touch, self.now(touch))

    def touch(self, access: Access, region: Region) -> _Touch:
        blocks = access.blocks if access.owners is None else access.owners
        rows, warps = blocks - self.first, access.threads // WARP
        clocks, ids = self.clocks, self.clocks.ids(blocks - self.first, warps)
        how = BY_TMA if access.owners is not None else PLAIN
        if access.order is not None and access.reach is not None:
            how = WIDTH[access.reach] + 1
        return _Touch(
            rows, access.threads, clocks.in_run[rows] * STRIDE + ids, clocks.in_run[rows],
            clocks.view(rows, warps, access.threads % WARP), clocks.synced[rows, warps], access, region,
            region.cells(access.addresses, access.width), how,
        )  # fmt: skip

    def now(self, touch: _Touch) -> Ints:
        return self.clocks.now(touch.rows, touch.threads // WARP)

    def atomic(self, touch: _Touch) -> None:
        if self.shadow.narrow and len(rows := np.unique(touch.rows)) > 1:
            for row in rows.tolist():  # one after the other, so that each is compared with those before
                self.atomic(touch.part(touch.rows == row))
            return
        shadow, kind = self.shadow, touch.access.kind
        self.after(shadow.writes, touch, "wrote")
        if shadow.narrow:
            self.after_each(shadow.updates, touch)
        if kind == "read":
            self.remember(shadow.atomic_reads, touch)
            return
        self.after_each(shadow.reads, touch)
        self.after_open(touch)
        if shadow.narrow:
            self.after_each(shadow.atomic_reads, touch)
        self.remember(shadow.updates, touch)

    # -- by TMA and cp.async -------------------------------------------------------------------

    def load(self, touch: _Touch, columns: Ints) -> None:
        """It ends with the phase that its mbarrier is in."""
        self.after_writes(touch)
        homes, clocks = touch.access.blocks - self.first, self.clocks
        agents = clocks.in_run[homes] * STRIDE + clocks.ids(homes, 2 * clocks.warps + columns)
        self.put_reads(touch, agents, clocks.phases(homes, columns).astype(np.int64) + 1)

    def store(self, touch: _Touch) -> None:
        self.after_all(touch)
        self.write(touch, np.full(len(touch.rows), UNENDED))
        self.begin(touch, "bulk")

    def begin(self, touch: _Touch, group: Group) -> None:
        self.open[group].append(_Open(touch, self.committed[group][touch.rows, touch.threads]))
        if group == "cp_async":
            self.shadow.copying[self] = None

    def commit(self, group: Group, rows: Ints, threads: Ints) -> None:
        if group in self.committed:
            self.committed[group][rows, threads] += 1

    def wait(self, op: Op, group: Group, rows: Ints, threads: Ints, pending: int) -> None:
        """All groups of these threads but the last `pending` have ended, if they did not wait for reads alone."""
        if not self.open.get(group) or (isinstance(op, tma.BulkWait) and op.read):
            return
        done = np.full(self.committed[group].shape, -1)
        done[rows, threads] = self.committed[group][rows, threads] - pending
        left: list[_Open] = []
        for begun in self.open[group]:
            over = begun.groups < done[begun.touch.rows, begun.touch.threads]
            if over.any():
                self.end(begun.touch.part(over), group)
            if not over.all():
                left.append(_Open(begun.touch.part(~over), begun.groups[~over]))
        self.open[group] = left
        if group == "cp_async" and not left:
            self.shadow.copying.pop(self, None)

    def end(self, touch: _Touch, group: Group) -> None:
        if group == "cp_async":
            self.remember(self.shadow.reads, touch)
            return
        writes = self.shadow.writes
        own = (writes.who.take(touch.cells) == touch.warps[:, None]) & (writes.when.take(touch.cells) == UNENDED)
        when = np.broadcast_to(self.now(touch)[:, None], own.shape)
        writes.when[touch.cells[own]] = when[own]

    def fence(self, rows: Ints, threads: Ints) -> None:
        """These threads make a proxy fence for global memory."""
        made = np.zeros((*self.clocks.synced.shape, WARP), np.bool_)
        made[rows, threads // WARP, threads % WARP] = True
        for row, warp in np.argwhere(made.any(axis=2)).tolist():
            self.shadow.fences.append(Fence(self.clocks, self.before, row, warp, made[row, warp]))
        self.fenced = self.fenced or Fenced(self.clocks)
        self.fenced.make(rows, threads)

    # -- conflicts -----------------------------------------------------------------------------

    def after_all(self, touch: _Touch) -> None:
        """A plain write, or one by TMA."""
        self.after_writes(touch)
        self.after_each(self.shadow.reads, touch)
        self.after_each(self.shadow.atomic_reads, touch)
        self.after_open(touch)

    def after_writes(self, touch: _Touch) -> None:
        self.after(self.shadow.writes, touch, "wrote")
        self.after_each(self.shadow.updates, touch)

    def after_each(self, accesses: Accesses, touch: _Touch) -> None:
        for layer in accesses.layers:
            self.after(layer, touch, accesses.did)
        more = accesses.more_at(touch.cells.reshape(-1)) if accesses.crowded is not None else None
        if more is None:
            return
        which, earlier = more
        flat = touch.part(which // touch.cells.shape[1])
        self.require_ordered(earlier.take((slice(None), None)), _at(flat, touch.cells.reshape(-1)[which]), accesses.did)

    def after(self, earlier: Entries, touch: _Touch, did: str) -> None:
        """`touch` must happen after what `earlier` has at its cells."""
        if not earlier.when.take(touch.cells).any():
            return
        self.require_ordered(earlier.take(touch.cells), touch, did)

    def require_ordered(self, earlier: Entries, touch: _Touch, did: str) -> None:
        late = (earlier.when > 0) & ~self.before(earlier, touch)
        if touch.how not in (PLAIN, BY_TMA):
            late &= ~self.include_each_other(earlier, touch)
        unfenced = np.zeros_like(late)
        if touch.how == BY_TMA and "wrote" in did:
            unfenced = (earlier.when > 0) & (earlier.how != BY_TMA)
            if self.shadow.fences and unfenced.any():
                unfenced = self.without_fence(unfenced & ~late, earlier, touch)
        for wrong, fence in ((late, False), (unfenced & ~late, True)):
            if wrong.any():
                for entry, cell in first_of_each(wrong, np.broadcast_to(earlier.op, wrong.shape)).tolist():
                    self.tell(touch, entry, cell, earlier.take((entry, cell)), did, fence)

    def without_fence(self, asked: Bools, earlier: Entries, touch: _Touch) -> Bools:
        """Which of the accesses `asked` for happen before no proxy fence that happens before `touch`."""
        left = asked if self.fenced is None else asked & ~self.before(earlier, self.fenced.at(touch))
        for fence in reversed(self.shadow.fences):
            entries = np.flatnonzero(left.any(axis=1))
            if not len(entries):
                break
            part, among = touch.part(entries), earlier.take(entries)
            left[entries] &= ~(self.before(fence.entries(len(entries)), part) & fence.follows(among))
        return left

    def before(self, earlier: Entries, touch: Threads) -> Bools:
        """Which of these happen before what `touch` does."""
        clusters, ids = np.divmod(earlier.who, STRIDE)
        inside = clusters == touch.clusters[:, None]
        before = inside & (touch.known.of(np.where(inside, self.across(ids, touch), 0)) >= earlier.when)
        if self.clocks.by_lanes.of:
            ranks, agents = np.divmod(ids, self.clocks.agents)
            late = inside & ~before & (agents < self.clocks.warps)
            ranks, agents = np.where(late, ranks, 0), np.where(late, agents, 0)
            known = touch.known.of(ranks * self.clocks.agents + self.clocks.alone + agents)
            rows = self.clusters.members[touch.rows[:, None], ranks]
            unheard = self.clocks.by_lanes.missing(late, rows, agents, earlier.lane, earlier.when, known)
            before |= late & ~unheard
        own = earlier.who == touch.warps[:, None]
        before &= ~(own & (earlier.lane != touch.lanes[:, None]) & (earlier.when >= touch.synced[:, None]))
        asked = ~inside & (earlier.when > 0) & (earlier.when != UNENDED)
        if asked.any():
            published = self.shadow.published
            before |= published.comes_before(asked, clusters, ids, earlier.when, touch.known, touch.clusters)
        return before

    def across(self, ids: Ints, touch: Threads) -> Ints:
        """For warps of other blocks of the cluster the agents that say what is known of them in global memory."""
        if not self.clocks.narrow:
            return ids
        ranks, agents = np.divmod(ids, self.clocks.agents)
        others = (agents < self.clocks.warps) & (ranks != self.clocks.ranks[touch.rows][:, None])
        return np.where(others, ids + self.clocks.far, ids)

    def include_each_other(self, earlier: Entries, touch: _Touch) -> Bools:
        """Are both atomic, with scopes that include the other's thread?"""
        clusters, ids = np.divmod(earlier.who, STRIDE)
        near = (clusters == touch.clusters[:, None]).astype(np.int8)  # the width of what both are in, from the end
        same_block = near & (ids // self.clocks.agents == self.clocks.ranks[touch.rows][:, None])
        apart = 2 - near - same_block
        if len(self.shadow.ranks) > 1:
            apart += self.shadow.rank_of(clusters) != (self.launch.rank or 0)
        return (earlier.how != BY_TMA) & (earlier.how > apart) & (touch.how > apart)

    def after_open(self, touch: _Touch) -> None:
        """A write must not meet a `cp.async` that may still read."""
        for begun in (begun for chunk in self.shadow.copying for begun in chunk.open["cp_async"]):
            hit = np.isin(touch.cells, begun.touch.cells)
            if hit.any():
                entry, cell = np.argwhere(hit)[0].tolist()
                other, where = begun.touch, np.argwhere(begun.touch.cells == touch.cells[entry, cell])[0, 0]
                number = self.shadow.ops.number(other.access.op)
                values = (other.warps[where], UNENDED, other.lanes[where], PLAIN, number)
                self.tell(touch, entry, cell, Entries(*map(np.array, values)), "read", False)

    # -- what is remembered --------------------------------------------------------------------

    def write(self, touch: _Touch, when: Ints) -> None:
        """Reads and atomic updates come before it, and so before all that comes after it."""
        shadow, cells = self.shadow, touch.cells
        own, lanes = touch.warps[:, None], touch.lanes[:, None]
        number = np.array(shadow.ops.number(touch.access.op))
        shadow.writes.put(cells, Entries(own, when[:, None], lanes, np.array(touch.how), number))
        # Two lanes at one cell: the one that does not find itself there has lost.
        lost = (shadow.writes.lane.take(cells) != lanes) | (shadow.writes.who.take(cells) != own)
        if lost.any():
            entry, cell = np.argwhere(lost)[0].tolist()
            self.tell(touch, entry, cell, shadow.writes.take(cells[entry, cell]), "wrote", False)
        for accesses in (shadow.reads, shadow.atomic_reads, shadow.updates):
            accesses.forget(cells)

    def remember(self, accesses: Accesses, touch: _Touch) -> None:
        self.put_reads(touch, touch.warps, self.now(touch), accesses)

    def put_reads(self, touch: _Touch, who: Ints, when: Ints, accesses: Accesses | None = None) -> None:
        """Adds an access of each agent `who` at its count `when`, in the first layer that has room."""
        accesses = accesses or self.shadow.reads
        count, number = touch.cells.shape[1], self.shadow.ops.number(touch.access.op)
        entry = np.repeat(np.arange(len(who)), count)
        cells = touch.cells.reshape(-1)
        touch, how = _at(touch.part(entry), cells), np.full(len(entry), touch.how)
        new = Entries(who[entry], when[entry], touch.lanes, how, np.full(len(entry), number))
        for layer in range(MOST_LAYERS):
            rest = self.put(accesses.layer(layer), touch, new)
            if not len(rest):
                return
            touch, new = touch.part(rest), new.take(rest)
        accesses.add_more(touch.cells[:, 0], new)

    def put(self, layer: Entries, touch: _Touch, new: Entries) -> Ints:
        """Puts accesses where there is none, or one that happens before, or one of the same agent. Gives the others."""
        cells = touch.cells[:, 0]
        old = layer.take(cells)
        free, several = np.ones(len(cells), np.bool_), np.zeros(len(cells), np.bool_)
        if (old.when > 0).any():
            same = (old.who == new.who) & (old.when > 0)
            several = same & (old.when >= touch.synced) & (old.lane != new.lane)
            free = (old.when == 0) | same | self.before(old.take((slice(None), None)), touch)[:, 0]
            if not free.all():
                cells, several, new = cells[free], several[free], new.take(free)
        layer.put(cells, new)
        there = layer.who.take(cells) == new.who
        several |= there & (layer.lane.take(cells) != new.lane)
        layer.lane[cells[several & there]] |= MANY
        free[np.flatnonzero(free)[~there]] = False
        return np.flatnonzero(~free)

    # -- messages ------------------------------------------------------------------------------

    def tell(self, touch: _Touch, entry: int, cell: int, earlier: Entries, did: str, unfenced: bool) -> None:
        """earlier: one access. unfenced: a proxy fence is missing; else nothing orders the two."""
        access, launch, shadow = touch.access, self.launch, self.shadow
        if shadow.reports.knows("T1", access.label, access.op.loc, shadow.ops[int(earlier.op)].loc):
            return
        row, thread = int(touch.rows[entry]), int(touch.threads[entry])
        cluster, id_ = divmod(int(earlier.who), STRIDE)
        its_chunk, same_cluster = shadow.of_cluster(cluster), cluster == int(touch.clusters[entry])
        rank, agent = divmod(id_, its_chunk.agents)
        block, op, its_launch = its_chunk.block(cluster, rank), shadow.ops[int(earlier.op)], its_chunk.launch
        by_thread, open_ = agent < its_chunk.warps, int(earlier.when) == UNENDED
        same_block = same_cluster and block == row + self.first
        other = Side(op.loc, op.name, f"a copy to {its_launch.block_name(block)}", did, rank=its_launch.rank)
        if by_thread:
            its = agent * WARP + int(earlier.lane) % WARP
            same = same_block and its == thread and not open_
            other = its_launch.side(op, did, block, thread=its, who="another thread" if same else "")
        relation = advice.Relation(
            same_warp=by_thread and int(earlier.who) == int(touch.warps[entry]),
            same_block=same_block,
            same_cluster=same_cluster,
            same_launch=its_launch is launch,
            same_rank=its_launch.rank == launch.rank,
            both_write=did != "read" and did != "atomically read" and access.kind not in ("read", "fetch"),
            open=open_,
            by_tma=int(earlier.how) == BY_TMA,
            atomic=(access.order is not None, int(earlier.how) not in (PLAIN, BY_TMA)),
        )
        does = _BY_TMA.get(access.kind, DOES[access.kind]) if touch.how == BY_TMA else DOES[access.kind]
        if access.order is not None:
            does = {"read": "atomically reads", "write": "atomically writes"}.get(access.kind, does)
        side = launch.side(access.op, does, row + self.first, thread=thread)
        memory = touch.region.memory(int(touch.cells[entry, cell]), access.width)
        edge = advice.proxies(access.kind == "fetch") if unfenced else advice.of(relation)
        if self.clocks.narrow and relation.same_cluster and by_thread and not (unfenced or open_):
            known = touch.known.part(np.arange(len(touch.rows)) == entry).of(np.array([[id_]]))
            edge = advice.NARROW if known[0, 0] >= int(earlier.when) else edge
        if by_thread and edge.name == "release-acquire":
            fence = shadow.published.early_fence(cluster, id_, int(earlier.when), int(touch.clusters[entry]))
            edge = edge if fence is None else advice.fenced_early(fence.loc, relation.same_rank)
        shadow.reports.tell(advice.race(side, memory, other, edge))


_BY_TMA = {"fetch": "lets TMA read", "async": "lets TMA write"}


def _at(touch: _Touch, cells: Ints) -> _Touch:
    """The touch with one of its cells for each entry."""
    return replace(touch, cells=cells[:, None])
