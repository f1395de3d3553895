"""The command line: see CONTRIBUTING.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from tests.fuzz.runner import KINDS, State, run_cases, single, summary


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the compiler. Exit 1: findings.")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=1000, help="cases (default 1000); known ones are skipped")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--state", type=Path, default=Path("fuzz-state"), help="folder of outcomes and findings")
    parser.add_argument("--case", type=int, help="run this case alone, show its program and what becomes of it")
    parser.add_argument("--summary", action="store_true", help="show what is known, and run nothing")
    args = parser.parse_args()
    if args.case is not None:
        text, outcome = single(args.kind, args.seed, args.case)
        print(f"{text}\n{outcome.kind}: {outcome.place}\n{outcome.detail}")
        return outcome.is_finding
    state = State(args.state, args.kind, args.seed).read()
    if not args.summary:
        _run(state, args.count, args.jobs)
    print(summary(state))
    return any(o.is_finding for o in state.outcomes.values())


def _run(state: State, count: int, jobs: int) -> None:
    started = time.monotonic()
    for done, (case, outcome) in enumerate(run_cases(state, count, jobs), 1):
        if outcome.is_finding:
            print(f"case {case}: {outcome.kind}: {outcome.place}", flush=True)
        if done % 500 == 0:
            print(f"{len(state.outcomes)} of {count}, {done / (time.monotonic() - started):.1f} a second", flush=True)


if __name__ == "__main__":
    sys.exit(main())
