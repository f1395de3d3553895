"""The demo: every kernel of the gallery compiled for an H200, run on this machine, and its result checked.

It runs on a GPU if there is one, otherwise on the emulator. Exit status 1 if any result exceeds its error bound.
"""

from __future__ import annotations

import argparse
import sys
import time

from gallery import HOPPER, HOPPER_ARCH, Outcome, here, load, run
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

__all__ = ["main"]

# Neither square nor multiples of a tile. Rows of the first one are aligned to 4 bytes only, those of the second one
# to 16, so that both paths of a kernel with two paths run. Both are quick on the emulator.
SIZES = ((333, 217, 129), (277, 236, 108))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="sm_90a", help="target to compile for where there is no GPU")
    parser.add_argument("--seed", type=int, default=0, help="for the random input")
    args = parser.parse_args(argv)
    console = Console()
    began = time.perf_counter()
    outcomes: list[Outcome] = []
    entries = [e for e in here() if e not in HOPPER or args.arch == HOPPER_ARCH]
    jobs = [(entry, consts, entry.sized(*size)) for size in SIZES for entry in entries for consts in entry.variants]
    for number, (entry, consts, size) in enumerate(jobs, 1):
        with console.status(f"{number}/{len(jobs)} {entry.kernel} {_size(size)}"):
            kernel = load(entry)
            got = run(kernel, *size, consts, format=entry.formats[0], arch=args.arch, seed=args.seed)
        console.print(f"{number}/{len(jobs)} {got.kernel}: {_size(size)} on {got.where} in {_time(got.seconds)}")
        outcomes.append(got)
    console.print(_table(outcomes))
    wrong = [o for o in outcomes if not o.right]
    verdict = f"{len(wrong)} of {len(outcomes)} WRONG" if wrong else f"all {len(outcomes)} right"
    console.print(f"{verdict}, {time.perf_counter() - began:.1f} s in all")
    return bool(wrong)


def _table(outcomes: list[Outcome]) -> Table:
    """One row a run, under a line for each size; it fits in 80 columns."""
    title = f"GEMM gallery for {outcomes[0].arch}: error of the worst element against float64"
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    table.add_column("kernel", overflow="fold")
    table.add_column("ran on", no_wrap=True)
    for name in ("error", "bound", "regs", "shared", "spills", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    last = None
    for o in outcomes:
        if o.size != last:
            table.add_section()
            table.add_row(f"[bold]{_size(o.size)}[/]")
            last = o.size
        error = f"{o.error:.1e}" if o.right else f"[bold red]{o.error:.1e}[/]"
        numbers = (f"{o.bound:.1e}", str(o.registers), f"{o.shared} B", str(o.spills), _time(o.seconds))
        table.add_row(o.kernel, o.where, error, *numbers)
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
