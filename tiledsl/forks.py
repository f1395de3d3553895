"""Makes forks of the process safe while other threads compile.

The child of a fork has one thread, the one that forked. A lock that another thread held (ours, Python's for a module
that is being imported, LLVM's) stays locked in the child for ever, and data that it was changing stays inconsistent. So
a fork waits until other threads have left their `whole` blocks, and the child gets new locks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any, Callable
from weakref import WeakSet

MOST_SECONDS = 30.0
"""The longest wait of a fork: another thread may be waiting for something that the forking thread holds."""
TICK = 0.002
"""Seconds between two polls."""


class _Work:
    """The pieces of work that a fork must wait for, and the thread that does each of them.

    The lock is a plain one, held for a few instructions: Ctrl-C cannot come between acquiring it and its block.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.threads: dict[object, int] = {}
        self.forking = False
        self.others: list[Any] = []
        self.held = ExitStack()

    def begin(self, token: object) -> bool:
        """False if another thread is about to fork."""
        me = threading.get_ident()
        with self.lock:
            if self.forking and me not in self.threads.values():
                return False
            self.threads[token] = me
            return True

    def before_fork(self) -> None:
        me, end = threading.get_ident(), time.monotonic() + MOST_SECONDS
        with self.lock:
            self.forking = True
        while any(thread != me for thread in list(self.threads.values())) and time.monotonic() < end:
            time.sleep(TICK)
        for lock in self.others:  # only now: the threads that were waited for may need them
            self.held.enter_context(lock)

    def after_in_parent(self) -> None:
        self.forking = False
        self.held.close()

    def after_in_child(self) -> None:
        self.held.close()
        me = threading.get_ident()
        self.lock, self.forking = threading.Lock(), False
        self.threads = {work: thread for work, thread in self.threads.items() if thread == me}
        for owner in list(_owners):
            owner.renew()


_work = _Work()
_owners: WeakSet[Any] = WeakSet()
if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(
        before=_work.before_fork, after_in_parent=_work.after_in_parent, after_in_child=_work.after_in_child
    )


@contextmanager
def whole() -> Generator[None]:
    """Keep other threads from forking during the block. A fork waits for it, and new blocks wait for the fork."""
    token = object()
    try:
        while not _work.begin(token):
            time.sleep(TICK)
        yield
    finally:
        _work.threads.pop(token, None)


def held_by_forks(lock: Any) -> None:
    """Acquire this lock of another library during each fork, so that no other thread holds it then. It is reentrant."""
    _work.others.append(lock)


def in_child(owner: Any) -> None:
    """Call ``owner.renew()`` in each child of a fork while the owner lives, to replace locks that were held."""
    _owners.add(owner)


class WhileBusy:
    """Changes a setting of the process while any thread is inside the block.

    The first thread to enter calls `change`, which returns the setting `before`; the last one to leave calls `restore`
    with that.
    """

    def __init__(self, change: Callable[[], int], restore: Callable[[int], None]) -> None:
        self._change, self._restore = change, restore
        self._lock = threading.Lock()
        self._busy: dict[object, int] = {}
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
            except KeyboardInterrupt:  # _end was interrupted
                self._end(token)
                raise

    def _end(self, token: object) -> None:
        with self._lock:
            if self._busy.pop(token, None) is not None and not self._busy:
                self._restore(self.before)

    def renew(self) -> None:
        """In the child of a fork: the other threads do not exist."""
        self._lock, me = threading.Lock(), threading.get_ident()
        had, self._busy = self._busy, {k: t for k, t in self._busy.items() if t == me}
        if had and not self._busy:
            self._restore(self.before)
