"""Times grouped products of e4m3 with scales of blocks on an H200, as a share of the rate of products without groups.

    python -m benchmarks.grouped_scales            # on an H200, with torch; a minute

4 and 8 groups (experts) of 4096 rows on average, whose sizes are as uneven as random numbers of an exponential
distribution, by matrices of 7168 x 4096 and 2048 x 7168. The rates to compare with are those of `gemm`, with scales
too: of 4096 rows by one matrix, and of as many rows as all groups have. Each result is checked against that of `gemm`
for each group by itself, whose bits it has. Operands are not in L2, launches go by CUDA graphs, contenders take turns.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.device import open_device
from benchmarks.random_shapes import LOADS
from benchmarks.report import RESULTS, table, write
from tiledsl.errors import TileError
from tiledsl.gemm import gemm, grouped_gemm
from tiledsl.inspect.timing import buffer_sets, interleave

__all__ = ["main"]

ROWS, GROUPS = 4096, (4, 8)
MATRICES = ((4096, 7168), (7168, 2048))
"""Columns and k."""


class Operands(NamedTuple):
    """Of e4m3 with f32 scales: a [rows, k], b [groups, k, n] along k."""

    a: Any
    b: Any
    scale_a: Any
    scale_b: Any

    @classmethod
    def drawn(cls, rows: int, groups: int, n: int, k: int) -> Operands:
        torch: Any = importlib.import_module("torch")
        draw, e4m3 = {"device": "cuda"}, torch.float8_e4m3fn
        b = torch.stack([torch.randn(n, k, **draw).to(e4m3) for _ in range(groups)]).mT
        of_a, of_b = torch.rand(k // 128, rows, **draw).mT + 0.5, torch.rand(groups, k // 128, n // 128, **draw) + 0.5
        return cls(torch.randn(rows, k, **draw).to(e4m3), b, of_a, of_b)

    def alone(self, group: int, first: int, last: int) -> Any:
        """The product of these rows by one matrix."""
        scales = {"scale_a": self.scale_a[first:last], "scale_b": self.scale_b[group]}
        return gemm(self.a[first:last], self.b[group], **scales, batch_invariant=True)


def sizes_of(groups: int, seed: int) -> list[int]:
    random = np.random.default_rng([groups, seed])
    shares = random.exponential(size=groups)
    return [int(size) for size in random.multinomial(groups * ROWS, shares / shares.sum())]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=4105)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    device = open_device("bf16")
    gc.freeze()  # torch collects before each capture
    rows: list[tuple[str, ...]] = []
    figures: list[dict[str, Any]] = []
    for n, k in MATRICES:
        for groups in GROUPS:
            sizes = sizes_of(groups, args.seed)
            for load in LOADS:
                rates = _rates(device, sizes, n, k, load, args.rounds)
                share = rates["grouped"] / rates["one group"]
                figures.append({"n": n, "k": k, "sizes": sizes, "load": load, "tflops": rates})
                shown = (f"{rates[name]:.0f}" for name in ("grouped", "one group", "as many rows"))
                rows.append((f"{groups} x {ROWS} x {n} x {k}", load, *shown, f"{share:.3f}"))
                print(" ".join(rows[-1]), flush=True)
    header = (
        "groups x rows x N x K",
        "load",
        "grouped, TFLOP/s",
        "4096 rows, no groups",
        "all rows, no groups",
        "share",
    )
    text = f"{table(header, rows)}\n\nshare: of the rate of 4096 rows without groups; goal 0.93."
    write("grouped_scales", "Grouped products of e4m3 with scales of blocks", text, {"cases": figures}, args.out)
    return 0


def _rates(device: Any, sizes: list[int], n: int, k: int, load: str, rounds: int) -> dict[str, float]:
    """TFLOP/s, the median."""
    torch: Any = importlib.import_module("torch")
    total, ends = sum(sizes), np.cumsum(sizes)
    count = buffer_sets(total * (k + 2 * n) + len(sizes) * n * k, cold=True)
    sets = [Operands.drawn(total, len(sizes), n, k) for _ in range(count)]
    offsets = torch.tensor([0, *ends], dtype=torch.int32, device="cuda")
    made = [torch.empty(total, n, dtype=torch.bfloat16, device="cuda") for _ in range(count)]
    found = grouped_gemm(*sets[0][:2], offsets, made[0], scale_a=sets[0].scale_a, scale_b=sets[0].scale_b)
    for group, (first, last) in enumerate(pairwise([0, *map(int, ends)])):
        if first < last and not torch.equal(found[first:last], sets[0].alone(group, first, last)):
            raise TileError(f"group {group} of {sizes} by {k} x {n} has other bits than gemm")

    def grouped(number: int) -> Any:
        a, b, scale_a, scale_b = sets[number % count]
        return grouped_gemm(a, b, offsets, made[number % count], scale_a=scale_a, scale_b=scale_b)

    def without(most: int) -> Callable[[int], Any]:
        def launch(number: int) -> Any:
            a, b, scale_a, scale_b = sets[number % count]
            scales = {"scale_a": scale_a[:most], "scale_b": scale_b[0]}
            return gemm(a[:most], b[0], made[number % count][:most], **scales)

        return launch

    work = {
        name: 2e-12 * most * n * k for name, most in (("grouped", total), ("one group", ROWS), ("as many rows", total))
    }
    launches = {"grouped": grouped, "one group": without(ROWS), "as many rows": without(total)}
    for launch in launches.values():
        launch(0)
    seconds, rest = LOADS[load]
    graphed = max(2, min(24, int(2 / work["grouped"])))
    timing = interleave(device, launches, rounds=rounds, seconds=seconds, rest=rest, graphed=graphed)
    return {name: work[name] / (1e-3 * timing.median(name)) for name in launches}


if __name__ == "__main__":
    sys.exit(main())
