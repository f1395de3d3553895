"""Host time of one launch with three torch tensors, beside a bare cuLaunchKernel and torch.mm.

    python -m benchmarks.launch_overhead --rounds 40

The product is tiny, so that the GPU is always ahead of the host: what is timed is the host's work alone.
The three take turns, in batches small enough for the launch queue; the figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.device import Torch
from benchmarks.gallery import gallery_kernels
from benchmarks.interleave import quartiles
from benchmarks.nvcc import CudaKernel
from benchmarks.report import RESULTS, table, write

__all__ = ["main"]

SIZE = 16
BATCH = 200  # below the 1024 launches after which the driver blocks


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)

    import torch

    device = Torch()
    a, b, c = device.normal(SIZE, SIZE, 0), device.normal(SIZE, SIZE, 1), device.empty(SIZE, SIZE)
    kernel, _ = gallery_kernels()["naive"]
    bare = CudaKernel.load("naive", 16)
    packed = bare.arguments(*map(device.pointer, (a, b, c)), SIZE, SIZE, SIZE)
    contenders: dict[str, Callable[[], object]] = {
        "tiledsl, three torch tensors": lambda: kernel(a, b, c),
        "bare cuLaunchKernel, packed arguments": bare.launcher(packed, SIZE, SIZE, device.stream()),
        "torch.mm(a, b, out=c)": lambda: torch.mm(a, b, out=c),
    }
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(args.rounds + 1):
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            microseconds = _host_time(device, contenders[name])
            if number:  # the first round loads and compiles
                taken[name].append(microseconds)

    rows: list[tuple[str, str, str, str]] = []
    for name, values in taken.items():
        low, middle, high = quartiles(values)
        rows.append((name, f"{middle:.2f}", f"{low:.2f}-{high:.2f}", "<= 8" if name.startswith("tiledsl") else ""))
    text = table(("host us a launch", "median", "quartiles", "goal"), rows)
    data = {"microseconds": {name: [round(v, 3) for v in values] for name, values in taken.items()}}
    write("launch_overhead", "Host time of one launch", text, data, args.out)
    ours, mm = (statistics.median(taken[name]) for name in (names[0], names[2]))
    print(f"below torch.mm: {'yes' if ours < mm else 'NO'}")
    return 0


def _host_time(device: Torch, launch: Callable[[], object]) -> float:
    """Microseconds of host time a launch, over one batch."""
    device.synchronize()
    start = time.perf_counter()
    for _ in range(BATCH):
        launch()
    taken = time.perf_counter() - start
    device.synchronize()
    return 1e6 * taken / BATCH


if __name__ == "__main__":
    sys.exit(main())
