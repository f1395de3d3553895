"""The registry of emulator rules: what each op does to a cohort.

A rule is a function ``rule(cohort, op, *operand_values)`` that returns the op's result (a tuple if it
has several, None if it has none). Adding an op to the emulator is writing one such function in the file
of its family. Ops that steer control flow (`control.*`, `gpu.barrier`) have no rule: `program` turns them
into instructions of their own.
"""

from __future__ import annotations

from typing import Any, Callable, ClassVar, TypeVar

from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.hooks import Bools
from tiledsl.errors import EmulatorError
from tiledsl.ir.core import Op

Rule = Callable[..., Any]
F = TypeVar("F", bound=Rule)

RULES: dict[type[Op], Rule] = {}


def rule(*classes: type[Op]) -> Callable[[F], F]:
    """Registers the decorated function for these op classes."""

    def register(function: F) -> F:
        for cls in classes:
            assert cls not in RULES, f"{cls.name} has two emulator rules"
            RULES[cls] = function
        return function

    return register


def rule_of(op: Op) -> Rule:
    """The rule of the op's class, or of the nearest base that has one."""
    for cls in type(op).__mro__:
        if cls in RULES:
            return RULES[cls]
    raise EmulatorError(f"the emulator has no rule for {op.name}", op.loc, code="T901")


# -- waits ------------------------------------------------------------------------------------------


class Condition:
    """What the warps that come to an op wait for; one object for each class of ops.

    `after`: they wait after the op's rule, whose result `ready` gets; otherwise before it, with the op's operands.
    `gathers`: whether it holds depends on which warps wait at the op together. `meets`: when it holds for some, then
    for others that wait, too; all of them go on at once.
    """

    after: ClassVar[bool] = False
    gathers: ClassVar[bool] = False
    meets: ClassVar[bool] = False

    def ready(self, c: Cohort, op: Op, *values: Any) -> Bools:
        """For which warps, [groups, warps], it holds."""
        raise NotImplementedError

    def passed(self, c: Cohort, op: Op, *values: Any) -> None:
        """The cohort goes on."""

    def missing(self, c: Cohort, op: Op, *values: Any) -> str:
        """What the cohort's first warp waits for, for messages."""
        raise NotImplementedError

    def wanted(self, c: Cohort, op: Op, *values: Any) -> None:
        """Nothing else can run: let arrive what the cohort waits for."""


CONDITIONS: dict[type[Op], Condition] = {}


def condition(*classes: type[Op]) -> Any:
    """Registers an object of the decorated class for these op classes."""

    def register(cls: type[Condition]) -> type[Condition]:
        for op in classes:
            assert op not in CONDITIONS, f"{op.name} has two conditions"
            CONDITIONS[op] = cls()
        return cls

    return register
