"""What a fork of the process must not cut in two.

The child of a fork has one thread, the one that forked. A lock that another thread held stays locked in it for ever
(ours, Python's of a module that is being imported, LLVM's), and what that thread was changing stays half changed. So a
fork waits until the other threads have ended what they do `whole`, and the child gets new locks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Callable
from weakref import WeakSet

__all__ = ["WhileBusy", "held_by_forks", "in_child", "whole"]

MOST_SECONDS = 30.0
"""A fork waits no longer: another thread may itself wait for what the forking one holds."""
TICK = 0.002
"""Seconds between two looks at whether it is over."""


class _Work:
    """Who is in the middle of something: for each piece of work the thread that does it.

    Its lock is a plain one, held for a few instructions: Ctrl-C cannot come between taking it and the block under it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.threads: dict[object, int] = {}
        self.forking = False
        self.others: list[Any] = []
        self.held: list[Any] = []

    def begin(self, token: object) -> bool:
        """False if another thread is about to fork."""
        me = threading.get_ident()
        with self.lock:
            if self.forking and me not in self.threads.values():
                return False
            self.threads[token] = me
            return True

    def end(self, token: object) -> None:
        self.threads.pop(token, None)

    def before_fork(self) -> None:
        me, end = threading.get_ident(), time.monotonic() + MOST_SECONDS
        with self.lock:
            self.forking = True
        while any(thread != me for thread in list(self.threads.values())) and time.monotonic() < end:
            time.sleep(TICK)
        for lock in self.others:  # not before: those who are waited for may need them
            lock.__enter__()
            self.held.append(lock)

    def let_go(self) -> None:
        while self.held:
            self.held.pop().__exit__()

    def after_in_parent(self) -> None:
        self.forking = False
        self.let_go()

    def after_in_child(self) -> None:
        self.let_go()
        me = threading.get_ident()
        self.lock, self.forking = threading.Lock(), False
        self.threads = {work: thread for work, thread in self.threads.items() if thread == me}
        for owner in list(_owners):
            owner.renew()


_work = _Work()
_owners: WeakSet[Any] = WeakSet()
os.register_at_fork(
    before=_work.before_fork, after_in_parent=_work.after_in_parent, after_in_child=_work.after_in_child
)


@contextmanager
def whole() -> Generator[None]:
    """No other thread forks inside the block. One that wants to waits, and keeps new work from beginning."""
    token = object()
    try:
        while not _work.begin(token):
            time.sleep(TICK)
        yield
    finally:
        _work.end(token)


def held_by_forks(lock: Any) -> None:
    """A fork takes this lock of another library, and gives it back on both sides: a child would find it locked for ever
    if another thread had it. It is reentrant."""
    _work.others.append(lock)


def in_child(owner: Any) -> None:
    """Call ``owner.renew()`` in each child of a fork, as long as the owner lives: other threads may hold its locks."""
    _owners.add(owner)


class WhileBusy:
    """A setting of the whole process that is another one while any thread is inside the block.

    The first one in calls `change`, which gives what was `before`; the last one out calls `restore` with it.
    """

    def __init__(self, change: Callable[[], int], restore: Callable[[int], None]) -> None:
        self._change, self._restore = change, restore
        self._lock = threading.Lock()
        self._busy: dict[object, int] = {}  # for each one that is inside, its thread
        self.before = 0
        in_child(self)

    @contextmanager
    def inside(self) -> Generator[None]:
        token = object()
        try:
            with self._lock:
                if not self._busy:
                    self.before = self._change()
                self._busy[token] = threading.get_ident()
            yield
        finally:
            try:
                self._end(token)
            except KeyboardInterrupt:  # in the middle of it
                self._end(token)
                raise

    def _end(self, token: object) -> None:
        with self._lock:
            if self._busy.pop(token, None) is not None and not self._busy:
                self._restore(self.before)

    def renew(self) -> None:
        """In the child of a fork: other threads are inside no more."""
        self._lock, me = threading.Lock(), threading.get_ident()
        had, self._busy = self._busy, {k: t for k, t in self._busy.items() if t == me}
        if had and not self._busy:
            self._restore(self.before)
