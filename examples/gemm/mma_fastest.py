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
    rows, columns = cdiv(M, BM), cdiv(N, BN)
    by, bx = in_bands(grid(cdiv(M, BM) * cdiv(N, BN)), rows, columns, GROUP)
    threads(32 * WARPS[0] * WARPS[1])
    m, n = tile(by, BM), tile(bx, BN)
    At, Bt = staging(A, BM, BK), staging(B, BK, BN)
    As, Bs, Cs = slot(At, A, 0), slot(Bt, B, 0), slot(staging(C, BM, BN, over=(At, Bt)), C, 0)
    acc = fragment((BM, BN), kind, product.acc(warps=WARPS))
    if alpha != 0:
        for k in pipelined(tiles(K, BK), stages=STAGES):
            fetch(A[m, k], As, widest(A))
            fetch(B[k, n], Bs, widest(B))
            for kk in unroll(tiles(BK, product.shape.k)):
                a, b = operand(As[:, kk], acc.a), operand(Bs[kk, :], acc.b)
                if A.dtype is f32:
                    a, b = a.bitcast(tf32), b.bitcast(tf32)
                acc = mma(a, b, acc)
    out = scaled(acc, C[m, n], Cs, widest(C), kind(alpha), kind(beta))
    out = EPILOGUE(out, bias, n.start + coordinates(acc)[1])
    store(out.to(C.dtype), C[m, n], via=Cs, vec=widest(C))


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
