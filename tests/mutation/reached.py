"""Find the ops that the inputs of a subject reach."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unittest import mock

from tests.mutation.subjects import Built
from tiledsl.backends.emulator import Prepared, launch
from tiledsl.backends.emulator.coverage import entries
from tiledsl.ir.core import Kernel, Op

__all__ = ["STEPS", "ops_reached"]

STEPS = 20_000
"""Iterations of loops until a run is stopped: some times as many as the longest unmutated one has."""


def ops_reached(made: Built, kernel: Kernel) -> list[Op]:
    """List the ops in blocks that some input enters, of the subject's kernel or of a mutant of it."""
    prepared, ran = Prepared(kernel), set[int]()

    def keep(launches: Iterable[tuple[Any, set[int]]]) -> list[Any]:
        ran.update(*(entered for _, entered in launches))
        return []

    with mock.patch.object(launch, "not_run", keep):
        for run in made.runs:
            prepared.run(run.arguments(), options=run.options(made.subject, max_steps=STEPS))
    return [instr.op for entry, instr in entries(prepared.program) if entry in {0, *ran}]
