"""Kernels that issue asynchronous copies of given lanes: one copy that is counted, and a loop that is timed.

They are written in raw PTX, since the language has no copies of 16 bytes through L1 (.ca), and since source and
destination of every lane are set individually.
"""

from __future__ import annotations

from typing import Literal

from tiledsl import (
    Const,
    Global,
    barrier,
    const,
    f16,
    fragment,
    grid,
    i32,
    index,
    ptx,
    shared,
    threads,
    tile_kernel,
    u32,
    u64,
    unroll,
)

__all__ = ["SHARED", "WARPS", "copy_loop", "one_copy"]

SHARED = 1 << 15
"""Bytes of the tile."""

WARPS = 8
"""Warps of a block of the loop."""

Lanes = Literal[32]
Blocks = Literal[8]


@tile_kernel
def one_copy(
    TO: Global[i32, Lanes],
    FROM: Global[i32, Lanes],
    data: u64,
    *,
    width: const,
    through_l1: Const[bool],
    zeros: Const[bool],
    warm: Const[bool],
):
    """One copy of a warp to bytes TO of shared memory from bytes FROM of `data`; a lane whose TO is negative is
    inactive. zeros: the copy writes zeros. warm: the bytes, which must be 0, are in L1 before."""
    grid(1)
    t = threads(32)
    S = shared(SHARED // 2, f16)
    to, source = TO[t], data + FROM[t].to(u64)
    if warm:
        text = "{ .reg .b32 x; ld.global.ca.b32 x, [$1]; cvt.u64.u32 $0, x; }"
        source += ptx.inline(text, u64, source, volatile=True)
    if to >= 0:
        base = ptx.inline("mov.b32 $0, $$shared;", u32) + to.to(u32)
        if zeros:
            nothing = "{ .reg .b32 n; mov.b32 n, 0; cp.async.cg.shared.global [$0], [$1], 16, n; }"
            ptx.inline(nothing, None, base, source)
        elif width == 4:
            ptx.inline("cp.async.ca.shared.global [$0], [$1], 4;", None, base, source)
        elif width == 8:
            ptx.inline("cp.async.ca.shared.global [$0], [$1], 8;", None, base, source)
        elif through_l1:
            ptx.inline("cp.async.ca.shared.global [$0], [$1], 16;", None, base, source)
        else:
            ptx.inline("cp.async.cg.shared.global [$0], [$1], 16;", None, base, source)
    ptx.commit_group()
    ptx.wait_group(0)
    if to < -1:  # never: keeps the tile
        S[index(t)] = f16(0)


@tile_kernel
def copy_loop(
    TO: Global[i32, Lanes],
    FROM: Global[i32, Lanes],
    ROWS: Global[i32, Lanes],
    CYCLES: Global[i32, Blocks],
    data: u64,
    steps: i32,
    advance: i32,
    rows: i32,
    *,
    copies: const,
    matrices: const,
    through_l1: Const[bool],
):
    """`steps` times, each warp of 8 blocks issues `copies` copies of 16 bytes a lane and reads `matrices` times four
    matrices, whose rows start at ROWS times 16 bytes. Sources advance by `advance` bytes a step within 8 KB; the rows
    of a warp are `rows` bytes, and those of a block 512 KB, after those of the previous one. CYCLES: of each block."""
    block, _ = grid(8, 1)
    t = threads(32 * WARPS)
    S = shared(SHARED // 2, f16)
    lane, warp = t % 32, t // 32
    to = ptx.inline("mov.b32 $0, $$shared;", u32) + (TO[lane] + i32(warp) * 2048).to(u32)
    first = FROM[lane]
    base = data + (i32(block) * 524288 + i32(warp) * rows).to(u64)
    row = index(ROWS[lane]) * 8
    got = fragment((4,), u32, init=0)
    barrier()
    start = ptx.inline("mov.u32 $0, %clock;", u32, volatile=True)
    for step in range(steps):
        source = base + (first + (step * advance & 8191)).to(u64)
        for _ in unroll(copies):
            if through_l1:
                ptx.inline("cp.async.ca.shared.global [$0], [$1], 16;", None, to, source)
            else:
                ptx.inline("cp.async.cg.shared.global [$0], [$1], 16;", None, to, source)
        ptx.commit_group()
        for i in unroll(matrices):
            words = ptx.ldmatrix(S, row + i * 512)
            for j in unroll(4):
                got[j] = got[j] ^ words[j]
        ptx.wait_group(6)
    ptx.wait_group(0)
    barrier()
    end = ptx.inline("mov.u32 $0, %clock;", u32, volatile=True)
    if t == 0:
        CYCLES[block] = (end - start).to(i32)
    if got[0] ^ got[1] ^ got[2] ^ got[3] == 1:
        CYCLES[block] = 0
    if first < 0:  # never: keeps the tile
        S[index(t)] = f16(0)
