"""Does one warp's wait for a product cover its whole warpgroup? Needs an H200 or H100, and torch.

    python -m benchmarks.wgmma_wait --launches 1000

The PTX ISA guarantees only that after wgmma.wait_group the groups committed by the *executing threads* are complete. If
one thread of a warpgroup releases a slot after its own wait, the other warps' shares must be complete, too.
Here each warp of a warpgroup reaches each of two groups of products late, by its own random number of clocks.
As soon as its own wait for the first group is over, one warp overwrites all operands of this group while the second
one is in flight, as in a ring. If another warp's share still read them, its sums would differ. A run in which the
writer does not wait shows that such a read is detected. The clocks also show how long before the end of that wait the
last warp had reached the products of the first group.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Literal

from benchmarks.report import RESULTS, table, write
from tiledsl import (
    Global,
    barrier,
    bf16,
    const,
    f32,
    fragment,
    grid,
    i64,
    index,
    lane_id,
    maximum,
    ptx,
    shared,
    store,
    swizzle_128b,
    threads,
    tile,
    tile_function,
    tile_kernel,
    unroll,
    warp_id,
    wgmma,
)
from tiledsl.dims import M, N

__all__ = ["early_write", "main"]

ROWS, COLUMNS, DEPTH, WARPS = 64, 128, 64, 4
"""Of a product: the rows of a wgmma, columns that leave registers for the comparison, a panel along k; its warps."""
PRODUCTS = 4
"""Products of 64 x 128 x 64 in each group."""
VEC = 8
LATEST = (0, 30, 300, 3000)
"""The largest delay of a warp, in clocks."""


@tile_function
def clock() -> i64:
    return ptx.inline("mov.u64 $0, %clock64;", i64, volatile=True)


@tile_function
def spread(S, value: bf16, thread: index, count: index):
    """`count` threads fill S with `value`, from its end: the data that is read last is written first."""
    values = fragment((VEC,), bf16, init=1) * value
    rows = S.shape[0]
    for first in range(thread, rows * DEPTH // VEC, count):
        place = rows * DEPTH // VEC - 1 - first
        S.store(place // (DEPTH // VEC), place % (DEPTH // VEC) * VEC, values)


@tile_kernel(arch="sm_90a")
def early_write(
    LATE: Global[i64, M, Literal[8]],
    WORST: Global[f32, N, Literal[128]],
    LEAST: Global[i64, Literal[1]],
    *,
    BLOCKS: const = 132,
    ROUNDS: const = 32,
    WAIT: const = 1,
):
    """LATE: the delay in clocks of each warp before each group. WORST: the largest error of the sums, 64 rows a block.
    LEAST: clocks from the last warp's arrival at the first group to the end of the writer's wait."""
    block = grid(BLOCKS)
    threads(32 * WARPS)
    warp, lane = warp_id(), lane_id()
    a = [shared((ROWS, DEPTH), bf16, layout=swizzle_128b) for _ in range(2)]
    b = [shared((COLUMNS, DEPTH), bf16, layout=swizzle_128b) for _ in range(2)]
    came, over = shared((WARPS,), i64), shared((WARPS,), i64)
    worst = wgmma.accumulator((ROWS, COLUMNS), f32).wait()
    for turn in range(ROUNDS):
        for S in a + b:
            spread(S, bf16(1), warp * 32 + lane, 32 * WARPS)
        ptx.fence_proxy_async()
        row = (block * ROUNDS + turn) % M
        late = [LATE[row, warp], LATE[row, WARPS + warp]]
        barrier()
        acc = wgmma.accumulator((ROWS, COLUMNS), f32)
        for group in unroll(2):
            begin = clock()
            while clock() - begin < late[group]:
                pass
            if group == 0 and lane == 0:
                came[warp] = clock()
            ptx.wgmma_fence()
            for _ in unroll(PRODUCTS):
                acc = wgmma(a[group], b[group].T, acc)
            ptx.wgmma_commit()
        if WAIT:
            ptx.wgmma_wait(1)
        if warp == turn % WARPS:
            if lane == 0:
                over[warp] = clock()
            spread(b[0], bf16(2), lane, 32)
            spread(a[0], bf16(2), lane, 32)
        x = acc.wait()
        worst = maximum(worst, x - 2 * PRODUCTS * DEPTH)
        barrier()
        if warp == turn % WARPS and lane == 0:
            last = maximum(maximum(came[0], came[1]), maximum(came[2], came[3]))
            LEAST.atomic_min(0, over[warp] - last)
        barrier()
    store(worst, WORST[tile(block, ROWS), :])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=1000, help="per row of the table")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)

    import torch

    blocks, rounds = 4 * 132, 32
    random = torch.Generator(device="cuda").manual_seed(1)
    cases: list[dict[str, Any]] = []
    for waits, launches in ((1, args.launches), (0, 20)):
        for most in LATEST:
            wrong, least = 0, torch.full((1,), 2**62, dtype=torch.int64, device="cuda")
            worst = torch.empty(blocks * ROWS, COLUMNS, device="cuda")
            for _ in range(launches):
                late = torch.randint(0, most + 1, (4093, 2 * WARPS), generator=random, device="cuda")
                early_write(late, worst, least, BLOCKS=blocks, ROUNDS=rounds, WAIT=waits)
                wrong += int((worst != 0).view(blocks, -1).any(1).sum())
            found = {"wrong": wrong, "blocks": launches * blocks, "rounds": rounds, "least": int(least)}
            cases.append({"waits": bool(waits), "late": most, **found})
    head = ["the writer", "warps are late by up to", "blocks with a wrong sum", "rounds of each", "clocks at least"]
    rows = [
        [
            "waits" if c["waits"] else "does not wait",
            f"{c['late']} clocks",
            f"{c['wrong']} of {c['blocks']}",
            str(c["rounds"]),
            str(c["least"]),
        ]
        for c in cases
    ]
    write("wgmma_wait", "One warp's wait for products of its warpgroup", table(head, rows), {"cases": cases}, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
