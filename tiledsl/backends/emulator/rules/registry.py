"""The registry of emulator rules: what each op does to a cohort.

A rule is a function ``rule(cohort, op, *operand_values)`` that returns the op's result (a tuple if it
has several, None if it has none). Adding an op to the emulator is writing one such function in the file
of its family. Ops that steer control flow (`control.*`, `gpu.barrier`) have no rule: `program` turns them
into instructions of their own.
"""

from __future__ import annotations

from typing import Any, Callable, TypeVar

from tiledsl.errors import EmulatorError
from tiledsl.ir.core import Op

__all__ = ["RULES", "Rule", "rule", "rule_of"]

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
    raise EmulatorError(f"the emulator has no rule for {op.name}", op.loc)
