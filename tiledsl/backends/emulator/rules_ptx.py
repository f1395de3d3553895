"""Raw PTX, through the Python function that the kernel's author gave for it."""

from __future__ import annotations

from typing import Any, Sequence, cast

import numpy as np

from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.rules import rule
from tiledsl.errors import EmulatorError
from tiledsl.ir.ops import ptx
from tiledsl.ir.semantics import numpy_dtype

__all__: list[str] = []


@rule(ptx.Inline)
def inline(c: Cohort, op: ptx.Inline, *operands: Any) -> Any:
    """The function gets arrays [warps, 32] (lanes that a mask turns off hold anything) and returns one
    array an output, each of that shape or broadcastable to it; a single output may come bare."""
    function = c.chunk.machine.kernel.externals.get(op.emulate)
    if function is None:
        raise EmulatorError(
            f"the emulator cannot run the PTX {op.text!r}",
            op.loc,
            "pass emulate=f, a function from NumPy arrays to the result arrays",
        )
    rows = c.shape[0] * c.shape[1]
    returned: Any = function(*(c.spread(v).reshape(rows, 32) for v in operands))
    results: Sequence[Any] = [returned] if op.outputs else []
    if isinstance(returned, (tuple, list)):
        results = cast(Sequence[Any], returned)
    if len(results) != len(op.outputs):
        raise EmulatorError(
            f"emulate= of {op.text!r} returned {len(results)} values, but it has {len(op.outputs)} outputs",
            op.loc,
            "return one array an output",
        )
    arrays = tuple(_result(c, r, numpy_dtype(d)) for r, d in zip(results, op.outputs, strict=True))
    return arrays[0] if len(arrays) == 1 else arrays


def _result(c: Cohort, value: Any, dtype: np.dtype[Any]) -> Any:
    array = np.asarray(value).astype(dtype)
    return np.broadcast_to(array, (c.shape[0] * c.shape[1], 32)).reshape(c.shape)
