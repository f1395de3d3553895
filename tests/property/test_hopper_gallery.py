"""Nothing that orders the roles of a Hopper kernel is superfluous: without any one barrier, fence, arrive, wait or
commit the checks of the emulator stop it."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tiledsl.backends import emulator
from tiledsl.backends.emulator import Options
from tiledsl.errors import HazardError
from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import barriers, gpu, tma, wgmma

GEMM = Path(__file__).parents[2] / "examples" / "gemm"
CHECKED = Options(checks=True, processors=4)

ORDERING = (
    gpu.Barrier,
    barriers.NamedBarrier,
    barriers.Arrive,
    barriers.ExpectTx,
    barriers.Wait,
    barriers.FenceInit,
    barriers.FenceProxy,
    barriers.ClusterArrive,
    barriers.ClusterWait,
    wgmma.Fence,
    wgmma.Commit,
    wgmma.WaitGroup,
    tma.BulkCommit,
    tma.BulkWait,
)

# Each block has several tiles, and each tile more steps than the ring has slots.
SIZE = {"m": 512, "n": 256, "k": 320}
CASES: dict[str, dict[str, Any]] = {
    "hopper_persistent": {"BM": 128, "BN": 128, "STAGES": 3},
    "hopper_fastest": {"BM": 128, "BN": 64, "STAGES": 3, "CLUSTER": (2, 1)},
}


def called(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Kernel, dict[str, Any]]:
    """The kernel at thread level that a call emulates, and its arguments."""
    monkeypatch.setattr(sys, "path", [str(GEMM), *sys.path])
    kernel = getattr(import_module(name), name)
    rng = np.random.default_rng(0)
    shapes = {"A": (SIZE["m"], SIZE["k"]), "B": (SIZE["k"], SIZE["n"]), "C": (SIZE["m"], SIZE["n"])}
    arrays = {n: rng.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for n, shape in shapes.items()}
    if name == "hopper_fastest":  # it takes batches
        arrays = {n: array[None] for n, array in arrays.items()}
    calls: list[tuple[Kernel, dict[str, Any]]] = []

    def keep(prepared: emulator.Prepared, arguments: dict[str, Any], options: Any) -> None:
        calls.append((prepared.kernel, arguments))

    with monkeypatch.context() as patch:
        patch.setattr(emulator.Prepared, "run", keep)
        kernel(**arrays, device="emulator", **CASES[name])
    return calls[0]


def ordering(kernel: Kernel) -> list[Op]:
    return [op for op in kernel.walk() if isinstance(op, ORDERING)]


@pytest.mark.parametrize("name", CASES)
def test_each_barrier_fence_arrive_and_wait_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, arguments = called(name, monkeypatch)
    emulator.run(kernel, arguments, options=CHECKED)
    left: list[str] = []
    for number in range(len(ordering(kernel))):
        without = kernel.clone()
        op = ordering(without)[number]
        for result, operand in zip(op.results, op.operands, strict=False):
            result.replace_all_uses_with(operand)
        op.erase()
        try:
            emulator.run(without, arguments, options=CHECKED)
            left.append(f"{op.name} at {op.loc}")
        except HazardError:
            continue
    assert not left, "nothing is found without " + ", ".join(left)
