"""Bank conflicts: count the wavefronts of every shared access, and choose the layout of every shared tile.

For each tile whose layout is `auto`, of row order, padding and XOR swizzles the one with the fewest wavefronts over
all accesses of all warps, weighted by trip counts (a loop of unknown length counts as `UNKNOWN_TRIPS`); of equals
row order, then the one of fewer bytes, then the simpler one. A layout is a candidate if it keeps every vector
access together and aligned, and if all tiles still fit. A layout that the user gave stays, and is only reported.

The count is exact (`wavefront_counter`): lane addresses are evaluated, phase by phase, under the bank model of
`layout.banks`. An access whose lanes are not known, such as one by an index that was loaded, is reported as unknown
and has no say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING

from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import tile
from tiledsl.layout.banks import BANKS, WORD, Turns, turns
from tiledsl.layout.shared import AUTO, ROW, Layout, Padded, Swizzled
from tiledsl.passes.banks.bank_report import AccessReport, BankReport, By, TileReport, WarpReport
from tiledsl.passes.banks.shared_layout import lay_out_shared

if TYPE_CHECKING:  # they need NumPy, which importing the pipeline must not load
    from tiledsl.passes.banks.shared_accesses import SharedAccess
    from tiledsl.passes.banks.wavefront_counter import Number, Pattern, Shift, WavefrontCounter, Wavefronts

LINE = BANKS * WORD
"""Bytes after which banks come again: padding by more, or swizzling further, reaches nothing new."""

LARGEST_EVERY = 128

BANK_DIGITS = "0123456789abcdefghijklmnopqrstuv"


def choose_layouts(kernel: Kernel, limit: int | None = None) -> None:
    """Gives every shared tile its layout. Runs at tile level, on accesses that `check-accesses` has approved.

    limit: bytes of shared memory that a block may have; None for no limit.
    """
    for here in _Planner(kernel, limit, shared_use(kernel)).tiles:
        here.alloc.attrs["layout"] = str(here.layout)


def bank_report(kernel: Kernel, limit: int | None = None) -> BankReport:
    """What the pass does with `kernel`, which stays as it is."""
    return _Planner(kernel, limit, shared_use(kernel)).report()


@dataclass(frozen=True)
class SharedUse:
    """The shared tiles of a kernel in program order, the accesses to them, and what counts these."""

    allocs: list[tile.SharedAlloc]
    accesses: list[SharedAccess]
    counter: WavefrontCounter


def shared_use(kernel: Kernel) -> SharedUse | None:
    """None without shared tiles."""
    ops = list(kernel.walk())
    allocs = [op for op in ops if isinstance(op, tile.SharedAlloc)]
    if not allocs:
        return None  # without the imports below
    from tiledsl.passes.analysis.lanes import Lanes
    from tiledsl.passes.banks.shared_accesses import shared_accesses
    from tiledsl.passes.banks.wavefront_counter import WavefrontCounter

    lanes = Lanes(kernel)
    return SharedUse(allocs, shared_accesses(ops, lanes), WavefrontCounter(lanes))


def least_wavefronts(kernel: Kernel, limit: int | None, use: SharedUse) -> float:
    """Weighted wavefronts of these accesses in the layouts that the pass chooses for them; inf where one cannot be
    counted."""
    counts = [here.total(here.layout) for here in _Planner(kernel, limit, use).tiles]
    return sum(float("inf") if count is None else float(count) for count in counts)


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
    return [] if first > last else [first, *_powers(2 * first, last)]


class _Tile:
    """A tile, the accesses to it, and the layout that it gets, with the reason.

    parts: the known accesses, those of one pattern and shift together, with their weights, the heaviest first. row,
    ideal: their weighted wavefronts in row order, and without conflicts.
    """

    def __init__(self, alloc: tile.SharedAlloc, accesses: list[SharedAccess], counter: WavefrontCounter) -> None:
        self.alloc, self.accesses, self.counter = alloc, accesses, counter
        self.name = alloc.result.name or "tile"
        self.layout: Layout = alloc.placement
        self.by: By = "given"
        found: Counter[tuple[Pattern, Shift]] = Counter()
        for access in accesses:
            if access.is_known:
                found[counter.place(access)] += access.weight
        self.parts = found.most_common()
        self.row: Number = 0
        self.ideal = 0
        for weight, count in self.weighted(ROW):
            assert count is not None, "row order leaves few cases"
            self.row += weight * count.total
            self.ideal += weight * count.ideal

    def weighted(self, layout: Layout) -> Iterator[tuple[int, Wavefronts | None]]:
        """The known accesses under a layout, each with its weight."""
        under = self.counter.under(layout, self.alloc)
        for place, weight in self.parts:
            yield weight, under.count(*place)

    def total(self, layout: Layout, bound: Number | None = None) -> Number | None:
        """Weighted wavefronts of the known accesses.

        None if one of them leaves too many cases to count; and as soon as the sum cannot stay below `bound`.
        """
        total: Number = 0
        rest = self.ideal
        for weight, count in self.weighted(layout):
            if count is None:
                return None
            total += weight * count.total
            rest -= weight * count.ideal
            if bound is not None and total + rest >= bound:
                return None
        return total


class _Planner:
    """`tiles`: in program order, each with the layout that it gets."""

    def __init__(self, kernel: Kernel, limit: int | None, use: SharedUse | None) -> None:
        self.kernel, self.limit = kernel, limit
        self.accesses: list[SharedAccess] = []
        self.tiles: list[_Tile] = []
        if use is None:
            return
        self.accesses = use.accesses
        self.tiles = [_Tile(op, [a for a in use.accesses if a.alloc is op], use.counter) for op in use.allocs]
        # Where bytes are short, the tile that has most to gain comes first.
        for here in sorted(self.tiles, key=lambda t: t.ideal - t.row):
            if here.alloc.layout == AUTO:
                here.layout, here.by = self.choose(here)

    def choose(self, here: _Tile) -> tuple[Layout, By]:
        alloc = here.alloc
        if any(op.touches and not isinstance(op, tile.Access) for op, _ in alloc.result.uses):
            return ROW, "used whole"
        if not here.parts:
            return ROW, "nothing known"
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
        return best, "row order is best" if best == ROW else "fewest wavefronts"

    def fits(self, alloc: tile.SharedAlloc, layout: Layout) -> bool:
        """True if all tiles fit with this one laid out so, and the others as they are by now."""
        if self.limit is None or layout == ROW or isinstance(layout, Swizzled):
            return True
        return lay_out_shared(self.kernel, self.layouts() | {alloc: layout}).bytes <= self.limit

    def layouts(self) -> dict[Op, Layout]:
        return {here.alloc: here.layout for here in self.tiles}

    def report(self) -> BankReport:
        kernel, used = self.kernel, lay_out_shared(self.kernel, self.layouts()).bytes
        of = {here.alloc: here for here in self.tiles}
        groups: dict[tuple[object, ...], list[SharedAccess]] = {}
        for access in self.accesses:
            key = (access.op.loc, access.alloc, access.kind, access.width, access.weight, _notes(access))
            groups.setdefault(key, []).append(access)
        accesses = tuple(_access_report(group, of[group[0].alloc]) for group in groups.values())
        tiles = tuple(map(_tile_report, self.tiles))
        return BankReport(kernel.name, kernel.threads, tiles, accesses, self.limit, used, file=kernel.loc.file)


DRAWN_ROWS, DRAWN_WORDS = 32, 64
"""Of a tile, as many as `TileReport` has the banks of."""


def _tile_report(here: _Tile) -> TileReport:
    type_, element = here.alloc.type, here.alloc.type.dtype.bytes
    return TileReport(
        name=here.name,
        shape=type_.dims,
        dtype=type_.dtype.name,
        layout=str(here.layout),
        by=here.by,
        bytes=here.layout.footprint(type_.dims) * element,
        row_bytes=ROW.footprint(type_.dims) * element,
        wavefronts=here.total(here.layout),
        row_wavefronts=here.row,
        ideal=here.ideal,
        cell=max(1, WORD // element),
        row_banks=_drawn_banks(ROW, type_.dims, element),
        banks=_drawn_banks(here.layout, type_.dims, element),
    )


def _drawn_banks(layout: Layout, dims: tuple[int, ...], element: int) -> tuple[str, ...]:
    step = max(1, WORD // element)
    columns = range(0, dims[-1], step)[:DRAWN_WORDS]
    return tuple(
        "".join(
            BANK_DIGITS[(row * layout.pitch(dims) + layout.place(row, column, dims)) * element // WORD % BANKS]
            for column in columns
        )
        for row in range(min(prod(dims[:-1]), DRAWN_ROWS))
    )


def _access_report(accesses: list[SharedAccess], here: _Tile) -> AccessReport:
    """Copies of one access as one row."""
    first = accesses[0]
    before, after = ([c for a in accesses if (c := here.counter.count(a, lay))] for lay in (ROW, here.layout))
    known = len(before) == len(after) == len(accesses)
    warps = sum(c.warps for c in after) if known else 0
    return AccessReport(
        loc=first.op.loc,
        tile=here.name,
        kind=first.kind,
        bytes=first.width,
        copies=len(accesses),
        warps=max((c.warps for c in after), default=0),
        row_order=Fraction(sum(c.total for c in before)) / warps if warps else None,
        chosen=Fraction(sum(c.total for c in after)) / warps if warps else None,
        ideal=Fraction(sum(c.ideal for c in after), warps) if warps else None,
        least=min((n for c in after for n in c.least if n), default=0),
        most=max((n for c in after for n in c.most), default=0),
        weight=first.weight,
        lanes=_warp_report(accesses, here) if warps else None,
        notes=_notes(first),
    )


def _warp_report(accesses: list[SharedAccess], here: _Tile) -> WarpReport:
    """Of copies of one access, which are known: the warp with the most wavefronts as laid out, then in row order."""

    def most(access: SharedAccess) -> tuple[int, ...]:
        counts = (here.counter.count(access, layout) for layout in (here.layout, ROW))
        return tuple(max(count.most) if count is not None else 0 for count in counts)

    access = max(accesses, key=most)
    place = here.counter.place(access)
    as_laid_out, in_row_order = (here.counter.under(layout, here.alloc) for layout in (here.layout, ROW))
    count = as_laid_out.count(*place)
    assert count is not None
    case = (in_row_order if count.total == count.ideal else as_laid_out).worst(*place)
    assert access.row is not None and access.column is not None
    active = access.mask.lanes[case.warp].tolist()
    firsts = access.row.lanes[case.warp] + case.rows, access.column.lanes[case.warp] + case.columns
    rows, columns = ([n if on else -1 for n, on in zip(by_lane.tolist(), active, strict=True)] for by_lane in firsts)
    dims, element = here.alloc.type.dims, here.alloc.type.dtype.bytes

    def served(layout: Layout) -> Turns:
        places = zip(rows, columns, active, strict=True)
        at = [(r * layout.pitch(dims) + layout.place(r, c, dims)) * element if on else None for r, c, on in places]
        return turns(at, access.width, access.kind)

    before, after = served(ROW), served(here.layout)
    return WarpReport(case.warp, after.lanes, (*rows,), (*columns,), before.by_lane, after.by_lane)


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
