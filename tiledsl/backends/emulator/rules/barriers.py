"""mbarriers, named barriers, clusters, proxy fences and what else orders the warps of roles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tiledsl.arch import NAMED_BARRIERS, WARP
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.hooks import Bools, FenceKind, Ints, Sync
from tiledsl.backends.emulator.memory import access_index, first_of, name_threads
from tiledsl.backends.emulator.rules.gpu import require_whole_warps, whole_warpgroups
from tiledsl.backends.emulator.rules.memory import located
from tiledsl.backends.emulator.rules.registry import Condition, condition, rule
from tiledsl.backends.emulator.spans import Span
from tiledsl.errors import EmulatorError, HazardError
from tiledsl.ir.core import Op
from tiledsl.ir.ops import barriers, gpu

# -- mbarriers -------------------------------------------------------------------------------------


def _mbarriers(c: Cohort, op: Op, values: Sequence[Any]) -> tuple[Span, Ints, Ints, Ints, Sequence[Any]]:
    """Where the mbarriers are that the op's first operands name: their tile, and row, place and thread of each active
    lane; and the values behind."""
    span, address, rest = located(c, op, 0, values)
    access_index(c, op, span, address, "mbarrier")
    blocks, threads = c.threads()
    return span, blocks - c.chunk.first, c.spread(address)[c.active()], threads, rest


def columns_of(c: Cohort, op: Op, span: Span, rows: Ints, at: Ints) -> Ints:
    """The mbarriers at these places. Raises HazardError where none has been initialised."""
    columns = c.chunk.mbarriers.columns(at)
    for wrong in np.flatnonzero(~c.chunk.mbarriers.live(rows, columns)):
        block = c.chunk.run.launch.block_name(int(rows[wrong]) + c.chunk.first)
        place = f"byte {at[wrong] - span.base} of {span.label}"
        message = f"{op.name} at {place}, where {block} has no mbarrier"
        raise HazardError(
            message, op.loc, "initialise it before, and let all who use it wait for that with a barrier()", code="T405"
        )
    return columns


@rule(barriers.Init)
def init(c: Cohort, op: barriers.Init, *values: Any) -> None:
    span, rows, at, _, _ = _mbarriers(c, op, values)
    mbarriers = c.chunk.mbarriers
    twice = mbarriers.live(rows, mbarriers.columns(at))
    if twice.any() or len(np.unique(rows * c.chunk.memory.pitch + at)) < len(rows):
        message = f"an mbarrier is initialised twice; {name_threads(c, c.active())}"
        raise HazardError(message, op.loc, "let one thread initialise it, once", code="T406")
    mbarriers.init(rows, at, span.label, span.base, op.count)
    c.chunk.hook.on_init(op, span.label, span.base, *c.threads(), at)


@rule(barriers.Arrive, barriers.ExpectTx)
def arrive(c: Cohort, op: Op, *values: Any, commits: bool = False) -> None:
    span, owners, at, threads, rank = _mbarriers(c, op, values)
    rows = remote(c, op, owners, c.spread(rank[0])[c.active()]) if rank else owners
    columns = columns_of(c, op, span, rows, at)
    c.chunk.require_running(op, owners, rows)
    if isinstance(op, barriers.ExpectTx):
        c.chunk.mbarriers.change_bytes(op, rows, columns, op.bytes)
    c.chunk.mbarriers.arrive(op, owners, threads, rows, columns, commits)


def remote(c: Cohort, op: Op, rows: Ints, ranks: Ints) -> Ints:
    """The rows of the blocks of these ranks in the clusters of `rows`."""
    clusters = c.chunk.clusters
    for rank in ranks[(ranks < 0) | (ranks >= clusters.size)]:
        message = f"rank {rank} in a cluster of {clusters.size} blocks"
        raise EmulatorError(message, op.loc, "count ranks from 0", code="T508")
    return clusters.members[rows, ranks]


def commit_arrives(c: Cohort, op: Op, *values: Any) -> None:
    """The rule of an op that arrives when the asynchronous work has ended that its threads have begun. `values`: the
    mbarrier's place. Work is done when it is issued here: what comes before its end is for the hooks to say."""
    arrive(c, op, *values, commits=True)


def _waited(c: Cohort, op: Op, values: Sequence[Any]) -> tuple[Ints, Ints, Ints]:
    """Row, column and parity for each active lane."""
    span, rows, at, _, (parity,) = _mbarriers(c, op, values)
    return rows, columns_of(c, op, span, rows, at), c.spread(parity)[c.active()]


def _awaited(c: Cohort, op: Op, values: Sequence[Any]) -> tuple[Ints, Ints, Ints]:
    """The same while they wait: `phase_now` has checked the access, and hooks have heard of it."""
    span, address, (parity,) = located(c, op, 0, values)
    lanes = c.active()
    rows, at = c.lanes_of(lanes)[0] - c.chunk.first, c.spread(address)[lanes]
    return rows, columns_of(c, op, span, rows, at), c.spread(parity)[lanes]


@rule(barriers.Wait)
def phase_now(c: Cohort, op: barriers.Wait, *values: Any) -> Any:
    """The phase that each lane's mbarrier is in when the lane comes: [groups, warps, lanes]."""
    rows, columns, parities = _waited(c, op, values)
    for parity in parities[parities > 1]:
        message = f"{op.called} for parity {parity}: expected 0 or 1"
        raise EmulatorError(message, op.loc, "take the number of the phase modulo 2", code="T508")
    found = np.zeros(c.shape, np.int64)
    found[c.active()] = c.chunk.mbarriers.phase[rows, columns]
    return found


@condition(barriers.Wait)
class _PhaseEnded(Condition):
    """The phase that was found had the other parity, so that the one before is meant; or it has ended since."""

    after = True

    def ready(self, c: Cohort, op: Op, *values: Any) -> Bools:
        rows, columns, parities = _awaited(c, op, values[1:])
        found = c.spread(values[0])[c.active()]
        ended = np.ones(c.shape, np.bool_)
        ended[c.active()] = ((found & 1) != parities) | (c.chunk.mbarriers.phase[rows, columns] > found)
        return np.asarray(ended.all(axis=2))

    def passed(self, c: Cohort, op: Op, *values: Any) -> None:
        rows, columns, parities = _waited(c, op, values[1:])
        mbarriers, lanes, found = c.chunk.mbarriers, c.active().copy(), c.spread(values[0])[c.active()]
        missed = ((found & 1) == parities) & (mbarriers.phase[rows, columns] > found + 1)
        if missed.any():
            lanes[lanes] = missed
            phase = f"phase {found[missed][0]} of {mbarriers.labels[columns[missed][0]]}"
            message = f"{op.name} waits for {phase}, and the next one has ended, too, before it could see that"
            fix = "let no phase end before all have waited for the one before it"
            side = first_of(c, op, lanes, "waits")
            raise HazardError(f"{message}; {name_threads(c, lanes)}", op.loc, fix, code="T409", sides=(side,))
        blocks, threads = c.threads()
        places, phases = mbarriers.places(columns), found - ((found & 1) != parities)
        warps, at = np.divmod(threads, WARP)
        c.chunk.hook.on_acquire(Sync(op, "mbarrier", blocks, warps, blocks, places, at, phases))

    def missing(self, c: Cohort, op: Op, *values: Any) -> str:
        rows, columns, parities = _awaited(c, op, values[1:])
        at = int(np.argmax((c.chunk.mbarriers.phase[rows, columns] & 1) == parities))
        return c.chunk.mbarriers.describe(int(rows[at]), int(columns[at]), int(parities[at]))

    def wanted(self, c: Cohort, op: Op, *values: Any) -> None:
        rows, columns, _ = _awaited(c, op, values[1:])
        c.chunk.copies.deliver_counted(rows, columns)


# -- barriers of some warps ------------------------------------------------------------------------


def _numbers(c: Cohort, op: barriers.NamedBarrier, number: Sequence[Any]) -> Ints:
    """Of the barrier of each warp: [groups, warps]."""
    added = np.asarray(number[0] if number else 0, np.int64)
    return np.broadcast_to(added[:, :, 0] if added.ndim else added, c.shape[:2]) + op.number


@rule(barriers.NamedBarrier)
def arrive_at_named(c: Cohort, op: barriers.NamedBarrier, *number: Any) -> Any:
    """Gives the round that each warp arrives in."""
    require_whole_warps(c, op)
    groups, warps, _ = c.shape
    numbers = _numbers(c, op, number).ravel()
    for number in numbers[(numbers < 1) | (numbers >= NAMED_BARRIERS)]:
        raise EmulatorError(
            f"barrier {number}: named barriers are 1 to {NAMED_BARRIERS - 1}", op.loc, "use another", code="T508"
        )
    blocks, each, present = c.active_warps()
    round_ = np.zeros(groups * warps, np.int64)
    arrive = c.chunk.named_barriers.arrive
    round_[present] = arrive(op, blocks - c.chunk.first, each, numbers[present], op.threads, op.wait)
    return round_.reshape(groups, warps, 1)


@condition(barriers.NamedBarrier)
class _RoundEnded(Condition):
    after = True

    def ready(self, c: Cohort, op: Any, *values: Any) -> Bools:
        round_, *number = values
        if not op.wait:
            return np.ones(c.shape[:2], np.bool_)
        rounds = c.chunk.named_barriers.rounds[c.blocks[:, None] - c.chunk.first, _numbers(c, op, number)]
        return rounds > np.asarray(round_)[:, :, 0]

    def passed(self, c: Cohort, op: Any, *values: Any) -> None:
        if op.wait:
            blocks, warps, which = c.active_warps()
            numbers = _numbers(c, op, values[1:]).ravel()[which]
            c.chunk.hook.on_acquire(Sync(op, "named", blocks, warps, blocks, numbers))

    def missing(self, c: Cohort, op: Any, *values: Any) -> str:
        number = int(_numbers(c, op, values[1:])[0, 0])
        arrived = int(c.chunk.named_barriers.arrived[c.blocks[0] - c.chunk.first, number])
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
    def ready(self, c: Cohort, op: Op, *values: Any) -> Bools:
        all_, rows = c.chunk.cluster_barriers, c.blocks[:, None] - c.chunk.first
        return all_.rounds[all_.clusters[rows]] > all_.waits[rows, c.warps]

    def passed(self, c: Cohort, op: Op, *values: Any) -> None:
        require_whole_warps(c, op)
        rows = c.blocks[:, None] - c.chunk.first
        c.chunk.cluster_barriers.waits[rows, np.broadcast_to(c.warps, c.shape[:2])] += 1
        blocks, warps, _ = c.active_warps()
        c.chunk.hook.on_acquire(Sync(op, "cluster", blocks, warps, blocks, np.zeros_like(blocks)))

    def missing(self, c: Cohort, op: Op, *values: Any) -> str:
        all_ = c.chunk.cluster_barriers
        cluster = int(all_.clusters[int(c.blocks[0]) - c.chunk.first])
        return f"its cluster, of which {all_.arrived[cluster]} of {all_.alive[cluster]} warps have arrived"


# -- one warp --------------------------------------------------------------------------------------


@rule(barriers.FenceInit, barriers.FenceProxy, gpu.Fence)
def fence(c: Cohort, op: Op) -> None:
    """Every write is visible at once, in program order: nothing is left to order, but checks want to know."""
    kind: FenceKind = "memory" if isinstance(op, gpu.Fence) else "init"
    if isinstance(op, barriers.FenceProxy):
        kind = "proxy" if op.space == "shared" else "global proxy"
    c.chunk.hook.on_fence(op, kind, *c.threads())


@rule(barriers.Elect)
def elect(c: Cohort, op: barriers.Elect) -> Any:
    """The first lane. (PTX ISA: elect.sync leaves open which one.)"""
    require_whole_warps(c, op)
    return (np.arange(WARP) == 0)[None, None]


@rule(barriers.SetMaxNReg)
def set_registers(c: Cohort, op: barriers.SetMaxNReg) -> None:
    """Checked here; what it does is in its condition. (PTX ISA: setmaxnreg: all warps of a warpgroup execute the same
    one.)"""
    require_whole_warps(c, op)
    given = barriers.registers_at_launch(c.chunk.run.kernel)
    if op.increase != (op.registers >= given) and op.registers != given:
        does, fix = ("take more", "raise it") if op.increase else ("give some back", "lower it")
        message = (
            f"setmaxnreg lets warps {does}, to {op.registers} registers a thread, but the launch gives them {given}"
        )
        raise EmulatorError(message, op.loc, f"{fix}, or turn the direction round", code="T508")


@condition(barriers.SetMaxNReg)
class _RegistersToTake(Condition):
    """All four warps of a warpgroup have come, and take registers that others of the block have released; these are
    counted for one thread of each warp."""

    gathers = True

    def ready(self, c: Cohort, op: Any, *values: Any) -> Bools:
        whole = whole_warpgroups(c)
        enough = np.ones(c.shape[0], np.bool_)
        if op.increase:
            rows, _, more = self.more(c, op)
            more = np.where(whole[c.active().any(axis=2)], more, 0)
            blocks, at = np.unique(c.blocks - c.chunk.first, return_inverse=True)
            enough = (np.bincount(np.searchsorted(blocks, rows), more) <= c.chunk.spare[blocks])[at]
        return whole & enough[:, None]

    def passed(self, c: Cohort, op: Any, *values: Any) -> None:
        rows, warps, more = self.more(c, op)
        c.chunk.registers[rows, warps] += more
        np.subtract.at(c.chunk.spare, rows, more)

    def missing(self, c: Cohort, op: Any, *values: Any) -> str:
        if not whole_warpgroups(c).all():
            return "the other warps of the warpgroup, which execute setmaxnreg together"
        rows, _, more = self.more(c, op)
        wanted, spare = more[rows == rows[0]], c.chunk.spare[rows[0]]
        has = f"{op.registers} registers a thread: {len(wanted)} warps need {wanted.sum()} more"
        return f"{has}, for one thread of each, and others of the block have released {spare}"

    def more(self, c: Cohort, op: Any) -> tuple[Ints, Ints, Ints]:
        """The row of each warp, its number, and how many registers more a thread of it gets."""
        blocks, warps, _ = c.active_warps()
        rows = blocks - c.chunk.first
        return rows, warps, op.registers - c.chunk.registers[rows, warps]
