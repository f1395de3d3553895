"""`gemm` against cuBLAS on random shapes of several families: mean and worst. Needs an H200, and torch.

    python -m benchmarks.random_shapes --seed 7
    python -m benchmarks.random_shapes --seed 7 --first 10 --families deep decode --format f16 --cache hot
    python -m benchmarks.random_shapes --seed 7 --families square llm large medium --format e4m3
    python -m benchmarks.random_shapes --seed 7 --count 2 --lt

Shapes depend on the family and the seed alone; extents of 8-bit operands are multiples of 16 besides, as cuBLAS needs.
The families square and llm, which are measured if asked for, are those of `benchmarks.hopper`, whatever the seed is.
A run times --count shapes of each family, from number --first on, and adds them to what the file of results has of the
same format, cache and load, so that many short runs make one table.

Launches go by CUDA graphs, so that host time does not count; contenders take turns. A ratio is of speed, to cuBLAS in
the fastest of its four layouts. Ours is timed with B along k (NT) and in row order (NN), each by itself. rested: the
GPU does nothing for 20 ms before each batch of 12 ms; sustained: batches follow each other, and power limits the clock.

--lt: ratios are to the fastest algorithm of those that cuBLASLt's heuristics propose, each timed, which takes seconds
a shape (`benchmarks.cublaslt`). cuBLAS as torch calls it is timed beside them.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cublaslt import CUBLASLT, CublasLt
from benchmarks.device import open_device
from benchmarks.hopper import FAMILIES as NAMED
from benchmarks.report import RESULTS, table, write
from tiledsl.gemm import gemm, warmup
from tiledsl.inspect.bench import GRAPHED, share_of, summarize
from tiledsl.inspect.contenders import CUBLAS, Contender, Operands, Roles, Size, cublas
from tiledsl.inspect.frameworks import Device
from tiledsl.inspect.timing import buffer_sets, interleave
from tiledsl.ir.types import DTYPES

__all__ = ["FAMILIES", "main", "multiple_for", "shapes"]

Range = tuple[int, int]
FAMILIES: dict[str, tuple[Range, Range, Range, int]] = {
    "large": ((1024, 16384), (1024, 16384), (1024, 16384), 64),
    "medium": ((128, 4096), (128, 4096), (128, 4096), 8),
    "small": ((16, 1024), (16, 1024), (64, 4096), 8),
    "decode": ((1, 128), (1024, 32768), (1024, 32768), 64),
    "deep": ((64, 1024), (64, 1024), (4096, 131072), 64),
    "thin": ((1024, 16384), (1024, 16384), (16, 512), 8),
    "ragged": ((17, 8192), (17, 8192), (17, 8192), 1),
    "batched": ((16, 2048), (16, 2048), (16, 2048), 8),
}
"""The ranges of M, N and K, log-uniform, and what they are multiples of; M of decode is any integer."""

FIXED = {family: NAMED[family][2].split() for family in ("square", "llm")}
"""Shapes that everyone measures: M x N x K, or one number."""

LOADS = {"rested": (0.012, 0.02), "sustained": (0.02, 0.0)}
"""Seconds of a batch, and of the rest before it."""

LAYOUTS = ("NT", "NN")
FORMATS = ("bf16", "f16", "f32", "tf32", "e4m3", "e5m2", "i8")


def multiple_for(format: str) -> int:
    """What divides the extents of shapes that cuBLAS takes in this format."""
    return 16 if DTYPES[format].bytes == 1 else 1


def shapes(family: str, seed: int, count: int, multiple: int = 1) -> list[Size]:
    """The first `count` shapes of a family: 2^18 to 2^40 multiplications, and operands of at most 3 GB in f32. A
    ragged shape has an odd extent. multiple: divides all extents but M of decode. Of FIXED families, as many as there
    are."""
    if family in FIXED:
        extents = ([int(x) for x in text.split("x")] for text in FIXED[family][:count])
        return [Size(*(e * 3 if len(e) == 1 else e)) for e in extents]
    *ranges, least = FAMILIES[family]
    step = math.lcm(least, multiple)
    drawn = random.Random(f"{family} {seed}")

    def draw(range: Range, step: int) -> int:
        low, high = range
        exact = math.exp(drawn.uniform(math.log(low), math.log(high)))
        return max(low, min(high, round(exact / step) * step))

    found: list[Size] = []
    while len(found) < count:
        m, n, k = (draw(r, 1 if family == "decode" and i == 0 else step) for i, r in enumerate(ranges))
        batch = draw((2, 256), 1) if family == "batched" else 0
        size = Size(m, n, k, batch)
        even = family == "ragged" and not (m | n | k) & 1
        if 1 << 18 <= math.prod(size.numbers) <= 1 << 40 and size.bytes((4, 4)) <= 3e9 and not even:
            found.append(size)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--families", nargs="+", choices=(*FAMILIES, *FIXED), default=list(FAMILIES))
    parser.add_argument("--count", type=int, default=10, help="shapes of a family")
    parser.add_argument("--first", type=int, default=0, help="the number of the first of them")
    parser.add_argument("--format", choices=FORMATS, default="bf16")
    parser.add_argument("--cache", choices=("cold", "hot"), default="cold", help="operands in L2")
    parser.add_argument("--load", choices=tuple(LOADS), default="rested")
    parser.add_argument("--lt", action="store_true", help="against the best of cuBLASLt; needs nvcc")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    name = f"random_shapes_{args.format}_{args.cache}_{args.load}{'_lt' if args.lt else ''}"
    device = open_device(args.format)
    lt = CublasLt() if args.lt else None
    cases = _earlier(args.out / f"{name}.json")
    last = args.first + args.count
    multiple = multiple_for(args.format)
    drawn = ((family, shapes(family, args.seed, last, multiple)[args.first :]) for family in args.families)
    sizes = [(family, size) for family, found in drawn for size in found]
    dtype, precision = ("f32", "tf32") if args.format == "tf32" else (args.format, None)
    warmup([size.numbers for _, size in sizes], dtype, precision=precision, layouts=LAYOUTS)  # by several processes
    title = f"gemm on random shapes against {CUBLASLT if lt else CUBLAS}, {args.format}, {args.cache}, {args.load}"
    try:
        for family, size in sizes:
            start = time.perf_counter()
            noted = {"family": family, "seed": args.seed}
            found = _measure(device, size, args.cache, args.load, args.rounds, noted, lt)
            known = {(case["family"], case["seed"], *case["size"]) for case in found}
            cases = [c for c in cases if (c["family"], c["seed"], *c["size"]) not in known] + found
            shown = " ".join(f"{c['kernel']} {c['ratio']:.3f}" for c in found if c["kernel"] != c["base"])
            print(f"  {family} {size}: {shown} ({time.perf_counter() - start:.1f} s)", flush=True)
    finally:  # an interrupted run keeps what it has
        if cases:
            write(name, title, _summary(cases), {"cases": cases}, args.out)
    return 0


def _earlier(file: Path) -> list[dict[str, Any]]:
    return json.loads(file.read_text())["cases"] if file.exists() else []


def _measure(
    device: Device, size: Size, cache: str, load: str, rounds: int, noted: dict[str, Any], lt: CublasLt | None
) -> list[dict[str, Any]]:
    """A record for cuBLAS, for cuBLASLt if asked for, which is the base then, and for ours in each layout; results have
    been checked."""
    sets = buffer_sets(size.bytes(device.itemsizes), cold=cache == "cold")
    operands, graphed = Operands(device, size, sets), max(GRAPHED, sets)  # so that a graph goes round all of them
    layout, base = cublas(operands, graphed)
    launches, against = {CUBLAS: base}, CUBLAS
    if lt is not None:
        against = CUBLASLT
        layout, launches[CUBLASLT] = lt.fastest(operands, graphed)
    function = partial(gemm, precision="tf32") if device.format == "tf32" else gemm
    ours = Contender("gemm", function, {}, Roles("A", "B", "C"))
    for stored in LAYOUTS:
        launches[stored] = ours.launcher(operands, stored)
        operands.check(f"gemm {stored}", launches[stored])
    seconds, rest = LOADS[load]
    timing = interleave(device, launches, rounds=rounds, seconds=seconds, rest=rest, graphed=graphed)
    return summarize(timing, size.numbers, against, {"layout": layout, **noted})


def _summary(cases: Sequence[dict[str, Any]]) -> str:
    """Mean and worst by family, then every shape."""
    base = cases[0]["base"]
    kernels = [*LAYOUTS, *([CUBLAS] if base != CUBLAS else [])]
    rows: list[tuple[str, ...]] = []
    for family in dict.fromkeys(c["family"] for c in cases):
        own = [c for c in cases if c["family"] == family]
        means = [f"{value:.3f}" for kernel in kernels for value in share_of(own, kernel)]
        rows.append((family, str(sum(c["kernel"] == base for c in own)), *means))
    header = ("family", "shapes", *(f"{kernel} {what}" for kernel in kernels for what in ("mean", "worst")))
    each = [
        (
            c["family"],
            "x".join(map(str, c["size"])),
            c["kernel"],
            f"{c['ms'] * 1e3:.2f}",
            f"{c['ratio']:.3f}",
            c["layout"],
        )
        for c in cases
        if c["kernel"] != base
    ]
    names = ("family", "M x N x K", "kernel", "us", f"speed / {base}", "its layout")
    return f"{table(header, rows)}\n\n{table(names, each)}"


if __name__ == "__main__":
    sys.exit(main())
