"""mbarriers, named barriers, clusters, proxy fences and what else orders the warps of roles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.conditions import Condition, Rows, condition
from tiledsl.backends.emulator.events import fences
from tiledsl.backends.emulator.hooks import Sync
from tiledsl.backends.emulator.memory import access_index, name_threads
from tiledsl.backends.emulator.rules.gpu import require_whole_warps
from tiledsl.backends.emulator.rules.memory import span_of
from tiledsl.backends.emulator.rules.places import Place
from tiledsl.backends.emulator.rules.registry import rule
from tiledsl.backends.emulator.spans import SharedTile, Span
from tiledsl.errors import EmulatorError, HazardError
from tiledsl.ir.core import Op
from tiledsl.ir.ops import barriers
from tiledsl.ir.types import SharedType

__all__ = ["columns_of", "commit_arrives", "mbarrier_place"]

Ints = NDArray[np.int64]


# -- mbarriers -------------------------------------------------------------------------------------


def mbarrier_place(c: Cohort, op: Op, position: int, values: Sequence[Any]) -> tuple[Span, Any]:
    """Where the mbarrier is that the op's operands from `position` on name: a tile and its indices, or a pointer.

    `values` begin with theirs. Gives the tile's span, and the address of each lane in its block's shared memory.
    """
    type_ = op.operands[position].type
    if not isinstance(type_, SharedType):
        return span_of(c, op, values[0], position), np.asarray(values[0], np.int64)
    tile: SharedTile = values[0]
    place = Place(c, op, tile, values[1 : 1 + type_.rank], type_, 1)
    place.require_inside(place.whole)
    return place.span, np.asarray(place.address, np.int64)


def _lanes(c: Cohort, op: Op, span: Span, address: Ints) -> tuple[Ints, Ints, Ints]:
    """Row, place and warp of each active lane."""
    access_index(c, op, span, address, "mbarrier")
    lanes = c.active()
    blocks, threads = c.lanes_of(lanes)
    return blocks - c.chunk.first, c.spread(address)[lanes], threads // WARP


def columns_of(c: Cohort, op: Op, span: Span, rows: Ints, at: Ints) -> Ints:
    """The mbarriers at these places. Raises HazardError where none has been initialised."""
    mbarriers = c.chunk.mbarriers
    columns = mbarriers.columns(at)
    if not (live := mbarriers.live(rows, columns)).all():
        where = int(np.argmin(live))
        block = c.chunk.run.launch.block_index(int(rows[where]) + c.chunk.first)
        raise HazardError(
            f"{op.name} at byte {at[where] - span.base} of {span.label}, where block {block} has no mbarrier",
            op.loc,
            "initialise it before, and let all who use it wait for that with a barrier()",
        )
    return columns


@rule(barriers.Init)
def init(c: Cohort, op: barriers.Init, *values: Any) -> None:
    span, address = mbarrier_place(c, op, 0, values)
    rows, at, _ = _lanes(c, op, span, address)
    mbarriers = c.chunk.mbarriers
    twice = mbarriers.live(rows, mbarriers.columns(at))
    pairs = np.unique(np.stack([rows, at]), axis=1)
    if twice.any() or pairs.shape[1] < len(rows):
        raise HazardError(
            f"an mbarrier is initialised twice; {name_threads(c, c.active())}",
            op.loc,
            "let one thread initialise it, once",
        )
    mbarriers.init(rows, at, span.label, span.base, op.count)
    if c.chunk.run.hooks:
        blocks, threads = c.lanes_of(c.active())
        for hook in c.chunk.run.hooks:
            hook.on_init(op, span.label, span.base, blocks, threads, at)


@rule(barriers.Arrive)
def arrive(c: Cohort, op: barriers.Arrive, *values: Any) -> None:
    span, address = mbarrier_place(c, op, 0, values)
    rows, at, warps = _lanes(c, op, span, address)
    owners = rows
    if op.cluster:
        rows = _remote(c, op, rows, c.spread(values[-1])[c.active()])
    columns = columns_of(c, op, span, rows, at)
    _arrive(c, op, owners, warps, rows, columns)


def _remote(c: Cohort, op: Op, rows: Ints, ranks: Ints) -> Ints:
    """The rows of the blocks of these ranks in the clusters of `rows`."""
    clusters = c.chunk.clusters
    wrong = (ranks < 0) | (ranks >= clusters.size)
    if wrong.any():
        rank = int(ranks[np.argmax(wrong)])
        raise EmulatorError(f"rank {rank} in a cluster of {clusters.size} blocks", op.loc, "count ranks from 0")
    return clusters.members[rows, ranks]


def _arrive(c: Cohort, op: Op, owners: Ints, warps: Ints, rows: Ints, columns: Ints) -> None:
    c.chunk.require_running(op, owners, rows)
    c.chunk.mbarriers.arrive(op, owners, warps, rows, columns)


def commit_arrives(c: Cohort, op: Op, *values: Any) -> None:
    """The rule of an op that arrives when the asynchronous work has ended that its threads have begun. `values`: the
    mbarrier's place. Work is done when it is issued here: what comes before its end is for the hooks to say."""
    span, address = mbarrier_place(c, op, 0, values)
    rows, at, warps = _lanes(c, op, span, address)
    lanes = c.lanes_of(c.active())[1] % WARP
    c.chunk.mbarriers.arrive(op, rows, warps, rows, columns_of(c, op, span, rows, at), lanes)


@rule(barriers.ExpectTx)
def expect(c: Cohort, op: barriers.ExpectTx, *values: Any) -> None:
    span, address = mbarrier_place(c, op, 0, values)
    rows, at, warps = _lanes(c, op, span, address)
    columns = columns_of(c, op, span, rows, at)
    c.chunk.mbarriers.expect(op, rows, columns, op.bytes)
    _arrive(c, op, rows, warps, rows, columns)


@rule(barriers.Wait)
def phase_now(c: Cohort, op: barriers.Wait, *values: Any) -> Any:
    """The phase that each mbarrier is in when a warp comes: [groups, warps or 1, lanes or 1]."""
    return _phases(c, _PhaseEnded.where(c, op, values)[0])


def _phases(c: Cohort, columns: Ints) -> Ints:
    return c.chunk.mbarriers.phase[c.blocks[:, None, None] - c.chunk.first, columns]


def _acquired(c: Cohort, sync: Sync) -> None:
    for hook in c.chunk.run.hooks:
        hook.on_acquire(sync)


@condition(barriers.Wait)
class _PhaseEnded(Condition):
    """The phase that was found had the other parity, so that the one before is meant; or it has ended since."""

    after = True

    def ready(self, c: Cohort, op: Op, *values: Any) -> Rows:
        found, *operands = values
        columns, parity = self.where(c, op, operands)
        ended = ((found & 1) != parity) | (_phases(c, columns) > found)
        if c.mask is not None:
            ended = ended | ~c.mask
        return ended.all(axis=2)

    @staticmethod
    def where(c: Cohort, op: Op, values: Sequence[Any]) -> tuple[Ints, Any]:
        """Columns and parities, [groups, warps, lanes] any of which may be 1."""
        span, address = mbarrier_place(c, op, 0, values[:-1])
        address = address.reshape((1,) * (3 - address.ndim) + address.shape)
        if c.mask is not None and address.shape[2] > 1:
            # Lanes that do not take part may have any address: they follow one that does.
            some = np.argmax(c.active(), axis=2)[:, :, None]
            address = np.where(c.mask, address, np.take_along_axis(c.spread(address), some, axis=2))
        access_index(c, op, span, address, "mbarrier")
        rows = np.broadcast_to(
            c.blocks[:, None, None] - c.chunk.first, np.broadcast_shapes(address.shape, (c.shape[0], 1, 1))
        )
        full = np.broadcast_to(address, rows.shape)
        return columns_of(c, op, span, rows.ravel(), full.ravel()).reshape(rows.shape), np.asarray(values[-1])

    def passed(self, c: Cohort, op: Op, *values: Any) -> None:
        found, *operands = values
        columns, parity = self.where(c, op, operands)
        missed = c.active() & (((found & 1) == parity) & (_phases(c, columns) > found + 1))
        if missed.any():
            where, phase = int(c.spread(columns)[missed][0]), int(c.spread(found)[missed][0])
            raise HazardError(
                f"{op.name} waits for phase {phase} of {c.chunk.mbarriers.labels[where]}, and the next one has ended, "
                f"too, before it could see that; {name_threads(c, missed)}",
                op.loc,
                "let no phase end before all have waited for the one before it",
            )
        if c.chunk.run.hooks:
            blocks, threads = c.lanes_of(lanes := c.active())
            places = c.chunk.mbarriers.places(c.spread(columns)[lanes])
            _acquired(c, Sync(op, "mbarrier", blocks, threads // WARP, blocks, places))

    def lanes(self, c: Cohort, op: Op, values: Sequence[Any]) -> tuple[Ints, Ints, Ints]:
        """Row, column and parity for each active lane."""
        columns, parity = self.where(c, op, values)
        lanes = c.active()
        rows = c.lanes_of(lanes)[0] - c.chunk.first
        return rows, c.spread(columns)[lanes], c.spread(parity)[lanes]

    def missing(self, c: Cohort, op: Op, *values: Any) -> str:
        rows, columns, parities = self.lanes(c, op, values[1:])
        late = (c.chunk.mbarriers.phase[rows, columns] & 1) == parities
        at = int(np.argmax(late))
        return c.chunk.mbarriers.describe(int(rows[at]), int(columns[at]), int(parities[at]))

    def wanted(self, c: Cohort, op: Op, *values: Any) -> None:
        rows, columns, _ = self.lanes(c, op, values[1:])
        c.chunk.bulk.deliver(rows, columns)


# -- barriers of some warps ------------------------------------------------------------------------


def _numbers(c: Cohort, op: barriers.NamedBarrier, number: tuple[Any, ...]) -> Ints:
    """Of the barrier of each warp: [groups, warps]."""
    added = np.asarray(number[0] if number else 0, np.int64)
    return np.broadcast_to(added[:, :, 0] if added.ndim else added, c.shape[:2]) + op.number


@rule(barriers.NamedBarrier)
def arrive_at_named(c: Cohort, op: barriers.NamedBarrier, *number: Any) -> Any:
    """Gives the round that each warp arrives in."""
    require_whole_warps(c, op)
    groups, warps, _ = c.shape
    numbers = _numbers(c, op, number).ravel()
    if (wrong := (numbers < 1) | (numbers > 15)).any():
        raise EmulatorError(f"barrier {numbers[np.argmax(wrong)]}: named barriers are 1 to 15", op.loc, "use another")
    blocks, each, present = c.active_warps()
    round_ = np.zeros(groups * warps, np.int64)
    arrive = c.chunk.named_barriers.arrive
    round_[present] = arrive(op, blocks - c.chunk.first, each, numbers[present], op.threads, op.wait)
    return round_.reshape(groups, warps, 1)


@condition(barriers.NamedBarrier)
class _RoundEnded(Condition):
    after = True

    def where(self, c: Cohort, op: barriers.NamedBarrier, number: tuple[Any, ...]) -> tuple[Ints, Ints]:
        return c.blocks[:, None] - c.chunk.first, _numbers(c, op, number)

    def ready(self, c: Cohort, op: Op, *values: Any) -> Rows:
        assert isinstance(op, barriers.NamedBarrier)
        if not op.wait:
            return np.ones(c.shape[:2], np.bool_)
        round_, *number = values
        rows, numbers = self.where(c, op, tuple(number))
        return c.chunk.named_barriers.rounds[rows, numbers] > np.asarray(round_)[:, :, 0]

    def passed(self, c: Cohort, op: Op, *values: Any) -> None:
        assert isinstance(op, barriers.NamedBarrier)
        if c.chunk.run.hooks and op.wait:
            blocks, warps, which = c.active_warps()
            numbers = _numbers(c, op, values[1:]).ravel()[which]
            _acquired(c, Sync(op, "named", blocks, warps, blocks, numbers))

    def missing(self, c: Cohort, op: Op, *values: Any) -> str:
        assert isinstance(op, barriers.NamedBarrier)
        rows, numbers = self.where(c, op, values[1:])
        row, number = int(rows[0, 0]), int(numbers[0, 0])
        arrived = int(c.chunk.named_barriers.arrived[row, number])
        return f"barrier {number}, at which {arrived} of {op.threads} threads have arrived"


# -- clusters --------------------------------------------------------------------------------------


@rule(barriers.ClusterRank)
def cluster_rank(c: Cohort, op: barriers.ClusterRank) -> Any:
    return c.chunk.clusters.rank[c.blocks - c.chunk.first].astype(np.int32)[:, None, None]


@rule(barriers.ClusterArrive)
def arrive_at_cluster(c: Cohort, op: barriers.ClusterArrive) -> None:
    require_whole_warps(c, op)
    blocks, warps, _ = c.active_warps()
    c.chunk.cluster_barriers.arrive(op, blocks - c.chunk.first, warps)


@condition(barriers.ClusterWait)
class _ClusterArrived(Condition):
    def ready(self, c: Cohort, op: Op, *values: Any) -> Rows:
        all_, rows = c.chunk.cluster_barriers, c.blocks[:, None] - c.chunk.first
        return all_.rounds[all_.clusters[rows]] > all_.waits[rows, c.warps]

    def passed(self, c: Cohort, op: Op, *values: Any) -> None:
        require_whole_warps(c, op)
        rows = c.blocks[:, None] - c.chunk.first
        c.chunk.cluster_barriers.waits[rows, np.broadcast_to(c.warps, c.shape[:2])] += 1
        if c.chunk.run.hooks:
            blocks, warps, _ = c.active_warps()
            _acquired(c, Sync(op, "cluster", blocks, warps, blocks, np.zeros_like(blocks)))

    def missing(self, c: Cohort, op: Op, *values: Any) -> str:
        all_ = c.chunk.cluster_barriers
        cluster = int(all_.clusters[int(c.blocks[0]) - c.chunk.first])
        return f"its cluster, of which {all_.arrived[cluster]} of {all_.alive[cluster]} warps have arrived"


# -- one warp --------------------------------------------------------------------------------------


@rule(barriers.FenceInit)
def fence_init(c: Cohort, op: barriers.FenceInit) -> None:
    """Memory is one here; who checks the order wants to know."""
    fences(c, op, "init")


@rule(barriers.FenceProxy)
def fence_proxy(c: Cohort, op: barriers.FenceProxy) -> None:
    fences(c, op, "proxy")


@rule(barriers.Elect)
def elect(c: Cohort, op: barriers.Elect) -> Any:
    """The first lane. (PTX ISA: elect.sync leaves open which one.)"""
    require_whole_warps(c, op)
    return (np.arange(WARP) == 0)[None, None]


@rule(barriers.GridDependency)
def grid_dependency(c: Cohort, op: barriers.GridDependency) -> None:
    """Launches follow each other here."""


@rule(barriers.SetMaxNReg)
def set_registers(c: Cohort, op: barriers.SetMaxNReg) -> None:
    """Only checked. (PTX ISA: setmaxnreg: all warps of a warpgroup execute the same one.)"""
    require_whole_warps(c, op)
    kernel = c.chunk.run.kernel
    given = barriers.registers_at_launch(kernel.thread_count, kernel.blocks_per_sm)
    if op.increase != (op.registers >= given) and op.registers != given:
        does = "take more" if op.increase else "give some back"
        raise EmulatorError(
            f"setmaxnreg lets warps {does}, to {op.registers} registers a thread, but the launch gives them {given}",
            op.loc,
            f"{'raise' if op.increase else 'lower'} it, or turn the direction round",
        )
