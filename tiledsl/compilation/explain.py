"""Reports on what the compiler decided for a kernel: ``k.explain("banks")``, ``("pipeline")``, ``("roles")``,
``("resources")``, ``("tensor-maps")``, ``("sass")``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from tiledsl.arch import target_named
from tiledsl.compilation.lowering import lower

if TYPE_CHECKING:
    from tiledsl.ir.core import Kernel
    from tiledsl.signatures.signature import Signature, Specialization

EXPLAIN = ("banks", "pipeline", "roles", "resources", "tensor-maps", "sass")
ASSEMBLED = "resources", "sass"
"""Names of the explanations, and those of machine code."""


def printed_stages(
    signature: Signature,
    spec: Specialization,
    arch: str,
    locs: bool,
    only: Collection[str] | None = None,
    until: str | None = None,
) -> dict[str, str]:
    """The IR at each stage, by its name. locs: with the Python line of each op. only: names of the stages wanted.
    until: the last pass that has to run."""
    from tiledsl.ir.printer import print_kernel

    printed: dict[str, str] = {}

    def observe(stage: str, kernel: Kernel) -> None:
        if only is None or stage in only:
            printed[stage] = print_kernel(kernel, locs=locs)

    lower(signature, spec, arch, observe=observe, until=until)
    return printed


def reports(signature: Signature, spec: Specialization, arch: str, title: str) -> dict[str, object]:
    """The explanations that need the passes, which run once for all of them.

    "banks": every shared access with its wavefronts, and the layouts, for the kernel as the pass gets it, which alone
    determines its choices (`passes.banks.bank_report.BankReport`). "pipeline": the schedules of pipelined loops, and
    other groups of copies (`passes.pipelining.report.PipelineReport`). "roles": roles, and the rings between
    them (`passes.cooperation.role_report.RolesReport`). "products": those of tensor cores, with their operands
    (`passes.distribute.product_report.ProductReport`).
    """
    from tiledsl.passes.banks.bank_conflicts import bank_report
    from tiledsl.passes.cooperation.role_report import roles_report
    from tiledsl.passes.distribute.product_report import product_report
    from tiledsl.passes.pipeline import stages
    from tiledsl.passes.pipelining.loops import loop_plans
    from tiledsl.passes.pipelining.plan import LoopPlan
    from tiledsl.passes.pipelining.report import PipelineReport, group_lines

    names = stages()
    before = {name: f"after:{names[names.index(name) - 1]}" for name in ("bank-conflict", "pipeline")}
    limit = target_named(arch).shared_per_block
    loops: list[LoopPlan] = []
    found: dict[str, object] = {}

    def observe(stage: str, kernel: Kernel) -> None:
        if stage == "tile":
            found["roles"] = roles_report(kernel, title)
        if stage == before["pipeline"]:
            loops.extend(loop_plans(kernel))
        if stage == "after:async-groups":
            found["pipeline"] = PipelineReport(title, loops, group_lines(kernel, loops))
        if stage == before["bank-conflict"]:
            found["products"] = product_report(kernel)
            found["banks"] = replace(bank_report(kernel, limit), kernel=title)

    lower(signature, spec, arch, observe=observe, until=before["bank-conflict"].removeprefix("after:"))
    return found


def tensor_maps(signature: Signature, spec: Specialization, arch: str, title: str) -> dict[str, object]:
    """ "tensor-maps": the boxes that TMA moves, which all passes have to run for (`launch_report.MapsReport`)."""
    from tiledsl.compilation.launch_report import maps_report

    return {"tensor-maps": maps_report(lower(signature, spec, arch)[0], spec, title)}
