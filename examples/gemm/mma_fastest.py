"""The fastest with mma.sync: any dtype of the tensor cores, any orientation of A, B and C, an epilogue function.

Eight warps of 64 x 64 share a tile of 128 x 256: for 16 k a warp's 32 instructions need 4 KB from shared memory, and
with larger block tiles a smaller part of the traffic is copying. Blocks are numbered in bands of GROUP rows of tiles,
so that those that run at the same time share operands in the L2 cache.

The operands' dtype decides the instruction (`PRODUCTS`). f32 operands are multiplied as tf32: the tensor cores ignore
their low 13 bits. Results accumulate in f32, integers in i32, f64 in f64.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from matrix_tiles import PRODUCTS, fetch, scaled, slot, staging, widest

from tiledsl import (
    Const,
    Fragment,
    Global,
    Memory,
    Number,
    Scalar,
    cdiv,
    const,
    coordinates,
    f32,
    fragment,
    grid,
    index,
    load_fragment,
    load_matrix,
    minimum,
    mma,
    pipelined,
    store,
    tf32,
    threads,
    tile,
    tile_function,
    tile_kernel,
    tiles,
    unroll,
)
from tiledsl.backends.ptx.targets import target_named
from tiledsl.dims import K, M, N
from tiledsl.runtime.driver import available

__all__ = ["add_bias", "choose", "mma_fastest", "plain"]

D = TypeVar("D", bound=Scalar)
E = TypeVar("E", bound=Number)

Choices = tuple[tuple[int, dict[str, Any]], ...]
"""Consts, the fastest first, each with the kilobytes of shared memory that a block then takes."""

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
"""By what is multiplied: measured on an H200 at 4096 and 8192 cubed, as far as there are registers for it: fp8 is
multiplied as f16 on sm_90, and what lies across k goes byte by byte."""

DEEP: Choices = ((96, {"BN": 128, "WARPS": (2, 2), "BK": 128, "STAGES": 3}),)
ALONG_K: dict[str, Choices] = {"i8": DEEP, "u8": DEEP, "tf32": SMALL_TF32}
"""The same where both operands lie along k."""

Epilogue = Callable[[Fragment[Any], Any, Fragment[index]], Fragment[Any]]


@tile_function
def plain(x: Fragment[Any], bias: Memory[Any] | None, column: Fragment[index]) -> Fragment[Any]:
    """The result as it is."""
    return x


@tile_function
def add_bias(x: Fragment[Any], bias: Memory[Any] | None, column: Fragment[index]) -> Fragment[Any]:
    """The result plus one number for each column."""
    return x + bias.get(column) if bias is not None else x


@tile_function
def operand(S: Memory[Any], layout: Any) -> Fragment[Any]:
    """A matrix operand: by ldmatrix, which transposes 16-bit elements only; by elements where that cannot."""
    along_k = S.unit == layout.inner
    if S.dtype.bytes == 2 or (along_k and S.dtype.bytes < 8):
        return load_matrix(S, layout)
    return load_fragment(S, layout)


@tile_function
def in_bands(i: index, rows: index, columns: index, height: int) -> tuple[index, index]:
    """Row and column of tile number i, where tiles are numbered down the columns of bands of `height` rows."""
    band, within = i // (height * columns), i % (height * columns)
    here = minimum(rows - band * height, height)
    return band * height + within % here, within // here


def within_registers(
    BM: int, BN: int, BK: int, warps: tuple[int, int], size: int, across: tuple[bool, bool], vec: int, out: int
) -> tuple[int, int, tuple[int, int]]:
    """Columns and depth of a block's tile, and its warps: as asked, or less where the registers would not suffice.

    size: bytes of an element of A and B. across: whether A, B lie across k. vec: bytes of their narrowest copy; out:
    bytes of a copy of C's rows. Found by compiling: a thread of a warp of 64 x 64 keeps 128 sums, and beside them an
    address for each of its copies of a step. With copies of 8 bytes a step has half the k; with narrower ones, or with
    those of 4-byte elements, a thread has room for 64 sums only, also where single bytes are gathered for both
    operands, and for most narrow C. Then more warps share the tile or, where there are eight, it has half the columns.
    """
    depth = BK if vec >= 16 else min(BK, 32 if size <= 2 else 16)
    gathers = size == 1 and all(across)
    crowded = out < 8 and (across[0] or vec < 16) if size == 2 else out < 16
    count = warps[0] * warps[1]
    sums = BM * BN // (32 * count)
    if sums < 128 or not (vec < (8 if size <= 2 else 16) or gathers or crowded):
        return BN, depth, warps
    return (BN, depth, (warps[0], 2 * warps[1])) if count <= 4 else (BN // 2, depth, warps)


@tile_kernel
def mma_fastest(
    A: Global[D, M, K],
    B: Global[D, K, N],
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
    EPILOGUE: Const[Epilogue] = plain,
):
    product, kind = PRODUCTS[A.dtype]
    vec, out = min(widest(A), widest(B)), widest(C) if C.unit == 1 else C.dtype.bytes
    across = (A.unit == 0, B.unit == 1)
    width, depth, warps = within_registers(BM, BN, BK, WARPS, A.dtype.bytes, across, vec, out)
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
            for kk in unroll(tiles(depth, product.shape.k)):
                a, b = operand(As[:, kk], acc.a), operand(Bs[kk, :], acc.b)
                if A.dtype is f32:
                    a, b = a.bitcast(tf32), b.bitcast(tf32)
                acc = mma(a, b, acc)
    result = scaled(acc, C[m, n], Cs, widest(C), kind(alpha), kind(beta))
    result = EPILOGUE(result, bias, n.start + coordinates(acc)[1])
    store(result.to(C.dtype), C[m, n], via=Cs, vec=widest(C))


def choose(m: int, n: int, k: int, format: str = "bf16", arch: str = "", along_k: bool = False) -> dict[str, Any]:
    """The consts for a product of m x n x k in `format`: the fastest ones that fit in `arch`'s shared memory.

    arch: by default the GPU that is there, or else an H200. along_k: both operands lie along k.
    """
    gpu = available()
    target = target_named(arch or (gpu.target_of(gpu.current_device()) if gpu else "sm_90a"))
    choices = ALONG_K.get(format, CHOICES[format]) if along_k else CHOICES[format]
    return next(consts for kilobytes, consts in choices if kilobytes << 10 <= target.shared_per_block)


if __name__ == "__main__":
    from gallery import main

    main(mma_fastest)
