"""The timelines of a report in the Trace Event Format, which Perfetto and Chrome show.

Processes are blocks, threads are warps. A flow leads from the warp that releases to the one that waited. An op on the
emulator counts as a microsecond; a measured time is one, as far as the clock's rate is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tiledsl.inspect.report import data

_Event = dict[str, Any]
_OF_GPU = 1000
"""The number of the first process of a measured run."""


def trace_events(report: data.Report) -> dict[str, Any]:
    events: list[_Event] = []
    notes: list[str] = []
    if report.timeline is not None:
        events += _Trace(report, report.timeline, "", 0, lambda time: time).events()
        notes.append("a microsecond is an op that a warp executed on the emulator")
    if (run := report.measured) is not None:
        scale = run.mhz or 1
        events += _Trace(report, run.timeline, f"{run.gpu}, ", _OF_GPU, lambda time: round(time / scale, 4)).events()
        notes.append(f"of the {run.gpu}, it is " + (f"{run.mhz} clocks of an SM" if run.mhz else "a clock of an SM"))
    return {"traceEvents": events, "otherData": {"kernel": report.kernel.label, "time": "; ".join(notes)}}


class _Trace:
    def __init__(
        self, report: data.Report, timeline: data.Timeline, of: str, first: int, time: Callable[[int], float]
    ) -> None:
        """of: before the names of processes, whose numbers begin with `first`. time: a clock in microseconds."""
        self.report, self.timeline, self.of, self.first, self.time = report, timeline, of, first, time
        self.blocks = len({row.rank for row in timeline.rows})

    def events(self) -> Iterator[_Event]:
        for rank in range(self.blocks):
            args = {"name": f"{self.of}block {rank}"}
            yield {"ph": "M", "name": "process_name", "pid": self.first + rank, "args": args}
        for number in range(len(self.timeline.rows)):
            yield from self._warp(number)
        for barrier, end, by in self.timeline.phases:
            if by >= 0:
                yield self._instant(f"a phase of {self.timeline.barriers[barrier]} ends", "phase", end, by)
        for number, does, place in self.timeline.stuck:
            args = {"for": does, "line": self._line(place)}
            at = self.timeline.rows[number].end
            yield {**self._instant("waits for ever", "wait", at, number), "args": args}
        for flow, (number, _, end, _, by, _) in enumerate(self.timeline.waits):
            if by >= 0:
                link = {"id": self.first + flow, "name": "release", "cat": "release", "ts": self.time(end)}
                yield {"ph": "s", **link, **self._row(by)}
                yield {"ph": "f", "bp": "e", **link, **self._row(number)}
        yield from self._slots()

    def _warp(self, number: int) -> Iterator[_Event]:
        timeline, row = self.timeline, self.timeline.rows[number]
        yield {"ph": "M", "name": "thread_name", **self._row(number), "args": {"name": self._name(number)}}
        begun = 0
        for _, start, end, barrier, by, place in (wait for wait in timeline.waits if wait[0] == number):
            if start > begun:
                yield self._span("run", "run", begun, start, number)
            args = {"released by": self._name(by) if by >= 0 else "", "line": self._line(place)}
            yield {**self._span(f"waits for {timeline.barriers[barrier]}", "wait", start, end, number), "args": args}
            begun = end
        if timeline.full_at is None and row.end > begun:
            yield self._span("run", "run", begun, row.end, number)

    def _slots(self) -> Iterator[_Event]:
        last = max((row.end for row in self.timeline.rows), default=0)
        for slot in self.timeline.slots:
            for full, free in slot.spans:
                link = {"cat": "slot", "name": slot.name, "id": f"{slot.name} {full}", "pid": self.first, "tid": 0}
                yield {"ph": "b", "ts": self.time(full), **link}
                yield {"ph": "e", "ts": self.time(free if free >= 0 else last), **link}

    def _span(self, name: str, kind: str, start: int, end: int, number: int) -> _Event:
        times = {"ts": self.time(start), "dur": self.time(end - start)}
        return {"ph": "X", "name": name, "cat": kind, **times, **self._row(number)}

    def _instant(self, name: str, kind: str, at: int, number: int) -> _Event:
        return {"ph": "i", "s": "t", "name": name, "cat": kind, "ts": self.time(at), **self._row(number)}

    def _row(self, number: int) -> dict[str, int]:
        row = self.timeline.rows[number]
        return {"pid": self.first + row.rank, "tid": row.warp}

    def _line(self, place: int) -> str:
        report = self.report
        return f"{report.files[report.places[place][0]]}:{report.places[place][1]}" if place >= 0 else ""

    def _name(self, number: int) -> str:
        row = self.timeline.rows[number]
        of_block = f"block {row.rank} " if self.blocks > 1 else ""
        return f"{of_block}warp {row.warp}" + (f" ({row.role})" if row.role else "")
