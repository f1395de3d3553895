"""Gallery kernels against the same kernels in CUDA C++, built by nvcc in the same run.

    python -m benchmarks.against_nvcc --size 4096 --rounds 15

The references are benchmarks/reference/*.cu: same algorithm, tiles, launch shape and edges. Ratios are of
speed: 1.00 is as fast as nvcc's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.device import DEFAULT_STREAM, open_device, pointer
from benchmarks.gallery import gallery_kernels
from benchmarks.gemm import as_table, parse_size, summarize
from benchmarks.nvcc import CudaKernel, nvcc_version
from benchmarks.report import RESULTS, write
from tiledsl.inspect.timing import Clocks, buffer_sets, interleave

__all__ = ["main"]

# A gallery kernel's label, and its reference. The goal: at least 0.97.
PAIRS = {
    "naive": ("naive", 16),
    "shared_tiled T=16": ("shared_tiled", 16),
    "shared_tiled T=32": ("shared_tiled", 32),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=(4096,) * 3, metavar="MxNxK")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=0.1, help="per contender and round")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)

    device = open_device()
    m, n, k = args.size
    sets = buffer_sets(4 * (m * k + k * n + m * n), cold=True)
    a = [device.normal(m, k, seed) for seed in range(sets)]
    b = [device.normal(k, n, 1000 + seed) for seed in range(sets)]
    c = [device.empty(m, n) for _ in range(sets)]
    kernels = gallery_kernels()

    def ours(label: str) -> Callable[[int], None]:
        kernel, consts = kernels[label]
        return lambda number: kernel(a[number % sets], b[number % sets], c[number % sets], **consts)

    def theirs(label: str) -> Callable[[int], None]:
        kernel = CudaKernel.load(*PAIRS[label])
        pointers = [[pointer(x[i]) for x in (a, b, c)] for i in range(sets)]
        launchers = [kernel.launcher(kernel.arguments(*p, m, n, k), m, n, DEFAULT_STREAM) for p in pointers]
        return lambda number: launchers[number % sets]()

    cases: list[dict[str, Any]] = []
    with Clocks() as clocks:
        for label in PAIRS:
            contenders = {label: ours(label), "nvcc": theirs(label)}
            for name, launch in contenders.items():
                c[0][...] = float("nan")
                launch(0)
                share = device.worst_share(c[0], a[0], b[0])
                if not share <= 1:
                    raise SystemExit(f"{name} for {label} is wrong: {share:.3g} times its error bound")
            start = time.perf_counter()
            timing = interleave(device, contenders, rounds=args.rounds, seconds=args.seconds)
            cases += summarize(timing, args.size, "nvcc", {"sets": sets, **clocks.since(start)})
    data = {"nvcc": nvcc_version(), "rounds": args.rounds, "cases": cases}
    write("against_nvcc", f"fp32 GEMM against nvcc {nvcc_version()} -O3", as_table(cases), data, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
