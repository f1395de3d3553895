"""Random programs on the GPU and on the emulator, bit for bit.

    python -m benchmarks.random_programs --count 10000

Half are random statements of all kinds of ops and dtypes (`tests/property/random_kernels.py`), half are products of
matrices (`random_matrices.py`). Each runs on the emulator with its checks first, and on the GPU if nothing was found.
A part of 100 programs has a process of its own: one that hangs or crashes is a line of the table.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.report import RESULTS, table, write

__all__ = ["main"]

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "tests" / "gpu" / "random_program.py"
KINDS = ("statements", "products")
PART = 100
SECONDS = 300
"""That a part may take."""
SUMMARY = re.compile(r"^(\d+) ran, (\d+) differ\ndone\n\Z", re.M)


def run_part(kind: str, first: int, count: int) -> tuple[int, int, str]:
    """How many ran, how many of them gave other bits, and what went wrong."""
    command = [sys.executable, str(PROGRAM), kind, str(first), str(count)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=env)
    except subprocess.TimeoutExpired:
        return 0, 0, f"{kind} {first}: no end within {SECONDS} s"
    summary = SUMMARY.search(done.stdout)
    if summary is None:
        return 0, 0, f"{kind} {first}: {(done.stderr or done.stdout).strip()[-2000:]}"
    return int(summary[1]), int(summary[2]), done.stdout[: summary.start()].strip()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=1_000_000, help="the first seed (default 1000000)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once (default: one a processor)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    each = args.count // len(KINDS)
    parts = [(kind, args.first + at, min(PART, each - at)) for at in range(0, each, PART) for kind in KINDS]
    began = time.perf_counter()
    with ThreadPoolExecutor(args.jobs) as pool:
        done = list(pool.map(lambda part: (part[0], *run_part(*part)), parts))
    rows = [["programs", "ran", "differ", "parts that broke off"]]
    for kind in KINDS:
        own = [(ran, differ, text) for k, ran, differ, text in done if k == kind]
        broken = sum(1 for ran, _, _ in own if ran == 0)
        rows.append([kind, str(sum(r for r, _, _ in own)), str(sum(d for _, d, _ in own)), str(broken)])
    wrong = [text for _, _, _, text in done if text]
    seconds = time.perf_counter() - began
    text = f"{table(rows)}\n\n{seconds:.0f} s with {args.jobs} processes."
    if wrong:
        text += "\n\n```\n" + "\n".join(wrong[:10]) + "\n```"
    write("random_programs", "Random programs, emulator and GPU", text, {"seconds": seconds, "wrong": wrong}, args.out)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
