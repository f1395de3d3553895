"""Reading and folding constants: the one door from the passes to the scalar semantics."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tiledsl.ir.core import Value
from tiledsl.ir.ops import arith
from tiledsl.ir.types import DType

Number = int | float | bool


def constant(value: Value) -> Number | None:
    """The value of a constant, or None."""
    op = value.owner
    return op.attrs["value"] if type(op) is arith.Constant else None


def integer(value: Value) -> int | None:
    """The value of an integer constant, or None."""
    op = value.owner
    if type(op) is arith.Constant and op.attrs["dtype"].is_integer:
        return op.attrs["value"]
    return None


def fold(fn: str, dtype: DType, *values: Number) -> Number:
    """Row `fn` of the scalar table on constants of `dtype`, exactly as emulator and GPU compute it."""
    if dtype.is_float:  # not cached: 0.0 and -0.0 are one key
        return semantics().fold(fn, dtype, *values)
    return _fold_exact(fn, dtype, values)


@lru_cache(maxsize=4096)
def _fold_exact(fn: str, dtype: DType, values: tuple[Number, ...]) -> Number:
    return semantics().fold(fn, dtype, *values)


def semantics() -> Any:
    """Imported on the first fold only: it needs NumPy, which `import tiledsl` must not."""
    import tiledsl.ir.semantics

    return tiledsl.ir.semantics
