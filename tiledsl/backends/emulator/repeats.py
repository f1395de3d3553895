"""Find loops that wait for what others write, and that no turn of any cohort can end.

A `while` loop that only reads memory computes the same in each iteration, unless what it starts with or memory has
changed. So if every cohort that can run is in such a loop, has come back to the loop's head in the state in which it
was there before, and nothing has changed meanwhile, none of them ever leaves. That holds under every order of turns.
A loop that counts its iterations to give up at some number, or that asks anything but memory, is never in one state
twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tiledsl.backends.emulator.cohort import Cohort, is_array, is_fragment
from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.ops import control, gpu, mem, ptx, tile
from tiledsl.passes.analysis.structure import deciders, incoming, reached

_HARMLESS = frozenset({"read", "guard", "pinned", "identity"})
"""Effects of ops that leave everything as it is, or end the run."""


def waiting_loops(kernel: Kernel) -> dict[control.While, tuple[int, ...]]:
    """Return the loops that read memory and change none, except by atomic operations, which may find what they write.

    Each has the positions of the carried values that it decides by. Others, as a count of iterations, do not matter.
    """
    found: dict[control.While, tuple[int, ...]] = {}
    for op in kernel.walk():
        if not isinstance(op, control.While):
            continue
        inner = [each for each in op.walk() if each is not op]
        if all(map(_changes_nothing, inner)) and any("read" in each.effects for each in inner):
            found[op] = _deciding(op, inner)
    return found


def _changes_nothing(op: Op) -> bool:
    """Return whether it leaves everything as it is. An atomic update may; `Changes` counts those that do not."""
    if isinstance(op, (tile.Atomic, mem.Atomic)):
        return op.fn.reads
    if isinstance(op, (gpu.Fence, gpu.SyncWarp)):
        return True
    return op.effects <= _HARMLESS and not isinstance(op, ptx.Inline)


def _deciding(op: control.While, inner: Iterable[Op]) -> tuple[int, ...]:
    """Return the positions of the carried values on which the loop's conditions, accesses, and checks depend."""
    starts = [v for each in (op, *inner) if each.blocks for v in deciders(each)]
    starts += [v for each in inner if each.effects for v in each.operands]

    def sources(value: Value) -> list[Value]:
        made = value.op.operands if value.op is not None else []
        return [*made, *incoming(value)]

    used = reached(starts, sources)
    return tuple(position for position, value in enumerate(op.before.args) if value in used)


State = tuple[int, Any, tuple[Any, ...]]
"""The state of a cohort at the head of a loop: the number of changes so far, its mask, and the values it decides by."""


def visit(c: Cohort, loop: Op, values: Iterable[Any]) -> None:
    """Note that the cohort is back at the head of the loop, with these values.

    Sets `c.repeats` to the number of changes if nothing is different from its last visit, else to -1.
    """
    now: State = c.chunk.changes.count, c.mask, (*values,)
    before = c.visits.get(loop)
    c.visits[loop] = now
    c.repeats = now[0] if before is not None and _same(before, now) else -1


def _same(a: Any, b: Any) -> bool:
    """Return whether the values are equal."""
    if a is b:
        return True
    if is_fragment(a) and is_fragment(b):
        return len(a) == len(b) and all(map(_same, a, b))
    if is_array(a) or is_array(b):
        return np.shape(a) == np.shape(b) and np.array_equal(a, b)
    return a is not None and b is not None and bool(a == b)


def read_by(loop: Op) -> list[str]:
    """Return the names of the memories that a loop reads, as far as they have some."""
    memories = (access.memory for op in loop.walk() for access in op.accesses() if not access.writes)
    names = (_name(memory) for memory in memories if isinstance(memory, Value))
    return [*dict.fromkeys(name for name in names if name)]


def _name(memory: Value) -> str:
    while isinstance(memory.op, mem.Offset):
        memory = memory.op.base
    return memory.op.label if isinstance(memory.op, mem.SharedBase) else memory.name
