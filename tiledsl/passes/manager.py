"""Runs passes in order: verifies and shows the kernel after each, where asked to."""

from __future__ import annotations

from typing import Callable, NamedTuple, Sequence

from tiledsl import boundary
from tiledsl.errors import VerifyError
from tiledsl.ir.core import Kernel
from tiledsl.ir.verifier import verify
from tiledsl.recursion import deep_recursion


class Pass(NamedTuple):
    """`run` edits a kernel in place."""

    name: str
    run: Callable[[Kernel], None]


Observer = Callable[[str, Kernel], None]
"""Called with a stage's name and the kernel after it, for printing and for tools."""


def stages_of(passes: Sequence[Pass]) -> list[str]:
    """Names of passes that run in this order, each unique: one that comes up again is numbered, "cse", "cse.2"."""
    names = [item.name for item in passes]
    counts = [names[: i + 1].count(name) for i, name in enumerate(names)]
    return [name if count == 1 else f"{name}.{count}" for name, count in zip(names, counts, strict=True)]


@deep_recursion()
def run_passes(
    kernel: Kernel,
    passes: Sequence[Pass],
    *,
    verify_each: bool = False,
    observe: Observer | None = None,
) -> Kernel:
    """Run `passes` in order on `kernel`, in place; returns it.

    verify_each: check the IR's invariants before the first pass and after each.
    observe: called after each pass.
    """
    if verify_each:
        verify(kernel)
    for stage, item in zip(stages_of(passes), passes, strict=True):
        with boundary.stage(f"the pass {stage}", kernel.name, kernel.loc):
            item.run(kernel)
        if verify_each:
            try:
                verify(kernel)
            except VerifyError as error:
                raise VerifyError(f"after {stage}: {error.message}", error.loc) from error
        if observe is not None:
            observe(stage, kernel)
    return kernel
