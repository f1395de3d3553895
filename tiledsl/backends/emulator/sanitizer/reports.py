"""Where findings go that a run can go on behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.hooks import Bools
from tiledsl.errors import HazardError, Loc
from tiledsl.findings import Selection

Take = Callable[[HazardError], None]
"""Is told of a finding. If it returns, the run goes on."""


class Reports:
    """Of one launch. What conflicting accesses to a tile there are at two lines, T1xx, is one finding; so is what else
    has one code and the same lines. `selection`: the checks that are on. `wrong`: how often something was,
    told or known."""

    def __init__(self, selection: Selection, take: Take) -> None:
        self.selection, self.take, self.wrong = selection, take, 0
        self.told: set[tuple[str, str, frozenset[tuple[str, int]]]] = set()

    def knows(self, code: str, name: str, *locs: Loc) -> bool:
        """Has this been told of the memory `name`? For those who find it again, and need not put it in words. "T1":
        conflicting accesses."""
        self.wrong += 1
        return bool(self.told) and (code, name, frozenset((loc.file, loc.line) for loc in locs)) in self.told

    def involves(self, loc: Loc) -> bool:
        """Has anything been told of this line?"""
        return any((loc.file, loc.line) in lines for *_, lines in self.told)

    def tell(self, error: HazardError) -> None:
        self.wrong += 1
        code, name, lines = error.finding.key
        if code not in self.selection:
            return
        key = "T1" if code.startswith("T1") else code, name, lines
        if key not in self.told:
            self.told.add(key)
            self.take(error)


def first_of_each(late: Bools, numbers: NDArray[Any]) -> NDArray[Any]:
    """Where `late` is true: the first place of each of the `numbers`, which have its shape, in order."""
    _, first = np.unique(numbers[late], return_index=True)
    return np.argwhere(late)[np.sort(first)]
