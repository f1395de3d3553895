"""The timeline of a report, from what a run of the check recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tiledsl.backends.emulator.timeline import Timeline
from tiledsl.errors import Finding
from tiledsl.inspect.report import data
from tiledsl.inspect.report.places import Places


def timeline_of(
    run: Timeline, deadlock: Finding | None, roles: Sequence[data.Role], rings: Sequence[data.Ring], places: Places
) -> data.Timeline:
    """deadlock: the one that ended the run, if so."""
    count = run.warps
    rows = [
        data.TimelineRow(rank, warp, data.role_of(roles, warp), int(run.now[rank * count + warp]))
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
        stuck=[*_stuck(run, deadlock, places)] if deadlock is not None else [],
        full_at=full_at,
    )


def _full_at(run: Timeline) -> int | None:
    """The time from which on events are left out, so that a report has `data.MOST_DRAWN` or fewer; None: none is."""
    times = sorted([wait.start for wait in run.waits] + [phase.end for phase in run.phases])
    cuts = [run.full_at] if run.full_at is not None else []
    return min([*cuts, *times[data.MOST_DRAWN : data.MOST_DRAWN + 1]], default=None)


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


def _stuck(run: Timeline, deadlock: Finding, places: Places) -> Iterator[tuple[int, str, int]]:
    x, y, _ = run.launch.grid
    for side in deadlock.sides:
        if side.block is None:
            continue
        i, j, k = side.block
        block = i + x * (j + y * k)
        if block in run.blocks:
            for warp in side.warps:
                yield run.blocks.index(block) * run.warps + warp, side.does, places.of(side.loc)
