"""The demo: every kernel of the gallery compiled for an H200, run on this machine, and its result checked.

It runs on a GPU if there is one, otherwise on the emulator, and prints a summary and a line for each run. Exit status 1
if any result exceeds its error bound.
"""

from __future__ import annotations

import argparse
import sys
import time

from gallery import HOPPER, HOPPER_ARCH, Outcome, here, load, run
from rich.console import Console
from rich.table import Table

__all__ = ["main"]

WIDE = 120
"""Columns of a pipe or a file."""
COLUMNS = {"error": 7, "/ bound": 7, "regs": 4, "shared": 6, "spills": 6, "time": 7}
"""Behind the kernel, and how wide they are."""

# Neither square nor multiples of a tile. Rows of the first one are aligned to 4 bytes only, those of the second one
# to 16, so that both paths of a kernel with two paths run. Both are quick on the emulator.
SIZES = ((333, 217, 129), (277, 236, 108))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="sm_90a", help="target to compile for where there is no GPU")
    parser.add_argument("--seed", type=int, default=0, help="for the random input")
    args = parser.parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else WIDE)
    began = time.perf_counter()
    outcomes: list[Outcome] = []
    entries = [e for e in here() if e not in HOPPER or args.arch == HOPPER_ARCH]
    jobs = [(entry, consts, entry.sized(*size)) for size in SIZES for entry in entries for consts in entry.variants]
    for number, (entry, consts, size) in enumerate(jobs, 1):
        with console.status(f"{number}/{len(jobs)} {entry.kernel} {_size(size)}"):
            kernel = load(entry)
            outcomes.append(run(kernel, *size, consts, format=entry.formats[0], arch=args.arch, seed=args.seed))
    console.print(_summary(outcomes, time.perf_counter() - began), soft_wrap=True)
    console.print(_table(outcomes, console.width))
    return not all(o.right for o in outcomes)


def _summary(outcomes: list[Outcome], seconds: float) -> str:
    """Whether all are right, and the worst error relative to its bound."""
    wrong = sum(not o.right for o in outcomes)
    verdict = f"[bold red]{wrong} of {len(outcomes)} WRONG[/]" if wrong else f"all {len(outcomes)} right"
    worst = max(outcomes, key=lambda o: (not o.right, _share(o)))
    found = f"the worst error is {_share(worst):.2g} of its bound: {worst.kernel}, {_size(worst.size)}"
    return f"{verdict}, in {_time(seconds)}; {found}"


def _share(o: Outcome) -> float:
    return o.error / o.bound


def _table(outcomes: list[Outcome], width: int) -> Table:
    """A line for each run, under one for each size. Names of kernels end where the others' columns begin."""
    first, room = outcomes[0], width - sum(n + 1 for n in COLUMNS.values()) - 1
    table = Table(title=f"GEMM gallery for {first.arch}, on {first.where}: the worst element against float64")
    table.box, table.padding, table.title_justify = None, (0, 1, 0, 0), "left"
    table.add_column("kernel", no_wrap=True)
    for name, least in COLUMNS.items():
        table.add_column(name, justify="right", min_width=least, no_wrap=True)
    last = None
    for o in outcomes:
        if o.size != last:
            table.add_row(f"[bold]{_size(o.size)}[/]")
            last = o.size
        kernel = o.kernel if len(o.kernel) <= room else f"{o.kernel[: room - 1]}…"
        error = f"{o.error:.1e}" if o.right else f"[bold red]{o.error:.1e}[/]"
        share, kib = f"{_share(o):.2g}", "?" if o.shared is None else f"{o.shared / 1024:.3g} K"
        registers, spills = ("?" if n is None else str(n) for n in (o.registers, o.spills))
        table.add_row(kernel, error, share, registers, kib, spills, _time(o.seconds))
    return table


def _size(size: tuple[int, int, int]) -> str:
    return " x ".join(map(str, size))


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


if __name__ == "__main__":
    sys.exit(main())
