"""An asynchronous MMA with a memory of its own, in the manner of tcgen05, known to the tests alone.

One thread issues it. It reads shared tiles by the asynchronous proxy, accumulates into tensor memory, and goes on by
itself. A commit arrives at an mbarrier when all has ended that its thread has begun before. Warps read tensor memory by
a load of their own: each the rows of its place in its warpgroup. (PTX ISA: tcgen05.mma, tcgen05.commit, tcgen05.ld.)

What the compiler needs to know of it is here: a type, the facts of four ops, an emulator rule each, a row of
`ENDPOINTS`. `known` lets it be so for a while: no other test finds these ops.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tiledsl.arch import WARP, WARPGROUP_WARPS
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.hooks import Access
from tiledsl.backends.emulator.memory import load
from tiledsl.backends.emulator.rules.barriers import commit_arrives
from tiledsl.backends.emulator.rules.places import Place
from tiledsl.backends.emulator.rules.registry import rule
from tiledsl.backends.emulator.spans import SharedTile
from tiledsl.ir.core import OPS, Op, Value, attribute, operand
from tiledsl.ir.facts import NOTHING, Sync, reads, writes
from tiledsl.ir.ops import barriers
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import BOOL, DType, TileType, Type
from tiledsl.passes.cooperation.endpoints import ENDPOINTS, Endpoint

__all__ = ["Alloc", "Commit", "Load", "Mma", "TensorType", "known"]

Array = NDArray[Any]
Ints = NDArray[np.int64]

DONE: Any = "async_mma"
"""A word more of `facts.Work`."""


@dataclass(frozen=True, slots=True)
class TensorType(TileType):
    """A tile in tensor memory."""

    def __str__(self) -> str:
        return f"tensor<{self.dtype}, [{', '.join(map(str, self.dims))}]>"


# -- ops -------------------------------------------------------------------------------------------


class Alloc(Op):
    """A tile in tensor memory."""

    name = "test.tensor_alloc"
    level = "tile"
    touches, sync, stays, scope, features = (), NOTHING, "identity", "thread", ()
    varies, nan = "cta", "sees"
    cause = "the block's memory"
    called = "tensor()"
    dtype = attribute(DType)
    dims = attribute[tuple[int, ...]](tuple)

    def infer(self) -> Sequence[Type]:
        return (TensorType(self.dtype, self.dims),)


class Mma(Op):
    """``acc[slot] = a[slot] b[slot]^T``, added to what is there if `accumulate`.

    Operands: the tiles, each with its slot, and `accumulate`, a bool. Those that one thread begins are done in order.
    """

    name = "test.mma"
    level = "tile"
    touches = (
        writes("acc", done=DONE),
        reads("a", proxy="async", done=DONE),
        reads("b", proxy="async", done=DONE),
    )
    sync, stays, scope, features = NOTHING, "", "thread", ()
    called = "mma_async()"
    acc, acc_slot, a, a_slot, b, b_slot, accumulate = (operand(i) for i in range(7))

    def verify(self) -> None:
        self.require(isinstance(self.acc.type, TensorType), f"accumulates in tensor memory, not in {self.acc.type}")
        self.require(self.accumulate.type == BOOL, "accumulate is a bool")


class Commit(barriers.MbarrierOp):
    """An arrival at this mbarrier when all products have ended that the thread has begun."""

    name = "test.mma_commit"
    sync = Sync(commits=DONE, releases="cta")
    called = "mma_commit()"


class Load(Op):
    """An element of this thread's row of a tile in tensor memory. Operands: the tile, its slot, the column."""

    name = "test.tensor_load"
    level = "tile"
    touches = (reads("memory"),)
    sync, stays, scope, features = NOTHING, "", "warp", ()
    alike = ("slot", "column")
    varies, nan = "thread", "sees"
    cause = "the thread's row of tensor memory"
    called = "tensor_load()"
    memory, slot, column = operand(0), operand(1), operand(2)

    def infer(self) -> Sequence[Type]:
        type_ = self.memory.type
        assert isinstance(type_, TensorType)
        return (type_.dtype,)


FAMILY: tuple[type[Op], ...] = (Alloc, Mma, Commit, Load)

for _op in FAMILY:
    del OPS[_op.name]


@contextmanager
def known() -> Generator[None, None, None]:
    """Meanwhile the compiler knows of these ops, and of what an end of a ring is by them."""
    with pytest.MonkeyPatch.context() as patch:
        for op in FAMILY:
            patch.setitem(OPS, op.name, op)
        patch.setitem(ENDPOINTS, DONE, Endpoint("thread", signal=Commit))
        yield


# -- what they do ----------------------------------------------------------------------------------


@rule(Alloc)
def alloc(c: Cohort, op: Alloc) -> SharedTile:
    return c.chunk.run.tiles[op]


rule(Commit)(commit_arrives)


@rule(Mma)
def multiply(c: Cohort, op: Mma, acc: SharedTile, acc_slot: Any, *values: Any) -> None:
    """Each thread's product is done when it is issued; what may be touched meanwhile is the concern of hooks."""
    a, a_slot, b, b_slot, accumulate = values
    left = _elements(c, op, op.a, a, a_slot)
    right = _elements(c, op, op.b, b, b_slot)
    product = left.astype(np.float32) @ right.astype(np.float32).swapaxes(1, 2)
    keep = c.spread(accumulate)[c.active()][:, None, None]
    sums = _elements(c, op, op.acc, acc, acc_slot) if keep.any() else 0
    at = _told(c, op, op.acc, acc, acc_slot, "write")
    c.chunk.memory.typed(np.dtype(np.float32))[at] = np.where(keep, sums, 0) + product


def _elements(c: Cohort, op: Op, of: Value, tile: SharedTile, slot: Any) -> Array:
    at = _told(c, op, of, tile, slot, "fetch")
    return c.chunk.memory.typed(numpy_dtype(tile.dtype))[at]


def _told(c: Cohort, op: Op, of: Value, tile: SharedTile, slot: Any, kind: Any) -> Ints:
    """Where the elements of the slot of each thread's tile are, [threads, rows, columns]; hooks hear of them."""
    blocks, threads = c.threads()
    _, rows, columns = tile.dims
    size, count = tile.dtype.bytes, rows * columns
    first = tile.offset + c.spread(slot)[c.active()].astype(np.int64) * count * size
    addresses: Ints = first[:, None] + np.arange(count) * size
    proxies = not isinstance(of.type, TensorType)
    access = Access(
        op, kind, "shared", tile.label, tile.offset, addresses.ravel(), size, np.repeat(blocks, count),
        np.repeat(threads, count), until="commit", run=count, owners=blocks, proxies=proxies,
    )  # fmt: skip
    c.chunk.hook.on_access(access)
    return c.chunk.memory.piece((blocks - c.chunk.first)[:, None], addresses, size).reshape(-1, rows, columns)


@rule(Load)
def load_element(c: Cohort, op: Load, tile: SharedTile, slot: Any, column: Any) -> Any:
    row = c.warps[:, :, None] % WARPGROUP_WARPS * WARP + np.arange(WARP)
    type_: Any = op.memory.type
    place = Place(c, op, tile, (slot, row, column), type_, 1)
    place.require_inside()
    return load(c, op, place.span, place.address)[0]
