"""What an asynchronous copy costs in shared memory, by ncu's counters and by the clock, on a GPU.

    python -m benchmarks.copy_costs             both; needs ncu and torch; under a minute

Counted: one copy of a warp, between given addresses. The report has the wavefronts that ncu attributes to the
instruction, those of the data banks and the tags, and two predictions: the pairs of a source line and a destination
line, and the wavefronts of a store to the same addresses. Timed: a loop of copies between loads of matrices, by source
rows and by cache policy. The cost of a copy is the time that it adds to loads that keep shared memory busy.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.copy_kernels import SHARED, copy_loop, one_copy
from benchmarks.ncu import COPY_COUNTERS, profile
from benchmarks.report import RESULTS, table, write
from tiledsl.layout import banks

__all__ = ["CopyCase", "as_a_store", "cases", "copy_table", "main", "pairs_of_lines", "timing_table"]

ROOT = Path(__file__).parent.parent
LANES = range(32)
OFF = -1
LINE = 128
KB = 1 << 10
COUNTED_BYTES, TIMED_BYTES = 512 * KB, 8 << 20
"""The bytes that can be copied from."""

Places = tuple[int, ...]


@dataclass(frozen=True)
class CopyCase:
    """`source` and `to`: bytes by lane."""

    form: str
    name: str
    source: Places
    to: Places
    width: int = 16
    through_l1: bool = False
    zeros: bool = False
    warm: bool = False


def _rows(bytes_of_row: int, pitch: int, width: int = 16, start: int = 0) -> Places:
    """Lanes go along rows of `bytes_of_row` bytes, `pitch` apart."""
    per_row = bytes_of_row // width
    return tuple(start + lane // per_row * pitch + lane % per_row * width for lane in LANES)


def _sources(width: int) -> dict[str, Places]:
    return {
        "in a line": _rows(32 * width, 0, width),
        "rows 64, pitch 8K": _rows(64, 8 * KB, width),
        "rows 64, pitch 8K, second half": _rows(64, 8 * KB, width, 64),
        "rows 64, pitch 80": _rows(64, 80, width),
        "rows 64, pitch 8K + 64": _rows(64, 8 * KB + 64, width),
        "rows 128, pitch 8K": _rows(128, 8 * KB, width),
        "rows 128, pitch 8K, from 32 on": _rows(128, 8 * KB, width, 32),
        "rows 128, pitch 8K, from 16 on": _rows(128, 8 * KB, width, 16),
        "rows 32, pitch 8K": _rows(32, 8 * KB, width),
        "lines, a lane each": tuple(lane * 128 for lane in LANES),
        "128 bytes, again and again": tuple(lane * width % 128 for lane in LANES),
        "all lanes at one place": (0,) * 32,
        "64 bytes swapped": tuple(lane * width ^ 64 for lane in LANES),
        "sectors swapped": tuple(lane * width ^ 32 for lane in LANES),
    }


def _targets(width: int) -> dict[str, Places]:
    unit = 16 // width
    dense = [lane * width for lane in LANES]
    return {
        "in a line": tuple(dense),
        "swizzled(8, 4, every=2)": tuple(at ^ (at >> 7 & 3) << 4 for at in dense),
        "swizzled(8, 8)": tuple(at ^ (at >> 7 & 7) << 4 for at in dense),
        "64 bytes swapped": tuple(at ^ 64 for at in dense),
        "rows 64, padded 16": _rows(64, 80, width),
        "rows 128, padded 16": _rows(128, 144, width),
        "rows 64, every 256": _rows(64, 256, width),
        "from 16 on": tuple(at + 16 for at in dense),
        "a line each": tuple(lane * 128 + (lane % unit * width if unit > 1 else 0) for lane in LANES),
        "all lanes at one place": (64,) * 32,
    }


def _random(number: int) -> tuple[Places, Places]:
    """Each group of eight lanes reads one line, the same one or another, and writes to at most two lines."""
    source = random.Random(number)
    lines = [source.randrange(2 if number % 2 else 32) for _ in range(4)]
    into = [[source.randrange(8) for _ in range(1 + number % 3 // 2)] for _ in range(4)]
    reads = [lines[lane // 8] * 128 + source.randrange(8) * 16 for lane in LANES]
    chunks = source.sample(range(8), 8) + source.sample(range(8), 8) + source.sample(range(8), 8)
    chunks += source.sample(range(8), 8)
    return tuple(reads), tuple(source.choice(into[lane // 8]) * 128 + chunks[lane] * 16 for lane in LANES)


def cases() -> list[CopyCase]:
    found: list[CopyCase] = []
    wide, targets = _sources(16), _targets(16)
    for s, source in wide.items():
        found += [CopyCase(".cg 16", f"{s} -> {t}", source, to) for t, to in targets.items()]
    few = ("in a line", "rows 64, pitch 8K", "rows 128, pitch 8K", "128 bytes, again and again", "rows 32, pitch 8K")
    some = ("in a line", "swizzled(8, 4, every=2)", "rows 64, padded 16", "64 bytes swapped", "a line each")
    for s in few:
        for t in some:
            name = f"{s} -> {t}"
            found.append(CopyCase(".ca 16", name, wide[s], targets[t], through_l1=True))
            if t in some[:3]:
                found.append(CopyCase(".ca 16, in L1 before", name, wide[s], targets[t], through_l1=True, warm=True))
                found.append(CopyCase(".cg 16, in L1 before", name, wide[s], targets[t], warm=True))
    for width in (8, 4):
        reads, writes = _sources(width), _targets(width)
        for s in (*few[:4], "lines, a lane each", "rows 64, pitch 80"):
            found += [CopyCase(f".ca {width}", f"{s} -> {t}", reads[s], writes[t], width) for t in some[:4]]
    for number in range(24):
        reads_from, writes_to = _random(number)
        found.append(CopyCase(".cg 16", f"random {number}", reads_from, writes_to))
    found += [CopyCase(".cg 16 zeros", t, wide["in a line"], to, zeros=True) for t, to in targets.items()]
    nobody = CopyCase("none", "no lane takes part", (0,) * 32, (OFF,) * 32)
    return [nobody, *found, nobody]


# -- counted -----------------------------------------------------------------------------------------


def launch_all() -> None:
    """Every case once, in order. This process is the one that ncu watches."""
    torch: Any = importlib.import_module("torch")
    data = torch.frombuffer(bytearray(COUNTED_BYTES), dtype=torch.uint8).cuda()  # ncu sees no kernel of it
    for case in cases():
        assert max(case.to) + case.width <= SHARED and max(case.source) + case.width <= COUNTED_BYTES
        to, source = (torch.tensor(places, dtype=torch.int32).cuda() for places in (case.to, case.source))
        consts = {"width": case.width, "through_l1": case.through_l1, "zeros": case.zeros, "warm": case.warm}
        one_copy(to, source, data.data_ptr(), **consts)
    torch.cuda.synchronize()


def counted() -> list[dict[str, Any]]:
    launches = profile([sys.executable, "-m", "benchmarks.copy_costs", "--launch"], ROOT, COPY_COUNTERS)
    tried = cases()
    if len(tried) != len(launches):
        raise SystemExit(f"{len(tried)} kernels were launched, but ncu has rows for {len(launches)}")
    return [
        {
            "form": c.form,
            "case": c.name,
            "source": c.source,
            "to": c.to,
            "pairs": pairs_of_lines(c),
            "store": as_a_store(c),
            "counters": launch.counters,
        }
        for c, launch in zip(tried, launches, strict=True)
    ]


# -- timed -------------------------------------------------------------------------------------------

STEPS = 4096
TIMED: dict[str, tuple[Places, int, int]] = {
    "rows 64": (_rows(64, 8 * KB), 64, 65536),
    "rows 128": (_rows(128, 8 * KB), 128, 65536),
    "rows 512": (_rows(512, 8 * KB), 512, 65536),
    "rows 64, same place": (_rows(64, 8 * KB), 0, 65536),
    "rows 128, same place": (_rows(128, 8 * KB), 0, 65536),
    "rows 512, same place": (_rows(512, 8 * KB), 0, 65536),
}
"""Sources of a warp, their advance in a step, and the distance to those of the next warp."""


def timed() -> list[dict[str, Any]]:
    """Cycles a step and warp of the slowest of 8 blocks on 8 SMs; the minimum of 5 launches."""
    torch: Any = importlib.import_module("torch")
    data = torch.zeros(TIMED_BYTES, dtype=torch.uint8, device="cuda")
    rows = torch.tensor([lane % 8 * 8 + (lane // 8 ^ lane % 8) for lane in LANES], dtype=torch.int32).cuda()
    written = {
        "in a line": tuple(lane * 16 for lane in LANES),
        "swizzled(8, 4, every=2)": tuple(16 * lane ^ (lane >> 3 & 3) << 4 for lane in LANES),
        "rows 64, padded 16": _rows(64, 80),
    }
    found: list[dict[str, Any]] = []

    def cycles(source: Places, to: Places, advance: int, pitch: int, **consts: Any) -> float:
        arrays = [torch.tensor(places, dtype=torch.int32).cuda() for places in (to, source)]
        taken = torch.empty(8, dtype=torch.int32, device="cuda")
        best = float("inf")
        for _ in range(5):
            copy_loop(*arrays, rows, taken, data.data_ptr(), STEPS, advance, pitch, **consts)
            best = min(best, max(taken.tolist()) / STEPS / 8)
        return best

    for matrices in (0, 2, 4, 8):
        nothing = cycles(TIMED["rows 64"][0], written["in a line"], 0, 0, copies=0, matrices=matrices, through_l1=False)
        found.append({"matrices": matrices, "copies": 0, "source": "", "to": "", "cache": "", "cycles": nothing})
        for name, (source, advance, pitch) in TIMED.items():
            for into, to in written.items():
                for through_l1 in (False, True):
                    if into != "in a line" and (through_l1 or "same" in name):
                        continue
                    for copies in (1, 2):
                        consts = {"copies": copies, "matrices": matrices, "through_l1": through_l1}
                        taken = cycles(source, to, advance, pitch, **consts)
                        cache = "ca" if through_l1 else "cg"
                        row = {"matrices": matrices, "copies": copies, "source": name, "to": into, "cache": cache}
                        found.append({**row, "cycles": taken})
    return found


# -- the report --------------------------------------------------------------------------------------


def pairs_of_lines(case: CopyCase) -> int:
    """The number of pairs of 128-byte lines, one read and one written, of all lanes."""
    return len({(s // LINE, t // LINE) for s, t in zip(case.source, case.to, strict=True) if t != OFF})


def as_a_store(case: CopyCase) -> int:
    """Wavefronts of a store of the same width to the same addresses."""
    active = [to != OFF for to in case.to]
    return banks.cost([max(to, 0) for to in case.to], case.width, active, "store").wavefronts


def copy_table(records: Sequence[dict[str, Any]]) -> str:
    """Counters less those of a launch without active lanes."""
    base = records[0]["counters"]
    names = [name for name in COPY_COUNTERS if name in base]
    rows = [
        [r["form"], r["case"], r["pairs"], r["store"], *(r["counters"][n] - base[n] for n in names)] for r in records
    ]
    return table(["copy", "from -> to", "pairs of lines", "as a store", *names], rows)


def timing_table(records: Sequence[dict[str, Any]]) -> str:
    header = ["ldmatrix x4", "copies", "source", "to", "cache", "cycles a step and warp"]
    keys = ("matrices", "copies", "source", "to", "cache")
    return table(header, [[*(r[k] for k in keys), f"{r['cycles']:.2f}"] for r in records])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launch", action="store_true", help="only launch the kernels, for ncu to watch")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    if args.launch:
        launch_all()
        return 0
    times, records = timed(), counted()
    text = f"{timing_table(times)}\n\n{copy_table(records)}"
    write("copy_costs", "What an asynchronous copy takes", text, {"timed": times, "counted": records}, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
