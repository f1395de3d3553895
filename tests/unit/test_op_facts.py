"""What ops declare about themselves: nothing is left out, and what is declared is what happens."""

from __future__ import annotations

from typing import Any

import pytest

from tiledsl.arch import FEATURES
from tiledsl.ir.core import OPS, Op, Pure
from tiledsl.ir.facts import NOTHING, Sync, reads, writes
from tiledsl.ir.types import I32
from tiledsl.passes import check_hopper

DECLARED: dict[str, Any] = {
    "touches": (),
    "sync": NOTHING,
    "stays": "pinned",
    "scope": "warp",
    "alike": (),
    "features": (),
    "varies": "warp",
    "cause": "an odd op",
    "nan": "computes",
    "called": "odd()",
    "parts": ("operands",),
    "variadic": True,
    "infer": lambda op: (I32,),  # pyright: ignore[reportUnknownLambdaType]
}
"""A class that says everything."""


def define(**declared: Any) -> type[Op]:
    """An op class; it is forgotten again."""
    try:
        return type("Odd", (Op,), {"name": "test.odd", **declared})
    finally:
        OPS.pop("test.odd", None)


def test_a_class_that_says_everything_is_defined() -> None:
    assert define(**DECLARED).effects == {"pinned"}


@pytest.mark.parametrize("left_out", DECLARED.keys() - {"variadic", "infer"})
def test_what_a_class_leaves_out_is_an_error_at_import(left_out: str) -> None:
    with pytest.raises(TypeError, match=rf"op test\.odd does not declare {left_out}:"):
        define(**{name: fact for name, fact in DECLARED.items() if name != left_out})


def test_an_op_that_declares_nothing_hears_of_all_at_once() -> None:
    with pytest.raises(TypeError, match=r"test\.odd does not declare touches, sync, stays, scope, features:"):
        define()


def test_what_pure_ops_do_not_say_is_said_by_their_base() -> None:
    with pytest.raises(TypeError, match="does not declare varies, nan"):
        type("Odd", (Pure,), {"name": "test.odd", "infer": DECLARED["infer"]})
    assert "test.odd" not in OPS


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"touches": (reads("memroy"),)}, "declares memroy, of which it has no operand"),
        ({"parts": ("operands", "more")}, "declares more, of which it has no operand"),
        ({"features": ("tcgen06",)}, "needs tcgen06, not a row of arch.FEATURES"),
    ],
)
def test_what_does_not_exist_cannot_be_declared(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        define(**{**DECLARED, **declared})


@pytest.mark.parametrize(
    ("declared", "effects"),
    [
        ({"stays": ""}, set[str]()),
        ({"stays": "", "touches": (reads("operands"),)}, {"read"}),
        ({"stays": "io", "touches": (writes("operands"),)}, {"write", "io"}),
        ({"stays": "", "touches": (reads("operands", atomic="gpu"),)}, {"read", "sync"}),
        ({"stays": "", "touches": (reads("operands", proxy="async"),)}, {"read", "sync"}),
        ({"stays": "", "sync": Sync(meets="cta")}, {"sync"}),
    ],
)
def test_effects_follow_from_what_is_declared(declared: dict[str, Any], effects: set[str]) -> None:
    assert define(**{**DECLARED, **declared}).effects == effects


def test_features_are_rows_of_the_table() -> None:
    classes = {name: op.features for name, op in OPS.items() if isinstance(op.features, tuple)}  # pyright: ignore
    assert {feature for features in classes.values() for feature in features} <= FEATURES.keys()


def test_what_others_than_threads_reach_is_checked() -> None:
    """Each op of tile level that lets TMA or wgmma reach a tile has a rule in the pass that checks where it lies."""
    theirs = {op for op in OPS.values() if op.level == "tile" and any(t.proxy == "async" for t in op.touches)}
    assert theirs == check_hopper.RULES.keys()
