"""Out of bounds along any axis is an error at the line, in plain runs and under `check`."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from emulator_rings import RING, kernel_of, run_ring

from tiledsl import (
    Global,
    barrier,
    copy,
    f16,
    f32,
    grid,
    i32,
    index,
    load_fragment,
    mma,
    padded,
    ptx,
    shared,
    store,
    swizzle_64b,
    threads,
    tile,
    tile_kernel,
    tma_load,
    u32,
    u64,
)
from tiledsl.backends.ptx import TARGETS
from tiledsl.backends.ptx.codegen import emit_ptx
from tiledsl.dims import K, M, N
from tiledsl.errors import EmulatorError
from tiledsl.ir.ops import tile as tile_ops
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.passes.lower.expander import Expander
from tiledsl.passes.pipeline import run_pipeline

CASES: list[tuple[Any, str]] = []


def leaves(message: str) -> Any:
    """Registers a kernel whose line with ``# here`` leaves an axis, in these words."""

    def register(kernel: Any) -> Any:
        CASES.append((kernel, message))
        return kernel

    return register


# -- tensors: X is 4 x 40, V is 4 x 48 and starts at a multiple of 16 bytes -------------------------


@leaves("tile.store at X[0, 40], but X has 4 x 40 elements; thread (40, 0, 0) of block (0, 0, 0) and 23 more")
@tile_kernel
def column(X: Global[f32, M, N], V: Global[f32, M, K], n: i32):
    grid(1)
    t = threads(64)
    X[0, t] = 1  # here


@leaves("tile.load at X[1, -1]")
@tile_kernel
def before_the_row(X: Global[f32, M, N], V: Global[f32, M, K], n: i32):
    grid(1)
    t = threads(32)
    V[0, t] = X[1, t - 1]  # here


@leaves("tile.atomic_add at X[0, 40]")
@tile_kernel
def atomic(X: Global[f32, M, N], V: Global[f32, M, K], n: i32):
    grid(1)
    t = threads(64)
    X.atomic_add(0, t, f32(1))  # here


@leaves("tile.load at V[0, 48] and the 3 elements after it")
@tile_kernel
def vectors(X: Global[f32, M, N], V: Global[f32, M, K], n: i32):
    grid(1)
    t = threads(16)
    x = V.load(0, 4 * t, vec=16)  # here
    X.put(0, t, (x[0] + x[1]) + (x[2] + x[3]))


@leaves("tile.load at X[2, 40]")
@tile_kernel
def through_a_view(X: Global[f32, M, N], V: Global[f32, M, K], n: i32):
    grid(1)
    t = threads(64)
    row = X[2, :]
    V.put(0, t, row[t])  # here


@leaves("tile.load at X[0, 40]")
@tile_kernel
def in_a_loop(X: Global[f32, M, N], V: Global[f32, M, K], n: i32):
    grid(1)
    threads(1)
    total = f32(0)
    for k in range(index(n) + 2):
        total += X[0, k]  # here
    V[0, 0] = total


@leaves("tile.load at X[1, 40]")
@tile_kernel
def by_the_wrong_extent(X: Global[f32, M, N], V: Global[f32, M, K], n: i32):
    grid(1)
    threads(1)
    total = f32(0)
    for k in range(V.shape[1]):
        total += X[3 - k // 16, k]  # here
    V[0, 0] = total


# -- shared tiles ----------------------------------------------------------------------------------


@leaves("tile.store at S[0, 8], but S has 4 x 8 elements; thread (8, 0, 0)")
@tile_kernel
def shared_element(X: Global[f32, M, N], V: Global[f32, M, K], n: i32):
    grid(1)
    t = threads(32)
    S = shared((4, 8), f32)
    S[0, t] = 1  # here
    barrier()
    X.put(0, t, S[t // 8, t % 8])


@leaves("tile.load at S[1, 4, 0], but S has 2 x 4 x 8 elements")
@tile_kernel
def middle_axis(X: Global[f32, M, N], V: Global[f32, M, K], n: i32):
    grid(1)
    t = threads(32)
    S = shared((2, 4, 8), f32)
    S[0, t // 8, t % 8] = 1
    S[1, t // 8, t % 8] = 1
    barrier()
    X.put(0, t, S[1, t // 7, 0])  # here


@leaves("tile.store at S[0, 8]")
@tile_kernel
def in_padded_rows(X: Global[f32, M, N], V: Global[f32, M, K], n: i32):
    grid(1)
    t = threads(32)
    S = shared((4, 8), f32, layout=padded(8))
    S[0, t] = 1  # here


@leaves("tile.store at S[0, 32] and the 3 elements after it, but S has 8 x 32 elements")
@tile_kernel
def copy_without_zeros(X: Global[f32, M, N], V: Global[f32, M, K], n: i32):
    grid(1)
    threads(32)
    S = shared((8, 32), f32)
    copy(V[0:8, 0:16], S[0:8, tile(index(n) // 20, 16)])  # here


@leaves("async.cp at S[0, 8]")
@tile_kernel
def raw_copies(X: Global[f32, M, N], V: Global[f32, M, K], n: i32):
    grid(1)
    t = threads(32)
    S = shared((4, 8), f32)
    ptx.cp_async(S, (0, t), V, (0, t), bytes=4)  # here
    ptx.commit_group()
    ptx.wait_group(0)


@leaves("matrix.ldmatrix at S[0, 16] and the 7 elements after it, but S has 32 x 16 elements; thread (2, 0, 0)")
@tile_kernel
def raw_matrices(X: Global[f32, M, N], V: Global[f32, M, K], n: i32):
    grid(1)
    t = threads(32)
    S = shared((32, 16), f16)
    for i in range(16):
        S[t, i] = f16(0)
    barrier()
    w = ptx.ldmatrix(S, 0, 8 * t, num=1)  # here
    X.put(0, t, f32(w[0]))


@leaves("mbarrier.init at bars[0, 4], but bars has 2 x 4 elements")
@tile_kernel(arch="sm_90a")
def mbarriers(X: Global[f32, M, N], V: Global[f32, M, K], n: i32):
    grid(1)
    t = threads(8)
    bars = shared((2, 4), u64)
    ptx.mbarrier_init(bars, 0, t, count=1)  # here


@leaves("tma.load of 8 x 16 elements at S[0, 8, 0], but S has 2 x 8 x 16 elements")
@tile_kernel(arch="sm_90a")
def boxes(X: Global[f32, M, N], V: Global[f32, M, K], n: i32):
    grid(1)
    t = threads(32)
    S = shared((2, 8, 16), f32, layout=swizzle_64b)
    bars = shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(bars, 0, count=1)
        ptx.mbarrier_expect_tx(bars, 0, bytes=512)
        tma_load(V[0:8, 0:16], S[0, tile(index(n) - 39, 8), 0:16], mbarrier=(bars, 0))  # here


@leaves("tile.load at S[32, 0]")
@tile_kernel
def fragments(X: Global[f32, M, N], V: Global[f32, M, K], n: i32):
    grid(1)
    t = threads(32)
    S = shared((32, 16), f16)
    for i in range(16):
        S[t, i] = f16(0)
    barrier()
    f = load_fragment(S[tile(index(n) // 20, 16), :], mma.m16n8k16.a(warps=(1, 1)))  # here
    store(f, shared((16, 16), f16))


@pytest.mark.parametrize(("kernel", "message"), CASES, ids=lambda case: getattr(case, "__name__", ""))
@pytest.mark.parametrize("checked", [False, True], ids=["run", "check"])
def test_an_axis_is_left(kernel: Any, message: str, checked: bool) -> None:
    X, V = np.zeros((4, 40), np.float32), np.zeros((4, 48), np.float32)
    lines, first = inspect.getsourcelines(kernel.__wrapped__)
    line = first + next(i for i, text in enumerate(lines) if "# here" in text)
    call = kernel.check if checked else kernel
    with pytest.raises(EmulatorError) as caught:
        call(X, V, n=40, **({} if checked else {"device": "emulator"}))
    assert message in caught.value.message
    assert caught.value.loc.line == line


def test_a_product_reads_inside_its_tiles() -> None:
    """Of a ring with two slots, the third; the level where tiles are read by index says the same."""
    kernel = kernel_of(RING, replaced=[("%some, %a, %slot", "%some, %a, %c16")])
    for made in (kernel.clone(), run_pipeline(kernel, bounds=True)):
        with pytest.raises(EmulatorError, match=r"out of bounds: wgmma.mma"):
            run_ring(made)


@tile_kernel
def one_axis(X: Global[f32, N], n: i32):
    grid(1)
    threads(1)
    X[1] = X[index(n)] + 1


@pytest.mark.parametrize(
    "array", [np.zeros(8, np.float32)[::2], np.zeros(8, np.float32)[::-2], np.zeros(4, np.float32)]
)
def test_a_tensor_of_one_axis(array: Any) -> None:
    one_axis(array, 3, device="emulator")
    for past in (4, -1, 5, 2**31 - 1):
        with pytest.raises(EmulatorError, match=r"out of bounds: (tile|mem)\.load"):
            one_axis(array, past, device="emulator")


@tile_kernel
def repeated(X: Global[f32, N], Y: Global[f32, M], n: i32):
    grid(1)
    threads(1)
    Y[0] = X[index(n)]


def test_a_tensor_whose_elements_are_one() -> None:
    """Its stride is 0: every index has the same address."""
    ones = np.broadcast_to(np.float32(1), (70000,))
    repeated(ones, np.zeros(1, np.float32), 69999, device="emulator")
    with pytest.raises(EmulatorError, match=r"tile.load at X\[70000\], but X has 70000 elements"):
        repeated(ones, np.zeros(1, np.float32), 70000, device="emulator")


@tile_kernel
def guarded(X: Global[f32, M, N], V: Global[f32, M, K]):
    grid(1)
    t = threads(64)
    S = shared((8, 16), f16)
    if t < 8:
        for i in range(16):
            S[t, i] = f16(2)
    barrier()
    if t < 32:
        w = ptx.ldmatrix(S, t, 0, num=1)  # lanes from 8 on give no row
        if t < X.shape[1]:
            X[3, t] = f32(1) if w[0] == u32(0x40004000) else f32(0)
    V.put(3, t + 44, X.get(t - 1, t) + 1)


def test_what_guards_itself_is_silent() -> None:
    """An `if`, `get` and `put`, and lanes whose index an instruction does not take."""
    X, V = np.zeros((4, 24), np.float32), np.zeros((4, 48), np.float32)
    guarded.check(X, V)
    assert (X[3] == 1).all() and X.sum() == 24
    assert (V[3, 44:] == 1).all() and V.sum() == 4


# -- what makes the checks, and what does not ------------------------------------------------------


TWO = """kernel two(%A: global<f32, [M, N], unit=1, align=16>, %n: i32) grid(1) threads(32) {
  %t = gpu.thread_id {axis = 0} : index
  %i = arith.cast %n : index
  %x = tile.load %A, %i, %t : f32
  tile.store %A, %t, %i, %x
  control.return
}"""


def test_a_gpu_has_no_checks() -> None:
    """PTX is that of a kernel without them; and it is the same where a kernel has them."""
    plain, checked = run_pipeline(parse_kernel(TWO)), run_pipeline(parse_kernel(TWO), bounds=True)
    assert "mem.within" not in print_kernel(plain)
    assert print_kernel(checked).count("mem.within") == 2
    assert emit_ptx(plain, TARGETS["sm_90a"])[1] == emit_ptx(checked, TARGETS["sm_90a"])[1]


def test_an_access_that_says_nothing_of_its_bounds_is_a_bug_of_the_compiler() -> None:
    """A rule of `expand` for an op that accesses memory cannot forget it."""
    expand = Expander(parse_kernel(TWO), {tile_ops.Load: lambda x, op: x.give(op.result, [x.body.args[0]])})
    with pytest.raises(AssertionError, match=r"nothing says whether tile\.load stays inside its memory"):
        expand.run()
