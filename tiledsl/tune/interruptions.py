"""Signals that end the tuner. Each becomes a KeyboardInterrupt, but never between a result and its record."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals that end the tuner; Windows lacks the last one."""


@dataclass
class _State:
    """The state of this process: whether a signal came, has to wait (`held`), and was raised."""

    held: bool = False
    came: bool = False
    raised: bool = False

    def check(self) -> None:
        if self.came and not self.held and not self.raised:
            self.raised = True
            raise KeyboardInterrupt


_STATE = _State()


@contextmanager
def interruptible() -> Generator[None]:
    """Raise KeyboardInterrupt in this block for the first signal of `ENDING`, and ignore later ones.

    A shell starts the background jobs of a script with SIGINT ignored. They must stop for `kill -INT` all the same. An
    ignored SIGHUP stays ignored, since nohup is for that. So do handlers that the program has set itself.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        replaced = (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler)
        for number in [getattr(signal, name) for name in ENDING if hasattr(signal, name)]:
            handler = signal.getsignal(number)
            kept = number == getattr(signal, "SIGHUP", None) and handler == signal.SIG_IGN
            if handler in replaced and not kept:
                before[number] = signal.signal(number, _interrupt)
    _STATE.came = _STATE.raised = False
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def held(hold: bool = True) -> Generator[None]:
    """Raise nothing in this block: a signal that comes is raised after it. `hold=False` is a block inside that waits,
    where it is raised at once."""
    before, _STATE.held = _STATE.held, hold
    try:
        _STATE.check()
        yield
    finally:
        _STATE.held = before
    _STATE.check()


def use_default_signals() -> None:
    """Undo in this new process what it has inherited: its parent may have been started with signals ignored."""
    for name in ENDING:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)


def _interrupt(*_: Any) -> None:
    _STATE.came = True
    _STATE.check()
