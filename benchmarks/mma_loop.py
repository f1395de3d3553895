"""mma.sync on registers and nothing else: the ceiling of the instruction, at the machine's present clock and power."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from benchmarks.device import Device
from tiledsl import (
    Global,
    Number,
    Scalar,
    const,
    f32,
    fragment,
    grid,
    i32,
    load_fragment,
    mma,
    store,
    tf32,
    threads,
    tile_kernel,
)
from tiledsl.dims import K, M, N
from tiledsl.gemm.mma_tiles import PRODUCTS, pair
from tiledsl.measure import PRODUCTS as FORMATS

__all__ = ["REGISTERS_ONLY", "mma_loop", "register_loop"]

REGISTERS_ONLY = "registers only"

D = TypeVar("D", bound=Scalar)
E = TypeVar("E", bound=Number)

WARPS = 8
"""Warps of a block, one block an SM: two for each of its four tensor cores."""


@tile_kernel
def mma_loop(A: Global[D, M, K], B: Global[D, K, N], C: Global[E, M, N], blocks: i32, steps: i32, *, TILE: const = 64):
    """`steps` products of TILE x TILE a warp, whose instructions do not depend on each other within a step.

    C gets the sums of the first block, so that they are not removed as dead code. Stores of all blocks to one tile
    would serialise in L2: tens of microseconds, which would distort the time of small products."""
    block = grid(blocks)
    threads(32 * WARPS)
    product, kind = PRODUCTS[A.dtype]
    depth = product.shape.k
    acc = fragment((TILE, TILE * WARPS), kind, product.acc(warps=(1, WARPS)))
    word = max(4, A.dtype.bytes)
    a = load_fragment(A[0:TILE, 0:depth], acc.a, vec=word)
    b = load_fragment(B[0:depth, 0 : TILE * WARPS], acc.b, vec=word)
    if A.dtype is f32:
        a, b = a.bitcast(tf32), b.bitcast(tf32)
    for _ in range(steps):
        acc = mma(a, b, acc)
    if block == 0:
        store(acc.to(C.dtype), C[0:TILE, 0 : TILE * WARPS], vec=pair(C))


def register_loop(device: Device, products: int, processors: int = 132) -> Callable[[int], None]:
    """A launcher of about `products` multiply-adds, spread over all SMs. A lane's operands are contiguous along k, and
    so they are in memory."""
    import tiledsl

    operand = FORMATS[device.format].operand
    tile, depth = 32 if operand == "f64" else 64, PRODUCTS[getattr(tiledsl, operand)][0].shape.k
    steps = max(1, round(products / (processors * WARPS * tile * tile * depth)))
    a, b = device.normal(tile, depth, 1), device.transposed(device.normal(tile * WARPS, depth, 2))
    c = device.empty(tile, tile * WARPS)

    def launch(number: int) -> None:
        mma_loop(a, b, c, processors, steps, TILE=tile)

    return launch
