"""Runs passes in order: verifies and shows the kernel after each, where asked to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, ClassVar, NamedTuple, Protocol, Sequence

from tiledsl import boundary
from tiledsl.errors import VerifyError
from tiledsl.ir.core import Kernel
from tiledsl.ir.verifier import verify
from tiledsl.recursion import deep_recursion


class PassWithOptions(Protocol):
    """A frozen dataclass whose fields are the pass's options. `run` edits the kernel in place."""

    name: ClassVar[str]

    def run(self, kernel: Kernel) -> None: ...


class FunctionPass(NamedTuple):
    """A pass without options."""

    name: str
    run: Callable[[Kernel], None]


Pass = FunctionPass | PassWithOptions


@dataclass
class PassManager:
    """`passes` run in order; a name that comes up again is numbered: "cse", "cse.2".

    verify_each: check the IR's invariants before the first pass and after each.
    observe: called with the stage's name and the kernel after each pass; for printing and for tools.
    """

    passes: Sequence[Pass]
    verify_each: bool = False
    observe: Callable[[str, Kernel], None] | None = None

    @property
    def stages(self) -> list[str]:
        """Names of the passes in order, each unique."""
        names: list[str] = []
        for item in self.passes:
            count = sum(1 for n in names if n.split(".")[0] == item.name) + 1
            names.append(item.name if count == 1 else f"{item.name}.{count}")
        return names

    @deep_recursion()
    def run(self, kernel: Kernel) -> Kernel:
        if self.verify_each:
            verify(kernel)
        for stage, item in zip(self.stages, self.passes, strict=True):
            with boundary.stage(f"the pass {stage}", kernel.name, kernel.loc):
                item.run(kernel)
            if self.verify_each:
                self.verify(stage, kernel)
            if self.observe is not None:
                self.observe(stage, kernel)
        return kernel

    def verify(self, stage: str, kernel: Kernel) -> None:
        try:
            verify(kernel)
        except VerifyError as error:
            raise VerifyError(f"after {stage}: {error.message}", error.loc) from error
