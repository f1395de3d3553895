"""Exact arithmetic: sums of residues are those of the reference in any order, and what is lost, doubled or misplaced is
found where no tolerance shows it."""

from __future__ import annotations

from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from algebra_kernels import atomically, by_shuffles, converted, counted, faulty, not_exact, product, scaled

from tiledsl import TileError
from tiledsl.__main__ import main
from tiledsl.backends.emulator.residues import NONE, PRIME, copied, held, of_floats, taken
from tiledsl.backends.emulator.rules.registry import RULES
from tiledsl.errors import EmulatorError, KernelArgumentError
from tiledsl.ir.types import BF16, E4M3, F16, F32, F64
from tiledsl.measure import gemm_bound

GEMM = Path(__file__).parents[2] / "examples" / "gemm"
RNG = np.random.default_rng(7)


def arrays(m: int, n: int, k: int, dtype: Any = np.float32, out: Any = np.float32) -> tuple[Any, ...]:
    return (
        RNG.standard_normal((m, k), np.float32).astype(dtype),
        RNG.standard_normal((k, n), np.float32).astype(dtype),
        np.full((m, n), np.nan, out),
    )


# -- residues --------------------------------------------------------------------------------------


def test_the_prime_is_one() -> None:
    assert PRIME < NONE < 1 << 16 and all(PRIME % n for n in range(2, 257))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_the_residue_of_a_float_is_that_of_the_fraction(dtype: Any) -> None:
    size = np.dtype(dtype).itemsize
    bits = RNG.integers(0, 1 << 8 * size, 500, np.uint64 if size == 8 else np.uint32).astype(f"u{size}")
    values = np.append(bits.view(dtype), np.array([0, 1, -1, 0.5], dtype))
    for value, residue in zip(values, of_floats(values).tolist(), strict=True):
        if not np.isfinite(float(value)):
            assert residue == NONE
            continue
        exact = Fraction(float(value))
        assert residue * exact.denominator % PRIME == exact.numerator % PRIME


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64])
def test_elements_hold_residues(dtype: Any) -> None:
    residues = np.arange(1 << 16)
    np.testing.assert_array_equal(taken(held(residues, dtype), dtype), residues)
    assert taken(held(of_floats(np.nan), dtype), dtype) == NONE
    assert not held(of_floats(0.0), dtype).view(f"u{dtype.bytes}"), "what is filled with zeros holds zeros"


def test_a_narrow_element_holds_its_float() -> None:
    values = np.array([0.5, -448, np.nan], ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(taken(values, E4M3), of_floats(values.astype(np.float64)))


@pytest.mark.parametrize("turn", [np.s_[:, :], np.s_[::-1, ::2], np.s_[1:, ::-1], np.s_[:0, :]])
def test_a_copy_has_the_strides_and_the_alignment(turn: Any) -> None:
    array = RNG.standard_normal((6, 8), np.float32)[turn]
    copy = copied(array, F32)
    assert (copy.shape, copy.strides, copy.dtype) == (array.shape, array.strides, array.dtype)
    np.testing.assert_array_equal(taken(copy, F32), of_floats(array))
    if array.size:
        assert (copy.ctypes.data - array.ctypes.data) % 16 == 0
    array.flags.writeable = False
    assert not copied(array, F32).flags.writeable


def test_rules_of_floats_are_replaced() -> None:
    """An op of thread level that computes with floats has a rule here: facts say which may."""
    from tiledsl.backends.emulator.residues import _RULES
    from tiledsl.ir.ops import arith, mem, ptx, wgmma

    computing = {arith.Scalar, arith.Cast, arith.Bitcast, ptx.Inline, ptx.MmaSync, wgmma.Instruction, mem.Atomic}
    assert set(_RULES) == computing <= {*RULES, mem.Atomic}


# -- kernels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_the_order_of_additions_does_not_matter(seed: int) -> None:
    A, B, C = arrays(5, 40, 33)
    assert faulty.check(A, B, C, algebra=product, seed=seed)
    assert np.isnan(C).all(), "the arrays are not written"
    C[:] = 0
    result = atomically.check(A, B, C, algebra=lambda A, B, C: A @ B + C, seed=seed)
    assert result


@pytest.mark.parametrize("fault", ["lost", "twice", "negated", "misplaced"])
def test_one_term_of_many_is_found_where_a_tolerance_hides_it(fault: str) -> None:
    A, B, C = arrays(3, 40, 33)
    A[:, 7] *= 2.0**-40
    assert faulty.verify(lambda A, B, C: A.astype(np.float64) @ B, A, B, C, bound=gemm_bound(A, B), FAULT=fault)
    with pytest.raises(EmulatorError, match="wrong sum: ") as caught:
        faulty.check(A, B, C, algebra=product, FAULT=fault)
    found = caught.value.finding
    assert (found.code, found.kernel, found.memory.name) == ("T203", "faulty", "C")
    assert "120 of 120 elements of faulty are wrong, within [0 to 2, 0 to 39]" in found.message
    result = faulty.check(A, B, C, algebra=product, FAULT=fault, raises=False, seeds=2)
    assert [each.code for each in result.findings] == ["T203"], "each once"


def test_one_wrong_element_is_named() -> None:
    A, B, C = arrays(3, 40, 33)

    def other(A: Any, B: Any, C: Any) -> None:
        C[:] = A @ B
        C[2, 39] += 1

    (found,) = faulty.check(A, B, C, algebra=other, raises=False).findings
    expected = int(of_floats(A[2]) @ of_floats(B[:, 39]) % PRIME)
    assert found.message == (
        f"wrong sum: C[2, 39] is {expected}, and {(expected + 1) % PRIME} by the reference, modulo {PRIME}; 1 of 120 "
        "elements of faulty are wrong, within [2 to 2, 39 to 39]"
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (-0.3, 0.0), (0.1, 2.5)])
def test_conversions_keep_the_residue(dtype: Any, alpha: float, beta: float) -> None:
    A, B, C = arrays(4, 33, 50, dtype, ml_dtypes.bfloat16)
    C[:] = np.nan if beta == 0 else 0.7

    def reference(A: Any, B: Any, C: Any, alpha: int, beta: int) -> Any:
        return alpha * (A @ B) + (beta * C if beta else 0)

    result = converted.check(A, B, C, alpha, beta, algebra=reference, raises=False)
    assert not result.findings and not result.error
    wrong = converted.check(A, B, C, alpha, beta, algebra=lambda *a: reference(*a) + a[0][:, :1], raises=False)
    assert [each.code for each in wrong.findings] == ["T203"]


def test_what_is_no_number_is_none_and_stays_it() -> None:
    A, B, C = arrays(4, 33, 50, np.float32, ml_dtypes.bfloat16)
    A[1, 3] = np.inf
    result = converted.check(A, B, C, 1.0, 0.0, algebra=scaled, raises=False)
    (found,) = result.findings
    assert "C[1, 0] is no number" in found.message and "33 of 132 elements" in found.message
    A, B, C = arrays(4, 33, 50, np.float32, ml_dtypes.bfloat16)
    (found,) = converted.check(A, B, C, 1.0, 1.0, algebra=product, raises=False).findings
    assert "is no number" in found.message, "C is NaN, and beta is not 0"


def test_integers_are_what_they_are() -> None:
    X = np.arange(-40, 56, dtype=np.int32)
    of = of_floats(np.array([0.375, 1.0]))
    reference = lambda X, Y, Z: (X.astype(np.int64) * of[0] - of[1], X // 3)  # noqa: E731
    assert counted.check(X, np.zeros(96, np.float32), np.zeros(96, np.int32), algebra=reference)
    other = lambda X, Y, Z: (X.astype(np.int64) * of[0] - of[1], X // 3 + (X == 5))  # noqa: E731
    (found,) = counted.check(X, np.zeros(96, np.float32), np.zeros(96, np.int32), algebra=other, raises=False).findings
    assert "Z[45] is 1, and 2 by the reference" in found.message


def test_shuffles_move_residues() -> None:
    A = RNG.standard_normal(32, np.float32)
    assert by_shuffles.check(A, np.zeros(1, np.float32), algebra=lambda A, Y: A.sum(keepdims=True))


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("max", "max of f32"),
        ("lt", "lt of f32"),
        ("div", "div of f32"),
        ("bits", "a bit cast from f32 to u32"),
        ("i32", "a conversion from f32 to i32"),
        ("e4m3", "a conversion from f32 to e4m3"),
    ],
)
def test_what_has_no_meaning_is_not_emulated(what: str, says: str) -> None:
    given = RNG.standard_normal(32, np.float32), np.zeros(32, np.float32), np.zeros(32, ml_dtypes.float8_e4m3fn)
    result = not_exact.check(*given, WHAT=what, algebra=lambda A, Y, Z: None, raises=False)
    assert result.verdict == "incomplete" and not result.findings
    (gap,) = [gap for gap in result.not_covered if "exact arithmetic" in gap.why]
    assert gap.why == f"{says} has no meaning in exact arithmetic, where numbers are residues modulo 65521"
    assert gap.loc.line
    assert not_exact.check(*given, WHAT=what)


def test_a_reference_that_does_not_fit() -> None:
    A, B, C = arrays(3, 40, 33)
    with pytest.raises(KernelArgumentError, match="algebra is 3"):
        faulty.check(A, B, C, algebra=3)
    with pytest.raises(KernelArgumentError, match="the reference returned 2 arrays"):
        faulty.check(A, B, C, algebra=lambda A, B, C: (A, B))
    with pytest.raises(TileError, match=r"the reference gives C the shape \(3, 33\)"):
        faulty.check(A, B, C, algebra=lambda A, B, C: A)


def test_races_are_found_on_residues_as_well() -> None:
    A, B, C = arrays(3, 40, 33)
    C[:] = 0
    result = atomically.check(A, B, C, algebra=lambda A, B, C: A @ B + C, ADD=False, raises=False)
    assert "T102" in [each.code for each in result.findings]


# -- the gallery -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("shared_tiled", np.float32),
        ("fastest", np.float32),
        ("mma_fastest", ml_dtypes.bfloat16),
        ("mma_fastest", np.float16),
        ("mma_fastest", np.float32),
        ("hopper_fastest", ml_dtypes.bfloat16),
        ("hopper_store", np.float16),
        ("hopper_fastest", ml_dtypes.float8_e4m3fn),
    ],
)
def test_kernels_of_the_gallery(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GEMM))
    gallery = import_module("gallery")
    kernel = gallery.load(next(e for e in (*gallery.GALLERY, *gallery.HOPPER) if e.kernel == name))
    narrow = np.dtype(dtype).itemsize == 1
    A, B, C = arrays(72, 80, 144, dtype, ml_dtypes.bfloat16 if narrow else dtype)
    if narrow:
        B = np.ascontiguousarray(B.T).T
    result = kernel.check(*gallery.as_given(kernel, A, B, C), algebra=product, raises=False)
    assert not result.findings and not result.error and not any("exact" in gap.why for gap in result.not_covered)
    wrong = kernel.check(*gallery.as_given(kernel, A, B, C), algebra=lambda *a: product(*a) + 1, raises=False)
    assert [each.code for each in wrong.findings] == ["T203"]


def test_the_command_takes_a_function_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["check", f"{Path(__file__).parent}/algebra_kernels.py:faulty", "--size", "M=3", "--size", "N=40"]
    command += ["--size", "K=33", "--algebra"]
    assert main([*command, "product"]) == 0
    assert main([*command, "product", "--const", "FAULT=lost"]) == 3
    assert "T203: wrong sum: C[0, 0]" in capsys.readouterr().out
    assert main([*command, "no_function"]) == 2
    assert "has no function no_function" in capsys.readouterr().err
