"""What warps wait for at an op; `schedule` keeps those that do."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.ir.core import Op

__all__ = ["CONDITIONS", "Condition", "Rows", "condition"]

Rows = NDArray[np.bool_]


class Condition:
    """What the warps that come to an op wait for; one object for each class of ops.

    `after`: they wait after the op's rule, whose result `ready` gets; otherwise before it, with the op's operands.
    `gathers`: whether it holds depends on which warps wait at the op together. `meets`: when it holds for some, then
    for others that wait, too; all of them go on at once.
    """

    after: ClassVar[bool] = False
    gathers: ClassVar[bool] = False
    meets: ClassVar[bool] = False

    def ready(self, c: Cohort, op: Op, *values: Any) -> Rows:
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
