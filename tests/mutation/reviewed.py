"""Mutants that nothing finds, with the reason that a person gave: why it is no fault, or why the check misses it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.mutation.runner import Mutant

__all__ = ["MOST", "REASONS", "Reason"]

MOST = 40
"""Reasons that there may be."""


@dataclass(frozen=True)
class Reason:
    """Of the mutants whose `op`, operator (`by`), change (`what`), line and subject match these patterns in full.
    `miss`: it is a fault, and the check does not find it."""

    text: str
    op: str
    by: str = ".*"
    what: str = ".*"
    line: str = ".*"
    subject: str = ".*"
    miss: bool = False

    def fits(self, mutant: Mutant) -> bool:
        pairs = [(self.op, mutant.op), (self.by, mutant.by), (self.what, mutant.what), (self.line, mutant.line)]
        return all(re.fullmatch(a, b) for a, b in [*pairs, (self.subject, mutant.subject)])


REASONS: list[Reason] = []
