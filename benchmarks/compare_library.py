"""The library's figures at two commits, interleaved on a GPU: `gemm` on random shapes. Needs torch.

    python -m benchmarks.compare_library main~20 --seed 11              the working tree against a commit
    python -m benchmarks.compare_library main~20 main --seed 11         two commits
    python -m benchmarks.compare_library /tmp/old . --seed 11           two folders with checkouts, where git is not

Each commit is checked out into a folder and runs in a process of its own, which imports its own tiledsl: so the choice
of a kernel counts as its code does, and neither sees modules or compiled kernels of the other. The processes take turns
on the GPU: one waits for the next request while the other's graph runs. In each round both are timed, in an order drawn
anew, and a figure is the median of the ratios of all rounds. More than 1 is faster than before.

Results are checked against cuBLAS, and compared with each other bit for bit. Exit status 1: a result is wrong, or a
family's mean is below --least.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.compare_ptx import checkout
from benchmarks.random_shapes import FAMILIES, LAYOUTS, LOADS, shapes
from benchmarks.report import RESULTS, table, write
from tiledsl.inspect.contenders import Size
from tiledsl.inspect.timing import buffer_sets, quartiles

__all__ = ["Worker", "compare", "main", "summary"]

WHO = ("before", "after")
NOTED = 0.97
"""A shape that is slower than that is marked in the table."""


class Worker:
    """The process of one checkout."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name, self.process = name, process

    def send(self, do: str, **request: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """What the process says to the last request. Raises SystemExit if it ended or failed."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = json.loads(line) if line else {"error": f"it ended with status {self.process.wait()}"}
        if "error" in found:
            raise SystemExit(f"{self.name}: {found['error']}; see above")
        return found

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        self.send(do, **request)
        return self.answer()


@contextmanager
def started(name: str, folder: Path) -> Iterator[Worker]:
    script = Path(__file__).with_name("library_worker.py")
    # -P: files beside the script are not importable by their bare names.
    command = [sys.executable, "-P", str(script), str(folder)]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    with subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield Worker(name, process)
        finally:
            process.kill()


@contextmanager
def folder_of(asked: str) -> Iterator[Path]:
    """The checkout of a commit; the working tree for "", or the folder itself, if there is one of this name."""
    if asked and Path(asked).is_dir():
        yield Path(asked).resolve()
        return
    with checkout(asked) as folder:
        yield folder


def compare(
    workers: Sequence[Worker], size: Size, format: str, stored: str, rounds: int, load: str, order: random.Random
) -> dict[str, Any]:
    """The record of one shape."""
    sets = buffer_sets(size.bytes((4, 4) if format == "f32" else (2, 2)), cold=True)
    for worker in workers:  # at the same time: each compiles what it needs
        worker.send("prepare", shape=size.numbers, format=format, stored=stored, sets=sets, seed=1)
    checked = [worker.answer() for worker in workers]
    seconds, rest = LOADS[load]
    taken: dict[str, list[float]] = {worker.name: [] for worker in workers}
    for _ in range(rounds):
        for worker in order.sample(list(workers), len(workers)):
            time.sleep(rest)
            taken[worker.name].append(worker.ask("time", seconds=seconds)["milliseconds"])
    ratios = [before / after for before, after in zip(*(taken[name] for name in WHO), strict=True)]
    return {
        "size": list(size.numbers),
        "ratio": quartiles(ratios),
        "microseconds": {name: statistics.median(values) * 1e3 for name, values in taken.items()},
        "wrong": {worker.name: found["wrong"] for worker, found in zip(workers, checked, strict=True)},
        "same_bits": checked[0]["bits"] == checked[1]["bits"],
    }


def summary(cases: Sequence[dict[str, Any]], least: float) -> tuple[str, list[str]]:
    """The tables, and what is worse than it may be."""
    rows: list[tuple[str, ...]] = []
    worse = [
        f"{case['family']} {'x'.join(map(str, case['size']))}: {case['wrong'][who]} elements are wrong {who}"
        for case in cases
        for who in WHO
        if case["wrong"][who]
    ]
    for family in dict.fromkeys(case["family"] for case in cases):
        ratios = [case["ratio"][1] for case in cases if case["family"] == family]
        mean = statistics.mean(ratios)
        slower = sum(ratio < NOTED for ratio in ratios)
        rows.append((family, str(len(ratios)), f"{mean:.4f}", f"{min(ratios):.3f}", f"{max(ratios):.3f}", str(slower)))
        worse += [f"{family}: the mean is {mean:.4f}, below {least}"] if mean < least else []
    head = ("family", "shapes", "after / before, mean", "worst", "best", f"below {NOTED}")
    each = [
        (
            case["family"],
            "x".join(map(str, case["size"])),
            *(f"{case['microseconds'][who]:.2f}" for who in WHO),
            "{1:.3f} ({0:.3f} to {2:.3f})".format(*case["ratio"]) + (" slower" if case["ratio"][1] < NOTED else ""),
            "same" if case["same_bits"] else "other",
        )
        for case in cases
    ]
    names = ("family", "M x N x K", "before, us", "after, us", "speed, after to before (quartiles)", "bits")
    return f"{table(head, rows)}\n\n{table(names, each)}", worse


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="a commit, or a folder")
    parser.add_argument("after", nargs="?", default="", help="a commit, or a folder (default: the working tree)")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--families", nargs="+", choices=tuple(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--count", type=int, default=5, help="shapes of a family")
    parser.add_argument("--format", choices=("bf16", "f16", "f32"), default="bf16")
    parser.add_argument("--stored", choices=LAYOUTS, default="NT", help="B along k (NT), or in row order (NN)")
    parser.add_argument("--load", choices=tuple(LOADS), default="rested")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--least", type=float, default=0.99, help="what the mean of a family may fall to")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    sizes = [(family, size) for family in args.families for size in shapes(family, args.seed, args.count)]
    order = random.Random(args.seed)
    cases: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folders = [stack.enter_context(folder_of(asked)) for asked in (args.before, args.after)]
        workers = [stack.enter_context(started(who, folder)) for who, folder in zip(WHO, folders, strict=True)]
        listed = [size.numbers for _, size in sizes]
        for worker in workers:
            worker.send("warm", shapes=listed, format=args.format, stored=args.stored)
        for worker in workers:
            worker.answer()
        for family, size in sizes:
            case = compare(workers, size, args.format, args.stored, args.rounds, args.load, order)
            cases.append({"family": family, "seed": args.seed, **case})
            print(f"  {family} {size}: {case['ratio'][1]:.3f}", flush=True)
    text, worse = summary(cases, args.least)
    compared = {"before": args.before, "after": args.after or "the working tree", "cases": cases}
    title = f"gemm of two commits, {args.format} {args.stored}, {args.load}: {args.before} and {compared['after']}"
    write("compare_library", title, text, compared, args.out)
    print("\n".join(worse))
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main())
