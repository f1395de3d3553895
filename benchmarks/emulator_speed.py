"""How fast the emulator is: the fp32 kernels at 512^3, and three fast kernels at 256^3, with and without all checks.
Needs no GPU.

python -m benchmarks.emulator_speed --size 512
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gallery import gallery_kernels, gallery_module
from benchmarks.report import RESULTS, table, write

__all__ = ["main"]

CHECKED = {
    "hopper_fastest": ("bf16", 0.06, 0.44),
    "mma_fastest": ("bf16", 0.16, 0.68),
    "fastest": ("f32", 0.23, 1.7),
}
"""Format, and the goals in seconds at 256^3: of a run, and of one with all checks."""


def timed(run: Callable[[], Any], repeats: int) -> list[float]:
    """Seconds of each run, behind one that imports and compiles."""
    run()
    seconds: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(round(time.perf_counter() - start, 4))
    return seconds


def checked(repeats: int) -> tuple[str, dict[str, dict[str, list[float]]]]:
    """The table of kernels with and without checks, and all figures."""
    gallery = gallery_module()
    from reference import random_problem

    rows: list[tuple[str, ...]] = []
    figures: dict[str, dict[str, list[float]]] = {}
    for entry in (*gallery.GALLERY, *gallery.HOPPER):
        if entry.kernel not in CHECKED:
            continue
        format, plain, most = CHECKED[entry.kernel]
        kernel = gallery.load(entry)
        given = gallery.as_given(kernel, *random_problem(256, 256, 256, format=format))
        times = {
            "run": timed(partial(kernel, *given, device="emulator"), repeats),
            "check": timed(partial(kernel.check, *given), repeats),
        }
        figures[entry.kernel] = times
        run, check = (statistics.median(each) for each in times.values())
        rows.append((f"{entry.kernel} {format}", f"{run:.2f}", f"{plain:.2f}", f"{check:.2f}", f"{most:.2f}"))
    return table(("emulator, 256^3", "run, s", "goal", "with all checks, s", "goal"), rows), figures


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    as_given = gallery_module().as_given
    from reference import random_problem, worst_error

    rows: list[tuple[str, str, str, str]] = []
    figures: dict[str, list[float]] = {}
    for label, (kernel, consts) in gallery_kernels().items():
        A, B, C = random_problem(args.size, args.size, args.size)
        given = as_given(kernel, A, B, C)
        kernel(*as_given(kernel, *random_problem(33, 17, 9)), device="emulator", **consts)
        seconds = timed(partial(kernel, *given, device="emulator", **consts), args.repeats)
        error, bound = worst_error(C, A, B)
        if not error <= bound:
            raise SystemExit(f"{label} is wrong on the emulator: error {error:.3g}, bound {bound:.3g}")
        figures[label] = seconds
        middle = statistics.median(seconds)
        rate = 2e-9 * args.size**3 / middle
        goal = "<= 1.5" if label == "shared_tiled T=16" and args.size == 512 else ""
        rows.append((label, f"{middle:.2f}", f"{rate:.2f}", goal))
    text = table((f"emulator, {args.size}^3", "seconds", "GFLOP/s", "goal"), rows)
    with_checks, more = checked(args.repeats)
    data = {"seconds": figures, "with_checks": more}
    write("emulator_speed", "Speed of the emulator", f"{text}\n\n{with_checks}", data, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
