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
from itertools import product
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
        pattern, place = self.place(access)
        return self.counts(pattern, (place,), layout)[0]

    def place(self, access: SharedAccess) -> tuple[Pattern, Place]:
        """Of an access whose lanes are known."""
        if access in self._placed:
            return self._placed[access]
        assert access.row is not None and access.column is not None
        first_row, first_column = int(access.row.lanes.min()), int(access.column.lanes.min())
        row, column, mask = access.row.lanes - first_row, access.column.lanes - first_column, access.mask.lanes
        described = access.alloc, access.kind, access.width
        key = (*described, row.tobytes(), column.tobytes(), mask.tobytes())
        if key not in self._patterns:
            self._patterns[key] = Pattern(*described, row, column, mask)
        place = Place(first_row, first_column, self._steps(access.row.terms), self._steps(access.column.terms))
        made = self._placed[access] = self._patterns[key], place
        return made

    def _steps(self, terms: Mapping[Hashable, int]) -> Steps:
        trips = self.lanes.trips
        return tuple(sorted((coefficient, trips.get(symbol, 0)) for symbol, coefficient in terms.items()))

    def counts(self, pattern: Pattern, places: Iterable[Place], layout: Layout) -> list[Wavefronts | None]:
        """Of accesses of one pattern at several places; all that is new in one evaluation, since NumPy's own time is in
        the number of calls. None for one that leaves too many cases to count."""
        rows, columns = _periods(layout, pattern.alloc.type.dims, pattern.alloc.type.dtype.bytes)
        keys = [
            (_residues(p.row_steps, rows, p.row % rows), _residues(p.column_steps, columns, p.column % columns))
            for p in places
        ]
        counted = self._counted.setdefault((pattern, layout), {})
        cases: list[tuple[int, int]] = []
        parts: dict[tuple[Residues, Residues], slice] = {}
        for key in keys:
            if key not in counted and key not in parts:
                moved = list(product(*key)) if len(key[0]) * len(key[1]) <= MOST_CASES else []
                parts[key] = slice(len(cases), len(cases) + len(moved))
                cases += moved
        costs = self._costs_of(pattern, layout, np.array(cases, np.int64)) if cases else []
        counted.update({key: _wavefronts(costs[part]) if costs[part] else None for key, part in parts.items()})
        return [counted[key] for key in keys]

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
        if key not in self._costs:
            lanes: list[int] = np.frombuffer(raw, np.int64).tolist()
            self._costs[key] = banks.cost(lanes, pattern.width, [a >= 0 for a in lanes], pattern.kind)
        return self._costs[key]


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
    ideal = sum([c.ideal for c in costs[0] if c is not None])
    warps: list[list[int]] = [[c.wavefronts for c in warp if c is not None] for warp in zip(*costs, strict=True)]
    every = [n for warp in warps for n in warp]
    means = tuple([_mean(warp) for warp in warps])
    total: Number = sum([m for m in means if m is not None])
    exact = all(min(warp) == max(warp) for warp in warps if warp)
    return Wavefronts(means, total, ideal, min(every, default=0), max(every, default=0), exact)


def _mean(counts: list[int]) -> Number | None:
    """An int where it is one: ints add many times faster."""
    if not counts:
        return None
    mean, rest = divmod(sum(counts), len(counts))
    return Fraction(sum(counts), len(counts)) if rest else mean
