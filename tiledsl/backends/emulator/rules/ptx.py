"""Raw PTX, through the Python function that the kernel's author gave for it."""

from __future__ import annotations

from typing import Any, Sequence, cast

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.rules.registry import rule
from tiledsl.errors import EmulatorError, render_at
from tiledsl.ir.ops import ptx
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import BOOL, DType

__all__: list[str] = []


@rule(ptx.Inline)
def inline(c: Cohort, op: ptx.Inline, *operands: Any) -> Any:
    """The function gets arrays [warps, 32] (lanes that a mask turns off hold anything) and returns one
    array an output, each of that shape or broadcastable to it; a single output may come bare."""
    function = c.chunk.run.kernel.externals.get(op.emulate)
    if function is None:
        raise EmulatorError(
            f"the emulator cannot run the PTX {op.text!r}",
            op.loc,
            "pass emulate=f, a function from NumPy arrays to the result arrays",
        )
    rows = c.shape[0] * c.shape[1]
    try:
        returned: Any = function(*(c.spread(v).reshape(rows, WARP) for v in operands))
    except Exception as failure:
        # The user's own function: its traceback is of use, but does not say which kernel line called it.
        failure.add_note(render_at(op.loc, f"in emulate= of {op.text!r}, run by the emulator"))
        raise
    results: Sequence[Any] = [returned] if op.outputs else []
    if isinstance(returned, (tuple, list)):
        results = cast(Sequence[Any], returned)
    if len(results) != len(op.outputs):
        raise EmulatorError(
            f"emulate= of {op.text!r} returned {len(results)} values, but it has {len(op.outputs)} outputs",
            op.loc,
            "return one array an output",
        )
    arrays = tuple(_result(c, op, r, d) for r, d in zip(results, op.outputs, strict=True))
    return arrays[0] if len(arrays) == 1 else arrays


def _result(c: Cohort, op: ptx.Inline, value: Any, dtype: DType) -> Any:
    array, shape = np.asarray(value), (c.shape[0] * c.shape[1], WARP)
    exact = array.dtype.kind in "iub" or not (dtype.is_integer or dtype == BOOL)
    if dtype.is_matrix:  # NumPy's own conversions round differently, or none was meant
        exact = array.dtype == numpy_dtype(dtype)
    if not exact or not _broadcasts(array.shape, shape):
        raise EmulatorError(
            f"emulate= of {op.text!r} returned {array.dtype}{list(array.shape)} for an output that is {dtype}; "
            f"expected {list(shape)}, or what broadcasts to it",
            op.loc,
            "return an array of the operands' shape and of the output's dtype",
        )
    return np.broadcast_to(array.astype(numpy_dtype(dtype)), shape).reshape(c.shape)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """True if an array of `shape` broadcasts to one of shape `to`."""
    tail = to[len(to) - len(shape) :]
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(shape, tail, strict=True))
