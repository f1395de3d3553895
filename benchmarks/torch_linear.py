"""A compiled linear layer by `tiledsl.torch` against torch's own, bf16, on random shapes. Needs an H200, and torch.

    python -m benchmarks.torch_linear --seed 11 --count 4

The functions x W^T and x W^T + b, with x [M, K] and W [N, K], are compiled by torch.compile (fullgraph, fixed shapes)
and called without gradients, on operands that go round so that L2 never holds them. They are timed in two ways: in a
CUDA graph, where the GPU alone counts, and call by call, where the host's part counts, too: guards, the compiled
wrapper, the launch. Contenders take turns; a ratio is of speed, to torch in the same round.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.device import open_device
from benchmarks.random_shapes import FAMILIES, shapes
from benchmarks.report import RESULTS, table, write
from tiledsl.gemm import warmup
from tiledsl.inspect.bench import GRAPHED
from tiledsl.inspect.contenders import Size
from tiledsl.inspect.frameworks import Device
from tiledsl.inspect.timing import buffer_sets, interleave, quartiles

__all__ = ["main"]

ASKED = ("decode", "medium", "large")
WAYS = ("graph", "calls")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--families", nargs="+", choices=tuple(FAMILIES), default=list(ASKED))
    parser.add_argument("--count", type=int, default=4, help="shapes of a family")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.01, help="of a batch; the GPU rests as long before it")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    device = open_device("bf16")
    import torch

    # As torch is by default; `open_device` makes cuBLAS keep partial sums in f32.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    sizes = [(family, size) for family in args.families for size in shapes(family, args.seed, args.count)]
    for bias in (False, True):
        warmup([size.numbers for _, size in sizes], layouts=("NT",), bias=bias)  # compiles in several processes
    cases: list[dict[str, Any]] = []
    for family, size in sizes:
        with torch.no_grad():
            found = list(_measured(torch, device, size, args.rounds, args.seconds))
        cases += [{"family": family, "seed": args.seed, "size": list(size.numbers), **case} for case in found]
        shown = ", ".join(f"{case['layer']} {case['way']} {case['ratio'][1]:.3f}" for case in found)
        print(f"  {family} {size}: {shown}", flush=True)
    write(
        "torch_linear",
        "A compiled linear layer, bf16, against torch's own",
        _summary(cases),
        {"cases": cases},
        args.out,
    )
    return 0


def _measured(torch: Any, device: Device, size: Size, rounds: int, seconds: float) -> Iterator[dict[str, Any]]:
    from torch.nn import functional

    from tiledsl.torch import gemm

    functions: dict[str, Callable[..., Any]] = {
        "torch": functional.linear,
        "ours": lambda x, w: gemm(x, w.mT),
        "torch, bias": functional.linear,
        "ours, bias": lambda x, w, b: gemm(x, w.mT, b),
    }
    torch._dynamo.reset()
    sets = buffer_sets(size.bytes((2, 2)), cold=True)
    made = [(device.normal(size.m, size.k, 2 * i), device.normal(size.n, size.k, 2 * i + 1)) for i in range(sets)]
    b = torch.randn(size.n, device="cuda")
    launches: dict[str, Callable[[int], Any]] = {}
    results: dict[str, Any] = {}
    for name, function in functions.items():
        more = ((b.bfloat16() if "torch" in name else b.bfloat16().float()),) if "bias" in name else ()
        layer = torch.compile(function, fullgraph=True, dynamic=False)
        launches[name] = lambda i, layer=layer, more=more: layer(*made[i % sets], *more)
        results[name] = launches[name](0)
    for behind in ("", ", bias"):
        _check(results[f"ours{behind}"], results[f"torch{behind}"], size)
    for way in WAYS:
        graphed = max(GRAPHED, sets) if way == "graph" else 1
        timing = interleave(device, launches, rounds=rounds, seconds=seconds, rest=seconds, graphed=graphed)
        for layer, behind in (("x W^T", ""), ("x W^T + b", ", bias")):
            ratios = timing.speed_ratios(f"ours{behind}", f"torch{behind}")
            times = {who: timing.median(f"{who}{behind}") * 1e3 for who in ("ours", "torch")}
            yield {"layer": layer, "way": way, "ratio": quartiles(ratios), "microseconds": times}


def _check(ours: Any, theirs: Any, size: Size) -> None:
    """Both round sums in f32 to bf16: they differ by an ulp, and where sums cancel by what these are off."""
    off = (ours.float() - theirs.float()).abs() - 2.0**-7 * theirs.float().abs()
    if not bool((off <= 2e-3 * math.sqrt(size.k)).all()):
        raise SystemExit(f"{size}: our layer differs from torch's by {float(off.max()):.3g} more than an ulp")


def _summary(cases: list[dict[str, Any]]) -> str:
    """Mean and worst by family, then every shape."""
    rows: list[tuple[str, ...]] = []
    for family in dict.fromkeys(case["family"] for case in cases):
        for layer in dict.fromkeys(case["layer"] for case in cases):
            cells: list[str] = []
            for way in WAYS:
                of = [c["ratio"][1] for c in cases if (c["family"], c["layer"], c["way"]) == (family, layer, way)]
                cells += [f"{statistics.mean(of):.3f}", f"{min(of):.3f}"]
            rows.append((family, layer, str(len(of)), *cells))
    header = ("family", "layer", "shapes", "graph, mean", "worst", "calls, mean", "worst")
    each = [
        (
            case["family"],
            "x".join(map(str, case["size"])),
            case["layer"],
            case["way"],
            *(f"{case['microseconds'][who]:.2f}" for who in ("ours", "torch")),
            "{1:.3f} ({0:.3f} to {2:.3f})".format(*case["ratio"]),
        )
        for case in cases
    ]
    names = ("family", "M x N x K", "layer", "timed", "ours, us", "torch, us", "speed, ours to torch's")
    return f"{table(header, rows)}\n\n{table(names, each)}"


if __name__ == "__main__":
    sys.exit(main())
