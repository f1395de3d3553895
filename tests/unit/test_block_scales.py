"""`gemm` of 8-bit floats whose blocks have scales: exact and rounded sums, any strides, special values, refusals."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hopper_ir import called, not_found
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.unit.emulated_gpu import EmulatedDriver, FakeTorch, aligned, install
from tests.unit.test_gemm_call import VIEWS, relu_bias
from tests.unit.test_gemm_formats import NUMPY, equal, exact, numbers
from tiledsl import index, tile_function
from tiledsl.arch import TARGETS
from tiledsl.errors import CompileErrors, EmulatorError, KernelArgumentError
from tiledsl.gemm import call, gemm, promoted, steps, warmup
from tiledsl.gemm.choice import WHOLE, Variant, best
from tiledsl.gemm.epilogue import add_bias
from tiledsl.gemm.formats import BLOCK
from tiledsl.gemm.hopper import hopper_fastest
from tiledsl.gemm.hopper_stores import pieces
from tiledsl.gemm.plan import Problem, choice_of, plan
from tiledsl.gemm.split_k import slice_width
from tiledsl.inspect.loading import load_module
from tiledsl.ir.ops import async_copy, barriers, gpu
from tiledsl.lang import cdiv

Array = NDArray[Any]
F32 = np.float32
GALLERY = Path(__file__).parent.parent.parent / "examples" / "gemm"


def scales(*shape: int, seed: int = 2) -> Array:
    """Powers of two of both signs, by which sums of small integers stay exact."""
    random = np.random.default_rng(seed)
    return (2.0 ** random.integers(-2, 3, shape) * random.choice((-1, 1), shape)).astype(F32)


def blocks(m: int, n: int, k: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (m, cdiv(k, BLOCK)), (cdiv(k, BLOCK), cdiv(n, BLOCK))


def spread_a(scale_a: Array, k: int) -> Array:
    """For each element of A, as float64."""
    return np.repeat(scale_a.astype(np.float64), BLOCK, -1)[..., :k]


def spread_b(scale_b: Array, k: int, n: int) -> Array:
    return np.repeat(np.repeat(scale_b.astype(np.float64), BLOCK, -2), BLOCK, -1)[..., :k, :n]


def dequantised(A: Array, B: Array, scale_a: Array, scale_b: Array) -> Array:
    """The product, in float64."""
    k, n = B.shape[-2:]
    return (A.astype(np.float64) * spread_a(scale_a, k)) @ (B.astype(np.float64) * spread_b(scale_b, k, n))


def by_blocks(A: Array, B: Array, scale_a: Array, scale_b: Array) -> Array:
    """The same, where a block's scale is that of its sum, as it matters for those that are not finite."""
    k, n = B.shape
    total = np.zeros((A.shape[0], n))
    with np.errstate(invalid="ignore"):
        for i in range(cdiv(k, BLOCK)):
            part = slice(i * BLOCK, (i + 1) * BLOCK)
            total += exact(A[:, part], B[part]) * (scale_a[:, i, None] * np.repeat(scale_b[i], BLOCK)[:n])
    return total


def operands(m: int, n: int, k: int, a: str = "e4m3", b: str = "e4m3") -> tuple[Array, Array, dict[str, Array]]:
    of_a, of_b = blocks(m, n, k)
    return numbers(a, m, k), numbers(b, n, k, seed=1).T, {"scale_a": scales(*of_a), "scale_b": scales(*of_b, seed=3)}


def product(A: Array, B: Array, *more: Any, **given: Any) -> Array:
    return gemm(A, B, *more, device="emulator", **given)


# -- products --------------------------------------------------------------------------------------------------


FORMATS = (("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e5m2"))
SIZES = ((40, 48, 2048), (7, 300, 64), (133, 150, 333), (300, 400, 272), (1, 1, 1))


@pytest.mark.parametrize(
    ("pair", "size", "out"),
    [
        (pair, size, ("f32", None, "f16")[(row + column) % 3])
        for row, pair in enumerate(FORMATS)
        for column, size in enumerate(SIZES)
    ],
)
def test_exact_sums(pair: tuple[str, str], size: tuple[int, int, int], out: str | None) -> None:
    """In one piece and in parts of k; edges of m, n and k that no block and no tile has; few rows. The result is bf16
    unless another dtype is asked for; each pair and each size has all three."""
    A, B, given = operands(*size, *pair)
    found = product(A, B, out_dtype=out, **given)
    assert found.dtype == NUMPY[out or "bf16"] and equal(found, dequantised(A, B, **given))


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("size", [(64, 256, 384), (133, 17, 135)])
def test_operands_of_any_order(layout: str, size: tuple[int, int, int]) -> None:
    A, B, given = operands(*size)
    left, right = (np.asarray(X, order="F" if o == "T" else "C") for X, o in zip((A, B), layout, strict=True))
    assert equal(product(left, right, out_dtype="f32", **given), dequantised(A, B, **given))


@pytest.mark.parametrize("a", VIEWS)
@pytest.mark.parametrize("b", VIEWS)
def test_scales_of_any_strides(a: str, b: str) -> None:
    A, B, given = operands(20, 136, 260)
    viewed = {"scale_a": VIEWS[a](given["scale_a"]), "scale_b": VIEWS[b](given["scale_b"])}
    assert equal(product(A, B, out_dtype="f32", **viewed), dequantised(A, B, **given))


@pytest.mark.parametrize("view", VIEWS)
def test_far_scales_of_large_products_are_copied(view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "FAR_SCALES", 1)
    A, B, given = operands(94, 300, 388)
    given["scale_a"] = VIEWS[view](given["scale_a"])
    of = call.described(A, B, None, None, "f32", None, None, *given.values())
    launches = [step.kernel.name for step in call.planned(of, 0.0, None, "sm_90a").launches]
    assert ("pad" in launches) == (given["scale_a"].strides[0] != 4), launches
    assert equal(product(A, B, out_dtype="f32", **given), dequantised(A, B, **given))


def test_the_order_of_operations() -> None:
    """In one piece: fma(partial, scale of A * scale of B, sum), one block after the other, each rounded to f32."""
    random = np.random.default_rng(0)
    m, n, k = 70, 200, 400
    A, B = (random.standard_normal(s).astype(NUMPY["e4m3"]) for s in ((m, k), (k, n)))
    of_a, of_b = (random.standard_normal(s).astype(F32) for s in blocks(m, n, k))
    total = np.zeros((m, n), F32)
    for i in range(cdiv(k, BLOCK)):
        part = slice(i * BLOCK, (i + 1) * BLOCK)
        partial = product(np.ascontiguousarray(A[:, part]), np.ascontiguousarray(B[part]), out_dtype="f32")
        factor = of_a[:, i, None] * np.repeat(of_b[i], BLOCK)[:n]
        assert factor.dtype == F32
        # Products of two f32 are exact in float64, so that only the sum rounds, in more bits than f32 twice over.
        total = (partial.astype(np.longdouble) * factor + total).astype(F32)
    given = {"scale_a": of_a, "scale_b": of_b, "out_dtype": "f32", "batch_invariant": True}
    assert equal(product(A, B, **given), total)
    ones = {"scale_a": np.ones_like(of_a), "scale_b": np.ones_like(of_b)}
    assert equal(product(A, B, **{**given, **ones}), product(A, B, precision="promoted", out_dtype="f32"))
    assert equal(product(A, B, **given), product(A, B, precision="promoted", **given))


@pytest.mark.parametrize("size", [(96, 200, 1000), (64, 48, 8192), (5, 300, 2000)])
def test_errors_are_within_bounds(size: tuple[int, int, int]) -> None:
    """Of tensor cores 34 * 2^-13 of the terms of each 32 of k; of f32 two roundings a block. Scales differ widely."""
    m, n, k = size
    random = np.random.default_rng(1)
    A, B = (random.standard_normal(s).astype(NUMPY["e4m3"]) for s in ((m, k), (k, n)))
    given = {n: (2.0 ** random.uniform(-20, 20, s)).astype(F32) for n, s in zip(SCALES, blocks(m, n, k), strict=True)}
    terms = dequantised(np.abs(A), np.abs(B), **given)
    found = product(A, B, out_dtype="f32", **given)
    bound = terms * (34 * 2.0**-13 + 2 * cdiv(k, BLOCK) * 2.0**-24)
    assert (np.abs(found - dequantised(A, B, **given)) <= bound).all()


SCALES = ("scale_a", "scale_b")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 40, 200), (3, 200, 150)),
        ((3, 40, 200), (200, 150)),
        ((40, 200), (3, 200, 150)),
        ((1, 40, 200), (3, 200, 9)),
    ],
)
def test_batches(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Each matrix has its scales. Where B and its scales are repeated, this is one product with more rows."""
    A, B = numbers("e4m3", *a), numbers("e4m3", *b, seed=1)
    of_a, of_b = scales(*a[:-1], 2), scales(*b[:-2], 2, cdiv(b[-1], BLOCK), seed=3)
    found = product(A, B, scale_a=of_a, scale_b=of_b, out_dtype="f32")
    assert equal(found, dequantised(A, B, of_a, of_b))
    assert equal(product(A, B, scale_a=VIEWS["columns"](of_a), scale_b=of_b, out_dtype="f32"), found)


def test_a_repeated_operand_with_scales_of_its_own() -> None:
    A, B = numbers("e4m3", 3, 40, 200), numbers("e4m3", 200, 150, seed=1)
    repeated = np.broadcast_to(B, (3, 200, 150))
    of_a, of_b = scales(3, 40, 2), scales(3, 2, 2, seed=3)
    found = product(A, repeated, scale_a=of_a, scale_b=of_b, out_dtype="f32")
    assert equal(found, dequantised(A, repeated, of_a, of_b))


@pytest.mark.parametrize("size", [(70, 90, 264), (40, 48, 2048), (7, 200, 130)])
def test_scaled_with_a_bias_and_an_epilogue(size: tuple[int, int, int]) -> None:
    m, n, _ = size
    A, B, given = operands(*size)
    bias, C = numbers("f32", n, seed=4), numbers("bf16", m, n, seed=5)
    expected = np.maximum(0.5 * dequantised(A, B, **given) - 2 * C.astype(np.float64) + bias, 0)
    assert equal(product(A, B, C, 0.5, -2.0, bias, relu_bias, **given), expected)
    assert equal(product(A, B, bias=bias, out_dtype="f32", **given), dequantised(A, B, **given) + bias)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_result_of_either_order_that_tma_cannot_store(order: Any) -> None:
    A, B, given = operands(133, 149, 300)
    C = np.full((133, 149), 7, F32, order)
    assert equal(product(A, B, C, **given), dequantised(A, B, **given))


def test_sums_of_nothing_read_nothing() -> None:
    A, B, given = operands(40, 32, 0)
    assert given["scale_a"].shape == (40, 0) and equal(product(A, B, **given), np.zeros((40, 32)))
    A, B, given = operands(40, 32, 200)
    wrong = {name: np.full_like(x, np.nan) for name, x in given.items()}
    C = numbers("bf16", 40, 32)
    assert equal(product(A, B, C.copy(), 0.0, 2.0, **wrong), 2 * C.astype(np.float64))
    assert product(A[:0], B, scale_a=given["scale_a"][:0], scale_b=given["scale_b"]).shape == (0, 32)


def test_the_bits_of_a_row_depend_on_it_alone() -> None:
    random = np.random.default_rng(0)
    A, B = (random.standard_normal(s).astype(NUMPY["e4m3"]) for s in ((200, 2000), (2000, 40)))
    of_a, of_b = (random.standard_normal(s).astype(F32) for s in blocks(200, 40, 2000))
    whole = product(A, B, scale_a=of_a, scale_b=of_b, batch_invariant=True)
    for m in (1, 17, 70):
        some = product(A[-m:], B, scale_a=of_a[-m:], scale_b=of_b, batch_invariant=True)
        assert some.tobytes() == whole[-m:].tobytes()


# -- values ----------------------------------------------------------------------------------------------------


def test_special_scales_do_what_the_arithmetic_says() -> None:
    """They stay in their row, or in their columns; the last k and the last columns are parts of a block."""
    A, B, given = operands(70, 300, 200)
    A, B = (np.abs(x.astype(F32)).astype(x.dtype) + x.dtype.type(1) for x in (A, B))
    of_a, of_b = (np.abs(x) for x in given.values())
    A[9], A[5, BLOCK:], of_a[5, 1] = 0, 0, 0
    of_a[3, 0], of_a[7, 1], of_a[9, 0], of_b[1, 2] = np.inf, np.nan, np.inf, -np.inf
    expected = by_blocks(A, B, of_a, of_b)
    found = product(A, B, scale_a=of_a, scale_b=of_b, out_dtype="f32")
    assert np.array_equal(found, expected.astype(F32), equal_nan=True)
    assert np.isnan(found[5, 256:]).all() and not np.isnan(found[5, :256]).any()  # 0 * infinity
    assert np.isnan(found[7]).all() and np.isnan(found[9]).all() and np.isnan(found[3, 256:]).all()
    assert (found[3, :256] == np.inf).all() and (found[0, 256:] == -np.inf).all()
    assert (found.view(np.uint32)[np.isnan(found)] == 0x7FFFFFFF).all()


@pytest.mark.parametrize("k", [4096, 4000, 3904])
def test_steps_of_two_blocks_may_end_within_one_or_after_one(k: int) -> None:
    """What is behind the last block is not added, not even as 0 times its scale."""
    consts = plan(Problem(1, 40, 100, k, "e4m3", unit_b=1, promoted=True, scaled=True, batch_invariant=True)).consts
    assert consts["BK"] == 2 * BLOCK
    A, B, given = operands(40, 100, k)
    given["scale_b"][-1], A[3, -64:] = np.inf, 0
    found = product(A, B, out_dtype="f32", batch_invariant=True, **given)
    expected = by_blocks(A, B, **given).astype(F32)
    assert np.array_equal(found, expected, equal_nan=True) and np.isinf(found).any()


def test_scales_that_are_subnormal_or_overflow() -> None:
    A, B, given = operands(64, 64, 128)
    A, B = (np.full_like(x, 2) for x in (A, B))
    for left, right in ((2.0**-140, 1.0), (2.0**-100, 2.0**-60), (2.0**100, 2.0**60), (2.0**120, 0.5)):
        given["scale_a"][:], given["scale_b"][:] = left, right
        with np.errstate(over="ignore"):
            expected = F32(512.0) * (F32(left) * F32(right))
        assert (product(A, B, out_dtype="f32", **given) == expected).all()


# -- the kernel ------------------------------------------------------------------------------------------------

CASES: dict[str, tuple[Variant, tuple[int, int, int]]] = {
    "one piece": (Variant((128, 64, 1)), (150, 72, 528)),
    "one block of columns": (Variant((128, 128, 1)), (150, 264, 272)),
    "two blocks": (Variant((128, 192, 1)), (128, 400, 400)),
    "three blocks": (Variant((128, 176, 1)), (64, 368, 272)),
    "whole blocks": (Variant((128, 256, 1)), (64, 400, 144)),
    "wide instances": (Variant((64, 64, 2)), (150, 200, 272)),
    "instances": (Variant((64, 32, 2)), (150, 80, 656)),
    "halves": (Variant((128, 256, 1)), (200, 700, 400)),
    "halves of one block": (Variant((128, 256, 1)), (70, 300, 112)),
    "halves of two blocks": (Variant((128, 256, 1)), (128, 272, 256)),
    "halves of part of a block of columns": (Variant((128, 192, 1)), (70, 400, 272)),
    "narrow halves": (Variant((128, 32, 1)), (70, 24, 528)),
    "a cluster": (Variant((128, 64, 1), along_m=2, along_n=2), (200, 72, 384)),
    "parts": (Variant((128, 96, 1), parts=4), (100, 200, 2064)),
    "parts of groups": (Variant((128, 64, 1), parts=2, groups=3), (100, 72, 2400)),
    "odd parts": (Variant((64, 16, 2), parts=3), (70, 144, 1680)),
    "deep steps": (Variant((64, 32, 2)), (70, 40, 1296)),
    "a part without a slice": (Variant((128, 16, 1), parts=2), (70, 48, 1280)),
}


def of_kernel(name: str) -> tuple[tuple[Array, ...], dict[str, Any], Array]:
    """Arguments of `hopper_fastest`, arrays and consts, and the product."""
    variant, (m, n, k) = CASES[name]
    A, B, given = operands(m, n, k, "e4m3", "e5m2")
    arrays = tuple(np.ascontiguousarray(x)[None] for x in (A, B.T))
    C = np.full((1, m, n), 7, F32)
    consts = variant.consts(4096 if name == "deep steps" else 0, 4, size=1) | {
        "STAGES": 3,
        "PROMOTED": True,
        "SCALED": True,
        "HALVES": "halves" in name,
    }
    more: dict[str, Any] = {name: x[None] for name, x in given.items()}
    if variant.parts:
        sums = np.full(variant.workspace(variant.tiles(m, n)), np.nan, F32)
        more |= {"sums": sums, "done": np.zeros(sums.shape[1], np.uint32)}
    return (arrays[0], arrays[1].swapaxes(1, 2), C), {**more, **consts}, dequantised(A, B, **given)


@pytest.mark.parametrize("name", CASES)
def test_right_and_without_hazards(name: str) -> None:
    arrays, more, expected = of_kernel(name)
    hopper_fastest.check(*arrays, **more)
    assert equal(arrays[2][0], expected)


@pytest.mark.parametrize("scaled", [True, False])
def test_halves_have_the_bits_of_whole_tiles(scaled: bool) -> None:
    """Sums that round, in the same order. A CTA has several tiles, so that its warpgroups meet again for each."""
    random = np.random.default_rng(0)
    A, B = (random.standard_normal(shape).astype(NUMPY["e4m3"])[None] for shape in ((130, 272), (400, 272)))
    given: dict[str, Any] = {"scale_a": random.standard_normal((1, 130, 3)).astype(F32)}
    given["scale_b"] = random.standard_normal((1, 3, 4)).astype(F32)
    found: list[Array] = []
    for tile in ((128, 256, 1), (128, 128, 1)):
        consts = Variant(tile).consts(0, 4, size=1, beside=promoted.ROOM_OF_SCALES)
        consts |= {"PROMOTED": True, "SCALED": scaled, "HALVES": tile[1] == 256}
        found.append(np.full((1, 130, 400), 7, F32))
        arguments = A, B.swapaxes(1, 2), found[-1]
        hopper_fastest._emulated(arguments, {**(given if scaled else {}), **consts}, checks=True, processors=2)
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("out", ["bf16", "f32"])
@pytest.mark.parametrize("scaled", [True, False])
def test_halves_do_not_spill(scaled: bool, out: str) -> None:
    consts = Variant((128, 256, 1)).consts(0, 4, size=1, beside=promoted.ROOM_OF_SCALES)
    consts |= {"PROMOTED": True, "SCALED": scaled, "HALVES": True, "EARLY": True, "ADD_C": True, "EPILOGUE": add_bias}
    spec, target = hopper_fastest.specialized("sm_90a", {"D": "e4m3", "F": "e4m3", "E": out, **consts})
    left_out = ("sums", "done", *(() if scaled else ("scale_a", "scale_b")))
    tensors = {name: None if name in left_out else x for name, x in spec.tensors}
    if tensors["B"] is not None:
        tensors["B"] = replace(tensors["B"], unit=1)
    used = hopper_fastest.builds.compiled(replace(spec, tensors=tuple(tensors.items())), target).resources
    assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0)


@pytest.mark.parametrize("name", ["one piece", "narrow halves", "deep steps", "a part without a slice"])
def test_what_is_left_out_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait for copies of scales and, in one piece, for slots of the ring; each time that a warp's lanes wait for
    each other, before they read scales or overwrite them. Between items, stores of the result synchronise as well,
    which a part without a slice of it has not."""
    arrays, more, _ = of_kernel(name)
    kernel, arguments = called(hopper_fastest, arrays, more, monkeypatch)
    parts = more["SPLIT"] > 0
    kinds = (async_copy.WaitGroup, gpu.SyncWarp, *(() if parts else (barriers.Wait,)))
    missed = [x for x in not_found(kernel, arguments, kinds, 2 if parts else 1) if "promoted.py" in x or not parts]
    if more["HALVES"]:  # a slot of the right halves is free when that of the left halves is
        assert "mbarrier.wait at" in missed.pop(0)
    assert len(missed) == (0 if parts else 1) and all("gpu.sync_warp at" in x and "promoted.py" in x for x in missed)


@tile_function
def as_it_is(i: index, last: index) -> index:
    return i


def test_scales_past_the_last_columns_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the limit the emulator stops."""
    arrays, more, _ = of_kernel("two blocks")
    monkeypatch.setattr(promoted, "minimum", as_it_is)
    # The library's own kernels are not built again when a global changes: these consts are of this test alone.
    with pytest.raises(EmulatorError, match=re.escape("out of bounds: tile.load at scale_b[0, 0, 4]")):
        hopper_fastest(*arrays, device="emulator", **more | {"GROUP": 7})


@pytest.mark.parametrize("columns", sorted({columns for _, columns, _ in WHOLE}))
def test_blocks_across_a_tile(columns: int) -> None:
    reached = {(first + columns - 1) // BLOCK - first // BLOCK + 1 for first in range(0, 64 * columns, columns)}
    assert max(reached) == promoted.blocks_across(columns)


def test_what_the_kernel_refuses() -> None:
    arrays, more, _ = of_kernel("one piece")
    halves = [x.astype(ml_dtypes.bfloat16) for x in arrays[:2]]
    with pytest.raises(CompileErrors, match="a scale is of 128 elements of k, and a step has 64: make BK 128"):
        hopper_fastest(*halves, arrays[2], device="emulator", **more | {"BK": 64})
    for wrong, expected in (
        ({"INSTANCES": 2, "BM": 64}, "two warpgroups that share a tile: make INSTANCES 1, and BM 128, not 64"),
        ({"BK": 256}, "two halves are of 128 elements of k, and a step has 256: make BK 128"),
        ({"PROMOTED": False}, "HALVES is for PROMOTED sums without clusters, whose k is not split: leave it out"),
        ({"CLUSTER": (2, 1)}, "HALVES is for PROMOTED sums without clusters, whose k is not split: leave it out"),
    ):
        with pytest.raises(CompileErrors, match=expected):
            hopper_fastest(*arrays, device="emulator", **more | {"HALVES": True, "BN": 128} | wrong)
    more["scale_b"] = None
    with pytest.raises(CompileErrors, match="SCALED needs what it scales by: pass scale_a and scale_b"):
        hopper_fastest(*arrays, device="emulator", **more)


# -- the choice ------------------------------------------------------------------------------------------------


@given(st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 9000), st.booleans())
def test_every_choice_fits(m: int, n: int, k: int, add_c: bool) -> None:
    """Steps of a block or two, operands as they are given, and registers for as many sums."""
    problem = Problem(1, m, n, k, "e4m3", unit_b=1, promoted=True, scaled=True, add_c=add_c)
    made, chosen = plan(problem), best(choice_of(problem))
    consts, (rows, columns, instances) = made.consts, chosen.tile
    assert made.kernel is hopper_fastest and not made.exchanged
    assert consts["PROMOTED"] and consts["SCALED"] and consts["BK"] in (BLOCK, 2 * BLOCK) and consts["STAGES"] >= 3
    assert rows * columns * instances <= 64 * 256 or consts["HALVES"]
    share = slice_width(chosen.parts, columns) if chosen.parts else columns
    buffers = (1 if chosen.parts else 2) * instances
    wide, rest = pieces(rows * instances, share, 2, chosen.registers)
    stored = 0 if chosen.groups > 1 else rows * 2 * (buffers * wide + instances * rest)
    used = consts["STAGES"] * (consts["BK"] * (rows + columns) + 16) + stored + chosen.received
    assert used + 4 * prod(promoted.SLOTS) + 64 <= TARGETS["sm_90a"].shared_per_block


def test_targets_without_wgmma() -> None:
    problem = Problem(1, 64, 64, 64, "e4m3", promoted=True, scaled=True, arch="sm_120a")
    with pytest.raises(KernelArgumentError, match="scale_a and scale_b are given on sm_120a, and only the"):
        plan(problem)
    assert not plan(problem._replace(k=0)).consts.get("SCALED")


def test_warmup_compiles_what_a_call_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    monkeypatch.setattr("tiledsl.gemm.warm_up.build_all", lambda jobs: found.extend(spec for _, spec, _ in jobs))
    warmup([(96, 256, 384)], "e4m3", layouts=("NT",), scales=True, arch="sm_90a")
    A, B, given = operands(96, 256, 384)
    given["scale_b"] = VIEWS["columns"](given["scale_b"])
    of = call.described(A, B, None, None, None, None, None, *map(aligned, given.values()))
    (step,) = call.planned(of, 0.0, None, "sm_90a").launches
    values = step.values((256, 512, 768, 0, 1024, 2048, 0, 0), 0)
    assert [step.kernel.dispatcher.build_of(values, "sm_90a")[0]] == found


def test_the_step_of_the_gallery(capsys: pytest.CaptureFixture[str]) -> None:
    """It is right at edges, has no hazards and no spills, and its file shows what scales of blocks are for."""
    step = load_module(GALLERY / "hopper_scaled.py")
    m, n, k = 200, 300, 400
    A, B, given = operands(m, n, k)
    C = np.full((m, n), 7, F32)
    step.hopper_scaled.check(A, np.ascontiguousarray(B.T), C, given["scale_a"], given["scale_b"].T.copy())
    assert equal(C, dequantised(A, B, **given))
    used = step.hopper_scaled.compile(arch="sm_90a", D="e4m3", E="bf16").resources
    assert used.spill_stores == used.stack == 0
    step.main(130, 140, 272)
    of_blocks, of_one = (float(error) for error in re.findall(r"at most ([\d.]+)", capsys.readouterr().out))
    assert of_blocks < 0.06 and of_one > 0.5


# -- torch -----------------------------------------------------------------------------------------------------


def test_later_calls_only_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, slow = EmulatedDriver(), []
    install(monkeypatch, gpu)
    slowly = call._call  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(call, "_call", lambda *given: slow.append(given) or slowly(*given))
    for seed in range(3):
        A, B = numbers("e4m3", 40, 200, seed=seed), numbers("e4m3", 150, 200, seed=seed + 9).T
        of_a, of_b = scales(40, 2, seed=seed), scales(2, 2, seed=seed + 1)
        C = FakeTorch(aligned(np.full((40, 150), np.nan, F32)))
        left, right, by_a, by_b = (FakeTorch(aligned(x)) for x in (A, B, of_a, of_b))
        assert gemm(left, right, C, scale_a=by_a, scale_b=by_b) is C
        assert equal(C.array, dequantised(A, B, of_a, of_b)) and C.version == 1
        assert len(slow) == 1 + seed // 3
    transposed = FakeTorch(aligned(np.asfortranarray(of_a)))
    gemm(left, right, C, scale_a=transposed, scale_b=by_b)
    assert len(slow) == 2 and equal(C.array, dequantised(A, B, of_a, of_b))
    plain = FakeTorch(aligned(np.full((40, 150), np.nan, F32)))
    gemm(left, right, plain)
    assert len(slow) == 3 and equal(plain.array, exact(A, B))


def test_scales_on_another_device_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, EmulatedDriver())
    A, B, given = operands(40, 150, 200)
    left, right = (FakeTorch(aligned(x)) for x in (A, B))
    for name in SCALES:
        moved = {n: FakeTorch(aligned(x), int(n == name)) for n, x in given.items()}
        with pytest.raises(
            KernelArgumentError, match=f"A is in the memory of GPU 0, but {name} in the memory of GPU 1"
        ):
            gemm(left, right, FakeTorch(np.zeros((40, 150), F32)), **moved)
    with pytest.raises(KernelArgumentError, match="A is in the memory of GPU 0, but scale_a in host memory"):
        gemm(left, right, FakeTorch(np.zeros((40, 150), F32)), **given)


# -- refused ---------------------------------------------------------------------------------------------------


def _changed(**changed: Any) -> dict[str, Any]:
    _, _, given = operands(40, 300, 200)
    return {**given, **changed}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "scales of A alone": (
        _changed(scale_b=None),
        "scale_b is left out, and the other operand's scales are given; expected f32 of shape (2, 3), one for each 128 "
        "of k and each 128 columns of B\n  fix: pass both",
    ),
    "scales of B alone": (_changed(scale_a=None), "scale_a is left out, and .* expected f32 of shape (40, 2)"),
    "a shape": (_changed(scale_a=scales(40, 3)), "scale_a is f32 of shape (40, 3); expected f32 of shape (40, 2), one"),
    "one number": (_changed(scale_a=np.ones((), F32)), "scale_a is f32 of shape (); expected f32 of shape (40, 2)"),
    "transposed": (
        _changed(scale_b=scales(3, 2)),
        "scale_b is f32 of shape (3, 2); expected f32 of shape (2, 3), .*\n  fix: pass its transposed view",
    ),
    "a batch": (_changed(scale_a=scales(1, 40, 2)), "scale_a is f32 of shape (1, 40, 2); expected .* (40, 2)"),
    "a dtype": (
        _changed(scale_b=np.ones((2, 3), np.float64)),
        "scale_b is f64 of shape (2, 3); expected f32 of shape (2, 3), .*\n  fix: convert it",
    ),
    "no array": (_changed(scale_a=[1.0]), "scale_a"),
    "a format": (
        _changed(A=np.zeros((40, 200), ml_dtypes.bfloat16), B=np.zeros((200, 300), ml_dtypes.bfloat16)),
        "are for A and B of e4m3 or e5m2 or i8 or u8; they are bf16 and bf16\n  fix: leave them out",
    ),
    "a precision": (_changed(precision="tf32"), "precision is 'tf32', which is for A and B of f32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    given, message = REFUSED[name]
    A, B, _ = operands(40, 300, 200)
    pattern = re.escape(message).replace(r"\.\*", ".*")
    with pytest.raises(KernelArgumentError, match=pattern) as found:
        product(**{"A": A, "B": B, **given})
    assert str(found.value).startswith("gemm(): ") and "\n  fix: " in str(found.value)


def test_scales_are_not_written() -> None:
    A, B, given = operands(40, 300, 40 * 300)
    given["scale_a"] = np.ones((40, cdiv(12000, BLOCK)), F32)
    C = given["scale_a"].reshape(-1)[:40].reshape(40, 1)
    with pytest.raises(KernelArgumentError, match=r"C is written, .*scale_a"):
        product(A, B[:, :1], C, scale_a=given["scale_a"], scale_b=given["scale_b"][:, :1])
