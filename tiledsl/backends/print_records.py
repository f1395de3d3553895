"""Lines of print(): the record that a thread of a GPU leaves of one, and the text that one is anywhere.

Threads write to a ring of records in memory of the host, which reads them in the order of their tickets. The counters
are the GPU's, in the module's `LINES`: a thread first reserves a record, which it gets if fewer than `CAPACITY` are
taken and unread, and only then draws the ticket that says which one. So each ticket has a record and is written: none
is skipped, and none is overwritten before it was read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tiledsl.ir.types import DTYPES

if TYPE_CHECKING:
    from tiledsl.ir.core import Kernel
    from tiledsl.ir.ops import debug

LINES, PRINTS = "$lines", "$prints"
"""Variables of a module whose kernel prints. `LINES` is four words: the address of the ring (0 for none), the bytes of
a record, records reserved, tickets drawn. `PRINTS` says what the records mean."""

CAPACITY = 1 << 15
"""Records of a ring; a power of two."""

WORD = 8
LOST, RECORDS = 64, 128
"""Bytes into the ring. Its first word is how many records were read, which the host writes; the lines that found no
room are counted at `LOST`, in a cache line of their own; at `RECORDS` the records begin."""

SITE, TIME, OPERANDS = WORD, 2 * WORD, 3 * WORD
"""Bytes into a record. Its first word, written last, is its ticket + 1. Then come which print() it is, when it was (of
the GPU's clock, in ns), and the bits of each operand in a word of its own."""


def record_bytes(operands: int) -> int:
    return OPERANDS + WORD * operands


def encode_prints(kernel: Kernel, prints: Sequence[debug.Print]) -> bytes:
    """The content of `PRINTS`."""
    sites = [[p.format, [str(v.type) for v in p.operands]] for p in prints]
    operands = max(len(p.operands) for p in prints)
    return json.dumps({"kernel": kernel.name, "bytes": record_bytes(operands), "sites": sites}).encode()


def line_text(format_: str, values: Iterable[Any]) -> str:
    """What print() prints of `values`, NumPy scalars: floats with the digits that identify them, as in Python.

    Not by `str.format`: braces of the user's own text stay as they are.
    """
    first, *rest = format_.split("{}")
    return first + "".join(str(value) + part for value, part in zip(values, rest, strict=True))


class Records:
    """What the records of one module mean, read from its `PRINTS`. `kernel`: its name; `size`: bytes of a record."""

    def __init__(self, told: bytes) -> None:
        from tiledsl.ir.semantics import numpy_dtype  # here: it loads NumPy

        table = json.loads(told)
        self.kernel: str = table["kernel"]
        self.size: int = table["bytes"]
        self._sites = [(text, [numpy_dtype(DTYPES[name]) for name in names]) for text, names in table["sites"]]

    @property
    def ring_bytes(self) -> int:
        return RECORDS + CAPACITY * self.size

    def place(self, ticket: int) -> int:
        """Where in the ring the record with this ticket is, in bytes."""
        return RECORDS + ticket % CAPACITY * self.size

    def text(self, record: bytes) -> str:
        import numpy

        format_, dtypes = self._sites[int.from_bytes(record[SITE:TIME], "little")]
        values = (numpy.frombuffer(record, dtype, 1, record_bytes(i))[0] for i, dtype in enumerate(dtypes))
        return line_text(format_, values)
