"""Weights of 4 bits: unpacked in registers, which are the left operand of wgmma.

A layer that multiplies few rows takes as long as its weights take to come from memory, so weights of 4 bits instead of
16 make it up to four times as fast. Tensor cores do not multiply 4 bits by 16. But wgmma reads its left operand from
registers, too, and there weights can be unpacked on their way. So the product is computed as C^T = W^T X^T.

A lane needs 8 weights for a product of 16 of k, in four registers of two bf16: 32 bits as they are packed. The number
128 + q, q from 0 to 15, is the bf16 0x4300 with q in its last four bits. So a shift and (w & 0x000f000f) | 0x43004300
make two weights, and a subtraction of two at once takes 136 away: q - 8, exactly. Packing puts the eight weights of a
lane into one word, in the order in which these operations find them, and the words of a warp next to each other.

Each column of the weights has a scale for each 128 of k. The tensor cores add up (q - 8) x over 128 of k, and threads
add these sums times their scales: nothing is rounded that a product of bf16 would not round.
"""

from typing import Any, Literal

import numpy as np

from tiledsl import (
    Dim,
    Fragment,
    Global,
    Ring,
    bf16,
    cdiv,
    const,
    coordinates,
    f32,
    fragment,
    grid,
    lane_id,
    ptx,
    role,
    row_major,
    shared,
    store,
    swizzle_128b,
    tile,
    tile_function,
    tile_kernel,
    tiles,
    tma_load,
    u16,
    u32,
    unroll,
    wgmma,
)
from tiledsl.dims import J, K, M, N, R


class Groups(Dim):
    """Groups of 128 of k."""


GROUP, ROWS = 128, 64
MASK, BASE, TAKEN = 0x000F000F, 0x43004300, 0x43084308


def difference(x: Any, y: Any) -> tuple[Any, Any]:
    """What sub.bf16x2 computes, of arrays of words: all numbers here are whole, and exact."""
    halves = [
        ((x >> at & 0xFFFF) << 16).view(np.float32) - ((y >> at & 0xFFFF) << 16).view(np.float32) for at in (0, 16)
    ]
    low, high = ((half.view(np.uint32) >> 16).astype(np.uint16) for half in halves)
    return low, high


@tile_function
def unpacked(word: u32) -> Fragment[bf16]:
    """The 8 weights of a word, as the registers of a fragment hold them."""
    weights = fragment((8,), bf16)
    for i in unroll(4):
        two = (word >> (4 * i)) & MASK | BASE
        low, high = ptx.inline(
            "{ .reg .b32 t; sub.bf16x2 t, $2, $3; mov.b32 {$0, $1}, t; }",
            (u16, u16), two, u32(TAKEN), memory="nothing", uniform="operands", emulate=difference,
        )  # fmt: skip
        weights[2 * i], weights[2 * i + 1] = low.bitcast(bf16), high.bitcast(bf16)
    return weights


@tile_kernel(arch="sm_90a")
def hopper_int4(
    W: Global[u32, R, J, Literal[256]],
    X: Global[bf16, M, K],
    C: Global[bf16, M, N],
    scales: Global[f32, Groups, N],
    *,
    BM: const = 16,
    STAGES: const = 8,
):
    """A block has 64 columns of the weights and BM rows of X."""
    bx, by = grid(cdiv(N, ROWS), cdiv(M, BM))
    m, n = tile(by, BM), tile(bx, ROWS)
    words: Any = shared((4, 256), u32, layout=row_major)
    ring: Any = Ring(STAGES, w=words, x=shared((BM, GROUP), bf16, layout=swizzle_128b))
    with role("load", registers=24, threads=1):
        for k in tiles(K, GROUP):
            with ring.fill() as s:
                tma_load(W[bx, tile(k.start // GROUP, 4), tile(0, 256)], s.w)
                tma_load(X[m, k], s.x)
    with role("math", registers=232):
        sums = wgmma.accumulator((ROWS, BM), f32).wait()
        column = coordinates(sums)[0]  # of the weights; of these 64, a warp has 16, and a lane two
        warp, lane = column.registers()[0] // 16, lane_id()
        for k in tiles(K, GROUP):
            with ring.use() as s:
                part = wgmma.accumulator((ROWS, BM), f32)
                weights = fragment((64,), bf16)
                for half in unroll(2):  # 64 of k: 16 bytes a lane
                    four = s.w.load(half * 2 + warp // 2, warp % 2 * 128 + lane * 4, vec=16)
                    for i in unroll(4):
                        eight = unpacked(four[i])
                        for j in unroll(8):
                            weights[(half * 4 + i) * 8 + j] = eight[j]
                left = fragment((ROWS, GROUP), bf16, part.a, init=weights)
                part = wgmma(left, s.x.T, part)
            sums = part.wait() * scales.get(k.start // GROUP, n.start + column) + sums
        store(sums.to(bf16), C[m, n].T)


def packed(q: Any) -> Any:
    """Weights [K, N] from 0 to 15, as words [N / 64, K / 32, 256]; extents are rounded up with weights of 8, that is
    0."""
    deep, wide = -(-q.shape[0] // GROUP) * 2, -(-q.shape[1] // ROWS)
    whole = np.full((deep * 64, wide * ROWS), 8, np.uint32)
    whole[: q.shape[0], : q.shape[1]] = q
    # By k: 64, product of 16, half, lane of four, pair; by n: 64, warp, half, lane of eight.
    whole = whole.reshape(deep, 4, 2, 4, 2, wide, 4, 2, 8)
    words = np.zeros((wide, deep, 4, 8, 4, 4), np.uint32)  # n, k, warp, eight, four, product
    for half, lower, pair in np.ndindex(2, 2, 2):
        some = whole[:, :, half, :, pair, :, :, lower].transpose(3, 0, 4, 5, 2, 1)
        words |= some << np.uint32(4 * (lower + 2 * half) + 16 * pair)
    return words.reshape(wide, deep * 2, 256)


def quantised(W: Any) -> tuple[Any, Any]:
    """The nearest of 16 numbers for each weight, and a scale for each column and 128 of k."""
    groups = -(-W.shape[0] // GROUP)
    whole = np.zeros((groups * GROUP, W.shape[1]), np.float32)
    whole[: W.shape[0]] = W
    largest = abs(whole).reshape(groups, GROUP, -1).max(axis=1)
    scales = np.where(largest > 0, largest / np.float32(7.5), np.float32(1))
    q = np.rint(W / np.repeat(scales, GROUP, axis=0)[: W.shape[0]]) + 8
    return q.clip(0, 15).astype(np.uint8), scales


def main(m: int = 5, n: int = 200, k: int = 512) -> None:
    """Prints how far the product is from that of the same weights in f64, and from that of the weights before."""
    import ml_dtypes

    random = np.random.default_rng(0)
    X, W = random.standard_normal((m, k)).astype(ml_dtypes.bfloat16), random.standard_normal((k, n)).astype(np.float32)
    (q, scales), C = quantised(W), np.zeros((m, n), ml_dtypes.bfloat16)
    hopper_int4(packed(q), X, C, scales)
    near = (q.astype(np.float64) - 8) * np.repeat(scales, GROUP, axis=0)[:k]
    for name, weights in (("the product of 4 bits", near), ("that of f32 weights", W.astype(np.float64))):
        exact = X.astype(np.float64) @ weights
        error = np.linalg.norm(C.astype(np.float64) - exact) / np.linalg.norm(exact)
        print(f"relative error to {name}: {error:.2g}")


if __name__ == "__main__":
    main()
