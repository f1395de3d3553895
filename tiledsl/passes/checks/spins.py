"""Check that no loop waits by a plain load for what another thread writes.

``while flag[0] == 0: pass`` reads one address again and again, and nothing in the loop lets the thread see what others
do meanwhile. In LLVM's memory model, as in those of C++ and PTX, a plain load that another thread's store races with
gives any value, so LLVM may assume that there is no such store: that each iteration reads what the first one did. It
moves the load in front of the loop, which then never ends; or, since a loop without effects may be assumed to end,
it removes the loop. The emulator would wait. Such a loop is an error here, with the atomic load to use.

What counts as waiting, for a `while`, or a `for` that a `break` may leave (the frontend makes a `while` of it):

- the loop holds nothing by which others' writes become visible: no barrier, fence, wait or atomic operation, and no
  inline PTX that does more than compute;
- a plain load in it, of an address that does not change, from memory that the loop does not write, decides about the
  exit, and it alone: what it is compared with does not change either;
- no other condition decides about the exit, or there is one, but the loop does nothing else meanwhile.

So loops that search (``A[i] != x``), follow links, or compare a running value with a limit in memory are none.
"""

from __future__ import annotations

from functools import cached_property
from typing import TypeGuard

from tiledsl.errors import CompileError, CompileErrors
from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.ops import arith, control, tile
from tiledsl.ir.types import BOOL
from tiledsl.passes.analysis.called import name_of
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.analysis.structure import incoming, reached
from tiledsl.passes.pipelining.body import memories, overlap


def check_spins(kernel: Kernel) -> None:
    """At tile level, on loops as they were written."""
    loops = [op for op in kernel.walk() if isinstance(op, control.While)]
    found = {load: None for loop in loops if (load := _Loop(loop).awaited()) is not None}
    if found:
        raise CompileErrors([_error(load) for load in found])


def _error(load: tile.Access) -> CompileError:
    name = name_of(load.memory)
    at = ", ".join("i" if (number := integer(v)) is None else str(number) for v in load.indices)
    return CompileError(
        f"the loop waits for another thread to write {name}, but reads it by a plain load: the compiler may read once, "
        "so that the loop never ends, or is removed",
        load.loc,
        fix=f'read it by {name}.atomic_load({at}, order="acquire"), and let the other thread write it by '
        f'{name}.atomic_store({at}, value, order="release"); if no other thread writes it, read it before the loop',
        code="C411",
    )


class _Loop:
    """One loop. `inside`: the values made in it. `changing`: those that may differ from iteration to iteration for
    ever, with no other thread writing. All others are *settled*: after the first iterations at the latest.
    """

    def __init__(self, op: control.While) -> None:
        self.op = op
        self.ops = [inner for inner in op.walk() if inner is not op]
        self.written = [memory for inner in self.ops for memory, writes in memories(inner) if writes]
        arguments = [v for each in (op, *self.ops) for block in each.blocks for v in block.args]
        self.inside = dict.fromkeys([*(v for each in self.ops for v in each.results), *arguments])

    def awaited(self) -> tile.Access | None:
        """The load by which the loop waits for others, if it does."""
        if any(not op.effects.isdisjoint(("sync", "io")) for op in self.ops):  # others' writes are seen behind it
            return None
        go_on = self.op.before.terminator.operands[0]
        if go_on not in self.changing:
            return self.load_behind(go_on)
        if not self.only_asks():
            return None
        exits = (v for v in reached([go_on], self.parts) if v not in self.changing)
        return next((load for v in exits if (load := self.load_behind(v)) is not None), None)

    def only_asks(self) -> bool:
        """True if the loop has no effects, and all that it reads is settled."""
        does = [op for op in self.ops if op.effects - {"pinned", "identity", "guard"}]
        return all(op.effects <= {"read"} and self.changing.isdisjoint(op.results) for op in does)

    # -- what changes ----------------------------------------------------------------------------

    @cached_property
    def changing(self) -> set[Value]:
        """Whatever changes by itself, and what depends on that."""
        found = {v for v in self.inside if self.may_change(v)}
        size = -1
        while size != len(found):
            size = len(found)
            found |= {v for v in self.inside if not found.isdisjoint(self.sources(v))}
        return found

    def may_change(self, value: Value) -> bool:
        """May the value differ from one iteration to the next where its sources do not?"""
        op = value.op
        if op is None:
            return value.owner not in self.op.blocks or self.goes_round(value)
        if _is_plain_load(op):
            return any(m is op.memory or overlap(m, op.memory) for m in self.written)
        return not isinstance(op, control.If) and bool(op.blocks or op.effects - {"pinned", "identity"})

    def goes_round(self, arg: Value) -> bool:
        """Does the next value of `arg` come from its present one, through more than choices?"""

        def before(place: tuple[Value, bool]) -> list[tuple[Value, bool]]:
            """What a value comes from, each with whether `arg` is computed from that on the way here."""
            value, computed = place
            if value is arg:
                return []
            computed = computed or (value.op is None and value.owner is arg.owner)
            moved = _moved_from(value)
            return [(v, computed or v not in moved) for v in self.sources(value)]

        return (arg, True) in reached([(v, False) for v in self.sources(arg)], before)

    def sources(self, value: Value) -> list[Value]:
        """What a value of the loop is computed from, or chosen by."""
        if value not in self.inside:
            return []
        return [*(value.op.operands if value.op is not None else ()), *_moved_from(value)]

    # -- conditions ------------------------------------------------------------------------------

    def parts(self, condition: Value) -> list[Value]:
        """The bools that it is put together from."""
        op = condition.op
        joins = isinstance(op, arith.Scalar) and op.fn.name in ("and", "or", "xor", "not")
        if not joins and op is not None and not isinstance(op, (control.If, arith.Select)):
            return []
        return [v for v in self.sources(condition) if v.type == BOOL and v in self.inside]

    def load_behind(self, value: Value) -> tile.Access | None:
        """The first plain load in the loop that the value depends on."""
        makers = (v.op for v in reached([value], self.sources) if v in self.inside)
        return next((op for op in makers if _is_plain_load(op)), None)


def _moved_from(value: Value) -> list[Value]:
    """What the value may be, bit for bit."""
    return [value.op.a, value.op.b] if isinstance(value.op, arith.Select) else incoming(value)


def _is_plain_load(op: Op | None) -> TypeGuard[tile.Access]:
    return isinstance(op, tile.Access) and op.varies == "memory"
