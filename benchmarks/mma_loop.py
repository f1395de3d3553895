"""mma.sync out of registers and nothing else: the ceiling of the instruction, on the machine as it is just now."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TypeVar

from benchmarks.device import Device
from benchmarks.gallery import gallery_module, reference
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

__all__ = ["REGISTERS_ONLY", "mma_loop", "register_loop"]

REGISTERS_ONLY = "registers only"

D = TypeVar("D", bound=Scalar)
E = TypeVar("E", bound=Number)

gallery_module()
PRODUCTS = importlib.import_module("matrix_tiles").PRODUCTS
WARPS = 8
"""Of a block, one block an SM: two for each of its four tensor cores."""


@tile_kernel
def mma_loop(A: Global[D, M, K], B: Global[D, K, N], C: Global[E, M, N], blocks: i32, steps: i32, *, TILE: const = 64):
    """`steps` products of TILE x TILE a warp, whose instructions do not depend on each other within a step. C gets
    the sums of one block, so that they are not in vain."""
    grid(blocks)
    threads(32 * WARPS)
    product, kind = PRODUCTS[A.dtype]
    depth = product.shape.k
    acc = fragment((TILE, TILE * WARPS), kind, product.acc(warps=(1, WARPS)))
    a, b = load_fragment(A[0:TILE, 0:depth], acc.a), load_fragment(B[0:depth, 0 : TILE * WARPS], acc.b)
    if A.dtype is f32:
        a, b = a.bitcast(tf32), b.bitcast(tf32)
    for _ in range(steps):
        acc = mma(a, b, acc)
    store(acc.to(C.dtype), C[0:TILE, 0 : TILE * WARPS])


def register_loop(device: Device, products: int, processors: int = 132) -> Callable[[int], None]:
    """A launcher of about as many multiply-adds as `products`, spread over all SMs."""
    import tiledsl

    operand = reference().FORMATS[device.format].operand
    tile, depth = 32 if operand == "f64" else 64, PRODUCTS[getattr(tiledsl, operand)][0].shape.k
    steps = max(1, round(products / (processors * WARPS * tile * tile * depth)))
    a, b = device.normal(tile, depth, 1), device.normal(depth, tile * WARPS, 2)
    c = device.empty(tile, tile * WARPS)

    def launch(number: int) -> None:
        mma_loop(a, b, c, processors, steps, TILE=tile)

    return launch
