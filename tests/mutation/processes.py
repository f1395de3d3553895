"""Runs work in processes of its own, which may hang, die or take too much memory; many at once."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any

__all__ = ["Result", "Work", "apart", "known", "run_all"]

MEMORY = 6 << 30
"""Bytes of address space of a process."""


@dataclass(frozen=True)
class Result:
    """`detail`: the code and text of the finding, the class of an equivalent. `seconds`: of the process."""

    outcome: str
    detail: str = ""
    seconds: float = 0.0


Work = Callable[[], Result]

# -- one -------------------------------------------------------------------------------------------


def apart(work: Work, patience: float) -> Result:
    """Return the result of `work` in a separate process, which is ended after `patience` seconds of CPU time, or after
    four times as many of wall time, as others may use the machine."""
    sys.stdout.flush()
    start = time.monotonic()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _answer(work, write, ceil(patience))
    os.close(write)
    text = _text(read, start + 4 * patience)
    if text is None:
        os.kill(child, signal.SIGKILL)
    os.close(read)
    _, status = os.waitpid(child, 0)
    seconds = time.monotonic() - start
    if text is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        return Result("failed", f"stopped after {patience:.0f} seconds", seconds)
    if not text:
        return Result("failed", "the process died", seconds)
    return Result(**{**json.loads(text), "seconds": seconds})


def _text(read: int, until: float) -> str | None:
    """All that comes through the pipe; None if it is still open at this time."""
    found = b""
    while True:
        ready, _, _ = select.select([read], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return None
        more = os.read(read, 1 << 16)
        if not more:
            return found.decode()
        found += more


def _answer(work: Work, write: int, patience: int) -> None:
    """The child: never returns."""
    gc.disable()
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (patience, patience + 5))
        try:
            result = work()
        except Exception:
            result = Result("failed", traceback.format_exc()[-500:])
        with os.fdopen(write, "w") as file:
            json.dump(asdict(result), file)
    finally:
        os._exit(0)


# -- many ------------------------------------------------------------------------------------------


def known(state: Path) -> dict[str, Result]:
    """The results of a file, one a line. A run that was stopped goes on where it ended."""
    if not state.exists():
        return {}
    rows = [json.loads(line) for line in state.read_text().splitlines()]
    return {row.pop("key"): Result(**row) for row in rows}


def run_all(work: Mapping[str, tuple[Work, float]], state: Path, processes: int, seconds: float) -> int:
    """Adds the results of all work that the file does not have: by name, what to run and how many seconds that may
    take. None begins after `seconds`. How much is left."""
    done = known(state)
    left = [(name, each) for name, each in work.items() if name not in done]
    start, fork = time.monotonic(), multiprocessing.get_context("fork")
    following = fork.Value("i", 0)
    arguments = left, following, state, start + seconds
    workers = [fork.Process(target=_work, args=arguments) for _ in range(min(processes, len(left)))]
    gc.collect()
    gc.freeze()  # the processes need not look for garbage in what they share
    for worker in workers:
        worker.start()
    for worker in workers:
        while worker.is_alive():
            worker.join(10.0)
            taken = min(following.value, len(left))
            print(f"{taken} of {len(left)}, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return len(work.keys() - known(state).keys())


def _work(left: list[tuple[str, tuple[Work, float]]], following: Any, state: Path, until: float) -> None:
    while time.monotonic() < until:
        with following.get_lock():
            at, following.value = following.value, following.value + 1
        if at >= len(left):
            return
        name, each = left[at]
        line = json.dumps({"key": name, **asdict(apart(*each))}) + "\n"
        with state.open("ab", buffering=0) as file:  # one write: lines of several processes do not mix
            file.write(line.encode())
