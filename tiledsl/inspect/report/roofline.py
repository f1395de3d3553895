"""The roofline of a report: what a launch computes and moves, against what GPUs can do. Nothing here was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tiledsl.arch import GPUS, MULTIPLY_ADDS, Gpu, target_named
from tiledsl.backends.emulator.work import SCALAR, Work
from tiledsl.inspect.report.data import Roof, Roofline
from tiledsl.ir.expr import PROCESSORS, evaluate, parse_expr


def roofline_of(work: Work, arch: str, grid: Sequence[str], sizes: Mapping[str, int]) -> Roofline:
    """work: of a run. grid: the kernel's, as text; sizes: what it may name."""
    operations = {f"{dtype} tensor cores": 2 * count for dtype, count in sorted(work.tensor.items())}
    for (dtype, name), count in sorted(work.scalar.items()):
        operations[dtype] = operations.get(dtype, 0) + SCALAR[name] * count
    roofs: list[Roof] = []
    for gpu in GPUS:
        if gpu.capability == target_named(arch).capability and work.blocks and work.distinct:
            blocks = prod(evaluate(parse_expr(size), {**sizes, PROCESSORS: gpu.processors}) for size in grid)
            roofs.append(_roof(work, gpu, blocks))
    return Roofline(operations, work.read + work.written, work.distinct, roofs)


def _roof(work: Work, gpu: Gpu, blocks: int) -> Roof:
    """An FMA, an addition and a multiplication take a slot of the fp32 units each."""
    rates = MULTIPLY_ADDS[gpu.capability]
    busy = min(gpu.processors, blocks)
    clock = 1e6 * gpu.mhz
    tensor = sum(count / rates[dtype] for dtype, count in work.tensor.items())  # clocks of one SM
    scalar = sum(count for (dtype, _), count in work.scalar.items() if dtype == "f32") / rates["f32"]
    us = {
        "tensor cores": 1e6 * tensor / (busy * clock),
        "fp32 units": 1e6 * scalar / (busy * clock),
        "memory": 1e6 * work.distinct / gpu.memory,
    }
    us = {name: time for name, time in us.items() if time}
    longest = max(tensor, scalar)
    peak = 1e-12 * work.operations * gpu.processors * clock / longest if longest else 0.0
    return Roof(
        gpu.name, gpu.processors, blocks, gpu.mhz, _digits(peak), _digits(1e-12 * gpu.memory),
        {name: _digits(time) for name, time in us.items()}, max(us, key=lambda name: us[name]),
    )  # fmt: skip


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
