"""Products of warpgroups. They are computed when issued; what is wrong with reading too early or writing too early is
found by the check of hazards.

At tile level operands are read by index, at thread level by descriptors, as the hardware does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from tiledsl.arch import WARP, WARPGROUP_WARPS
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.hooks import Access, Bools, Ints
from tiledsl.backends.emulator.native.dot import add_terms
from tiledsl.backends.emulator.rules.gpu import whole_warpgroups
from tiledsl.backends.emulator.rules.matrices import (
    Descriptor,
    Multiply,
    held_matrices,
    operand_chunks,
    registers,
)
from tiledsl.backends.emulator.rules.matrix import require_full_warps
from tiledsl.backends.emulator.rules.memory import tile_at
from tiledsl.backends.emulator.rules.places import require_within
from tiledsl.backends.emulator.rules.registry import Condition, condition, rule
from tiledsl.backends.emulator.spans import SharedTile
from tiledsl.errors import EmulatorError
from tiledsl.ir import tensor_core
from tiledsl.ir.core import Op
from tiledsl.ir.ops import wgmma
from tiledsl.ir.semantics import Array, numpy_dtype
from tiledsl.ir.types import DTYPES, DType
from tiledsl.layout.fragments import of_warpgroups
from tiledsl.layout.mma import SHAPES
from tiledsl.layout.shared import CHUNK, ROWS, row_major
from tiledsl.layout.wgmma import WGMMA_ROWS


@condition(wgmma.Mma, wgmma.Instruction, wgmma.Fence, wgmma.Commit, wgmma.Wait, wgmma.WaitGroup)
class _WholeWarpgroups(Condition):
    """All four warps of a warpgroup have come."""

    gathers = True

    def ready(self, c: Cohort, op: Op, *values: Any) -> Bools:
        return whole_warpgroups(c)

    def passed(self, c: Cohort, op: Op, *values: Any) -> None:
        require_full_warps(c, op)

    def missing(self, c: Cohort, op: Op, *values: Any) -> str:
        return "the other warps of the warpgroup, which execute wgmma together"


class _Warpgroups:
    """Those of a cohort, whose warps stand side by side: `rows` of their blocks, `leaders`: their first warps."""

    def __init__(self, c: Cohort) -> None:
        self.c = c
        self.shape = c.shape
        self.rows: Ints = np.repeat(c.blocks - c.chunk.first, c.shape[1])[::WARPGROUP_WARPS]
        self.leaders: Ints = np.broadcast_to(c.warps, c.shape[:2]).ravel()[::WARPGROUP_WARPS].astype(np.int64)

    def uniform(self, op: Op, value: Any, what: str) -> Array:
        """One value a warpgroup."""
        array = np.asarray(value)
        if array.ndim == 0:
            return np.broadcast_to(array, self.rows.shape)
        each = np.broadcast_to(array, (*self.shape[:2], array.shape[2])).reshape(len(self.rows), -1)
        if (each != each[:, :1]).any():
            raise EmulatorError(
                f"{what} of {op.name} differs between threads of a warpgroup", op.loc, "compute it alike", code="T510"
            )
        return each[:, 0]


# -- tile level ------------------------------------------------------------------------------------


@rule(wgmma.Begin)
def begin(c: Cohort, op: wgmma.Begin) -> tuple[Any, ...]:
    return (_anything(op.type.fragment.dtype),) * op.type.fragment.size


@rule(wgmma.Mma)
def multiply(c: Cohort, op: wgmma.Mma, acc: tuple[Any, ...], accumulate: Any, *values: Any) -> tuple[Any, ...]:
    groups, type_ = _Warpgroups(c), op.fragment
    layout = type_.held_as
    count = layout.warps[0] // WARPGROUP_WARPS
    blocks = type_.dims[0] // (WGMMA_ROWS * count)
    first = (groups.leaders - layout.first) // WARPGROUP_WARPS % count * blocks * WGMMA_ROWS
    *left, right = op.shared_operands
    height = blocks * WGMMA_ROWS
    if left:
        a = _read_tile(groups, op, left[0], values, first, height)
    else:
        a = _left_operand(groups, op, values[0], height, op.k)
    b = _read_tile(groups, op, right, values[1 + len(op.a_origin) :], np.zeros_like(first), right.extent)
    return _product(groups, op, a, b, acc, accumulate)


def _read_tile(
    groups: _Warpgroups, op: wgmma.Mma, operand: wgmma.SharedOperand, values: Sequence[Any], first: Ints, count: int
) -> Array:
    """[warpgroups, rows, k] of a tile in row order. first, count: which rows of m or n each warpgroup reads."""
    tile: SharedTile = values[0]
    (along, along_k), dtype, origin = operand.axes, operand.type.dtype, values[1 : 1 + len(tile.dims)]
    counts, strides = [1] * len(tile.dims), row_major(tile.dims)
    counts[along], counts[along_k] = operand.extent, op.k
    require_within(groups.c, op, op.name, tile.label, origin, tile.dims, counts)
    start: Any = sum(groups.uniform(op, i, "an index") * s for i, s in zip(origin, strides, strict=True))
    rows = start[:, None] + (first[:, None] + np.arange(count)) * strides[along]
    offset = rows[:, :, None] + np.arange(op.k) * strides[along_k]
    addresses = tile.offset + offset * dtype.bytes
    return _read(groups, op, tile.label, tile.offset, addresses, dtype.bytes, numpy_dtype(dtype))


# -- thread level ----------------------------------------------------------------------------------


@rule(wgmma.Registers)
def undefined(c: Cohort, op: wgmma.Registers) -> Any:
    return (_anything(op.dtype),) * op.count if op.count > 1 else _anything(op.dtype)


def _anything(dtype: DType) -> Any:
    """What nobody has written: a NaN, two of f16 in a word, a large number of integers. A product that adds to it is
    wrong."""
    return np.array(np.nan if dtype.is_float else 0x7FFF7FFF, numpy_dtype(dtype))


@rule(wgmma.Descriptor)
def describe(c: Cohort, op: wgmma.Descriptor, address: Any) -> Any:
    start = (np.asarray(address, np.int64) >> 4 & 0x3FFF).astype(np.uint64)
    return (start + np.uint64(op.bits)).view(np.int64)


@rule(wgmma.Instruction)
def multiply_registers(
    c: Cohort, op: wgmma.Instruction, accumulate: Any, *values: Any, multiply: Multiply = tensor_core.wgmma
) -> tuple[Any, ...]:
    groups, row = _Warpgroups(c), op.row
    left = len(op.left)
    dtype = numpy_dtype(DTYPES[row.a])
    if op.a_registers:
        a = _left_operand(groups, op, values[:left], WGMMA_ROWS, row.k)
    else:
        a = _described(groups, op, values[0], WGMMA_ROWS, dtype, op.turned_a)
    b = _described(groups, op, values[left], op.n, numpy_dtype(DTYPES[row.b]), op.turned_b)
    return _product(groups, op, a, b, values[left + 1 :], accumulate, multiply)


def _described(
    groups: _Warpgroups, op: wgmma.Instruction, bits: Any, rows: int, dtype: np.dtype[Any], transposed: bool
) -> Array:
    """[warpgroups, rows, k] of the operand that descriptors describe; `rows` run along m or n."""
    described = [Descriptor.of(each) for each in groups.uniform(op, bits, "a descriptor").tolist()]
    wrong = next((each for each in described if not each.begins_pattern), None)
    if wrong is not None:
        raise EmulatorError(
            f"{op.name} of an operand at byte {wrong.start}, which is not in the first row of a pattern of "
            f"{ROWS * wrong.span} bytes",
            op.loc,
            "let operands begin where the swizzle's pattern does",
            code="T510",
        )
    chunks = np.stack([operand_chunks(each, rows, op.row.k, dtype.itemsize, transposed) for each in described])
    tile = tile_at(int(chunks.min()), [*op.left, op.right])
    label, base = ("", 0) if tile is None else (tile.label, tile.offset)
    found = _read(groups, op, label or "shared memory", base, chunks, CHUNK, dtype)
    if transposed:
        found = found.reshape(*chunks.shape, -1).swapaxes(2, 3)
    return found.reshape(len(chunks), rows, -1)


# -- both ------------------------------------------------------------------------------------------


def _product(
    groups: _Warpgroups,
    op: wgmma.Mma | wgmma.Instruction,
    a: Array,
    b: Array,
    held: Sequence[Any],
    accumulate: Any,
    multiply: Multiply = tensor_core.wgmma,
) -> tuple[Any, ...]:
    """``a b + c``, where `held` are the registers of c; without c where `accumulate` is false."""
    layout, dims = of_warpgroups(1), (a.shape[1], b.shape[1])
    sums = held_matrices(layout, dims, held, groups.shape, numpy_dtype(DTYPES[op.row.acc]))[:, 0]
    keep = groups.uniform(op, accumulate, "accumulate")
    if not keep.all():
        sums = np.where(keep[:, None, None], sums, np.zeros((), sums.dtype))
    result = multiply(op.row, a, b, sums, add_terms())
    return registers(layout, result[:, None], groups.shape, np.asarray(held[0]).dtype)


def _left_operand(
    groups: _Warpgroups, op: wgmma.Mma | wgmma.Instruction, values: Sequence[Any], rows: int, k: int
) -> Array:
    """[warpgroups, rows, k] of a left operand in registers."""
    layout = replace(of_warpgroups(1).a, shape=SHAPES[f"m16n8k{op.row.k}"])
    return held_matrices(layout, (rows, k), values, groups.shape, numpy_dtype(DTYPES[op.row.a]))[:, 0]


def _read(
    groups: _Warpgroups, op: Op, label: str, base: int, addresses: Ints, width: int, dtype: np.dtype[Any]
) -> Array:
    """The elements in pieces of `width` bytes, at these places of the blocks' shared memory: [warpgroups, ., .]. Those
    of a piece follow each other along the last axis."""
    chunk, rows = groups.c.chunk, groups.rows
    last, limit = int(addresses.max()) + width - dtype.itemsize, chunk.run.launch.shared_bytes
    if addresses.min() < 0 or last > limit - dtype.itemsize:
        raise EmulatorError(
            f"{op.name} reads byte {last} of shared memory, which has {limit}",
            op.loc,
            "correct the descriptor: its start, and the leading and stride byte offsets",
            code="T510",
        )
    if chunk.watched:
        _tell(groups, op, label, base, addresses)
    pieces = chunk.memory.typed(np.dtype((np.void, width)))
    return pieces.take(chunk.memory.piece(rows[:, None, None], addresses, width)).view(dtype)


def _tell(groups: _Warpgroups, op: Op, label: str, base: int, addresses: Ints) -> None:
    """Let the hooks know which chunks of 16 bytes are read, and by which warpgroups."""
    chunk, rows, leaders = groups.c.chunk, groups.rows, groups.leaders
    at = np.stack([_chunks(of.tobytes(), of.size) for of in addresses])
    count = at.shape[1]
    access = Access(
        op, "fetch", "shared", label, base, at.ravel(), CHUNK,
        np.repeat(rows + chunk.first, count), np.repeat(leaders * WARP, count),
        until="wgmma", run=count, owners=rows + chunk.first,
    )  # fmt: skip
    chunk.hook.on_access(access)


@lru_cache(maxsize=256)
def _chunks(addresses: bytes, count: int) -> Ints:
    return np.unique(np.frombuffer(addresses, np.int64, count) // CHUNK) * CHUNK


@rule(wgmma.Wait, wgmma.WaitGroup)
def wait(c: Cohort, op: wgmma.Wait | wgmma.WaitGroup, *values: Any) -> Any:
    c.chunk.hook.on_wait(op, "wgmma", *c.threads(), op.pending)
    return values if len(values) != 1 else values[0]


@rule(wgmma.Fence)
def fence(c: Cohort, op: wgmma.Fence) -> None:
    c.chunk.hook.on_fence(op, "registers", *c.threads())


@rule(wgmma.Commit)
def commit(c: Cohort, op: wgmma.Commit) -> None:
    c.chunk.hook.on_commit(op, "wgmma", *c.threads())
