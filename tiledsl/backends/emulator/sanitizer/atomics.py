"""Releases and acquires through memory, by atomic operations and fences.

An atomic write that releases publishes the clock of its warp at its address; a read that acquires merges what it finds
there. An update keeps what was published before it, a store replaces it. A fence makes relaxed writes after it
releases, and relaxed reads before it acquires. A release and an acquire meet if the scope of each includes the thread
of the other. (PTX ISA: memory consistency model, release and acquire patterns, morally strong operations.)

The emulator runs every access at its place in one order, so what a read finds is what was published last.

Clocks are of clusters (`clocks`). What one cluster knows of others is a list of what its warps have acquired, each with
the warp and its count: whoever knows of that count knows what was acquired, so that barriers need not move it on.
"""

from __future__ import annotations

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.hooks import Access, Bools, Ints, LaunchInfo
from tiledsl.backends.emulator.sanitizer.clocks import Clocks, Known, View
from tiledsl.ir.atomics import ACQUIRING, RELEASING, SCOPES
from tiledsl.ir.core import Op

Past = dict[int, Known]
"""What has happened: of each cluster, by its number in the run, a clock [rank, agents]. Nobody changes one."""

_Place = tuple[str, int, int]
"""The space, whose (of a block, by its number in the run; 0 for global memory), and the address; of global memory the
host's, as several arguments, also of other ranks, may be one array."""
_Group = tuple[int, int]
"""A scope, by its width, and the number of the block or cluster in the run, or the rank: those who can acquire a
release with that scope."""

WIDTH = {scope: width for width, scope in enumerate(SCOPES)}
"""Of scopes. That of a GPU is a rank's."""


def _joined(a: Past, b: Past) -> Past:
    if not a or not b or a is b:
        return a or b
    joined = dict(a)
    for cluster, known in b.items():
        before = joined.get(cluster)
        if before is None:
            joined[cluster] = known
        elif before is not known:
            joined[cluster] = np.maximum(before, known)
    return joined


class Published:
    """Of one run. `places`: what releases have left there, for each group that can acquire it. `learnt`: what warps
    of each cluster have acquired of others: the warp's agent, its count, and what.

    For messages, in runs with fences: `fences`: the last one of each agent of a cluster, with its count; `signals`:
    what warps knew that wrote there without a release; `heard`: what of that each cluster has read.
    """

    def __init__(self) -> None:
        self.places: dict[_Place, dict[_Group, Past]] = {}
        self.learnt: dict[int, list[tuple[int, int, Past]]] = {}
        self.fences: dict[tuple[int, int], tuple[int, Op]] = {}
        self.signals: dict[_Place, Past] = {}
        self.heard: dict[int, Past] = {}

    def early_fence(self, cluster: int, agent: int, when: int, to: int) -> Op | None:
        """Return a fence that comes after an access, but makes no release of it for the thread that signals.

        Args:
            cluster: The cluster of the warp that made the access.
            agent: The warp's agent there.
            when: Its count at the access.
            to: The cluster that has read the signal: a relaxed write by a warp that knew of the access.
        """
        known, (count, op) = self.heard.get(to, {}).get(cluster), self.fences.get((cluster, agent), (-1, None))
        return op if known is not None and count >= when and known.reshape(-1)[agent] >= when else None

    def past(self, cluster: int, known: Known) -> Past:
        """All that comes before what has the clock `known` in this cluster."""
        past: Past = {cluster: known}
        flat = known.reshape(-1)
        for agent, count, acquired in self.learnt.get(cluster, ()):
            if flat[agent] >= count:
                past = _joined(past, acquired)
        return past

    def learn(self, cluster: int, agent: int, known: Known, past: Past) -> None:
        """A warp of the clock `known` acquires this past of other clusters."""
        before = self.past(cluster, known)
        new = {c: k for c, k in past.items() if c != cluster and (c not in before or (k > before[c]).any())}
        if new:
            self.learnt.setdefault(cluster, []).append((agent, int(known.reshape(-1)[agent]), new))

    def comes_before(self, asked: Bools, clusters: Ints, ids: Ints, when: Ints, known: View, to: Ints) -> Bools:
        """Which of the accesses `asked` for, [entries, any], happen before what has the clock `known` in the cluster
        `to`, an entry. They were made by agents `ids` of other `clusters` at their counts `when`."""
        found = np.zeros_like(asked)
        for cluster in np.unique(to[asked.any(axis=1)]).tolist() if self.learnt else ():
            for agent, count, past in self.learnt.get(cluster, ()):
                aware = (to == cluster) & (known.of(np.array([[agent]]))[:, 0] >= count)
                at = asked & aware[:, None]
                for other in np.unique(clusters[at]).tolist():
                    if other in past:
                        those = at & (clusters == other)
                        found[those] |= past[other].reshape(-1)[ids[those]] >= when[those]
        return found


class AtomicOrder:
    """Of one chunk, by row and warp. For each width of a scope, `fenced`: what it knew at its last fence; `seen`: what
    its relaxed reads have found, which the next fence lets it know. `polled`: what it has acquired last. `before`: how
    many blocks of the run are before those of the chunk. `to_host`: by tensor, from its virtual address to that of the
    host."""

    def __init__(self, clocks: Clocks, launch: LaunchInfo, first: int, published: Published) -> None:
        self.clocks, self.first, self.published = clocks, first, published
        self.before, self.rank = launch.first + first, launch.rank or 0
        self.to_host = {tensor.label: tensor.host - tensor.low for tensor in launch.tensors}
        self.fenced: dict[tuple[int, int], list[Past]] = {}
        self.seen: dict[tuple[int, int], list[Past]] = {}
        self.polled: dict[tuple[int, int], Past] = {}
        self.listened: dict[tuple[int, int], Past] = {}

    def access(self, access: Access) -> None:
        """Warps make it one after the other, in the order of the lanes."""
        assert access.order is not None and access.reach is not None
        orders = access.order in ACQUIRING or access.order in RELEASING
        if not (orders or self.published.places or self.fenced):
            return  # it publishes nothing, and finds nothing
        rows, warps, shared = access.blocks - self.first, access.threads // WARP, access.space == "shared"
        each = np.stack([rows, warps, access.addresses + (0 if shared else self.to_host[access.label])])
        _, at = np.unique(each, axis=1, return_index=True)
        for row, warp, address in each[:, np.sort(at)].T.tolist():
            place = (access.space, row + self.before if shared else 0, address)
            groups = self.groups(row, WIDTH[access.reach])
            if access.kind != "write":
                self.read(place, groups, row, warp, access.order in ACQUIRING)
            if access.kind != "read":
                self.write(place, groups, row, warp, access.order in RELEASING, access.kind == "atomic")

    def groups(self, row: int, width: int) -> list[_Group]:
        """Those whose scopes include this block, up to this width."""
        return [(0, row + self.before), (1, int(self.clocks.in_run[row])), (2, self.rank), (3, 0)][: width + 1]

    def read(self, place: _Place, groups: list[_Group], row: int, warp: int, acquires: bool) -> None:
        self.hear(place, row, warp)
        published = self.published.places.get(place, {})
        for group in groups:
            found = published.get(group)
            if not found:
                continue
            seen = self.seen.setdefault((row, warp), [{} for _ in WIDTH])
            seen[group[0]] = _joined(found, seen[group[0]])
            if acquires:
                self.acquire(found, row, warp)

    def hear(self, place: _Place, row: int, warp: int) -> None:
        """Note that a warp reads what may have been written there without a release."""
        signal = self.published.signals.get(place)
        if signal is None or self.listened.get((row, warp)) is signal:
            return
        self.listened[row, warp] = signal
        heard, cluster = self.published.heard, int(self.clocks.in_run[row])
        heard[cluster] = _joined(signal, heard.get(cluster, {}))

    def acquire(self, past: Past, row: int, warp: int) -> None:
        if not past or self.polled.get((row, warp)) is past:
            return
        self.polled[row, warp] = past
        clocks, cluster = self.clocks, int(self.clocks.in_run[row])
        if cluster in past:
            clocks.acquire(past[cluster][None], np.array([row]), np.array([warp]))
        agent = int(clocks.ids(np.array([row]), warp)[0])
        self.published.learn(cluster, agent, clocks.known[row, warp], past)

    def past(self, row: int, warp: int) -> Past:
        return self.published.past(int(self.clocks.in_run[row]), self.clocks.arrivals(self.clocks.known[row, warp]))

    def write(self, place: _Place, groups: list[_Group], row: int, warp: int, releases: bool, updates: bool) -> None:
        before = self.published.places.get(place, {})
        after = dict(before) if updates else {}
        past = self.past(row, warp) if releases else {}
        fenced = self.fenced.get((row, warp))
        for group in groups:
            what = past if releases else fenced[group[0]] if fenced else {}
            if what:
                after[group] = _joined(what, after.get(group, {}))
        if self.fenced and not releases:
            known = {int(self.clocks.in_run[row]): self.clocks.arrivals(self.clocks.known[row, warp])}
            self.published.signals[place] = _joined(known, self.published.signals.get(place, {}) if updates else {})
        if after:
            self.published.places[place] = after
        else:
            self.published.places.pop(place, None)
        if releases:
            self.clocks.tick(np.array([row]), np.array([warp]))

    def fence(self, op: Op, rows: Ints, warps: Ints, reach: str) -> None:
        """These warps, each named once, execute a fence."""
        each = self.clocks.in_run[rows], self.clocks.ids(rows, warps), self.clocks.now(rows, warps)
        for cluster, agent, count in zip(*(array.tolist() for array in each), strict=True):
            self.published.fences[cluster, agent] = count, op
        for row, warp in zip(rows.tolist(), warps.tolist(), strict=True):
            seen, fenced = self.seen.get((row, warp)), self.fenced.setdefault((row, warp), [{} for _ in WIDTH])
            for width in range(WIDTH[reach] + 1):
                self.acquire(seen[width] if seen else {}, row, warp)
            past = self.past(row, warp)
            fenced[: WIDTH[reach] + 1] = [past] * (WIDTH[reach] + 1)
        self.clocks.tick(rows, warps)
