"""The kernels that are mutated, with inputs that reach as much of them as they can.

All numbers are small integers, so that every sum is exact in whatever order: a result is right if its bits are those
of the exact product. Rows are padded with NaN, by a different amount in A, B and C; with beta = 0 the old C is NaN.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tiledsl.arch import target_named
from tiledsl.backends.emulator import Options
from tiledsl.compilation.lowering import lower
from tiledsl.ir.core import Kernel
from tiledsl.passes.pipeline import run_pipeline
from tiledsl.runtime.arrays import host_array
from tiledsl.runtime.dispatch import EMULATED_ARCH
from tiledsl.signatures.specialize import specialize

__all__ = ["SUBJECTS", "Built", "Input", "Subject", "built", "differences"]

GEMM = Path(__file__).parents[2] / "examples" / "gemm"
Array = Any


@dataclass(frozen=True)
class Input:
    """One run: C = alpha A B + beta C of m x n x k. Scalars of None are not given."""

    m: int
    n: int
    k: int
    alpha: float | None = None
    beta: float | None = None


@dataclass(frozen=True)
class Subject:
    """A kernel of the gallery with the consts that are mutated. `inputs`: run in this order until one of them shows
    the fault. `processors`: of the emulated GPU, few, so that a persistent block has several tiles. `pad`: elements
    that the rows of C, A, B are longer."""

    name: str
    kernel: str
    consts: Mapping[str, Any]
    inputs: tuple[Input, ...]
    operand: str = "bf16"
    result: str = "bf16"
    processors: int = 1
    pad: tuple[int, int, int] = (8, 16, 24)


DTYPES: dict[str, Any] = {
    "f32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
}


def _plain(m: int, n: int, k: int) -> tuple[Input, ...]:
    """Of a kernel that computes C = A B: a product, and an empty sum."""
    return Input(m, n, k), Input(m, n, 0)


def _scaled(m: int, n: int, k: int) -> tuple[Input, ...]:
    """Of a kernel that computes C = alpha A B + beta C: both of them, without the old C, and an empty sum."""
    return Input(m, n, k, 0.5, -1.5), Input(m, n, k, 1.0, 0.0), Input(m, n, 0, 1.0, 2.0)


def _fp32(name: str, inputs: tuple[Input, ...], label: str = "", **consts: Any) -> Subject:
    return Subject(label or name, name, consts, inputs, "f32", "f32", pad=(4, 8, 12))


def _half(name: str, inputs: tuple[Input, ...], label: str = "", **consts: Any) -> Subject:
    return Subject(label or name, name, consts, inputs)


SMALL: dict[str, Any] = {"BM": 64, "BN": 64}
HALVES: dict[str, Any] = {"BM": 128, "BN": 64, "STAGES": 2}
STAGED: dict[str, Any] = {
    "BM": 32, "BN": 32, "BK": 32, "WARP_TILE": (32, 32), "SLICES": 4, "SCHEDULE": "staged"
}  # fmt: skip
ANEW: dict[str, Any] = {"BM": 64, "BN": 64, "BK": 32, "SLICES": 4, "SCHEDULE": "anew"}
_ALL = [
    _fp32("naive", _plain(20, 36, 8)),
    _fp32("shared_tiled", _plain(20, 36, 40), T=16),
    _fp32("coarsen_1d", _scaled(72, 68, 20)),
    _fp32("coarsen_2d", _scaled(72, 132, 20)),
    _fp32("vectorized", _scaled(132, 132, 20)),
    _fp32("maxas_64", _scaled(72, 68, 20)),
    _fp32("maxas_256", _scaled(132, 132, 20)),
    _fp32("double_buffered", _scaled(132, 132, 28)),
    _fp32("staged_epilogue", _scaled(132, 132, 28)),
    _fp32("ffma_order", _scaled(132, 132, 28)),
    _fp32("fastest", _scaled(36, 36, 100), "fastest, staged", **STAGED),
    _fp32("fastest", _scaled(68, 68, 100), "fastest, anew", **ANEW),
    _half("mma_blocking", _scaled(136, 136, 72)),
    _half("mma_async", _scaled(136, 136, 136)),
    _half("mma_in_flight", _scaled(136, 136, 200)),
    _half("mma_staged", _scaled(136, 136, 136)),
    _half("mma_pipelined", _scaled(136, 136, 200)),
    _half("mma_fastest", _scaled(72, 136, 200), **SMALL, BK=32, STAGES=3, WARPS=(2, 2)),
    _half("mma_fastest", _scaled(72, 136, 264), "mma_fastest, TMA", **SMALL, BK=64, STAGES=2, WARPS=(2, 2), TMA=True),
    _half("hopper_tma", _plain(72, 72, 136), **SMALL),
    _half("hopper_ring", _plain(72, 72, 328), **SMALL, STAGES=3),
    _half("hopper_roles", _plain(136, 72, 328), **HALVES),
    _half("hopper_persistent", _plain(264, 72, 200), **HALVES),
    Subject(
        "hopper_persistent, cluster",
        "hopper_persistent",
        {**HALVES, "CLUSTER": (2, 1)},
        _plain(264, 136, 200),
        processors=2,
    ),
    _half("hopper_store", _plain(264, 136, 200), **{**HALVES, "BN": 128}),
    _half("hopper_pingpong", _plain(200, 72, 200), **SMALL, STAGES=2, OUT=1),
    _half("hopper_fastest", _plain(264, 200, 200), **{**HALVES, "BN": 192}),
    _half(
        "hopper_fastest",
        (Input(200, 136, 200, 0.5, -1.5), Input(200, 136, 0, 1.0, 2.0)),
        "hopper_fastest, add",
        **{**SMALL, "STAGES": 2, "INSTANCES": 2, "ADD_C": True},
    ),
    Subject(
        "hopper_fastest, cluster",
        "hopper_fastest",
        {**HALVES, "CLUSTER": (2, 2)},
        _plain(264, 264, 200),
        processors=4,
    ),
    Subject("hopper_scaled", "hopper_scaled", {"STAGES": 2}, (Input(136, 136, 640),), "e4m3", pad=(8, 16, 32)),
]
SUBJECTS = {subject.name: subject for subject in _ALL}


@dataclass
class Built:
    """A subject, compiled. `written`: as the frontend makes it; `lowered`: as the emulator runs it."""

    subject: Subject
    written: Kernel
    lowered: Kernel
    runs: tuple[Run, ...]
    arch: str


@dataclass
class Run:
    """`given`: by parameter; `expected`: of C, bit for bit, with all of the memory around it."""

    given: dict[str, Any]
    expected: Array

    def arguments(self) -> dict[str, Any]:
        """Fresh ones: a kernel writes C, and a wrong one anything."""
        return {name: _copied(value) if isinstance(value, np.ndarray) else value for name, value in self.given.items()}

    def options(self, subject: Subject, **options: Any) -> Options:
        return Options(checks=True, processors=subject.processors, **options)


@cache
def built(name: str) -> Built:
    subject = SUBJECTS[name]
    if str(GEMM) not in sys.path:
        sys.path.insert(0, str(GEMM))
    kernel = getattr(import_module(subject.kernel), subject.kernel)
    specs, runs = set[Any](), list[Run]()
    for each in subject.inputs:
        given, expected = _arrays(subject, each)
        values = kernel.dispatcher.launcher.bind((), {**given, **subject.consts})
        arguments = kernel.dispatcher.arguments(values, "emulator")
        specs.add(specialize(kernel.signature, arguments.arrays, arguments.consts).spec)
        hosts = {n: None if info is None else host_array(info) for n, info in arguments.arrays.items()}
        runs.append(Run({**hosts, **arguments.scalars}, expected))
    assert len(specs) == 1, f"the inputs of {name} are of several specialisations"
    found: list[Kernel] = []

    def keep(stage: str, kernel: Kernel) -> None:
        if stage == "tile":
            found.append(kernel.clone())

    arch = kernel.signature.arch or EMULATED_ARCH
    lower(kernel.signature, specs.pop(), arch, observe=keep, bounds=True, until="canonicalize")
    limit = target_named(arch).shared_per_block
    lowered = run_pipeline(found[0].clone(), shared_limit=limit, target=arch, bounds=True)
    return Built(subject, found[0], lowered, tuple(runs), arch)


def differences(run: Run, arguments: Mapping[str, Any]) -> str:
    """What is not as it should be after a run, or "". The rows' padding counts, too."""
    if _around(arguments["C"]).tobytes() != run.expected.tobytes():
        return "C is wrong"
    return next((f"{n} is written" for n in "AB" if not _same(arguments[n], run.given[n])), "")


def _same(a: Array, b: Array) -> bool:
    return _around(a).tobytes() == _around(b).tobytes()


# -- arrays ----------------------------------------------------------------------------------------


def _padded(values: Array, pad: int) -> Array:
    """The same values in rows that are so much longer, of NaN."""
    rows, columns = values.shape[-2:]
    memory = np.full((*values.shape[:-2], rows, columns + pad), np.nan, values.dtype)
    memory[..., :columns] = values
    return memory[..., :columns]


def _around(array: Array) -> Array:
    """The memory that a padded array is a part of."""
    return array if array.base is None else array.base


def _copied(array: Array) -> Array:
    """A copy of an array with all of its memory."""
    if array.base is None:
        return array.copy()
    memory = array.base.copy()
    return np.ndarray(array.shape, array.dtype, memory, 0, array.strides)


def _arrays(subject: Subject, given: Input) -> tuple[dict[str, Any], Array]:
    """Arguments by name, and what C becomes with the memory around it."""
    rng = np.random.default_rng(0)
    m, n, k = given.m, given.n, given.k
    operand, result = DTYPES[subject.operand], DTYPES[subject.result]
    A, B, old = (rng.integers(-3, 4, shape).astype(np.float64) for shape in ((m, k), (k, n), (m, n)))
    alpha, beta = (1.0 if given.alpha is None else given.alpha), given.beta or 0.0
    exact = alpha * (A @ B) + beta * old
    arrays: dict[str, Any] = {"A": A.astype(operand), "B": B.astype(operand)}
    arrays["C"] = (old if beta else np.full((m, n), np.nan)).astype(result)
    more: dict[str, Any] = {}
    if subject.kernel == "hopper_scaled":
        arrays["B"] = np.ascontiguousarray(arrays["B"].T)
        rows = np.exp2(rng.integers(-1, 2, (m, k // 128)))
        blocks = np.exp2(rng.integers(-1, 2, (-(-n // 128), k // 128)))
        more = {"scale_a": rows.astype(np.float32), "scale_b": blocks.astype(np.float32)}
        parts = (slice(at, at + 128) for at in range(0, k, 128))
        columns = blocks[np.arange(n) // 128]
        exact = sum(A[:, part] @ B[part] * rows[:, at, None] * columns[None, :, at] for at, part in enumerate(parts))
    pads = dict(zip("CAB", subject.pad, strict=True))
    arrays = {name: _padded(array, pads[name]) for name, array in arrays.items()}
    expected = _around(_copied(arrays["C"]))
    expected[:, :n] = np.asarray(exact).astype(result)
    if subject.kernel in ("fastest", "hopper_fastest"):  # they take batches
        arrays = {name: array[None] for name, array in arrays.items()}
    scalars = {name: value for name, value in (("alpha", given.alpha), ("beta", given.beta)) if value is not None}
    return {**arrays, **more, **scalars}, expected
