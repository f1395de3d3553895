"""The frame of passes that go from op to op, and report all that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TypeVar

from tiledsl.errors import UNKNOWN_LOC, CompileError, CompileErrors, Loc
from tiledsl.ir.core import Kernel, Op
from tiledsl.passes.analysis.divisibility import Divisibility

O = TypeVar("O", bound=Op)  # noqa: E741
T = TypeVar("T")


def of_each(ops: Iterable[O], rule: Callable[[O], T]) -> list[T]:
    """What `rule` gives of each op. Raises CompileErrors with all that it raises, each location once, since an unrolled
    loop has copies of an op. The rule need not say where: it is at the op then."""
    found: list[T] = []
    errors: dict[Loc, CompileError] = {}
    for op in ops:
        try:
            found.append(rule(op))
        except CompileError as error:
            error.loc = op.loc if error.loc is UNKNOWN_LOC else error.loc
            errors.setdefault(error.loc, error)
    if errors:
        raise CompileErrors(errors.values())
    return found


class Checker:
    """What checks of one kernel ask for."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    @cached_property
    def divisibility(self) -> Divisibility:
        return Divisibility(self.kernel)
