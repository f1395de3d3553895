"""Failed assertions of kernels: each module has a record in pinned memory, which outlives the lost context."""

from __future__ import annotations

import atexit
import ctypes
import sys

from tiledsl.backends.protocol import RECORD_BYTES, describe_failure
from tiledsl.forks import in_child


class Assertions:
    """The records of all modules that assert."""

    def __init__(self) -> None:
        self._records: list[tuple[int, bytes]] = []
        self._told = False
        in_child(self)

    def renew(self) -> None:
        """In the child of a fork: drop the records, which are in pinned memory of the parent."""
        self._records = []

    def watch(self, record: int, sites: bytes) -> None:
        """Read failures of the module with these `ASSERTIONS` from the record at this address."""
        if not self._records:
            atexit.register(self.tell)
        self._records.append((record, sites))

    def failed(self) -> str:
        """Which assertion failed, and where; "" if none did."""
        texts = (describe_failure(sites, ctypes.string_at(at, RECORD_BYTES)) for at, sites in self._records)
        text = next(filter(None, texts), "")
        self._told = self._told or bool(text)
        return text

    def tell(self) -> None:
        """At the end of the process: print a failure that was not reported, as another library got the error."""
        if not self._told and (text := self.failed()):
            print(text, file=sys.stderr)
