"""Reads of memory that nobody wrote, or of shared memory that was last written through another tile."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tiledsl.backends.emulator.hooks import Access, Bools, Ints, LaunchInfo, TensorInfo
from tiledsl.backends.emulator.rules.memory import tile_at
from tiledsl.backends.emulator.sanitizer.reports import Reports
from tiledsl.backends.emulator.sanitizer.shadow import Cells, Ops
from tiledsl.errors import Accessed, HazardError, Loc
from tiledsl.ir.ops import mem


class Unwritten:
    """Reports when a thread reads an element of a tensor that holds nothing yet, as the caller says (`names`), and that
    nobody in the launch has written; and elements of what the kernel writes that nobody has written in the end.
    `written`: by tensor, of each element that its memory has room for."""

    def __init__(self, launch: LaunchInfo, names: frozenset[str], reports: Reports) -> None:
        self.launch, self.reports = launch, reports
        self.tensors = {tensor.label: tensor for tensor in launch.tensors if tensor.label in names}
        self.written = {name: np.zeros(t.bytes // t.size, np.bool_) for name, t in self.tensors.items()}

    def access(self, access: Access) -> None:
        tensor = self.tensors.get(access.label)
        if tensor is None:
            return
        written, first = self.written[access.label], (access.addresses - tensor.low) // tensor.size
        elements = first[:, None] + np.arange(max(1, access.width // tensor.size))
        if access.kind in ("read", "atomic", "fetch") and not (there := written[elements]).all():
            self.tell(access, tensor, *np.argwhere(~there)[0].tolist())
        if access.kind in ("write", "atomic", "async"):
            written[elements] = True

    def tell(self, access: Access, tensor: TensorInfo, entry: int, element: int) -> None:
        blocks = access.blocks if access.owners is None else access.owners
        side = self.launch.side(access.op, "reads", int(blocks[entry]), thread=int(access.threads[entry]))
        at = int(access.addresses[entry]) + element * tensor.size
        memory = Accessed(access.label, "global", tensor.element(at), at - tensor.base, access.width)
        message = (
            f"uninitialised read: {side.who} reads {memory}, which no thread has written and the caller left empty"
        )
        fix = "write the element before it is read, or do not read it: 0 times what happens to be there may be NaN"
        self.reports.tell(HazardError(message, access.op.loc, fix, code="T201", sides=(side,), memory=memory))

    def end(self, loc: Loc, written: Iterable[str]) -> None:
        """The launch has ended. written: the tensors that the kernel at `loc` writes."""
        for name in self.tensors.keys() & set(written):
            tensor = self.tensors[name]
            index = np.indices(tensor.dims, sparse=True)
            at = sum((i * stride for i, stride in zip(index, tensor.strides, strict=True)), start=np.int64(0))
            missing = ~self.written[name][at + (tensor.base - tensor.low) // tensor.size]
            if not missing.any():
                continue
            first = tuple(np.argwhere(missing)[0].tolist())
            byte = sum(i * stride for i, stride in zip(first, tensor.strides, strict=True)) * tensor.size
            memory = Accessed(name, "global", first, byte, tensor.size)
            message = f"{np.count_nonzero(missing)} of {missing.size} elements of {name} are written by no thread, "
            message += f"{memory} first, and the caller left them empty"
            fix = "write them, or do not say that the array holds nothing yet"
            self.reports.tell(HazardError(message, loc, fix, code="T204", memory=memory))


class LastWrites:
    """Reports when a thread reads shared memory that no thread of its block has written, or that was last
    written through another tile, which lies over the one it reads.

    `last`: of each cell, the number of the op that wrote it last, plus 1. `tiles`: of each such op, the tile. Where
    control flow chose the pointer it is None, and nothing is said.
    """

    def __init__(self, cells: Cells, overlapping: bool, reports: Reports) -> None:
        """overlapping: are there tiles with bytes in common?"""
        self.cells, self.overlapping, self.reports = cells, overlapping, reports
        self.last = np.zeros(cells.count, np.int32)
        self.writers, self.tiles = Ops(), list[mem.SharedBase | None]()

    def access(self, access: Access, cells: Ints, ordered: bool = True) -> None:
        """ordered: has nothing else been found of it?"""
        if ordered and access.kind in ("read", "atomic", "fetch"):
            self.require_written(access, cells)
        if access.kind in ("write", "atomic"):
            self.write(access, cells)

    def write(self, access: Access, cells: Ints) -> None:
        number = self.writers.number(access.op)
        if number == len(self.tiles):
            self.tiles.append(_tile(access))
        self.last[cells] = number + 1

    def require_written(self, access: Access, cells: Ints) -> None:
        writers = self.last.take(cells)
        if not writers.all():
            self.tell(
                "T201", "uninitialised read", access, cells, writers == 0, "which no thread has written",
                "write the tile before it is read; shared memory does not start as zero on a GPU",
            )  # fmt: skip
        own = _tile(access) if self.overlapping else None
        if own is None:
            return
        through = np.isin(writers, [number for number, tile in enumerate(self.tiles, 1) if tile not in (None, own)])
        if through.any():
            number = int(writers[through][0]) - 1
            tile = self.tiles[number]
            name = tile.label if tile is not None and tile.label else "another tile"
            self.tell(
                "T202", "overwritten", access, cells, through,
                f"which was last written through {name}, which has the same bytes, at {self.writers[number].loc}",
                "read a tile for the last time before the one over= it is written, or leave out over=",
            )  # fmt: skip

    def tell(self, code: str, what: str, access: Access, cells: Ints, wrong: Bools, why: str, fix: str) -> None:
        if self.reports.knows(code, access.label, access.op.loc):
            return
        lane, cell = (int(i) for i in np.argwhere(wrong)[0])
        thread, block = int(access.threads[lane]), int(access.blocks[lane])
        side = self.cells.launch.side(access.op, "reads", block, thread=thread)
        memory = self.cells.memory(int(cells[lane, cell]), access)
        message = f"{what}: {side.who} reads {memory}, {why}"
        self.reports.tell(HazardError(message, access.op.loc, fix, code=code, sides=(side,), memory=memory))


def _tile(access: Access) -> mem.SharedBase | None:
    """The tile whose bytes are accessed, if it is known."""
    return tile_at(int(access.addresses[0]), access.op.operands)
