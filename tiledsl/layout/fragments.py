"""Layouts of a fragment that the threads of a block hold together: which thread holds which element.

A block tile is cut into `warps` equal parts, and each warp's part into the operands of one ``mma.sync``, row by row of
them. Inside one, with g = lane // 4 and t = lane % 4 (PTX ISA: matrix fragments for mma):

- A and B consist of cores of 8 rows (of A; columns of B) by 16 bytes along k, at least 4 elements. A lane holds, of
  row g, the elements that fill the t-th 32-bit register: 4, 2 or 1 of them; a wider element alone. A's cores come in
  the order (rows, then k), B's along k.
- The accumulators: columns 2t and 2t + 1 of row g, then of row g + 8.

This is the one definition that the frontend, `distribute`, both levels of the emulator and the tests' oracle read. Text
form: ``mma.m16n8k16.acc(2, 2)``; ``wgmma.acc(2)`` for two warpgroups, whose warps interleave their rows. One more
number is the first warp's: ``mma.m16n8k16.acc(2, 2, 4)``, ``wgmma.acc(2, 4)``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from typing import Any, Literal

from tiledsl import html
from tiledsl.arch import MOST_WARPS, WARP, WARPGROUP_WARPS
from tiledsl.layout.mma import SHAPES, MmaShape
from tiledsl.layout.shared import Problem

Operand = Literal["a", "b", "acc"]
WORD_BITS = 32
ROWS = 8
"""Rows of A, or columns of B, of one core: what `ldmatrix` calls a matrix."""


@dataclass(frozen=True)
class FragmentLayout:
    """How an m x k `a`, a k x n `b` or an m x n `acc` is distributed over the registers of a grid of warps.

    warps: how many there are along m and along n; warp number w is at (w // warps[1], w % warps[1]). Warps along n hold
    the same part of `a`, those along m the same part of `b`.
    interleaved: over how many neighbouring warps along m the rows of instructions are interleaved; 1: each warp has
    neighbouring ones. 4 is what ``wgmma`` does: with m16n8k16 the accumulator (and A in registers) of warpgroups, each
    of which has whole blocks of 64 rows.
    first: number of the first warp that holds a part, where a role of some warps does; warps count from it, modulo
    their number.
    """

    shape: MmaShape
    operand: Operand
    warps: tuple[int, int]
    interleaved: int = 1
    first: int = 0

    @property
    def a(self) -> FragmentLayout:
        """What the product with this accumulator takes as its left operand."""
        return replace(self, operand="a")

    @property
    def b(self) -> FragmentLayout:
        """What the product with this accumulator takes as its right operand."""
        return replace(self, operand="b")

    @property
    def acc(self) -> FragmentLayout:
        """What the product gives."""
        return replace(self, operand="acc")

    @property
    def threads(self) -> int:
        """How many threads hold it."""
        return WARP * self.warps[0] * self.warps[1]

    @cached_property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of the operand of one instruction."""
        shape = self.shape
        return {"a": (shape.m, shape.k), "b": (shape.k, shape.n), "acc": (shape.m, shape.n)}[self.operand]

    @cached_property
    def grid(self) -> tuple[int, int]:
        """Into how many parts, by rows and columns, the warps cut a block tile."""
        along_m, along_n = self.warps
        return {"a": (along_m, 1), "b": (1, along_n), "acc": self.warps}[self.operand]

    @property
    def inner(self) -> int:
        """The axis along which a lane holds neighbours: along k of A and B, along the columns of an accumulator."""
        return 0 if self.operand == "b" else 1

    def tiles(self, dims: tuple[int, ...]) -> tuple[int, int]:
        """How many operands of one instruction a warp holds, by rows and columns, of a block tile of `dims`."""
        rows, columns = (n // parts // size for n, parts, size in zip(dims, self.grid, self.tile, strict=True))
        return rows, columns

    @cached_property
    def tile_size(self) -> int:
        """Elements that a lane holds of the operand of one instruction."""
        rows, columns = self.tile
        return rows * columns // WARP

    def size(self, dims: tuple[int, ...]) -> int:
        """Elements that one thread holds."""
        rows, columns = self.tiles(dims)
        return rows * columns * self.tile_size

    def within(self, register: int, bits: int) -> tuple[int, int, int, int]:
        """Where element `register` of lane 0 is in the operand of one instruction, a row and a column, and how far
        from there each step of the lane goes along the rows and along the columns."""
        if self.operand == "acc":
            return ROWS * (register // 2), register % 2, 1, 2
        run = max(1, WORD_BITS // bits)  # elements of a lane side by side along k
        depth = _core_depth(bits)
        core, inside = divmod(register, run)
        if self.operand == "a":
            high = self.shape.m // ROWS
            return ROWS * (core % high), depth * (core // high) + inside, 1, run
        return depth * core + inside, 0, run, 1

    def place(self, dims: tuple[int, ...], bits: int, register: int, warp: Any, lane: Any) -> tuple[Any, Any]:
        """(row, column) in the block tile of element `register` of a lane; `warp` and `lane` may be arrays, or the
        positions that `distribute` computes with."""
        columns = self.tiles(dims)[1]
        instruction, register = divmod(register, self.tile_size)
        row, column, per_row, per_column = self.within(register, bits)
        row += instruction // columns * self.tile[0] * (1 if self.operand == "b" else self.interleaved)
        column += instruction % columns * self.tile[1]
        g, t = lane // 4, lane % 4
        # Along k lanes differ by t, along m and n of A and B by g.
        down, right = (g, t) if self.inner else (t, g)
        first_row, first_column = self.origin(dims, warp)
        return first_row + row + down * per_row, first_column + column + right * per_column

    def origin(self, dims: tuple[int, ...], warp: Any) -> tuple[Any, Any]:
        """(row, column) where a warp's part begins."""
        (along_m, along_n), together = self._in_grid(warp), self.interleaved
        height, width = dims[0] // self.grid[0], dims[1] // self.grid[1]
        row = along_m % together * self.tile[0] + along_m // together * (together * height)
        return (0 if self.operand == "b" else row, 0 if self.operand == "a" else along_n * width)

    def _in_grid(self, warp: Any) -> tuple[Any, Any]:
        """Where a warp of the block is in the grid of warps, along m and along n."""
        number = (warp - self.first) % (self.warps[0] * self.warps[1])
        return number // self.warps[1], number % self.warps[1]

    def holder(self, warp: Any) -> Any:
        """A warp's number among those that hold the same part; the first one writes where a fragment is stored."""
        along_m, along_n = self._in_grid(warp)
        return {"a": along_n, "b": along_m, "acc": 0}[self.operand]

    def problem(self, dims: tuple[int, ...], bits: int) -> Problem | None:
        """What keeps a block tile of `dims`, of elements of `bits`, from this layout; None if nothing does."""
        if len(dims) != 2:
            return Problem(f"a fragment of {len(dims)} axes held as {self}", "such a fragment is rows by columns")
        for axis, (n, parts, size) in enumerate(zip(dims, self.grid, self.tile, strict=True)):
            unit = parts * size
            if n % unit:
                near = -(-n // unit) * unit
                held = f"{' x '.join(map(str, dims))} held as {self}"
                message = f"{held}: {('rows', 'columns')[axis]} come in multiples of {unit} = {parts} warps x {size}"
                possible = f"{near} or {near - unit}" if near > unit else f"{near}"
                return Problem(message, f"use {possible} there, or another grid of warps")
        if self.operand != "acc" and self.shape.k % _core_depth(bits):
            message = f"{bits}-bit elements held as {self}: along k they come in 16 bytes, more than {self.shape} has"
            return Problem(message, "take a shape that multiplies this dtype: docs/language.md lists them")
        return None

    def holders(self, bits: int) -> list[list[tuple[int, int, int]]]:
        """Who holds each element of the operand of one instruction, a warp of the block, a lane and an element of it:
        of the first warp, or of those that interleave. bits: of an element."""
        together = 1 if self.operand == "b" else self.interleaved
        dims = self.grid[0] * self.tile[0], self.grid[1] * self.tile[1]
        cells = [[(0, 0, 0)] * self.tile[1] for _ in range(self.tile[0] * together)]
        for warp, lane, register in product(range(together), range(WARP), range(self.tile_size)):
            row, column = self.place(dims, bits, register, self.first + warp, lane)
            cells[row][column] = self.first + warp, lane, register
        return cells

    def _repr_html_(self) -> str:
        several = self.interleaved > 1 and self.operand != "b"
        bits = 256 // self.shape.k  # of operands: of those that the shape is for, the widest
        cells = [
            [(f"{f'{warp}:' if several else ''}{lane}.{register}", lane) for warp, lane, register in row]
            for row in self.holders(bits)
        ]
        who = f"{'warp:' if several else ''}lane.element of the lane"
        return html.section(f"{self}, one instruction: {who}", html.grid(cells, WARP))

    def __str__(self) -> str:
        if self.interleaved == 1:
            kind, numbers = f"mma.{self.shape}", list(self.warps)
        else:
            kind, numbers = "wgmma", [self.warps[0] // self.interleaved]
        numbers += [self.first] if self.first else []
        return f"{kind}.{self.operand}({', '.join(map(str, numbers))})"

    __repr__ = __str__


def _core_depth(bits: int) -> int:
    """Elements of one core along k."""
    return max(4, 128 // bits)


@lru_cache(maxsize=256)
def converted(src: FragmentLayout, dst: FragmentLayout, dims: tuple[int, ...], bits: int) -> tuple[int, ...] | None:
    """For each element that a thread holds in the layout `dst`, which of those in `src` it is, in all threads alike.

    None if a thread lacks one.
    """
    threads = [(src.first + number // WARP, number % WARP) for number in range(src.threads)]
    begins = ([layout.place(dims, bits, 0, *thread) for thread in threads] for layout in (src, dst))
    if src.threads != dst.threads or next(begins) != next(begins):
        return None
    held = {src.place(dims, bits, r, *threads[0]): r for r in range(src.size(dims))}
    found = [held.get(dst.place(dims, bits, r, *threads[0]), -1) for r in range(dst.size(dims))]
    return None if -1 in found else tuple(found)


_TEXT = re.compile(r"(?:mma\.(\w+)|wgmma)\.(a|b|acc)\(([\d, ]+)\)")


def of_warpgroups(count: int, first: int = 0) -> FragmentLayout:
    """The accumulator of `count` warpgroups, the first of which begins with warp number `first`. (PTX ISA: wgmma.)"""
    return FragmentLayout(SHAPES["m16n8k16"], "acc", (WARPGROUP_WARPS * count, 1), WARPGROUP_WARPS, first)


@lru_cache(maxsize=256)
def parse_fragment_layout(text: str) -> FragmentLayout:
    """Read what `str(layout)` wrote. Raises ValueError for anything else."""
    match = _TEXT.fullmatch(text)
    shape, operand, numbers = match.groups() if match else (None, "", "")
    count = 1 if shape is None else 2  # of numbers that are not the first warp's
    given = tuple(int(number) for number in numbers.split(",") if number.strip())
    if (shape is not None and shape not in SHAPES) or len(given) not in (count, count + 1):
        raise ValueError(f"not a layout of a fragment: {text!r}; expected mma.m16n8k16.acc(2, 2) or the like")
    first = given[count] if len(given) > count else 0
    if shape is None:
        layout = of_warpgroups(given[0], first)
    else:
        layout = FragmentLayout(SHAPES[shape], "acc", (given[0], given[1]), first=first)
    if 0 in layout.warps or first + prod(layout.warps) > MOST_WARPS:
        raise ValueError(f"{text!r}: a block has 1 to {MOST_WARPS} warps")
    return replace(layout, operand=operand)
