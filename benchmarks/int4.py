"""Times products with weights of 4 bits on an H200: `int4_gemm` and variants of its tile, against cuBLAS in bf16.

    python -m benchmarks.int4             # on an H200, with torch; some 2 minutes
    python -m benchmarks.int4 --variants  # besides, other tiles and parts of k, and how near to the best the choice is;
                                          # their times are added to int4_times.jsonl, for benchmarks.choice_fit
    python -m benchmarks.int4 --seed 7    # of matrices and rows that are drawn, for which nothing was fitted

Each output is checked first. Rested: bursts of 3 ms after pauses of 6 ms, interleaved in random order; ratios are
medians of those of a round. By CUDA graphs, weights and X not in L2. cuBLAS: the faster one of B in row order (NN) and
along k (NT).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.choice_fit import INT4
from benchmarks.choice_times import digest
from benchmarks.report import RESULTS, table, write
from tiledsl.compilation.parallel import build_all
from tiledsl.gemm import int4_call, int4_gemm, pack_int4
from tiledsl.gemm.int4 import hopper_int4
from tiledsl.gemm.int4_call import EARLY, Tile, tiles_for
from tiledsl.inspect.frameworks import open_device
from tiledsl.inspect.timing import buffer_sets, interleave

__all__ = ["main"]

MATRICES = ((4096, 4096), (14336, 4096), (4096, 14336), (28672, 8192), (2112, 7168), (7168, 2048))
"""Columns and rows of the weights."""
ROWS = (1, 8, 16, 32, 64, 256, 4096)
VARIANTS = 24
"""Tiles beside the chosen one, those that should be fastest."""
FEW = 32
"""Rows up to which the goal is that of few rows."""
GROUP = 128
MANY = 1024
"""And from which there is one of many."""
BOUND = 2.0**-7
"""Of the error, as a share of the largest result: that of rounding to bf16, twice."""


def drawn(seed: int) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    """Rows, and columns and rows of weights: whole groups of them, some 1 to 200 MB as they are packed."""
    random = Random(seed)
    rows = [random.randint(first, last) for first, last in ((1, 16), (17, 32), (33, 64), (65, 500), (1000, 6000))]
    sizes: list[tuple[int, int]] = []
    while len(sizes) < len(MATRICES):
        n, k = (round(2 ** random.uniform(9, 15)) // each * each for each in (64, GROUP))
        if n * k < 4e8:
            sizes.append((n, k))
    return tuple(rows), sizes


def sets_of(torch: Any, n: int, k: int, rows: tuple[int, ...]) -> dict[str, Any]:
    """Operands that do not fit into L2 together. X has the rows of the most; fewer are its first."""
    count = buffer_sets(n * k // 2, cold=True)
    torch.manual_seed(n + k)
    q = torch.randint(0, 16, (k, n), dtype=torch.uint8)
    scales = (torch.rand(k // GROUP, n, device="cuda") / 8 + 0.05).to(torch.bfloat16)
    packed = pack_int4(q, scales, group=GROUP)
    exact = (q.cuda().float() - 8) * scales.float().repeat_interleave(GROUP, 0)
    few = max(1, min(count, 40))
    return {
        "exact": exact,
        "int4": [packed] + [pack_copy(packed) for _ in range(count - 1)],
        "NN": [exact.to(torch.bfloat16).clone() for _ in range(min(few, max(2, count // 3)))],
        "x": torch.randn(max(rows), k, device="cuda", dtype=torch.bfloat16),
    }


def pack_copy(packed: Any) -> Any:
    return type(packed)(packed.words.clone(), packed.scales.clone(), None, packed.k, packed.n, packed.group)


def contenders(torch: Any, sets: dict[str, Any], m: int, n: int, k: int, tiles: dict[str, Tile]) -> dict[str, Any]:
    x, weights = sets["x"][:m], sets["int4"]
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    dense, transposed = sets["NN"], sets["NT"]

    def chosen(i: int) -> Any:
        return int4_gemm(x, weights[i % len(weights)], out)

    found: dict[str, Callable[[int], Any]] = {"int4_gemm": chosen}
    found["cuBLAS NN"] = lambda i: torch.mm(x, dense[i % len(dense)], out=out)
    found["cuBLAS NT"] = lambda i: torch.mm(x, transposed[i % len(transposed)].T, out=out)
    jobs: list[Any] = []
    for name, tile in tiles.items():
        consts = tile.consts() | {"EARLY": tile.microseconds(m, n, k) < EARLY, "GROUP": GROUP}
        found[name] = variant(x, weights, out, consts)
        jobs.append(job(x, weights[0], out, consts))
    build_all(jobs)
    return found


def fastest(m: int, n: int, k: int) -> dict[str, Tile]:
    """Tiles that should be fastest, by their names."""
    some = sorted(tiles_for(m, k), key=lambda tile: tile.microseconds(m, n, k))[:VARIANTS]
    return {f"{tile.rows}x{tile.columns}x{tile.depth}/{max(1, tile.split)}": tile for tile in some}


def given(x: Any, w: Any, out: Any) -> tuple[Any, ...]:
    """The arrays of the kernel."""
    return w.words, x[None].swapaxes(1, 2), out[None].swapaxes(1, 2), w.scales


def job(x: Any, w: Any, out: Any, consts: dict[str, Any]) -> tuple[Any, Any, str]:
    """What is compiled."""
    dispatcher = hopper_int4.dispatcher
    return hopper_int4, *dispatcher.build_of(dispatcher.launcher.bind(given(x, w, out), consts), "sm_90a")


def variant(x: Any, weights: Any, out: Any, consts: dict[str, Any]) -> Callable[[int], Any]:
    def launch(i: int) -> Any:
        w = weights[i % len(weights)]
        hopper_int4(*given(x, w, out), **consts)
        return out

    return launch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--matrices", type=int, nargs="*", help="numbers of MATRICES; all unless given")
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--seed", type=int, help="draw as many matrices and rows; nothing is written")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch: Any = import_module("torch")
    device, start = open_device("bf16"), time.perf_counter()
    lines: list[tuple[str, ...]] = []
    cases: list[dict[str, Any]] = []
    near: list[float] = []
    every_rows, matrices = tuple(args.rows), [MATRICES[i] for i in args.matrices or range(len(MATRICES))]
    if args.seed is not None:
        every_rows, matrices = drawn(args.seed)
    for n, k in matrices:
        sets = sets_of(torch, n, k, every_rows)
        sets["NT"] = [w.T.contiguous() for w in sets["NN"]]
        for m in every_rows:
            tiles = fastest(m, n, k) if args.variants else {}
            every = contenders(torch, sets, m, n, k, tiles)
            exact = sets["x"][:m].float() @ sets["exact"]
            for name, launch in list(every.items()):
                try:
                    found = launch(0).float()
                except Exception as error:  # of a variant that does not fit
                    print(f"  {name}: {str(error)[:200]}", flush=True)
                    del every[name]
                    continue
                if not float((found - exact).abs().max()) <= BOUND * float(exact.abs().max()):
                    raise RuntimeError(f"{name} is wrong at {m}x{n}x{k}")
            graphed = max(4, min(40, int(2e11 / (m * n * k)) + len(sets["int4"])))
            times = interleave(device, every, rounds=5, seconds=0.003, rest=0.006, graphed=graphed)
            best = min(("cuBLAS NN", "cuBLAS NT"), key=times.median)
            ratio = statistics.median(times.speed_ratios("int4_gemm", best))
            us = times.median("int4_gemm") * 1e3
            rate = (n * k / 2 + n * k / GROUP * 2) / us / 1e6
            lines.append((f"{m}x{n}x{k}", f"{us:.2f}", f"{ratio:.2f}", best[-2:], f"{rate:.2f}"))
            cases.append({"m": m, "n": n, "k": k, "us": us, "ratio": ratio})
            shown = sorted(every, key=times.median)[:4] if args.variants else []
            if args.variants:
                ours = [times.median(name) for name in every if not name.startswith("cuBLAS")]
                near.append(min(ours) / times.median("int4_gemm"))
                timed = [(round(times.median(name) * 1e3, 3), *tile) for name, tile in tiles.items() if name in every]
                family = "many" if m > int4_call.FEW else "few"
                line = {
                    "kernel": digest("int4"),
                    "format": "int4",
                    "family": family,
                    "seed": args.seed,
                    "layout": "packed",
                    "shape": (1, m, n, k),
                }
                with (args.out / INT4.files[0].name).open("a") as file:
                    file.write(json.dumps({**line, "cublas": times.median(best) * 1e3, "times": sorted(timed)}) + "\n")
            more = ", ".join(f"{name} {times.median(name) * 1e3:.2f}" for name in shown)
            print(f"  {m}x{n}x{k}: {us:.2f} us, {ratio:.2f} of cuBLAS, {rate:.2f} TB/s; {more}", flush=True)
        del sets
        torch.cuda.empty_cache()
    print(f"{time.perf_counter() - start:.0f} s")
    if near:
        print(f"the choice has {statistics.mean(near):.3f} of the best tile's speed, at least {min(near):.3f}")
    of = [
        ("M to 32", lambda m: m <= FEW),
        ("M of 33 to 1023", lambda m: FEW < m < MANY),
        ("M from 1024 on", lambda m: m >= MANY),
    ]
    means = [
        (name, f"{statistics.geometric_mean(r):.2f}", f"{min(r):.2f}")
        for name, holds in of
        if (r := [c["ratio"] for c in cases if holds(c["m"])])
    ]
    header = ("M x N x K", "us", "speed / cuBLAS bf16", "its layout", "weights, TB/s")
    text = table(("rows", "mean", "worst"), means) + "\n\n" + table(header, lines)
    if args.seed is not None:
        print(text)
        return 0
    write("int4", "Weights of 4 bits (groups of 128) against cuBLAS in bf16", text, {"cases": cases}, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
