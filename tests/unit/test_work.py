"""What a launch computes and moves, counted as it runs, and the roofline of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from examples.gemm.hopper_roles import hopper_roles
from examples.gemm.mma_blocking import mma_blocking
from examples.gemm.shared_tiled import shared_tiled
from tiledsl import Global, cdiv, f32, grid, tile_kernel
from tiledsl import threads as threads_of
from tiledsl.arch import GPUS, MULTIPLY_ADDS
from tiledsl.backends.emulator import Options, run
from tiledsl.backends.emulator.work import Work
from tiledsl.compilation.lowering import lower
from tiledsl.dims import N
from tiledsl.inspect.inputs import arguments_of, values_of
from tiledsl.inspect.report.roofline import roofline_of
from tiledsl.kernel import TileKernel


def work(kernel: TileKernel, sizes: list[str], arch: str = "sm_90a", level: str = "", **settings: Any) -> Work:
    """level: "tile" for the kernel as it is written, else what a machine runs."""
    spec, arch = kernel.specialized(arch, settings)
    given = arguments_of(kernel, settings, values_of(kernel, "--check", sizes), np.zeros)
    arrays = {name: value for name, value in given.items() if name not in settings}
    stages: dict[str, Any] = {}
    lower(kernel.signature, spec, arch, observe=lambda stage, made: stages.setdefault(stage, made.clone()))
    found = Work()
    run(stages[level or "thread"], arrays, options=Options(hooks=(found,)))
    return found


@tile_kernel
def scaled(X: Global[f32, N], Y: Global[f32, N]):
    i = grid(cdiv(N, 64)) * 64 + threads_of(64)
    if i < N:
        Y[i] = f32(2) * X[i] + X[0]


@pytest.mark.parametrize("level", ["tile", "thread"])
def test_lanes_that_take_part_are_counted(level: str) -> None:
    found = work(scaled, ["N=100"], level=level)
    assert found.scalar == {("f32", "fma"): 100} and not found.tensor
    assert (found.operations, found.blocks) == (200, 2)
    assert (found.read, found.written, found.distinct) == (800, 400, 800)


@pytest.mark.parametrize("level", ["tile", "thread"])
def test_a_product_in_shared_memory_reads_its_operands_again_and_again(level: str) -> None:
    found = work(shared_tiled, ["M=32", "N=48", "K=64"], level=level, T=16)
    assert found.operations == 2 * 32 * 48 * 64
    assert found.distinct == 4 * (32 * 64 + 64 * 48 + 32 * 48)
    assert found.read == 4 * (32 * 64 * 3 + 64 * 48 * 2) and found.written == 4 * 32 * 48


@pytest.mark.parametrize("level", ["tile", "thread"])
def test_products_on_tensor_cores(level: str) -> None:
    assert work(mma_blocking, ["M=128", "N=128", "K=64", "alpha=1", "beta=0"], "sm_80", level, D="f16").tensor == {
        "f16": 128 * 128 * 64
    }
    if level == "thread":  # roles have no rules of their own
        settings: dict[str, Any] = {"D": "bf16", "BM": 128, "BN": 64, "BK": 64, "STAGES": 2}
        found = work(hopper_roles, ["M=128", "N=128", "K=128"], **settings)
        assert found.tensor == {"bf16": 128 * 128 * 128}
        assert found.distinct == 3 * 2 * 128 * 128 and found.read == 2 * (2 * 128 * 128 + 128 * 128)


def test_the_peaks_are_those_of_the_datasheets() -> None:
    """Dense TFLOP/s of f16."""
    for gpu, expected in zip(GPUS, (312, 989.4, 989.4), strict=True):
        peak = 2 * MULTIPLY_ADDS[gpu.capability]["f16"] * gpu.processors * gpu.mhz * 1e6
        assert peak == pytest.approx(1e12 * expected, rel=1e-3)


def test_the_roofline_by_hand() -> None:
    found = Work()
    found.tensor["bf16"], found.blocks, found.read = 132 * 2048 * 1830, 66, 1000
    found.scalar["f32", "add"] = 128 * 1830
    found._tensors, found._touched = {"X": _Four()}, {("X", False): np.ones(3350000, np.bool_)}  # type: ignore[dict-item]
    made = roofline_of(found, "sm_90a", ["floordiv(M, 2)"], {"M": 132})
    assert made.operations == {"bf16 tensor cores": 2 * 132 * 2048 * 1830, "f32": 128 * 1830}
    assert [roof.gpu for roof in made.roofs] == ["H100 SXM", "H200 SXM"]
    first = made.roofs[0]
    # Half of the SMs have a block: what all do in a microsecond takes two.
    assert first.us == {"tensor cores": 2.0, "fp32 units": 0.01515, "memory": 4.0} and first.limiter == "memory"
    assert (first.blocks, first.processors) == (66, 132)
    assert first.peak == pytest.approx(989.4, rel=1e-3)
    (persistent, _) = roofline_of(found, "sm_90a", ["min(processors, M)", "2"], {"M": 1000}).roofs
    assert persistent.blocks == 264 and persistent.us["tensor cores"] == 1.0
    assert roofline_of(found, "sm_89", ["1"], {}).roofs == []


class _Four:
    size = 4
