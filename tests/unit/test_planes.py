"""`gemm` of f32 as planes of 16 bits: errors beside FFMA's, bits, any operands, special values, refusals."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.emulated_gpu import EmulatedDriver, FakeTorch, aligned, install
from tests.unit.test_gemm_call import VIEWS, relu_bias
from tiledsl.arch import TARGETS
from tiledsl.errors import KernelArgumentError
from tiledsl.gemm import call, gemm, warmup
from tiledsl.gemm.choice import Variant
from tiledsl.gemm.formats import SPLITS, Split
from tiledsl.gemm.hopper import hopper_fastest
from tiledsl.gemm.operands import described
from tiledsl.gemm.plan import Problem, plan, planes_by_variant
from tiledsl.gemm.planes import planes_width, scales_of_both, split_both
from tiledsl.gemm.steps import problem_of, steps_of
from tiledsl.gemm.warm_up import operands_of
from tiledsl.inspect.loading import load_module
from tiledsl.ir import tensor_core
from tiledsl.ir.types import F32
from tiledsl.layout.wgmma import WGMMA

Array = NDArray[Any]
GALLERY = Path(__file__).parent.parent.parent / "examples" / "gemm"
U = 2.0**-24
ROWS = {row.a: row for row in WGMMA if row.acc == "f32" and row.a == row.b}
NUMPY: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
ROUNDING = {"bf16x6": 24, "f16x3": 51}
"""Of the bounds in docs/gemm.md."""


def product(A: Array, B: Array, *more: Any, **given: Any) -> Array:
    return gemm(A, B, *more, device="emulator", **given)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@cache
def of_normal(m: int, n: int, k: int, name: str, invariant: bool = False) -> Array:
    """The product of such numbers, row by row: what others are compared with."""
    return product(normal(m, k), normal(k, n, seed=1), precision=name, batch_invariant=invariant)


def wide(X: Array) -> Array:
    return X.astype(np.float64)


def sizes(A: Array, B: Array) -> Array:
    return np.abs(wide(A)) @ np.abs(wide(B))


def within(C: Array, A: Array, B: Array, name: str) -> bool:
    """Whether the error is within the bound of docs/gemm.md."""
    bound = (ROUNDING[name] + -(-A.shape[-1] // SPLITS[name].depth)) * U * sizes(A, B)
    if name == "f16x3":  # of elements that are small in their row of A, or column of B
        of_a, of_b = np.abs(wide(A)), np.abs(wide(B))
        bound += 2.0**-39 * of_a.max(-1, keepdims=True) * of_b.sum(-2, keepdims=True)
        bound += 2.0**-39 * of_a.sum(-1, keepdims=True) * of_b.max(-2, keepdims=True)
    return bool((np.abs(C - wide(A) @ wide(B)) <= bound).all())


def bits_of(found: Array) -> Any:
    return found.view(np.uint32).tolist()


# -- errors ----------------------------------------------------------------------------------------------------


def inputs(kind: str, m: int, n: int, k: int) -> tuple[Array, Array]:
    random = np.random.default_rng(1)
    A, B = random.standard_normal((m, k)), random.standard_normal((k, n))
    if kind == "uniform":
        A, B = random.random((m, k)), random.random((k, n))
    if kind == "cancelling":  # the second half takes away what the first one added, up to the last bits
        A[:, k // 2 :] = A[:, : k // 2] * (1 + 1e-6 * random.standard_normal((m, k // 2)))
        B[k // 2 :] = -B[: k // 2]
    if kind == "neighbours cancel":  # FFMA's sums never grow
        A[:, 1::2] = A[:, ::2] * (1 + 1e-3 * random.standard_normal((m, k // 2)))
        B[1::2] = -B[::2]
    if kind == "of all sizes":
        A *= 2.0 ** random.integers(-10, 11, A.shape)
        B *= 2.0 ** random.integers(-10, 11, B.shape)
    if kind == "rows of all sizes":
        A *= 2.0 ** random.integers(-60, 61, (m, 1))
        B *= 2.0 ** random.integers(-60, 61, (1, n))
    return A.astype(np.float32), B.astype(np.float32)


KINDS = ("normal", "uniform", "cancelling", "neighbours cancel", "of all sizes", "rows of all sizes")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [32, 128, 712])
def test_errors_beside_ffma(kind: str, k: int) -> None:
    """The largest and the mean error where k is not cut: of bf16x6 no larger than FFMA's; of f16x3 neither from k = 512
    on, at most four times as large before, and five times where FFMA's sums never grow."""
    A, B = inputs(kind, 48, 40, k)
    exact, of_size = wide(A) @ wide(B), sizes(A, B)

    def errors(C: Array) -> tuple[float, float]:
        share = np.abs(C - exact) / of_size
        return float(share.max()), float(np.sqrt((share**2).mean()))

    ffma = errors(product(A, B, batch_invariant=True))
    for name, most in (("bf16x6", 1), ("f16x3", 5 if kind == "neighbours cancel" else 4 if k < 512 else 1)):
        found = product(A, B, precision=name, batch_invariant=True)
        assert within(found, A, B, name)
        assert all(ours <= most * theirs for ours, theirs in zip(errors(found), ffma, strict=True)), (name, ffma)


def test_planes_of_bf16_have_all_bits() -> None:
    """A single product of each pair of planes, and of numbers whose last bits count."""
    ones = np.eye(40, dtype=np.float32)
    A = (np.random.default_rng(0).integers(2**23, 2**24, (70, 40)) * np.ldexp(1.0, -20)).astype(np.float32)
    assert bits_of(product(A, ones, precision="bf16x6")) == bits_of(A)
    assert bits_of(product(ones, A.T, precision="bf16x6")) == bits_of(A.T.copy())
    found = product(A, ones, precision="f16x3")  # at most one unit of the last place
    assert (np.abs(wide(found) - wide(A)) <= 2.0**-20).all() and bits_of(found) != bits_of(A)


# -- bits ------------------------------------------------------------------------------------------------------


def planes(X: Array, split: Split) -> list[Array]:
    found: list[Array] = []
    for _ in range(split.planes):
        found.append(X.astype(NUMPY[split.dtype.name]))
        X = X - found[-1].astype(np.float32)
    return found


def modelled(A: Array, B: Array, split: Split) -> Array:
    """What the docs say, step by step, of finite numbers: by NumPy and the definition of wgmma alone."""
    m, k, n = *A.shape, B.shape[1]
    rows, columns = np.zeros((m, 1), int), np.zeros((1, n), int)
    if split.scaled:
        rows, columns = (np.frexp(np.abs(X).max(axis, keepdims=True))[1] - 15 for X, axis in ((A, 1), (B, 0)))
    padded = -(-k // split.depth) * split.depth
    left, right = np.zeros((m, padded), np.float32), np.zeros((n, padded), np.float32)
    left[:, :k], right[:, :k] = np.ldexp(A, -rows), np.ldexp(B, -columns).T
    of_a, of_b = planes(left, split), planes(right, split)
    total = np.zeros((m, n), np.float32)
    for first in range(0, k, split.depth):
        step, part = slice(first, first + split.depth), np.zeros((1, m, n), np.float32)
        for both in reversed(range(split.planes)):
            for i in range(both + 1):
                x, y = of_a[i][None, :, step], of_b[both - i][None, :, step]
                part = tensor_core.wgmma(ROWS[split.dtype.name], x, y, part)
        total += part[0]
    return np.ldexp(total, rows + columns).astype(np.float32)


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("size", [(40, 48, 130), (133, 17, 96), (1, 1, 1)])
def test_the_order_of_operations(name: str, size: tuple[int, int, int]) -> None:
    m, n, k = size
    A, B = normal(m, k), normal(k, n, seed=1) * np.float32(2.0**40)
    expected = bits_of(modelled(A, B, SPLITS[name]))
    assert bits_of(product(A, B, precision=name, batch_invariant=True)) == expected


@pytest.mark.parametrize("name", SPLITS)
def test_the_bits_of_a_row_depend_on_it_alone(name: str) -> None:
    """Without the promise, k of 70 rows of f16x3 is in parts, and k of 200 rows is not."""
    A, B = normal(200, 520), normal(520, 40, seed=1)
    whole = product(A, B, precision=name, batch_invariant=True)
    for m in (1, 17, 70):
        assert bits_of(product(A[-m:], B, precision=name, batch_invariant=True)) == bits_of(whole[-m:])


TILES = {
    "wide": (Variant((128, 192, 1)), 200),
    "narrow": (Variant((64, 32, 2)), 72),
    "a cluster": (Variant((128, 64, 1), along_m=2, along_n=2), 200),
    "exchanged": (Variant((128, 96, 1), exchanged=True), 200),
    "parts": (Variant((128, 96, 1), parts=2), 104),
    "parts of instances": (Variant((64, 32, 2), parts=3), 72),
    "parts by clusters": (Variant((128, 64, 1), parts=1, groups=3), 72),
    "both": (Variant((128, 64, 1), parts=2, groups=2, exchanged=True), 136),
}
"""And so many columns of C: several tiles, the last one in part."""


def emulated(of: Any, made: Any, split: Split) -> None:
    """The launches of a plan, on the emulator, each checked for hazards."""
    steps = steps_of(of, problem_of(of, 0.0, False, "sm_90a", 132), made, None)
    room, zeros = np.full(steps.room + 256, 255, np.uint8), np.zeros(steps.zeros + 256, np.uint8)
    addresses = (*of.addresses, *(x.ctypes.data + -x.ctypes.data % 256 for x in (room, zeros)))
    assert len(steps.launches) == 2 + split.scaled
    for step in steps.launches:
        step.kernel.dispatcher.run(step.values(addresses, -1, 1.0, 0.0, (of.given, room, zeros)), "emulator")


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("name", SPLITS)
def test_every_tile(name: str, tile: str) -> None:
    """The same bits by all tiles that do not cut k, exchanged or not."""
    split, (variant, n) = SPLITS[name], TILES[tile]
    A, B = normal(150, 328), np.ascontiguousarray(normal(328, 200, seed=1)[:, :n])
    C = np.full((150, n), np.nan, np.float32)
    of = described(A, B, C, None, None, None, name)
    emulated(of, planes_by_variant(problem_of(of, 0.0, False, "sm_90a", 132), split, variant), split)
    assert within(C, A, B, name)
    if not variant.parts:
        assert bits_of(C) == bits_of(of_normal(150, 200, 328, name, True)[:, :n].copy())


# -- operands --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("size", [(64, 256, 128), (133, 17, 75)])
def test_operands_of_any_order(name: str, layout: str, size: tuple[int, int, int]) -> None:
    """The same bits, by rows or by columns of C: half of all, so that either has each layout, size and name."""
    m, n, k = size
    A, B = normal(m, k), normal(k, n, seed=1)
    left, right = (np.asarray(X, order="F" if o == "T" else "C") for X, o in zip((A, B), layout, strict=True))
    expected = bits_of(of_normal(m, n, k, name))
    assert within(of_normal(m, n, k, name), A, B, name)
    by_columns = (layout in ("NN", "TT")) ^ (m == 64) ^ (name == "f16x3")
    C = np.full((m, n), np.nan, np.float32, "F" if by_columns else "C")
    assert bits_of(np.ascontiguousarray(product(left, right, C, precision=name))) == expected


@pytest.mark.parametrize("a", VIEWS)
@pytest.mark.parametrize("b", VIEWS)
def test_operands_of_any_strides(a: str, b: str) -> None:
    """Every other pair by other planes, so that each view is of A and of B of both."""
    A, B = normal(70, 68), normal(68, 72, seed=1)
    name = [*SPLITS][([*VIEWS].index(a) + [*VIEWS].index(b)) % 2]
    assert bits_of(product(VIEWS[a](A), VIEWS[b](B), precision=name)) == bits_of(of_normal(70, 72, 68, name))


@pytest.mark.parametrize("name", SPLITS)
def test_batches(name: str) -> None:
    """Each matrix as it is alone: of a batch, of one that is repeated, of rows that follow each other."""
    A, B = normal(3, 70, 100), normal(3, 100, 40, seed=1)
    for left, right in ((A, B), (A, B[:1]), (A[0], B), (A, B[0])):
        found = product(left, right, precision=name, batch_invariant=True)
        for i in range(3):
            x, y = (X if X.ndim == 2 else X[i % len(X)] for X in (left, right))
            assert bits_of(found[i]) == bits_of(product(x, y, precision=name, batch_invariant=True))


@pytest.mark.parametrize("name", SPLITS)
def test_factors_bias_and_epilogue(name: str) -> None:
    A, B, bias = normal(70, 100), normal(100, 48, seed=1), normal(48, seed=2)
    plain = product(A, B, precision=name, batch_invariant=True)
    C = np.ones((70, 48), np.float32)
    found = product(A, B, C, 2.0, -1.0, bias, relu_bias, precision=name, batch_invariant=True)
    assert found is C and bits_of(found) == bits_of(np.maximum((2 * plain - 1) + bias, 0))
    assert bits_of(product(A, B, bias=bias, precision=name, batch_invariant=True)) == bits_of(plain + bias)
    A[:] = np.nan
    assert not product(A, B, alpha=0.0, precision=name).any()


@pytest.mark.parametrize("name", SPLITS)
def test_nothing_to_add_up(name: str) -> None:
    assert product(np.ones((3, 0), np.float32), np.ones((0, 4), np.float32), precision=name).tolist() == [[0] * 4] * 3
    assert product(np.ones((0, 8), np.float32), np.ones((8, 4), np.float32), precision=name).shape == (0, 4)


# -- special values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_gives_nan(name: str, value: float) -> None:
    """In its row, or column, and nowhere else."""
    A, B = normal(70, 100), normal(100, 40, seed=1)
    clean = product(A, B, precision=name)
    A[5, 99], B[50, 7] = value, value
    found = product(A, B, precision=name)
    hit = np.zeros_like(found, bool)
    hit[5], hit[:, 7] = True, True
    assert np.isnan(found[hit]).all() and bits_of(found[~hit]) == bits_of(clean[~hit])


@pytest.mark.parametrize("name", SPLITS)
def test_the_largest_and_the_smallest_numbers(name: str) -> None:
    """The largest f32 rounds to infinity in bf16; sums that overflow are infinities; subnormals lose what is below
    the last plane."""
    info = np.finfo(np.float32)
    A, B = normal(64, 40), normal(40, 32, seed=1)
    A[:, 1:], A[0, 0], A[1, 0], A[2, 0], A[3, 0] = 0, info.max, -info.max, info.smallest_subnormal, info.tiny
    A[4, 0], A[5] = 0, 0
    B[0] = 1
    found = product(A, B, precision=name)
    assert found[0].tolist() == [info.max] * 32 and found[1].tolist() == [-info.max] * 32
    assert found[2].tolist() == ([0] * 32 if name == "bf16x6" else [info.smallest_subnormal] * 32)
    assert found[3].tolist() == [info.tiny] * 32 and not found[4:6].any()
    B[0] = 4
    assert np.isposinf(product(A, B, precision=name)[0]).all()
    A, B = normal(64, 40), normal(40, 32, seed=1)
    A[7] *= np.float32(2.0**120)
    # Of f16x3 the scale of the row alone would overflow; of bf16x6 the last plane of the column is just not subnormal.
    B[:, 3] *= np.float32(2.0**-125 if name == "f16x3" else 2.0**-105)
    assert within(product(A, B, precision=name)[7:8, 3:4], A[7:8], B[:, 3:4], name)


def test_small_elements_of_a_row_of_f16() -> None:
    """Their error is that of the largest in their row, 2^-39 of it, where bf16 has all of their bits."""
    A, B = normal(64, 64), normal(64, 48, seed=1)
    A[:, ::2] *= np.float32(2.0**40)
    B[::2] *= np.float32(2.0**-40)
    assert within(product(A, B, precision="bf16x6"), A, B, "bf16x6")
    found = product(A, B, precision="f16x3")
    assert within(found, A, B, "f16x3") and not (np.abs(found - wide(A) @ wide(B)) <= 2.0**-20 * sizes(A, B)).all()


# -- kernels and choice ------------------------------------------------------------------------------------------


PAIRS = (((70, 100), (9, 100)), ((64, 64), (130, 64)), ((1, 33), (3, 33)))


@pytest.mark.parametrize(
    ("name", "sizes", "order", "early"),
    [
        (name, sizes, order, (number + PAIRS.index(sizes) + (name == "f16x3")) % 2 == 1)
        for name in SPLITS
        for sizes in PAIRS
        for number, order in enumerate(("CC", "FC", "CF", "FF"))
    ],
)
def test_planes_and_scales(name: str, sizes: tuple[tuple[int, int], ...], order: str, early: bool) -> None:
    """Their sum is what was split, 0 behind it; no hazards."""
    split = SPLITS[name]
    X, Z = (normal(1, *size, seed=i) for i, size in enumerate(sizes))
    X, Z = (x.swapaxes(1, 2).copy().swapaxes(1, 2) if o == "F" else x for x, o in zip((X, Z), order, strict=True))
    Y, W = (np.full((1, x.shape[1], planes_width(x.shape[2], split)), 7, NUMPY[split.dtype.name]) for x in (X, Z))
    S, R = (np.ones((1, x.shape[1]), np.float32) for x in (X, Z))
    given = {"scale_x": S, "scale_z": R} if split.scaled else {}
    if split.scaled:
        scales_of_both.check(X, S, Z, R, EARLY=early)
    split_both.check(X, Y, Z, W, **given, PLANES=split.planes, DEPTH=split.depth, EARLY=early)
    for x, y, scale in ((X, Y, S), (Z, W, R)):
        blocks = wide(y).reshape(x.shape[1], -1, split.planes, split.depth)
        back = blocks.sum(2).reshape(x.shape[1], -1) * scale[0, :, None]
        k = x.shape[2]
        assert (np.abs(back[:, :k] - x[0]) <= split.scaled * 2.0**-23 * np.abs(x[0])).all() and not back[:, k:].any()
        if split.scaled:
            largest = np.abs(x[0]).max(1) / scale[0]
            assert ((largest >= 2.0**14) & (largest < 2.0**15)).all()


@pytest.mark.parametrize("name", SPLITS)
def test_without_hazards(name: str) -> None:
    split = SPLITS[name]
    A, B = (np.ones((1, rows, planes_width(70, split)), NUMPY[split.dtype.name]) for rows in (130, 72))
    C = np.zeros((1, 130, 72), np.float32)
    scales = (np.full((1, 130, 1), 2, np.float32), np.full((1, 1, 72), 4, np.float32))
    consts = Variant((128, 64, 1)).consts(0, 4, step=split.columns) | {"PLANES": split.planes, "STAGES": 2}
    given = dict(zip(("scale_a", "scale_b"), scales, strict=True)) if split.scaled else {}
    hopper_fastest.check(A, B.swapaxes(1, 2), C, **given, **consts)
    padded = -(-70 // split.depth) * split.depth
    assert (padded * split.products * (8 if split.scaled else 1) == C).all()


@pytest.mark.parametrize("name", SPLITS)
def test_what_is_chosen(name: str) -> None:
    """As many products as planes need, no spills; and the same for a warm-up as for a call."""
    split = SPLITS[name]
    for m, n, k in ((4096, 4096, 4096), (64, 7168, 2048), (128, 128, 65536)):
        of = operands_of((m, n, k), (F32, F32, F32), "NT", False, False, 0)._replace(split=split)
        made = plan(problem_of(of, 0.0, False, "sm_90a", 132))
        assert made.kernel is hopper_fastest and made.split == split
        assert (made.consts["PLANES"], made.consts["BK"]) == (split.planes, split.columns)
        step = steps_of(of, problem_of(of, 0.0, False, "sm_90a", 132), made, None).launches[-1]
        spec, arch = step.kernel.dispatcher.build_of(step.values((*of.addresses, 1 << 60, 1 << 61), 0), "sm_90a")
        used = step.kernel.builds.compiled(spec, arch).resources
        assert used.spill_stores == used.stack == 0
    assert split.products == {"bf16x6": 6, "f16x3": 3}[name]
    warmup([(300, 200, 100)], "f32", precision=name, layouts=("NN", "TT"), arch="sm_90a")


@pytest.mark.parametrize("name", SPLITS)
def test_later_calls_only_look_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch tensors, through a workspace that holds planes and scales."""
    gpu = EmulatedDriver()
    install(monkeypatch, gpu)
    slow: list[Any] = []
    slowly: Any = call._call  # pyright: ignore[reportPrivateUsage]

    def counted(*given: Any) -> Any:
        slow.append(given)
        return slowly(*given)

    monkeypatch.setattr(call, "_call", counted)
    for seed in range(3):
        A, B = normal(40, 100, seed=seed), normal(100, 56, seed=seed + 9)
        C: Any = FakeTorch(aligned(np.full((40, 56), np.nan, np.float32)))
        assert gemm(FakeTorch(aligned(A)), FakeTorch(aligned(B)), C, precision=name) is C
        assert len(slow) == 1 and bits_of(C.array) == bits_of(modelled(A, B, SPLITS[name]))
    gemm(FakeTorch(aligned(A)), FakeTorch(aligned(B)), C)
    assert len(slow) == 2 and bits_of(C.array) == bits_of(product(A, B))


# -- refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPLITS)
def test_refused(name: str) -> None:
    A, B = np.ones((8, 8), ml_dtypes.bfloat16), np.ones((8, 8), np.float32)
    with pytest.raises(KernelArgumentError, match=f"precision is '{name}', which is for A and B of f32; they are bf16"):
        product(A, A, precision=name)
    with pytest.raises(KernelArgumentError, match="C is bf16; expected one of f32 for A and B of f32"):
        product(B, B, A, precision=name)
    with pytest.raises(KernelArgumentError, match="scale_a and scale_b are for A and B of e4m3 or e5m2"):
        product(B, B, precision=name, scale_a=B, scale_b=B)
    for arch, target in TARGETS.items():
        if "wgmma" not in target.features:
            with pytest.raises(KernelArgumentError, match=f"{name}' on {arch}, and only the kernel for wgmma") as found:
                plan(Problem(1, 64, 64, 64, "f32", "f32", arch=arch, split=SPLITS[name]))
            assert "\n  fix: " in str(found.value)


# -- gallery -----------------------------------------------------------------------------------------------------


def test_the_step_of_the_gallery(capsys: pytest.CaptureFixture[str]) -> None:
    """A product of split operands, as the library computes it; the printed errors, and no spills."""
    step = load_module(GALLERY / "hopper_split.py")
    A, B = normal(140, 104), normal(104, 230, seed=1)
    C = np.full((140, 230), 7, np.float32)
    step.hopper_split.check(step.split(A, 3), step.split(B.T, 3), C)
    assert bits_of(C) == bits_of(product(A, B, precision="bf16x6", batch_invariant=True))
    used = step.hopper_split.compile(arch="sm_90a").resources
    assert used.spill_stores == used.stack == 0
    step.main(40, 50, 512)
    ffma, *of_planes = (float(error) for error in re.findall(r": ([\d.]+) units", capsys.readouterr().out))
    assert of_planes[0] < ffma / 2 and ffma < of_planes[1] < 20 * ffma and of_planes[2] > 500 * ffma
