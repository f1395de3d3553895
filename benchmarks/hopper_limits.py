"""What limits each Hopper step: how busy the GPU's units are, by ncu's counters. Needs an H200 or H100, torch and ncu.

    python -m benchmarks.hopper_limits
    python -m benchmarks.hopper_limits --sizes 4096 8192x8192x512

Percent of each unit's peak, over the whole launch, including its start and end; bf16, A and B contiguous along k. Every
kernel is launched once, at the GPU's clock at that time: these are shares of a launch; `benchmarks.hopper` has times.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.device import open_device
from benchmarks.hopper import LADDER, ROOT
from benchmarks.ncu import Launch, profile
from benchmarks.report import RESULTS, table, write
from tiledsl.inspect.bench import parse_size
from tiledsl.inspect.contenders import Operands, Size, read_contender

__all__ = ["UNITS", "busiest", "main"]

UNITS: Mapping[str, str] = {
    "tensor cores": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "shared memory": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "L2 to SMs": "lts__lts2xbar_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "SMs to L2": "l1tex__m_l1tex2xbar_req_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "DRAM": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "issue": "sm__inst_issued.avg.pct_of_peak_sustained_elapsed",
}
"""Counters by unit. Shared memory: loads and stores of threads; TMA and wgmma have no counter of their own."""

SIZES = ("4096", "8192x8192x512")


def launch_all(sizes: Sequence[Size]) -> None:
    """Each step once at each size. This process is the one that ncu watches."""
    device = open_device("bf16")
    for size in sizes:
        operands = Operands(device, size, 1)
        for text in LADDER:
            read_contender(text).launcher(operands, "NT")(0)
        device.synchronize()


def busiest(launch: Launch) -> str:
    """The unit closest to its peak."""
    return max(UNITS, key=lambda unit: launch.counters.get(unit, -1))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), metavar="MxNxK")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--launch", action="store_true", help="only launch the kernels, for ncu to watch")
    args = parser.parse_args(argv)
    sizes = [Size(*parse_size(text)) for text in args.sizes]
    if args.launch:
        launch_all(sizes)
        return 0
    command = [sys.executable, "-m", "benchmarks.hopper_limits", "--launch", "--sizes", *args.sizes]
    launches = profile(command, ROOT, UNITS, only="hopper_")
    started = [(read_contender(text).label, size) for size in sizes for text in LADDER]
    if len(launches) != len(started):
        raise SystemExit(f"{len(started)} kernels were launched, but ncu has rows for {len(launches)}")
    cases: list[dict[str, Any]] = [
        {"kernel": label, "size": str(size), "percent": launch.counters, "busiest": busiest(launch)}
        for (label, size), launch in zip(started, launches, strict=True)
    ]
    rows = [[c["kernel"], c["size"], *(str(c["percent"].get(u, "-")) for u in UNITS), c["busiest"]] for c in cases]
    text = table(["kernel", "M x N x K", *UNITS, "busiest"], rows)
    write("hopper_limits", "How busy each unit is in the Hopper kernels, percent", text, {"cases": cases}, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
