"""Checks of shared memory that run as hooks: races between barriers, and reads of what nobody wrote.

An asynchronous copy is a write twice: when it begins and when it has arrived. What may happen in between is the
subject of `checks_async`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.options import Access
from tiledsl.backends.emulator.rules_memory import shared_bases
from tiledsl.backends.emulator.shadow import DOES, Ints, Ops, ShadowHook, holders
from tiledsl.errors import HazardError
from tiledsl.ir.core import Op
from tiledsl.ir.ops import mem, tile

__all__ = ["RaceCheck", "UninitialisedCheck"]


_ALL_ATOMIC = ", or make both atomic"


def _is_one_atomic(a: Op, b: Op) -> bool:
    return isinstance(a, (tile.Atomic, mem.Atomic)) != isinstance(b, (tile.Atomic, mem.Atomic))


class UninitialisedCheck(ShadowHook):
    """Raises HazardError when a thread reads shared memory that no thread of its block has written, or that was last
    written through another tile, which lies over the one it reads.

    A cell holds the number of the op that wrote it last, plus 1. `tiles`: of each such op, the number of its tile, 0 if
    control flow chose the pointer; then nothing is said.
    """

    def __init__(self) -> None:
        super().__init__(lambda count, granules: np.zeros(count * granules, np.int32))
        self.writers = Ops()
        self.tiles: list[int] = []
        self.numbers: dict[mem.SharedBase, int] = {}
        self.overlapping = False

    def on_access(self, access: Access) -> None:
        if access.space != "shared" or not len(access.blocks):
            return
        shadow, first = self.shadow_of(access.blocks)
        cells, lanes = self.cells(access, first)
        if access.kind in ("read", "atomic", "fetch"):
            self.require_written(access, shadow[cells], cells, lanes)
        if access.kind in ("write", "atomic"):
            shadow[cells] = self.writer(access)

    def on_delivery(self, access: Access) -> None:
        shadow, first = self.shadow_of(access.blocks)
        shadow[self.cells(access, first)[0]] = self.writer(access)

    def writer(self, access: Access) -> int:
        number = self.writers.number(access.op)
        if number == len(self.tiles):
            self.tiles.append(self.tile(access))
        return number + 1

    def tile(self, access: Access) -> int:
        """The number of the tile whose bytes are accessed, from 1 on; 0 if it is not known."""
        byte = int(access.addresses[0])
        found = next((base for base in shared_bases(access.op) if base.offset <= byte < base.offset + base.bytes), None)
        if found is None:
            return 0
        if found not in self.numbers:
            ends = found.offset + found.bytes
            self.overlapping |= any(o.offset < ends and found.offset < o.offset + o.bytes for o in self.numbers)
            self.numbers[found] = len(self.numbers) + 1
        return self.numbers[found]

    def require_written(self, access: Access, writers: Ints, cells: Ints, lanes: Ints) -> None:
        unwritten = writers == 0
        if unwritten.any():
            at = int(np.argmax(unwritten))
            self.fail(
                "uninitialised read", access, int(cells[at]), int(lanes[at]), "which no thread has written",
                "write the tile before it is read; shared memory does not start as zero on a GPU",
            )  # fmt: skip
        own = self.tile(access)
        if not self.overlapping or own == 0:
            return
        through = np.array(self.tiles)[writers - 1]
        other = (through != own) & (through != 0)
        if other.any():
            at = int(np.argmax(other))
            over = next(base for base, number in self.numbers.items() if number == through[at])
            op = self.writers[int(writers[at]) - 1]
            self.fail(
                "overwritten", access, int(cells[at]), int(lanes[at]),
                f"which was last written through {over.label or 'another tile'}, which has the same bytes, at {op.loc}",
                "read a tile for the last time before the one over= it is written, or leave out over=",
            )  # fmt: skip

    def fail(self, what: str, access: Access, cell: int, lane: int, why: str, fix: str) -> None:
        byte, block = self.where(access, lane, cell)
        thread = self.launch.thread_index(int(access.threads[lane]))
        raise HazardError(f"{what}: thread {thread} of {block} reads {byte}, {why}", access.loc, fix)


class _Readers:
    """One remembered reader of each cell: the last `thread` of one warp, whether `many` lanes of that warp
    read in the same epoch, the `epoch` and the `op`."""

    def __init__(self, size: int) -> None:
        self.thread = np.full(size, -1, np.int32)
        self.many = np.zeros(size, np.bool_)
        self.epoch = np.zeros(size, np.int32)
        self.op = np.zeros(size, np.int32)


class _Shadow:
    """Cells of a chunk, flat. `epochs` [blocks, warps] counts the `sync_warp`s since the start. `atomic`: the writer's
    access was. `atomic_readers`: those whose was.

    Two readers from different warps are enough: a writer conflicts with any reader of another warp, and if
    a third warp's reader is forgotten one of the two is still of another warp than the writer's.
    """

    def __init__(self, count: int, granules: int) -> None:
        size = count * granules
        self.granules = granules
        self.writer = np.full(size, -1, np.int32)
        self.atomic = np.zeros(size, np.bool_)
        self.shared_writer = np.zeros(size, np.bool_)
        self.writer_epoch = np.zeros(size, np.int32)
        self.writer_op = np.zeros(size, np.int32)
        self.readers = (_Readers(size), _Readers(size))
        self.atomic_readers = (_Readers(size), _Readers(size))
        self.epochs = np.zeros((count, WARP), np.int32)

    def forget(self, rows: Ints) -> None:
        """The blocks of these rows have passed a barrier."""
        for owner in (self.writer, *(readers.thread for readers in (*self.readers, *self.atomic_readers))):
            owner.reshape(-1, self.granules)[rows] = -1


@dataclass(frozen=True, slots=True)
class _WarpAccess:
    """The part of an access that one warp index makes, in all blocks; one entry a lane and granule."""

    access: Access
    cells: Ints
    lanes: Ints
    threads: Ints
    epochs: Ints
    op: int


class RaceCheck(ShadowHook):
    """Raises HazardError when two threads of a block touch the same bytes of shared memory between two
    barriers, at least one of them writing and not both atomically. `sync_warp` orders the lanes of a warp."""

    def __init__(self) -> None:
        super().__init__(_Shadow)
        self.ops = Ops()

    def on_barrier(self, op: Op, blocks: Ints) -> None:
        shadow, first = self.shadow_of(blocks)
        shadow.forget(blocks - first)

    def on_sync_warp(self, op: Op, blocks: Ints, warps: Ints) -> None:
        shadow, first = self.shadow_of(blocks)
        shadow.epochs[blocks - first, warps] += 1

    def on_access(self, access: Access) -> None:
        if access.space != "shared" or not len(access.blocks):
            return
        shadow, first = self.shadow_of(access.blocks)
        for warp, part in self.by_warp(access, shadow, first):
            self.against_writers(shadow, part)
            if access.kind == "read":
                self.remember_readers(shadow, part, warp)
            else:
                self.against_readers(shadow, part)
                self.remember_writers(shadow, part)

    def on_delivery(self, access: Access) -> None:
        """Against whom it might race, it did so when it began, or it met them on its way."""
        shadow, first = self.shadow_of(access.blocks)
        for _, part in self.by_warp(access, shadow, first):
            self.remember_writers(shadow, part)

    def by_warp(self, access: Access, shadow: _Shadow, first: int) -> Iterator[tuple[int, _WarpAccess]]:
        """Lanes of one warp access together; the warps of a block one after the other."""
        cells, lanes = self.cells(access, first)
        threads = access.threads[lanes]
        if (held := holders(access.op, access.threads, len(cells), self.launch.granule)) is not None:
            threads = threads // WARP * WARP + held
        epochs = shadow.epochs[access.blocks[lanes] - first, threads // WARP].astype(np.int64)
        number = self.ops.number(access.op)
        for warp in np.unique(threads // WARP).tolist():
            of = threads // WARP == warp
            yield warp, _WarpAccess(access, cells[of], lanes[of], threads[of], epochs[of], number)

    # -- conflicts -----------------------------------------------------------------------------

    def against_writers(self, shadow: _Shadow, part: _WarpAccess) -> None:
        writer = shadow.writer[part.cells]
        other = (writer >= 0) & ((writer != part.threads) | shadow.shared_writer[part.cells])
        ordered = (writer // WARP == part.threads // WARP) & (shadow.writer_epoch[part.cells] < part.epochs)
        conflict = other & ~ordered
        if part.access.order is not None:
            conflict &= ~shadow.atomic[part.cells]
        if conflict.any():
            at = int(np.argmax(conflict))
            self.fail(part, at, int(writer[at]), int(shadow.writer_op[part.cells[at]]), "wrote")

    def against_readers(self, shadow: _Shadow, part: _WarpAccess) -> None:
        plain = part.access.order is None
        for readers in (*shadow.readers, *(shadow.atomic_readers if plain else ())):
            reader = readers.thread[part.cells]
            same_warp = reader // WARP == part.threads // WARP
            ordered = same_warp & (readers.epoch[part.cells] < part.epochs)
            conflict = (reader >= 0) & ((reader != part.threads) | readers.many[part.cells]) & ~ordered
            if conflict.any():
                at = int(np.argmax(conflict))
                self.fail(part, at, int(reader[at]), int(readers.op[part.cells[at]]), "read")

    def fail(self, part: _WarpAccess, at: int, other: int, other_op: int, did: str) -> None:
        access = part.access
        lane = int(part.lanes[at])
        byte, block = self.where(access, lane, int(part.cells[at]))
        thread = int(part.threads[at])
        if isinstance(self.ops[other_op], mem.CpAsync) and did == "wrote":
            did = "copied to"
        who = f"thread {self.launch.thread_index(other)}" if other != thread else "another thread"
        raise HazardError(
            f"race: thread {self.launch.thread_index(thread)} of {block} {DOES[access.kind]} {byte} at {access.loc}, "
            f"which {who} {did} at {self.ops[other_op].loc} with no barrier between",
            access.loc,
            "put a barrier() between the two" + (_ALL_ATOMIC if _is_one_atomic(access.op, self.ops[other_op]) else ""),
        )

    # -- what is remembered --------------------------------------------------------------------

    def remember_writers(self, shadow: _Shadow, part: _WarpAccess) -> None:
        cells, is_atomic = part.cells, part.access.order is not None
        before = shadow.writer[cells]
        shadow.writer[cells] = part.threads
        # Two lanes at one cell: the one that does not find itself there has lost.
        lost = shadow.writer[cells] != part.threads
        if lost.any() and not is_atomic:
            at = int(np.argmax(lost))
            self.fail(part, at, int(shadow.writer[cells[at]]), part.op, "writes too,")
        shared = ((before >= 0) & (before != part.threads)) | shadow.shared_writer[cells] & (before >= 0)
        shadow.shared_writer[cells] = shared if is_atomic else False
        shadow.shared_writer[cells[lost]] = True
        shadow.atomic[cells] = is_atomic
        shadow.writer_epoch[cells] = part.epochs
        shadow.writer_op[cells] = part.op

    def remember_readers(self, shadow: _Shadow, part: _WarpAccess, warp: int) -> None:
        primary, secondary = shadow.readers if part.access.order is None else shadow.atomic_readers
        owner = primary.thread[part.cells]
        in_primary = (owner < 0) | (owner // WARP == warp)
        for readers, chosen in ((primary, in_primary), (secondary, ~in_primary)):
            cells, threads, epochs = part.cells[chosen], part.threads[chosen], part.epochs[chosen]
            before = readers.thread[cells]
            same = (before >= 0) & (before // WARP == warp) & (readers.epoch[cells] == epochs)
            many = same & (readers.many[cells] | (before != threads))
            readers.thread[cells] = threads
            readers.many[cells] = many
            readers.many[cells[readers.thread[cells] != threads]] = True
            readers.epoch[cells] = epochs
            readers.op[cells] = part.op
