"""What a kernel means: everything that its compiled code depends on besides the specialisation and the compiler.

A `Meaning` has the digest of all that content, for the key on disk, and guards, which tell in a fraction of a
microsecond whether names and objects are still what they were, for this process. Both come from one walk.
docs/caching.md has the rule for users.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType
from typing import Any

from tiledsl.meaning import kinds
from tiledsl.meaning.guards import Guards
from tiledsl.meaning.instances import unreadable
from tiledsl.meaning.walk import Walk

__all__ = ["Meaning", "meaning_of", "meaning_of_kernel", "unreadable"]

_CASES = kinds  # registers them


@dataclass(frozen=True, eq=False)
class Meaning:
    """digest: of all content. reasons: what is not understood, so that nothing made of it is kept on disk. of: the
    object."""

    digest: bytes
    reasons: tuple[str, ...]
    guards: Guards
    of: Any

    def holds(self) -> bool:
        """Is everything still what it was?"""
        return self.guards.holds()


def _meaning(walk: Walk, value: Any) -> Meaning:
    walk.finish()
    return Meaning(walk.digest, tuple(walk.reasons), walk.guards, value)


def meaning_of_kernel(fn: FunctionType) -> Meaning:
    """What a kernel's function means now, with all that it reaches."""
    walk = Walk(root=fn)
    walk.kernel(fn)
    return _meaning(walk, fn)


_KNOWN: dict[int, Meaning] = {}
LIMIT = 1024


def meaning_of(value: Any) -> Meaning:
    """What a value means now. Known ones are looked at again only where a guard does not hold."""
    known = _KNOWN.get(id(value))
    if known is None or known.of is not value or not known.holds():
        if len(_KNOWN) >= LIMIT:
            _KNOWN.clear()
        walk = Walk()
        walk.visit(value)
        known = _KNOWN[id(value)] = _meaning(walk, value)
    return known
