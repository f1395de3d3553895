"""What was decided for a kernel, and what became of it: ``k.explain("banks")``, ``("pipeline")``, ``("sass")``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Protocol

from tiledsl.arch import target_named
from tiledsl.errors import TileError

if TYPE_CHECKING:
    from tiledsl.compiled import Compiled
    from tiledsl.passes.bank_report import BankReport

__all__ = ["EXPLAIN", "Report", "explain"]


class Report(Protocol):
    """An explanation: `str()` of it is the table to read; its attributes are the data."""

    def __str__(self) -> str: ...


def _banks(compiled: Compiled) -> Report:
    """Every shared access with its wavefronts, and the layouts: `passes.bank_report.BankReport`."""
    from dataclasses import replace

    from tiledsl.compiler import lower
    from tiledsl.ir.core import Kernel
    from tiledsl.passes.bank_conflicts import BankConflicts, bank_report
    from tiledsl.passes.pipeline import stages

    names = stages()
    before = f"after:{names[names.index(BankConflicts.name) - 1]}"
    limit = target_named(compiled.arch).shared_per_block
    reports: list[BankReport] = []

    def observe(stage: str, kernel: Kernel) -> None:
        if stage == before:  # what the pass sees; what it will choose follows from that alone
            reports.append(bank_report(kernel, limit))

    lower(compiled.signature, compiled.spec, compiled.arch, observe=observe)
    (report,) = reports
    return replace(report, title=f"{compiled.label} for {compiled.arch}")


def _pipeline(compiled: Compiled) -> Report:
    """The schedules of pipelined loops, and other groups of copies: `passes.pipeline_report.PipelineReport`."""
    from tiledsl.compiler import lower
    from tiledsl.ir.core import Kernel
    from tiledsl.passes.async_groups import AsyncGroups
    from tiledsl.passes.pipeline import stages
    from tiledsl.passes.pipeline_loops import Pipeline
    from tiledsl.passes.pipeline_report import LoopReport, PipelineReport, group_reports, loop_reports

    names = stages()
    before = f"after:{names[names.index(Pipeline.name) - 1]}"
    loops: list[LoopReport] = []
    reports: list[PipelineReport] = []

    def observe(stage: str, kernel: Kernel) -> None:
        if stage == before:
            loops.extend(loop_reports(kernel))
        elif stage == f"after:{AsyncGroups.name}":
            title = f"{compiled.label} for {compiled.arch}"
            reports.append(PipelineReport(title, tuple(loops), group_reports(kernel, loops)))

    lower(compiled.signature, compiled.spec, compiled.arch, observe=observe)
    (report,) = reports
    return report


def _sass(compiled: Compiled) -> Report:
    """What ptxas made of it: `backends.ptx.sass_report.SassReport`."""
    from dataclasses import replace

    from tiledsl.backends.ptx.sass_report import sass_report

    return replace(sass_report(compiled.cubin, compiled.ptx), level=compiled.resources.assembler_level)


EXPLAIN: dict[str, Callable[[Compiled], Report]] = {"banks": _banks, "pipeline": _pipeline, "sass": _sass}
"""Explanations by name."""


def explain(compiled: Compiled, what: str) -> Report:
    """The explanation called `what`. Raises TileError for an unknown one."""
    if what not in EXPLAIN:
        raise TileError(f"no explanation is called {what!r}\n  fix: ask for one of {', '.join(sorted(EXPLAIN))}")
    return EXPLAIN[what](compiled)
