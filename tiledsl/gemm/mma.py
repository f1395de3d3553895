"""The mma.sync kernel: any dtype of the tensor cores, any orientation of A, B and C, an epilogue function.

Eight warps of 64 x 64 share a tile of 128 x 256. For 16 k, the 32 instructions of a warp read 4 KB of shared memory;
the larger the CTA's tile, the smaller the share of copies in the traffic. CTAs are numbered in bands of GROUP rows of
tiles, so that concurrent CTAs share operands in the L2 cache.

With TMA, where A, B and the rows of C are aligned to 16 bytes, a role of one thread issues all copies. The multiplying
warps spend no registers and no issue slots on copies, and do not wait for each other at barriers. The grid is
persistent, one CTA an SM: copies of the next tile start while this tile's result is stored asynchronously. Tiles must
be multiples of 128 bytes along the contiguous axis of A, B and C, there must be 4 or 8 warps, and the stages and the
result must fit in shared memory side by side.

The operands' dtypes decide the instruction (`PRODUCTS`); e4m3 and e5m2 may be mixed, i8 and u8, too. f32 operands are
multiplied as tf32: the tensor cores ignore their low 13 bits. Results accumulate in f32, integers in i32, f64 in f64.
"""

from typing import Any, TypeVar

from tiledsl import (
    Const,
    Fragment,
    Global,
    Memory,
    Range,
    Ring,
    Scalar,
    SharedTile,
    barrier,
    cdiv,
    const,
    coordinates,
    f32,
    fragment,
    grid,
    index,
    lane_id,
    load_fragment,
    load_matrix,
    mma,
    persistent,
    pipelined,
    ptx,
    role,
    shared,
    store,
    store_tma,
    swizzle_128b,
    tf32,
    threads,
    tile,
    tile_function,
    tile_kernel,
    tile_schedule,
    tiles,
    tma_load,
    tma_wait,
    u32,
    u64,
    unroll,
    warp_id,
)
from tiledsl.arch import target_named
from tiledsl.dims import K, M, N
from tiledsl.gemm.bands import in_bands
from tiledsl.gemm.epilogue import Epilogue, add_bias, applied
from tiledsl.gemm.hopper_tiles import as_stored, matrix, stored_by_tma
from tiledsl.gemm.hopper_tiles import staging as matrix_staging
from tiledsl.gemm.mma_tiles import PRODUCTS, fetch, scaled, slot, staging, widest
from tiledsl.runtime.driver import available

__all__ = ["choose", "mma_fastest"]

D = TypeVar("D", bound=Scalar)
F = TypeVar("F", bound=Scalar)
E = TypeVar("E", bound=Scalar)

Choices = tuple[tuple[int, dict[str, Any]], ...]
"""Consts, the fastest first, each with the kilobytes of shared memory that a CTA then needs."""

SIXTEEN_BITS: Choices = ((144, {"BK": 64, "STAGES": 3, "GROUP": 16}), (96, {}))
EIGHT_BITS: Choices = ((64, {"BN": 128, "WARPS": (2, 2), "BK": 64}),)
FLOATS: Choices = ((64, {"BN": 128, "BK": 64}),)
SMALL_TF32: Choices = ((128, {"BK": 16}), (64, {"BN": 128, "WARPS": (2, 2), "BK": 16}))

CHOICES: dict[str, Choices] = {
    "bf16": SIXTEEN_BITS,
    "f16": SIXTEEN_BITS,
    "tf32": ((192, {"BK": 32}), *SMALL_TF32),
    "e4m3": FLOATS,
    "e5m2": FLOATS,
    "i8": EIGHT_BITS,
    "u8": EIGHT_BITS,
    "f64": ((96, {"BN": 64, "BK": 16, "WARPS": (4, 2)}),),
}
"""By format: the fastest of those that do not spill, measured on an H200 at 4096 and 8192 cubed. On sm_90, fp8 is
multiplied as f16, and 8-bit operands that are not contiguous along k are loaded byte by byte."""

DEEP: Choices = ((96, {"BN": 128, "WARPS": (2, 2), "BK": 128, "STAGES": 3}),)
ALONG_K: dict[str, Choices] = {"i8": DEEP, "u8": DEEP, "tf32": SMALL_TF32}
"""The same where both operands are contiguous along k."""

HALVES: tuple[tuple[float, dict[str, Any]], ...] = (
    (1.0, {"BN": 256, "BK": 64, "STAGES": 3, "GROUP": 16, "TMA": True}),
    (0.95, {"BN": 192, "BK": 64, "STAGES": 4, "TMA": True}),
    (0.89, {"BN": 128, "BK": 64, "STAGES": 4, "TMA": True}),
)
"""For 16-bit formats on an H200, by TMA: the speed of the main loop relative to the first, and consts. Measured at 4096
x 2112 x 7168, by `python -m tiledsl tune tiledsl/gemm/mma.py:mma_fastest TMA=True BK=64 STAGES=3
BN=128,192,256 --format bf16`; each time over the share of the waves of tiles that is used."""


@tile_function
def operand(S: Memory[Any], layout: Any) -> Fragment[Any]:
    """A matrix operand from shared memory: by ldmatrix (which transposes 16-bit elements only), or by elements."""
    along_k = S.unit == layout.inner
    if S.dtype.bytes == 2 or (along_k and S.dtype.bytes < 8):
        return load_matrix(S, layout)
    return load_fragment(S, layout)


def within_registers(
    BM: int,
    BN: int,
    BK: int,
    warps: tuple[int, int],
    size: int,
    across: tuple[bool, bool],
    vec: int,
    out: int,
    single: bool,
) -> tuple[int, int, tuple[int, int]]:
    """Columns and depth of a CTA's tile, and its warps: as asked, or smaller where registers would not suffice.

    size: bytes of an element of A and B. across: whether A, B are not contiguous along k. vec: bytes of their narrowest
    copy. out: bytes of a copy of C's rows. single: C is column-major and stored element by element. Found by compiling:
    a thread of a 64 x 64 warp tile holds 128 accumulators, and an address for each of its copies of a step. With copies
    of 8 bytes, a step has half the k. With narrower ones, or copies of 4-byte elements, or single bytes gathered for
    both operands, or most narrow C, a thread has registers for 64 accumulators only. Then more warps share the tile,
    or, where there are eight already, it has fewer columns.
    """
    depth = BK if vec >= 16 else min(BK, 32 if size <= 2 else 16)
    gathers = size == 1 and all(across)
    odd = BN & (BN - 1) > 0  # copies do not divide such tiles evenly, and each keeps its address
    crowded = (out < 8 and (across[0] or vec < 16 or single)) or odd if size == 2 else out < 16
    count = warps[0] * warps[1]
    sums = BM * BN // (32 * count)
    if sums <= 64 or not (vec < (8 if size <= 2 else 16) or gathers or crowded):
        return BN, depth, warps
    return (BN, depth, (warps[0], 2 * warps[1])) if count <= 4 else (64 * 32 * count // BM, depth, warps)


@tile_function
def of_result(S: Memory[Any], layout: Any) -> Fragment[Any]:
    """A tile of C in the accumulator's layout: by ldmatrix, or by pairs of elements where ldmatrix cannot load it."""
    return load_matrix(S, layout) if S.dtype.bytes == 2 else load_fragment(S, layout, vec=2 * S.dtype.bytes)


@tile_function
def operands(S: Memory[Any], T: Memory[Any], k: Range, acc: Any) -> tuple[Fragment[Any], Fragment[Any]]:
    """Return columns k of S and rows k of T, both in shared memory, as operand fragments of an MMA into acc.

    acc: the accumulator, or its layout.
    """
    a, b = operand(S[:, k], acc.a), operand(T[k, :], acc.b)
    return (a.bitcast(tf32), b.bitcast(tf32)) if S.dtype is f32 else (a, b)


@tile_function
def multiply(S: Memory[Any], T: Memory[Any], acc: Fragment[Any], depth: int, step: int) -> Fragment[Any]:
    """acc plus the product of two shared tiles of depth `depth`, `step` of k an instruction."""
    for k in unroll(tiles(depth, step)):
        a, b = operands(S, T, k, acc)
        acc = mma(a, b, acc)
    return acc


@tile_function
def first_operands(ring: Any, number: index, A: Any, B: Any, acc: Any, step: int) -> tuple[Any, Any]:
    """The operands of the first MMAs of a slot. A and B give the orientation of its tiles."""
    s = ring.slot(number)
    return operands(matrix(s.a, A), matrix(s.b, B), tile(0, step), acc)


@tile_function
def multiply_slot(
    ring: Any, now: index, A: Any, B: Any, a: Any, b: Any, acc: Any, depth: int, step: int
) -> tuple[Any, Any, index, Any]:
    """acc plus the product of slot `now`, whose first operands are a and b; the first operands of the next slot, its
    number.

    These are loaded before the last MMAs of this slot are issued, which hide the latency of the loads.
    """
    s = ring.slot(now)
    for k in unroll(tiles(depth - step, step)):
        next_a, next_b = operands(matrix(s.a, A), matrix(s.b, B), k + step, acc)
        acc = mma(a, b, acc)
        a, b = next_a, next_b
    then = ring.take()
    next_a, next_b = first_operands(ring, then, A, B, acc, step)
    ring.free(now)
    return next_a, next_b, then, mma(a, b, acc)


@tile_function
def by_tma(X: Memory[Any]) -> bool:
    """Whether TMA can read X: one stride is 1; the other is positive, and like the address a multiple of 16 bytes."""
    return X.unit >= 0 and X.align >= 16


@tile_function
def begin(arrived: SharedTile[u64]):
    """Initialises an mbarrier for one load at a time."""
    if warp_id() == 0 and lane_id() == 0:
        ptx.mbarrier_init(arrived, 0, count=1)
        ptx.fence_mbarrier_init()
    barrier()


LEADER = 4
"""The first warp of the math role, after the four of the load role; its first lane issues the stores of `store_tma`."""


@tile_function
def load_by_tma(src: Memory[D], dst: SharedTile[D], arrived: SharedTile[u64], parity: u32):
    """Loads a tile that an earlier `store_tma` has read; all threads of the role wait for the load."""
    if warp_id() == LEADER and lane_id() == 0:
        tma_wait(0, read=True)
        ptx.mbarrier_expect_tx(arrived, 0, bytes=dst.shape[0] * dst.shape[1] * dst.dtype.bytes)
        tma_load(src, dst, mbarrier=(arrived, 0))
    ptx.mbarrier_wait(arrived, 0, parity=parity)


@tile_kernel
def mma_fastest(
    A: Global[D, M, K],
    B: Global[F, K, N],
    C: Global[E, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
    bias: Global[f32, N] | None = None,
    *,
    BM: const = 128,
    BN: const = 256,
    BK: const = 32,
    WARPS: Const[tuple[int, int]] = (2, 4),
    STAGES: const = 4,
    GROUP: const = 8,
    TMA: Const[bool] = False,
    EPILOGUE: Const[Epilogue] = add_bias,
):
    assert GROUP > 0, f"a band has GROUP rows of tiles: 1 or more, got {GROUP}"
    product, kind = PRODUCTS[A.dtype]
    narrow = C.dtype.bytes <= A.dtype.bytes  # beside the stages there is no room for more
    if TMA and narrow and by_tma(A) and by_tma(B) and stored_by_tma(C) and C.unit == 1:
        assert STAGES > 1, "a slot is acquired before the previous one is released: STAGES is at least 2"
        work = persistent(tile_schedule(M, N, K, (BM, BN, BK), GROUP))
        ring = Ring(STAGES, a=matrix_staging(A, BM, BK), b=matrix_staging(B, BK, BN))
        Cs, arrived = shared((BM, BN), C.dtype, layout=swizzle_128b), shared((1,), u64)
        begin(arrived)
        step = product.shape.k
        with role("load", registers=32, threads=1):
            for t in work:
                if alpha != 0:
                    for k in t.k:
                        with ring.fill() as s:
                            tma_load(as_stored(A[t.m, k]), s.a)
                            tma_load(as_stored(B[k, t.n]), s.b)
            with ring.fill() as s:  # the slot that is acquired ahead at the very end, and not multiplied
                tma_load(as_stored(A[tile(0, BM), tile(0, BK)]), s.a)
                tma_load(as_stored(B[tile(0, BK), tile(0, BN)]), s.b)
        with role("math", warpgroups=WARPS[0] * WARPS[1] // 4, registers=232):
            layout, now = product.acc(warps=WARPS), ring.take()
            a, b = first_operands(ring, now, A, B, layout, step)
            parity = u32(0)
            for t in work:
                acc = fragment((BM, BN), kind, layout)
                if alpha != 0:
                    for _ in t.k:
                        a, b, now, acc = multiply_slot(ring, now, A, B, a, b, acc, BK, step)
                result = kind(alpha) * acc
                if beta != 0:
                    load_by_tma(C[t.m, t.n], Cs, arrived, parity)
                    result = kind(beta) * of_result(Cs, layout).to(kind) + result
                    parity = parity ^ 1
                result = applied(EPILOGUE, result, bias, t.n.start + coordinates(acc)[1])
                store_tma(result.to(C.dtype), C[t.m, t.n], via=Cs)
    else:
        vec, out = min(widest(A), widest(B)), widest(C) if C.unit == 1 else C.dtype.bytes
        across = (A.unit == 0, B.unit == 1)
        single = C.unit != 1 and widest(C) == C.dtype.bytes
        width, depth, warps = within_registers(BM, BN, BK, WARPS, A.dtype.bytes, across, vec, out, single)
        rows, columns = cdiv(M, BM), cdiv(N, width)
        by, bx = in_bands(grid(cdiv(M, BM) * cdiv(N, width)), rows, columns, GROUP)
        threads(32 * warps[0] * warps[1])
        m, n = tile(by, BM), tile(bx, width)
        At, Bt = staging(A, BM, depth), staging(B, depth, width)
        As, Bs, Cs = slot(At, A, 0), slot(Bt, B, 0), slot(staging(C, BM, width, over=(At, Bt)), C, 0)
        acc = fragment((BM, width), kind, product.acc(warps=warps))
        if alpha != 0:
            for k in pipelined(tiles(K, depth), stages=STAGES):
                fetch(A[m, k], As, widest(A))
                fetch(B[k, n], Bs, widest(B))
                acc = multiply(As, Bs, acc, depth, product.shape.k)
        result = scaled(acc, C[m, n], Cs, widest(C), kind(alpha), kind(beta))
        result = applied(EPILOGUE, result, bias, n.start + coordinates(acc)[1])
        store(result.to(C.dtype), C[m, n], via=Cs, vec=widest(C))


def choose(
    m: int, n: int, k: int, format: str = "bf16", arch: str = "", along_k: bool = False, processors: int = 132
) -> dict[str, Any]:
    """The consts for a product of m x n x k in `format`: the fastest that fit in `arch`'s shared memory; by TMA
    those with which the busiest of `processors` SMs ends first.

    arch: by default that of the GPU, or of an H200 without one. along_k: both operands are contiguous along k.
    """
    gpu = available()
    target = target_named(arch or (gpu.target_of(gpu.current_device()) if gpu else "sm_90a"))
    if target.name == "sm_90a" and format in ("bf16", "f16"):

        def clocks(choice: tuple[float, dict[str, Any]]) -> float:
            speed, consts = choice
            width: int = consts["BN"]
            return cdiv(cdiv(m, 128) * cdiv(n, width), processors) * width / speed

        return min(HALVES, key=clocks)[1]
    choices = ALONG_K.get(format, CHOICES[format]) if along_k else CHOICES[format]
    return next(consts for kilobytes, consts in choices if kilobytes << 10 <= target.shared_per_block)
