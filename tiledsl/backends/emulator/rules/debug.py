"""print, assert and breakpoint."""

from __future__ import annotations

import ast
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.cohort import Cohort, is_fragment
from tiledsl.backends.emulator.memory import name_threads
from tiledsl.backends.emulator.rules.registry import rule
from tiledsl.backends.print_records import line_text
from tiledsl.errors import EmulatorError
from tiledsl.ir.ops import debug

__all__: list[str] = []


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
        raise EmulatorError(f"assertion failed{message}; {name_threads(c, wrong)}", op.loc)


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
        visible[name] = _of_lanes(c, value, lanes)
    call = ast.Expr(ast.Call(ast.Name("__breakpointhook__", ast.Load()), [], []))
    module = ast.Module([call], [])
    for node in ast.walk(call):
        if isinstance(node, (ast.expr, ast.stmt)):
            node.lineno, node.col_offset = max(op.loc.line, 1), 0
            node.end_lineno, node.end_col_offset = node.lineno, 0
    code = compile(module, op.loc.file, "exec").replace(co_name=op.loc.function or "<kernel>")
    exec(code, {"__breakpointhook__": sys.breakpointhook}, visible)


def _of_lanes(c: Cohort, value: Any, lanes: NDArray[np.bool_]) -> Any:
    if is_fragment(value):
        return tuple(_of_lanes(c, v, lanes) for v in value)
    return c.spread(value)[lanes]
