"""Spreads cases over processes that it watches, and keeps what became of them in a folder.

A process that hangs is ended, and one that ends is replaced: both are findings of the case that it had. The folder has
one line a case in `<kind>-<seed>.jsonl`, and the program of every finding; a run goes on where the last one ended.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.fuzz.outcome import FINDINGS, Outcome

__all__ = ["State", "run_cases", "single", "summary"]

KINDS = ("sources", "texts", "calls", "integers", "sequences", "fresh")
MEMORY = 6 << 30
"""Bytes of address space of a process."""
PATIENCE = 90.0
"""Seconds until a process that does not answer is ended: much more than a case may take of its own time. A kind may
have its own."""
CASES_A_PROCESS = 400
"""Then a fresh one takes its place, so that nothing that piles up counts."""


@dataclass
class State:
    """What is known of the cases of one kind and seed."""

    folder: Path
    kind: str
    seed: int
    outcomes: dict[int, Outcome] = field(default_factory=dict[int, Outcome])

    @property
    def path(self) -> Path:
        return self.folder / f"{self.kind}-{self.seed}.jsonl"

    def read(self) -> State:
        self.folder.mkdir(parents=True, exist_ok=True)
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            try:
                row = json.loads(line)
            except ValueError:
                continue  # a run was stopped while it wrote
            self.outcomes[row["case"]] = Outcome(row["kind"], row["place"])
        return self

    def add(self, case: int, outcome: Outcome) -> None:
        self.outcomes[case] = outcome
        with self.path.open("a") as file:
            file.write(json.dumps({"case": case, "kind": outcome.kind, "place": outcome.place}) + "\n")
        if outcome.is_finding:
            module = _module(self.kind)
            name = f"{self.kind}-{self.seed}-{case}"
            text = module.generate(self.seed, case)
            self.folder.joinpath(f"{name}.{module.SUFFIX}").write_text(text, errors="surrogateescape")
            self.folder.joinpath(f"{name}.txt").write_text(f"{outcome.kind}: {outcome.place}\n\n{outcome.detail}\n")


def _module(kind: str) -> Any:
    """What makes and runs cases: a module of this package, or any other by its whole name."""
    return import_module(kind if "." in kind else f"tests.fuzz.{kind}")


def single(kind: str, seed: int, case: int) -> tuple[str, Outcome]:
    """The program of one case, and what becomes of it, in this process."""
    module = _module(kind)
    text = module.generate(seed, case)
    return text, module.run(text, seed, case)


# -- processes -------------------------------------------------------------------------------------


def _work(kind: str, seed: int, pipe: Connection) -> None:
    """Run the cases whose numbers come."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.update(CUDA_VISIBLE_DEVICES="", TILEDSL_CACHE="0", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the life of the process
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        try:
            outcome = single(kind, seed, case)[1]
        except BaseException as error:  # of the fuzzer itself
            outcome = Outcome("died", f"{type(error).__name__} in the fuzzer", traceback.format_exc())
        pipe.send(outcome)


class _Worker:
    def __init__(self, context: Any, kind: str, seed: int) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(kind, seed, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.case, self.since, self.done = -1, 0.0, 0

    def give(self, case: int) -> None:
        self.case, self.since = case, time.monotonic()
        self.pipe.send(case)

    def answer(self) -> Outcome:
        """Call it when the pipe is ready: also when its other end is closed."""
        try:
            self.done += 1
            return self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            return Outcome("died", f"exit code {self.process.exitcode}")

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


def run_cases(state: State, count: int, jobs: int) -> Iterator[tuple[int, Outcome]]:
    """Run the cases 0 to `count` - 1 that `state` does not know, and add them to it."""
    patience = getattr(_module(state.kind), "PATIENCE", PATIENCE)
    todo = iter([case for case in range(count) if case not in state.outcomes])
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([f"tests.fuzz.{kind}" for kind in KINDS] + ["tests.fuzz.preload"])
    workers: list[_Worker] = []

    def begin(worker: _Worker | None = None) -> None:
        """Give the next case, to a fresh process if there is none or it has done its share."""
        case = next(todo, None)
        if worker is not None and (case is None or worker.done >= CASES_A_PROCESS or not worker.process.is_alive()):
            workers.remove(worker)
            worker.end()
            worker = None
        if case is None:
            return
        if worker is None:
            worker = _Worker(context, state.kind, state.seed)
            workers.append(worker)
        worker.give(case)

    try:
        for _ in range(jobs):
            begin()
        while workers:
            ready = wait([w.pipe for w in workers], timeout=1.0)
            for worker in list(workers):
                late = time.monotonic() - worker.since > patience
                if worker.pipe not in ready and not late:
                    continue
                case = worker.case
                if worker.pipe in ready:
                    outcome = worker.answer()
                else:
                    worker.process.kill()
                    worker.process.join()
                    outcome = Outcome("hang", f"no answer within {patience:.0f} s")
                state.add(case, outcome)
                begin(worker)
                yield case, outcome
    finally:
        for worker in workers:
            worker.end()


def summary(state: State) -> str:
    """Counts by outcome, and every kind of finding with its cases."""
    counts = Counter(o.kind for o in state.outcomes.values())
    lines = [f"{state.kind}, seed {state.seed}: {len(state.outcomes)} cases"]
    lines += [f"  {n:6d}  {kind}" for kind, n in counts.most_common() if kind not in FINDINGS]
    classes: dict[tuple[str, str], list[int]] = {}
    for case, outcome in sorted(state.outcomes.items()):
        if outcome.is_finding:
            classes.setdefault((outcome.kind, outcome.place), []).append(case)
    lines.append(f"  {sum(map(len, classes.values())):6d}  findings, of {len(classes)} kinds")
    for (kind, place), cases in sorted(classes.items(), key=lambda item: (item[0][0], -len(item[1]))):
        shown = ", ".join(map(str, cases[:4])) + (", ..." if len(cases) > 4 else "")
        lines.append(f"  {len(cases):6d}  {kind}: {place or '-'}  (case {shown})")
    return "\n".join(lines)
