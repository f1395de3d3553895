"""Asynchronous copies: at tile level complete at once, at thread level bytes arrive at the wait for their group.

What is sent to another block arrives when its mbarrier is waited for, at both levels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.async_copies import Transfer
from tiledsl.backends.emulator.cohort import Cohort, is_fragment
from tiledsl.backends.emulator.hooks import Ints
from tiledsl.backends.emulator.mbarriers import ENTRY
from tiledsl.backends.emulator.memory import access_index, checked, name_threads
from tiledsl.backends.emulator.rules.barriers import columns_of, remote
from tiledsl.backends.emulator.rules.memory import located, span_of
from tiledsl.backends.emulator.rules.places import Memory, Place, masked, read_place, write_place
from tiledsl.backends.emulator.rules.registry import rule
from tiledsl.backends.emulator.rules.tile import copy
from tiledsl.backends.emulator.spans import Span
from tiledsl.errors import EmulatorError
from tiledsl.ir.ops import async_copy, mem, tma

TOKEN = np.zeros((), np.bool_)
"""Nothing is left to wait for."""


# -- tile level ------------------------------------------------------------------------------------


@rule(async_copy.Copy)
def copy_at_once(c: Cohort, op: async_copy.Copy, *operands: Any) -> Any:
    copy(c, op, *operands)
    return TOKEN


@rule(async_copy.Cp)
def access_at_once(c: Cohort, op: async_copy.Cp, tile: Memory, *operands: Any) -> None:
    rank = op.memory_type.rank
    indices, tensor, start = operands[:rank], operands[rank], operands[rank + 1 :]
    source = Place(c, op, tensor, start, op.source.type, op.vec)
    if not op.guard:
        source.require_inside()
    write_place(Place(c, op, tile, indices, op.memory_type, op.vec), read_place(source))


# -- groups ----------------------------------------------------------------------------------------


@rule(async_copy.CommitGroup, tma.BulkCommit)
def commit(c: Cohort, op: async_copy.CommitGroup | tma.BulkCommit) -> None:
    c.chunk.copies.commit(op, "bulk" if isinstance(op, tma.BulkCommit) else "cp_async", *c.threads())


@rule(async_copy.WaitGroup, tma.BulkWait)
def wait(c: Cohort, op: async_copy.WaitGroup | tma.BulkWait) -> None:
    c.chunk.copies.wait(op, "bulk" if isinstance(op, tma.BulkWait) else "cp_async", *c.threads(), op.pending)


# -- thread level ----------------------------------------------------------------------------------


@rule(mem.CpAsync)
def issue(c: Cohort, op: mem.CpAsync, address: Any, source: Any, *given: Any) -> None:
    """Lanes whose condition holds take part."""
    with masked(c, True if op.condition is None else given[-1]) as some:
        if some:
            _issue(c, op, address, source, op.bytes if op.src_bytes is None else given[0])


def _issue(c: Cohort, op: mem.CpAsync, address: Any, source: Any, count: Any) -> None:
    """Reads now. (PTX ISA: cp.async; both addresses are aligned to the bytes that are copied.)"""
    lanes = c.active()
    size = np.asarray(count, np.int64)
    if (wrong := lanes & ((size < 0) | (size > op.bytes))).any():
        message = f"{op.name} of {op.bytes} bytes reads {int(c.spread(size)[wrong][0])}; {name_threads(c, wrong)}"
        raise EmulatorError(message, op.loc, f"read 0 to {op.bytes} bytes", code="T507")
    dst, src = span_of(c, op, address), span_of(c, op, source, 1)
    data = _read(c, op, src, np.asarray(source, np.int64), size)
    address = np.asarray(address, np.int64)
    access_index(c, op, dst, address, "async", op.bytes // dst.elements.itemsize, until="cp_async")
    blocks, threads = c.threads()
    rows, at = blocks - c.chunk.first, c.spread(address)[lanes][:, None]
    c.chunk.copies.issue(Transfer(op, dst.label, dst.base, rows, threads, rows, at), data[:, None])


def _read(c: Cohort, op: mem.CpAsync, span: Span, address: Ints, size: Ints) -> NDArray[np.uint8]:
    """[active lanes, bytes]: the first `size` bytes from `address`, then zeros."""
    lanes = c.active()
    sizes = c.spread(size)[lanes]
    item = span.elements.itemsize
    elements = np.zeros((len(sizes), op.bytes // item), span.elements.dtype)
    for count in np.unique(sizes[sizes > 0]).tolist():
        vec = -(-count // item)
        with masked(c, size == count):
            index = access_index(c, op, span, address, "read", vec, align=op.bytes, until="cp_async")
        which = sizes == count
        first = c.spread(index)[lanes][which]
        elements[which, :vec] = span.elements[first[:, None] + np.arange(vec)]
    data = elements.view(np.uint8)
    data[np.arange(op.bytes) >= sizes[:, None]] = 0
    return data


# -- to another block ------------------------------------------------------------------------------


@rule(async_copy.Send, mem.Send)
def send(c: Cohort, op: async_copy.Send | mem.Send, *operands: Any) -> None:
    """(PTX ISA: st.async; both addresses are aligned to what is there.)"""
    span, address, rest = located(c, op, 0, operands, op.vec)
    barriers, counts, (rank, *values) = located(c, op, len(operands) - len(rest), rest)
    values = values[0] if is_fragment(values[0]) else values
    lanes, dtype = c.active(), span.elements.dtype
    width = len(values) * dtype.itemsize
    address = checked(c, op, span, address, width, width)
    at = c.spread(checked(c, op, barriers, counts, ENTRY, ENTRY))[lanes]
    data = np.stack([c.spread(np.asarray(value, dtype))[lanes] for value in values], axis=1).view(np.uint8)
    blocks, threads = c.threads()
    owners = blocks - c.chunk.first
    rows = remote(c, op, owners, c.spread(rank)[lanes])
    columns = columns_of(c, op, barriers, rows, at)
    c.chunk.require_running(op, owners, rows)
    sent = Transfer(op, span.label, span.base, owners, threads, rows, c.spread(address)[lanes][:, None])
    c.chunk.copies.load(sent, data[:, None], columns)
