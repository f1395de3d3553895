"""Writes what kernels print on a GPU to `sys.stdout`: a thread does so soon, and every wait for the GPU at once."""

from __future__ import annotations

import atexit
import ctypes
import heapq
import sys
import threading
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from tiledsl.backends.print_records import CAPACITY, LOST, OPERANDS, TIME, Records
from tiledsl.forks import in_child, whole

SECONDS = 0.005
"""Between two polls of the rings."""
NEVER = 1 << 64

Line = tuple[int, str]
"""When it was printed, and its text."""


def _word(address: int) -> Any:
    return ctypes.c_uint64.from_address(address)


@dataclass
class _Ring:
    """The ring of one module, at `address`. `read`: records read so far; `told`: lost lines reported so far."""

    records: Records
    address: int
    read: int = 0
    told: int = 0

    @property
    def waiting(self) -> bool:
        return self._written(self.read) or _word(self.address + LOST).value != self.told

    def _written(self, ticket: int) -> bool:
        return _word(self.address + self.records.place(ticket)).value == ticket + 1

    def take(self, *, last: bool, until: int = NEVER) -> list[Line]:
        """Read the new lines and free their records, up to the first that is incomplete or later than `until`.

        last: no more lines will come, so incomplete ones are skipped.
        """
        taken: list[bytes] = []
        for ticket in range(self.read, self.read + CAPACITY):
            if not self._written(ticket):
                if last:
                    continue
                break
            record = ctypes.string_at(self.address + self.records.place(ticket), self.records.size)
            if _time(record) > until:
                break
            taken.append(record)
            self.read = ticket + 1
        _word(self.address).value = self.read
        return [(_time(record), self.records.text(record)) for record in taken]

    def lost(self) -> str:
        """A message about lines that found no room since the last call, or ""."""
        before, self.told = self.told, _word(self.address + LOST).value
        if self.told == before:
            return ""
        few = f"{self.told - before} lines of print() were lost: the ring holds {CAPACITY}"
        return f"kernel {self.records.kernel}(): {few}"


def _time(record: bytes) -> int:
    return int.from_bytes(record[TIME:OPERANDS], "little")


class Prints:
    """The rings of all modules that print.

    The lock is held until lines are written, so that whoever has waited for a kernel has its lines on `sys.stdout`.
    """

    def __init__(self) -> None:
        self._rings: list[_Ring] = []
        self._lock = threading.RLock()  # sys.stdout may be the user's, whose write() waits for the GPU
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        in_child(self)

    def renew(self) -> None:
        """In the child of a fork: drop the rings, which are in pinned memory of the parent."""
        self._rings, self._lock, self._stop, self._thread = [], threading.RLock(), threading.Event(), None

    def watch(self, ring: int, records: Records) -> None:
        """Show the lines in the ring at this address from now on."""
        self._rings.append(_Ring(records, ring))
        if self._thread is None:
            self._thread = threading.Thread(target=self._poll, name="tiledsl print", daemon=True)
            self._thread.start()
            atexit.register(self.finish)

    def _poll(self) -> None:
        stop = self._stop
        while not stop.wait(SECONDS):
            if any(ring.waiting for ring in self._rings):
                self.show()

    def show(self, *, last: bool = False) -> None:
        """Write the new lines in the order of the GPU's clock; those of one module in the order of their tickets.

        last: no more lines will come, since the context is lost or the process ends.
        """
        if not self._rings:
            return
        with whole(), self._lock:
            rings = list(self._rings)
            first = [ring.take(last=last) for ring in rings]
            # Lines that were printed before these, in a ring that was read earlier.
            until = max((time for lines in first for time, _ in lines), default=-1)
            lines = [a + ring.take(last=last, until=until) for a, ring in zip(first, rings, strict=True)]
            if last:
                self._rings = []
            if any(lines):
                print("\n".join(text for _, text in heapq.merge(*lines, key=itemgetter(0))), flush=True)
            for text in filter(None, (ring.lost() for ring in rings)):
                print(text, file=sys.stderr)

    def finish(self) -> None:
        """At the end of the process: stop the thread, since one that writes during shutdown would crash Python."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.show(last=True)
