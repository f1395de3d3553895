"""A run ends: with its results, or with an error of tiledsl at the line. Nothing else comes out of the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tiledsl import Global, dims, f32, grid, ptx, threads, tile_kernel
from tiledsl.backends.emulator import Access, Hook, Options, async_copies, machine, run
from tiledsl.backends.emulator.boundary import raise_internal
from tiledsl.backends.emulator.rules.registry import RULES
from tiledsl.errors import EmulatorError, HazardError, KernelArgumentError, Loc
from tiledsl.ir.core import Block, Kernel
from tiledsl.ir.expr import parse_expr
from tiledsl.ir.ops import arith, control
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.types import BOOL
from tiledsl.passes.pipeline import run_pipeline


def parsed(body: str, params: str = "", grid: str = "1", threads: str = "32", more: str = "") -> Kernel:
    return parse_kernel(f"kernel k({params}) grid({grid}) threads({threads}) {more} {{\n{body}\ncontrol.return\n}}")


# -- exceptions ------------------------------------------------------------------------------------


def test_an_exception_inside_is_an_error_at_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = parsed("%x = arith.constant 1.0 : f32\n%y = arith.fma %x, %x, %x : f32")
    (fma,) = [op for op in kernel.walk() if op.name == "arith.fma"]
    rule = next(cls for cls in type(fma).__mro__ if cls in RULES)
    monkeypatch.setitem(RULES, rule, len)
    with pytest.raises(EmulatorError, match=r"the emulator fails in arith.fma: TypeError: len\(\) takes") as caught:
        run(kernel, {})
    assert caught.value.loc == fma.loc and caught.value.fix
    assert isinstance(caught.value.__cause__, TypeError)


def test_memory_that_there_is_not() -> None:
    with pytest.raises(EmulatorError) as caught:
        raise_internal(MemoryError("12 GiB"), "tma.load", Loc("kernel.py", 3))
    assert caught.value.loc.line == 3
    assert caught.value.message == "tma.load needs more memory than there is to be emulated: 12 GiB"


def test_regions_nested_too_deeply() -> None:
    condition = arith.Constant(value=True, dtype=BOOL)
    inner = Block()
    inner.append(control.Yield())
    for _ in range(3000):
        orelse, outer = Block(), Block()
        orelse.append(control.Yield())
        outer.append(control.If(condition.result, blocks=[inner, orelse]))
        outer.append(control.Yield())
        inner = outer
    inner.ops[-1:] = [control.Return()]
    inner.insert_before(inner.ops[0], condition)
    kernel = Kernel("deep", inner, (parse_expr("1"),), (32,), level="thread")
    with pytest.raises(EmulatorError, match="deep is nested too deeply for the emulator"):
        run(kernel, {})


@tile_kernel
def endless(X: Global[f32, dims.N]):
    grid(2147483647, 65535, 65535)
    X.put(threads(4), f32(1))


def fails(x: Any) -> Any:
    return x["nothing"]


@tile_kernel
def calls_a_function(X: Global[f32, dims.N]):
    grid(1)
    t = threads(32)
    X[t] = ptx.inline("mov.b32 $0, $1;", f32, X[t], emulate=fails)


def test_what_the_users_code_raises_is_the_users() -> None:
    with pytest.raises(IndexError):
        calls_a_function(np.zeros(32, np.float32), device="emulator")

    class Odd(Hook):
        def on_access(self, access: Access) -> None:
            raise KeyError("mine")

    kernel = parsed("%t = gpu.thread_id {axis = 0} : index\n%x = tile.load %A, %t : f32\ntile.store %A, %t, %x",
                    "%A: global<f32, [N], unit=0, align=4>")  # fmt: skip
    with pytest.raises(KeyError, match="mine"):
        run(kernel, {"A": np.zeros(32, np.float32)}, options=Options(hooks=(Odd(),)))


def test_shared_memory_that_no_block_has() -> None:
    kernel = parsed("%S = tile.shared_alloc : shared<u64, [200000000]>")
    with pytest.raises(EmulatorError, match="has 1600000000 bytes of shared memory; the emulator gives it 1048576"):
        run(kernel, {})


# -- runs without end ------------------------------------------------------------------------------


NUMBERS = """%c0 = arith.constant 0 : i32
%c1 = arith.constant 1 : i32
%many = arith.constant 2147483647 : i32
%yes = arith.constant true : bool
"""
ENDLESS = {
    "for": "control.for %c0, %many, %c1 (%i: i32) { control.yield }",
    "nested": """control.for %c0, %many, %c1 (%i: i32) {
      control.for %c0, %c1, %c1 (%j: i32) { control.yield }
      control.yield }""",
    "while": "control.while { control.condition %yes } do { control.yield }",
    "loops that end in a loop": """control.while { control.condition %yes } do {
      control.for %c0, %c1, %c1 (%i: i32) {
        control.while { %no = arith.lt %i, %c0 control.condition %no } do { control.yield }
        control.yield }
      control.yield }""",
    "barriers": "control.for %c0, %many, %c1 (%i: i32) { gpu.barrier control.yield }",
}


@pytest.mark.parametrize("body", ENDLESS.values(), ids=list(ENDLESS))
def test_a_loop_without_end_is_stopped(body: str) -> None:
    with pytest.raises(HazardError, match=r"(does not end|spins forever): 500 iterations") as caught:
        run(parsed(NUMBERS + body), {}, options=Options(max_steps=500))
    assert caught.value.loc.line in (6, 7)
    assert "TILEDSL_MAX_STEPS" in caught.value.fix


@pytest.mark.parametrize("options", [Options(), Options(checks=True), Options(seed=5), Options(checks=True, seed=1)])
@pytest.mark.parametrize("level", ["tile", "thread"])
def test_a_grid_without_end_is_refused(options: Options, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No block of it begins: the largest run that the limit allows takes a minute."""
    monkeypatch.setattr(machine, "Chunk", None)
    kernel = parsed("", grid="2147483647, 65535, 65535", more=f"level({level})")
    with pytest.raises(HazardError, match="a grid of 2147483647 x 65535 x 65535 blocks") as caught:
        run(kernel, {}, options=options)
    assert caught.value.finding.code == "T402" and caught.value.loc == kernel.loc


def test_a_call_with_a_grid_without_end_is_refused() -> None:
    X = np.zeros(4, np.float32)
    with pytest.raises(HazardError, match="a grid of 2147483647 x 65535 x 65535 blocks") as caught:
        endless(X, device="emulator")
    assert caught.value.finding.code == "T402" and not X.any()


def test_copies_that_nothing_waits_for_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_copies, "MOST_PENDING", 50)
    kernel = parsed(
        NUMBERS
        + """%S = tile.shared_alloc : shared<f32, [4]>
        %0 = arith.constant 0 : index
        control.for %c0, %many, %c1 (%i: i32) {
          async.cp %S, %0, %A, %0
          control.yield
        }""",
        "%A: global<f32, [N], unit=0, align=4>",
        threads="1",
    )
    with pytest.raises(HazardError, match=r"50 executions of mem.cp_async are in flight"):
        run(run_pipeline(kernel), {"A": np.zeros(4, np.float32)})


def test_the_budget_is_that_of_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk counts as 64 iterations of a loop; TILEDSL_MAX_STEPS says how many there may be."""
    ten = parsed(
        NUMBERS + "%c10 = arith.constant 10 : i32\ncontrol.for %c0, %c10, %c1 (%i: i32) { control.yield }", grid="3"
    )
    run(ten, {}, options=Options(max_steps=64 * 3 + 30, chunk_threads=32))
    with pytest.raises(HazardError, match="the run does not end: 221 iterations"):
        run(ten, {}, options=Options(max_steps=64 * 3 + 29, chunk_threads=32))
    monkeypatch.setenv("TILEDSL_MAX_STEPS", "73")
    with pytest.raises(HazardError, match="the run does not end: 73 iterations"):
        run(ten, {})
    monkeypatch.setenv("TILEDSL_MAX_STEPS", "74")
    run(ten, {})
    monkeypatch.setenv("TILEDSL_MAX_STEPS", "many")
    with pytest.raises(KernelArgumentError, match="TILEDSL_MAX_STEPS is 'many'"):
        run(ten, {})
