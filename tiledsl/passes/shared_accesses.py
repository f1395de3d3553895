"""Every access of a kernel to its shared tiles, as rows and columns by lane, and its wavefronts under a layout.

What the count relies on: adding one number of whole words to the addresses of all lanes rotates the banks and keeps
equal words equal, so unknown symbols, which all lanes of a warp share, do not matter as far as they move the address by
whole words. Where they do not (elements narrower than a word, the permutation of a swizzle) every residue that they
can have is counted; if the counts differ, the access has a least, a mean and a most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd
from typing import Hashable, Mapping

import numpy as np
from numpy.typing import NDArray

from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import control, tile
from tiledsl.layout import banks
from tiledsl.layout.banks import WORD, Kind
from tiledsl.layout.shared import Layout, Swizzled
from tiledsl.passes.lanes import Form, Lanes, Mask
from tiledsl.passes.structure import trip_count

__all__ = ["UNKNOWN_TRIPS", "SharedAccess", "WavefrontCounter", "Wavefronts", "shared_accesses"]

UNKNOWN_TRIPS = 64
"""What a loop counts in the weight of an access if its trip count is not known at compile time."""

MOST_CASES = 256
"""An access with more than so many cases under a layout is not counted under it."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedAccess:
    """One access of one warp, as often as the loops around it say.

    row, column: of the first element, by lane; None where an index is neither known nor the same in all lanes.
    width: bytes a lane. mask: the lanes that take part. weight: the product of the trip counts around it.
    guarded: a bound that is checked at run time and counts as met.
    """

    op: tile.Access
    alloc: tile.SharedAlloc
    kind: Kind
    width: int
    weight: int
    row: Form | None
    column: Form | None
    mask: Mask
    guarded: bool = False

    @property
    def is_known(self) -> bool:
        return self.row is not None and self.column is not None


@dataclass(frozen=True, slots=True)
class Wavefronts:
    """Wavefronts of one access by warp: None for a warp of which no lane takes part.

    mean: over the cases that unknown symbols leave. total: of that, over the warps, and `ideal`, if each makes the
    access once. least and most: over all cases and warps. is_exact: the cases agree.
    """

    mean: tuple[Fraction | int | None, ...]
    total: Fraction | int
    ideal: int
    least: int
    most: int
    is_exact: bool

    @property
    def warps(self) -> int:
        """How many warps make the access."""
        return sum(m is not None for m in self.mean)


def shared_accesses(kernel: Kernel, lanes: Lanes) -> list[SharedAccess]:
    """All of a tile-level kernel, in program order; loads that nobody uses are left out."""
    found: list[SharedAccess] = []
    for op in kernel.walk():
        if not isinstance(op, tile.Access) or not isinstance(op.memory.op, tile.SharedAlloc):
            continue
        if isinstance(op, (tile.Load, tile.Get)) and not op.result.uses:
            continue
        found += _of(op, op.memory.op, lanes)
    return found


_KINDS: tuple[tuple[type[tile.Access], Kind], ...] = (
    (tile.Load, "load"),
    (tile.Get, "load"),
    (tile.Store, "store"),
    (tile.AtomicAdd, "atomic"),
)


def _of(op: tile.Access, alloc: tile.SharedAlloc, lanes: Lanes) -> list[SharedAccess]:
    """The access; for a vector that may lie across the edge of its tile, the single elements there too."""
    kind: Kind = next(k for cls, k in _KINDS if isinstance(op, cls))
    element = alloc.type.dtype.bytes
    indices = [lanes.of(v) for v in op.indices]
    forms = [i for i in indices if i is not None]
    mask = lanes.reaching(op)
    base = SharedAccess(op, alloc, kind, op.vec * element, _weight(op), None, None, mask)
    if len(forms) < len(indices):
        return [base]
    row = lanes.constant(0)
    for form, stride in zip(forms[:-1], alloc.placement.row_strides(alloc.type.dims), strict=True):
        row = row.plus(form.scaled(stride))
    base = replace(base, row=row, column=forms[-1])
    return _guarded(base, forms) if isinstance(op, (tile.Get, tile.Put)) else [base]


def _guarded(access: SharedAccess, indices: list[Form]) -> list[SharedAccess]:
    """Restrict the mask to indices inside the tile."""
    dims, vec = access.alloc.type.dims, access.op.vec
    inside = access.mask.lanes
    for form, extent in zip(indices[:-1], dims[:-1], strict=True):
        if not form.terms:
            inside = inside & (form.lanes >= 0) & (form.lanes < extent)
    column = indices[-1]
    open_bound = any(form.terms for form in indices)
    if column.terms:
        return [replace(access, mask=Mask(inside, access.mask.unknown), guarded=True)]
    whole = inside & (column.lanes >= 0) & (column.lanes <= dims[-1] - vec)
    parts = [replace(access, mask=Mask(whole, access.mask.unknown), guarded=open_bound)]
    if vec == 1 or dims[-1] % vec == 0:
        return parts
    for e in range(vec):
        single = column.lanes + e
        alone = inside & ~whole & (single >= 0) & (single < dims[-1])
        if alone.any():
            width, mask = access.width // vec, Mask(alone, access.mask.unknown)
            parts.append(replace(access, width=width, column=Form(single, {}), mask=mask, guarded=open_bound))
    return parts


def _weight(op: Op) -> int:
    weight = 1
    block = op.parent
    while block is not None and isinstance(block.parent, Op):
        owner = block.parent
        if isinstance(owner, control.For):
            trips = trip_count(owner)
            weight *= UNKNOWN_TRIPS if trips is None else trips
        elif isinstance(owner, control.While):
            weight *= UNKNOWN_TRIPS
        block = owner.parent
    return weight


@dataclass(frozen=True, slots=True, eq=False)
class _Pattern:
    """The lanes of an access as far as they matter: rows and columns from the smallest one on."""

    row: NDArray[np.int64]
    column: NDArray[np.int64]
    first_row: int
    first_column: int
    key: tuple[Hashable, ...]


class WavefrontCounter:
    """Counts accesses under layouts, each pattern once: unrolled copies of an access differ by constants only."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self._patterns: dict[SharedAccess, _Pattern] = {}
        self._counted: dict[tuple[Hashable, ...], Wavefronts | None] = {}
        self._costs: dict[tuple[Hashable, ...], banks.Cost] = {}

    def merged(self, accesses: list[SharedAccess]) -> list[SharedAccess]:
        """The known accesses, equal ones as one with their weights added up."""
        found: dict[tuple[Hashable, ...], SharedAccess] = {}
        for access in accesses:
            if access.is_known:
                pattern = self._pattern(access)
                key = (pattern.first_row, pattern.first_column, pattern.key)
                weight = found[key].weight if key in found else 0
                found[key] = replace(access, weight=weight + access.weight)
        return list(found.values())

    def count(self, access: SharedAccess, layout: Layout) -> Wavefronts | None:
        """None for an access whose lanes are not known."""
        if access.row is None or access.column is None:
            return None
        element = access.alloc.type.dtype.bytes
        rows, columns = _periods(layout, access.alloc.type.dims, element)
        pattern = self._pattern(access)
        key = (layout, pattern.first_row % rows, pattern.first_column % columns, pattern.key)
        if key not in self._counted:
            row_cases = self._residues(access.row.terms, rows, pattern.first_row)
            column_cases = self._residues(access.column.terms, columns, pattern.first_column)
            cases = [(r, c) for r in row_cases for c in column_cases]
            self._counted[key] = self._count(access, layout, pattern, cases) if len(cases) <= MOST_CASES else None
        return self._counted[key]

    def _pattern(self, access: SharedAccess) -> _Pattern:
        known = self._patterns.get(access)
        if known is not None:
            return known
        assert access.row is not None and access.column is not None
        first_row, first_column = int(access.row.lanes.min()), int(access.column.lanes.min())
        row, column = access.row.lanes - first_row, access.column.lanes - first_column
        mask = access.mask.lanes
        terms = (frozenset(access.row.terms.items()), frozenset(access.column.terms.items()))
        tile_key = (access.alloc, access.kind, access.width)
        key = (*tile_key, *terms, row.tobytes(), column.tobytes(), mask.tobytes())
        made = self._patterns[access] = _Pattern(row, column, first_row, first_column, key)
        return made

    def _residues(self, terms: Mapping[Hashable, int], period: int, first: int) -> list[int]:
        """What ``first + sum of coefficient * symbol`` can be, modulo `period`."""
        found = {first % period}
        for symbol, coefficient in terms.items():
            step = coefficient % period
            if step == 0:
                continue
            values = min(self.lanes.trips.get(symbol, period), period // gcd(step, period))
            found = {(f + step * i) % period for f in found for i in range(values)}
        return sorted(found)

    def _count(
        self, access: SharedAccess, layout: Layout, pattern: _Pattern, cases: list[tuple[int, int]]
    ) -> Wavefronts:
        dims, element = access.alloc.type.dims, access.alloc.type.dtype.bytes
        shifts = np.array(cases, np.int64)
        row = pattern.row + shifts[:, 0, None, None]
        place = layout.place(row, pattern.column + shifts[:, 1, None, None], dims)
        costs = self._costs_of((row * layout.pitch(dims) + place) * element, access)
        warps = list(zip(*costs, strict=True))
        ideal = sum(warp[0].ideal for warp in warps if warp[0] is not None)
        counts = [{c.wavefronts for c in warp if c is not None} for warp in warps]
        every = [n for warp in counts for n in warp]
        exact = all(len(warp) <= 1 for warp in counts)
        mean = tuple(map(_mean, warps))
        total: Fraction | int = sum(m for m in mean if m is not None)
        return Wavefronts(mean, total, ideal, min(every, default=0), max(every, default=0), exact)

    def _costs_of(self, address: NDArray[np.int64], access: SharedAccess) -> list[list[banks.Cost | None]]:
        """By case and warp; `address` [cases, warps, 32] in bytes."""
        mask = access.mask.lanes
        start = np.where(mask, address, np.iinfo(np.int64).max).min(axis=2, keepdims=True) // WORD * WORD
        moved = np.where(mask, address - start, -1)
        taking_part = [bool(warp.any()) for warp in mask]
        return [
            [self._cost(case[warp], access) if here else None for warp, here in enumerate(taking_part)]
            for case in moved
        ]

    def _cost(self, lanes: NDArray[np.int64], access: SharedAccess) -> banks.Cost:
        """`lanes`: addresses from the first word on, -1 for a lane that takes no part."""
        key = (access.kind, access.width, lanes.tobytes())
        known = self._costs.get(key)
        if known is None:
            addresses: list[int] = lanes.tolist()
            known = banks.cost(addresses, access.width, [a >= 0 for a in addresses], access.kind)
            self._costs[key] = known
        return known


def _periods(layout: Layout, dims: tuple[int, ...], element: int) -> tuple[int, int]:
    """How many rows, and how many columns, all lanes may be moved without any other change; powers of two."""
    rows, columns = WORD // gcd(WORD, layout.pitch(dims) * element), WORD // gcd(WORD, element)
    if not isinstance(layout, Swizzled):
        return rows, columns
    rows = max(rows, layout.period // gcd(layout.period, layout.panels(dims)))
    return rows, max(columns, layout.panel * (1 if layout.by_rows_only(dims) else layout.period))


def _mean(costs: tuple[banks.Cost | None, ...]) -> Fraction | int | None:
    """An int where it is one: ints add many times faster."""
    counts = [c.wavefronts for c in costs if c is not None]
    if not counts:
        return None
    mean, rest = divmod(sum(counts), len(counts))
    return Fraction(sum(counts), len(counts)) if rest else mean
