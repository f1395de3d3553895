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

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, ClassVar

from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import debug, tile
from tiledsl.layout.banks import BANKS, WORD
from tiledsl.layout.shared import AUTO, ROW, Layout, Padded, Row, Swizzled
from tiledsl.passes.bank_report import AccessReport, BankReport, By, TileReport
from tiledsl.passes.shared_layout import lay_out_shared

if TYPE_CHECKING:  # they need NumPy, which importing the pipeline must not load
    from tiledsl.passes.shared_accesses import SharedAccess, WavefrontCounter, Wavefronts

__all__ = ["BankConflicts", "bank_report", "candidates"]

LINE = BANKS * WORD
"""Bytes after which banks come again: padding by more, or swizzling further, reaches nothing new."""

LARGEST_EVERY = 128

Number = Fraction | int


@dataclass(frozen=True)
class BankConflicts:
    """Gives every shared tile its layout. Runs at tile level, on accesses that `check-accesses` has approved.

    limit: bytes of shared memory that a block may have; None for no limit.
    """

    limit: int | None = None
    name: ClassVar[str] = "bank-conflict"

    def run(self, kernel: Kernel) -> None:
        if any(isinstance(op, tile.SharedAlloc) for op in kernel.body.walk()):
            for plan in _Planner(kernel, self.limit).plans:
                plan.alloc.attrs["layout"] = str(plan.layout)


def bank_report(kernel: Kernel, limit: int | None = None) -> BankReport:
    """What the pass does with `kernel`, which stays as it is."""
    if not any(isinstance(op, tile.SharedAlloc) for op in kernel.body.walk()):
        return BankReport(kernel.name, kernel.threads, (), (), limit)
    return _Planner(kernel, limit).report()


def candidates(dims: tuple[int, ...], element: int, vector: int) -> Iterator[Layout]:
    """Layouts of a tile that keep vectors of `vector` bytes together and aligned, the preferred ones first."""
    yield ROW
    if len(dims) < 2:
        return
    row = dims[-1]
    step = max(vector, WORD, element)
    swizzles = [
        Swizzled(unit // element, span, every)
        for span in _powers(2, LINE // step)
        for unit in reversed(_powers(step, LINE // span))
        for every in reversed(_powers(1, min(LARGEST_EVERY, prod(dims) * element // (2 * unit * span))))
        if unit % element == 0
    ]
    yield from (s for s in swizzles if s.problem(dims) is None and s.vector_bytes(dims, element) >= vector)
    for extra in range(step, LINE, step):
        padded = Padded(row + extra // element)
        if extra % element == 0 and padded.vector_bytes(dims, element) >= vector:
            yield padded


def _powers(first: int, last: int) -> list[int]:
    powers: list[int] = []
    while first <= last:
        powers.append(first)
        first *= 2
    return powers


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """One tile: its accesses, and the layout that it gets."""

    alloc: tile.SharedAlloc
    accesses: list[SharedAccess]
    layout: Layout
    by: By


class _Planner:
    """`plans`: one a tile, in program order."""

    def __init__(self, kernel: Kernel, limit: int | None) -> None:
        from tiledsl.passes.lanes import Lanes
        from tiledsl.passes.shared_accesses import WavefrontCounter, shared_accesses

        self.kernel, self.limit = kernel, limit
        lanes = Lanes(kernel)
        self.accesses = shared_accesses(kernel, lanes)
        self.counter: WavefrontCounter = WavefrontCounter(lanes)
        allocs = [op for op in kernel.walk() if isinstance(op, tile.SharedAlloc)]
        of: dict[Op, list[SharedAccess]] = {alloc: [] for alloc in allocs}
        for access in self.accesses:
            of[access.alloc].append(access)
        self.layouts: dict[Op, Layout] = {alloc: alloc.placement for alloc in allocs}
        chosen: dict[Op, _Plan] = {}
        # Where bytes are short, the tile that has most to gain comes first.
        for alloc in sorted(allocs, key=lambda a: -self.excess(self.counter.merged(of[a]))):
            chosen[alloc] = self.plan(alloc, of[alloc])
            self.layouts[alloc] = chosen[alloc].layout
        self.plans = [chosen[alloc] for alloc in allocs]

    def excess(self, accesses: list[SharedAccess]) -> Number:
        """Weighted wavefronts in row order beyond the ideal."""
        return self.in_row_order(accesses) - self.ideal(accesses)

    def in_row_order(self, accesses: list[SharedAccess]) -> Number:
        total = self.total(accesses, ROW)
        assert total is not None, "row order leaves few cases"
        return total

    def count(self, access: SharedAccess, layout: Layout) -> Wavefronts | None:
        return self.counter.count(access, layout)

    def total(self, accesses: list[SharedAccess], layout: Layout, bound: Number | None = None) -> Number | None:
        """Weighted wavefronts of the known accesses.

        None if an access leaves too many cases to count; and as soon as the sum is no longer below `bound`.
        """
        total: Number = 0
        for access in accesses:
            count = self.count(access, layout)
            if count is None and access.is_known:
                return None
            total += access.weight * count.total if count is not None else 0
            if bound is not None and total >= bound:
                return None
        return total

    def ideal(self, accesses: list[SharedAccess]) -> int:
        counts = [(a.weight, self.count(a, ROW)) for a in accesses]
        return sum(weight * count.ideal for weight, count in counts if count is not None)

    def plan(self, alloc: tile.SharedAlloc, accesses: list[SharedAccess]) -> _Plan:
        if alloc.layout != AUTO:
            return _Plan(alloc, accesses, alloc.placement, "given")
        if any(not isinstance(op, (tile.Access, tile.SharedAlloc, debug.Breakpoint)) for op, _ in alloc.result.uses):
            return _Plan(alloc, accesses, ROW, "used whole")
        known = self.counter.merged(accesses)
        if not known:
            return _Plan(alloc, accesses, ROW, "nothing known")
        best, least, ideal = ROW, self.in_row_order(known), self.ideal(known)
        vector = max(a.width for a in accesses)
        for layout in candidates(alloc.type.dims, alloc.type.dtype.bytes, vector):
            if least <= ideal:
                break
            total = self.total(known, layout, least)
            if total is not None and self.fits(alloc, layout):
                best, least = layout, total
        return _Plan(alloc, accesses, best, "row order is best" if isinstance(best, Row) else "fewest wavefronts")

    def fits(self, alloc: tile.SharedAlloc, layout: Layout) -> bool:
        """True if all tiles fit with this one laid out so, and the others as they are by now."""
        if self.limit is None or isinstance(layout, (Row, Swizzled)):
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
        return BankReport(kernel.name, kernel.threads, tiles, tuple(accesses), self.limit, used)

    def tile(self, plan: _Plan, name: str) -> TileReport:
        type_, accesses = plan.alloc.type, plan.accesses
        element = type_.dtype.bytes
        return TileReport(
            name=name,
            shape=type_.dims,
            dtype=type_.dtype.name,
            layout=str(plan.layout),
            by=plan.by,
            bytes=plan.layout.footprint(type_.dims) * element,
            row_bytes=ROW.footprint(type_.dims) * element,
            wavefronts=self.total(accesses, plan.layout),
            row_wavefronts=self.in_row_order(accesses),
            ideal=self.ideal(accesses),
            unknown=sum(self.count(a, plan.layout) is None for a in accesses),
            loc=plan.alloc.loc,
        )

    def group(self, accesses: list[SharedAccess], layout: Layout, name: str) -> AccessReport:
        """Copies of one access as one row."""
        first = accesses[0]
        before = [c for c in (self.count(a, ROW) for a in accesses) if c is not None]
        after = [c for c in (self.count(a, layout) for a in accesses) if c is not None]
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
    return tuple(notes)
