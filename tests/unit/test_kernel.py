"""Kernels as they are called: on the emulator here, with the errors of bad calls, and what they answer when asked."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import pytest

from tiledsl import (
    Const,
    Float,
    Global,
    TileFunction,
    barrier,
    bf16,
    cdiv,
    const,
    copy,
    copy_async,
    f16,
    f32,
    f64,
    grid,
    i32,
    ptx,
    shared,
    threads,
    tile_function,
    tile_kernel,
    wait,
)
from tiledsl.dims import K, M, N
from tiledsl.errors import CompileError, DeviceError, HazardError, KernelArgumentError, TileError
from tiledsl.measure import gemm_bound
from tiledsl.runtime import driver as driver_module

T = TypeVar("T", bound=Float)


@tile_kernel
def scale(X: Global[f32, N], Y: Global[f32, N], a: f32 = 2.0, *, B: const = 32):
    (b,) = (grid(cdiv(N, B)),)
    t = threads(B)
    i = b * B + t
    if i < N:
        Y[i] = a * X[i]


@tile_kernel
def matmul(A: Global[f32, M, K], B: Global[f32, K, N], C: Global[f32, M, N], *, T: const = 8):
    bx, by = grid(cdiv(N, T), cdiv(M, T))
    tx, ty = threads(T, T)
    row, col = by * T + ty, bx * T + tx
    acc = f32(0)
    for k in range(K):
        acc += A.get(row, k) * B.get(k, col)
    C.put(row, col, acc)


@tile_kernel
def generic(X: Global[T, N], Y: Global[T, N], Z: Global[f32, N] | None):
    b = grid(cdiv(N, 32))
    t = threads(32)
    i = b * 32 + t
    if i < N:
        v = X[i] + X[i]
        if Z is not None:
            v = v + T(Z[i])
        Y[i] = v


@tile_kernel
def counted(Y: Global[i32, N], blocks: i32):
    b = grid(blocks)
    t = threads(32)
    i = b * 32 + t
    if i < N:
        Y[i] = blocks


@tile_function
def double(x: f32) -> f32:
    return x + x


@tile_kernel
def mapped(X: Global[f32, N], *, fn: Const[TileFunction[[f32], f32]] = double):
    b = grid(cdiv(N, 32))
    t = threads(32)
    i = b * 32 + t
    if i < N:
        X[i] = fn(X[i])


def problem(m: int = 13, n: int = 9, k: int = 5) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(1)
    A = random.standard_normal((m, k), dtype=np.float32)
    B = random.standard_normal((k, n), dtype=np.float32)
    return A, B, np.full((m, n), np.nan, np.float32)


# -- right calls -----------------------------------------------------------------------------------------


def test_a_call_writes_into_its_arrays() -> None:
    A, B, C = problem()
    assert matmul(A, B, C, device="emulator") is None
    assert (np.abs(C - A.astype(np.float64) @ B) <= gemm_bound(A, B) + 1e-6).all()


def test_defaults_keywords_and_consts() -> None:
    X, Y = np.arange(70, dtype=np.float32), np.zeros(70, np.float32)
    scale(X, Y, device="emulator")
    assert (Y == 2 * X).all()
    scale(Y=Y, X=X, a=3, B=64, device="emulator")
    assert (Y == 3 * X).all()


@pytest.mark.parametrize(
    "view", [lambda x: x[::2], lambda x: x[::-1], lambda x: x[3:], lambda x: x.reshape(10, 7)[:, 2], lambda x: x[:1]]
)
def test_any_strides(view: Any) -> None:
    X, Y = np.arange(70, dtype=np.float32), np.zeros(70, np.float32)
    scale(view(X), view(Y), device="emulator")
    assert (view(Y) == 2 * view(X)).all()
    assert np.count_nonzero(Y) <= view(Y).size


def test_transposed_and_padded_matrices() -> None:
    A, B, C = problem()
    expected = np.zeros_like(C)
    matmul(A, B, expected, device="emulator")
    wide = np.zeros((13, 40), np.float32)
    matmul(np.asfortranarray(A), B.T.copy().T, wide[:, 4:13], device="emulator")
    assert (wide[:, 4:13] == expected).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_dtype_generic_and_optional(dtype: Any) -> None:
    X = np.arange(40).astype(dtype)
    Y = np.zeros_like(X)
    generic(X, Y, None, device="emulator")
    assert (Y == X + X).all()
    generic(X, Y, np.ones(40, np.float32), device="emulator")
    assert (X + X + dtype(1) == Y).all()


@tile_kernel
def filled(X: Global[f64, N], *, value: Const[Any] = 1):
    b = grid(cdiv(N, 32))
    t = threads(32)
    i = b * 32 + t
    if i < N:
        X[i] = 1.0 / f64(value) if isinstance(value, float) else f64(value)


def test_consts_that_python_calls_equal_are_told_apart() -> None:
    X = np.zeros(1)
    for value, expected in ((0.0, math.inf), (-0.0, -math.inf), (0, 0.0), (0.0, math.inf)):
        filled(X, value=value, device="emulator")
        assert X[0] == expected


def test_a_grid_from_a_scalar() -> None:
    Y = np.zeros(100, np.int32)
    counted(Y, 2, device="emulator")
    assert (Y[:64] == 2).all() and not Y[64:].any()
    counted(Y, 0, device="emulator")
    with pytest.raises(KernelArgumentError, match="the grid is negative: x = blocks = -1"):
        counted(Y, -1, device="emulator")


def test_a_tile_function_as_const() -> None:
    X = np.ones(5, np.float32)
    mapped(X, device="emulator")
    assert (X == 2).all()


@pytest.mark.parametrize(("m", "n", "k"), [(0, 9, 5), (13, 0, 5), (13, 9, 0), (0, 0, 0)])
def test_sizes_of_zero(m: int, n: int, k: int) -> None:
    A, B, C = problem(m, n, k)
    matmul(A, B, C, device="emulator")
    assert (C == 0).all()  # K = 0 gives an empty sum, M or N = 0 launches nothing


def test_other_memory_is_left_alone() -> None:
    A, B, C = problem()
    before = A.copy(), B.copy()
    matmul(A, B, C, device="emulator")
    assert (before[0] == A).all() and (before[1] == B).all()


# -- wrong calls -----------------------------------------------------------------------------------------


def refused(message: str, *args: Any, kernel: Any = matmul, **kwargs: Any) -> None:
    kwargs.setdefault("device", "emulator")
    with pytest.raises(KernelArgumentError) as caught:
        kernel(*args, **kwargs)
    text = str(caught.value)
    assert message in text
    assert text.startswith(f"{kernel.name}(): ")
    assert "\n  fix: " in text


def test_wrong_calls_are_one_clear_error() -> None:
    A, B, C = problem()
    refused("the argument C is missing", A, B)
    refused("4 arguments by position; it takes 3 (A, B, C)", A, B, C, 8)
    refused("unknown argument or const BM; its consts: T", A, B, C, BM=8)
    refused("A is given twice", A, B, C, A=A)
    refused("const T is 8.0, a float; expected int", A, B, C, T=8.0)
    refused("A is f64; expected f32", A.astype(np.float64), B, C)
    refused("A has 1 dimensions, shape (13,); expected [M, K]", A[:, 0], B, C)
    refused("K is 5 in A but 4 in B", A, B[:4], C)
    refused("A is a list; expected an array", [1.0], B, C)
    refused("A is None, but not optional", None, B, C)
    refused("device is 'cuda'", A, B, C, device="cuda")
    refused("a is a str", np.zeros(3, np.float32), np.zeros(3, np.float32), "2", kernel=scale)


def test_what_is_written_must_be_writable_and_apart() -> None:
    A, B, C = problem(8, 8, 8)
    frozen = C.copy()
    frozen.flags.writeable = False
    refused("C is written by the kernel, but read-only", A, B, frozen)
    refused("C is written by the kernel, and shares memory with A", A, B, A)
    refused("C is written by the kernel, and shares memory with B", A, B, B[::-1])
    shared = np.zeros((8, 16), np.float32)
    matmul(shared[:, :8], B, shared[:, 8:], device="emulator")  # interleaved, but apart
    row = np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (8, 8), (0, 4))
    refused("several of its elements are one", A, B, row)
    matmul(A, A, C, device="emulator")  # reading one array twice is fine


@tile_kernel
def brought(A: Global[f32, M, N], B: Global[f32, M, N], C: Global[f32, M, N], D: Global[f32, M, N]):
    grid(1)
    row, column = threads(4, 8)[::-1]
    S, T, U = shared((8, 4), f32), shared((8, 4), f32), shared((8, 4), f32)
    copy(A[0:8, 0:4], S, vec=4)
    token = copy_async(B[0:8, 0:4], T, vec=4)
    ptx.cp_async(U, (row, column), C, (row, column), bytes=4)
    ptx.commit_group()
    wait(token)
    ptx.wait_group(0)
    barrier()
    D[row, column] = S[row, column] + T[row, column] + U[row, column]


def test_what_a_copy_reads_is_not_written() -> None:
    frozen, D = np.broadcast_to(np.arange(4, dtype=np.float32), (8, 4)), np.zeros((8, 4), np.float32)
    brought(frozen, frozen, frozen, D, device="emulator")
    np.testing.assert_array_equal(D, 3 * frozen)
    assert brought.compile("sm_90a").written == ("D",)


def test_no_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "_open", lambda: driver_module._no_gpu("none"))
    A, B, C = problem()
    with pytest.raises(DeviceError, match="fix: "):
        matmul(A, B, C, device="gpu")
    matmul(A, B, C)  # and NumPy arrays run on the emulator
    assert not np.isnan(C).any()


def test_compile_errors_come_from_the_call() -> None:
    @tile_kernel
    def broken(X: Global[f32, N]):
        b = grid(cdiv(N, 32))
        t = threads(32)
        X[b * 32 + t] = undefined_name  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(CompileError, match="undefined_name"):
        broken(np.zeros(4, np.float32), device="emulator")


# -- asking ----------------------------------------------------------------------------------------------


def test_compile_assumes_the_usual() -> None:
    compiled = matmul.compile("sm_90a")
    assert compiled.arch == "sm_90a"
    assert compiled.spec.consts == (("T", 8),)
    assert compiled.threads == (8, 8)
    assert compiled.written == ("C",)
    assert len(compiled.grid) == 2
    assert compiled.ptx.lstrip().startswith("//") or ".version" in compiled.ptx
    assert "define" in compiled.llvm
    assert compiled.cubin.startswith(b"\x7fELF")
    assert compiled.resources.registers > 0
    assert compiled.resources.spill_stores == 0
    assert matmul.compile("sm_90a") is compiled
    assert matmul.compile("sm_80", T=16).threads == (16, 16)
    text = repr(compiled)
    assert "matmul(T=8) for sm_90a" in text and "registers" in text and "limited by" in text
    assert "A: f32 unit=1 align=16 whole, " in text


def test_the_image_survives_the_disk() -> None:
    from tiledsl.compilation.compiled import Image

    compiled = matmul.compile("sm_90a")
    image = Image(**{f.name: getattr(compiled, f.name) for f in dataclasses.fields(Image)})
    content = compiled.to_bytes()
    assert Image.from_bytes(content) == image
    assert json.loads(content.split(b"\0")[0])["grid"] == list(compiled.grid)  # nothing is pickled


@tile_kernel
def vectors(X: Global[T, N], Y: Global[T, N], *, bytes_: const = 16):
    i = (grid(cdiv(N, 32)) * 32 + threads(32)) * 16
    Y.put(i, X.get(i, vec=bytes_))


@pytest.mark.parametrize(("dtype", "width"), [(f32, 8), (f32, 16), (f64, 16)])
def test_a_guarded_vector_that_fits_is_one_access(dtype: Any, width: int) -> None:
    text = vectors.compile("sm_90a", T=dtype, bytes_=width).ptx
    [loaded] = re.findall(r"ld\.global\.nc\.v\d\.\w+ *\t*\{(.*?)\}", text)
    for register in loaded.split(", "):  # an element that is loaded a second time leaves its register unused
        assert len(re.findall(rf"{re.escape(register)}\b", text)) > 1, text


def test_stages_of_the_ir() -> None:
    compiled = matmul.compile("sm_90a")
    assert compiled.stages[0] == "tile" and compiled.stages[-1] == "thread"
    assert "after:expand" in compiled.stages
    assert "tile.get" in compiled.ir()
    assert "tile.get" not in compiled.ir("thread")
    assert compiled.ir("expand") == compiled.ir("after:expand")
    assert "test_kernel.py" in compiled.ir("tile", locs=True)
    with pytest.raises(TileError, match="no stage 'sass' of matmul; there are: tile, after:"):
        compiled.ir("sass")


def test_dtypes_of_generic_kernels_at_compile() -> None:
    assert generic.compile("sm_90a", T=f16).spec == generic.compile("sm_90a", X="f16").spec
    with pytest.raises(KernelArgumentError, match="the dtype variable T is open"):
        generic.compile("sm_90a")
    with pytest.raises(KernelArgumentError, match=r"T is both (f16 and bf16|bf16 and f16)"):
        generic.compile("sm_90a", T=f16, X=bf16)
    with pytest.raises(KernelArgumentError, match="T is 3; expected a dtype"):
        generic.compile("sm_90a", T=3)
    with pytest.raises(KernelArgumentError, match="unknown const U"):
        generic.compile("sm_90a", T=f64, U=3)
    with pytest.raises(CompileError, match="no target 'sm_12'"):
        matmul.compile("sm_12")


def test_verify() -> None:
    A, B, C = problem()

    def right(A: Any, B: Any, C: Any) -> Any:
        return A.astype(np.float64) @ B

    def in_place(A: Any, B: Any, C: Any) -> None:
        C[...] = A @ B

    def wrong(A: Any, B: Any, C: Any) -> Any:
        result = A.astype(np.float64) @ B
        result[3, 4] += 1
        return result

    bound = gemm_bound(A, B)
    assert matmul.verify(right, A, B, C, bound=bound, device="emulator")
    assert matmul.verify(in_place, A, B, C, bound=2 * bound, device="emulator")
    found = matmul.verify(wrong, A, B, C, bound=bound, device="emulator")
    assert (bool(found), found.wrong, found.elements) == (False, 1, 13 * 9)
    assert found.worst is not None and (found.worst.tensor, found.worst.index) == ("C", (3, 4))
    assert re.search(r"1 WRONG; worst is C\[3, 4\]: got .*, expected .*, error 1", str(found))
    assert np.isnan(C).all()  # only copies were written
    assert not matmul.verify(lambda A, B, C: np.full_like(C, np.nan), A, B, C, device="emulator")
    with pytest.raises(KernelArgumentError, match="the reference returned 2 arrays; the kernel writes C"):
        matmul.verify(lambda A, B, C: (A, B), A, B, C, device="emulator")
    with pytest.raises(KernelArgumentError, match=r"gives C the shape \(13, 5\)"):
        matmul.verify(lambda A, B, C: A, A, B, C, device="emulator")


def test_verify_exactly() -> None:
    X, Y = np.array([1.5, -0.0, np.nan, np.inf], np.float32), np.zeros(4, np.float32)
    assert scale.verify(lambda X, Y, a: 2 * X, X, Y, exact=True, device="emulator")
    assert not scale.verify(lambda X, Y, a: np.array([3, 0.0, np.nan, np.inf]), X, Y, exact=True, device="emulator")
    assert not scale.verify(lambda X, Y, a: np.array([3, -0.0, 0, np.inf]), X, Y, bound=math.inf, device="emulator")


def test_time() -> None:
    A, B, C = problem()
    timing = matmul.time(A, B, C, repeat=3, device="emulator")
    assert timing.where == "emulator" and timing.runs == 3
    assert 0 < timing.min <= timing.median <= timing.max
    with pytest.raises(KernelArgumentError, match="repeat is 0"):
        matmul.time(A, B, C, repeat=0)


def test_trace() -> None:
    A, B, C = problem()
    rows = matmul.trace(block=(0, 0), thread=(1, 0))(A, B, C)
    assert rows and all(row.loc.file.endswith("test_kernel.py") for row in rows)


def test_the_function_is_still_there() -> None:
    assert matmul.name == "matmul"
    assert matmul.__doc__ == matmul.fn.__doc__
    assert repr(matmul).startswith("<tile_kernel matmul(A, B, C, *, T=8) at ")


@tile_kernel
def reversed_without_a_barrier(X: Global[f32, N]):
    grid(1)
    t = threads(64)
    S = shared((64,), f32)
    S[t] = X[t]
    X[t] = S[63 - t]


def test_check_finds_a_missing_barrier() -> None:
    with pytest.raises(HazardError, match=r"S\[63 - t\]"):
        reversed_without_a_barrier.check(np.arange(64, dtype=np.float32))
