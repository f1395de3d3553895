"""The frame of checks that go from op to op."""

from __future__ import annotations

from functools import cached_property

from tiledsl.errors import CompileError, CompileErrors, Loc
from tiledsl.ir.core import Kernel, Op
from tiledsl.passes.analysis.divisibility import Divisibility


class Checker:
    """Of one kernel. `op` raises what is wrong with an op, and need not say where; `run` reports all of it, each
    location once, since an unrolled loop has copies of an op."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    @cached_property
    def divisibility(self) -> Divisibility:
        return Divisibility(self.kernel)

    def op(self, op: Op) -> None:
        raise NotImplementedError

    def run(self) -> None:
        errors: dict[Loc, CompileError] = {}
        for op in self.kernel.walk():
            try:
                self.op(op)
            except CompileError as error:
                error.loc = op.loc
                errors.setdefault(op.loc, error)
        if errors:
            raise CompileErrors(errors.values())
