"""The Hopper kernel for weights of 4 bits: they come packed, and go through registers to wgmma.

The product is computed as a transposed one, C^T = W^T X^T, since the left operand of wgmma may be in registers: its
rows are columns of the weights, 64 for each warpgroup, and its columns the rows of X, of which there may be few. A
weight is q - z, times a scale: q and the zero point z from 0 to 15, z and the scale of each column and each GROUP of k.

A word holds what a thread has of one product of 16 of k: 8 weights, four in the low halves of bytes' pairs and four in
the high ones, so that a shift and one logical operation put two of them into the last bits of 128.0 (bf16) or 1024.0
(f16), from which a subtraction of two at once takes 128 + z, exactly. Then there are two ways:

- The tensor cores add up (q - z) x over a group, from zero, and threads add these sums, each times its scale, in f32:
  weights are not rounded. It takes fewer instructions where X has few rows, which is where they decide.
- ROUNDED: each weight is multiplied by its scale, and rounded to the dtype of X. The tensor cores add up all of k, and
  no registers are needed for sums of groups: so tiles are larger.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, TypeVar

import ml_dtypes
import numpy as np

from tiledsl import (
    Cluster,
    Const,
    Float,
    Fragment,
    Global,
    Memory,
    Ring,
    Scalar,
    Schedule,
    WorkItem,
    barrier,
    bf16,
    const,
    f16,
    f32,
    fragment,
    index,
    lane_id,
    persistent,
    ptx,
    role,
    row_major,
    shared,
    tile,
    tile_function,
    tile_kernel,
    tma_load,
    u8,
    u16,
    u32,
    unroll,
    warp_id,
    wgmma,
)
from tiledsl.dims import J, K, L, M, N, P, Q, R
from tiledsl.gemm.epilogue import Epilogue, add_bias
from tiledsl.gemm.hopper_stores import rooms, store_columns
from tiledsl.gemm.hopper_tiles import as_stored, matrix, staging
from tiledsl.gemm.promoted import first_row
from tiledsl.gemm.split_k import meeting, part_count, part_item, reduce_parts, slice_width

__all__ = ["DEEP", "HALF", "ROWS", "hopper_int4"]

D = TypeVar("D", bound=Float)
F = TypeVar("F", bound=Float)
E = TypeVar("E", bound=Scalar)


ROWS, DEEP = 64, 64
"""Columns of the weights and elements of k that are packed together: a warp has 16 of the columns, and a lane four
words of them."""
BOX = 128
"""Bytes: where TMA writes begins at a multiple of so many."""
HALF = 256
"""Words of two warps: a box of TMA has no longer rows."""


def _weights(x: Any, y: Any, scale: Any = None, *, dtype: Any) -> tuple[Any, Any]:
    """What `sub` of two numbers computes, and `mul` of that and `scale`, of arrays of words."""
    halves: list[Any] = []
    for at in (0, 16):
        a, b, *c = (
            ((word >> at) & 0xFFFF).astype(np.uint16).view(dtype).astype(np.float32)
            for word in ((x, y) if scale is None else (x, y, scale))
        )
        halves.append(((a - b) * c[0] if c else a - b).astype(dtype).view(np.uint16))
    return halves[0], halves[1]


PAIR = {bf16: "bf16x2", f16: "f16x2"}
EMULATED = {bf16: partial(_weights, dtype=ml_dtypes.bfloat16), f16: partial(_weights, dtype=np.float16)}
ONES = 0x00010001
BASE = {bf16: 0x4300 * ONES, f16: 0x6400 * ONES}
"""Twice 128.0 or 1024.0, whose last bits stand for 1."""
MIDDLE = 8
"""The zero point where none is given."""


@tile_function
def unpacked(word: u32, mask: u32, offsets: list[u32], factors: list[u32], dtype: Any) -> Fragment[Any]:
    """The 8 weights of a word, in the order of the left operand's registers. mask: 15 * ONES. offsets: what is taken
    from those of this thread's first row, and of its second, twice; factors: what they are multiplied by then, or none.
    (PTX ISA: wgmma.mma_async, register fragments; sub.bf16x2, mul.bf16x2.)"""
    found, kind = fragment((8,), dtype), PAIR[dtype]
    scaled: str = f"mul.{kind} t, t, $4; " if factors else ""
    for i in unroll(4):
        two = (word >> (4 * i)) & mask | BASE[dtype]
        low, high = ptx.inline(
            f"{{ .reg .b32 t; sub.{kind} t, $2, $3; {scaled}mov.b32 {{$0, $1}}, t; }}",
            (u16, u16), two, offsets[i % 2], *factors[i % 2 : i % 2 + 1],
            memory="nothing", uniform="operands", emulate=EMULATED[dtype],
        )  # fmt: skip
        found[2 * i], found[2 * i + 1] = low.bitcast(dtype), high.bitcast(dtype)
    return found


@tile_function
def zero_point(s: Any, zeros: Any, group: int, row: index, dtype: Any) -> u32:
    """What is taken from the weights of a row in a group, twice."""
    if zeros is None:
        return u32(BASE[dtype] + MIDDLE * ONES)
    return u32(s.zero[group, row]) * ONES + BASE[dtype]


@tile_function
def multiply(
    ring: Any, t: WorkItem, B: Memory[Any], shape: tuple[int, int], zeros: Any, mask: u32, rounded: bool
) -> Fragment[f32]:
    """The product of the tiles of item t."""
    zero = wgmma.accumulator(shape, f32).wait()
    total: Any = wgmma.accumulator(shape, f32) if rounded else zero
    first, lane = first_row(zero), lane_id()
    warp, row = first // 16, first + lane // 4
    for _ in t.k:
        with ring.use() as s:
            dtype, x = s.b.dtype, matrix(s.b, B)
            words = [
                s.w.load(warp // 4, 2 * i + warp % 4 // 2, warp % 2 * (HALF // 2) + lane * 4, vec=16)
                for i in range(s.w.shape[1] // 2)
            ]
            groups: int = s.scale.shape[0]
            each, at_once = 4 * len(words) // groups, groups if rounded or shape[0] <= 128 else 1
            for first in unroll(0, groups, at_once):
                products: list[Any] = []
                for g in unroll(first, first + at_once):
                    scales = [s.scale[g, row + 8 * i] for i in range(2)]
                    offsets = [zero_point(s, zeros, g, row + 8 * i, dtype) for i in range(2)]
                    factors: list[u32] = [u32(one.to(dtype).bitcast(u16)) * ONES for one in scales] if rounded else []
                    weights = fragment((8 * each,), dtype)
                    for i in unroll(each):
                        at: int = g * each + i
                        eight = unpacked(words[at // 4][at % 4], mask, offsets, factors, dtype)
                        for j in unroll(8):
                            weights[8 * i + j] = eight[j]
                    product: Any = total if rounded else wgmma.accumulator(shape, f32)
                    left = fragment((shape[0], 16 * each), dtype, product.a, init=weights)
                    product = wgmma(left, x[16 * each * g : 16 * each * (g + 1), :], product)
                    if rounded:
                        total = product
                    else:
                        products.append(product)
                for i in unroll(len(products)):
                    scales = [f32(s.scale[first + i, row + 8 * j]) for j in range(2)]
                    spread = fragment(total.registers().shape, f32)
                    for j in unroll(spread.shape[0]):
                        spread[j] = scales[j % 4 // 2]
                    total = products[i].wait() * fragment(shape, f32, total.layout, init=spread) + total
    return total.wait() if rounded else total


@tile_kernel(arch="sm_90a")
def hopper_int4(
    W: Global[u32, R, J, Literal[256]],
    B: Global[F, L, K, N],
    C: Global[E, L, M, N],
    scales: Global[D, P, Q],
    zeros: Global[u8, P, Q] | None = None,
    alpha: f32 | float = 1.0,
    bias: Global[f32, M] | None = None,
    *,
    BM: const = 128,
    BN: const = 16,
    BK: const = 128,
    GROUP: const = 128,
    BAND: const = 16,
    STAGES: const = 12,
    INSTANCES: const = 1,
    SPLIT: const = 0,
    ROUNDED: Const[bool] = False,
    EARLY: Const[bool] = False,
    EPILOGUE: Const[Epilogue] = add_bias,
):
    """C = epilogue(alpha W^T B), with a bias for each row of C. W: words of `pack_int4`. scales, zeros: for each GROUP
    of k and each column of the weights."""
    assert BK % DEEP == 0 and BK % min(BK, GROUP) == 0, f"BK={BK} is no multiple of {DEEP} and of GROUP={GROUP}"
    assert ROUNDED or BK % GROUP == 0, f"BK={BK} is no multiple of GROUP={GROUP}, whose sums begin from zero"
    groups, deep = max(1, BK // GROUP), max(BK, GROUP)
    workers: int = BM // ROWS * INSTANCES
    items = Schedule(part_count, part_item, M, N, K, (BM, BN, BK), BAND, L, SPLIT, None)
    work = persistent(items, Cluster(1, max(1, SPLIT)))
    met: Any = meeting(SPLIT, BM, BN, 2 * BM) if SPLIT else None
    ending: Any = (alpha, 0.0, bias, None, True, False, EPILOGUE)
    stored: int = slice_width(SPLIT, BN) if SPLIT else BN
    room: Any = rooms(C, (1 if SPLIT else 2) * INSTANCES, INSTANCES, BM, stored, BN // 2)
    words = shared((BM // ROWS, BK // DEEP * 2, HALF), u32, layout=row_major)
    factors: Any = shared((groups, BM), scales.dtype, layout=row_major)
    points: Any = None if zeros is None else shared((groups, max(BOX, BM)), u8, layout=row_major)
    ring: Any = (
        Ring(STAGES, w=words, b=staging(B, BK, BN), scale=factors)
        if zeros is None
        else Ring(STAGES, w=words, b=staging(B, BK, BN), scale=factors, zero=points)
    )
    # Of a constant, ptxas would make a move for each of its uses.
    masks = shared((1,), u32)
    if warp_id() == 0 and lane_id() == 0:
        masks[0] = 15 * ONES
    barrier()
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
    loading, multiplying = (32, 112) if workers > 2 else (24, 240) if BN > 128 else (40, 232)
    with role("load", registers=loading, threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    lines = tile(k.start // BK, BK // DEEP * 2)
                    for i in unroll(BM // ROWS):
                        tma_load(W[t.m.start // ROWS + i, lines, tile(0, HALF)], s.w[i, :, :])
                    tma_load(as_stored(B[t.batch, k, t.n]), s.b)
                    of = tile(k.start // deep, groups)
                    tma_load(scales[of, t.m], s.scale)
                    if zeros is not None:
                        tma_load(zeros[of, tile(0, max(BOX, BM)) + t.m.start], s.zero)
    with role("math", warpgroups=BM // ROWS, registers=multiplying, instances=INSTANCES) as r:
        turn = u32(r.index)
        for t in work:
            with r.turn("multiply"):
                acc = multiply(ring, t, B, (BM, BN), zeros, masks[0], ROUNDED)
            with r.turn("store"):
                x, first, mine = acc, index(0), True
                if SPLIT:
                    x, mine = reduce_parts(x, t, SPLIT, met, turn)
                    turn = turn + u32(INSTANCES)
                    first = t.part * x.shape[1]
                if mine:
                    store_columns(x, first, C, t, room, r.index, INSTANCES, ending)
