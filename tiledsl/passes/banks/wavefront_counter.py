"""Wavefronts of shared accesses under a layout: exact counts, by evaluating every lane's address.

What the count relies on: adding one number of whole words to the addresses of all lanes rotates the banks and keeps
equal words equal, so unknown symbols, which all lanes of a warp share, do not matter as far as they move the address by
whole words. Where they do not (elements narrower than a word, the permutation of a swizzle) every residue that they
can have is counted; if the counts differ, the access has a least, a mean and a most.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.ir.ops import tile
from tiledsl.layout import banks
from tiledsl.layout.banks import WORD, Kind
from tiledsl.layout.shared import ROWS, Layout, Paneled, Swizzled
from tiledsl.passes.analysis.lanes import Lanes
from tiledsl.passes.banks.shared_accesses import SharedAccess

__all__ = ["Merged", "Number", "Pattern", "Place", "WavefrontCounter", "Wavefronts"]

LARGEST = np.iinfo(np.int64).max
MOST_CASES = 256
"""An access with more than so many cases under a layout is not counted under it."""

Number = Fraction | int
Steps = tuple[tuple[int, int], ...]
"""Of each unknown symbol: how far one step of it moves the lanes, and how many values it takes; 0: not known."""

Residues = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wavefronts:
    """Wavefronts of one access by warp: None for a warp of which no lane takes part.

    mean: over the cases that unknown symbols leave. total: of that, over the warps, and `ideal`, if each makes the
    access once. least and most: over all cases and warps. is_exact: the cases agree.
    """

    mean: tuple[Number | None, ...]
    total: Number
    ideal: int
    least: int
    most: int
    is_exact: bool

    @property
    def warps(self) -> int:
        """How many warps make the access."""
        return sum(m is not None for m in self.mean)


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """What accesses share whose lanes are moved as a whole; `row`, `column`: [warps, 32], from the smallest on."""

    alloc: tile.SharedAlloc
    kind: Kind
    width: int
    row: NDArray[np.int64]
    column: NDArray[np.int64]
    mask: NDArray[np.bool_]


class Place(NamedTuple):
    """Where an access of a pattern is: its smallest row and column, and the symbols that move it."""

    row: int
    column: int
    row_steps: Steps
    column_steps: Steps


Merged = Mapping[Pattern, Mapping[Place, int]]
"""Accesses by pattern and place, each with its weight, the heaviest pattern first."""


class WavefrontCounter:
    """Counts accesses under layouts, each pattern and place once: copies that unrolling made have most in common."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self._placed: dict[SharedAccess, tuple[Pattern, Place]] = {}
        self._patterns: dict[tuple[Hashable, ...], Pattern] = {}
        self._counted: dict[tuple[Pattern, Layout], dict[tuple[Residues, Residues], Wavefronts | None]] = {}
        self._costs: dict[tuple[Kind, int, bytes], banks.Cost] = {}

    def count(self, access: SharedAccess, layout: Layout) -> Wavefronts | None:
        """None for an access whose lanes are not known, or that leaves too many cases to count."""
        if not access.is_known:
            return None
        pattern, place = self._place(access)
        return self._counts(pattern, (place,), layout)[0]

    def merged(self, accesses: Iterable[SharedAccess]) -> Merged:
        """The known accesses, equal ones as one with their weights added up."""
        found: dict[Pattern, dict[Place, int]] = {}
        for access in accesses:
            if access.is_known:
                pattern, place = self._place(access)
                places = found.setdefault(pattern, {})
                places[place] = places.get(place, 0) + access.weight
        return dict(sorted(found.items(), key=lambda item: -sum(item[1].values())))

    def weighted(self, pattern: Pattern, places: Mapping[Place, int], layout: Layout) -> tuple[Number, int] | None:
        """The wavefronts of accesses of one pattern and the ideal, both times their weights.

        None if one of them leaves too many cases to count.
        """
        total: Number = 0
        ideal = 0
        for count, weight in zip(self._counts(pattern, places, layout), places.values(), strict=True):
            if count is None:
                return None
            total += weight * count.total
            ideal += weight * count.ideal
        return total, ideal

    # -- patterns and places -------------------------------------------------------------------

    def _place(self, access: SharedAccess) -> tuple[Pattern, Place]:
        known = self._placed.get(access)
        if known is not None:
            return known
        assert access.row is not None and access.column is not None
        first_row, first_column = int(access.row.lanes.min()), int(access.column.lanes.min())
        row, column, mask = access.row.lanes - first_row, access.column.lanes - first_column, access.mask.lanes
        described = access.alloc, access.kind, access.width
        key = (*described, row.tobytes(), column.tobytes(), mask.tobytes())
        pattern = self._patterns.get(key)
        if pattern is None:
            pattern = self._patterns[key] = Pattern(*described, row, column, mask)
        place = Place(first_row, first_column, self._steps(access.row.terms), self._steps(access.column.terms))
        made = self._placed[access] = pattern, place
        return made

    def _steps(self, terms: Mapping[Hashable, int]) -> Steps:
        trips = self.lanes.trips
        return tuple(sorted((coefficient, trips.get(symbol, 0)) for symbol, coefficient in terms.items()))

    # -- counting ------------------------------------------------------------------------------

    def _counts(self, pattern: Pattern, places: Iterable[Place], layout: Layout) -> list[Wavefronts | None]:
        rows, columns = _periods(layout, pattern.alloc.type.dims, pattern.alloc.type.dtype.bytes)
        keys = [
            (_residues(p.row_steps, rows, p.row % rows), _residues(p.column_steps, columns, p.column % columns))
            for p in places
        ]
        counted = self._counted.setdefault((pattern, layout), {})
        missing = [key for key in dict.fromkeys(keys) if key not in counted]
        if missing:
            counted.update(self._count(pattern, layout, missing))
        return [counted[key] for key in keys]

    def _count(
        self, pattern: Pattern, layout: Layout, wanted: list[tuple[Residues, Residues]]
    ) -> dict[tuple[Residues, Residues], Wavefronts | None]:
        """All cases of all that is wanted in one evaluation: NumPy's own time is in the number of calls."""
        cases: list[tuple[int, int]] = []
        parts: dict[tuple[Residues, Residues], slice] = {}
        for rows, columns in wanted:
            if len(rows) * len(columns) <= MOST_CASES:
                parts[rows, columns] = slice(len(cases), len(cases) + len(rows) * len(columns))
                cases += [(row, column) for row in rows for column in columns]
        costs = self._costs_of(pattern, layout, np.array(cases, np.int64)) if cases else []
        return {key: _wavefronts(costs[parts[key]]) if key in parts else None for key in wanted}

    def _costs_of(
        self, pattern: Pattern, layout: Layout, cases: NDArray[np.int64]
    ) -> list[tuple[banks.Cost | None, ...]]:
        """By case and warp; `cases`: [cases, 2], how far all rows and columns are moved."""
        dims, element, mask = pattern.alloc.type.dims, pattern.alloc.type.dtype.bytes, pattern.mask
        row = pattern.row + cases[:, 0, None, None]
        place = layout.place(row, pattern.column + cases[:, 1, None, None], dims)
        address = (row * layout.pitch(dims) + place) * element
        start = np.where(mask, address, LARGEST).min(axis=2, keepdims=True) // WORD * WORD
        raw = np.where(mask, address - start, -1).tobytes()
        size = WARP * address.itemsize
        taking_part = [bool(mask[warp].any()) for warp in range(len(mask))] * len(cases)
        keys = (raw[at : at + size] for at in range(0, len(raw), size))
        costs = [self._cost(pattern, key) if here else None for here, key in zip(taking_part, keys, strict=True)]
        return [tuple(costs[at : at + len(mask)]) for at in range(0, len(costs), len(mask))]

    def _cost(self, pattern: Pattern, raw: bytes) -> banks.Cost:
        """`raw`: the lanes' addresses from the first word on, -1 for a lane that takes no part."""
        key = (pattern.kind, pattern.width, raw)
        known = self._costs.get(key)
        if known is None:
            lanes: list[int] = np.frombuffer(raw, np.int64).tolist()
            known = banks.cost(lanes, pattern.width, [a >= 0 for a in lanes], pattern.kind)
            self._costs[key] = known
        return known


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


def _wavefronts(costs: list[tuple[banks.Cost | None, ...]]) -> Wavefronts:
    """From the costs of one place, by case and warp."""
    first = costs[0]
    ideal = sum([c.ideal for c in first if c is not None])
    if len(costs) == 1:
        mean = tuple([None if c is None else c.wavefronts for c in first])
        every = [n for n in mean if n is not None]
        return Wavefronts(mean, sum(every), ideal, min(every, default=0), max(every, default=0), True)
    warps: list[list[int]] = [[c.wavefronts for c in warp if c is not None] for warp in zip(*costs, strict=True)]
    every = [n for warp in warps for n in warp]
    means = tuple([_mean(warp) for warp in warps])
    total: Number = sum([m for m in means if m is not None])
    exact = all(len(set(warp)) <= 1 for warp in warps)
    return Wavefronts(means, total, ideal, min(every, default=0), max(every, default=0), exact)


def _mean(counts: list[int]) -> Number | None:
    """An int where it is one: ints add many times faster."""
    if not counts:
        return None
    mean, rest = divmod(sum(counts), len(counts))
    return Fraction(sum(counts), len(counts)) if rest else mean
