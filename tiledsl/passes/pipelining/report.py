"""What runs ahead of what: the schedule of each pipelined loop and the groups of other copies, as data and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import arith, async_copy, matrix
from tiledsl.ir.ops.tile import allocation
from tiledsl.passes.analysis.called import name_of
from tiledsl.passes.pipelining.plan import LoopPlan
from tiledsl.tables import table


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """All pipelined loops of a kernel, and a line for each commit and wait outside of them. `str` gives the tables."""

    kernel: str
    loops: Sequence[LoopPlan]
    groups: Sequence[str]

    def __str__(self) -> str:
        if not self.loops and not self.groups:
            return f"asynchronous copies (cp.async) of {self.kernel}: none, and no pipelined loop"
        parts = [f"pipelined loops of {self.kernel}: {len(self.loops)}", *map(loop_text, self.loops)]
        if self.groups:
            parts.append("\n".join([f"groups of {self.kernel} outside of pipelined loops:", *self.groups]))
        return "\n\n".join(parts if self.loops else parts[1:])


# -- pipelined loops --------------------------------------------------------------------------------


def loop_text(plan: LoopPlan) -> str:
    """The buffers of a loop, and its schedule."""
    stages, trips, shared = plan.stages, plan.trips, plan.shares_with
    fragments = f"fragments: {plan.fragments}{f', because {plan.why}' if plan.fragments == 1 else ''}"
    lines = [f"line {plan.op.loc.line}: {stages} stage{'s' if stages > 1 else ''}, {fragments}"]
    total = 0
    for tile in plan.tiles:
        type_ = allocation(tile).type
        shape, size = " x ".join(map(str, type_.dims)), type_.bytes
        lines.append(f"{name_of(tile)}: {shape} {type_.dtype}, {stages} x {size} = {stages * size} bytes")
        total += stages * size
    lines.append(f"in all {total} bytes in row order")
    if not plan.is_async:
        lines.append("copy() stores by itself: no groups and no waits, only barriers")
    if shared is not None:
        lines.append(f"a barrier before the first copies: line {shared.loc.line} may still access the same bytes")
    lines.append(f"trips: {'counted at run time' if trips is None else trips}; only iterations that exist are copied")
    rows = schedule(plan)
    kept = [name for name in _COLUMNS if any(name in row for row in rows)]
    cells = [[row.get(name, "") for name in kept] for row in rows]
    return "\n".join(lines) + "\n\n" + table(kept, cells, left=range(len(kept)))


_COLUMNS = ("iteration", "wait", "in flight", "barrier", "loads", "copies", "commit", "compute")


def schedule(plan: LoopPlan) -> list[dict[str, str]]:
    """What `loops` writes: a row for what happens between two synchronisations, in the order of its columns.

    in flight: the iterations whose copies may go on behind the wait. copies: of which iteration, and the slot that they
    fill. loads, compute: what is read and used.
    """
    n, last = plan.stages, len(plan.steps) - 1
    rows: list[dict[str, str]] = []

    def add(iteration: str, **cells: str) -> None:
        named = {"iteration": iteration, **cells}
        rows.append({name.replace("_", " "): text for name, text in named.items() if text})

    def arrived(of: str, others: Sequence[str], frees: str = "") -> dict[str, str]:
        barrier = f"shows the copies of {of}" + (f", frees the slot of {frees}" if frees else "")
        waits = {"wait": f"wait_group {max(0, n - 2)}", "in_flight": ", ".join(others)} if plan.is_async else {}
        return {**waits, "barrier": barrier}

    commit = "commit" if plan.is_async else ""
    if n == 1:
        add("each i", copies="i", commit=commit)
        add("", **arrived("i", []), compute=_compute(plan.consumers))
        add("", barrier="frees the tiles")
        return rows
    for s in range(n - 1):
        add(f"before: {s}", copies=f"{s} to slot {s}", commit=commit)
    ahead, each = f"i+{n - 1} to slot (i+{n - 1}) mod {n}", "each i but the last"
    if not plan.steps:
        later = arrived("i", [f"i+{s}" for s in range(1, n - 1)], frees="i-1")
        add("each i", **later, copies=ahead, commit=commit, compute=_compute(plan.consumers))
        return rows
    add("first", **arrived("0", [str(s) for s in range(1, n - 1)]), loads="step 0 of 0")
    if last == 0:
        add(each, copies=ahead, commit=commit)
    for j, (step, copies) in enumerate(zip(plan.steps, plan.shares, strict=False)):
        part = "" if len(copies) == len(plan.copies) else f"{len(copies)} of {len(plan.copies)} of "
        now, group = f"{part}{ahead}" if copies else "", commit if j == last - 1 else ""
        add(f"{each}: step {j}", loads=f"step {j + 1}", copies=now, commit=group, compute=_compute(step.compute))
    later = arrived("i+1", [f"i+{s}" for s in range(2, n)], frees="i")
    add(f"{each}: step {last}", **later, loads="step 0 of i+1", compute=_compute(plan.steps[last].compute))
    for j, step in enumerate(plan.steps):
        add(f"the last: step {j}", loads=f"step {j + 1}" if j < last else "", compute=_compute(step.compute))
    return rows


def _compute(ops: Sequence[Op]) -> str:
    """How many products, or the lines."""
    products = sum(isinstance(op, matrix.Mma) for op in ops)
    if products:
        return f"{products} mma"
    lines = sorted({op.loc.line for op in ops if op.loc.line and not isinstance(op, arith.Constant)})
    return f"line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))}" if lines else "consumers"


# -- groups of tokens and of the author -------------------------------------------------------------


def group_lines(kernel: Kernel, loops: Sequence[LoopPlan]) -> list[str]:
    """Of a kernel as it is after the pass `async-groups`; what it made of `loops` is left out."""
    made = {op.loc for loop in loops for op in (loop.op, *loop.copies)}
    found: dict[str, None] = {}  # unrolled copies of one are one
    copies: list[str] = []
    for op in kernel.walk():
        if op.loc in made:
            continue
        match op:
            case async_copy.Copy():
                copies.append(f"{name_of(op.dst.memory)} (line {op.loc.line})")
            case async_copy.CommitGroup():
                found[f"line {op.loc.line}: commits {', '.join(copies) or 'what was begun since the last one'}"] = None
                copies.clear()
            case async_copy.WaitGroup():
                left = f"{op.pending} group{'s' if op.pending > 1 else ''} may stay" if op.pending else "none stays"
                found[f"line {op.loc.line}: wait_group {op.pending}, {left} in flight"] = None
            case _:
                pass
    return list(found)
