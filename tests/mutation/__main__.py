"""The command line: see CONTRIBUTING.md."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is imported: there is a process for each core

from tests.mutation.processes import Work, known, run_all
from tests.mutation.report import Chosen, report
from tests.mutation.runner import (
    PATIENCE,
    drawn,
    executed,
    mutants_of,
    outcome_of,
    outcome_of_unmutated,
    sampled,
    unmutated_runs,
)
from tests.mutation.subjects import OUTSIDE, SUBJECTS

AGAIN = "survived", "not reached", "no end", "failed"
KINDS = """general: changes of single ops of the gallery (default); protocol: mistakes between ops, threads and
iterations, in the gallery and in kernels outside it"""
LONG = 300.0
"""Seconds that a run of a kernel as it is may take."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Plant faults; see which are found.")
    parser.add_argument("subjects", nargs="*", metavar="subject", help="default: all of them")
    parser.add_argument(
        "--most", type=int, default=1, help="places of like faults; four times as many of ops that order (default 1)"
    )
    parser.add_argument("--kinds", choices=["general", "protocol"], default="general", help=KINDS)
    parser.add_argument("--count", type=int, help="draw this many of them at random (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of --count")
    parser.add_argument("--state", type=Path, help="file of results, one a line; those that it has are not run again")
    parser.add_argument("--seeds", type=int, default=20, help="schedules of each kernel as it is (default 20)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: all cores)")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing after these; for --state")
    parser.add_argument("--again", action="store_true", help="run those again that nothing found")
    parser.add_argument("--mutant", help="run this one alone, in this process")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/mutation*.{md,json}")
    args = parser.parse_args()
    if unknown := set(args.subjects) - set(SUBJECTS):
        parser.error(f"no subject {', '.join(unknown)}; there are: {'; '.join(SUBJECTS)}")
    if args.write and (args.subjects or args.most < 1 or (args.kinds == "general" and args.count is not None)):
        parser.error("--write is for mutants of all subjects")
    if args.mutant:
        return _one(args.mutant)
    with tempfile.TemporaryDirectory() as folder:
        return _all(args, args.state or Path(folder) / "state")


def _all(args: argparse.Namespace, state: Path) -> int:
    start = time.monotonic()
    protocol = args.kinds == "protocol"
    names: list[str] = args.subjects or [name for name in SUBJECTS if protocol or name not in OUTSIDE]
    every = {name: [*mutants_of(name, args.kinds)] for name in names}
    counts = {name: len(mutants) for name, mutants in every.items()}
    mutants = [mutant for each in every.values() for mutant in sampled(each, args.most)]
    del every
    if args.count is not None:
        mutants = drawn(mutants, args.count, args.seed)
    runs = [run for name in names for run in unmutated_runs(name, args.seeds)]
    for name in names if args.count is None else ():
        executed(name)
    print(f"{len(mutants)} mutants, {len(runs)} runs: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    if args.again:
        _forget(state)
    # Those that take longest first: the kernels are in order of what they do.
    work: dict[str, tuple[Work, float]] = {run.key: (partial(outcome_of_unmutated, run), LONG) for run in runs[::-1]}
    work |= {mutant.key: (partial(outcome_of, mutant), PATIENCE) for mutant in mutants[::-1]}
    if left := run_all(work, state, args.jobs, args.minutes * 60):
        print(f"{left} of {len(work)} are left: run it again with the same --state")
        return 2
    found = known(state)
    chosen = Chosen(args.kinds, args.most, args.count, args.seed)
    as_it_is = [(run, found[run.key]) for run in runs]
    report([(m, found[m.key]) for m in mutants], as_it_is, counts, chosen, write=args.write)
    return any(result.outcome != "nothing" for _, result in as_it_is)


def _forget(state: Path) -> None:
    lines = state.read_text().splitlines(keepends=True) if state.exists() else []
    state.write_text("".join(line for line in lines if json.loads(line)["outcome"] not in AGAIN))


def _one(key: str) -> int:
    mutant = next(each for each in mutants_of(key.split("/")[0], "all") if each.key == key)
    result = outcome_of(mutant)
    print(f"{mutant.op} at {mutant.line}, {mutant.by}: {mutant.what}\n{result.outcome}: {result.detail}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
