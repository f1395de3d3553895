"""Layouts of a shared tile: where the element at given indices is, as pure maths.

A tile is a stack of rows: its last axis runs along a row, all other axes together number the rows. Four
layouts, with the text form that stands in the IR:

    row                              rows one after the other
    padded(36)                       a row every 36 elements, whatever its length
    swizzled(unit=4, span=8)         row order, with the units of each row permuted by XOR
    swizzled(unit=4, span=8, every=2)
    swizzle_128b                     panels of 128 bytes (or 64, 32), as TMA writes and wgmma reads them

A swizzle cuts memory into panels of `span` units of `unit` elements. In panel number p, counted through the tile,
unit c is at place ``c ^ (p // every % span)``. All three are powers of two, so that this is one XOR on the index;
a row is any whole number of panels long (144 = 9 panels of 16), and so nothing ever leaves it. Where `every` is the
number of panels in a row, or a multiple of it, rows differ from each other; below it, parts of a row do. With
units of 16 bytes, spans of 8, 4 and 2 and `every` as many panels as 128 bytes hold these are the 128-, 64- and 32-byte
swizzles of TMA and wgmma, for a tile whose rows are one span long. `swizzle_128b` and its like put such tiles side by
side for longer rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Sequence

from tiledsl import html
from tiledsl.arch import MOST_ACCESS
from tiledsl.layout.banks import BANKS, WORD

AUTO = "auto"
"""The text of a layout that is still to be chosen."""

MAX_EXTENT = 1 << 20
"""Elements along one axis of a tile or fragment that a kernel may ask for: none of that size fits, and its layout need
not be computed to say so."""

MAX_SHARED = 1 << 20
"""The shared memory, in bytes, of a block on the emulator: more than on any target, as at tile level tiles over each
other have bytes of their own."""

VECTOR_BYTES = (16, 8, 4, 2, 1)

ALIGNMENT = MOST_ACCESS
"""Bytes: where a tile may begin, for the widest vector access."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a layout does not fit a tile, and what would."""

    message: str
    fix: str


def row_major(dims: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a dense array."""
    strides = [1] * len(dims)
    for axis in range(len(dims) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * dims[axis + 1]
    return tuple(strides)


def power_of_two_in(number: int) -> int:
    """The largest power of two that divides `number` > 0."""
    return number & -number


@dataclass(frozen=True, slots=True)
class Layout:
    """Base, and row order. `dims` are extents in elements; indices may be ints or arrays."""

    @property
    def alignment(self) -> int:
        """Bytes: a tile begins at a multiple of it."""
        return ALIGNMENT

    def pitch(self, dims: Sequence[int]) -> int:
        """Distance from a row to the next, in elements."""
        return dims[-1]

    def strides(self, dims: Sequence[int]) -> tuple[int, ...]:
        """Distance between neighbours along each axis, in elements (of a swizzle: before it permutes)."""
        return row_major((*dims[:-1], self.pitch(dims)))

    def row_strides(self, dims: Sequence[int]) -> tuple[int, ...]:
        """How many rows one step along each axis but the last is."""
        return row_major(dims[:-1])

    def place(self, row: Any, column: Any, dims: Sequence[int]) -> Any:
        """Where in its row the element at `column` of row number `row` is."""
        return column

    def offset(self, indices: Sequence[Any], dims: Sequence[int]) -> Any:
        """Distance of an element from the start of the tile, in elements."""
        row = sum((i * s for i, s in zip(indices[:-1], self.row_strides(dims), strict=True)), 0)
        return row * self.pitch(dims) + self.place(row, indices[-1], dims)

    def footprint(self, dims: Sequence[int]) -> int:
        """Elements from the first to the last one; nothing stands behind the last row."""
        return (prod(dims[:-1]) - 1) * self.pitch(dims) + dims[-1]

    def vector_bytes(self, dims: Sequence[int], element: int) -> int:
        """The widest vector, in bytes, that stays together and aligned wherever its index is a multiple of it."""
        return self._aligned(dims, element, self.pitch(dims) if len(dims) > 1 else 0)

    def _aligned(self, dims: Sequence[int], element: int, *distances: int) -> int:
        return next(b for b in VECTOR_BYTES if all(d * element % b == 0 for d in distances))

    def problem(self, dims: Sequence[int]) -> Problem | None:
        """What keeps this layout from a tile of these extents; None if nothing does."""
        if len(dims) < 2 and self != ROW:
            return Problem(f"{self} on a tile of one axis, which has no rows to arrange", "leave layout= out")
        return self._misfit(dims)

    def _misfit(self, dims: Sequence[int]) -> Problem | None:
        """The same, of a tile of rows."""
        return None

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        """The bank of each element of a small tile."""
        layout = replace(self, element=WORD) if isinstance(self, Paneled) else self
        columns = max(BANKS, layout.panel) if isinstance(layout, Swizzled) else BANKS
        dims = ROWS, columns if not isinstance(self, Padded) else min(self.length, BANKS)
        banks = [[int(layout.offset((row, column), dims)) % BANKS for column in range(dims[1])] for row in range(ROWS)]
        title = f"{self}: the bank of each element of a tile of {dims[0]} x {dims[1]} elements of {WORD} bytes"
        return html.section(title, html.grid([[(str(bank), bank) for bank in row] for row in banks], BANKS))

    def __str__(self) -> str:
        return "row"


ROW = Layout()
"""Rows one after the other."""


@dataclass(frozen=True, slots=True)
class Padded(Layout):
    """A row every `length` elements."""

    length: int

    def pitch(self, dims: Sequence[int]) -> int:
        return self.length if len(dims) > 1 else dims[-1]

    def _misfit(self, dims: Sequence[int]) -> Problem | None:
        if self.length < dims[-1]:
            message = f"{self} makes rows of {self.length} elements, but a row of the tile has {dims[-1]}"
            return Problem(message, f"pass {dims[-1]} or more; padded(n) counts the elements of a whole row")
        return None

    def __str__(self) -> str:
        return f"padded({self.length})"


@dataclass(frozen=True, slots=True)
class Swizzled(Layout):
    """Unit c of panel p is at place ``c ^ (p // every % span)`` of the panel."""

    unit: int
    span: int
    every: int = 1

    @property
    def panel(self) -> int:
        """Elements of one panel."""
        return self.unit * self.span

    @property
    def period(self) -> int:
        """After this many panels the permutation repeats."""
        return self.every * self.span

    def panels(self, dims: Sequence[int]) -> int:
        """How many panels a row has."""
        return dims[-1] // self.panel

    def by_rows_only(self, dims: Sequence[int]) -> bool:
        """True if all panels of a row are permuted alike."""
        return self.every % self.panels(dims) == 0

    def place(self, row: Any, column: Any, dims: Sequence[int]) -> Any:
        panel = row * self.panels(dims) + column // self.panel
        return column ^ (panel // self.every % self.span * self.unit)

    def vector_bytes(self, dims: Sequence[int], element: int) -> int:
        return self._aligned(dims, element, self.pitch(dims), self.unit)

    def _misfit(self, dims: Sequence[int]) -> Problem | None:
        for name, value in (("unit", self.unit), ("span", self.span), ("every", self.every)):
            if value < 1 or value & (value - 1):
                return Problem(f"{self}: {name} is {value}", f"make {name} a power of two")
        width, row = self.panel, dims[-1]
        if width <= row and row % width == 0:
            return None
        fits = power_of_two_in(row) // self.unit
        near = -(-row // width) * width
        fix = f"make the row a multiple of {width} elements ({near}), or use padded({row + 1})"
        if fits > 1:
            fix = f"with units of {self.unit}, span={fits} fits this row"
        panels = f"{self} has panels of {self.span} x {self.unit} = {width} elements"
        return Problem(f"{panels}, and a row of {row} is no whole number of them", fix)

    def __str__(self) -> str:
        every = f", every={self.every}" if self.every != 1 else ""
        return f"swizzled(unit={self.unit}, span={self.span}{every})"


SPANS = (128, 64, 32)
"""Bytes of a row of a panel. (PTX ISA: tensor swizzling modes.)"""

CHUNK = 16
"""Bytes that a swizzle of TMA moves as one."""

LINE = 128
"""Bytes after which such a swizzle permutes differently."""

ROWS = 8
"""Rows after which each of them comes again."""


@dataclass(frozen=True, slots=True)
class Paneled(Layout):
    """The last two axes, rows and columns, cut into panels: all rows of `span` bytes of the columns, one panel after
    the other, each permuted by the swizzle of that span. (PTX ISA: tensor swizzling modes.)

    The 16-byte chunk of bits 4 to 6 of an address is XORed with bits 7 to 9 (a span of 64 bytes: 4 and 5 with 7 and 8;
    of 32: 4 with 7). Panels begin where that pattern does.
    element: bytes of one, 0 in what is not of a tile yet.
    """

    span: int
    element: int = 0

    @property
    def alignment(self) -> int:
        return ROWS * LINE

    @property
    def width(self) -> int:
        """Columns of a panel."""
        assert self.element, "the layout of no tile"
        return self.span // self.element

    @property
    def inner(self) -> Swizzled:
        """The layout of one panel."""
        return Swizzled(self.unit, self.span // CHUNK, LINE // self.span)

    @property
    def unit(self) -> int:
        """Elements that stay together."""
        return CHUNK // self.element

    def panels(self, dims: Sequence[int]) -> int:
        """How many panels the columns make."""
        return dims[-1] // self.width

    def panel_size(self, dims: Sequence[int]) -> int:
        """Elements from one panel to the next."""
        return dims[-2] * self.width

    def unfolded(self, dims: Sequence[int]) -> tuple[int, ...]:
        """The extents of the same elements in row order: panels, then rows, then columns of a panel."""
        return (*dims[:-2], self.panels(dims), dims[-2], self.width)

    def pitch(self, dims: Sequence[int]) -> int:
        return self.width

    def strides(self, dims: Sequence[int]) -> tuple[int, ...]:
        return (*row_major(dims)[:-2], self.width, 1)

    def place(self, row: Any, column: Any, dims: Sequence[int]) -> Any:
        """Counted from where the row would begin if there were one panel."""
        inside = self.inner.place(row % dims[-2], column % self.width, (dims[-2], self.width))
        passed = column // self.width + row // dims[-2] * (self.panels(dims) - 1)
        return inside + passed * self.panel_size(dims)

    def footprint(self, dims: Sequence[int]) -> int:
        return prod(dims)

    def vector_bytes(self, dims: Sequence[int], element: int) -> int:
        return CHUNK

    def _misfit(self, dims: Sequence[int]) -> Problem | None:
        if dims[-1] % self.width:
            fits = [f"swizzle_{s}b" for s in SPANS if dims[-1] * self.element % s == 0]
            near = -(-dims[-1] // self.width) * self.width
            panels = f"{self} has panels of {self.width} columns ({self.span} bytes)"
            fix = f"make it {near} columns" + (f", or use {fits[0]}" if fits else "")
            return Problem(f"{panels}, and {dims[-1]} is no multiple of that", fix)
        if dims[-2] % ROWS and prod(dims[:-2]) * self.panels(dims) > 1:
            message = f"{self}: panels of {dims[-2]} rows do not begin where the pattern of {ROWS} rows does"
            return Problem(message, f"make the rows a multiple of {ROWS} ({-(-dims[-2] // ROWS) * ROWS})")
        return None

    def __str__(self) -> str:
        return f"swizzle_{self.span}b"


_TEXT = re.compile(
    r"row|padded\((?P<length>\d+)\)|swizzle_(?P<width>128|64|32)b"
    r"|swizzled\(unit=(?P<unit>\d+), span=(?P<span>\d+)(?:, every=(?P<every>\d+))?\)"
)


def parse_layout(text: str, element: int = 0) -> Layout:
    """Read what `str(layout)` wrote, of a tile whose elements have `element` bytes; ValueError for anything else."""
    match = _TEXT.fullmatch(text)
    if match is None:
        expected = "row, padded(n), swizzled(unit=, span=, every=) or swizzle_128b"
        raise ValueError(f"not a layout: {text!r}; expected {expected}")
    if match["length"]:
        return Padded(int(match["length"]))
    if match["width"]:
        return Paneled(int(match["width"]), element)
    return Swizzled(int(match["unit"]), int(match["span"]), int(match["every"] or 1)) if match["unit"] else ROW
