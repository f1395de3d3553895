"""Bad input as a user meets it: a kernel is called, and one error comes back, whole and at the right line.

Other tests look at each part by itself; here everything runs, decorator to emulator. A marked line
``# error: <text>`` is where the caret must be, and what the message must hold.
"""

from __future__ import annotations

import inspect
import json
import re
import traceback
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

from tests.unit.module_machine import Machine
from tiledsl.backends.print_records import PRINTS
from tiledsl.dims import K, M, N
from tiledsl.errors import (
    CompileError,
    CompileErrors,
    DeviceError,
    EmulatorError,
    KernelArgumentError,
    LocatedError,
    TileError,
)
from tiledsl.kernel import TileKernel, tile_kernel
from tiledsl.lang import (
    Global,
    barrier,
    cdiv,
    const,
    f32,
    grid,
    i32,
    index,
    ptx,
    shared,
    shuffle_xor,
    threads,
)
from tiledsl.runtime import driver as driver_module
from tiledsl.runtime.driver import Device, Driver

BAD: list[tuple[TileKernel, Any]] = []


def bad(*shape: int, dtype: Any = np.float32, view: Any = slice(None)) -> Any:
    """Call the kernel on ones of `shape`, of which `view` is passed."""

    def register(kernel: TileKernel) -> TileKernel:
        BAD.append((kernel, np.ones(shape, dtype)[view]))
        return kernel

    return register


@tile_kernel
def gemm(A: Global[f32, M, K], B: Global[f32, K, N], C: Global[f32, M, N], alpha: f32, n: i32, *, T: const):
    bx, by = grid(cdiv(N, T), cdiv(M, T))
    tx, ty = threads(T, T)
    C.put(by * T + ty, bx * T + tx, alpha * A.get(by * T + ty, 0) * B.get(0, bx * T + tx))


@bad(64)
@tile_kernel
def a_kernel_in_a_kernel(A: Global[f32, M]):
    grid(1)
    threads(64)
    gemm(A, A, A, 1.0, 1, T=8)  # error: the kernel gemm is called inside a kernel


@bad(64)
@tile_kernel
def barrier_under_a_divergent_if(A: Global[f32, M]):
    i = grid(1) + threads(64)
    if i < 40:
        A[i] = 0
        barrier()  # error: barrier() must be reached by all threads of the block


@bad(64)
@tile_kernel
def barrier_after_a_divergent_return(A: Global[f32, M]):
    i = grid(1) + threads(64)
    if i >= 40:
        return
    barrier()  # error: barrier() must be reached by all threads of the block
    A[i] = 0


@bad(64)
@tile_kernel
def barrier_in_a_divergent_loop(A: Global[f32, M]):
    i = grid(1) + threads(64)
    for _ in range(i, 70):
        barrier()  # error: the loop bounds in line
    A[i] = 0


@bad(64)
@tile_kernel
def barrier_where_values_of_memory_differ(A: Global[f32, M]):
    i = grid(1) + threads(64)
    while A[i] > 0:
        barrier()  # error: the loop condition in line
        A[i] = 0


@bad(64)
@tile_kernel
def shuffle_under_a_divergent_if(A: Global[f32, M]):
    i = grid(1) + threads(64)
    if i < 40:
        A[i] = shuffle_xor(A[i], 1)  # error: a shuffle must be reached by all 32 lanes of the warp


@bad(64, 64)
@tile_kernel
def vector_at_an_odd_index(A: Global[f32, M, N]):
    i = grid(1) + threads(8)
    v = A.load(0, i, vec=8)  # error: 8 bytes at once need an index along axis 1 of A that is a multiple of 2
    A[0, i] = v[0]


@bad(64, 65)
@tile_kernel
def vector_of_odd_rows(A: Global[f32, M, N]):
    i = grid(1) + threads(8)
    v = A.load(i, 0, vec=16)  # error: A's rows are aligned to 4 bytes in this call, 16 needed
    A[0, i] = v[0]


@bad(64, 128, view=np.s_[:, ::2])
@tile_kernel
def vector_of_a_strided_tensor(A: Global[f32, M, N]):
    i = grid(1) + threads(8)
    v = A.load(i, 0, vec=16)  # error: 16 bytes at once from A, which has no axis of stride 1 in this call
    A[0, i] = v[0]


@bad(64, 64)
@tile_kernel
def vector_of_an_odd_tile(A: Global[f32, M, N]):
    i = grid(1) + threads(8)
    S = shared((8, 7), f32)
    S[i, 0] = 1
    A.store(0, i * 4, S.load(i, 0, vec=16))  # error: a step along axis 0 is 28 bytes, not a multiple of 16


@bad(64, 64)
@tile_kernel
def too_many_threads(A: Global[f32, M, N]):
    grid(1)
    tx, ty = threads(64, 32)  # error: 2048 threads; at most 1024
    A[tx, ty] = 0


@bad(64, 64)
@tile_kernel
def too_much_shared_memory(A: Global[f32, M, N]):
    i = grid(1) + threads(64)
    S = shared((256, 128), f32)
    Q = shared((64, 512), f32)  # error: S 131072 bytes (256 x 128 f32), Q 131072 bytes (64 x 512 f32)
    S[0, i], Q[0, i] = 1.0, 2.0
    barrier()
    A[0, i] = S[0, i] + Q[0, i]


@bad(64, 4)
@tile_kernel
def index_beyond_a_static_bound(A: Global[f32, M, Literal[4]]):
    i = grid(1) + threads(64)
    A[i, 4] = 0  # error: index 4 is outside axis 1 of A, whose extent is 4


@bad(64)
@tile_kernel
def ptx_without_emulation(A: Global[f32, M]):
    i = grid(1) + threads(64)
    A[i] = ptx.inline("neg.f32 $0, $1;", f32, A[i])  # error: the emulator cannot run the PTX 'neg.f32 $0, $1;'


@bad(60)
@tile_kernel
def out_of_bounds(A: Global[f32, M]):
    i = grid(1) + threads(64)
    A[i] = 0  # error: of A (element 60), which holds 60 elements of 4 bytes


def unchained(error: BaseException) -> str:
    """The text of `error`, whose traceback must hold no other exception."""
    assert "During handling of" not in "".join(traceback.format_exception(error))
    return str(error)


@pytest.mark.parametrize(("kernel", "array"), BAD, ids=[k.name for k, _ in BAD])
def test_one_error_at_its_line(kernel: TileKernel, array: Any) -> None:
    with pytest.raises(LocatedError) as caught:
        kernel(array, device="emulator")
    text = unchained(caught.value)
    lines, first = inspect.getsourcelines(kernel.fn)
    [(offset, wanted)] = [(n, m[1]) for n, line in enumerate(lines) if (m := re.search(r"# error: (.*)$", line))]
    assert wanted in text
    assert f"test_bad_input.py:{first + offset}:" in text.splitlines()[0]
    assert text.splitlines()[1].endswith(lines[offset].rstrip())
    assert set(text.splitlines()[2].split("|")[1].strip()) == {"^"}
    assert "\n  fix: " in text


@pytest.mark.parametrize(("arch", "limit"), [("sm_86", 101376), ("sm_80", 166912), ("sm_90a", 232448)])
def test_the_limit_of_shared_memory_is_the_targets(arch: str, limit: int) -> None:
    with pytest.raises(CompileError) as caught:
        too_much_shared_memory.compile(arch)
    text = unchained(caught.value)
    assert f"the block's shared tiles need 262144 bytes, {limit} are possible on {arch}: " in text
    assert f"make them {262144 - limit} bytes smaller" in text
    assert "bytes smaller" in text and "shared(..., over=tile)" in text


# -- calls -----------------------------------------------------------------------------------------------


def call(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(KernelArgumentError) as caught:
        gemm(*args, **{"device": "emulator", **kwargs})
    text = unchained(caught.value)
    assert text.startswith("gemm(): ")
    assert "\n  fix: " in text
    return text


def arguments() -> list[Any]:
    return [np.ones((4, 6), np.float32), np.ones((6, 8), np.float32), np.ones((4, 8), np.float32), 1.0, 1]


def test_a_wrong_call_is_one_error_without_a_second_traceback() -> None:
    A, B, C, alpha, n = arguments()
    assert "const T is missing: it has no default" in call(A, B, C, alpha, n)
    assert "unknown argument or const Q; its consts: T" in call(A, B, C, alpha, n, T=8, Q=2)
    assert "6 arguments by position; it takes 5 (A, B, C, alpha, n)" in call(A, B, C, alpha, n, 3, T=8)
    assert "A is given twice, by position and by name" in call(A, B, C, alpha, n, T=8, A=A)
    assert "the argument C is missing" in call(A, B, T=8)
    assert "A is f64; expected f32" in call(A.astype(np.float64), B, C, alpha, n, T=8)
    assert "A has 1 dimensions, shape (6,); expected [M, K]" in call(A[0], B, C, alpha, n, T=8)
    assert "K is 6 in A but 5 in B (axis 0 of [K, N], shape (5, 8))" in call(A, B[:5], C, alpha, n, T=8)
    assert "n is a float; expected a Python or NumPy number for i32" in call(A, B, C, alpha, 1.5, T=8)
    assert "n is 2147483648, out of the range of i32" in call(A, B, C, alpha, 2**31, T=8)
    assert "C is written by the kernel, but read-only" in call(A, B, np.broadcast_to(np.float32(1), (4, 8)), 1, 1, T=8)


def test_a_type_error_of_the_users_own_function_stays_what_it_is() -> None:
    def broken(_: Any) -> Any:
        raise TypeError("of its own")

    @tile_kernel
    def negated(A: Global[f32, M]):
        i = grid(1) + threads(64)
        A[i] = ptx.inline("neg.f32 $0, $1;", f32, A[i], emulate=broken)

    with pytest.raises(TypeError, match="of its own") as caught:
        negated(np.ones(64, np.float32), device="emulator")
    [note] = caught.value.__notes__
    assert "A[i] = ptx.inline(" in note and "^^^" in note


def test_asking_with_missing_arguments() -> None:
    for ask in (
        lambda: gemm.verify(lambda *_: None, T=8),
        lambda: gemm.time(T=8),
        lambda: gemm.trace(block=0, thread=0)(T=8),
    ):
        with pytest.raises(KernelArgumentError, match=r"gemm\(\): the argument A is missing"):
            ask()


@tile_kernel
def blocks(A: Global[f32, M], n: i32):
    x, y = grid(1, index(n))
    A.put(x + y * 32 + threads(32), 0.0)


def test_grids_that_cannot_be() -> None:
    for n, message, fix in (
        (70000, "the grid is too large: y = n = 70000 blocks; at most 65535", "put the long dimension on x"),
        (-1, "the grid is negative: y = n = -1 blocks", "extents that are 0 or more"),
    ):
        with pytest.raises(KernelArgumentError) as caught:
            blocks(np.ones(4, np.float32), n, device="emulator")
        assert message in str(caught.value) and fix in str(caught.value)


# -- devices, without one --------------------------------------------------------------------------------


class OnGpu:
    """Something with a CUDA array interface, whose memory nobody touches."""

    def __init__(self, *shape: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": "<f4", "data": (4096, False), "version": 3, "strides": None
        }  # fmt: skip


def test_arrays_on_different_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(pointer_device=lambda pointer: 0, current_device=lambda: 0)  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(driver_module, "driver", lambda: fake)
    A, B, C, alpha, n = arguments()
    text = call(OnGpu(4, 6), B, C, alpha, n, T=8, device=None)
    assert "A is in the memory of GPU 0, but B in host memory" in text and "move all arrays to one device" in text
    text = call(A, OnGpu(6, 8), C, alpha, n, T=8)
    assert "A is in host memory, but B in the memory of GPU 0" in text
    text = call(OnGpu(4, 6), OnGpu(6, 8), OnGpu(4, 8), alpha, n, T=8)
    assert "A is in the memory of GPU 0, and the emulator runs on host memory" in text


def driver_of(capability: tuple[int, int]) -> Driver:
    """A driver of one GPU that has no memory left and takes no code."""
    driver = Driver.__new__(Driver)
    driver.devices = (Device(0, 0, "Some GPU", capability),)
    driver.cu = SimpleNamespace(
        cuMemAlloc=lambda size: (2,),  # pyright: ignore[reportUnknownLambdaType]
        cuMemGetInfo=lambda: (0, 1 << 20, 3 << 30),
        cuModuleLoadData=lambda cubin: (209,),  # pyright: ignore[reportUnknownLambdaType]
    )
    return driver


def test_code_for_another_gpu() -> None:
    with pytest.raises(DeviceError) as caught:
        driver_of((8, 6)).target_of(0, "gemm", "sm_90a")
    text = str(caught.value)
    assert "gemm() is built for sm_90a; GPU 0, Some GPU, is sm_86 and cannot run it" in text
    assert 'fix: build it for this GPU, or run it with device="emulator"' in text


def test_a_gpu_that_no_target_fits() -> None:
    assert driver_of((8, 6)).target_of(0) == "sm_86"
    with pytest.raises(DeviceError) as caught:
        driver_of((7, 5)).target_of(0)
    text = str(caught.value)
    assert "GPU 0, Some GPU, has compute capability 7.5; the compiler has no target for it, only sm_80" in text
    assert 'fix: run the kernel with device="emulator"' in text


def test_a_driver_that_refuses_the_code() -> None:
    with pytest.raises(DeviceError) as caught:
        driver_of((9, 0))._load(1, b"", "gemm", "sm_90a", 0, 0)  # pyright: ignore[reportPrivateUsage]
    assert "gemm(): the driver refuses the code for sm_90a on GPU 0, Some GPU" in str(caught.value)
    assert "fix: update the NVIDIA driver" in str(caught.value)


def test_no_device_memory_left() -> None:
    with pytest.raises(DeviceError) as caught:
        driver_of((9, 0)).allocate(5 << 30, "gemm(): A")
    text = str(caught.value)
    assert "gemm(): A needs 5.00 GiB of GPU memory; 1.0 MiB of 3.00 GiB are free" in text
    assert "fix: free other arrays" in text


def test_targets_that_do_not_exist() -> None:
    for ask in (lambda: gemm.compile("sm_70", T=8), lambda: tile_kernel(arch="hopper")):
        with pytest.raises(CompileError, match=r"(?s)no target '(sm_70|hopper)'.*\n  fix: one of sm_80, sm_86, sm_89"):
            ask()


def test_every_error_is_a_tile_error() -> None:
    for kind in (CompileErrors, DeviceError, EmulatorError, KernelArgumentError):
        assert issubclass(kind, TileError)


@tile_kernel
def absent(X: Global[f32, M], Y: Global[f32, M] | None):
    i = grid(1) + threads(32)
    X[i] = Y[i]
    X[i] = Y.get(i)
    Y[i] = 0


def test_an_absent_tensor_that_is_used() -> None:
    with pytest.raises(CompileErrors) as caught:
        absent(np.ones(32, np.float32), None, device="emulator")
    actions = ("indexed", "asked for .get", "assigned to")
    assert [e.message for e in caught.value.errors] == [f"Y is None in this call and cannot be {a}" for a in actions]
    assert {e.fix for e in caught.value.errors} == {"guard it: `if Y is not None:`"}


# -- what is printed -------------------------------------------------------------------------------------


@tile_kernel
def braces(X: Global[f32, M]):
    i = grid(1) + threads(1)
    print("{x}", "100%", "{", i32(i), "}", "{}")
    print("{", "}", X[i], "}", sep="")


def test_braces_in_printed_text(capsys: pytest.CaptureFixture[str]) -> None:
    braces(np.ones(1, np.float32), device="emulator")
    assert capsys.readouterr().out == "{x} 100% { 0 } { }\n{ }1.0}\n"
    sites = json.loads(Machine(braces.compile("sm_90a").ptx)[PRINTS].raw)["sites"]
    assert [text for text, _ in sites] == ["{x} 100% { {} } { }", "{ }{}}"]
