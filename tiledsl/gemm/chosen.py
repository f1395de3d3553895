"""``python -m tiledsl choose``: how `gemm` computes a product, why, and what the runners-up would cost.

    python -m tiledsl choose 4096x4096x4096 --format bf16
    python -m tiledsl choose 16x512x512x64 --stored NT --out f32 --top 5

Nothing is compiled, and no GPU is needed: the choice is a model of the time that each variant takes. Times are in
microseconds, of a launch between others on an H200 whose operands are not in L2.
"""

from __future__ import annotations

import argparse
from typing import Any

from tiledsl.arch import TARGETS, target_named
from tiledsl.errors import TileError
from tiledsl.gemm.apart import pays
from tiledsl.gemm.choice import Estimate, Variant, ranked
from tiledsl.gemm.ffma import fastest
from tiledsl.gemm.ffma_choice import EstimateF32, ranked_f32
from tiledsl.gemm.formats import FORMATS
from tiledsl.gemm.hopper import hopper_fastest
from tiledsl.gemm.operands import dtype_named
from tiledsl.gemm.plan import Plan, Problem, choice_of, choice_of_f32, plan
from tiledsl.gemm.steps import problem_of
from tiledsl.gemm.warm_up import operands_of
from tiledsl.tables import table

__all__ = ["explain_choice", "run"]

STEPS = """\
steps take as long as the longest of products, staging and loads;
total = launch + steps + stores + reads + writes + reduction"""
BOUNDS = "the longest of compute, memory and L2 counts, and a little of the others; launch and reduction are added"


def run(arguments: argparse.Namespace) -> int:
    """Print."""
    format = FORMATS.get((arguments.format, arguments.format))
    if format is None:
        known = ", ".join(a for a, b in FORMATS if a == b)
        raise TileError(f"choose: gemm takes no {arguments.format!r}\n  fix: give one of {known}")
    if arguments.processors < 1 or arguments.top < 1:
        raise TileError("choose: --processors and --top are 1 or more")
    target_named(arguments.arch)
    out = dtype_named(arguments.out) if arguments.out else format.results[0]
    if out not in format.results:
        possible = ", ".join(result.name for result in format.results)
        raise TileError(f"choose: a C of {out} for {format}\n  fix: give one of {possible}")
    for numbers in arguments.sizes:
        of = operands_of(numbers, (format.a, format.b, out), arguments.stored, arguments.bias, arguments.bias, 0)
        of = of._replace(batch_invariant=arguments.batch_invariant)
        beta = 1.0 if arguments.add_c else 0.0
        problem = problem_of(of, beta, arguments.bias, arguments.arch, arguments.processors)
        print(f"{'x'.join(map(str, numbers))}, {format.a} to {out}, A and B stored as {arguments.stored}")
        print(explain_choice(problem, arguments.top))
    return 0


def explain_choice(problem: Problem, top: int = 2) -> str:
    """What is chosen for a product, and the terms of the model for the `top` fastest candidates."""
    chosen = plan(problem)
    lines = [f"by {chosen.kernel.name} on {problem.arch} with {problem.processors} SMs: {_shown(chosen.consts)}"]
    lines += [f"  {note}" for note in _notes(chosen)]
    if chosen.kernel is hopper_fastest:
        lines.append(_of_hopper(problem, chosen, top))
    elif chosen.kernel is fastest:
        sizes, options, _ = choice_of_f32(problem, across_k=chosen.across_k)
        found = ranked_f32(top, *sizes, **options)
        labels = [
            f"{_shown(candidate.consts)}{f', k in {parts} parts' if parts > 1 else ''}"
            f"{f', but of the first {whole} tiles' if whole else ''}"
            for candidate, parts, whole, _ in found
        ]
        lines.append(_table(labels, [times for *_, times in found], EstimateF32._fields, 1, BOUNDS))
    else:
        wgmma = ", ".join(name for name, target in TARGETS.items() if "wgmma" in target.features)
        lines.append(f"  from a table of what fits in shared memory; there is a model for {wgmma} and for f32 alone")
    return "\n".join(lines) + "\n"


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
    parts = (chosen.consts.get("SPLIT") or 1) * (chosen.sums[0] if chosen.sums else 1)
    if parts > 1:
        notes.append(f"k in {parts} parts, whose sums are added up within the launch")
    if chosen.early or chosen.consts.get("EARLY"):
        notes.append("may start before the launch before it has ended")
    return notes


def _of_hopper(problem: Problem, chosen: Plan, top: int) -> str:
    apart = "APART" in chosen.consts
    found = ranked(top, *choice_of(problem, apart=apart))
    lines: list[str] = []
    unaligned = not problem.tma_a, not problem.tma_b
    loads = (problem.tma_a or problem.apart_a) and (problem.tma_b or problem.apart_b)
    if any(unaligned) and not apart and loads and not problem.format.along_k:
        ((other, _),) = ranked(1, *choice_of(problem, apart=True))
        assert not pays(other, *problem[:4], unaligned, problem.processors)
        lines.append("  loading operands in parts would take longer than copying them")
    names = Estimate._fields
    lines.append(_table([_label(v) for v, _ in found], [times for _, times in found], names, 1e-3, STEPS))
    return "\n".join(lines)


def _label(v: Variant) -> str:
    """A variant in a few words."""
    rows, columns, instances = v.tile
    shown = f"{rows} x {columns}{', pingpong' if instances == 2 else ''}{', transposed' if v.exchanged else ''}"
    if v.parts:
        shown += f", k by {v.parts} x {v.groups}"
    return shown + (f", cluster {v.along_m} x {v.along_n}" if v.along_m * v.along_n > 1 else "")


def _table(labels: list[str], times: list[Any], names: tuple[str, ...], unit: float, note: str) -> str:
    """Candidates, the chosen one first, with their terms."""
    rows = [
        (label, f"{unit * each.total:.2f}", *(f"{unit * term:.2f}" for term in each))
        for label, each in zip(labels, times, strict=True)
    ]
    runner_up = ""
    if len(times) > 1:
        runner_up = f"\nthe runner-up is expected to take {100 * (times[1].total / times[0].total - 1):.1f}% longer"
    return f"{table(('candidate', 'total us', *names), rows, {0})}\n{note}{runner_up}"


def _shown(consts: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in consts.items())
