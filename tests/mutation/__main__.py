"""The command line: see CONTRIBUTING.md."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tests.mutation.report import report
from tests.mutation.runner import Mutant, Result, Unmutated, mutants_of, outcome_of, run_apart, sampled, unmutated
from tests.mutation.subjects import SUBJECTS

AGAIN = "survived", "not reached", "no end"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Plant faults; see which are found.")
    parser.add_argument("subjects", nargs="*", metavar="subject", help="default: all of them")
    parser.add_argument(
        "--most", type=int, default=1, help="places of like faults; four times as many of ops that order (default 1)"
    )
    parser.add_argument("--state", type=Path, help="file of results, one a line; those that it has are not run again")
    parser.add_argument("--seeds", type=int, default=3, help="schedules of each kernel as it is (default 3)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time (default: all cores)"
    )
    parser.add_argument("--again", action="store_true", help="of these, run those again that nothing found")
    parser.add_argument("--mutant", help="run this one alone, in this process")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/mutation.{md,json}")
    args = parser.parse_args()
    if unknown := set(args.subjects) - set(SUBJECTS):
        parser.error(f"no subject {', '.join(unknown)}; there are: {'; '.join(SUBJECTS)}")
    if args.again and args.state is not None and args.state.exists():
        left = [line for line in args.state.read_text().splitlines() if json.loads(line)["outcome"] not in AGAIN]
        args.state.write_text("".join(f"{line}\n" for line in left))
    if args.mutant:
        return _one(args.mutant)
    names = [*(args.subjects or SUBJECTS)]
    known = _read(args.state)
    results: list[tuple[Mutant, Result]] = []
    counts: dict[str, int] = {}
    runs, shown = 0, list[str]()

    def outcome(each: Mutant | Unmutated) -> Result:
        return known.get(each.key) or run_apart(each)

    for name in names:
        mutants, whole = [*mutants_of(name)], unmutated(name, args.seeds)
        counts[name] = len(mutants)
        start, chosen = time.monotonic(), sampled(mutants, args.most)
        each: list[Mutant | Unmutated] = [*whole, *chosen]
        with ThreadPoolExecutor(args.jobs) as pool:
            for one, result in zip(each, pool.map(outcome, each), strict=True):
                if args.state is not None and one.key not in known:
                    with args.state.open("a") as file:
                        file.write(json.dumps({"key": one.key, **asdict(result)}) + "\n")
                if isinstance(one, Mutant):
                    results.append((one, result))
                elif result.outcome != "clean":
                    shown.append(f"{one.key}: {result.outcome}, {result.detail}")
        runs += len(whole)
        print(f"{name}: {len(chosen)} of {len(mutants)}, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    text = f"{runs} runs of the kernels as they are, by {args.seeds} seeds: {'; '.join(shown) or 'nothing found'}."
    report(results, counts, args.most, text, write=args.write)
    return bool(shown)


def _read(state: Path | None) -> dict[str, Result]:
    """A run that was stopped goes on where it ended."""
    if state is None or not state.exists():
        return {}
    rows = [json.loads(line) for line in state.read_text().splitlines()]
    return {row.pop("key"): Result(**row) for row in rows}


def _one(key: str) -> int:
    mutant = next(each for each in mutants_of(key.split("/")[0]) if each.key == key)
    result = outcome_of(mutant)
    print(f"{mutant.op} at {mutant.line}, {mutant.by}: {mutant.what}\n{result.outcome}: {result.detail}")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
