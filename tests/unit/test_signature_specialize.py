"""Arguments become a specialisation: unit axis, alignment, index width; each bad argument is one clear error."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeVar

import ml_dtypes
import numpy as np
import pytest

from tiledsl import Const, Global, bf16, boolean, const, f16, f32, i8, i32, u32
from tiledsl.dims import K, M, N
from tiledsl.errors import KernelArgumentError
from tiledsl.ir.types import BF16, F16, F32
from tiledsl.runtime.arrays import describe, host_array, same_bytes, self_overlapping
from tiledsl.signatures.annotations import read_signature
from tiledsl.signatures.signature import GlobalSpec, Signature
from tiledsl.signatures.specialize import ArrayInfo, Problem, assumed, bf16_bits, check_consts, check_scalar, specialize

T = TypeVar("T", f16, bf16)


def gemm(
    A: Global[T, M, K], B: Global[T, K, N], C: Global[f32, M, N], bias: Global[f32, N] | None, *, BM: const = 16
): ...
def vector(A: Global[f32, Literal[3], N]): ...
def scalars(a: f32, n: i32, u: u32, c: i8, h: f16, b: bf16, flag: boolean): ...
def consts(A: Global[f32, M], *, BM: const, name: Const[str] = "x", scale: Const[float] = 1.0): ...


SIGNATURE = read_signature(gemm)


def info(
    shape: tuple[int, ...], strides: tuple[int, ...] | None = None, pointer: int = 4096, dtype: Any = F32
) -> ArrayInfo:
    if strides is None:
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return ArrayInfo(dtype, shape, strides, pointer, 0, True, None)


def problem(**changes: ArrayInfo | None) -> Problem:
    arrays: dict[str, ArrayInfo | None] = {
        "A": info((8, 4), dtype=F16),
        "B": info((4, 16), dtype=F16),
        "C": info((8, 16)),
        "bias": info((16,)),
    }
    return specialize(SIGNATURE, {**arrays, **changes}, {"BM": 16})


def refused(message: str, signature: Signature = SIGNATURE, **changes: ArrayInfo | None) -> None:
    with pytest.raises(KernelArgumentError) as caught:
        problem(**changes)
    assert message in str(caught.value)
    assert "\n  fix: " in str(caught.value)


def test_a_contiguous_problem() -> None:
    found = problem()
    assert found.extents == {"M": 8, "K": 4, "N": 16}
    assert found.spec.tensors[0] == ("A", GlobalSpec(F16, 1, 8, whole=True))  # rows of 4 f16 are 8 bytes apart
    assert found.spec.tensors[2] == ("C", GlobalSpec(F32, 1, 16, whole=True))
    assert found.spec.index_bits == 32
    assert problem(bias=None).spec.tensors[3] == ("bias", None)


def test_wrong_arguments() -> None:
    refused("gemm(): C is f16; expected f32", C=info((8, 16), dtype=F16))
    refused("B is bf16, but A is f16, and both are declared T", B=info((4, 16), dtype=BF16))
    refused("A has 1 dimensions, shape (8,); expected [M, K]", A=info((8,), dtype=F16))
    refused("K is 4 in A but 5 in B (axis 0 of [K, N], shape (5, 16))", B=info((5, 16), dtype=F16))
    refused("A is None, but not optional", A=None)
    refused("starts at an address that is no multiple of its 4-byte elements", C=info((8, 16), pointer=4098))


def test_static_extents() -> None:
    signature = read_signature(vector)
    assert specialize(signature, {"A": info((3, 5))}, {}).extents == {"N": 5}
    with pytest.raises(KernelArgumentError, match=r"A has shape \(4, 5\); axis 0 of \[3, N\] is fixed at 3"):
        specialize(signature, {"A": info((4, 5))}, {})


@pytest.mark.parametrize(
    ("shape", "strides", "unit", "align"),
    [
        ((8, 16), (16, 1), 1, 16),
        ((8, 16), (1, 8), 0, 16),
        ((8, 17), (17, 1), 1, 4),
        ((8, 16), (18, 1), 1, 8),
        ((8, 16), (32, 2), -1, 8),
        ((8, 16), (-16, 1), 1, 8),  # 16 is for what TMA can describe
        ((8, 16), (0, 1), 1, 16),
        ((1, 16), (16, 1), 1, 16),
        ((1, 16), (17, 1), 1, 16),  # one row: its stride is never used
        ((8, 1), (1, 1), 1, 4),  # a contiguous column is row-major, too: a vector begins at each row, and is cut off
        ((8, 1), (17, 1), 1, 4),
        ((8, 1), (17, 17), 1, 4),  # an axis of extent 1 may have any stride
        ((16, 1), (1, 16), 0, 16),  # the transpose of a row
        ((1, 1), (1, 1), 1, 16),
        ((0, 16), (16, 1), 1, 16),
        ((5,), (1,), 0, 16),
        ((5,), (3,), -1, 4),
        ((1,), (3,), 0, 16),
        ((2, 3, 4), (12, 4, 1), 2, 16),
        ((2, 3, 5), (15, 5, 1), 2, 4),
    ],
)
def test_unit_axis_and_alignment(shape: tuple[int, ...], strides: tuple[int, ...], unit: int, align: int) -> None:
    array = info(shape, strides)
    assert (array.unit_axis(), array.alignment(array.unit_axis())) == (unit, align)


@pytest.mark.parametrize(("pointer", "align"), [(16, 16), (24, 8), (4, 4), (2, 2), (0, 16)])
def test_the_address_bounds_the_alignment(pointer: int, align: int) -> None:
    array = info((8, 16), pointer=pointer, dtype=F16)
    assert array.alignment(1) == align


@pytest.mark.parametrize(
    ("shape", "strides", "whole"),
    [
        ((8, 16), (16, 1), True),
        ((8, 12), (16, 1), True),
        ((8, 13), (16, 1), False),  # rows of 64 bytes, of which 52 are the matrix: the last vector is a part
        ((8, 13), (13, 1), True),  # aligned to 4 bytes: single elements never lie across an edge
        ((8, 14), (14, 1), True),  # to 8 bytes, and rows of 56
        ((13, 8), (1, 16), False),  # along the axis of stride 1, whichever it is
        ((12, 9), (1, 16), True),
        ((8, 16), (32, 2), False),  # no axis of stride 1: nothing is known
        ((8, 1), (16, 1), False),
        ((0, 13), (16, 1), True),
    ],
)
def test_rows_of_whole_vectors(shape: tuple[int, ...], strides: tuple[int, ...], whole: bool) -> None:
    array = info(shape, strides)
    unit = array.unit_axis()
    assert array.whole(unit, array.alignment(unit)) == whole


def test_rows_that_end_inside_a_vector_are_another_specialisation() -> None:
    """Of one width of vectors: that of the call decides what the compiler may take for granted."""
    specs = [problem(C=info((8, 16))), problem(C=info((8, 15), (16, 1)), B=info((4, 15), dtype=F16), bias=None)]
    assert [dict(p.spec.tensors)["C"] for p in specs] == [GlobalSpec(F32, 1, 16, True), GlobalSpec(F32, 1, 16, False)]


def test_index_width_follows_offsets_not_counts() -> None:
    assert problem(C=info((8, 16), (2**27, 1))).spec.index_bits == 32
    assert problem(C=info((8, 16), (2**29, 1))).spec.index_bits == 64
    assert problem(C=info((8, 16), (-(2**29), 1))).spec.index_bits == 64
    near = 2**31 - 2**20
    assert info((near - 1,)).fits_32_bits()
    assert not info((near,)).fits_32_bits()  # the last tile would reach beyond 31 bits
    assert info((1, 16), (2**40, 1)).fits_32_bits()  # that stride is never used


def test_index_width_is_the_same_for_other_sizes() -> None:
    big = problem(A=info((80, 40), dtype=F16), B=info((40, 160), dtype=F16), C=info((80, 160)), bias=info((160,)))
    small = problem(A=info((8, 8), dtype=F16), B=info((8, 16), dtype=F16), C=info((8, 16)))
    assert big.spec == small.spec


# -- consts ----------------------------------------------------------------------------------------------


def test_consts() -> None:
    signature = read_signature(consts)
    assert check_consts(signature, {"BM": np.int64(8)}) == {"BM": 8, "name": "x", "scale": 1.0}
    for given, message in (
        ({}, "const BM is missing: it has no default"),
        ({"BM": 1, "BN": 2}, "unknown const BN; it has BM, name, scale"),
        ({"BM": 1.0}, "const BM is 1.0, a float; expected int"),
        ({"BM": True}, "const BM is True, a bool; expected int"),
        ({"BM": 1, "name": 3}, "const name is 3, a int; expected str"),
    ):
        with pytest.raises(KernelArgumentError) as caught:
            check_consts(signature, given)
        assert message in str(caught.value)


def test_a_const_of_a_few_values_has_one_of_them() -> None:
    def kernel(A: Global[f32, M], *, ORDER: Const[Literal["rows", "columns"]], LEVEL: Const[Literal[0, 1]] = 1): ...

    signature = read_signature(kernel)
    assert check_consts(signature, {"ORDER": "columns", "LEVEL": 0}) == {"ORDER": "columns", "LEVEL": 0}
    with pytest.raises(KernelArgumentError, match="const ORDER is 'fast', a str; expected one of 'rows', 'columns'"):
        check_consts(signature, {"ORDER": "fast"})
    with pytest.raises(KernelArgumentError, match="const LEVEL is True, a bool; expected one of 0, 1"):
        check_consts(signature, {"ORDER": "rows", "LEVEL": True})


def test_mutable_consts_are_refused() -> None:
    def kernel(A: Global[f32, M], *, sizes: Const[Any]): ...

    signature = read_signature(kernel)
    assert check_consts(signature, {"sizes": (1, 2)}) == {"sizes": (1, 2)}
    with pytest.raises(KernelArgumentError, match="is a list, which is mutable"):
        check_consts(signature, {"sizes": [1, 2]})


def test_compile_without_arguments_needs_its_dtypes() -> None:
    with pytest.raises(KernelArgumentError, match=r"the dtype variable T is open\n  fix: call compile\(T=f32"):
        assumed(SIGNATURE, {}, {})
    spec = assumed(SIGNATURE, {"T": BF16}, {"BM": 8})
    assert spec.tensors[0] == ("A", GlobalSpec(BF16, 1, 16, whole=True))
    assert spec.tensors[3] == ("bias", GlobalSpec(F32, 0, 16, whole=True))


# -- scalars ---------------------------------------------------------------------------------------------


def scalar(name: str, value: Any) -> Any:
    signature = read_signature(scalars)
    return check_scalar(signature, next(p for p in signature.scalars if p.name == name), value)


def test_scalars_arrive_as_the_kernel_sees_them() -> None:
    assert scalar("a", 0.1) == float(np.float32(0.1))
    assert scalar("a", 2) == 2.0
    assert scalar("a", np.float64(0.5)) == 0.5
    assert math.isnan(scalar("a", math.nan))
    assert scalar("h", 0.1) == float(np.float16(0.1))
    assert scalar("b", 0.1) == float(ml_dtypes.bfloat16(0.1))
    assert scalar("b", ml_dtypes.bfloat16(1.5)) == 1.5
    assert scalar("n", np.int16(-3)) == -3
    assert scalar("flag", np.bool_(True)) is True


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("a", "1", "a is a str; expected a Python or NumPy number for f32"),
        ("a", True, "a is a bool"),
        ("a", 1e39, "a is 1e+39, out of the range of f32"),
        ("h", 70000.0, "h is 70000.0, out of the range of f16"),
        ("b", 3.4e38, "b is 3.4e+38, out of the range of bf16"),
        ("n", 1.0, "n is a float"),
        ("n", 2**31, "n is 2147483648, out of the range of i32"),
        ("u", -1, "u is -1, out of the range of u32"),
        ("c", 128, "c is 128, out of the range of i8"),
        ("flag", 1, "flag is a int"),
        ("a", np.zeros(()), "a is a ndarray"),
    ],
)
def test_bad_scalars(name: str, value: Any, message: str) -> None:
    with pytest.raises(KernelArgumentError) as caught:
        scalar(name, value)
    assert message in str(caught.value)


def test_bf16_bits_round_to_nearest_even() -> None:
    values = np.random.default_rng(0).standard_normal(2000).astype(np.float32)
    ours = np.array([bf16_bits(float(v)) for v in values], np.uint16)
    assert (ours == values.astype(ml_dtypes.bfloat16).view(np.uint16)).all()
    assert bf16_bits(math.inf) == 0x7F80
    assert bf16_bits(math.nan) == 0x7FFF


# -- arrays ----------------------------------------------------------------------------------------------


def described(array: Any) -> ArrayInfo:
    return describe(SIGNATURE, "A", array)


def test_numpy_arrays_of_any_strides() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (base, base.T, base[::2, 1::2], base[::-1, ::-1], np.broadcast_to(base[0], (3, 6)), base[:0]):
        got = described(view)
        assert got.shape == view.shape
        assert tuple(s * 4 for s in got.strides) == view.strides
        assert (host_array(got) == view).all()
    assert described(base.astype(ml_dtypes.bfloat16)).dtype == BF16
    assert not described(np.broadcast_to(base[0], (3, 6))).writable


def test_host_memory_of_another_library_is_seen_in_place() -> None:
    class Foreign:
        """Only DLPack, as most libraries have it."""

        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack__(self, **kwargs: Any) -> Any:
            return self.array.__dlpack__(**kwargs)

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    got = described(Foreign(base[:, ::2]))
    assert (got.shape, got.strides, got.device, got.writable) == ((4, 3), (6, 2), -1, True)
    host_array(got)[1, 1] = 77
    assert base[1, 2] == 77


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0, 2.0], "A is a list; expected an array"),
        (np.zeros(3, complex), "A has the dtype complex128, which the language does not have"),
        (np.zeros(3, ">f4"), "A has foreign byte order"),
        (np.zeros(3, [("a", "f4"), ("b", "i1")])["a"], "no multiples of its 4-byte elements"),
    ],
)
def test_what_is_no_usable_array(value: Any, message: str) -> None:
    with pytest.raises(KernelArgumentError) as caught:
        described(value)
    assert message in str(caught.value)


def test_shared_memory_is_found_exactly() -> None:
    base = np.zeros((8, 8), np.float32)
    left, right = described(base[:, :4]), described(base[:, 4:])
    assert not same_bytes(left, right)  # their ranges interleave, their elements do not
    assert same_bytes(left, described(base[3:4]))
    assert not same_bytes(described(base[0]), described(base[1]))
    assert not same_bytes(described(base[:0]), left)
    assert self_overlapping(described(np.broadcast_to(base[0], (3, 8))))
    assert not self_overlapping(described(base[::2, ::-1]))


def test_arrays_that_are_apart_are_compared_by_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NumPy, which would take longer than the rest of a launch."""
    monkeypatch.setattr("tiledsl.runtime.arrays._Memory", None)
    first, second = (ArrayInfo(F32, (8, 8), (8, 1), at, 0, True, None) for at in (4096, 4096 + 256))
    assert not same_bytes(first, second) and not same_bytes(second, first)
