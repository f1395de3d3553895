"""What the bank-conflict pass found and chose, as data and as a table to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from tiledsl import html
from tiledsl.errors import Loc
from tiledsl.layout.banks import PHASES, Kind
from tiledsl.outside import source_line
from tiledsl.tables import table

By = Literal["row order is best", "fewest wavefronts", "given", "used whole", "nothing known"]
"""Why a tile has its layout. used whole: something but an access by index needs the tile, so it was left alone."""


@dataclass(frozen=True, slots=True)
class TileReport:
    """One shared tile. bytes: as laid out, and in row order. wavefronts: weighted sums over its known accesses.

    None where a layout that was given leaves too many cases to count. row_banks, banks: in row order and as laid out,
    for each of the first rows the banks of its words as digits 0 to v; a word of elements of less than 4 bytes holds
    `cell` of them, and of a wider element it is the first one.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str
    by: By
    bytes: int
    row_bytes: int
    wavefronts: Fraction | int | None
    row_wavefronts: Fraction | int
    ideal: int
    cell: int
    row_banks: tuple[str, ...]
    banks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WarpReport:
    """One access of one warp, lane by lane: of all copies and warps the one with the most wavefronts.

    rows, columns: the first element of each lane, rows numbered through all axes but the last; -1 for a lane that takes
    no part. Where a loop variable or a block index moves all lanes, this is one of the places that they can have.
    phase: lanes of a phase. row_order, chosen: `layout.banks.Turns.by_lane`.
    """

    warp: int
    phase: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    row_order: tuple[tuple[int, ...], ...]
    chosen: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class AccessReport:
    """One access in the source, which unrolling may have made `copies` of.

    bytes: of a lane. row_order, chosen, ideal: wavefronts per access of a warp, the mean over warps and copies;
    None where the lanes are not known. least, most: the range, with the chosen layout. weight: how often a warp
    makes each copy (a loop of unknown length counts as `shared_accesses.UNKNOWN_TRIPS`). lanes: None where they are not
    known. notes: what was taken for granted.
    """

    loc: Loc
    tile: str
    kind: Kind
    bytes: int
    copies: int
    warps: int
    row_order: Fraction | None
    chosen: Fraction | None
    ideal: Fraction | None
    least: int
    most: int
    weight: int
    lanes: WarpReport | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        return self.chosen is not None


@dataclass(frozen=True, slots=True)
class BankReport:
    """All shared tiles of one kernel and all accesses to them. `str` gives the tables."""

    kernel: str
    threads: tuple[int, ...]
    tiles: tuple[TileReport, ...]
    accesses: tuple[AccessReport, ...]
    limit: int | None = None
    used: int = 0
    file: str = ""
    """Where the kernel stands: places in other files are shown with the file's name."""

    @property
    def conflicts(self) -> Fraction:
        """Weighted wavefronts beyond the ideal, over all known accesses."""
        return Fraction(sum(t.wavefronts - t.ideal for t in self.tiles if t.wavefronts is not None))

    @property
    def unknown(self) -> tuple[AccessReport, ...]:
        return tuple(a for a in self.accesses if not a.is_known)

    def __str__(self) -> str:
        if not self.tiles:
            return self._head()
        accesses = table(*_accesses(self.accesses, self.file), (0, 1, 2, 3, 10)) if self.accesses else "no accesses"
        parts = [self._head(), table(*_tiles(self.tiles), range(4)), accesses, self._legend()]
        return "\n\n".join(parts)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        """Accesses with bank conflicts stand out."""
        conflicts = [i for i, a in enumerate(self.accesses) if None not in (a.chosen, a.ideal) and a.chosen != a.ideal]
        tables = [html.table(*_tiles(self.tiles), range(4))] if self.tiles else []
        tables += (
            [html.table(*_accesses(self.accesses, self.file), (0, 1, 2, 3, 10), conflicts)] if self.accesses else []
        )
        return html.section(self._head(), *tables, html.paragraph(self._legend() if self.tiles else ""))

    def _head(self) -> str:
        shape = " x ".join(map(str, self.threads))
        head = f"shared memory of {self.kernel}, blocks of {shape} threads"
        room = f" of {self.limit} bytes" if self.limit is not None else " bytes"
        return f"{head}: {self.used}{room}" if self.tiles else f"{head}: no tiles"

    def _legend(self) -> str:
        lines = [
            "accesses: wavefronts of one access of a warp, the mean over the warps; row: in row order; "
            "ideal: without bank conflicts",
            "tiles: the same, times the weight, summed over all accesses and warps of a block",
        ]
        if any(a.weight > 1 for a in self.accesses):
            lines.append("weight: how often a warp makes each copy; a loop of unknown length counts as 64")
        used = {(a.kind, a.bytes) for a in self.accesses}
        for (kind, width), phases in PHASES.items():
            if (kind, width) in used and phases.note:
                state = "" if phases.calibrated else "not yet calibrated, "
                lines.append(f"{state}{kind} of {width} bytes: {phases.note}")
        return "\n".join(lines)


def _tiles(tiles: Sequence[TileReport]) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a table."""
    rows: list[list[str]] = []
    for t in tiles:
        shape = " x ".join(map(str, t.shape))
        counts = [_number(t.row_wavefronts), _number(t.wavefronts), str(t.ideal)]
        rows.append([t.name, f"{shape} {t.dtype}", t.layout, t.by, str(t.row_bytes), str(t.bytes), *counts])
    header = ["tile", "shape", "layout", "why", "bytes: row", "now", "wavefronts: row", "now", "ideal"]
    return header, rows


def _accesses(accesses: Sequence[AccessReport], file: str) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a table."""
    rows: list[list[str]] = []
    for a in accesses:
        place = str(a.loc.line) if a.loc.file == file else f"{Path(a.loc.file).name}:{a.loc.line}"
        source = source_line(a.loc.file, a.loc.line).strip()
        what = [place, source if len(source) <= 44 else source[:43] + "…", a.tile, a.kind, str(a.bytes)]
        copies = f"x{a.copies}" if a.copies > 1 else ""
        spread = f" ({a.least}..{a.most})" if a.is_known and a.least != a.most else ""
        counts = [_number(a.row_order), _number(a.chosen) + spread, _number(a.ideal) if a.is_known else ""]
        rows.append([*what, copies, *counts, str(a.weight), "; ".join(a.notes)])
    header = ["line", "source", "tile", "access", "bytes", "copies", "row", "now", "ideal", "weight", ""]
    return header, rows


def _number(value: Fraction | int | None) -> str:
    if value is None:
        return "unknown"
    return str(value) if value.denominator == 1 else f"{float(value):.2f}"
