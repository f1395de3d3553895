"""Uniformity: for each value, the widest group of threads that is sure to agree on it.

The lattice, from most to least uniform: "grid" (all threads of the launch), "cta" (all of a block), "warpgroup" (of
each four warps from a multiple of four on), "warp" (of each warp), "thread" (they may differ). A value is as uniform
as the least uniform thing it depends on: operands, and the conditions that decide which definition of it is reached.
Loops run to a fixpoint from the optimistic end. How an op's results depend on its operands it declares itself
(`ir.facts.Varies`).

A load from a uniform address is uniform where nothing in the kernel may write that memory meanwhile (`written`).
Otherwise a fast thread may write what a slow one is about to read.

Nothing is less uniform than what each thread of a block computes of it (`thread_numbers`): ``tx // 32`` and
``warp_id() >= 4`` are the same for a whole warp or warpgroup.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from tiledsl.arch import WARP, WARPGROUP
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import arith, control, gpu, tile
from tiledsl.passes.analysis.forward import Forward
from tiledsl.passes.analysis.structure import deciders, is_unchanged
from tiledsl.passes.analysis.written import WrittenMemory

if TYPE_CHECKING:  # it needs NumPy, which importing the pipeline must not load
    from tiledsl.passes.analysis.thread_numbers import ThreadNumbers

Level = Literal["grid", "cta", "warpgroup", "warp", "thread"]
LEVELS: tuple[Level, ...] = ("grid", "cta", "warpgroup", "warp", "thread")

_RANK: dict[Level, int] = {level: rank for rank, level in enumerate(LEVELS)}


def least_uniform(*levels: Level) -> Level:
    """The join of the lattice; "grid" for none."""
    return LEVELS[max((_RANK[level] for level in levels), default=0)]


class PlainlyUniform:
    """Which values a short look shows to be the same for all threads of a block: what comes from parameters, extents,
    constants and block indices by arithmetic, and the counters of loops from such to such. It takes a small part of
    the time of `Uniformity`, and most loops and conditions need no more.
    """

    DEPTH = 16
    """How many ops deep it looks."""

    def __init__(self, kernel: Kernel) -> None:
        self._body = kernel.body
        self._known: dict[Value, bool] = {}

    def of(self, value: Value, depth: int = DEPTH) -> bool:
        known = self._known.get(value)
        if known is None and depth:
            known = self._known[value] = self._looked_at(value, depth - 1)
        return bool(known)

    def _looked_at(self, value: Value, depth: int) -> bool:
        owner = value.owner
        match owner:
            case arith.Constant() | gpu.BlockId() | gpu.GridSize() | tile.Dim():
                return True
            case arith.Scalar() | arith.Cast() | arith.Select():
                return all(self.of(v, depth) for v in owner.operands)
            case Block(parent=control.For() as loop):
                return value.index == 0 and self.of(loop.lo, depth) and self.of(loop.step, depth)
            case _:
                return owner is self._body


class Uniformity(Forward):
    """Runs over the kernel once, at construction. Works at both levels.

    `of(value)` is a level; `cause(value)` the op that makes it no more uniform than it is.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._levels: dict[Value, Level] = {}
        self._why: dict[Value, Value | Op] = {}
        self.walk(kernel.body)

    def of(self, value: Value) -> Level:
        return self._levels.get(value, "grid")

    def cause(self, value: Value) -> Op | None:
        """Follow the least uniform dependence back to where it began; None for a uniform value."""
        seen: set[Value] = set()
        while value not in seen:
            seen.add(value)
            why = self._why.get(value)
            if not isinstance(why, Value):
                return why
            value = why
        return None

    def join(self, op: Op, target: Value, sources: Sequence[Value]) -> None:
        self._follow(target, sources)
        known = _RANK[self.of(target)]
        if target.op is op and any(_RANK[self.of(v)] > known for v in deciders(op)) and not is_unchanged(target):
            self._follow(target, deciders(op))  # as of a loop that threads leave after different trips

    def _follow(self, target: Value, sources: Sequence[Value]) -> None:
        levels = self._levels
        for source in sources:
            if levels.get(target) == "thread":
                return  # no less uniform than that
            if source in levels:  # else it is "grid", which raises nothing
                self._raise(target, levels[source], source)

    def _raise(self, value: Value, level: Level, why: Value | Op) -> None:
        """Note what reaches `value`; it only ever gets less uniform, but never less than its numbers are."""
        known = _RANK[self.of(value)]
        if _RANK[level] > known and value in self._numbers:
            level = min(level, self._by_number(value), key=_RANK.__getitem__)
        if _RANK[level] > known:
            self._levels[value] = level
            self._why[value] = why
            self.changed = True

    # -- ops -----------------------------------------------------------------------------------

    def op(self, op: Op) -> None:
        self._numbers.note(op)
        own = self._own(op) if op.results else None
        for result in op.results:
            if own is None:
                self._follow(result, op.operands)
            else:
                self._raise(result, own, op)

    def _own(self, op: Op) -> Level | None:
        """What the op itself says; None where the operands decide."""
        match op.varies:
            case "operands":
                return None
            case "memory":
                return self._read(op)
            case "vote":
                return "warp" if any(self.of(v) == "thread" for v in op.operands) else None
            case "control":
                raise AssertionError(f"uniformity knows no {op.name}")
            case level:
                return level

    def _read(self, op: Op) -> Level | None:
        if any(self.of(v) == "thread" for v in op.operands):
            return None
        alike = self._written.read_alike(op)
        return None if alike == "cta" else alike

    @cached_property
    def _written(self) -> WrittenMemory:
        return WrittenMemory(self._kernel)

    @cached_property
    def _numbers(self) -> ThreadNumbers:
        from tiledsl.passes.analysis.thread_numbers import ThreadNumbers

        return ThreadNumbers(self._kernel)

    def _by_number(self, value: Value) -> Level:
        """The widest group whose threads compute the same from their numbers.

        What is computed belongs to a warpgroup at most: a condition that no thread of this block meets is a mistake.
        """
        groups: dict[Level, int] = {"warpgroup": WARPGROUP, "warp": WARP, "thread": 1}
        if isinstance(value.op, gpu.Position):
            groups = {"grid": self._kernel.thread_count, **groups}
        return next(level for level, size in groups.items() if self._numbers.alike(value, size))
