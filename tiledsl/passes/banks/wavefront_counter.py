"""Wavefronts of shared accesses under a layout: exact counts, by evaluating every lane's address.

What the count relies on: adding one number of whole words to the addresses of all lanes rotates the banks and keeps
equal words equal, so unknown symbols, which all lanes of a warp share, do not matter as far as they move the address by
whole words. Where they do not (elements narrower than a word, the permutation of a swizzle) every residue that they
can have is counted; if the counts differ, the access has a least, a mean and a most.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np

from tiledsl.arch import WARP
from tiledsl.ir.ops import tile
from tiledsl.layout import banks
from tiledsl.layout.banks import WORD, Kind
from tiledsl.layout.shared import ROWS, Layout, Paneled, Swizzled
from tiledsl.passes.analysis.lanes import Bools, Ints, Lanes
from tiledsl.passes.banks.shared_accesses import SharedAccess

LARGEST = np.iinfo(np.int64).max
MOST_CASES = 256
"""An access with more than so many cases under a layout is not counted under it."""

Number = Fraction | int
Steps = tuple[tuple[int, int], ...]
"""Of each unknown symbol: how far one step of it moves the lanes, and how many values it takes; 0: not known."""

Residues = tuple[int, ...]


def costs(addresses: Ints, kind: Kind, width: int) -> list[banks.Cost]:
    """Of accesses of a warp each; `addresses`: [accesses, 32], -1 for a lane that takes no part."""
    there = addresses >= 0
    start = np.where(there, addresses, LARGEST).min(axis=1, keepdims=True) // WORD * WORD
    raw, size = np.where(there, addresses - start, -1).tobytes(), WARP * addresses.itemsize
    return [_cost(raw[at : at + size], kind, width) for at in range(0, len(raw), size)]


@lru_cache(maxsize=1 << 15)
def _cost(raw: bytes, kind: Kind, width: int) -> banks.Cost:
    lanes: list[int] = np.frombuffer(raw, np.int64).tolist()
    return banks.cost(lanes, width, [a >= 0 for a in lanes], kind)


@dataclass(frozen=True, slots=True)
class Wavefronts:
    """Wavefronts of one access. total: of all warps, if each makes it once, the mean over the cases that unknown
    symbols leave; `ideal`: without conflicts. least, most: by warp, over the cases; 0 where no lane takes part.
    """

    total: Number
    ideal: int
    least: tuple[int, ...]
    most: tuple[int, ...]

    @property
    def warps(self) -> int:
        """How many warps make the access."""
        return sum(n > 0 for n in self.most)


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """What accesses share whose lanes are moved as a whole; `row`, `column`: [warps, 32], from the smallest on."""

    alloc: tile.SharedAlloc
    kind: Kind
    width: int
    row: Ints
    column: Ints
    mask: Bools


class Case(NamedTuple):
    """One warp of an access, where symbols move it by so many rows and columns, modulo what matters to its layout."""

    wavefronts: int
    warp: int
    rows: int
    columns: int


class Shift(NamedTuple):
    """Where an access of a pattern is: its smallest row and column, and the symbols that move it."""

    row: int
    column: int
    row_steps: Steps
    column_steps: Steps


class WavefrontCounter:
    """Counts accesses under layouts, each pattern and shift once: copies that unrolling made have most in common."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self._patterns: dict[tuple[Hashable, ...], Pattern] = {}
        self._under: dict[tuple[tile.SharedAlloc, Layout], UnderLayout] = {}

    def count(self, access: SharedAccess, layout: Layout) -> Wavefronts | None:
        """None for an access whose lanes are not known, or that leaves too many cases to count."""
        return self.under(layout, access.alloc).count(*self.place(access)) if access.is_known else None

    def under(self, layout: Layout, alloc: tile.SharedAlloc) -> UnderLayout:
        """What counts the accesses to this tile if it is laid out so."""
        known = self._under.get((alloc, layout))
        if known is None:
            known = self._under[alloc, layout] = UnderLayout(layout, alloc)
        return known

    def place(self, access: SharedAccess) -> tuple[Pattern, Shift]:
        """Of an access whose lanes are known."""
        assert access.row is not None and access.column is not None
        first_row, first_column = int(access.row.lanes.min()), int(access.column.lanes.min())
        row, column, mask = access.row.lanes - first_row, access.column.lanes - first_column, access.mask.lanes
        described = access.alloc, access.kind, access.width
        key = (*described, row.tobytes(), column.tobytes(), mask.tobytes())
        pattern = self._patterns.setdefault(key, Pattern(*described, row, column, mask))
        return pattern, Shift(first_row, first_column, self._steps(access.row.terms), self._steps(access.column.terms))

    def _steps(self, terms: Mapping[Hashable, int]) -> Steps:
        trips = self.lanes.trips
        return tuple(sorted((coefficient, trips.get(symbol, 0)) for symbol, coefficient in terms.items()))


class UnderLayout:
    """Counts accesses to a tile under one layout."""

    def __init__(self, layout: Layout, alloc: tile.SharedAlloc) -> None:
        self._layout = layout
        self._rows, self._columns = _periods(layout, alloc.type.dims, alloc.type.dtype.bytes)
        self._counted: dict[tuple[Pattern, Residues, Residues], Wavefronts | None] = {}

    def count(self, pattern: Pattern, shift: Shift) -> Wavefronts | None:
        """None for an access that leaves too many cases to count."""
        rows = _residues(shift.row_steps, self._rows, shift.row % self._rows)
        columns = _residues(shift.column_steps, self._columns, shift.column % self._columns)
        key = pattern, rows, columns
        if key not in self._counted:
            self._counted[key] = _evaluated(pattern, self._layout, rows, columns)
        return self._counted[key]

    def worst(self, pattern: Pattern, shift: Shift) -> Case:
        """The first warp and case with the most wavefronts, of an access that `count` has counted."""
        rows = _residues(shift.row_steps, self._rows, shift.row % self._rows)
        columns = _residues(shift.column_steps, self._columns, shift.column % self._columns)
        counts = [cost.wavefronts for cost in _case_costs(pattern, self._layout, rows, columns)]
        most = max(counts)
        case, warp = divmod(counts.index(most), len(pattern.mask))
        row, column = rows[case // len(columns)], columns[case % len(columns)]
        return Case(most, warp, (row - shift.row) % self._rows, (column - shift.column) % self._columns)


def _case_costs(pattern: Pattern, layout: Layout, rows: Residues, columns: Residues) -> list[banks.Cost]:
    """Of an access whose lanes are all moved by one of these rows, and one of these columns: case by case the warps."""
    dims, element = pattern.alloc.type.dims, pattern.alloc.type.dtype.bytes
    row = pattern.row + np.array(rows)[:, None, None, None]
    place = layout.place(row, pattern.column + np.array(columns)[:, None, None], dims)
    address = np.where(pattern.mask, (row * layout.pitch(dims) + place) * element, -1)
    return costs(address.reshape(-1, WARP), pattern.kind, pattern.width)


def _evaluated(pattern: Pattern, layout: Layout, rows: Residues, columns: Residues) -> Wavefronts | None:
    if len(rows) * len(columns) > MOST_CASES:
        return None
    found = _case_costs(pattern, layout, rows, columns)
    warps = len(pattern.mask)
    cases = [[cost.wavefronts for cost in found[at : at + warps]] for at in range(0, len(found), warps)]
    total, rest = divmod(sum(map(sum, cases)), len(cases))  # an int where it is one: ints add many times faster
    by_warp = list(zip(*cases, strict=True))
    return Wavefronts(
        Fraction(total * len(cases) + rest, len(cases)) if rest else total,
        sum(cost.ideal for cost in found[:warps]),
        tuple(map(min, by_warp)),
        tuple(map(max, by_warp)),
    )


@lru_cache(maxsize=1 << 14)
def _residues(steps: Steps, period: int, first: int) -> Residues:
    """What ``first + sum of step * symbol`` can be, modulo `period`."""
    found = {first}
    for coefficient, trips in steps:
        step = coefficient % period
        if step:
            values = min(trips or period, period // gcd(step, period))
            found = {(f + step * i) % period for f in found for i in range(values)}
    return tuple(sorted(found))


def _periods(layout: Layout, dims: tuple[int, ...], element: int) -> tuple[int, int]:
    """How many rows, and how many columns, all lanes may be moved without any other change; powers of two."""
    if isinstance(layout, Paneled):
        return ROWS, layout.width
    rows, columns = WORD // gcd(WORD, layout.pitch(dims) * element), WORD // gcd(WORD, element)
    if not isinstance(layout, Swizzled):
        return rows, columns
    rows = max(rows, layout.period // gcd(layout.period, layout.panels(dims)))
    return rows, max(columns, layout.panel * (1 if layout.by_rows_only(dims) else layout.period))
