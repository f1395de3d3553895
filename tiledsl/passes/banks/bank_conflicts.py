"""Bank conflicts: count the wavefronts of every shared access, and choose the layout of every shared tile.

For each tile whose layout is `auto`, of row order, padding and XOR swizzles the one with the fewest wavefronts over
all accesses of all warps, weighted by trip counts (a loop of unknown length counts as `UNKNOWN_TRIPS`); of equals
row order, then the one of fewer bytes, then the simpler one. A layout is a candidate if it keeps every vector
access together and aligned, and if all tiles still fit. A layout that the user gave stays, and is only reported.

The count is exact (`shared_accesses`): lane addresses are evaluated, phase by phase, under the bank model of
`layout.banks`. An access whose lanes are not known, such as one by an index that was loaded, is reported as unknown
and has no say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, ClassVar

from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import tile
from tiledsl.layout.banks import BANKS, WORD
from tiledsl.layout.shared import AUTO, ROW, Layout, Padded, Swizzled
from tiledsl.passes.banks.bank_report import AccessReport, BankReport, By, TileReport
from tiledsl.passes.banks.shared_layout import lay_out_shared

if TYPE_CHECKING:  # they need NumPy, which importing the pipeline must not load
    from tiledsl.passes.banks.shared_accesses import SharedAccess
    from tiledsl.passes.banks.wavefront_counter import Number, Pattern, Place, WavefrontCounter

__all__ = ["BankConflicts", "bank_report", "candidates"]

LINE = BANKS * WORD
"""Bytes after which banks come again: padding by more, or swizzling further, reaches nothing new."""

LARGEST_EVERY = 128


@dataclass(frozen=True)
class BankConflicts:
    """Gives every shared tile its layout. Runs at tile level, on accesses that `check-accesses` has approved.

    limit: bytes of shared memory that a block may have; None for no limit.
    """

    limit: int | None = None
    name: ClassVar[str] = "bank-conflict"

    def run(self, kernel: Kernel) -> None:
        for plan in _Planner(kernel, self.limit).plans:
            plan.alloc.attrs["layout"] = str(plan.layout)


def bank_report(kernel: Kernel, limit: int | None = None) -> BankReport:
    """What the pass does with `kernel`, which stays as it is."""
    return _Planner(kernel, limit).report()


def candidates(dims: tuple[int, ...], element: int, vector: int) -> Iterator[Layout]:
    """Layouts of a tile that keep vectors of `vector` bytes together and aligned, the preferred ones first."""
    yield ROW
    if len(dims) < 2:
        return
    row = dims[-1]
    step = max(vector, WORD, element)
    for span in _powers(2, LINE // step):
        for unit in reversed(_powers(step, LINE // span)):
            if unit % element == 0:
                yield from _swizzles(dims, element, vector, unit // element, span)
    for extra in range(step, LINE, step):
        padded = Padded(row + extra // element)
        if extra % element == 0 and padded.vector_bytes(dims, element) >= vector:
            yield padded


def _swizzles(dims: tuple[int, ...], element: int, vector: int, unit: int, span: int) -> Iterator[Layout]:
    """First those that permute a row as a whole: then an address has one XOR, which depends on its row alone."""
    every = _powers(1, min(LARGEST_EVERY, prod(dims) // (2 * unit * span)))
    swizzles = [Swizzled(unit, span, e) for e in every]
    fitting = [s for s in swizzles if s.problem(dims) is None and s.vector_bytes(dims, element) >= vector]
    yield from (s for s in fitting if s.by_rows_only(dims))
    yield from (s for s in reversed(fitting) if not s.by_rows_only(dims))


def _likely(options: list[Layout], dims: tuple[int, ...], element: int) -> Swizzled | None:
    """The one that is mostly best: of the widest span, permuting by lines of 128 bytes or by rows. It always fits."""
    swizzles = [o for o in options if isinstance(o, Swizzled)]
    usual = [s for s in swizzles if s.every == max(s.panels(dims), LINE // (s.panel * element))]
    return max(usual, key=lambda s: s.span, default=None)


def _powers(first: int, last: int) -> list[int]:
    powers: list[int] = []
    while first <= last:
        powers.append(first)
        first *= 2
    return powers


class _Tile:
    """A tile and the accesses to it. `row`, `ideal`: their weighted wavefronts in row order, and without conflicts."""

    def __init__(self, alloc: tile.SharedAlloc, accesses: list[SharedAccess], counter: WavefrontCounter) -> None:
        self.alloc, self.accesses, self.counter = alloc, accesses, counter
        self.merged = counter.merged(accesses)
        self.row: Number = 0
        self.ideal = 0
        for pattern, places in self.merged.items():
            counted = counter.weighted(pattern, places, ROW)
            assert counted is not None, "row order leaves few cases"
            self.row += counted[0]
            self.ideal += counted[1]

    def total(self, layout: Layout, bound: Number | None = None) -> Number | None:
        """Weighted wavefronts of the known accesses.

        None if one of them leaves too many cases to count; and as soon as the sum cannot stay below `bound`.
        """
        total: Number = 0
        rest = self.ideal
        for pattern, places in self._parts():
            counted = self.counter.weighted(pattern, places, layout)
            if counted is None:
                return None
            total += counted[0]
            rest -= counted[1]
            if bound is not None and total + rest >= bound:
                return None
        return total

    def _parts(self) -> Iterator[tuple[Pattern, Mapping[Place, int]]]:
        """The accesses, one place of each pattern before its others: often that alone is too much."""
        for pattern, places in self.merged.items():
            first, *others = places.items()
            yield pattern, dict([first])
            yield pattern, dict(others)


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """The layout that a tile gets."""

    tile: _Tile
    layout: Layout
    by: By

    @property
    def alloc(self) -> tile.SharedAlloc:
        return self.tile.alloc


class _Planner:
    """`plans`: one a tile, in program order."""

    def __init__(self, kernel: Kernel, limit: int | None) -> None:
        self.kernel, self.limit = kernel, limit
        self.plans: list[_Plan] = []
        self.accesses: list[SharedAccess] = []
        ops = list(kernel.walk())
        allocs = [op for op in ops if isinstance(op, tile.SharedAlloc)]
        if not allocs:
            return  # without the imports below
        from tiledsl.passes.analysis.lanes import Lanes
        from tiledsl.passes.banks.shared_accesses import shared_accesses
        from tiledsl.passes.banks.wavefront_counter import WavefrontCounter

        lanes = Lanes(kernel)
        self.accesses = shared_accesses(ops, lanes)
        self.counter = WavefrontCounter(lanes)
        of: dict[Op, list[SharedAccess]] = {alloc: [] for alloc in allocs}
        for access in self.accesses:
            of[access.alloc].append(access)
        self.layouts: dict[Op, Layout] = {alloc: alloc.placement for alloc in allocs}
        tiles = [_Tile(alloc, of[alloc], self.counter) for alloc in allocs]
        chosen: dict[Op, _Plan] = {}
        # Where bytes are short, the tile that has most to gain comes first.
        for here in sorted(tiles, key=lambda t: t.ideal - t.row):
            chosen[here.alloc] = self.plan(here)
            self.layouts[here.alloc] = chosen[here.alloc].layout
        self.plans = [chosen[alloc] for alloc in allocs]

    def plan(self, here: _Tile) -> _Plan:
        alloc = here.alloc
        if alloc.layout != AUTO:
            return _Plan(here, alloc.placement, "given")
        if any(op.touches and not isinstance(op, tile.Access) for op, _ in alloc.result.uses):
            return _Plan(here, ROW, "used whole")
        if not here.merged:
            return _Plan(here, ROW, "nothing known")
        best, least = ROW, here.row
        vector, dims, element = max(a.width for a in here.accesses), alloc.type.dims, alloc.type.dtype.bytes
        options = list(candidates(dims, element, vector)) if least > here.ideal else []
        likely = _likely(options, dims, element)
        known = None if likely is None else here.total(likely, least)
        for layout in options:
            if least <= here.ideal:
                break
            # What is worse than the likely one need not be counted to the end.
            total = here.total(layout, least if known is None else min(least, known + 1))
            if total is not None and self.fits(alloc, layout):
                best, least = layout, total
        return _Plan(here, best, "row order is best" if best == ROW else "fewest wavefronts")

    def fits(self, alloc: tile.SharedAlloc, layout: Layout) -> bool:
        """True if all tiles fit with this one laid out so, and the others as they are by now."""
        if self.limit is None or layout == ROW or isinstance(layout, Swizzled):
            return True
        return lay_out_shared(self.kernel, {**self.layouts, alloc: layout}).bytes <= self.limit

    # -- the report ----------------------------------------------------------------------------

    def report(self) -> BankReport:
        layouts = {plan.alloc: plan.layout for plan in self.plans}
        used = lay_out_shared(self.kernel, {**layouts}).bytes
        names = _names(self.plans)
        tiles = tuple(self.tile(plan, names[plan.alloc]) for plan in self.plans)
        groups: dict[tuple[object, ...], list[SharedAccess]] = {}
        for access in self.accesses:
            key = (access.op.loc, access.alloc, access.kind, access.width, access.weight, _notes(access))
            groups.setdefault(key, []).append(access)
        accesses = [self.group(g, layouts[g[0].alloc], names[g[0].alloc]) for g in groups.values()]
        kernel = self.kernel
        found = BankReport(kernel.name, kernel.threads, tiles, tuple(accesses), self.limit, used)
        return replace(found, file=kernel.loc.file)

    def tile(self, plan: _Plan, name: str) -> TileReport:
        here, type_ = plan.tile, plan.alloc.type
        element = type_.dtype.bytes
        return TileReport(
            name=name,
            shape=type_.dims,
            dtype=type_.dtype.name,
            layout=str(plan.layout),
            by=plan.by,
            bytes=plan.layout.footprint(type_.dims) * element,
            row_bytes=ROW.footprint(type_.dims) * element,
            wavefronts=here.total(plan.layout),
            row_wavefronts=here.row,
            ideal=here.ideal,
            unknown=sum(self.counter.count(a, plan.layout) is None for a in here.accesses),
            loc=plan.alloc.loc,
        )

    def group(self, accesses: list[SharedAccess], layout: Layout, name: str) -> AccessReport:
        """Copies of one access as one row."""
        first = accesses[0]
        before = [c for c in (self.counter.count(a, ROW) for a in accesses) if c is not None]
        after = [c for c in (self.counter.count(a, layout) for a in accesses) if c is not None]
        warps = sum(c.warps for c in after)
        known = len(after) == len(before) == len(accesses) and warps > 0
        return AccessReport(
            loc=first.op.loc,
            tile=name,
            kind=first.kind,
            bytes=first.width,
            copies=len(accesses),
            warps=max((c.warps for c in after), default=0),
            row_order=Fraction(sum(c.total for c in before)) / warps if known else None,
            chosen=Fraction(sum(c.total for c in after)) / warps if known else None,
            ideal=Fraction(sum(c.ideal for c in after), warps) if known else None,
            least=min((c.least for c in after), default=0),
            most=max((c.most for c in after), default=0),
            weight=first.weight,
            notes=_notes(first),
        )


def _names(plans: list[_Plan]) -> dict[Op, str]:
    names: dict[Op, str] = {}
    for number, plan in enumerate(plans):
        names[plan.alloc] = plan.alloc.result.name or f"tile {number}"
    return names


def _notes(access: SharedAccess) -> tuple[str, ...]:
    """What the count takes for granted."""
    lines = sorted({op.loc.line for op in access.mask.unknown})
    notes = [f"all lanes counted: the condition of line {line} is not known by lane" for line in lines]
    if access.guarded:
        notes.append("counted as inside the tile")
    if not access.is_known:
        notes.append("an index is not known by lane")
    if access.weight == 0:
        notes.append("hardly ever runs")
    return tuple(notes)
