"""Whether a value surely differs between the threads of a block, asked while a kernel is being built."""

from __future__ import annotations

from typing import Any

from tiledsl.frontend.bindings import Range, Ranges, leaves
from tiledsl.ir.core import Op, Value
from tiledsl.ir.types import CURSOR


def differing(binding: Any) -> Op | None:
    """An op that makes threads differ, on which a value in `binding` depends: by its operands, its addresses, or the
    control flow that chooses it. None: they may agree. Values exchanged between lanes are not followed.

    `passes.analysis.uniformity` proves the reverse, that they agree, and needs the whole kernel for it.
    """
    todo = _values(binding)
    seen = set(todo)
    while todo:
        op = todo.pop().op
        if op is None:
            continue
        if op.varies in ("thread", "warp"):
            return op
        if op.scope != "thread":
            continue
        chosen = [value for inner in op.walk() if inner.terminator for value in inner.operands]
        # Every loop carries the cursors of rings, and nothing else is computed from them.
        asked = [value for value in (*op.operands, *chosen) if value not in seen and value.type is not CURSOR]
        seen.update(asked)
        todo += asked
    return None


def _values(binding: Any) -> list[Value]:
    """The run-time values in a binding."""
    if isinstance(binding, Ranges):
        binding = [binding.start, binding.extent]
    elif isinstance(binding, Range):
        binding = binding.start
    return [leaf for leaf in leaves(binding) if isinstance(leaf, Value)]
