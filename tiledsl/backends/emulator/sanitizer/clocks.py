"""Vector clocks of the warps of a chunk, and their proxy fences: what happens before what.

Each warp has a count, and what it does belongs to its count at that time. A release publishes the clock of its warp and
increments its count; an acquire merges what was published into the clock of its warp. An access of one warp happens
before another warp's if that warp's clock has a count of the first at least as high. Seven kinds of *agents* have
counts, in every block of a cluster:

- warps: `warp`;
- the proxy fences of warps: a clock with `warps + warp` knows that all lanes of the warp have fenced what they did
  before that count;
- mbarriers: `2 * warps + column` counts phases that have ended, with the bytes that have arrived in them;
- work that threads begin and commit to mbarriers, in kernels with any: `work + warp` counts commits whose work has
  ended;
- releases by some lanes of a warp alone, in kernels with mbarriers: `alone + warp` is the warp's count at the last one.
  Where other lanes have made accesses since all have met, such a release lets others know of what the warp did before
  it met, and of what these lanes did since (`LaneCounts`);
- warps again, in clusters of kernels where some arrivals have the scope of a block: `far + warp` is the count of a warp
  of another block up to which its accesses to global memory are known. Such an arrival in another block orders shared
  memory alone;
- how far warps and mbarriers have come, in kernels with mbarriers: `gone + warp` is the count that a warp has reached,
  `gone + warps + column` a number of phases. The end of a copy or of other work tells how far the warp had come that
  began it, though it does not order the accesses of that warp.

After a barrier of a whole block all of its warps have one count, above all that they had before. So where only such
barriers order warps, one number for each block, `met`, is enough for what happened before its last barrier.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import NAMED_BARRIERS, WARP
from tiledsl.backends.emulator.hooks import Bools, Ints
from tiledsl.backends.emulator.positions import Clusters

Known = NDArray[np.int32]


class Meeting:
    """What warps release to a barrier: `left` in this round, `kept` of rounds that have ended."""

    def __init__(self, *shape: int) -> None:
        self.left, self.kept = (np.zeros(shape, np.int32) for _ in range(2))

    def release(self, places: tuple[Ints, ...], known: Known) -> None:
        np.maximum.at(self.left, places, known)

    def end(self, *places: Ints) -> None:
        """The round ends there."""
        self.kept[places] = np.maximum(self.kept[places], self.left[places])
        self.left[places] = 0


class NamedRounds:
    """Of named barriers [blocks, numbers, warps]: the count at which each warp has arrived, 0 if it has not, in the
    round that goes on, `arrived`, and in the one before, `before`."""

    def __init__(self, clocks: Clocks, blocks: int) -> None:
        self.clocks = clocks
        self.arrived, self.before = (np.zeros((blocks, NAMED_BARRIERS, clocks.warps), np.int32) for _ in range(2))

    def arrive(self, rows: Ints, numbers: Ints, warps: Ints) -> tuple[int, int] | None:
        """Warps arrive, one an entry. Gives the first one that does not know that the round before has ended, since it
        does not know of all who arrived in it, with one of those."""
        known = self.clocks.known[rows, warps, self.clocks.ranks[rows], : self.clocks.warps]
        late = np.argwhere(known < self.before[rows, numbers])
        self.arrived[rows, numbers, warps] = self.clocks.now(rows, warps)
        return (int(late[0, 0]), int(late[0, 1])) if len(late) else None

    def end(self, rows: Ints, numbers: Ints) -> None:
        self.before[rows, numbers] = self.arrived[rows, numbers]
        self.arrived[rows, numbers] = 0


ALL = -1
"""In place of a lane: all lanes of the warp."""
FIELD = 20
"""Bits of a warp, and of a lane, where these and a block are one number."""
Numbers = NDArray[Any]
"""Integers of any width."""


class LaneCounts:
    """What some lanes of a warp did alone: by row and warp, the counts at which they did, and which lanes."""

    def __init__(self) -> None:
        self.of: dict[tuple[int, int], list[tuple[int, Bools]]] = {}

    def add(self, row: int, warp: int, count: int, made: Bools) -> None:
        self.of.setdefault((row, warp), []).append((count, made))

    def missing(
        self, late: Bools, rows: Numbers, warps: Numbers, lanes: Numbers, since: Numbers, known: Numbers
    ) -> Bools:
        """Which accesses are not followed by what their lane did, of those, `late`, that nothing of the whole warp
        follows.

        One entry an access, or what broadcasts to that: by whom, at which count `since` of the warp, and which count
        of it is `known`.
        """
        if not self.of or not late.any():
            return late
        missing, places = late.copy(), np.argwhere(late)
        rows, warps, lanes, since, known = np.broadcast_arrays(rows, warps, lanes, since, known)
        # One number is quicker to sort.
        who = (rows[late].astype(np.int64) << 2 * FIELD) + (warps[late].astype(np.int64) << FIELD) + (lanes[late] - ALL)
        for number in np.unique(who).tolist():
            (row, warp), lane = divmod(number >> FIELD, 1 << FIELD), number % (1 << FIELD) + ALL
            done = self.of.get((row, warp), [])
            counts = np.sort([n for n, made in done if lane == ALL or (lane < WARP and made[lane])])
            if not len(counts):
                continue
            at = tuple(places[who == number].T)
            # The first one behind each access; a last one that never comes.
            after = np.append(counts, np.iinfo(np.int64).max)[np.searchsorted(counts, since[at], side="right")]
            missing[at] = after > known[at]
        return missing


class View:
    """Clocks, one an entry: its count of the agent `id` (see `Clocks.ids`) is ``flat[start + id]``."""

    __slots__ = ("flat", "start")

    def __init__(self, flat: Known, start: Ints) -> None:
        self.flat, self.start = flat, start

    def of(self, ids: NDArray[Any]) -> Known:
        """[entries, any], of agents [entries, any]."""
        return self.flat.take(self.start.reshape(-1, *[1] * (ids.ndim - 1)) + ids)

    def part(self, which: Bools) -> View:
        return View(self.flat, self.start[which])


class Clocks:
    """The clocks of warps. `known` [blocks, warps, rank, agents]: that of each warp. `behind`: that of its lanes that
    have not waited for what others have (`waited`). `synced` [blocks, warps]: its count when its lanes met last.
    `in_run` [blocks]: the number of its cluster in the run. `met` [blocks]: all warps of the block know of what each
    did up to this count of its own, if nothing but barriers of whole blocks orders them."""

    touched: Bools | None = None
    """[blocks, warps, 32]: lanes that have made an access since those of their warp have met; None: nobody asks."""
    waited: Bools | None = None
    """[blocks, warps, 32]: lanes that know what `known` has; None: all, as none has waited alone at an mbarrier."""

    def __init__(
        self, clusters: Clusters, blocks: int, warps: int, mbarriers: int, commits: bool, narrow: bool
    ) -> None:
        """Of so many blocks, whole clusters."""
        self.ranks, self.clusters, self.warps = clusters.rank, clusters.number, warps
        self.in_run = clusters.in_run
        self.work = 2 * warps + mbarriers
        self.alone = self.work + (warps if commits else 0)
        self.far = self.alone + (warps if mbarriers else 0)
        self.narrow = narrow and clusters.size > 1
        self.gone = self.far + (warps if self.narrow else 0)
        self.agents = self.gone + (warps + mbarriers if mbarriers else 0)
        self.by_lanes, self.fenced_by_lanes = LaneCounts(), LaneCounts()
        if mbarriers:
            self.touched = np.zeros((blocks, warps, WARP), np.bool_)
        shape = clusters.size, self.agents
        both = np.zeros((2 if mbarriers else 1, blocks, warps, *shape), np.int32)
        self.flat, self.known, self.behind = both.reshape(-1), both[0], both[-1]
        self.synced = np.ones((blocks, warps), np.int64)
        self.met = np.zeros(blocks, np.int32)
        self.mbarriers = Meeting(blocks, max(mbarriers, 1), *shape)
        self.named = Meeting(blocks, NAMED_BARRIERS, *shape)
        self.cluster = Meeting(int(clusters.number.max()) + 1, *shape)
        self.meet(np.arange(blocks))

    # -- agents --------------------------------------------------------------------------------

    def ids(self, rows: Ints, agents: Any) -> Ints:
        """Numbers for these agents of these blocks; those of one block follow each other."""
        return self.ranks[rows] * self.agents + agents

    def agent(self, id_: Any) -> int:
        return int(id_) % self.agents

    def view(self, rows: Ints, warps: Ints, lanes: Ints | None = None) -> View:
        """Return the clocks of these warps now, or of one lane of each."""
        start = (rows * self.warps + warps) * self.known[0, 0].size
        if lanes is not None and self.waited is not None:
            lacks = ~self.waited[rows, warps, lanes]
            if lacks.any():
                self.update_behind(rows[lacks], warps[lacks])
                start = start + lacks * self.known.size
        return View(self.flat, start)

    def update_behind(self, rows: Ints, warps: Ints) -> None:
        """Update what lanes that have not waited know of their own warp's progress."""
        for first, end in pairwise(sorted({0, self.warps, self.work, self.alone, self.far, self.gone, self.agents})):
            if end - first >= self.warps:
                at = rows, warps, self.ranks[rows], first + warps
                self.behind[at] = self.known[at]

    def view_of(self, known: Known) -> View:
        """What is in `known` [entries, rank, agents]."""
        return View(known.reshape(-1), np.arange(len(known)) * known[0].size)

    def now(self, rows: Ints, warps: Ints) -> Ints:
        """The counts of these warps."""
        return self.known[rows, warps, self.ranks[rows], warps].astype(np.int64)

    # -- events --------------------------------------------------------------------------------

    def tick(self, rows: Ints, warps: Ints) -> None:
        """Increments the counts of these warps, each named once."""
        self.known[rows, warps, self.ranks[rows], warps] += 1
        if self.narrow:
            self.known[rows, warps, self.ranks[rows], self.far + warps] = self.now(rows, warps)

    def tick_once(self, rows: Ints, warps: Ints) -> None:
        """The same of warps that may be named twice."""
        self.tick(*np.divmod(np.unique(rows * self.warps + warps), self.warps))

    def sync(self, rows: Ints, warps: Ints) -> None:
        """All lanes of these warps, each named once, meet."""
        self.tick(rows, warps)
        self.synced[rows, warps] = self.now(rows, warps)
        if self.touched is not None:
            self.touched[rows, warps] = False
        self.join(rows, warps)

    def join(self, rows: Ints, warps: Ints) -> None:
        """Let all lanes of these warps know what some of them have waited for."""
        if self.waited is not None:
            self.waited[rows, warps] = True

    def accessed(self, rows: Ints, warps: Ints, lanes: Ints | slice) -> None:
        """These lanes make an access."""
        if self.touched is not None:
            self.touched[rows, warps, lanes] = True

    def release(
        self,
        meeting: Meeting,
        places: tuple[Ints, ...],
        rows: Ints,
        warps: Ints,
        lanes: Ints | None = None,
        narrow: Bools | None = None,
    ) -> None:
        """Warps, one an entry and maybe named twice, release their clocks at these places. lanes: they alone do.
        narrow: which order shared memory alone."""
        known = self.released(rows, warps)
        if narrow is not None and self.narrow:
            known[narrow, :, self.far : self.gone] = 0
        if lanes is not None and self.touched is not None:
            made = np.zeros_like(self.touched)
            made[rows, warps, lanes] = True
            others = np.asarray((self.touched & ~made).any(axis=2))
            entry = np.flatnonzero(others[rows, warps])
            if len(entry):
                self.release_alone(known, entry, rows[entry], warps[entry], made)
        meeting.release(places, known)
        self.tick_once(rows, warps)

    def released(self, rows: Ints, warps: Ints) -> Known:
        """A copy of the clocks of these warps, with how far each has come itself."""
        known = self.known[rows, warps]
        if self.agents > self.gone:
            known[np.arange(len(rows)), self.ranks[rows], self.gone + warps] = self.now(rows, warps)
        return known

    def progress(self, known: Known) -> Known:
        """Of clocks [..., agents] in kernels with mbarriers: how far they know warps to have come."""
        return known[..., self.gone : self.gone + self.warps]

    def begin(self, places: tuple[Ints, ...], rows: Ints, warps: Ints) -> None:
        """These warps, one an entry, begin copies that these mbarriers count: that says how far they have come."""
        known = self.released(rows, warps)
        known[..., : self.gone] = 0
        self.mbarriers.release(places, known)
        self.tick_once(rows, warps)

    def release_alone(self, known: Known, entry: Ints, rows: Ints, warps: Ints, made: Bools) -> None:
        """What some lanes release, `made`, where others have made accesses: changes these entries of `known`."""
        ranks, count = self.ranks[rows], self.now(rows, warps) + 1
        met, fences = self.synced[rows, warps] - 1, known[entry, ranks, self.warps + warps]
        known[entry, ranks, warps], known[entry, ranks, self.alone + warps] = met, count
        if self.narrow:
            known[entry, ranks, self.far + warps] = np.minimum(known[entry, ranks, self.far + warps], met)
        known[entry, ranks, self.warps + warps] = np.minimum(fences, met)
        for row, warp, when, fence in np.unique(np.stack([rows, warps, count, fences]), axis=1).T.tolist():
            self.by_lanes.add(row, warp, when, made[row, warp])
            self.fenced_by_lanes.add(row, warp, fence, made[row, warp])

    def arrivals(self, known: Known) -> Known:
        """A copy of clocks [..., agents], with the count up to which each has heard of any lane of a warp."""
        heard = known.copy()
        if self.far > self.alone:
            warps = heard[..., : self.warps]
            np.maximum(warps, known[..., self.alone : self.far], out=warps)
        return heard

    def release_work(self, places: tuple[Ints, ...], rows: Ints, warps: Ints, counts: Ints) -> None:
        """Work that these warps have begun, so many commits of it, arrives at these mbarriers when it has ended. It
        happens after what the warp had waited for; the arrival does not release what the warp did itself."""
        known, entry, ranks = self.released(rows, warps), np.arange(len(rows)), self.ranks[rows]
        known[entry, ranks, warps] = known[entry, ranks, self.warps + warps] = 0
        if self.narrow:
            known[entry, ranks, self.far + warps] = 0
        known[entry, ranks, self.work + warps] = counts
        self.mbarriers.release(places, known)
        self.tick_once(rows, warps)

    def acquire(self, kept: Known, rows: Ints, warps: Ints, lanes: Bools | None = None) -> None:
        """Acquire `kept` by warps, each named once, one per entry. lanes [entries, 32]: those that do; None: all."""
        if lanes is not None and not lanes.all():
            self.wait_alone(rows, warps, lanes)
        if self.waited is not None:
            whole = np.ones(len(rows), np.bool_) if lanes is None else lanes.all(axis=1)
            whole &= ~self.waited[rows, warps].all(axis=1)
            if whole.any():
                at = rows[whole], warps[whole]
                self.behind[at] = np.maximum(self.behind[at], kept[whole])
        self.known[rows, warps] = np.maximum(self.known[rows, warps], kept)
        own = kept[np.arange(len(rows)), self.ranks[rows], warps]
        self.synced[rows, warps] = np.maximum(self.synced[rows, warps], own + 1)

    def wait_alone(self, rows: Ints, warps: Ints, lanes: Bools) -> None:
        """Note the lanes of these warps that wait alone, if not all do: the others know of it only after they meet."""
        if self.waited is None:
            self.waited = np.ones((*self.synced.shape, WARP), np.bool_)
        alone = ~lanes.all(axis=1)
        rows, warps, lanes = rows[alone], warps[alone], lanes[alone]
        at = tuple(each[self.waited[rows, warps].all(axis=1)] for each in (rows, warps))
        self.behind[at], self.waited[at] = self.known[at], False
        self.waited[rows, warps] |= lanes

    def meet(self, rows: Ints) -> None:
        """All warps of these blocks meet."""
        everybody, at = self.known[rows].max(axis=1), (np.arange(len(rows)), self.ranks[rows])
        before = everybody[*at, : self.warps].max(axis=1)
        if self.agents > self.gone:
            everybody[*at, self.gone : self.gone + self.warps] = everybody[*at, : self.warps]
        self.known[rows] = everybody[:, None]
        warps = np.arange(self.warps)
        self.known[rows[:, None], warps, self.ranks[rows][:, None], warps] = before[:, None] + 1
        if self.narrow:
            self.known[rows[:, None], warps, self.ranks[rows][:, None], self.far + warps] = before[:, None] + 1
        self.synced[rows] = before[:, None] + 1
        self.met[rows] = before
        if self.touched is not None:
            self.touched[rows] = False
        if self.waited is not None:
            self.waited[rows] = True

    def fence(self, rows: Ints, warps: Ints) -> None:
        """What these warps have read and written is fenced."""
        self.tick(rows, warps)
        self.known[rows, warps, self.ranks[rows], self.warps + warps] = self.now(rows, warps)

    def phases(self, rows: Ints, columns: Ints) -> Known:
        """How many phases of these mbarriers have ended."""
        return self.mbarriers.kept[rows, columns, self.ranks[rows], 2 * self.warps + columns]

    def end_phases(self, rows: Ints, columns: Ints) -> None:
        """These mbarriers end a phase."""
        ended, ranks = self.phases(rows, columns) + 1, self.ranks[rows]
        for agent in (2 * self.warps, self.gone + self.warps):
            self.mbarriers.left[rows, columns, ranks, agent + columns] = ended
        self.mbarriers.end(rows, columns)


# -- proxy fences -----------------------------------------------------------------------------------


class ProxyFences:
    """`unfenced` [blocks, warps, 32]: lanes that have read or written since their last proxy fence. Fences that others
    of these lanes have not made are in `Clocks.fenced_by_lanes`."""

    def __init__(self, clocks: Clocks, blocks: int, warps: int) -> None:
        self.clocks = clocks
        self.unfenced = np.zeros((blocks, warps, WARP), np.bool_)

    def accessed(self, rows: Ints, warps: Ints, lanes: Ints | slice) -> None:
        """These lanes read or write."""
        self.unfenced[rows, warps, lanes] = True

    def make(self, rows: Ints, warps: Ints, lanes: Ints) -> None:
        """These lanes execute a fence."""
        made = np.zeros_like(self.unfenced)
        made[rows, warps, lanes] = True
        if self.clocks.touched is not None:  # as accesses, fences of other lanes are not those of one that arrives
            self.clocks.touched |= made & self.unfenced
        self.unfenced &= ~made
        rows, warps = np.nonzero(made.any(axis=2))
        whole = ~self.unfenced[rows, warps].any(axis=1)
        self.clocks.fence(rows[whole], warps[whole])
        rows, warps = rows[~whole], warps[~whole]
        self.clocks.tick(rows, warps)
        for row, warp, count in zip(rows.tolist(), warps.tolist(), self.clocks.now(rows, warps).tolist(), strict=True):
            self.clocks.fenced_by_lanes.add(row, warp, count, made[row, warp])
