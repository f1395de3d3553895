"""Time kernels against cuBLAS and each other, on a GPU, taking turns.

    tiledsl bench examples/gemm/fastest.py
    tiledsl bench FILE:KERNEL FILE:KERNEL:BM=64,BN=128 --sizes 4096 512x64x2048
    tiledsl bench FILE:KERNEL --cache cold hot --load burst sustained

A kernel is any with three tensors A, B, C whose dimensions read as those of a product; what its own arguments leave
open (a dtype) is given by --format. Ratios are of speed: 1.05 means 5% faster than the base, cuBLAS in its fastest
layout unless --base names a kernel. Each result is checked against float64 before it is timed.

With --graph launches go by CUDA graphs: for products of a few microseconds, which else wait for the host.

cold goes round more operands than fit in L2, hot uses the same ones again; sustained launches back to back, so that
power may limit the clock, burst rests before each short batch.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiledsl.arch import MULTIPLY_ADDS
from tiledsl.errors import TileError, UsageError
from tiledsl.inspect.contenders import (
    CUBLAS,
    LAYOUTS,
    CannotRun,
    Contender,
    Operands,
    Size,
    cublas,
    fastest,
    format_of,
    read_contender,
)
from tiledsl.inspect.frameworks import Device, open_device
from tiledsl.inspect.plots import Roof, ladder, roofline, table
from tiledsl.inspect.timing import Clocks, RoundTimes, buffer_sets, interleave, quartiles
from tiledsl.outside import is_time
from tiledsl.runtime.driver import Driver, driver

LOADS = {"sustained": (0.05, 0.0), "burst": (0.005, 0.15)}
"""Seconds of a batch, and of the rest before it."""

GRAPHED = 24
"""Launches in one graph, at least."""

COPIED = 1 << 30
"""Bytes of the copy that measures the memory: far more than L2 holds."""

BEST = "best"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `run`."""
    parser.add_argument("kernels", nargs="+", metavar="FILE:KERNEL[:CONST=VALUE,...]")
    parser.add_argument("--sizes", nargs="+", type=parse_size, metavar="[BATCHx]MxNxK", default=[(4096, 4096, 4096)])
    parser.add_argument("--format", default="", help="f32, f16, bf16, tf32, e4m3, e5m2, i8, u8 or f64")
    parser.add_argument("--cache", nargs="+", choices=("cold", "hot"), default=["cold"])
    parser.add_argument("--load", nargs="+", choices=tuple(LOADS), default=["sustained"])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, help="of one contender in one round; 0.05, in a burst 0.005")
    stored = "how kernels get A and B: by default as they declare them; best: each as it is fastest, like cuBLAS"
    parser.add_argument("--stored", choices=(*LAYOUTS, BEST), help=stored)
    parser.add_argument("--base", default=CUBLAS, metavar="LABEL", help="what ratios are taken to, by its label")
    parser.add_argument("--graph", action="store_true", help="launches by CUDA graphs, without the host's part (torch)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures, too")


def parse_size(text: str) -> tuple[int, ...]:
    """``4096``, ``777x1003x519`` (M x N x K) or ``16x1024x1024x64`` (a batch of them)."""
    try:
        parts = tuple(int(p) for p in text.split("x"))
    except ValueError:
        parts = ()
    if len(parts) not in (1, 3, 4) or min(parts) < 1:
        raise argparse.ArgumentTypeError(f"expected N, MxNxK or BATCHxMxNxK, got {text!r}")
    return parts * 3 if len(parts) == 1 else parts


def run(arguments: argparse.Namespace) -> int:
    """Time and print."""
    if arguments.rounds < 1 or not (arguments.seconds is None or is_time(arguments.seconds)):
        given = f"{arguments.rounds} and {arguments.seconds}"
        raise UsageError(f"bench: --rounds is 1 or more, --seconds a time above 0; got {given}\n  fix: leave them out")
    contenders = [read_contender(text) for text in arguments.kernels]
    format = format_of(contenders, arguments.format)
    if arguments.base not in (CUBLAS, *(c.label for c in contenders)):
        labels = ", ".join(c.label for c in contenders)
        raise UsageError(f"bench: no contender {arguments.base!r}; there are {labels}\n  fix: name one of them")
    device = open_device(format)
    cases: list[dict[str, Any]] = []
    with Clocks() as clocks:
        for numbers in arguments.sizes:
            for cache in arguments.cache:
                cases += _measure(device, contenders, numbers, cache, arguments, clocks)
    roof = _roof(driver(), device, format)
    for cache in arguments.cache:
        for load in arguments.load:
            chosen = [c for c in cases if (c["cache"], c["load"]) == (cache, load)]
            print(_report(f"{format}, {cache}, {load}", chosen, roof), flush=True)
    if arguments.json is not None:
        data = {"format": format, "roof": {"tflops": roof.peak, "tb_per_s": roof.memory}, "cases": cases}
        arguments.json.write_text(json.dumps(data, indent=1) + "\n")
    return 0


# -- measuring -------------------------------------------------------------------------------------------


def _measure(
    device: Device,
    contenders: Sequence[Contender],
    numbers: tuple[int, ...],
    cache: str,
    arguments: argparse.Namespace,
    clocks: Clocks,
) -> list[dict[str, Any]]:
    """One record for each contender and load at one size."""
    size = Size(*numbers[-3:], batch=numbers[0] if len(numbers) == 4 else 0)
    fitting = [c for c in contenders if c.takes(size)]
    if not fitting:
        raise UsageError(f"bench: {contenders[0].label} takes no batch\n  fix: give MxNxK")
    sets = buffer_sets(size.bytes(device.itemsizes), cold=cache == "cold")
    operands = Operands(device, size, sets)
    graphed = max(GRAPHED, sets) if arguments.graph else 1  # a graph goes round all operands
    layout, base = cublas(operands, graphed)
    launches, stored = {CUBLAS: base}, dict[str, str]()
    for each in fitting:
        layouts = LAYOUTS if arguments.stored == BEST else (arguments.stored or each.roles.layout,)
        try:
            stored[each.label], launches[each.label] = fastest(each, operands, layouts, graphed)
        except CannotRun as error:
            print(f"  {error}", flush=True)
    if arguments.base not in launches:
        raise TileError(f"bench: the base {arguments.base} cannot run at {size}")
    found: list[dict[str, Any]] = []
    for load in arguments.load:
        seconds, rest = LOADS[load]
        start = time.perf_counter()
        seconds = arguments.seconds or seconds
        timing = interleave(device, launches, rounds=arguments.rounds, seconds=seconds, rest=rest, graphed=graphed)
        noted = {"cache": cache, "load": load, "layout": layout, "stored": stored, "sets": operands.sets}
        noted["intensity"] = 2 * math.prod(numbers) / size.bytes(device.itemsizes)
        found += summarize(timing, numbers, arguments.base, {**noted, **clocks.since(start)})
        print(f"  {size} {cache} {load} timed in {time.perf_counter() - start:.1f} s", flush=True)
    return found


def summarize(timing: RoundTimes, size: tuple[int, ...], base: str, noted: dict[str, Any]) -> list[dict[str, Any]]:
    """One record for each contender at `size` (`parse_size`): median time, TFLOP/s, quartiles of its speed over
    `base`'s."""
    records: list[dict[str, Any]] = []
    for name in timing.rounds:
        low, middle, high = quartiles(timing.speed_ratios(name, base))
        ms = timing.median(name)
        records.append(
            {
                "kernel": name,
                "size": [*size],
                "ms": round(ms, 6),
                "tflops": _digits(2e-9 * math.prod(size) / ms),
                "base": base,
                "ratio": _digits(middle),
                "ratio_quartiles": [_digits(low), _digits(high)],
                **noted,
            }
        )
    return records


def _digits(value: float) -> float:
    """What a measurement is worth writing down of."""
    return float(f"{value:.5g}")


def _roof(gpu: Driver, device: Device, format: str) -> Roof:
    """The memory as a copy finds it just now; the arithmetic by the table and the highest clock."""
    used = gpu.devices[gpu.current_device()]
    clock = gpu.cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CLOCK_RATE
    khz = gpu.check(gpu.cu.cuDeviceGetAttribute(clock, used.handle), "reading the clock of the GPU")
    source, target = (device.empty(1, COPIED // device.itemsizes[1]) for _ in range(2))

    def copy(number: int) -> None:
        target[...] = source

    taken = min(interleave(device, {"copy": copy}, rounds=8, seconds=0.001).rounds["copy"])
    peak = 2 * MULTIPLY_ADDS.get(used.capability, {}).get(format, 0)
    return Roof(1e-9 * peak * used.processors * khz, 2e-9 * COPIED / taken)


# -- printing --------------------------------------------------------------------------------------------


def _report(title: str, cases: Sequence[dict[str, Any]], roof: Roof) -> str:
    """The table, the mean ratio of each contender, a ladder for each size, the roofline."""
    base = cases[0]["base"]
    parts = [f"\n{title}\n", as_table(cases)]
    sizes = list(dict.fromkeys(tuple(c["size"]) for c in cases))
    for name in dict.fromkeys(c["kernel"] for c in cases if len(sizes) > 1 and c["kernel"] != base):
        mean, worst = share_of(cases, name)
        parts.append(f"{name}: geometric mean {mean:.3f}, worst {worst:.3f} of {base}")
    for size in sizes:
        own = [c for c in cases if tuple(c["size"]) == size]
        shown = f"\n{'x'.join(map(str, size))}: TFLOP/s, and the share of {base}; {CUBLAS} has {own[0]['layout']}"
        parts.append(ladder(shown, {c["kernel"]: c["tflops"] for c in own}, base))
    points = [(c["kernel"], c["intensity"], c["tflops"]) for c in cases]
    return "\n".join([*parts, "", roofline("roofline", roof, points)])


def share_of(cases: Sequence[dict[str, Any]], name: str) -> tuple[float, float]:
    """Speed over the base's: geometric mean and worst of the sizes."""
    ratios = [c["ratio"] for c in cases if c["kernel"] == name]
    return statistics.geometric_mean(ratios), min(ratios)


def as_table(cases: Sequence[dict[str, Any]]) -> str:
    """The records of `summarize`, one line each."""
    header = ("kernel", "M x N x K", "ms", "TFLOP/s", f"speed / {cases[0]['base']}", "quartiles", "SM MHz", "W")
    rows = [
        (
            case["kernel"],
            "x".join(map(str, case["size"])),
            f"{case['ms']:.4g}",
            f"{case['tflops']:.2f}",
            f"{case['ratio']:.3f}",
            "{:.3f}-{:.3f}".format(*case["ratio_quartiles"]),
            f"{case.get('sm_mhz', 0):.0f}",
            f"{case.get('watts', 0):.0f}",
        )
        for case in cases
    ]
    return table(header, rows)
