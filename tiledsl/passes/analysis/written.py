"""Which memory a kernel may write, and which reads of shared tiles a write may meet between two synchronisations.

What an op accesses it declares (`Op.accesses`); raw PTX that may write, and pointers that control flow chose, are any
memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal

from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.facts import Reach
from tiledsl.ir.ops import control, mem, tile, wgmma
from tiledsl.ir.types import GlobalType, PtrType, SharedType
from tiledsl.passes.pipelining.body import fills, overlap

Touched = tuple[Value | None, bool]
"""A memory (None: any), and whether it is written."""

_BLOCK: tuple[Reach, ...] = ("cta", "cluster")
"""Meeting these (`Sync.meets`) a thread sees what others of its block wrote before."""
_WARP: tuple[Reach, ...] = (*_BLOCK, "warp")


def memory_of(address: Value) -> Value | None:
    """The tensor or tile that an operand names or points into, at thread level the pointer parameter or
    `mem.shared_base`; None if control flow chose the pointer."""
    while isinstance(address.op, (mem.Offset, wgmma.Descriptor)):
        address = address.op.operands[0]
    if address.op is None:
        return address if isinstance(getattr(address.owner, "parent", None), Kernel) else None
    return address if isinstance(address.op, (tile.SharedAlloc, mem.SharedBase)) else None


class WrittenMemory:
    """Of one kernel, at either level. `memories`: what it may write; `anything`: also what it does not name."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._tensors = {a.name: a for a in kernel.body.args if isinstance(a.type, (GlobalType, PtrType))}
        touched = ((op, [*self._accessed(op)]) for op in kernel.walk())
        self._touched = {op: memories for op, memories in touched if memories}
        found = [memory for memories in self._touched.values() for memory, writes in memories if writes]
        self.memories = frozenset(memory for memory in found if memory is not None)
        self.anything = None in found

    def may_write(self, memory: Value) -> bool:
        return self.anything or any(_overlap(memory, written) for written in self.memories)

    def read_alike(self, op: Op) -> Literal["cta", "warp", "thread"]:
        """Who gets the same value where `op` reads from one address: "cta" if no write can meet the read, so that all
        threads do; "warp" if only a `sync_warp` is between; else "thread"."""
        memory = next((m for m, writes in self.touched(op) if not writes), None)
        if memory is None or self.anything:
            return "thread"
        if not self.may_write(memory):
            return "cta"
        if not _is_shared(memory):
            return "thread"  # of global memory other blocks write, too, whom no barrier of this one orders
        if op not in self._between_barriers:
            return "cta"
        return "thread" if op in self._between_syncs else "warp"

    def touched(self, op: Op) -> Sequence[Touched]:
        """What the op itself reads and writes."""
        return self._touched.get(op, ())

    def _accessed(self, op: Op) -> Iterator[Touched]:
        for access in op.accesses():
            memory = access.memory
            if isinstance(memory, int):
                yield self._tensors.get(self.kernel.tensor_maps[memory].tensor), access.writes
            else:
                yield None if memory is None else memory_of(memory), access.writes

    @cached_property
    def _between_barriers(self) -> set[Op]:
        return _Unordered(self, _BLOCK).found

    @cached_property
    def _between_syncs(self) -> set[Op]:
        return _Unordered(self, _WARP).found


def _is_shared(memory: Value) -> bool:
    type_ = memory.type
    return isinstance(type_, SharedType) or (isinstance(type_, PtrType) and type_.space == "shared")


def _overlap(a: Value, b: Value) -> bool:
    if a is b:
        return True
    if not (_is_shared(a) and _is_shared(b)):
        return False
    if isinstance(a.op, mem.SharedBase) and isinstance(b.op, mem.SharedBase):
        return a.op.offset < b.op.offset + b.op.bytes and b.op.offset < a.op.offset + a.op.bytes
    return overlap(a, b)


_Since = dict[tuple[Value, bool], set[Op]]
"""Reads and writes since the last synchronisation, by tile and whether they write."""


def _joined(*sides: _Since) -> _Since:
    keys = dict.fromkeys(key for side in sides for key in side)
    return {key: set[Op]().union(*(side.get(key, ()) for side in sides)) for key in keys}


class _Unordered:
    """Finds the reads of shared memory that a write of the same tile may come before or after with none of `meets`
    between: a walk in program order that keeps what happened since the last of them.

    One side of an `if` that meets does not order what is behind; a loop's body is walked twice, for what one iteration
    does to the next.
    """

    def __init__(self, memory: WrittenMemory, meets: tuple[Reach, ...]) -> None:
        self.memory, self.meets = memory, meets
        self.found: set[Op] = set()
        self.block(memory.kernel.body, {})

    def block(self, block: Block, since: _Since, pipelined: bool = False) -> _Since:
        """From what happened before the block to what happened up to its end; `since` itself may be changed."""
        for op in block.ops:
            # Around the copies of a pipelined loop the pass `pipeline` puts the barriers.
            if op.sync.meets in self.meets or (pipelined and isinstance(op, tile.Copy) and fills(op)):
                since = {}
            elif isinstance(op, control.If):
                # Some threads may be on one side while others are on the other: neither comes first.
                then = self.block(op.then, _joined(since))
                since = _joined(then, self.block(op.orelse, _joined(since, then)))
            elif op.blocks:
                since = self.loop(op, since)
            else:
                self.op(op, since)
        return since

    def loop(self, op: Op, since: _Since) -> _Since:
        pipelined = isinstance(op, control.For) and op.stages > 0
        for _ in range(2):
            after = _joined(since)
            for inner in op.blocks:
                after = self.block(inner, after, pipelined)
            since = _joined(since, after)
        return since

    def op(self, op: Op, since: _Since) -> None:
        for memory, writes in self.memory.touched(op):
            if memory is None or not _is_shared(memory):
                continue
            for other, wrote in list(since):
                if wrote != writes and _overlap(other, memory):
                    self.found |= since.pop((other, wrote)) if writes else {op}
            since.setdefault((memory, writes), set()).add(op)
