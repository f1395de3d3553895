"""The bank model against the hardware's counters, by ncu on a GPU.

    python -m benchmarks.bank_calibration               every entry of the phase table, by micro kernels
    python -m benchmarks.bank_calibration --gallery     static = emulator = counter for every gallery kernel

A micro kernel makes one shared access of one warp, at offsets that it reads from global memory, so that one kernel
serves all patterns of its kind and width. Predicted are the wavefronts of `tiledsl.layout.banks`; beside them stand
other rules that an open entry might follow, and which of them fit all that was counted. A result that contradicts
the table changes `PHASES`, and its `basis`, and nothing else.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bank_counts import count_both
from benchmarks.gallery import gallery_kernels
from benchmarks.micro_kernels import access
from benchmarks.ncu import Launch, profile
from benchmarks.report import RESULTS, table, write
from tiledsl.layout import banks
from tiledsl.layout.banks import PHASES, Kind, Phases

__all__ = ["Case", "cases", "compare", "fitting", "main", "rules"]

ROOT = Path(__file__).parent.parent
SIZE = (200, 136, 40)
"""M, N, K of the gallery run: edges everywhere, and small enough for the emulator."""

OFF = -1
"""The offset of a lane that takes no part."""


@dataclass(frozen=True)
class Case:
    """One access. `offsets`: by lane in units of the width; `OFF` for a lane that takes no part."""

    kind: Kind
    width: int
    pattern: str
    offsets: tuple[int, ...]

    def wavefronts(self, rule: Phases | None = None) -> int:
        """As the table, or `rule`, has it."""
        active = [o != OFF for o in self.offsets]
        addresses = [max(o, 0) * self.width for o in self.offsets]
        return banks.cost(addresses, self.width, active, self.kind, rule).wavefronts

    @property
    def label(self) -> str:
        return f"{self.kind} of {self.width} bytes, {self.pattern}"


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


def cases() -> list[Case]:
    """Every entry of the table with every pattern."""
    return [
        Case(kind, width, pattern, offsets)
        for kind, width in PHASES
        for pattern, offsets in _patterns().items()
        if kind != "atomic" or width == 4  # others become a loop, whose turns no table can know
    ]


def rules(kind: Kind, width: int) -> dict[str, Phases]:
    """What an entry might be, by name; the table's own first."""
    own = PHASES[kind, width]
    named = {"the table": own}
    if width > 4:
        for lanes in (32, 16, 8):
            for merge in ((), (1,), (1, 2)):
                words = f", merging pairs at {' or '.join(map(str, merge))}" if merge else ""
                named[f"phases of {lanes}{words}"] = Phases(lanes, merge, own.shared)
    if kind == "atomic":
        named["words shared"] = replace(own, shared=True)
    return {name: rule for name, rule in named.items() if rule.lanes < 32 or not rule.merge}


# -- on the GPU: one launch a case -----------------------------------------------------------------


def launch_micro() -> None:
    """Launch every case once, in order. This process is the one that ncu watches."""
    for case in cases():
        access(case.kind, case.width, case.offsets, "gpu")


def launch_gallery(size: tuple[int, int, int]) -> None:
    for kernel, consts in gallery_kernels().values():
        kernel(*problem(size), device="gpu", **consts)


def problem(size: tuple[int, int, int]) -> tuple[Any, Any, Any]:
    source = np.random.default_rng(0)
    m, n, k = size
    a, b = (source.standard_normal(shape, dtype=np.float32) for shape in ((m, k), (k, n)))
    return a, b, np.zeros((m, n), np.float32)


def _watched(arguments: Sequence[str]) -> list[Launch]:
    return profile([sys.executable, "-m", "benchmarks.bank_calibration", *arguments], ROOT)


# -- comparing -------------------------------------------------------------------------------------


def measured(case: Case, launch: Launch) -> int | None:
    """Wavefronts of the case's own access; None if ncu has no such counter."""
    if case.kind != "atomic":
        return launch.counters.get(f"{case.kind} wavefronts")
    return launch.counters.get("all wavefronts")  # an atomic kernel makes no other shared access


def compare(tried: Sequence[Case], launches: Sequence[Launch]) -> list[dict[str, Any]]:
    """One record a case, launches in the same order."""
    if len(tried) != len(launches):
        raise SystemExit(f"{len(tried)} kernels were launched, but ncu has rows for {len(launches)}")
    return [
        {
            "kind": case.kind,
            "width": case.width,
            "pattern": case.pattern,
            "predicted": case.wavefronts(),
            "measured": measured(case, launch),
            "conflicts": launch.counters.get(f"{case.kind} conflicts"),
            "counters": launch.counters,
        }
        for case, launch in zip(tried, launches, strict=True)
    ]


def fitting(tried: Sequence[Case], records: Sequence[dict[str, Any]]) -> dict[tuple[Kind, int], list[str]]:
    """For each entry of the table, the rules that give what was measured in every case."""
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
        basis = PHASES[kind, width].basis
        summary.append([f"{kind} of {width} bytes", basis, f"{right} of {len(own)}", "; ".join(names) or "none"])
    header = ["entry", "pattern", "predicted", "measured", "conflicts counted", ""]
    rows = [
        [
            f"{r['kind']} of {r['width']} bytes", r["pattern"], r["predicted"], _shown(r["measured"]),
            _shown(r["conflicts"]), "" if r["predicted"] == r["measured"] else "DIFFERS",
        ]
        for r in records
    ]  # fmt: skip
    return f"{table(['entry', 'basis', 'as predicted', 'rules that fit'], summary)}\n\n{table(header, rows)}"


def _shown(count: int | None) -> str:
    return "-" if count is None else str(count)


def gallery_records(size: tuple[int, int, int], launches: Sequence[Launch]) -> list[dict[str, Any]]:
    """Static, emulated and counted wavefronts of each gallery kernel, loads and stores apart."""
    kernels = gallery_kernels()
    if len(kernels) != len(launches):
        raise SystemExit(f"{len(kernels)} kernels were launched, but ncu has rows for {len(launches)}")
    records: list[dict[str, Any]] = []
    for (label, (kernel, consts)), launch in zip(kernels.items(), launches, strict=True):
        both = count_both(kernel, *problem(size), **consts)
        for kind in ("load", "store"):
            static, emulated = both.of_kind(kind)
            counted = launch.counters.get(f"{kind} wavefronts")
            found = {"kernel": label, "kind": kind, "static": static, "emulated": emulated, "ncu": counted}
            records.append({**found, "conflicts": launch.counters.get(f"{kind} conflicts"), "agree": both.differences})
    return records


def gallery_table(records: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            r["kernel"], f"{r['kind']}s", _shown(r["static"]), r["emulated"], _shown(r["ncu"]), _shown(r["conflicts"]),
            "" if r["static"] == r["emulated"] == r["ncu"] else "DIFFERS",
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
        return int(any(not r["static"] == r["emulated"] == r["ncu"] for r in records))
    tried = cases()
    records = compare(tried, _watched(["--launch"]))
    fits = fitting(tried, records)
    data = {"cases": records, "fits": {f"{kind} {width}": names for (kind, width), names in fits.items()}}
    write("bank_calibration", "The bank model against ncu", micro_table(records, fits), data, args.out)
    return int(any(r["predicted"] != r["measured"] for r in records))


if __name__ == "__main__":
    sys.exit(main())
