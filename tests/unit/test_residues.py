"""`gemm` of f32 and f64 by residues of integers: exact integers, errors, any operands, special values, refusals."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import prod
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.emulated_gpu import EmulatedDriver, FakeTorch, aligned, install
from tests.unit.test_gemm_call import VIEWS, relu_bias
from tests.unit.test_planes import KINDS, inputs
from tiledsl import maximum, tile_function
from tiledsl.errors import KernelArgumentError
from tiledsl.gemm import call, gemm, warmup
from tiledsl.gemm.formats import RESIDUES, Residues
from tiledsl.gemm.hopper import hopper_fastest
from tiledsl.gemm.plan import Problem, plan
from tiledsl.gemm.planes import scales_of_both
from tiledsl.gemm.residues import CONSTANTS, LARGEST_K, MODULI, MOST_BITS, bits_for, combined, residues_of_both
from tiledsl.gemm.steps import problem_of, steps_of
from tiledsl.gemm.warm_up import operands_of
from tiledsl.ir.types import F32, F64

Array = NDArray[Any]
DTYPES: dict[str, Any] = {"i8x8": np.float32, "i8x15": np.float64}
UNIT = {"i8x8": 2.0**-24, "i8x15": 2.0**-53}


def product(A: Array, B: Array, *more: Any, **given: Any) -> Array:
    return gemm(A, B, *more, device="emulator", **given)


def normal(name: str, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(DTYPES[name])


@cache
def expected_of(name: str, m: int, n: int, k: int) -> Array:
    """Of packed operands, which the tests below give in other ways."""
    return product(normal(name, m, k), normal(name, k, n, seed=1), precision=name)


def bits_of(found: Array) -> Any:
    return np.ascontiguousarray(found).view(f"u{found.itemsize}").tolist()


def exact(A: Array, B: Array) -> Any:
    """As fractions."""
    left, right = (np.array([[Fraction(float(x)) for x in row] for row in X]) for X in (A, B))
    return left @ right


def bound(A: Array, B: Array, scheme: Residues) -> Any:
    """Of the errors, as docs/gemm.md has it."""
    bits = bits_for(A.shape[1], scheme)
    of_a, of_b = (np.abs(X).astype(np.longdouble) for X in (A, B))
    of_rounding = of_a.max(1)[:, None] * of_b.sum(0) + of_a.sum(1)[:, None] * of_b.max(0)
    return 2.0**-bits * of_rounding * (1 + 2.0**-20)


def within(C: Array, A: Array, B: Array, name: str) -> bool:
    right = exact(A, B)
    off = np.array(
        [[abs(Fraction(float(x)) - y) for x, y in zip(*rows, strict=True)] for rows in zip(C, right, strict=True)]
    )
    rounded = np.vectorize(lambda y: abs(y) * Fraction(UNIT[name]) * 2)(right)
    most = np.vectorize(lambda x: Fraction(*float(x).as_integer_ratio()))(bound(A, B, RESIDUES[name]))
    return bool((off <= most + rounded).all())


# -- numbers -----------------------------------------------------------------------------------------------------


def test_moduli_have_no_common_factors_and_residues_fit() -> None:
    """A quotient is off by as much as the factor's rounding makes it; a residue of 128 is -128 modulo 256."""
    whole = prod(MODULI)
    for p, (modulus, factor, high) in zip(MODULI, CONSTANTS, strict=True):
        assert modulus == p <= 256 and (whole // p) % p and pow(whole // p, -1, p)
        assert (int(high) - (1 << 20)) % p == 0 and abs(high) <= p / 2
        largest = {F32: (np.float32(factor), MOST_BITS[F32]), F64: (np.float64(factor), MOST_BITS[F64])}
        for kind, bits in (*largest.values(), (np.float32(factor), 22)):
            off = abs(Fraction(float(kind)) * p - 1) * 2**bits
            assert Fraction(p, 2) + off < 128 or (p == 256 and off == 0)


def test_bits_are_those_of_the_documentation() -> None:
    f32, f64 = RESIDUES["i8x8"], RESIDUES["i8x15"]
    assert [bits_for(k, f32) for k in (6265, 6266, 25063, 25064, 100253, 100254)] == [25, 24, 24, 23, 23, 22]
    assert [bits_for(k, f64) for k in (1942, 1943, 7771, 7772, 31084, 31085, 124338, 124339)] == [
        *(53, 52, 52, 51, 51, 50, 50, 49)
    ]


@pytest.mark.parametrize("name", RESIDUES)
@pytest.mark.parametrize("k", [1, 2, 64, 4096, 131071])
def test_sums_are_known_by_their_residues(name: str, k: int) -> None:
    scheme = RESIDUES[name]
    assert 2 * k * 4 ** bits_for(k, scheme) < prod(MODULI[: scheme.moduli])
    assert bits_for(k, scheme) >= {"i8x8": 22, "i8x15": 49}[name]


@pytest.mark.parametrize("name", RESIDUES)
def test_products_of_integers_are_exact(name: str) -> None:
    """And rounded, at most twice."""
    k = 64
    bits = min(bits_for(k, RESIDUES[name]), {"i8x8": 24, "i8x15": 53}[name])
    rng = np.random.default_rng(3)
    A, B = (rng.integers(-(2**bits) + 1, 2**bits, shape).astype(DTYPES[name]) for shape in ((12, k), (k, 14)))
    right, found = exact(A, B), product(A, B, precision=name)
    for i, j in np.ndindex(found.shape):
        assert abs(Fraction(float(found[i, j])) - right[i, j]) <= abs(right[i, j]) * 2 * Fraction(UNIT[name])
    small = [rng.integers(-900, 900, shape).astype(DTYPES[name]) for shape in ((20, 16), (16, 24))]
    assert (product(*small, precision=name) == small[0].astype(int) @ small[1].astype(int)).all()


@pytest.mark.parametrize(("name", "k"), [("i8x8", 25063), ("i8x15", 7771)])
def test_the_largest_sums(name: str, k: int) -> None:
    """Of the longest k for a number of bits: close to P / 2."""
    bits, scheme = bits_for(k, RESIDUES[name]), RESIDUES[name]
    assert bits_for(k + 1, scheme) < bits and 2 * k * 4**bits > 0.99 * prod(MODULI[: scheme.moduli])
    A = np.full((2, k), 2**bits - 2 ** (bits - 24), DTYPES[name])
    A[1] *= -1
    found, largest = product(A, np.ascontiguousarray(A.T), precision=name), Fraction(float(A[0, 0])) ** 2 * k
    for x, sign in zip(found.ravel().tolist(), (1, -1, -1, 1), strict=True):
        assert abs(Fraction(x) * sign - largest) <= largest * 2 * Fraction(UNIT[name])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [32, 140])
@pytest.mark.parametrize("name", RESIDUES)
def test_errors(name: str, kind: str, k: int) -> None:
    A, B = (X.astype(DTYPES[name]) for X in inputs(kind, 20, 16, k))
    if name == "i8x15":
        A *= 1 + 2.0**-40 * normal(name, *A.shape, seed=5)
    assert within(product(A, B, precision=name), A, B, name)


# -- operands ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RESIDUES)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("size", [(64, 64, 64), (73, 17, 75)])
def test_operands_of_any_order(name: str, layout: str, size: tuple[int, int, int]) -> None:
    """The same bits, by rows or by columns of C: with each precision, layout and size both occur."""
    m, n, k = size
    A, B = normal(name, m, k), normal(name, k, n, seed=1)
    left, right = (np.asarray(X, order="F" if o == "T" else "C") for X, o in zip((A, B), layout, strict=True))
    order: Any = "CF"[(list(RESIDUES).index(name) + ["NN", "NT", "TN", "TT"].index(layout) + m) % 2]
    C = np.full((m, n), np.nan, DTYPES[name], order)
    assert bits_of(product(left, right, C, precision=name)) == bits_of(expected_of(name, *size))


@pytest.mark.parametrize("view", VIEWS)
def test_operands_of_any_strides(view: str) -> None:
    for name in RESIDUES:
        A, B = normal(name, 40, 36), normal(name, 36, 38, seed=1)
        found = product(VIEWS[view](A), VIEWS[view](B), precision=name)
        assert bits_of(found) == bits_of(expected_of(name, 40, 38, 36))


@pytest.mark.parametrize("name", RESIDUES)
def test_batches(name: str) -> None:
    """Each matrix as it is alone: of a batch, of one that is repeated, of rows that follow each other."""
    A, B = normal(name, 3, 33, 50), normal(name, 3, 50, 40, seed=1)
    alone = cache(lambda i, j: product(A[i], B[j], precision=name))
    for left, right, each_a, each_b in ((A, B, 1, 1), (A, B[:1], 1, 0), (A[0], B, 0, 1), (A, B[0], 1, 0)):
        found = product(left, right, precision=name)
        for i in range(3):
            assert bits_of(found[i]) == bits_of(alone(i * each_a, i * each_b))


@tile_function
def positive(x, bias, column):  # pyright: ignore
    return maximum(x, 0)


def test_factors_bias_and_epilogue() -> None:
    A, B, bias = normal("i8x8", 70, 100), normal("i8x8", 100, 48, seed=1), normal("i8x8", 48, seed=2)
    plain = product(A.astype(float), B.astype(float), precision="i8x15")
    C = np.ones((70, 48), np.float32)
    found = product(A, B, C, 2.0, -1.0, bias, relu_bias, precision="i8x8")
    assert found is C and np.allclose(found, np.maximum((2 * plain - 1) + bias, 0), atol=1e-5)
    assert np.allclose(product(A, B, bias=bias, precision="i8x8"), plain + bias, atol=1e-5)


def test_factors_of_f64_are_f64() -> None:
    A, B = normal("i8x15", 20, 30), normal("i8x15", 30, 28, seed=1)
    plain, C = product(A, B, precision="i8x15"), normal("i8x15", 20, 28, seed=2)
    expected = 0.1 * plain
    assert bits_of(product(A, B, alpha=0.1, precision="i8x15")) == bits_of(expected)
    before = C.copy()
    found = product(A, B, C, 0.1, 1 / 3, precision="i8x15", epilogue=positive)
    assert np.allclose(found, np.maximum(expected + before / 3, 0), rtol=4e-16, atol=1e-15)


@pytest.mark.parametrize("name", RESIDUES)
def test_nothing_to_add_up(name: str) -> None:
    dtype = DTYPES[name]
    assert product(np.ones((3, 0), dtype), np.ones((0, 4), dtype), precision=name).tolist() == [[0] * 4] * 3
    tiny = np.full((3, 4), 1e-30, dtype)  # times a factor that f32 does not have
    found = gemm(np.ones((3, 0), dtype), np.ones((0, 4), dtype), tiny, beta=1e40, precision=name, device="emulator")
    assert np.allclose(found, np.float64(1e40) * np.float64(dtype(1e-30)), rtol=1e-6)
    assert product(np.ones((0, 8), dtype), np.ones((8, 4), dtype), precision=name).shape == (0, 4)
    C = np.full((3, 4), 3, dtype)
    nan = np.full((3, 5), np.nan, dtype)
    assert product(nan, nan.reshape(5, 3)[:, [0, 1, 2, 0]], C, 0, 2, precision=name).tolist() == [[6] * 4] * 3


# -- special values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RESIDUES)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_gives_nan(name: str, value: float) -> None:
    """In its row, or column, and nowhere else."""
    A, B = normal(name, 70, 100), normal(name, 100, 40, seed=1)
    clean = product(A, B, precision=name)
    A[5, 99], B[50, 7] = value, value
    found = product(A, B, precision=name)
    hit = np.zeros_like(found, bool)
    hit[5], hit[:, 7] = True, True
    assert np.isnan(found[hit]).all() and bits_of(found[~hit]) == bits_of(clean[~hit])


@pytest.mark.parametrize("name", RESIDUES)
def test_the_largest_and_the_smallest_numbers(name: str) -> None:
    """Also where one scale is very large, and the other one very small."""
    info = np.finfo(DTYPES[name])
    A, B = normal(name, 40, 40), normal(name, 40, 36, seed=1)
    A[0], A[1], A[2] = 0, A[1] * 2.0 ** (info.maxexp - 8), A[2] * 2.0 ** (info.minexp + 60)
    B[:, 0], B[:, 1], B[:, 2] = 0, B[:, 1] * 2.0 ** (info.maxexp - 8), B[:, 2] * 2.0 ** (info.minexp + 60)
    with np.errstate(over="ignore"):
        found = product(A, B, precision=name)
    assert np.isinf(found[1, 1]) and not found[0].any() and not found[:, 0].any()
    assert abs(exact(A[2:3], B[:, 2:3])[0, 0] - Fraction(float(found[2, 2]))) <= Fraction(
        float(info.smallest_subnormal)
    )
    for i, j in ((1, 2), (2, 1), (1, 5), (5, 2)):
        assert within(found[i : i + 1, j : j + 1], A[i : i + 1], B[:, j : j + 1], name)
    A[3], B[:, 3] = 0, 1
    A[3, 0] = info.max
    assert product(A, B, precision=name)[3, 3] == info.max


# -- kernels and choice --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["CC", "FC", "CF", "FF"])
@pytest.mark.parametrize("name", RESIDUES)
def test_kernels_have_no_hazards(name: str, order: str) -> None:
    """Residues are those of the scaled, rounded elements, 0 behind them. Early or not: with each precision and order
    both occur."""
    scheme, dtype = RESIDUES[name], DTYPES[name]
    early = (list(RESIDUES).index(name) + ["CC", "FC", "CF", "FF"].index(order)) % 2 == 1
    X, Z = (normal(name, 2, rows, 75, seed=rows) for rows in (70, 20))
    X, Z = (x.swapaxes(1, 2).copy().swapaxes(1, 2) if o == "F" else x for x, o in zip((X, Z), order, strict=True))
    bits, count = bits_for(75, scheme), scheme.moduli
    S, R = np.ones((2, 70), dtype), np.ones((2, 20), dtype)
    Y, W = np.full((2 * count, 70, 80), 7, np.int8), np.full((2 * count, 32, 80), 7, np.int8)
    moduli = np.zeros((2 * count, 3), np.float32)
    scales_of_both.check(X, S, Z, R, bits, EARLY=early)
    residues_of_both.check(X, Y, Z, W, S, R, moduli, COUNT=count, EARLY=early)
    for x, y, scale in ((X, Y, S), (Z, W, R)):
        assert ((np.abs(x).max(2) / scale < 2.0**bits) & (np.abs(x).max(2) / scale >= 2.0 ** (bits - 1))).all()
        whole = np.rint(x / scale[:, :, None]).astype(np.int64)
        for p in range(count):
            part = y[2 * p : 2 * p + 2].astype(np.int64)
            assert not ((part[:, : x.shape[1], :75] - whole) % MODULI[p]).any()
            assert not part[:, x.shape[1] :].any() and not part[:, :, 75:].any()
    assert moduli.tolist() == np.repeat(np.array(CONSTANTS[:count], np.float32), 2, axis=0).tolist()
    C = np.zeros((2, 70, 20), dtype, order=order[0])
    combined.check(C, planes=np.ones((2 * count, 70, 32), np.int8), scale_a=S, scale_b=R, COUNT=count, EARLY=early)
    assert (S[:, :, None] * R[:, None, :] == C).all()


@pytest.mark.parametrize("name", RESIDUES)
def test_what_is_chosen(name: str) -> None:
    """A batch of products of i8; no spills; and the same for a warm-up as for a call."""
    scheme = RESIDUES[name]
    for m, n, k in ((4096, 4096, 4096),):
        of = operands_of((m, n, k), (scheme.dtype,) * 3, "NT", False, False, 0)._replace(split=scheme)
        problem = problem_of(of, 0.0, False, "sm_90a", 132)
        made = plan(problem)
        assert made.kernel is hopper_fastest and made.split == scheme
        for step in steps_of(of, problem, made, None).launches:
            spec, arch = step.kernel.dispatcher.build_of(step.values((*of.addresses, 1 << 60, 1 << 61), 0), "sm_90a")
            used = step.kernel.builds.compiled(spec, arch).resources
            assert used.spill_stores == used.stack == 0
    warmup([(300, 200, 100)], scheme.dtype.name, precision=name, layouts=("NN", "TT"), arch="sm_90a")


@pytest.mark.parametrize("name", RESIDUES)
def test_later_calls_only_look_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch tensors, through a workspace."""
    operands = [(normal(name, 40, 100, seed=seed), normal(name, 100, 56, seed=seed + 9)) for seed in range(3)]
    given: Any = {"precision": name, "alpha": 0.1}
    expected = [bits_of(product(A, B, **given)) for A, B in operands]
    install(monkeypatch, EmulatedDriver())
    slow: list[Any] = []
    slowly: Any = call._call  # pyright: ignore[reportPrivateUsage]

    def counted(*given: Any) -> Any:
        slow.append(given)
        return slowly(*given)

    monkeypatch.setattr(call, "_call", counted)
    for (A, B), bits in zip(operands, expected, strict=True):
        C: Any = FakeTorch(aligned(np.full((40, 56), np.nan, DTYPES[name])))
        assert gemm(FakeTorch(aligned(A)), FakeTorch(aligned(B)), C, **given) is C
        assert len(slow) == 1 and bits_of(C.array) == bits


# -- refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RESIDUES)
def test_refused(name: str) -> None:
    dtype, kind = DTYPES[name], RESIDUES[name].dtype.name
    A = np.ones((8, 8), np.float16)
    with pytest.raises(KernelArgumentError, match=f"'{name}', which is for A and B of {kind}; they are f16"):
        product(A, A, precision=name)
    with pytest.raises(KernelArgumentError, match=f"K is {LARGEST_K + 1}; with precision '{name}' it may be 131071"):
        product(np.ones((1, LARGEST_K + 1), dtype), np.ones((LARGEST_K + 1, 1), dtype), precision=name)
    with pytest.raises(KernelArgumentError, match=f"{name}' on sm_80, and only the kernel for wgmma"):
        plan(Problem(1, 64, 64, 64, kind, kind, arch="sm_80", split=RESIDUES[name]))


def test_f64_needs_a_precision() -> None:
    A = np.ones((8, 8))
    with pytest.raises(
        KernelArgumentError, match=r"f64, which are multiplied as integers only\n  fix: pass precision="
    ):
        product(A, A)
    with pytest.raises(KernelArgumentError, match=r"bias is f32, but the sums of A and B of f64 .*\n.*\.to\(f64\)"):
        product(A, A, bias=np.ones(8, np.float32), precision="i8x15")
    with pytest.raises(KernelArgumentError, match="A is f64, but B is f32"):
        product(A, A.astype(np.float32))
