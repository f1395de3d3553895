"""The bank model against the hardware's counters, by ncu on a GPU.

    python -m benchmarks.bank_calibration               every entry of the phase table, by micro kernels
    python -m benchmarks.bank_calibration --gallery     static = emulator = counter for every gallery kernel

A micro kernel makes one shared access of one warp, at offsets that it reads from global memory, so that one kernel
serves all patterns of its kind and width. `tiledsl.layout.banks` predicts the wavefronts; the report also lists other
rules that an open entry might follow, and which of them fit all counts. If a result contradicts the table, only
`PHASES`, with `calibrated`, has to change.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.bank_counts import count_both, gallery_products
from benchmarks.micro_kernels import access
from benchmarks.ncu import Launch, profile
from benchmarks.report import RESULTS, table, write
from tiledsl.layout import banks
from tiledsl.layout.banks import PHASES, Kind, Phases

__all__ = ["Case", "cases", "compare", "fitting", "main", "rules", "verdict", "wavefronts_of"]

ROOT = Path(__file__).parent.parent
SIZE = (128, 256, 40)
"""M, N, K of the gallery run, small enough for the emulator: an edge along k, and whole tiles of C, since at an edge
LLVM removes the load of a staged element that is not stored."""

OFF = -1
"""The offset of an inactive lane."""


@dataclass(frozen=True)
class Case:
    """One access. `offsets`: by lane in units of the width; `OFF` for an inactive lane."""

    kind: Kind
    width: int
    pattern: str
    offsets: tuple[int, ...]
    options: tuple[tuple[str, int], ...] = ()
    """Consts of the micro kernel."""

    def wavefronts(self, rule: Phases | None = None) -> int:
        """The number by the table, or by `rule`."""
        active = [o != OFF for o in self.offsets]
        addresses = [max(o, 0) * self.width for o in self.offsets]
        return banks.cost(addresses, self.width, active, self.kind, rule).wavefronts

    @property
    def label(self) -> str:
        return f"{self.entry}, {self.pattern}"

    @property
    def entry(self) -> str:
        """The entry of the table, and the form of the instruction."""
        form = "".join(f" {name}={int(value)}" for name, value in self.options)
        return f"{self.kind} of {self.width} bytes{form}"


def _patterns() -> dict[str, tuple[int, ...]]:
    lanes = range(32)
    found = {f"stride {s}": tuple(lane * s for lane in lanes) for s in (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33)}
    found["all lanes at one place"] = (7,) * 32
    found["pairs i, i^1 share"] = tuple(lane // 2 for lane in lanes)
    found["pairs i, i^1 share, stride 2"] = tuple(lane // 2 * 2 for lane in lanes)
    found["pairs i, i^2 share"] = tuple(lane // 4 * 2 + lane % 2 for lane in lanes)
    found["pairs i, i^4 share"] = tuple(lane // 8 * 4 + lane % 4 for lane in lanes)
    found["pairs i, i^8 share"] = tuple(lane // 16 * 8 + lane % 8 for lane in lanes)
    found["half warps share"] = tuple(lane % 16 for lane in lanes)
    found["quarter warps share"] = tuple(lane % 8 for lane in lanes)
    found["fours share"] = tuple(lane // 4 for lane in lanes)
    found["maxas A"] = tuple(lane >> 1 & 7 for lane in lanes)
    found["maxas B"] = tuple((lane & 0x30) >> 3 | lane & 1 for lane in lanes)
    found["maxas A, rows apart"] = tuple((lane >> 1 & 7) + lane // 16 * 64 for lane in lanes)
    found["first half"] = tuple(lane if lane < 16 else OFF for lane in lanes)
    found["first eight"] = tuple(lane if lane < 8 else OFF for lane in lanes)
    found["even lanes"] = tuple(lane if lane % 2 == 0 else OFF for lane in lanes)
    found["one lane"] = tuple(3 if lane == 5 else OFF for lane in lanes)
    source = random.Random(0)
    for number in range(6):
        found[f"random {number}"] = tuple(source.randrange(512) for _ in lanes)
        paired = [source.randrange(512) for _ in range(16)]
        found[f"random pairs {number}"] = tuple(paired[lane // 2] for lane in lanes)
    return found


def _halves() -> dict[str, tuple[int, ...]]:
    """Patterns whose pairs differ between parts of a warp: which lanes must pair for phases to merge?"""
    lanes = range(32)
    pairs = [lane // 2 for lane in lanes]
    fours = [lane // 4 * 2 + lane % 2 for lane in lanes]
    source = random.Random(1)
    some = [source.random() < 0.6 for _ in lanes]
    return {
        "pairs i, i^1 share in the first half": tuple(pairs[i] if i < 16 else i for i in lanes),
        "pairs i, i^1 share in the second half": tuple(i if i < 16 else 16 + pairs[i] for i in lanes),
        "pairs i, i^1 share, then i, i^2": tuple(pairs[i] if i < 16 else fours[i] for i in lanes),
        "pairs i, i^1 share, then i, i^2, by eights": tuple((fours if i // 8 % 2 else pairs)[i] for i in lanes),
        "pairs i, i^1 share by eights": tuple(i + 32 if i // 8 % 2 else pairs[i] for i in lanes),
        "pairs i, i^1 share, lane 1 apart": tuple(40 if i == 1 else pairs[i] for i in lanes),
        "pairs i, i^1 share, lane 30 apart": tuple(40 if i == 30 else pairs[i] for i in lanes),
        "pairs i, i^1 share, odd lanes off": tuple(OFF if i % 2 else pairs[i] for i in lanes),
        "pairs i, i^1 share, some off": tuple(pairs[i] if some[i] else OFF for i in lanes),
        "pairs i, i^2 share, some off": tuple(fours[i] if some[i] else OFF for i in lanes),
        "pairs i, i^1 share, rows apart": tuple(pairs[i] + i // 8 * 64 for i in lanes),
        "first and third eight": tuple(OFF if i // 8 % 2 else i for i in lanes),
        "even lanes of the first half": tuple(OFF if i < 16 and i % 2 else i for i in lanes),
    }


def _apart(patterns: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The patterns that a copy may have: two lanes that write to one address would race."""
    return {name: at for name, at in patterns.items() if max(Counter(o for o in at if o != OFF).values()) == 1}


def _destinations(width: int) -> dict[str, tuple[int, ...]]:
    """Where the lanes of a copy along rows of 64 bytes write: contiguous, padded by 16 bytes, swizzled."""
    per_row, unit = 64 // width, max(1, 16 // width)
    rows = [divmod(lane, per_row) for lane in range(32)]
    swizzled = [(row, column ^ (row // 2 % 4 * unit)) for row, column in rows]
    return {
        "rows of 64 bytes": tuple(row * per_row + column for row, column in rows),
        "rows of 64 bytes, padded": tuple(row * (per_row + unit) + column for row, column in rows),
        "rows of 64 bytes, swizzled": tuple(row * per_row + column for row, column in swizzled),
        "rows of 512 bytes, 64 of each": tuple(row * 8 * per_row + column for row, column in rows),
    }


def _matrices(num: int) -> dict[str, tuple[int, ...]]:
    """Rows of matrices, in units of 16 bytes: lane i gives row i % 8 of matrix i // 8."""
    lanes, source = range(32), random.Random(num)
    found: dict[str, list[int]] = {}
    for s in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 17):
        found[f"rows {16 * s} bytes apart, matrices side by side"] = [lane % 8 * s + lane // 8 for lane in lanes]
        found[f"rows {16 * s} bytes apart, matrices below each other"] = [lane * s for lane in lanes]
    found["rows in swizzled lines"] = [lane % 8 * 8 + (lane // 8 ^ lane % 8) for lane in lanes]
    found["all rows at one place"] = [5] * 32
    found["matrices alike"] = [lane % 8 * 9 for lane in lanes]
    found["matrices alike, with conflicts"] = [lane % 8 * 8 for lane in lanes]
    found["pairs of matrices alike"] = [lane % 8 * 9 + lane // 16 for lane in lanes]
    found["halves of matrices alike"] = [lane % 4 * 9 + lane // 8 for lane in lanes]
    for number in range(6):
        found[f"random {number}"] = [source.randrange(512) for _ in lanes]
    return {name: tuple(o if lane < 8 * num else OFF for lane, o in enumerate(at)) for name, at in found.items()}


def _variants(kind: Kind, width: int) -> list[tuple[dict[str, int], dict[str, tuple[int, ...]]]]:
    """Forms of the instruction, each with its patterns."""
    match kind:
        case "ldmatrix" | "stmatrix":
            return [({"num": num, "trans": trans}, _matrices(num)) for num in (1, 2, 4) for trans in (False, True)]
        case "cp_async":
            patterns = _apart(_patterns()) | _destinations(width)
            # A fetch of 16 bytes uses no bank: benchmarks/copy_costs.py measures its cost.
            return [({"zeros": zeros}, patterns) for zeros in (False, True) if zeros or width < 16]
        case "atomic" if width != 4:
            return []  # they become a loop, whose number of iterations no table can know
        case "load" | "store" if width > 4:
            return [({}, _patterns() | _halves())]
        case _:
            return [({}, _patterns())]


def cases() -> list[Case]:
    """Every entry of the table with every pattern."""
    return [
        Case(kind, width, pattern, offsets, tuple(options.items()))
        for kind, width in PHASES
        for options, patterns in _variants(kind, width)
        for pattern, offsets in patterns.items()
    ]


def rules(kind: Kind, width: int) -> dict[str, Phases]:
    """The rules that an entry might follow, by name; the table's own first."""
    own = PHASES[kind, width]
    named = {"the table": own}
    if width > 4:
        merges: dict[tuple[int, ...], str] = {(): "", (1,): ", merging pairs at 1", (1, 2): ", merging pairs at 1 or 2"}
        if kind in ("ldmatrix", "stmatrix"):
            merges = {(): "", (8,): ", merging matrices that are alike"}
        if kind == "cp_async":
            merges = {(): ""}  # no two lanes write to one address
        for lanes in (32, 16, 8):
            for merge, words in merges.items():
                named[f"phases of {lanes}{words}"] = Phases(lanes, merge, own.shared)
    if kind == "atomic":
        named["words shared"] = replace(own, shared=True)
    return {name: rule for name, rule in named.items() if rule.lanes < 32 or not rule.merge}


# -- on the GPU: one launch a case -----------------------------------------------------------------


def launch_micro() -> None:
    """Launch every case once, in order. This process is the one that ncu watches."""
    for case in cases():
        access(case.kind, case.width, case.offsets, "gpu", **dict(case.options))


def launch_gallery(size: tuple[int, int, int]) -> None:
    for product in gallery_products().values():
        product.kernel(*product.problem(size), device="gpu", **product.consts)


def _watched(arguments: Sequence[str]) -> list[Launch]:
    return profile([sys.executable, "-m", "benchmarks.bank_calibration", *arguments], ROOT)


# -- comparing -------------------------------------------------------------------------------------


OF_ALL: tuple[Kind, ...] = ("atomic", "cp_async")
"""Kinds counted by all wavefronts of a launch, which makes no other access. Atomics have no counter of their own; that
of asynchronous copies also counts lines of their source, and data that uses no bank."""

OF_A_LAUNCH = 1
"""Wavefronts that ncu counts in every launch, even without accesses: the sum less those of loads and stores."""


def measured(case: Case, launch: Launch) -> int | None:
    """Wavefronts of the case's own access; None if ncu has no such counter."""
    if case.kind not in OF_ALL:
        return launch.counters.get(f"{case.kind} wavefronts")
    everything = launch.counters.get("all wavefronts")
    # Loads: ptxas puts three predicated-off ones before asynchronous copies. Each takes one wavefront.
    return None if everything is None else everything - OF_A_LAUNCH - launch.counters.get("load instructions", 0)


def compare(tried: Sequence[Case], launches: Sequence[Launch]) -> list[dict[str, Any]]:
    """One record a case, launches in the same order."""
    if len(tried) != len(launches):
        raise SystemExit(f"{len(tried)} kernels were launched, but ncu has rows for {len(launches)}")
    return [
        {
            "kind": case.kind,
            "width": case.width,
            "entry": case.entry,
            "pattern": case.pattern,
            "predicted": case.wavefronts(),
            "measured": measured(case, launch),
            "conflicts": launch.counters.get(f"{case.kind} conflicts"),
            "counters": launch.counters,
        }
        for case, launch in zip(tried, launches, strict=True)
    ]


def fitting(tried: Sequence[Case], records: Sequence[dict[str, Any]]) -> dict[tuple[Kind, int], list[str]]:
    """For each entry of the table, the rules that give the measured number in every case."""
    found: dict[tuple[Kind, int], list[str]] = {}
    entries: dict[tuple[Kind, int], None] = {(case.kind, case.width): None for case in tried}
    for kind, width in entries:
        pairs = [(c, r["measured"]) for c, r in zip(tried, records, strict=True) if (c.kind, c.width) == (kind, width)]
        named = rules(kind, width).items()
        found[kind, width] = [name for name, rule in named if all(c.wavefronts(rule) == got for c, got in pairs)]
    return found


def micro_table(records: Sequence[dict[str, Any]], fits: dict[tuple[Kind, int], list[str]]) -> str:
    summary: list[list[object]] = []
    for (kind, width), names in fits.items():
        own = [r for r in records if (r["kind"], r["width"]) == (kind, width)]
        right = sum(r["predicted"] == r["measured"] for r in own)
        basis = "measured" if PHASES[kind, width].calibrated else "open"
        summary.append([f"{kind} of {width} bytes", basis, f"{right} of {len(own)}", "; ".join(names) or "none"])
    header = ["entry", "pattern", "predicted", "measured", "conflicts counted", ""]
    rows = [
        [
            r["entry"], r["pattern"], r["predicted"], _shown(r["measured"]),
            _shown(r["conflicts"]), "" if r["predicted"] == r["measured"] else "DIFFERS",
        ]
        for r in records
    ]  # fmt: skip
    return f"{table(['entry', 'basis', 'as predicted', 'rules that fit'], summary)}\n\n{table(header, rows)}"


def _shown(count: int | None) -> str:
    return "-" if count is None else str(count)


def wavefronts_of(kind: Kind, launch: Launch) -> int | None:
    """ncu's count of a kind. Its counter of loads includes ldmatrix, and its counter of stores stmatrix."""
    within: dict[Kind, str] = {"load": "ldmatrix wavefronts", "store": "stmatrix wavefronts"}
    counted = launch.counters.get(f"{kind} wavefronts")
    return None if counted is None else counted - launch.counters.get(within.get(kind, ""), 0)


def gallery_records(size: tuple[int, int, int], launches: Sequence[Launch]) -> list[dict[str, Any]]:
    """Static, emulated and counted wavefronts of each gallery kernel and format, by kinds of accesses."""
    products = gallery_products()
    if len(products) != len(launches):
        raise SystemExit(f"{len(products)} kernels were launched, but ncu has rows for {len(launches)}")
    records: list[dict[str, Any]] = []
    for (label, product), launch in zip(products.items(), launches, strict=True):
        both = count_both(product.kernel, *product.problem(size), **product.consts)
        for kind in both.kinds:
            static, emulated = both.of_kind(kind)
            counted = wavefronts_of(kind, launch)
            found = {"kernel": label, "kind": kind, "static": static, "emulated": emulated, "ncu": counted}
            records.append({**found, "conflicts": launch.counters.get(f"{kind} conflicts"), "agree": both.differences})
    return records


NOISE = 1 / 500
"""By how much ncu may count more: waits for a bank in use by something else, which vary from launch to launch."""


def verdict(record: dict[str, Any]) -> str:
    """Nothing if all three counts are equal."""
    static, emulated, counted = record["static"], record["emulated"], record["ncu"]
    if static != emulated:
        return "DIFFERS"
    if record["kind"] == "cp_async":
        return "not compared"  # see OF_ALL
    more = 0 if counted is None else counted - emulated
    if counted is None or not 0 <= more <= NOISE * emulated:
        return "DIFFERS"
    return f"{more} more" if more else ""


def gallery_table(records: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            r["kernel"], r["kind"], _shown(r["static"]), r["emulated"], _shown(r["ncu"]), _shown(r["conflicts"]),
            verdict(r),
        ]
        for r in records
    ]  # fmt: skip
    header = ["kernel", "accesses", "static", "emulator", "ncu", "conflicts counted", ""]
    return table(header, rows)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gallery", action="store_true", help="the gallery's kernels instead of micro kernels")
    parser.add_argument("--size", type=int, nargs=3, default=SIZE, metavar=("M", "N", "K"))
    parser.add_argument("--launch", action="store_true", help="only launch the kernels, for ncu to watch")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    m, n, k = args.size
    launch: Callable[[], None] = launch_micro
    if args.gallery:
        launch = lambda: launch_gallery((m, n, k))  # noqa: E731
    if args.launch:
        launch()
        return 0
    if args.gallery:
        launches = _watched(["--launch", "--gallery", "--size", *map(str, args.size)])
        records = gallery_records((m, n, k), launches)
        title = f"Shared-memory wavefronts of the gallery at {m} x {n} x {k}"
        write("bank_counts", title, gallery_table(records), {"size": [m, n, k], "cases": records}, args.out)
        return int(any(verdict(r) == "DIFFERS" for r in records))
    tried = cases()
    records = compare(tried, _watched(["--launch"]))
    fits = fitting(tried, records)
    data = {"cases": records, "fits": {f"{kind} {width}": names for (kind, width), names in fits.items()}}
    write("bank_calibration", "The bank model against ncu", micro_table(records, fits), data, args.out)
    return int(any(r["predicted"] != r["measured"] for r in records))


if __name__ == "__main__":
    sys.exit(main())
