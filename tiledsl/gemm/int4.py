"""The Hopper kernel for weights of 4 bits: they come packed, and go through registers to wgmma.

The product is computed as a transposed one, C^T = W^T X^T, since the left operand of wgmma may be in registers: its
rows are columns of the weights, 64 for each warpgroup, and its columns the rows of X, of which there may be few. A
weight is q - z, times a scale: q and the zero point z from 0 to 15, z and the scale of each column and each GROUP of k.

A word holds what a thread has of one product of 16 of k: 8 weights, four in the low halves of bytes' pairs and four in
the high ones, so that a shift and one logical operation put two of them into the last bits of 128.0 (bf16) or 1024.0
(f16), from which a subtraction of two at once takes 128 + z, exactly. The tensor cores add up (q - z) x over a group,
from zero, and threads add these sums, each times its scale, in f32: so weights are not rounded.
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
from tiledsl.gemm.epilogue import Epilogue, plain
from tiledsl.gemm.hopper import store_columns
from tiledsl.gemm.hopper_tiles import as_stored, chunks, matrix, staging
from tiledsl.gemm.promoted import first_row
from tiledsl.gemm.split_k import meeting, part_count, part_item, reduce_parts, slice_width

__all__ = ["DEEP", "HALF", "ROWS", "hopper_int4"]

F = TypeVar("F", bound=Float)
E = TypeVar("E", bound=Scalar)


ROWS, DEEP = 64, 64
"""Columns of the weights and elements of k that are packed together: a warp has 16 of the columns, and a lane four
words of them."""
BOX = 128
"""Bytes: where TMA writes begins at a multiple of so many."""
HALF = 256
"""Words of two warps: a box of TMA has no longer rows."""


def _difference(x: Any, y: Any, dtype: Any) -> tuple[Any, Any]:
    """What `sub` of two numbers computes, of arrays of words."""
    halves: list[Any] = []
    for at in (0, 16):
        a, b = (((word >> at) & 0xFFFF).astype(np.uint16).view(dtype).astype(np.float32) for word in (x, y))
        halves.append((a - b).astype(dtype).view(np.uint16))
    return halves[0], halves[1]


SUBTRACT = {bf16: "sub.bf16x2", f16: "sub.f16x2"}
EMULATED = {bf16: partial(_difference, dtype=ml_dtypes.bfloat16), f16: partial(_difference, dtype=np.float16)}
ONES = 0x00010001
BASE = {bf16: 0x4300 * ONES, f16: 0x6400 * ONES}
"""Twice 128.0 or 1024.0, whose last bits stand for 1."""
HELD = 64
"""Registers of sums of groups that wait together: while the tensor cores multiply, the next group is unpacked."""
MIDDLE = 8
"""The zero point where none is given."""


@tile_function
def unpacked(word: u32, mask: u32, offsets: list[u32], dtype: Any) -> Fragment[Any]:
    """The 8 weights of a word, in the order of the left operand's registers. mask: 15 * ONES. offsets: what is taken
    from those of this thread's first row, and of its second, twice. (PTX ISA: wgmma.mma_async, register fragments;
    sub.bf16x2.)"""
    found = fragment((8,), dtype)
    for i in unroll(4):
        two = (word >> (4 * i)) & mask | BASE[dtype]
        low, high = ptx.inline(
            f"{{ .reg .b32 t; {SUBTRACT[dtype]} t, $2, $3; mov.b32 {{$0, $1}}, t; }}",
            (u16, u16), two, offsets[i % 2], memory="nothing", uniform="operands", emulate=EMULATED[dtype],
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
    ring: Any, t: WorkItem, B: Memory[Any], shape: tuple[int, int], group: int, zeros: Any, mask: u32
) -> Fragment[f32]:
    """The product of the tiles of item t: sums of each group of k, times their scales, added in f32."""
    total = wgmma.accumulator(shape, f32).wait()
    first, lane = first_row(total), lane_id()
    warp, row = first // 16, first + lane // 4
    for _ in t.k:
        with ring.use() as s:
            dtype, x = s.b.dtype, matrix(s.b, B)
            words = [
                s.w.load(warp // 4, 2 * i + warp % 4 // 2, warp % 2 * (HALF // 2) + lane * 4, vec=16)
                for i in range(s.w.shape[1] // 2)
            ]
            groups: int = s.scale.shape[0]
            at_once = max(1, min(groups, HELD // (shape[1] // 2)))
            for first in unroll(0, groups, at_once):
                products: list[Any] = []
                for g in unroll(first, min(first + at_once, groups)):
                    offsets = [zero_point(s, zeros, g, row + 8 * i, dtype) for i in range(2)]
                    product: Any = wgmma.accumulator(shape, f32)
                    for i in unroll(g * group // 16, (g + 1) * group // 16):
                        a = unpacked(words[i // 4][i % 4], mask, offsets, dtype)
                        left = fragment((shape[0], 16), dtype, product.a, init=a)
                        product = wgmma(left, x[16 * i : 16 * i + 16, :], product)
                    products.append(product)
                for i in unroll(len(products)):
                    scales = [f32(s.scale[first + i, row + 8 * j]) for j in range(2)]
                    factors = fragment(total.registers().shape, f32)
                    for j in unroll(factors.shape[0]):
                        factors[j] = scales[j % 4 // 2]
                    total = products[i].wait() * fragment(shape, f32, total.layout, init=factors) + total
    return total


@tile_kernel(arch="sm_90a")
def hopper_int4(
    W: Global[u32, R, J, Literal[256]],
    B: Global[F, L, K, N],
    C: Global[E, L, M, N],
    scales: Global[F, P, Q],
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
    EARLY: Const[bool] = False,
    EPILOGUE: Const[Epilogue] = plain,
):
    """C = epilogue(alpha W^T B), with a bias for each row of C. W: words of `pack_int4`. scales, zeros: for each GROUP
    of k and each column of the weights."""
    assert BK % GROUP == 0 and BK % DEEP == 0, f"BK={BK} is no multiple of {DEEP} and of GROUP={GROUP}"
    assert BM * INSTANCES == 128, f"BM={BM} is no tile of {INSTANCES} instances: make it {128 // INSTANCES}"
    items = Schedule(part_count, part_item, M, N, K, (BM, BN, BK), BAND, L, SPLIT, None)
    work = persistent(items, Cluster(1, max(1, SPLIT)))
    met: Any = meeting(SPLIT, BM, BN, INSTANCES) if SPLIT else None
    ending: Any = (alpha, 0.0, bias, None, True, False, EPILOGUE)
    stored: int = slice_width(SPLIT, BN) if SPLIT else BN
    room: Any = chunks(C, (1 if SPLIT else 2) * INSTANCES, BM, stored, BM * BN * INSTANCES // 256)
    words = shared((BM // ROWS, BK // DEEP * 2, HALF), u32, layout=row_major)
    factors: Any = shared((BK // GROUP, BM), scales.dtype, layout=row_major)
    points: Any = None if zeros is None else shared((BK // GROUP, BOX), u8, layout=row_major)
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
    loading, multiplying = (24, 240) if BN > 128 else (40, 232)
    with role("load", registers=loading, threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    lines = tile(k.start // BK, BK // DEEP * 2)
                    for i in unroll(BM // ROWS):
                        tma_load(W[t.m.start // ROWS + i, lines, tile(0, HALF)], s.w[i, :, :])
                    tma_load(as_stored(B[t.batch, k, t.n]), s.b)
                    groups = tile(k.start // BK, BK // GROUP)
                    tma_load(scales[groups, t.m], s.scale)
                    if zeros is not None:
                        tma_load(zeros[groups, tile(0, BOX) + t.m.start], s.zero)
    with role("math", warpgroups=2 // INSTANCES, registers=multiplying, instances=INSTANCES) as r:
        turn = u32(r.index)
        for t in work:
            with r.turn("multiply"):
                acc = multiply(ring, t, B, (BM, BN), GROUP, zeros, masks[0])
            with r.turn("store"):
                x, first, mine = acc, index(0), True
                if SPLIT:
                    x, mine = reduce_parts(x, t, SPLIT, met, turn)
                    turn = turn + u32(INSTANCES)
                    first = t.part * x.shape[1]
                if mine:
                    store_columns(x, first, C, t, room, r.index, INSTANCES, ending)
