"""A mutated kernel, its inputs, and the arrays that they stand for, with the exact result.

All numbers are small integers, so that every sum is exact in whatever order: a result is right if its bits are those
of the exact product. Rows are padded with NaN, by a different amount in A, B and C; with beta = 0 the old C is NaN,
with alpha = 0 all of A and B.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tests.mutation.kernels import REFERENCES, SCRATCH

__all__ = ["Input", "Subject", "around", "arrays", "copied", "gallery_file"]

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
    processors: int = 2
    pad: tuple[int, int, int] = (8, 16, 24)

    @property
    def scratch(self) -> frozenset[str]:
        """Return the names of the arrays that the kernel writes besides C."""
        return frozenset(SCRATCH.get(self.kernel, ()))


DTYPES: dict[str, Any] = {
    "f32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
}


def gallery_file(name: str) -> Any:
    """A module of the gallery."""
    if str(GEMM) not in sys.path:
        sys.path.insert(0, str(GEMM))
    return import_module(name)


# -- memory ----------------------------------------------------------------------------------------


def _padded(values: Array, pad: int) -> Array:
    """The same values in rows that end with NaN: so much longer, after whole 32 bytes."""
    columns, whole = values.shape[-1], 32 // values.itemsize
    memory = np.full((*values.shape[:-1], -(-columns // whole) * whole + pad), np.nan, values.dtype)
    memory[..., :columns] = values
    return memory[..., :columns]


def around(array: Array) -> Array:
    """The memory that a padded array is a part of."""
    return array if array.base is None else array.base


def copied(array: Array) -> Array:
    """A copy of an array with all of its memory."""
    if array.base is None:
        return array.copy()
    memory = array.base.copy()
    return np.ndarray(array.shape, array.dtype, memory, 0, array.strides)


# -- products --------------------------------------------------------------------------------------


def arrays(subject: Subject, given: Input) -> tuple[dict[str, Any], Array]:
    """Arguments by name, and what C becomes with the memory around it."""
    rng = np.random.default_rng(0)
    make = {"hopper_scaled": _scaled, "hopper_split": _planes, "hopper_int4": _packed}.get(subject.kernel, _product)
    make = _outside if subject.kernel in REFERENCES else make
    found, exact = make(subject, given, rng)
    pads = dict(zip(("C", "A", "B", "X", "scales"), (*subject.pad, *subject.pad[1:]), strict=True))
    found = {name: _padded(value, pads[name]) if name in pads else value for name, value in found.items()}
    expected = around(copied(found["C"]))
    expected[..., : given.n] = np.asarray(exact).astype(DTYPES[subject.result])
    scalars = {name: value for name, value in (("alpha", given.alpha), ("beta", given.beta)) if value is not None}
    return {**found, **scalars}, expected


Made = tuple[dict[str, Any], Array]
"""Arrays without padding, and the exact C."""


def _integers(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(-3, 4, shape).astype(np.float64)


def _nothing(subject: Subject, given: Input) -> Array:
    return np.full((given.m, given.n), np.nan, DTYPES[subject.result])


def _product(subject: Subject, given: Input, rng: np.random.Generator) -> Made:
    m, n, k = given.m, given.n, given.k
    operand, result = DTYPES[subject.operand], DTYPES[subject.result]
    batches = (2,) if subject.kernel in ("fastest", "hopper_fastest") else ()
    A, B, old = (_integers(rng, *batches, *each) for each in ((m, k), (k, n), (m, n)))
    alpha, beta = (1.0 if given.alpha is None else given.alpha), given.beta or 0.0
    found = {"A": A.astype(operand), "B": B.astype(operand)}
    if alpha == 0:
        found = {name: np.full_like(value, np.nan) for name, value in found.items()}
    found["C"] = (old if beta else np.full_like(old, np.nan)).astype(result)
    return found, alpha * (A @ B) + beta * old


def _outside(subject: Subject, given: Input, rng: np.random.Generator) -> Made:
    A = _integers(rng, given.m, given.n)
    exact = REFERENCES[subject.kernel](A)
    C = np.zeros_like(exact) if subject.kernel == "locked" else np.full_like(exact, np.nan)
    found = {"A": A.astype(DTYPES[subject.operand]), "C": C.astype(DTYPES[subject.result])}
    for name, kind in SCRATCH.get(subject.kernel, {}).items():
        rows = np.full_like(A, np.nan, np.float32)
        found[name] = rows if kind == "rows" else np.zeros(given.m if kind == "counters" else 1, np.int32)
    return found, exact


def _scaled(subject: Subject, given: Input, rng: np.random.Generator) -> Made:
    m, n, k = given.m, given.n, given.k
    A, B = _integers(rng, m, k), _integers(rng, k, n)
    rows = np.exp2(rng.integers(-1, 2, (m, k // 128)))
    blocks = np.exp2(rng.integers(-1, 2, (-(-n // 128), k // 128)))
    parts = (slice(at, at + 128) for at in range(0, k, 128))
    columns = blocks[np.arange(n) // 128]
    exact = sum(A[:, part] @ B[part] * rows[:, at, None] * columns[None, :, at] for at, part in enumerate(parts))
    operand = DTYPES[subject.operand]
    found = {"A": A.astype(operand), "B": np.ascontiguousarray(B.T.astype(operand)), "C": _nothing(subject, given)}
    return {**found, "scale_a": rows.astype(np.float32), "scale_b": blocks.astype(np.float32)}, exact


def _planes(subject: Subject, given: Input, rng: np.random.Generator) -> Made:
    """Three planes of numbers of their own, of which no two products are equal."""
    m, n, k = given.m, given.n, given.k
    A, B = _integers(rng, 3, m, k), _integers(rng, 3, n, k)
    exact = sum((A[p] @ B[q].T for p in range(3) for q in range(3 - p)), np.zeros((m, n)))
    operand = DTYPES[subject.operand]
    return {"A": A.astype(operand), "B": B.astype(operand), "C": _nothing(subject, given)}, exact


def _packed(subject: Subject, given: Input, rng: np.random.Generator) -> Made:
    m, n, k = given.m, given.n, given.k
    X, weights = _integers(rng, m, k), rng.integers(0, 16, (k, n))
    scales = np.exp2(rng.integers(-1, 2, (-(-k // 128), n)))
    exact = X @ ((weights - 8) * np.repeat(scales, 128, axis=0)[:k])
    words = gallery_file("hopper_int4").packed(weights)
    found = {"W": words, "X": X.astype(DTYPES[subject.operand]), "C": _nothing(subject, given)}
    return {**found, "scales": scales.astype(np.float32)}, exact
