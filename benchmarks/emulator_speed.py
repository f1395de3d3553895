"""How fast the emulator is: shared_tiled at 512^3. Needs no GPU.

python -m benchmarks.emulator_speed --size 512
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from benchmarks.gallery import gallery_kernels, gallery_module
from benchmarks.report import RESULTS, table, write

__all__ = ["main"]


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
        kernel(*as_given(kernel, *random_problem(33, 17, 9)), device="emulator", **consts)  # imports and compiles
        seconds: list[float] = []
        for _ in range(args.repeats):
            start = time.perf_counter()
            kernel(*given, device="emulator", **consts)
            seconds.append(time.perf_counter() - start)
        error, bound = worst_error(C, A, B)
        if not error <= bound:
            raise SystemExit(f"{label} is wrong on the emulator: error {error:.3g}, bound {bound:.3g}")
        figures[label] = [round(s, 4) for s in seconds]
        middle = statistics.median(seconds)
        rate = 2e-9 * args.size**3 / middle
        goal = "<= 1.5" if label == "shared_tiled T=16" and args.size == 512 else ""
        rows.append((label, f"{middle:.2f}", f"{rate:.2f}", goal))
    text = table((f"emulator, {args.size}^3", "seconds", "GFLOP/s", "goal"), rows)
    write("emulator_speed", f"Emulator, fp32 {args.size}^3", text, {"seconds": figures}, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
