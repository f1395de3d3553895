"""The timeline of a report, from what a run of the check recorded, and as a file for trace viewers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tiledsl.backends.emulator.timeline import Timeline
from tiledsl.errors import Finding
from tiledsl.inspect.report import data
from tiledsl.inspect.report.places import Places

MOST_DRAWN = 6000
"""Waits and phases of a report."""


def timeline_of(
    run: Timeline, failed: Finding | None, roles: Sequence[data.Role], rings: Sequence[data.Ring], places: Places
) -> data.Timeline:
    """failed: what the check found, if anything."""
    count = run.warps

    def role(warp: int) -> str:
        return next((r.title for r in roles if r.first_warp <= warp < r.first_warp + r.warps), "")

    rows = [
        data.TimelineRow(rank, warp, role(warp), int(run.now[rank * count + warp]))
        for rank in range(len(run.blocks))
        for warp in range(count)
    ]
    full_at = _full_at(run)
    until = float("inf") if full_at is None else full_at
    waits = sorted((w.warp, w.start, w.end, w.barrier, w.by, places.of(w.loc)) for w in run.waits if w.start < until)
    phases = sorted((p.end, p.barrier, p.by) for p in run.phases if p.end < until)
    return data.Timeline(
        rows=rows,
        barriers=run.barriers,
        waits=waits,
        phases=[(barrier, end, by) for end, barrier, by in phases],
        slots=[*_slots(run, phases, rings)],
        stuck=[*_stuck(run, failed, places)] if failed is not None else [],
        full_at=full_at,
    )


def _full_at(run: Timeline) -> int | None:
    """The time from which on events are left out, so that a report has `MOST_DRAWN` or fewer; None: none is."""
    times = sorted([wait.start for wait in run.waits] + [phase.end for phase in run.phases])
    cuts = [run.full_at] if run.full_at is not None else []
    return min([*cuts, *times[MOST_DRAWN : MOST_DRAWN + 1]], default=None)


def _slots(run: Timeline, phases: Sequence[tuple[int, int, int]], rings: Sequence[data.Ring]) -> Iterator[data.Slot]:
    """`lower-rings` calls the mbarriers of ring number n "full" and "empty", with n behind from the second one on."""
    ends: dict[str, list[int]] = {}
    for end, barrier, _ in phases:
        ends.setdefault(run.barriers[barrier], []).append(end)
    for number, ring in enumerate(rings):
        for rank in range(len(run.blocks)):
            of_block = f" of block {rank}" if len(run.blocks) > 1 else ""
            for slot in range(ring.stages):
                full, empty = (ends.get(f"{name}{number or ''}[{slot}]{of_block}", []) for name in ("full", "empty"))
                spans = [(at, empty[i] if i < len(empty) else -1) for i, at in enumerate(full)]
                yield data.Slot(f"{ring.name}[{slot}]{of_block}", spans)


def _stuck(run: Timeline, failed: Finding, places: Places) -> Iterator[tuple[int, str, int]]:
    x, y, _ = run.launch.grid
    for side in failed.sides if failed.code == "T401" else ():
        if side.block is None:
            continue
        i, j, k = side.block
        block = i + x * (j + y * k)
        if block in run.blocks:
            for warp in side.warps:
                yield run.blocks.index(block) * run.warps + warp, side.does, places.of(side.loc)


def trace_events(report: data.Report) -> dict[str, Any]:
    """In the Trace Event Format, which Perfetto and Chrome show; an op counts as a microsecond. Processes are blocks,
    threads are warps. A flow leads from the warp that releases to the one that waited."""
    timeline = report.timeline
    assert timeline is not None, "the check did not run"
    blocks = len({row.rank for row in timeline.rows})

    def row_of(number: int) -> dict[str, int]:
        row = timeline.rows[number]
        return {"pid": row.rank, "tid": row.warp}

    def line(place: int) -> str:
        return f"{report.files[report.places[place][0]]}:{report.places[place][1]}" if place >= 0 else ""

    def name_of(number: int) -> str:
        row = timeline.rows[number]
        return (
            (f"block {row.rank} " if blocks > 1 else "") + f"warp {row.warp}" + (f" ({row.role})" if row.role else "")
        )

    events: list[dict[str, Any]] = []
    for rank in range(blocks):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"block {rank}"}})
    for number, row in enumerate(timeline.rows):
        events.append({"ph": "M", "name": "thread_name", **row_of(number), "args": {"name": name_of(number)}})
        begun = 0
        waits = [wait for wait in timeline.waits if wait[0] == number]
        for _, start, end, barrier, by, place in waits:
            if start > begun:
                events.append(
                    {"ph": "X", "name": "run", "cat": "run", "ts": begun, "dur": start - begun, **row_of(number)}
                )
            args = {"released by": name_of(by) if by >= 0 else "", "line": line(place)}
            name = f"waits for {timeline.barriers[barrier]}"
            events.append(
                {
                    "ph": "X",
                    "name": name,
                    "cat": "wait",
                    "ts": start,
                    "dur": end - start,
                    "args": args,
                    **row_of(number),
                }
            )
            begun = end
        if timeline.full_at is None and row.end > begun:
            events.append(
                {"ph": "X", "name": "run", "cat": "run", "ts": begun, "dur": row.end - begun, **row_of(number)}
            )
    for barrier, end, by in timeline.phases:
        if by >= 0:
            name = f"a phase of {timeline.barriers[barrier]} ends"
            events.append({"ph": "i", "s": "t", "name": name, "cat": "phase", "ts": end, **row_of(by)})
    for number, does, place in timeline.stuck:
        args = {"for": does, "line": line(place)}
        at = timeline.rows[number].end
        events.append(
            {"ph": "i", "s": "t", "name": "waits for ever", "cat": "wait", "ts": at, "args": args, **row_of(number)}
        )
    for flow, (number, _, end, _, by, _) in enumerate(timeline.waits):
        if by >= 0:
            link = {"id": flow, "name": "release", "cat": "release", "ts": end}
            events += {"ph": "s", **link, **row_of(by)}, {"ph": "f", "bp": "e", **link, **row_of(number)}
    for slot in timeline.slots:
        for full, free in slot.spans:
            until = free if free >= 0 else max(row.end for row in timeline.rows)
            link = {"cat": "slot", "name": slot.name, "id": f"{slot.name} {full}", "pid": 0, "tid": 0}
            events += {"ph": "b", "ts": full, **link}, {"ph": "e", "ts": until, **link}
    return {
        "traceEvents": events,
        "otherData": {
            "kernel": report.kernel.label,
            "time": "a microsecond is an op that a warp executed on the emulator",
        },
    }
