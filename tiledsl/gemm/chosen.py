"""Say how `gemm` computes a product, why, and what the runners-up would cost.

    tiledsl choose 4096x4096x4096 --format bf16
    tiledsl choose 16x512x512x64 --stored NT --out f32 --top 5

Nothing is compiled, and no GPU is needed: the choice is a model of the time that each variant takes. Times are in
microseconds, of a launch between others on an H200 whose operands are not in L2.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any

from tiledsl.arch import TARGETS
from tiledsl.errors import UsageError
from tiledsl.gemm.asked import asked_format
from tiledsl.gemm.choice import Variant, ranked
from tiledsl.gemm.ffma import fastest
from tiledsl.gemm.ffma_choice import ranked_f32
from tiledsl.gemm.hopper import hopper_fastest
from tiledsl.gemm.plan import Plan, Problem, choice_as_two, choice_of, choice_of_f32, plan
from tiledsl.gemm.steps import problem_of
from tiledsl.gemm.warm_up import operands_of
from tiledsl.inspect.arguments import add_arch, add_json, checked_arch, print_json
from tiledsl.inspect.bench import parse_size
from tiledsl.inspect.contenders import LAYOUTS
from tiledsl.tables import table
from tiledsl.tune.space import shown

SCHEMA = "tiledsl.choose/1"

STEPS = """\
steps take as long as the slowest of products, staging, loads and memory, and a little of the others;
total = launch + steps + stores + reduction"""
BOUNDS = "the longest of compute, memory and L2 counts, and a little of the others; launch and reduction are added"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sizes", nargs="+", type=parse_size, metavar="[BATCHx]MxNxK")
    parser.add_argument("--format", default="bf16", help="dtype of A and B; bf16 unless given")
    parser.add_argument("--out", help="dtype of C (default: what gemm makes)")
    parser.add_argument("--stored", choices=LAYOUTS, default="NN", help="A and B: N in rows, T transposed")
    parser.add_argument("--bias", action="store_true", help="with a bias")
    parser.add_argument("--add-c", action="store_true", help="with a beta that is not 0")
    parser.add_argument("--batch-invariant", action="store_true", help="the bits of a row must not depend on M")
    parser.add_argument("--processors", type=int, default=132, help="SMs of the GPU; 132 unless given")
    parser.add_argument("--top", type=int, default=2, help="how many candidates are shown; 2 unless given")
    add_arch(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print."""
    format, out = asked_format("choose", arguments.format, arguments.out)
    if arguments.processors < 1 or arguments.top < 1:
        raise UsageError("choose: --processors and --top are 1 or more\n  fix: leave them out")
    checked_arch(arguments.arch)
    found: list[dict[str, Any]] = []
    for numbers in arguments.sizes:
        of = operands_of(numbers, (format.a, format.b, out), arguments.stored, arguments.bias, False, 0)
        of = of._replace(batch_invariant=arguments.batch_invariant)
        beta = 1.0 if arguments.add_c else 0.0
        problem = problem_of(of, beta, False, arguments.arch, arguments.processors)
        choice = explain_choice(problem, arguments.top)
        if not arguments.json:
            print(f"{'x'.join(map(str, numbers))}, {format.a} to {out}, A and B stored as {arguments.stored}")
            print(choice)
        found.append({"size": [*numbers], **choice.to_dict()})
    if arguments.json:
        asked = {"format": str(format.a), "out": str(out), "stored": arguments.stored, "arch": arguments.arch}
        print_json(SCHEMA, **asked, processors=arguments.processors, choices=found)
    return 0


@dataclass(frozen=True)
class Choice:
    """What is chosen for a product. `candidates`: the fastest ones with the terms of the model, in units of `unit`
    microseconds, the chosen one first; none where there is no model."""

    problem: Problem
    plan: Plan
    notes: list[str]
    candidates: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    unit: float = 1
    legend: str = ""

    def to_dict(self) -> dict[str, Any]:
        candidates = [
            {
                "candidate": label,
                "total_us": round(float(self.unit * each.total), 4),
                "terms_us": {name: round(float(self.unit * value), 4) for name, value in each._asdict().items()},
            }
            for label, each in self.candidates
        ]
        consts = {name: shown(value) for name, value in self.plan.consts.items()}
        return {"kernel": self.plan.kernel.name, "consts": consts, "notes": self.notes, "candidates": candidates}

    def __str__(self) -> str:
        problem, plan = self.problem, self.plan
        lines = [f"by {plan.kernel.name} on {problem.arch} with {problem.processors} SMs: {_shown(plan.consts)}"]
        lines += [f"  {note}" for note in self.notes]
        if self.candidates:
            lines.append(self._table())
        return "\n".join(lines) + "\n"

    def _table(self) -> str:
        rows = [
            (label, f"{self.unit * each.total:.2f}", *(f"{self.unit * term:.2f}" for term in each))
            for label, each in self.candidates
        ]
        runner_up = ""
        if len(rows) > 1:
            (_, first), (_, second) = self.candidates[:2]
            longer = 100 * (second.total / first.total - 1)
            runner_up = f"\nthe runner-up is expected to take {longer:.1f}% longer"
        names = self.candidates[0][1]._fields
        return f"{table(('candidate', 'total us', *names), rows, {0})}\n{self.legend}{runner_up}"


def explain_choice(problem: Problem, top: int = 2) -> Choice:
    """What is chosen for a product, and the terms of the model for the `top` fastest candidates."""
    chosen = plan(problem)
    notes = _notes(chosen)
    if chosen.kernel is hopper_fastest:
        candidates, more = _of_hopper(problem, chosen, top)
        return Choice(problem, chosen, [*notes, *more], candidates, 1e-3, STEPS)
    if chosen.kernel is fastest:
        product, _ = choice_of_f32(problem, across_k=chosen.across_k)
        candidates = [
            (
                f"{_shown(candidate.consts)}{f', k in {parts} parts' if parts > 1 else ''}"
                f"{f', but of the first {whole} tiles' if whole else ''}",
                times,
            )
            for candidate, parts, whole, times in ranked_f32(top, product, problem.batch_invariant)
        ]
        return Choice(problem, chosen, notes, candidates, 1, BOUNDS)
    wgmma = ", ".join(name for name, target in TARGETS.items() if "wgmma" in target.features)
    why = f"from a table of what fits in shared memory; there is a model for {wgmma} and for f32 alone"
    return Choice(problem, chosen, [*notes, why])


def _notes(chosen: Plan) -> list[str]:
    """What a plan says besides its consts."""
    padded = [name for name, pad in (("A", chosen.pad_a), ("B", chosen.pad_b)) if pad]
    notes: list[str] = []
    if chosen.exchanged:
        notes.append("computed as the transposed product: rows of the tile are columns of C")
    if padded:
        why = "across k, in which order the kernel loads it faster" if chosen.across_k else "that TMA can read"
        notes.append(f"{' and '.join(padded)} copied first, to rows {why}")
    if "APART" in chosen.consts:
        notes.append("operands that TMA cannot read as they are loaded in parts")
    if chosen.every_other:
        notes.append("as two products, of every other row: so tiles of C begin where L2's sectors do")
    parts = (chosen.consts.get("SPLIT") or 1) * (chosen.sums[0] if chosen.sums else 1)
    if parts > 1:
        notes.append(f"k in {parts} parts, whose sums are added up within the launch")
    if chosen.early or chosen.consts.get("EARLY"):
        notes.append("may start before the launch before it has ended")
    return notes


def _of_hopper(problem: Problem, chosen: Plan, top: int) -> tuple[list[tuple[str, Any]], list[str]]:
    """The candidates, and a note on one that was left out."""
    request = choice_as_two(problem) if chosen.every_other else choice_of(problem)
    longer = request.apart and "APART" not in chosen.consts
    notes = ["loading operands in parts would take longer than copying them"] if longer else []
    return [(_label(v), times) for v, times in ranked(top, request)], notes


def _label(v: Variant) -> str:
    """A variant in a few words."""
    rows, columns, instances = v.tile
    shown = f"{rows} x {columns}{', pingpong' if instances == 2 else ''}{', transposed' if v.exchanged else ''}"
    if v.parts:
        shown += f", k by {v.parts} x {v.groups}"
    shown += ", in parts" if v.apart else ""
    return shown + (f", cluster {v.along_m} x {v.along_n}" if v.along_m * v.along_n > 1 else "")


def _shown(consts: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in consts.items())
