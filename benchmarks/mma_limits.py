"""The costs between mma.sync on registers alone and a product by `mma_fastest`. Needs an H200 or H100, and torch.

    python -m benchmarks.mma_limits
    python -m benchmarks.mma_limits --format f16 --rest 0

All do the same number of multiply-adds of 16-bit operands. First with one tile a block, and k so long that starts and
ends do not matter: operands by ldmatrix from tiles that stay, the same with a barrier for each 64 k, and the loops of
both ways to copy. Then whole products. --rest: idle seconds before each batch, so that power is not the limit.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.device import Device, open_device
from benchmarks.gallery import gallery_kernels
from benchmarks.gemm import Size, prepare
from benchmarks.mma_loop import REGISTERS_ONLY
from benchmarks.report import RESULTS, write
from tiledsl import (
    Const,
    Float,
    Global,
    barrier,
    copy,
    f32,
    fragment,
    grid,
    i32,
    index,
    mma,
    store,
    threads,
    tile_kernel,
    unroll,
)
from tiledsl.dims import K, M, N
from tiledsl.gemm.hopper_tiles import staging
from tiledsl.gemm.mma import HALVES, multiply
from tiledsl.inspect.bench import as_table, summarize
from tiledsl.inspect.timing import Clocks, interleave

__all__ = ["main", "shared_loop"]

D = TypeVar("D", bound=Float)

BM, BN = 128, 256
ONE_TILE: Size = (12 * BM, 11 * BN, 32768)
"""One for each of 132 SMs."""
PRODUCTS: tuple[Size, ...] = ((4096, 4096, 4096), (8192, 8192, 8192))
STAGES, DEPTH = 4, 64
CHOSEN: dict[str, Any] = HALVES[0][1]
WAYS = {"mma_fastest, cp.async": CHOSEN | {"TMA": False}, "mma_fastest, TMA": CHOSEN}


@tile_kernel
def shared_loop(
    A: Global[D, M, K],
    B: Global[D, K, N],
    C: Global[D, M, N],
    blocks: i32,
    steps: i32,
    *,
    BARRIER: Const[bool] = False,
):
    """Each block `steps` times the product of 64 k, by ldmatrix and mma.sync, from four tiles in rotation. C gets the
    sums of the first block, so that they are not removed as dead code."""
    block = grid(blocks)
    threads(256)
    As, Bs = staging(A, BM, DEPTH, STAGES), staging(B, DEPTH, BN, STAGES)
    for i in unroll(STAGES):
        k = i * DEPTH
        copy(A[0:BM, k : k + DEPTH], As[i, :, :])
        copy(B[k : k + DEPTH, 0:BN], Bs[i, :, :])
    barrier()
    acc = fragment((BM, BN), f32, mma.m16n8k16.acc(warps=(2, 4)))
    for step in range(steps):
        i = index(step % STAGES)
        acc = multiply(As[i, :, :], Bs[i, :, :], acc, DEPTH, 16)
        if BARRIER:
            barrier()
    if block == 0:
        store(acc.to(C.dtype), C[0:BM, 0:BN], vec=4)


def loops(device: Device) -> dict[str, Callable[[int], None]]:
    """The loops without copies, with as many multiply-adds as `ONE_TILE`."""
    a, b = device.normal(BM, STAGES * DEPTH, 1), device.normal(STAGES * DEPTH, BN, 2)
    c = device.empty(BM, BN)

    def launcher(**consts: Any) -> Callable[[int], None]:
        return lambda number: shared_loop(a, b, c, 132, ONE_TILE[2] // DEPTH, **consts)

    return {"ldmatrix": launcher(), "ldmatrix, barriers": launcher(BARRIER=True)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=("bf16", "f16"), default="bf16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rest", type=float, default=0.2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    device = open_device(args.format)
    kernel, _ = gallery_kernels(args.format)["mma_fastest"]
    seconds = 0.015 if args.rest else 0.05
    cases: list[dict[str, Any]] = []
    with Clocks() as clocks:
        for size in (ONE_TILE, *PRODUCTS):
            contenders, sets = prepare(
                device, {label: (kernel, consts) for label, consts in WAYS.items()}, size, cold=True
            )
            if size == ONE_TILE:
                contenders = {**loops(device), **contenders}
            start = time.perf_counter()
            timing = interleave(device, contenders, rounds=args.rounds, seconds=seconds, rest=args.rest)
            cases += summarize(timing, size, REGISTERS_ONLY, {"sets": sets, **clocks.since(start)})
    pauses = "with pauses" if args.rest else "without pauses"
    title = f"{args.format} by mma.sync, from registers alone to whole products, {pauses}"
    name = f"mma_limits_{args.format}_{'rested' if args.rest else 'sustained'}"
    write(name, title, as_table(cases), {"rest": args.rest, "rounds": args.rounds, "cases": cases}, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
