"""tf32, e4m3 and e5m2 from end to end: in kernels, as arguments, and in PTX. All corners of casts are filetests."""

from __future__ import annotations

import ctypes
import math
import sys
from types import SimpleNamespace
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiledsl import (
    CompileError,
    Global,
    KernelArgumentError,
    MatrixFormat,
    Scalar,
    barrier,
    cdiv,
    copy,
    e4m3,
    e5m2,
    f16,
    f32,
    f64,
    fragment,
    grid,
    index,
    ptx,
    shared,
    shuffle_xor,
    tf32,
    threads,
    tile,
    tile_function,
    tile_kernel,
    u8,
    u32,
    where,
)
from tiledsl.arch import TARGETS
from tiledsl.dims import M, N
from tiledsl.frontend.arithmetic import rounded
from tiledsl.ir import semantics
from tiledsl.ir.types import DTYPES, E4M3, E5M2, F32, F64, TF32, DType
from tiledsl.runtime import driver as driver_module
from tiledsl.runtime.arrays import describe, host_array

F = TypeVar("F", bound=MatrixFormat)
T = TypeVar("T", bound=Scalar)

E4M3_NUMPY, E5M2_NUMPY = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
FORMATS = (TF32, E4M3, E5M2)


def codes(dtype: DType) -> Any:
    """Every code of an 8-bit format; for tf32 as many patterns, NaNs and low bits among them."""
    if dtype == TF32:
        return (np.arange(256, dtype=np.uint32) * 0x01010101).view(np.float32)
    return np.arange(256, dtype=np.uint8).view(semantics.numpy_dtype(dtype))


def bits(array: Any) -> Any:
    return array.view(f"u{array.dtype.itemsize}")


# -- in kernels ------------------------------------------------------------------------------------------


@tile_function
def move(X: Global[F, N], Y: Global[F, N], block: index, t: index) -> None:
    """128 elements by 32 threads: a copy, a vector load, a shuffle, a loop, a choice, a vector store."""
    S, n = shared((128,), X.dtype), tile(block, 128)
    copy(X[n], S, vec=X.dtype.ir.bytes)
    barrier()
    held = fragment((4,), X.dtype)
    for _ in range(1):
        held[0:4] = S.load(t * 4, vec=4 * X.dtype.ir.bytes)
    last = shuffle_xor(held[3], 1)
    held[3] = where(t < 32, shuffle_xor(last, 1), X.dtype(1))
    Y.put(n.start + t * 4, held)


@tile_kernel
def moved(X: Global[F, N], Y: Global[F, N]):
    move(X, Y, grid(cdiv(N, 128)), threads(32))


@tile_kernel
def moved_tf32(X: Global[tf32, N], Y: Global[tf32, N]):
    move(X, Y, grid(cdiv(N, 128)), threads(32))


@pytest.mark.parametrize("count", [256, 250])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_every_code_moves_as_it_is(dtype: DType, count: int) -> None:
    x = codes(dtype)[:count]
    y = np.zeros_like(x)
    (moved_tf32 if dtype == TF32 else moved).check(x, y)
    assert np.array_equal(bits(x), bits(y))


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_compiled_loads_and_stores_move_them_too(dtype: DType) -> None:
    """Enough threads for the emulator's compiled gathers and scatters."""
    x = np.tile(codes(dtype), 64)
    y = np.zeros_like(x)
    (moved_tf32 if dtype == TF32 else moved)(x, y, device="emulator")
    assert np.array_equal(bits(x), bits(y))


@tile_kernel
def zeros(X: Global[F, N], Y: Global[F, M]):
    t = grid(1) * 0 + threads(32)
    S = shared((32,), X.dtype)
    copy(X[0:32], S, vec=1)  # past the edge: zero
    barrier()
    empty = fragment((2,), X.dtype)
    Y[t] = S[t]
    Y[32 + t] = X.get(N + t)
    Y[64 + t] = empty[1]
    if t < 16:
        some = X[0]
    else:
        some = X.dtype(0)
    Y[96 + t] = some


@pytest.mark.parametrize("numpy", [E4M3_NUMPY, E5M2_NUMPY])
def test_zero_fills(numpy: Any) -> None:
    x, y = np.array([1.5, -2, 0.25], numpy), np.full(128, 7, numpy)
    zeros.check(x, y)
    assert y[:4].tolist() == [1.5, -2, 0.25, 0] and not y[3:96].any()
    assert (y[96:112] == x[0]).all() and not y[112:].any()


@tile_kernel
def converted(X: Global[f32, N], A: Global[tf32, N], B: Global[e4m3, N], C: Global[e5m2, N], Y: Global[f64, N]):
    i = grid(cdiv(N, 32)) * 32 + threads(32)
    x = X.get(i)
    A.put(i, tf32(x))
    pair = fragment((2,), f32)
    pair[0] = x
    B.put(i, pair.to(e4m3)[0])
    C.put(i, f16(x).to(e5m2))
    Y.put(i, e4m3(x).to(f64) + e5m2(x).to(f64) + tf32(x).to(f64))


def test_conversions() -> None:
    """Examples; all the corners are filetests."""
    x = np.array([1 + 2.0**-11, -0.3, 1000.0, np.inf, -1e9, np.nan, 2.0**-10], np.float32)
    a, b, c, y = np.zeros_like(x), np.zeros(7, E4M3_NUMPY), np.zeros(7, E5M2_NUMPY), np.zeros(7)
    converted.check(x, a, b, c, y)
    assert a[:5].tolist() == [1 + 2.0**-10, -0.300048828125, 1000, np.inf, -999817216]
    assert bits(b).tolist() == [0x38, 0xAA, 0x7E, 0x7E, 0xFE, 0x7F, 0x00]
    assert bits(c).tolist() == [0x3C, 0xB5, 0x64, 0x7B, 0xFB, 0x7F, 0x14]
    assert y[0] == 1 + 1 + 1 + 2.0**-10 and math.isnan(y[5])


@tile_kernel
def reread(X: Global[f32, N], Y: Global[u32, N], B: Global[u8, N]):
    i = grid(cdiv(N, 32)) * 32 + threads(32)
    x = X.get(i)
    kept = f32(x.bitcast(tf32)).bitcast(u32)  # the low 13 bits are kept
    Y.put(i, where(i % 2 == 0, kept, x.bitcast(u32).bitcast(tf32).bitcast(u32)))
    B.put(i, B.get(i).bitcast(e5m2).bitcast(e4m3).bitcast(u8))


def test_bit_casts_keep_all_bits() -> None:
    x, y, b = codes(TF32), np.zeros(256, np.uint32), np.arange(256, dtype=np.uint8)
    reread.check(x, y, b)
    assert np.array_equal(bits(x), y) and np.array_equal(b, np.arange(256))


@tile_kernel
def literals(A: Global[tf32, N], B: Global[e4m3, N], C: Global[e5m2, N]):
    i = grid(1) + threads(1)
    A[i], A[i + 1], A[i + 2] = 1.5, tf32(0.1), tf32(float("nan"))
    B[i], B[i + 1], B[i + 2] = 0.5, e4m3(0.1), e4m3(1000)
    C[i], C[i + 1], C[i + 2] = -3, e5m2(0.1), e5m2(float("-inf"))


def test_literals_are_exact_or_rounded_on_purpose() -> None:
    a, b, c = np.zeros(3, np.float32), np.zeros(3, E4M3_NUMPY), np.zeros(3, E5M2_NUMPY)
    literals.check(a, b, c)
    assert bits(a).tolist() == [0x3FC00000, 0x3DCCC000, 0x7FFFE000]
    assert bits(b).tolist() == [0x30, 0x1D, 0x7E]
    assert bits(c).tolist() == [0xC2, 0x2E, 0xFB]


FLOATS = [t for t in DTYPES.values() if t.python is float]


@given(st.one_of(st.floats(), st.floats(-600, 600), st.floats(width=16)), st.sampled_from(FLOATS))
def test_the_frontend_rounds_as_a_cast_does(value: float, dtype: DType) -> None:
    for number in (value, value * (1 + 2.0**-40)):
        expected = semantics.fold_cast(number, F64, dtype)
        got = rounded(number, dtype)
        assert got == expected or (math.isnan(got) and math.isnan(expected))
        assert math.isnan(got) or math.copysign(1, got) == math.copysign(1, expected)


@tile_kernel
def spoken(A: Global[tf32, N], B: Global[e4m3, N]):
    i = grid(1) + threads(2)
    print(A[i], B[i], sep=" and ")


def test_print_goes_by_way_of_f32(capsys: pytest.CaptureFixture[str]) -> None:
    spoken(np.array([0.5, 3], np.float32), np.array([448, -0.25], E4M3_NUMPY), device="emulator")
    assert capsys.readouterr().out.splitlines() == ["0.5 and 448.0", "3.0 and -0.25"]


def as_they_are(a: Any) -> Any:
    return a


def as_numbers(a: Any) -> Any:
    return a.astype(np.float32)


@tile_kernel
def raw(B: Global[e4m3, N]):
    i = grid(1) + threads(32)
    B.put(i, ptx.inline("mov.b16 $0, $1;", e4m3, B.get(i), emulate=as_they_are))


@tile_kernel
def raw_numbers(B: Global[e4m3, N]):
    i = grid(1) + threads(32)
    B.put(i, ptx.inline("mov.b16 $0, $1;", e4m3, B.get(i), emulate=as_numbers))


def test_raw_ptx_gives_codes_and_not_numbers() -> None:
    b = codes(E4M3)[224:]
    raw.check(b.copy())
    assert "mov.b16" in raw.compile("sm_80").ptx
    with pytest.raises(Exception, match=r"returned float32.* for an output that is e4m3"):
        raw_numbers.check(b)


# -- arguments -------------------------------------------------------------------------------------------


@tile_kernel
def kept(X: Global[tf32, N], Y: Global[T, N]):
    i = grid(cdiv(N, 32)) * 32 + threads(32)
    Y.put(i, X.get(i).to(f32).to(Y.dtype) if Y.dtype is f32 else X.get(i).to(Y.dtype))


def test_float32_arrays_hold_tf32_where_that_is_declared() -> None:
    x, y = np.array([1.25, 2], np.float32), np.zeros(2, np.float32)
    kept.check(x, y)  # T is f32, not tf32
    assert y.tolist() == [1.25, 2]
    with pytest.raises(KernelArgumentError, match=r"X is f16; expected tf32, held by f32\n  fix: convert .* to f32"):
        kept(x.astype(np.float16), y, device="emulator")
    assert kept.verify(lambda X, Y: X.astype(E4M3_NUMPY), x, y.astype(E4M3_NUMPY), exact=True, device="emulator")


def test_results_are_verified_to_the_precision_of_the_format() -> None:
    x = np.linspace(-400, 400, 1000, dtype=np.float32)
    y = np.zeros(1000, E4M3_NUMPY)
    assert kept.verify(lambda X, Y: X, x, y, device="emulator")
    assert not kept.verify(lambda X, Y: X * np.float32(1.2), x, y, device="emulator")


def test_a_scalar_of_a_matrix_format_is_refused_at_its_line() -> None:
    with pytest.raises(CompileError) as caught:

        @tile_kernel
        def scalar(X: Global[f32, N], alpha: tf32):
            grid(1)

    assert "alpha is a scalar of dtype tf32, which only tensors have" in str(caught.value)
    assert "fix: pass f32 and convert it in the kernel: tf32(alpha)" in str(caught.value)


class DLTensor(ctypes.Structure):
    """dlpack.h, of version 0: the tensor that a capsule begins with, on the CPU."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64),
    ]  # fmt: skip


class Exported:
    """Bytes, as a library without any other protocol hands them out."""

    def __init__(self, data: Any, code: int) -> None:
        self.data, self.shape = data, ctypes.c_int64(len(data))
        self.tensor = DLTensor(data.ctypes.data, (1, 0), 1, code, 8, 1, ctypes.pointer(self.shape), None, 0)

    def __dlpack__(self) -> Any:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.tensor), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


@pytest.mark.parametrize(("code", "numpy"), [(10, E4M3_NUMPY), (12, E5M2_NUMPY)])
def test_dlpack_has_codes_for_the_8_bit_formats(code: int, numpy: Any) -> None:
    x, y = np.arange(256, dtype=np.uint8), np.zeros(256, np.uint8)
    info = describe(moved.signature, "X", Exported(x, code))
    assert semantics.numpy_dtype(info.dtype) == numpy and host_array(info).dtype == numpy
    moved.check(Exported(x, code), Exported(y, code))
    assert np.array_equal(x, y)


def test_dlpack_formats_that_the_language_has_not() -> None:
    with pytest.raises(KernelArgumentError, match="DLPack dtype code 11, 8 bits") as caught:
        describe(moved.signature, "X", Exported(np.zeros(4, np.uint8), 11))
    assert "e4m3, e5m2, i8" in str(caught.value) and "tf32" not in str(caught.value)


def test_the_cuda_array_interface_tells_only_e5m2(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(pointer_device=lambda pointer: 0)  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(driver_module, "driver", lambda: fake)

    def described(typestr: str) -> Any:
        interface = {"shape": (4,), "typestr": typestr, "data": (4096, False), "version": 3, "strides": None}
        return describe(moved.signature, "X", SimpleNamespace(__cuda_array_interface__=interface)).dtype

    assert described(codes(E5M2).__array_interface__["typestr"]) == E5M2
    assert described("<f4") == F32
    with pytest.raises(KernelArgumentError, match="does not say which 8-bit format") as caught:
        described(codes(E4M3).__array_interface__["typestr"])
    assert "fix: pass e4m3 as a torch tensor or by DLPack" in str(caught.value)


class TorchTensor:
    """What `describe` asks of a torch tensor in host memory."""

    layout, is_cuda, is_nested, device = "strided", False, False, SimpleNamespace(type="cpu")
    __torch_dispatch__ = None

    def __init__(self, array: Any, dtype: str) -> None:
        self.array, self.dtype, self.shape = array, f"torch.{dtype}", array.shape

    def is_neg(self) -> bool:
        return False

    def stride(self) -> tuple[int, ...]:
        return (1,)

    def data_ptr(self) -> int:
        return self.array.ctypes.data


@pytest.mark.parametrize(("name", "dtype"), [("float8_e4m3fn", E4M3), ("float8_e5m2", E5M2), ("float32", F32)])
def test_torch_names_the_formats_as_ml_dtypes_does(name: str, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=TorchTensor, strided="strided"))
    info = describe(moved.signature, "X", TorchTensor(codes(E4M3), name))
    assert info.dtype == dtype
    assert host_array(info).dtype == semantics.numpy_dtype(dtype)


# -- PTX -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a"])
@pytest.mark.parametrize("dtype", [e4m3, e5m2])
def test_moving_assembles_everywhere(target: str, dtype: Any) -> None:
    compiled = moved.compile(target, F=dtype)
    assert "cvt.rn" not in compiled.ptx and compiled.resources.stack == 0
    assert "v4.b8" in compiled.ptx or "ld.shared.b32" in compiled.ptx
    assert "ld.shared.v4.b32" in moved_tf32.compile(target).ptx
    assert reread.compile(target).resources.stack == 0


def test_tf32_rounds_by_one_instruction_on_every_target() -> None:
    @tile_kernel
    def round_(X: Global[f32, N], Y: Global[tf32, N]):
        i = grid(cdiv(N, 32)) * 32 + threads(32)
        Y.put(i, tf32(X.get(i)))

    for target in TARGETS:
        assert round_.compile(target).ptx.count("cvt.rna.tf32.f32") == 1


@tile_kernel
def narrowed(X: Global[f32, N], B: Global[e4m3, N], C: Global[e5m2, N]):
    i = grid(cdiv(N, 32)) * 32 + threads(32)
    B.put(i, e4m3(X.get(i)))
    C.put(i, e5m2(f64(X.get(i))))
    X.put(i, f32(B.get(i)) + f32(f16(C.get(i))))


@pytest.mark.parametrize(("target", "version"), [("sm_89", "8.1"), ("sm_90a", "8.1"), ("sm_120a", "8.7")])
def test_the_8_bit_formats_convert_since_sm_89(target: str, version: str) -> None:
    text = narrowed.compile(target).ptx
    assert f".version {version}\n" in text
    for instruction in ("cvt.rn.satfinite.e4m3x2.f32", "cvt.rn.satfinite.e5m2x2.f32", "cvt.rz.f32.f64"):
        assert text.count(instruction) == 1
    assert "cvt.rn.f16x2.e4m3x2" in text and "cvt.rn.f16x2.e5m2x2" in text


@pytest.mark.parametrize("target", ["sm_80", "sm_86"])
def test_before_that_a_conversion_is_an_error_at_its_line(target: str) -> None:
    with pytest.raises(CompileError) as caught:
        narrowed.compile(target)
    text = str(caught.value)
    assert (
        "a conversion from f32 to e4m3 needs one of sm_89, sm_90, sm_90a" in text and "B.put(i, e4m3(X.get(i)))" in text
    )
    assert f"compiled for {target}" in text and 'arch="sm_90a"' in text and "e4m3 is only moved and bit cast" in text


def test_the_conversion_of_a_constant_is_folded() -> None:
    @tile_kernel
    def constant(Y: Global[e4m3, N]):
        i = grid(cdiv(N, 32)) * 32 + threads(32)
        Y.put(i, f32(0.3).to(e4m3))

    assert "cvt.rn" not in constant.compile("sm_80").ptx


def test_every_format_is_an_ir_dtype_without_arithmetic() -> None:
    assert [t for t in DTYPES.values() if t.is_matrix] == [TF32, E4M3, E5M2]
    assert not any(t.is_float or t.is_integer or t.is_signed for t in FORMATS)
