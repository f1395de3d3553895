"""print, assert and breakpoint."""

from __future__ import annotations

import ast
import sys
from typing import Any, Sequence, cast

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.memory import first_of, name_threads
from tiledsl.backends.emulator.rules.memory import located
from tiledsl.backends.emulator.rules.registry import rule
from tiledsl.backends.print_records import line_text
from tiledsl.backends.stamp_records import RANK
from tiledsl.errors import EmulatorError, render_at
from tiledsl.ir.ops import debug, ptx
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import BOOL, DType


@rule(debug.Print)
def print_line(c: Cohort, op: debug.Print, *values: Any) -> None:
    """A line for each active thread, in block and thread order; numbers look as in Python."""
    lanes = c.active()
    columns = [c.spread(v)[lanes] for v in values]
    blocks, threads = c.lanes_of(lanes)
    for lane in np.lexsort((threads, blocks)):
        print(line_text(op.format, (column[lane] for column in columns)), file=c.chunk.run.stdout)


@rule(debug.Assert)
def check(c: Cohort, op: debug.Assert, condition: Any) -> None:
    wrong = c.active() & ~np.asarray(condition)
    if wrong.any():
        message = f": {op.message}" if op.message else ""
        raise EmulatorError(
            f"assertion failed{message}; {name_threads(c, wrong)}",
            op.loc,
            code="T506",
            sides=(first_of(c, op, wrong, "asserts"),),
        )


@rule(debug.Breakpoint)
def stop(c: Cohort, op: debug.Breakpoint, *values: Any) -> None:
    """Calls `sys.breakpointhook` from a frame that claims to be the kernel's line.

    Its locals are the named values, arrays with one entry an active thread, and `block` and `thread`:
    arrays of these threads' coordinates.
    """
    lanes = c.active()
    launch = c.chunk.run.launch
    blocks, threads = c.lanes_of(lanes)
    visible: dict[str, Any] = {
        "block": np.array([launch.block_index(int(b)) for b in blocks]),
        "thread": np.array([launch.thread_index(int(t)) for t in threads]),
    }
    for name, value in zip(op.names, values, strict=True):
        visible[name] = c.of_lanes(value, lanes)
    call = ast.increment_lineno(ast.parse("__breakpointhook__()"), max(op.loc.line, 1) - 1)
    code = compile(call, op.loc.file, "exec").replace(co_name=op.loc.function or "<kernel>")
    exec(code, {"__breakpointhook__": sys.breakpointhook}, visible)


@rule(debug.Stamp)
def stamp(c: Cohort, op: debug.Stamp, *which: Any) -> None:
    """The first lane of each warp, as on a GPU."""
    lanes = c.active() & (np.arange(WARP) == 0)
    blocks, threads = c.lanes_of(lanes)
    places = np.zeros(len(blocks), np.int64)
    if op.at == "mbarrier":
        _, address, rank = located(c, op, 0, which)
        places = c.spread(address)[lanes]
        if rank:
            places = places | (c.spread(rank[0])[lanes].astype(np.int64) + 1) << RANK
    elif which:
        places = c.spread(which[0])[lanes].astype(np.int64)
    c.chunk.hook.on_stamp(op, blocks, threads // WARP, places)


# -- raw PTX ----------------------------------------------------------------------------------------


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
            code="T901",
        )
    rows = c.shape[0] * c.shape[1]
    try:
        returned: Any = function(*(c.spread(v).reshape(rows, WARP) for v in operands))
    except Exception as failure:
        if failure.__traceback__ is None or failure.__traceback__.tb_next is None:  # it did not take the arrays
            raise EmulatorError(
                f"emulate= of {op.text!r} cannot be called with {len(operands)} arrays: {failure}",
                op.loc,
                "pass a function of as many arrays as the PTX has operands",
                code="T904",
            ) from None
        # The user's own function: its traceback is of use, but does not say which kernel line called it.
        failure.add_note(render_at(op.loc, f"in emulate= of {op.text!r}, run by the emulator"))
        raise
    bare = [returned] if op.outputs else []
    results: Sequence[Any] = cast(Sequence[Any], returned) if isinstance(returned, (tuple, list)) else bare
    if len(results) != len(op.outputs):
        raise EmulatorError(
            f"emulate= of {op.text!r} returned {len(results)} values, but it has {len(op.outputs)} outputs",
            op.loc,
            "return one array an output",
            code="T904",
        )
    arrays = tuple(_result(c, op, r, d) for r, d in zip(results, op.outputs, strict=True))
    return arrays[0] if len(arrays) == 1 else arrays


def _result(c: Cohort, op: ptx.Inline, value: Any, dtype: DType) -> Any:
    array, shape = np.asarray(value), (c.shape[0] * c.shape[1], WARP)
    exact = array.dtype.kind in "iub" or not (dtype.is_integer or dtype == BOOL)
    if dtype.is_matrix:  # NumPy's own conversions round differently, or none was meant
        exact = array.dtype == numpy_dtype(dtype)
    try:
        np.broadcast_to(array, shape)
    except ValueError:
        exact = False
    if not exact:
        raise EmulatorError(
            f"emulate= of {op.text!r} returned {array.dtype}{list(array.shape)} for an output that is {dtype}; "
            f"expected {list(shape)}, or what broadcasts to it",
            op.loc,
            "return an array of the operands' shape and of the output's dtype",
            code="T904",
        )
    return np.broadcast_to(array.astype(numpy_dtype(dtype)), shape).reshape(c.shape)
