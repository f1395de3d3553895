"""The timeline of a run that was measured, from the records of its stamps.

A wait is as long as the clock says between coming to it and going on. Who released it is whoever arrived there last
before it ended: a copy that an mbarrier counts is that of the warp that announced it. A slot of a ring is in use from
the end of the first wait for it until the last arrival before it is filled again; how long it was full before is not
known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tiledsl.backends.emulator.mbarriers import ENTRY
from tiledsl.backends.stamp_records import RECORDS, Record, place_of
from tiledsl.inspect.report import data
from tiledsl.inspect.report.places import Places
from tiledsl.ir.core import Kernel
from tiledsl.ir.ops.mem import SharedBase
from tiledsl.passes.lower.stamps import stamps_of

WORK = {"wgmma": "products (wgmma)", "bulk": "copies to global memory", "cp_async": "copies (cp.async)"}

_Key = tuple[str, int, int | str]
"""Of a barrier: its kind, the rank of its block, and its place."""


@dataclass
class _Events:
    """Of all warps: waits (row, start, end, barrier, place), and times of arrivals with their rows by barrier."""

    waits: list[tuple[int, int, int, _Key, int]] = field(default_factory=list[tuple[int, int, int, _Key, int]])
    arrivals: dict[_Key, list[tuple[int, int]]] = field(default_factory=dict[_Key, list[tuple[int, int]]])
    full_at: int | None = None


def stamped_timeline(
    kernel: Kernel,
    records: Sequence[Sequence[Record]],
    roles: Sequence[data.Role],
    rings: Sequence[data.Ring],
    places: Places,
) -> tuple[data.Timeline, float]:
    """kernel: with its stamps. records: of each warp, block by block. Also the clock's rate in MHz, 0 if it is not
    known."""
    reading = _Reading(kernel, records, roles, places)
    return reading.timeline(rings), reading.mhz


class _Reading:
    def __init__(
        self, kernel: Kernel, records: Sequence[Sequence[Record]], roles: Sequence[data.Role], places: Places
    ) -> None:
        self.sites = stamps_of(kernel)
        self.records, self.roles, self.places = records, roles, places
        self.bases = [op for op in kernel.walk() if isinstance(op, SharedBase)]
        x, y, z = kernel.cluster
        self.ranks = x * y * z
        self.warps = len(records) // self.ranks
        self.mhz = self._rate()
        self.starts = self._starts()
        self.events = _Events()
        for row in range(len(records)):
            self._read(row)

    # -- clocks --------------------------------------------------------------------------------

    def _clocks(self, row: int) -> Iterator[tuple[int, int]]:
        """(of the SM, of the GPU), at the begin and the end of a warp."""
        for (site, sm, _), (following, gpu, _) in pairwise(self.records[row]):
            if site == following and not self.sites[site].at:
                yield sm, gpu

    def _rate(self) -> float:
        """Of the SM's clock, from the warp whose two readings are farthest apart."""
        ends = [[*self._clocks(row)] for row in range(len(self.records))]
        spans = [(last[1] - first[1], last[0] - first[0]) for first, last in (e for e in ends if len(e) == 2)]
        ns, clocks = max(spans, default=(0, 0))
        return 1e3 * clocks / ns if ns > 0 else 0.0

    def _starts(self) -> list[int]:
        """What to take off the clock of each block: time 0 is the first warp's begin. The clocks of several SMs are
        compared by that of the GPU."""
        firsts = [next(self._clocks(row), (0, 0)) for row in range(len(self.records))]
        of_block = [min(firsts[r * self.warps : (r + 1) * self.warps]) for r in range(self.ranks)]
        begun = min(gpu for _, gpu in of_block)
        return [sm - round((gpu - begun) * self.mhz / 1e3) for sm, gpu in of_block]

    # -- events --------------------------------------------------------------------------------

    def _read(self, row: int) -> None:
        rank, came = row // self.warps, 0
        for site, time, place in self.records[row]:
            op, at = self.sites[site], time - self.starts[rank]
            if not op.at:
                continue
            key = self._key(rank, site, place)
            if op.event == "wait":
                came = at
            elif op.event == "waited":
                self.events.waits.append((row, came, at, key, self.places.of(op.loc)))
            # At other barriers than an mbarrier who waits has arrived.
            if op.event == "arrive" or (op.event == "wait" and op.at not in ("mbarrier", "work")):
                self.events.arrivals.setdefault(key, []).append((at, row))
        if len(self.records[row]) == RECORDS:
            last = self.records[row][-1][1] - self.starts[rank]
            self.events.full_at = min(last, self.events.full_at or last)

    def _key(self, rank: int, site: int, place: int) -> _Key:
        op = self.sites[site]
        other, at = place_of(place)
        if op.at == "cluster":
            return "cluster", 0, 0
        if op.at == "work":
            return "work", 0, op.work
        return op.at, rank if other < 0 else other, at + op.number

    def _name(self, key: _Key) -> str:
        kind, rank, place = key
        of_block = f" of block {rank}" if self.ranks > 1 else ""
        if kind == "work":
            return WORK.get(str(place), str(place))
        if kind == "cluster":
            return "the cluster's barrier"
        if kind == "named":
            return f"barrier {place}{of_block}"
        if kind == "block":
            return f"barrier(){of_block}"
        base = next(b for b in self.bases if b.offset <= int(place) < b.offset + b.bytes)
        return f"{base.label}[{(int(place) - base.offset) // ENTRY}]{of_block}"

    # -- the whole -----------------------------------------------------------------------------

    def timeline(self, rings: Sequence[data.Ring]) -> data.Timeline:
        events = self.events
        for arrivals in events.arrivals.values():
            arrivals.sort()
        keys = list(dict.fromkeys([*(wait[3] for wait in events.waits), *events.arrivals]))
        numbers = {key: number for number, key in enumerate(keys)}
        waits: list[tuple[int, int, int, int, int, int]] = []
        phases: dict[tuple[int, int, int], None] = {}
        for row, start, end, key, place in sorted(events.waits):
            released = self._released(key, end)
            waits.append((row, start, end, numbers[key], released[1], place))
            if released[1] >= 0:
                phases[numbers[key], released[0], released[1]] = None
        until = events.full_at
        if len(waits) > data.MOST_DRAWN:
            cut = sorted(wait[1] for wait in waits)[data.MOST_DRAWN]
            until = cut if until is None else min(cut, until)
        kept = [wait for wait in waits if until is None or wait[1] < until]
        return data.Timeline(
            rows=[*self._rows()],
            barriers=[*map(self._name, keys)],
            waits=kept,
            phases=sorted(phase for phase in phases if until is None or phase[1] < until),
            slots=[*self._slots(rings, until)],
            stuck=[],
            full_at=until,
            unit="clocks",
            work=[numbers[key] for key in keys if key[0] == "work"],
        )

    def _rows(self) -> Iterator[data.TimelineRow]:
        for row, records in enumerate(self.records):
            rank, warp = divmod(row, self.warps)
            ends = [*self._clocks(row)]
            last = ends[1][0] if len(ends) == 2 else records[-1][1] if records else self.starts[rank]
            yield data.TimelineRow(rank, warp, data.role_of(self.roles, warp), last - self.starts[rank])

    def _released(self, key: _Key, end: int) -> tuple[int, int]:
        """(when, by whom): the last one who arrived there before, (0, -1) if nobody did."""
        arrivals = self.events.arrivals.get(key, [])
        found = bisect_right(arrivals, (end, len(self.records)))
        return arrivals[found - 1] if found else (0, -1)

    def _slots(self, rings: Sequence[data.Ring], until: int | None) -> Iterator[data.Slot]:
        """By the names that `lower-rings` gives the mbarriers."""
        keys = {self._name(key): key for key in [*self.events.arrivals, *(wait[3] for wait in self.events.waits)]}
        for number, ring in enumerate(rings):
            for rank in range(self.ranks):
                of_block = f" of block {rank}" if self.ranks > 1 else ""
                for slot in range(ring.stages):
                    full, empty = (f"{name}{number or ''}[{slot}]{of_block}" for name in ("full", "empty"))
                    spans = self._uses(keys.get(full), keys.get(empty))
                    spans = [span for span in spans if until is None or span[0] < until]
                    yield data.Slot(f"{ring.name}[{slot}]{of_block}", spans)

    def _uses(self, full: _Key | None, empty: _Key | None) -> list[tuple[int, int]]:
        """(from the first wait's end, to the last arrival) of each filling."""
        arrivals = self.events.arrivals
        fills = [(at, 0) for at, _ in arrivals.get(full, [])] if full else []
        begun = [(end, 1) for _, _, end, key, _ in self.events.waits if key == full]
        freed = [(at, 2) for at, _ in arrivals.get(empty, [])] if empty else []
        uses: list[tuple[int, int]] = []
        now: tuple[int, int] | None = None
        for at, what in sorted([*fills, *begun, *freed]):
            if what == 0 and now is not None:
                uses.append(now)
                now = None
            elif what == 1:
                now = now or (at, -1)
            elif what == 2 and now is not None:
                now = now[0], at
        return [*uses, *([now] if now is not None else [])]
