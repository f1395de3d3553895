"""`grouped_gemm` against a loop of cuBLAS calls and torch's grouped product, on random groups of uneven sizes. Needs an
H200, and torch.

    python -m benchmarks.grouped --seed 7
    python -m benchmarks.grouped --seed 7 --first 6 --families decode --format f16

Problems depend on the family and the seed alone: 8 to 128 groups, whose sizes are as uneven as random numbers of an
exponential distribution, so that some have no rows where there are few. Runs gather in one file of results, as those of
`random_shapes`.

The loop has one call for each group that has rows, and sizes that the host knows; ours and torch's read them on the
device. Launches go by CUDA graphs; contenders take turns; results are checked first. A ratio is of speed, to the loop
or to torch with B along k or in row order, as is faster. Ours is timed with B along k (NT) and in row order (NN), each
by itself. --choices times every tile of the choice, too.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.device import open_device
from benchmarks.random_shapes import LOADS
from benchmarks.report import RESULTS, table, write
from tiledsl.errors import TileError
from tiledsl.gemm import grouped_gemm
from tiledsl.gemm.grouped import hopper_grouped
from tiledsl.gemm.grouped_call import EARLY, TILES, microseconds
from tiledsl.inspect.frameworks import Device
from tiledsl.inspect.timing import L2_BYTES, RoundTimes, buffer_sets, interleave

__all__ = ["FAMILIES", "Problem", "main", "problems"]

FAMILIES = {"decode": (1, 32), "medium": (32, 512), "large": (512, 4096)}
"""Rows of a group on average, log-uniform."""
GROUPS, WIDTHS = (8, 128), (512, 8192)
LAYOUTS = ("NT", "NN")
BASES = ("loop", "torch")
MILLISECONDS = 4.0
"""Of the launches in one graph, about."""


class Problem(NamedTuple):
    """n, k: of each group's matrix. sizes: rows of each group."""

    n: int
    k: int
    sizes: tuple[int, ...]

    @property
    def shape(self) -> list[int]:
        """Groups, rows of all, n, k."""
        return [len(self.sizes), sum(self.sizes), self.n, self.k]

    def __str__(self) -> str:
        return "x".join(map(str, self.shape))


def problems(family: str, seed: int, count: int) -> list[Problem]:
    """The first `count` problems of a family: matrices of at most 2^31 elements, at most 2^41 multiplications."""
    random = np.random.default_rng([list(FAMILIES).index(family), seed])

    def draw(low: int, high: int, step: int = 1) -> int:
        return max(low, round(math.exp(random.uniform(math.log(low), math.log(high))) / step) * step)

    found: list[Problem] = []
    while len(found) < count:
        groups, n, k, mean = draw(*GROUPS), draw(*WIDTHS, 64), draw(*WIDTHS, 64), draw(*FAMILIES[family])
        shares = random.exponential(size=groups)
        sizes = random.multinomial(groups * mean, shares / shares.sum())
        if groups * n * k <= 1 << 31 and groups * mean * n * k <= 1 << 41:
            found.append(Problem(n, k, tuple(map(int, sizes))))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--families", nargs="+", choices=tuple(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--count", type=int, default=5, help="problems of a family")
    parser.add_argument("--first", type=int, default=0, help="the number of the first of them")
    parser.add_argument("--format", choices=("bf16", "f16"), default="bf16")
    parser.add_argument("--load", choices=tuple(LOADS), default="rested")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--choices", action="store_true", help="time every tile")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    name = f"grouped_{args.format}_{args.load}"
    device = open_device(args.format)
    file = args.out / f"{name}.json"
    cases: list[dict[str, Any]] = json.loads(file.read_text())["cases"] if file.exists() else []
    gc.freeze()  # torch collects before each capture, and there are many
    title = f"Grouped products against cuBLAS and torch, {args.format}, {args.load}"
    for family in args.families:
        for problem in problems(family, args.seed, args.first + args.count)[args.first :]:
            start = time.perf_counter()
            case: dict[str, Any] = {"family": family, "seed": args.seed, "shape": problem.shape, "sizes": problem.sizes}
            case |= _measure(device, problem, args.load, args.rounds, args.choices)
            cases = [c for c in cases if (c["family"], c["seed"], c["shape"]) != (family, args.seed, problem.shape)]
            cases.append(case)
            shown = " ".join(f"{key} {value:.3f}" for key, value in case["ratios"].items())
            print(f"  {family} {problem}: {shown} ({time.perf_counter() - start:.1f} s)", flush=True)
        write(name, title, _summary(cases), {"cases": cases}, args.out)
    return 0


Launch = Callable[[int], None]


def _measure(device: Device, problem: Problem, load: str, rounds: int, choices: bool) -> dict[str, Any]:
    torch: Any = importlib.import_module("torch")
    groups, rows, n, k = problem.shape
    sets = 1 if 2 * groups * n * k > 4 * L2_BYTES else buffer_sets(2 * (groups * n * k + rows * (n + k)), cold=True)
    ends = np.cumsum(problem.sizes)
    offsets = torch.tensor([0, *ends], dtype=torch.int32, device="cuda")
    behind = offsets[1:].clone()
    a = [device.normal(rows, k, s) for s in range(sets)]
    along_k = [device.normal(n, k, 1000 + s, groups).swapaxes(1, 2) for s in range(sets)]
    stored = {"NT": along_k, "NN": [b.contiguous() for b in along_k]}
    c = [device.empty(rows, n) for _ in range(sets)]
    spans = [
        (g, int(end) - size, int(end)) for g, (size, end) in enumerate(zip(problem.sizes, ends, strict=True)) if size
    ]

    def loop(layout: str) -> Launch:
        def launch(number: int) -> None:
            s = number % sets
            for g, first, last in spans:
                torch.mm(a[s][first:last], stored[layout][s][g], out=c[s][first:last])

        return launch

    def grouped_mm(layout: str) -> Launch:
        return lambda number: torch._grouped_mm(a[number % sets], stored[layout][number % sets], offs=behind)

    def ours(layout: str) -> Launch:
        return lambda number: grouped_gemm(a[number % sets], stored[layout][number % sets], offsets, c[number % sets])

    def by_tile(layout: str, consts: dict[str, Any]) -> Launch:
        return lambda number: hopper_grouped(
            a[number % sets][None], stored[layout][number % sets], c[number % sets][None], offsets, **consts
        )

    launches: dict[str, Launch] = {layout: ours(layout) for layout in LAYOUTS}
    for layout in LAYOUTS if choices else ():
        for tile in TILES:
            consts = {**tile.consts(groups), "EARLY": microseconds(tile, groups, rows / groups, n, k) < EARLY}
            launches[f"{tile.rows}x{tile.columns} {layout}"] = by_tile(layout, consts)
    right: Any = None
    for name, launch in launches.items():
        c[0].fill_(device.blank)
        launch(0)
        if right is None:
            shares = [device.worst_share(c[0][i:j], a[0][i:j], along_k[0][g]) for g, i, j in spans]
            if not max(shares) <= 1:
                raise TileError(f"grouped: {name} at {problem} is wrong: {max(shares):.3g} times its error bound")
            right = c[0].clone()
        if not torch.equal(c[0], right):  # all tiles add up in the same order
            raise TileError(f"grouped: {name} at {problem} differs from {next(iter(launches))}")
    for layout in LAYOUTS:
        launches[f"loop {layout}"] = loop(layout)
        if device.format == "bf16":  # torch has no other
            launches[f"torch {layout}"] = grouped_mm(layout)
        for base in BASES:
            launches.get(f"{base} {layout}", launches[layout])(0)
    about = min(microseconds(tile, groups, rows / groups, n, k) for tile in TILES)
    graphed = max(2, min(24, int(1e3 * MILLISECONDS / about)))
    seconds, rest = LOADS[load]
    timing = interleave(device, launches, rounds=rounds, seconds=seconds, rest=rest, graphed=graphed)
    times = {name: round(1e3 * timing.median(name), 2) for name in launches}
    return {"us": times, "ratios": _ratios(timing, times)}


def _ratios(timing: RoundTimes, times: dict[str, float]) -> dict[str, float]:
    """Speed of ours in each layout, over each base in its faster one."""
    found: dict[str, float] = {}
    for base in BASES:
        named = [name for name in times if name.startswith(f"{base} ")]
        if named:
            best = min(named, key=times.__getitem__)
            found |= {f"{x} / {base}": statistics.median(timing.speed_ratios(x, best)) for x in LAYOUTS}
    return found


def _summary(cases: list[dict[str, Any]]) -> str:
    """Geometric mean and worst by family; `both`: over the faster base of each problem. Then every problem."""
    rows: list[tuple[str, ...]] = []
    for family in (*dict.fromkeys(c["family"] for c in cases), "all"):
        own = [c["ratios"] for c in cases if family in (c["family"], "all")]
        for base in (*BASES, "both"):
            columns: list[str] = []
            for layout in LAYOUTS:
                named = [f"{layout} / {b}" for b in BASES if base in (b, "both")]
                shares = [min(r[key] for key in named if key in r) for r in own if any(key in r for key in named)]
                columns += [f"{statistics.geometric_mean(shares):.3f}", f"{min(shares):.3f}"] if shares else ["", ""]
            rows.append((family, str(len(own)), base, *columns))
    header = ("family", "problems", "over", "NT mean", "NT worst", "NN mean", "NN worst")
    names = tuple(dict.fromkeys(name for c in cases for name in c["us"]))
    each = [("x".join(map(str, c["shape"])), *(f"{c['us'].get(name, 0):.1f}" for name in names)) for c in cases]
    return f"{table(header, rows)}\n\nMicroseconds:\n\n{table(('groups x rows x N x K', *names), each)}"


if __name__ == "__main__":
    sys.exit(main())
