"""Processes that do jobs for this one. A job may crash its process, or never end: then that is its answer."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import IO, Any, Literal

from tiledsl.errors import TileError
from tiledsl.tune.interruptions import held, use_default_signals

Open = Callable[[], tuple[Any, Callable[[Any], Any]]]
"""Runs in the new process, once: what the process says of itself, and the function that does a job. It is pickled by
its name, as its arguments are if it is a `functools.partial`."""
START_SECONDS = 300.0
"""For a process to begin: it may have to import torch."""
END_SECONDS = 30.0
"""The time in which a killed process should be gone."""
LONGEST_WAIT = 3600.0
"""The longest wait for answers, in seconds, before late workers are looked for. (The system takes no time of years.)"""
PROGRAM = "import sys; from tiledsl.tune.workers import work; work(int(sys.argv[1]))"
SHOWN = 400
"""Characters of what a process printed that are repeated in a message."""


@dataclass(frozen=True)
class Answer:
    """done: `value` is what the function returned. Otherwise a text: raised: of the exception; died: how the process
    ended; late: after how long it was ended."""

    kind: Literal["done", "raised", "died", "late"]
    value: Any


class Worker:
    """One process, which is started for the first job, and again after a job that did not end well. `limit`: seconds of
    a job."""

    def __init__(self, open: Open, limit: float) -> None:
        self._open, self.limit = open, limit
        self.job: Any = None
        self.name: Any = None
        self.info: Any = None
        self._process: subprocess.Popen[bytes] | None = None
        self._printed: IO[bytes] | None = None
        self.connection: Connection[Any, Any] | None = None
        self.deadline = 0.0

    def start(self) -> Any:
        """Start the process. Returns what it says of itself. Raises TileError if it cannot begin."""
        self._begin()
        while self.info is None:
            self._receive(max(0.0, self.deadline - time.monotonic()))
        return self.info

    def give(self, job: Any, name: Any = None) -> None:
        """Begin a job. The process does nothing else now. name: what `answered` calls the job."""
        assert self.job is None, "a worker does one job at a time"
        if self._process is None:
            self._begin()
        elif self.info is not None:
            self.deadline = time.monotonic() + self.limit
        assert self.connection is not None
        self.job, self.name = job, name
        try:
            self.connection.send(job)
        except OSError:  # it died since its last answer: `answer` finds out
            return

    def answer(self) -> Answer | None:
        """The answer to the job, if there is one by now; the worker is free then."""
        found = self._receive(0.0)
        if found is None and time.monotonic() > self.deadline:
            found = Answer("late", f"not done after {self.limit:g} s")
            self.stop()
        if found is not None:
            self.job = None
        return found

    def stop(self) -> None:
        """End the process, and those that it started."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # the driver of the GPU holds it, and has to let it go by itself
            self._process.wait(END_SECONDS)
        assert self.connection is not None and self._printed is not None
        self.connection.close()
        self._printed.close()
        self._process = self.connection = self._printed = self.info = None

    # -- the process -------------------------------------------------------------------------------------

    @held()
    def _begin(self) -> None:
        self.connection, theirs = Pipe()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - `stop` closes it
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # A session of its own: Ctrl-C is for this process, which ends the others, and what they started.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM, str(theirs.fileno())],
            stdin=subprocess.DEVNULL, stdout=self._printed, stderr=self._printed,
            pass_fds=(theirs.fileno(),), env=environment, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        self.connection.send(pickle.dumps(self._open))
        self.deadline = time.monotonic() + START_SECONDS

    def _receive(self, seconds: float) -> Answer | None:
        """What comes within this time. Raises TileError if the process could not begin."""
        assert self.connection is not None and self._process is not None
        if not self.connection.poll(seconds):
            if self.info is None and time.monotonic() > self.deadline:
                self.stop()
                raise TileError(f"a process of the tuner has not begun after {START_SECONDS:g} s")
            return None
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError):
            return self._died()
        if kind == "ready":
            self.info, self.deadline = value, time.monotonic() + self.limit
            return None
        if kind == "refused":
            self.stop()
            raise TileError(value)
        if kind == "raised":
            self.stop()  # after an error of CUDA, its context is of no more use
        return Answer(kind, value)

    def _died(self) -> Answer:
        assert self._process is not None and self._printed is not None
        try:
            code = self._process.wait(10)
        except subprocess.TimeoutExpired:
            code = 0
        self._printed.seek(0)
        lines = self._printed.read().decode(errors="replace").strip()[-SHOWN:]
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        text = f"{how}: {lines}" if lines else how
        began = self.info is not None
        self.stop()
        if not began:
            raise TileError(f"a process of the tuner could not begin: it {text}")
        return Answer("died", text)


def answered(workers: Sequence[Worker]) -> list[tuple[Worker, Any, Answer]]:
    """Wait until one of these workers, which all have a job, has an answer: the worker, the job's name, the answer."""
    while True:
        found: list[tuple[Worker, Any, Answer]] = []
        for worker in workers:
            if (answer := worker.answer()) is not None:
                found.append((worker, worker.name, answer))
        if found:
            return found
        rest = min(worker.deadline for worker in workers) - time.monotonic()
        with held(False):
            seconds = min(max(0.0, rest) + 0.01, LONGEST_WAIT)
            wait([worker.connection for worker in workers if worker.connection], seconds)


def work(descriptor: int) -> None:
    """The program of a process."""
    use_default_signals()
    connection: Connection[Any, Any] = Connection(descriptor)
    try:
        info, function = pickle.loads(connection.recv())()
    except TileError as error:
        connection.send(("refused", str(error)))
        return
    connection.send(("ready", info if info is not None else True))
    while True:
        try:
            job = connection.recv()
        except EOFError:  # the tuner has ended
            return
        try:
            connection.send(("done", function(job)))
        except Exception as error:
            connection.send(("raised", f"{type(error).__name__}: {error}"))
