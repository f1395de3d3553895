"""The mbarriers of some blocks, and the barriers of parts of a block and of clusters: counts and phases.

Arrays are [blocks, columns]; a column stands for one mbarrier's place in shared memory, the same in all blocks. Hooks
hear of arrivals before they count, and of phases and rounds that end.
(PTX ISA: mbarrier; barrier; barrier.cluster.)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tiledsl.arch import MOST_TX_BYTES, NAMED_BARRIERS, WARP
from tiledsl.backends.emulator.hooks import Bools, Hook, Ints, LaunchInfo, Sync
from tiledsl.errors import HazardError, Loc
from tiledsl.ir.core import Op

ENTRY = 8
"""Bytes of an mbarrier."""


class Mbarriers:
    """`count`: arrivals of each phase, 0 where no mbarrier is. `pending`: those that the phase still lacks; `bytes`:
    what it still lacks of them (below 0: more have come than were expected); `phase`: how many have ended.

    `labels`: what to call a column in messages; `users`: which ops arrive there, with their warps.
    """

    def __init__(self, first: int, blocks: int, pitch: int, hook: Hook) -> None:
        self.first, self.hook = first, hook
        self.table = np.full(pitch // ENTRY, -1, np.int16)
        self.offsets: list[int] = []
        self.labels: list[str] = []
        self.users: list[dict[Op, set[int]]] = []
        none = np.zeros((blocks, 0), np.int64)
        self.count, self.pending, self.bytes, self.phase = none, none, none, none

    def columns(self, at: Ints) -> Ints:
        """The column of each place, -1 where no mbarrier was ever."""
        return self.table[at // ENTRY].astype(np.int64)

    def places(self, columns: Ints) -> Ints:
        """Where these columns' mbarriers are, bytes of a block's shared memory."""
        return np.array(self.offsets, np.int64)[columns]

    def live(self, rows: Ints, columns: Ints) -> Bools:
        if not self.offsets:
            return np.zeros(columns.shape, np.bool_)
        return (columns >= 0) & (self.count[rows, columns] > 0)

    def init(self, rows: Ints, at: Ints, label: str, base: int, count: int) -> None:
        """New mbarriers."""
        new = np.unique(at[self.columns(at) < 0]).tolist()
        for offset in new:
            self.table[offset // ENTRY] = len(self.offsets)
            self.offsets.append(offset)
            self.labels.append(f"{label}[{(offset - base) // ENTRY}]")
            self.users.append({})
        for name in ("count", "pending", "bytes", "phase"):
            old = getattr(self, name)
            setattr(self, name, np.hstack([old, np.zeros((len(old), len(new)), np.int64)]))
        columns = self.columns(at)
        self.count[rows, columns] = self.pending[rows, columns] = count
        self.bytes[rows, columns] = self.phase[rows, columns] = 0

    def arrive(self, op: Op, owners: Ints, threads: Ints, rows: Ints, columns: Ints, commits: bool = False) -> None:
        """One arrival an entry: of a thread of the block `owners` at an mbarrier of the block `rows`; `commits`: of
        work that it has begun (`hooks.Sync`)."""
        blocks, homes, places = owners + self.first, rows + self.first, self.places(columns)
        warps, lanes = np.divmod(threads, WARP)
        self.hook.on_arrive(Sync(op, "mbarrier", blocks, warps, homes, places, lanes, commits=commits))
        for column in np.unique(columns).tolist():
            users = self.users[int(column)]
            users.setdefault(op, set()).update(warps[columns == column].tolist())
        np.subtract.at(self.pending, (rows, columns), 1)
        for row, column in np.argwhere(self.pending < 0).tolist():
            count, label = self.count[row, column], self.labels[column]
            message = f"{count - self.pending[row, column]} arrivals at {label}, a phase of which waits for {count}"
            fix = (
                "wait for a phase before arriving for the next one, or let each wait for as many arrivals as there are"
            )
            raise HazardError(message, op.loc, fix, code="T404")
        self.flip(rows, columns)

    def change_bytes(self, op: Op, rows: Ints, columns: Ints, more: int) -> None:
        """Each phase lacks so many bytes more, which are expected, or fewer (below 0), which have come."""
        np.add.at(self.bytes, (rows, columns), more)
        if np.abs(self.bytes[rows, columns]).max(initial=0) > MOST_TX_BYTES:
            message = f"more than {MOST_TX_BYTES} bytes in one phase of an mbarrier"
            raise HazardError(message, op.loc, "use smaller tiles", code="T411")

    def flip(self, rows: Ints, columns: Ints) -> None:
        """End the phases of these that lack nothing."""
        if not len(rows):
            return
        count = self.phase.shape[1]
        rows, columns = np.divmod(np.unique(rows * count + columns), count)
        over = (self.pending[rows, columns] == 0) & (self.bytes[rows, columns] == 0)
        rows, columns = rows[over], columns[over]
        self.phase[rows, columns] += 1
        self.pending[rows, columns] = self.count[rows, columns]
        if len(rows):
            self.hook.on_complete("mbarrier", rows + self.first, self.places(columns))

    def incomplete(self, launch: LaunchInfo, loc: Loc) -> Iterator[HazardError]:
        """One for each phase with bytes too few or too many, when the blocks have ended."""
        for row, column in np.argwhere(self.bytes != 0).tolist():
            block, users = launch.block_name(row + self.first), list(self.users[column])
            message = f"{self.labels[column]} of {block} ends in a phase that {self.lacks_bytes(row, column)}"
            fix = "let expect_tx say how many bytes the loads of the phase bring"
            yield HazardError(message, users[0].loc if users else loc, fix, code="T410")

    def lacks_bytes(self, row: int, column: int) -> str:
        bytes_ = int(self.bytes[row, column])
        return f"lacks {bytes_} bytes" if bytes_ > 0 else f"has got {-bytes_} bytes which nobody expected"

    def describe(self, row: int, column: int, parity: int) -> str:
        """What the phase that somebody waits for lacks."""
        arrivals, count = int(self.pending[row, column]), int(self.count[row, column])
        lacks = [f"lacks {arrivals} of {count} arrivals"] if arrivals else []
        lacks += [self.lacks_bytes(row, column)] if self.bytes[row, column] else []
        users = "".join(
            f"; arriving at {op.loc}: warp{'s' * (len(warps) > 1)} {', '.join(map(str, sorted(warps)))}"
            for op, warps in self.users[column].items()
        )
        phase = f"phase {self.phase[row, column]} (parity {parity}) of {self.labels[column]}"
        return f"{phase}, which {' and '.join(lacks)}{users or '; nobody arrives'}"


class NamedBarriers:
    """Barriers 1 to 15 of each block: [blocks, 16]. `arrived`: threads in the current round, of `threads`; `waited`:
    does one of them wait; `rounds`: how many have ended."""

    def __init__(self, first: int, blocks: int, hook: Hook) -> None:
        self.first, self.hook = first, hook
        shape = blocks, NAMED_BARRIERS
        self.arrived, self.threads, self.rounds = (np.zeros(shape, np.int64) for _ in range(3))
        self.waited = np.zeros(shape, np.bool_)

    def arrive(self, op: Op, rows: Ints, warps: Ints, numbers: Ints, threads: int, waits: bool) -> Ints:
        """One warp an entry arrives. Gives the round that it arrives in, which has not ended yet for it."""
        blocks, at = rows + self.first, (rows, numbers)
        self.hook.on_arrive(Sync(op, "named", blocks, warps, blocks, numbers))
        round_ = self.rounds[at].copy()
        expected = np.where(self.arrived[at] > 0, self.threads[at], threads)
        self.threads[at] = threads
        self.waited[at] |= waits
        np.add.at(self.arrived, at, WARP)
        for wrong in np.flatnonzero(expected != threads):
            message = f"barrier {numbers[wrong]} waits for {expected[wrong]} threads, and here for {threads}"
            fix = "let all that meet at a named barrier give the same number of threads"
            raise HazardError(message, op.loc, fix, code="T412")
        arrived = self.arrived[at]
        for wrong in np.flatnonzero(arrived > threads):
            message = f"{arrived[wrong]} threads arrive at barrier {numbers[wrong]}, which waits for {threads}"
            raise HazardError(message, op.loc, "use another number for other threads, or count them all", code="T413")
        rows, numbers = np.nonzero((self.arrived == threads) & (self.threads == threads))
        for number in numbers[~self.waited[rows, numbers]]:
            message = f"all {threads} threads arrive at barrier {number}, and none of them waits"
            fix = "let somebody wait: who comes later waits for the next round"
            raise HazardError(message, op.loc, fix, code="T414")
        self.rounds[rows, numbers] += 1
        self.arrived[rows, numbers], self.waited[rows, numbers] = 0, False
        if len(rows):
            self.hook.on_complete("named", rows + self.first, numbers)
        return round_


class ClusterBarriers:
    """One of each cluster: `arrived` [clusters] warps of the `alive` that have not ended; `rounds` that have ended;
    `waits` [blocks, warps]: how many of those each warp has waited for; `arrivals`: how often it has arrived."""

    def __init__(self, first: int, clusters: Ints, warps: int, hook: Hook) -> None:
        """`clusters`: of each block, the number of its cluster."""
        self.first, self.clusters, self.hook = first, clusters, hook
        count = int(clusters.max()) + 1
        self.alive = np.bincount(clusters, minlength=count) * warps
        self.arrived, self.rounds = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.waits, self.arrivals = (np.zeros((len(clusters), warps), np.int64) for _ in range(2))

    def arrive(self, op: Op, rows: Ints, warps: Ints) -> None:
        """One warp an entry arrives, and waits before it does so again: else it would count for another one."""
        blocks = rows + self.first
        for at in np.flatnonzero(self.arrivals[rows, warps] > self.waits[rows, warps])[:1]:
            message = (
                f"warp {warps[at]} arrives at its cluster's barrier, and has not waited there since it has arrived"
            )
            raise HazardError(message, op.loc, "wait once behind each arrival", code="T422")
        self.arrivals[rows, warps] += 1
        self.hook.on_arrive(Sync(op, "cluster", blocks, warps, blocks, np.zeros_like(rows)))
        np.add.at(self.arrived, self.clusters[rows], 1)
        self.complete()

    def end(self, rows: Ints) -> None:
        """One warp an entry has finished: nobody waits for it any more."""
        np.subtract.at(self.alive, self.clusters[rows], 1)
        self.complete()

    def complete(self) -> None:
        """End the rounds of the clusters whose warps have all arrived."""
        over = np.flatnonzero((self.arrived > 0) & (self.arrived >= self.alive))
        self.rounds[over] += 1
        self.arrived[over] = 0
        if len(over):
            rows = np.flatnonzero(np.isin(self.clusters, over))
            self.hook.on_complete("cluster", rows + self.first, np.zeros_like(rows))
