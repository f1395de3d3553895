"""Every kind of op has mutators, or a reason to have none; and a small sample of planted faults is found.

``make mutate`` plants them all.
"""

from __future__ import annotations

from tests.mutation.table import MUTATORS, NOT_CHANGED, NOT_MUTATED
from tiledsl import frontend
from tiledsl.backends import emulator
from tiledsl.ir.core import OPS

assert frontend and emulator  # they define the ops


def test_every_kind_of_op_has_mutators_or_a_reason() -> None:
    assert not MUTATORS.keys() & NOT_MUTATED.keys()
    assert MUTATORS.keys() | NOT_MUTATED.keys() == OPS.keys()
    assert all(MUTATORS.values()) and all(NOT_MUTATED.values())


def test_every_attribute_is_changed_or_has_a_reason() -> None:
    left: set[str] = set()
    used: set[str] = set()
    for name, operators in MUTATORS.items():
        changed = {attribute for operator in operators for attribute in operator.attributes}
        assert changed <= OPS[name].attributes.keys(), f"{name} has no {changed - OPS[name].attributes.keys()}"
        for attribute in OPS[name].attributes.keys() - changed:
            reasons = {attribute, f"{name}.{attribute}"} & NOT_CHANGED.keys()
            used |= reasons
            left |= {f"{name}.{attribute}"} if not reasons else set()
    assert not left, "no operator changes these, and no reason is given"
    assert used == NOT_CHANGED.keys(), "reasons for attributes that there are not, or that are changed"
