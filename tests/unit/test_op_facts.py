"""What ops declare about themselves: nothing is left out, and what is declared is what happens."""

from __future__ import annotations

from typing import Any

import pytest

from tiledsl import Global, barrier, grid, i32, threads, tile_kernel, u64
from tiledsl import ptx as lang_ptx
from tiledsl.arch import FEATURES
from tiledsl.backends.ptx import TARGETS, build
from tiledsl.dims import N
from tiledsl.errors import UNKNOWN_LOC, CompileError, VerifyError
from tiledsl.frontend.targets import TargetBuilder
from tiledsl.ir.core import OPS, Block, Op, Pure
from tiledsl.ir.facts import NOTHING, Sync, reads, writes
from tiledsl.ir.ops import arith, barriers, ptx, tma, wgmma
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.types import I32
from tiledsl.ir.verifier import verify
from tiledsl.passes.analysis.uniformity import Uniformity
from tiledsl.passes.checks import hopper as check_hopper

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


@pytest.mark.parametrize("left_out", sorted(DECLARED.keys() - {"variadic", "infer"}))
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


@pytest.mark.parametrize("reach", barriers.REACHES)
def test_a_wait_meets_those_that_its_mbarrier_orders(reach: str) -> None:
    assert barriers.Wait(reach=reach).sync.meets == reach


def test_what_others_than_threads_reach_is_checked() -> None:
    """Each op of tile level that lets TMA or wgmma reach a tile has a rule in the pass that checks where it lies."""
    theirs = {op for op in OPS.values() if op.level == "tile" and any(t.proxy == "async" for t in op.touches)}
    assert theirs == check_hopper.RULES.keys()


@pytest.mark.parametrize(
    "made",
    [
        barriers.SetMaxNReg(registers=40, increase=False),
        barriers.ClusterRank(),
        tma.BulkCommit(),
        wgmma.Fence(),
    ],
    ids=lambda op: op.name,
)
def test_what_an_op_needs_is_asked_by_what_it_declares(made: Op) -> None:
    """Where the frontend makes it, and where it becomes PTX; no rule asks by itself."""
    with pytest.raises(CompileError, match=r"needs (one of )?sm_90.* and this is compiled for sm_80"):
        TargetBuilder(Block(), "sm_80", UNKNOWN_LOC).add(made)
    kernel = parse_kernel("kernel k() grid(1) threads(128) level(thread) {\n  control.return\n}")
    kernel.body.insert_before(kernel.body.terminator, made)
    with pytest.raises(CompileError, match=r"needs (one of )?sm_90.* and this is compiled for sm_80"):
        build(kernel, TARGETS["sm_80"])


# -- raw PTX ---------------------------------------------------------------------------------------


def raw(**declared: Any) -> tuple[Op, Uniformity]:
    x = arith.Constant(value=1, dtype=I32)
    op = ptx.Inline(x.result, text="ld.global.u32 $0, [$1];", outputs=(I32,), **declared)
    made = parse_kernel("kernel k() grid(1) threads(128) {\n  control.return\n}")
    for each in (x, op):
        made.body.insert_before(made.body.terminator, each)
    verify(made)
    return op, Uniformity(made)


@pytest.mark.parametrize(
    ("memory", "accesses"),
    [("unknown", [False, True]), ("nothing", []), ("reads", [False]), ("writes", [False, True])],
)
def test_raw_ptx_accesses_what_its_author_says(memory: str, accesses: list[bool]) -> None:
    op, _ = raw(memory=memory, volatile=True)
    assert [(access.memory, access.writes) for access in op.accesses()] == [(None, writes) for writes in accesses]


@pytest.mark.parametrize(
    ("uniform", "level"), [("thread", "thread"), ("warp", "warp"), ("cta", "cta"), ("operands", "grid")]
)
def test_raw_ptx_varies_as_its_author_says(uniform: str, level: str) -> None:
    op, uniformity = raw(uniform=uniform)
    assert uniformity.of(op.results[0]) == level


@pytest.mark.parametrize("wrong", [{"memory": "none"}, {"uniform": "grid"}, {"memory": "reads"}])
def test_raw_ptx_says_what_there_is(wrong: dict[str, Any]) -> None:
    """Who reads or writes memory is kept in order, as volatile instructions are."""
    with pytest.raises(VerifyError):
        raw(**wrong)


@tile_kernel
def by_address(X: Global[i32, N], Y: Global[i32, N], address: u64):
    grid(1)
    tx = threads(128)
    flag = lang_ptx.inline("ld.global.u32 $0, [$1];", i32, address, memory="nothing", uniform="operands")
    if flag > 0:
        barrier()
        Y.put(tx, X.get(tx))


def test_an_author_lets_raw_ptx_stand_before_a_barrier_and_read_only_loads() -> None:
    assert "ld.global.nc" in by_address.compile(arch="sm_90a").ptx
