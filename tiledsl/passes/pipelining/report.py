"""What runs ahead of what: the schedule of each pipelined loop and the groups of other copies, as data and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tiledsl.errors import Loc
from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import arith, async_copy, matrix
from tiledsl.passes.analysis.structure import trip_count
from tiledsl.passes.banks.bank_report import table
from tiledsl.passes.pipelining.loops import loop_plans
from tiledsl.passes.pipelining.plan import LoopPlan

__all__ = ["BufferReport", "GroupReport", "LoopReport", "PipelineReport", "Row", "group_reports", "loop_reports"]


@dataclass(frozen=True, slots=True)
class BufferReport:
    """A tile that a pipelined loop fills. bytes: of one stage, in row order."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    stages: int
    bytes: int

    @property
    def total(self) -> int:
        return self.stages * self.bytes


@dataclass(frozen=True, slots=True)
class Row:
    """What happens together, in this order: wait, barrier, loads, copies, computing.

    pending: n of ``wait_group n``, None without a wait. in_flight: the iterations whose copies may still be on their
    way then. loads, compute: what is read and used. copies: the iteration, and the slot that they fill.
    """

    when: str
    pending: int | None = None
    in_flight: str = ""
    barrier: str = ""
    loads: str = ""
    copies: str = ""
    commits: bool = False
    compute: str = ""


@dataclass(frozen=True, slots=True)
class LoopReport:
    """One pipelined loop. trips: None where only a launch knows. why: the reason where `fragments` is 1.

    entry: where the barrier before the first copies comes from; "" for none. is_async: groups and waits are needed.
    copies: where they stand.
    """

    loc: Loc
    stages: int
    fragments: int
    why: str
    trips: int | None
    is_async: bool
    entry: str
    copies: tuple[Loc, ...]
    buffers: tuple[BufferReport, ...]
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        fragments = f"fragments: {self.fragments}{f', because {self.why}' if self.fragments == 1 else ''}"
        lines = [f"line {self.loc.line}: {self.stages} stage{'s' if self.stages > 1 else ''}, {fragments}"]
        lines += [_buffer(buffer) for buffer in self.buffers]
        lines.append(f"in all {sum(b.total for b in self.buffers)} bytes in row order")
        if not self.is_async:
            lines.append("copy() stores by itself: no groups and no waits, only barriers")
        if self.entry:
            lines.append(f"a barrier before the first copies: {self.entry}")
        lines.append(self.trip_text())
        return "\n".join(lines) + "\n\n" + self.schedule()

    def trip_text(self) -> str:
        if self.trips is not None:
            return f"trips: {self.trips}, known at compile time"
        text = "trips: counted at run time, (hi - lo) / step rounded up; copies are made only for iterations that exist"
        return f"{text}; groups of others are empty" if self.is_async and self.stages > 1 else text

    def schedule(self) -> str:
        """One row for what happens between two synchronisations."""
        header = ["iteration", "wait", "in flight", "barrier", "loads", "copies", "commit", "compute"]
        rows = [
            [
                row.when,
                "" if row.pending is None else f"wait_group {row.pending}",
                row.in_flight,
                row.barrier,
                row.loads,
                row.copies,
                "commit" if row.commits else "",
                row.compute,
            ]
            for row in self.rows
        ]
        kept = [i for i in range(len(header)) if any(row[i] for row in rows)]
        return table([header[i] for i in kept], [[row[i] for i in kept] for row in rows], left=len(kept))


@dataclass(frozen=True, slots=True)
class GroupReport:
    """One commit or wait outside of pipelined loops, in program order.

    copies: line and tile of each copy in the group, if it is one of tokens. pending: of a wait; None for a commit.
    """

    loc: Loc
    copies: tuple[tuple[int, str], ...] = ()
    pending: int | None = None

    def __str__(self) -> str:
        if self.pending is None:
            tiles = (
                ", ".join(f"{name} (line {line})" for line, name in self.copies) or "what was begun since the last one"
            )
            return f"line {self.loc.line}: commits {tiles}"
        left = f"{self.pending} group{'s' if self.pending > 1 else ''} may stay" if self.pending else "none stays"
        return f"line {self.loc.line}: wait_group {self.pending}, {left} in flight"


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """All pipelined loops of a kernel, and all groups outside of them. `str` gives the tables."""

    kernel: str
    loops: tuple[LoopReport, ...]
    groups: tuple[GroupReport, ...]

    def __str__(self) -> str:
        if not self.loops and not self.groups:
            return f"asynchronous copies (cp.async) of {self.kernel}: none, and no pipelined loop"
        parts = [f"pipelined loops of {self.kernel}: {len(self.loops)}", *map(str, self.loops)] if self.loops else []
        if self.groups:
            parts.append("\n".join([f"groups of {self.kernel} outside of pipelined loops:", *map(str, self.groups)]))
        return "\n\n".join(parts)


def _buffer(buffer: BufferReport) -> str:
    shape = " x ".join(map(str, buffer.shape))
    return f"{buffer.name}: {shape} {buffer.dtype}, {buffer.stages} x {buffer.bytes} = {buffer.total} bytes"


# -- pipelined loops --------------------------------------------------------------------------------


def loop_reports(kernel: Kernel) -> tuple[LoopReport, ...]:
    """Of a kernel as it is before the pass `pipeline`."""
    return tuple(map(_loop, loop_plans(kernel)))


def _loop(plan: LoopPlan) -> LoopReport:
    buffers = tuple(
        BufferReport(t.result.name or "a tile", t.type.dims, t.type.dtype.name, plan.stages, t.type.bytes)
        for t in plan.tiles
    )
    shared = plan.shares_with
    entry = "" if shared is None else f"line {shared.loc.line} may still access the same bytes"
    rows = _single(plan) if plan.stages == 1 else _rows(plan)
    trips = trip_count(plan.op)
    copies = tuple(op.loc for op in plan.copies)
    return LoopReport(
        plan.op.loc, plan.stages, plan.fragments, plan.why, trips, plan.is_async, entry, copies, buffers, tuple(rows)
    )


def _single(plan: LoopPlan) -> list[Row]:
    wait = 0 if plan.is_async else None
    return [
        Row("each i", copies="i", commits=plan.is_async),
        Row("", wait, barrier="shows the copies of i", compute=_compute(plan.consumers)),
        Row("", barrier="frees the tiles"),
    ]


def _rows(plan: LoopPlan) -> list[Row]:
    """What `loops` writes for two stages or more."""
    before = [Row(f"before: {s}", copies=f"{s} to slot {s}", commits=plan.is_async) for s in range(plan.stages - 1)]
    return before + (_two_steps(plan) if plan.steps else [_one_step(plan)])


def _copies_ahead(plan: LoopPlan, row: Row) -> Row:
    n = plan.stages
    return replace(row, copies=f"i+{n - 1} to slot (i+{n - 1}) mod {n}", commits=plan.is_async)


def _share(plan: LoopPlan, row: Row, step: int) -> Row:
    """What stands in a step but the last: a part of the copies, and their group behind the last part."""
    count, last = len(plan.shares[step]), step == len(plan.shares) - 1
    whole = _copies_ahead(plan, row)
    if count < len(plan.copies):
        whole = replace(whole, copies=f"{count} of {len(plan.copies)} of {whole.copies}" if count else "")
    return replace(whole, commits=plan.is_async and last)


def _arrival(plan: LoopPlan, row: Row, of: str, others: Sequence[str], frees: str) -> Row:
    """The wait for the copies of iteration `of`, while those of `others` go on, and the barrier behind it."""
    pending = plan.stages - 2 if plan.is_async else None
    flying = ", ".join(others) if plan.is_async else ""
    barrier = f"shows the copies of {of}" + (f", frees the slot of {frees}" if frees else "")
    return replace(row, pending=pending, in_flight=flying, barrier=barrier)


def _one_step(plan: LoopPlan) -> Row:
    row = _copies_ahead(plan, Row("each i", compute=_compute(plan.consumers)))
    return _arrival(plan, row, "i", [f"i+{s}" for s in range(1, plan.stages - 1)], "i-1")


def _two_steps(plan: LoopPlan) -> list[Row]:
    n, last = plan.stages, len(plan.steps) - 1
    first = Row("first", loads="step 0 of 0")
    rows = [_arrival(plan, first, "0", [str(s) for s in range(1, n - 1)], "")]
    each = "each i but the last"
    if last == 0:
        rows.append(_copies_ahead(plan, Row(each)))
    for j, step in enumerate(plan.steps):
        row = Row(f"{each}: step {j}", loads=f"step {j + 1}", compute=_compute(step.compute))
        if j == last:
            row = _arrival(plan, row, "i+1", [f"i+{s}" for s in range(2, n)], "i")
            row = replace(row, loads="step 0 of i+1")
        rows.append(_share(plan, row, j) if j < last else row)
    for j, step in enumerate(plan.steps):
        loads = f"step {j + 1}" if j < last else ""
        rows.append(Row(f"the last: step {j}", loads=loads, compute=_compute(step.compute)))
    return rows


def _compute(ops: Sequence[Op]) -> str:
    """How many products, or the lines."""
    products = sum(isinstance(op, matrix.Mma) for op in ops)
    if products:
        return f"{products} mma"
    lines = sorted({op.loc.line for op in ops if op.loc.line and not isinstance(op, arith.Constant)})
    return f"line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))}" if lines else "consumers"


# -- groups of tokens and of the author -------------------------------------------------------------


def group_reports(kernel: Kernel, loops: Sequence[LoopReport]) -> tuple[GroupReport, ...]:
    """Of a kernel as it is after the pass `async-groups`; what it made of `loops` is left out."""
    made = {loc for loop in loops for loc in (loop.loc, *loop.copies)}
    found: dict[GroupReport, None] = {}  # unrolled copies of one are one
    copies: list[tuple[int, str]] = []
    for op in kernel.walk():
        if op.loc in made:
            continue
        match op:
            case async_copy.Copy():
                copies.append((op.loc.line, op.dst.memory.name or "a tile"))
            case async_copy.CommitGroup():
                found[GroupReport(op.loc, tuple(copies))] = None
                copies.clear()
            case async_copy.WaitGroup():
                found[GroupReport(op.loc, pending=op.pending)] = None
            case _:
                pass
    return tuple(found)
