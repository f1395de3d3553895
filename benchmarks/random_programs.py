"""Random programs on the GPU and on the emulator, bit for bit.

    python -m benchmarks.random_programs --count 10000
    python -m benchmarks.random_programs --count 5000 --kinds integers

A third each are random statements of all kinds of ops and dtypes (`tests/property/random_kernels.py`), products of
matrices (`random_matrices.py`), and computations with integers near the ends of their dtypes (`random_integers.py`,
many in a kernel). Each runs on the emulator first, and on the GPU if its checks found nothing.
A part of 100 programs has a process of its own: one that hangs or crashes is a line of the table. What has run is kept
in random_programs.jsonl, so that a run that was cut off continues where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.report import RESULTS, table, write

__all__ = ["main"]

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "tests" / "gpu" / "random_program.py"
KINDS = {"statements": 1, "products": 1, "integers": 20}
"""The number of programs per seed."""
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
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS], help="(default: all)")
    parser.add_argument("--first", type=int, default=1_000_000, help="the first seed (default 1000000)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once (default: one a processor)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    each = args.count // len(args.kinds)
    starts = [
        (kind, at, PART // KINDS[kind])
        for kind in args.kinds
        for at in range(0, each // KINDS[kind], PART // KINDS[kind])
    ]
    parts = [(kind, args.first + at, min(most, each // KINDS[kind] - at)) for kind, at, most in starts]
    args.out.mkdir(parents=True, exist_ok=True)
    log = args.out / "random_programs.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done: dict[tuple[str, int, int], tuple[int, int, str]] = {(k, a, n): (r, d, t) for k, a, n, r, d, t in lines}
    todo = [part for part in parts if part not in done]
    with ThreadPoolExecutor(args.jobs) as pool, log.open("a") as file:
        for part, found in zip(todo, pool.map(lambda part: run_part(*part), todo), strict=True):
            done[part] = found
            file.write(json.dumps([*part, *found]) + "\n")
            file.flush()
    rows: list[list[str]] = []
    for kind in args.kinds:
        own = [done[part] for part in parts if part[0] == kind]
        broken = sum(1 for ran, _, _ in own if ran == 0)
        rows.append([kind, str(sum(r for r, _, _ in own) * KINDS[kind]), str(sum(d for _, d, _ in own)), str(broken)])
    wrong = [done[part][2] for part in parts if done[part][2]]
    text = table(("programs", "ran", "differ", "parts that broke off"), rows)
    if wrong:
        text += "\n\n```\n" + "\n".join(wrong[:10]) + "\n```"
    write("random_programs", "Random programs, emulator and GPU", text, {"wrong": wrong}, args.out)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
