"""Expand: mbarriers, tensor memory access and wgmma; the only place where descriptors are computed.

- A box becomes one `mem.tma_load` or `mem.tma_store` a panel, and names its tensor map by number.
- A product becomes one `ptx.wgmma` for each step of k and each block of 64 rows that the warpgroup has. Descriptors
  have one variable part for each operand, the address where it begins; steps, blocks and panels are constants.
- A pending accumulator is its registers, which nothing touches from the first product to the wait that finishes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tiledsl.arch import TMA_GRAIN, TMA_MOST_BOX, WARPGROUP_WARPS
from tiledsl.ir.abi import INDEX32_LIMIT
from tiledsl.ir.core import Op, Value
from tiledsl.ir.ops import async_copy, barriers, gpu, mem, tile, tma, wgmma
from tiledsl.ir.ops import warp as warp_ops
from tiledsl.ir.tensor_maps import TensorMap
from tiledsl.ir.types import BOOL, DTYPES, I32, U32, FragmentType
from tiledsl.layout.shared import ROWS, Paneled
from tiledsl.layout.wgmma import STEP_BYTES, WGMMA_ROWS
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.lower.addresses import pointer_to
from tiledsl.passes.lower.expander import Expander, Rule
from tiledsl.passes.lower.within import vector

UNUSED_LEADING = 16
"""The leading byte offset where an operand is one panel along k: the hardware takes it for 1. (PTX ISA: wgmma.)"""


# -- mbarriers -------------------------------------------------------------------------------------


def _mbarrier(x: Expander, op: barriers.MbarrierOp) -> None:
    x.b.add(type(op)(_barrier_at(x, op, op.place), *x.all(op.more), **op.attrs))


def _barrier_at(x: Expander, op: Op, place: Sequence[Value]) -> Value:
    memory, *indices = place
    return x.address(op, memory, indices, (1,) * len(indices))


def _send(x: Expander, op: async_copy.Send) -> None:
    to = x.address(op, op.memory, op.indices, vector(op.memory_type, op.vec))
    x.b.add(mem.Send(to, _barrier_at(x, op, op.mbarrier), x.one(op.rank), *x.mapping[op.value], vec=op.vec))


# -- tensor memory access --------------------------------------------------------------------------


def _box(x: Expander, op: tma.Load | tma.Store) -> None:
    """The box lies in its tile; that of the tensor may lie across its edges."""
    x.require_within(op, op.tile, op.place, (*[1] * (len(op.place) - 2), op.rows, op.columns))
    mbarrier = [_barrier_at(x, op, op.mbarrier)] if isinstance(op, tma.Load) else []
    for piece in _pieces(op):
        pointer, at = _ends(x, op, piece)
        number = x.tensor_map(piece.map)
        if isinstance(op, tma.Load):
            operands = [pointer, *mbarrier, *at, *x.all(op.receivers)]
            x.b.add(tma.MapLoad(*operands, map=number, multicast=bool(op.multicast), hint=op.hint))
        else:
            x.b.add(tma.MapStore(pointer, *at, map=number))


class _Piece(NamedTuple):
    """A part of a box that begins `row` and `column` elements into it, and the tensor map that it goes by."""

    map: TensorMap
    row: int
    column: int


def _pieces(op: tma.Load | tma.Store) -> list[_Piece]:
    """What one instruction each moves of the box: one panel, at most 256 rows. (PTX ISA: cp.async.bulk.tensor, box.)"""
    layout = tile.allocation(op.tile).placement
    width, swizzle = (layout.width, layout.span) if isinstance(layout, Paneled) else (op.columns, 0)
    others = [axis for axis in reversed(range(len(op.box))) if axis not in op.axes]
    axes, ones = (*op.axes[::-1], *others), [1] * len(others)
    rows = (op.every, op.first) if isinstance(op, tma.Load) else (1, 0)
    return [
        _Piece(TensorMap(op.tensor.name, axes, (width, count, *ones), swizzle, *rows), row, column)
        for column in range(0, op.columns, width)
        for row, count in _shares(op.rows)
    ]


def _shares(rows: int) -> list[tuple[int, int]]:
    """Where each part of so many rows begins, and how many it has: equal ones, whole swizzle patterns, if possible."""
    parts = -(-rows // TMA_MOST_BOX)
    size = rows // parts if rows % (ROWS * parts) == 0 else min(rows, TMA_MOST_BOX)
    return [(first, min(size, rows - first)) for first in range(0, rows, size)]


def _ends(x: Expander, op: tma.Load | tma.Store, piece: _Piece) -> tuple[Value, list[Value]]:
    """Where a piece begins in shared memory, and its coordinates, the fastest first."""
    *lead, row, column = x.all(op.place)
    indices = [*lead, _moved(x, row, piece.row), _moved(x, column, piece.column)]
    pointer = pointer_to(x.b, x.memories[op.tile], indices, [x.depth(v) for v in op.place])
    shifts, origin = dict(zip(op.axes, (piece.row, piece.column), strict=True)), x.all(op.origin)
    if piece.map.every > 1:
        down, across = op.axes
        before = x.b.scalar("mul", x.memories[op.tensor].strides[down], piece.map.first)
        grain = TMA_GRAIN // tile.allocation(op.tile).type.dtype.bytes
        grains = x.b.scalar("floordiv", x.b.scalar("add", origin[across], before), grain)
        origin[across] = x.b.scalar("mul", grains, grain)
    near = [v if x.index is I32 else _saturated(x, old, v) for old, v in zip(op.origin, origin, strict=True)]
    at = [x.b.cast(_moved(x, near[axis], shifts.get(axis, 0)), I32) for axis in piece.map.axes]
    return pointer, at


def _saturated(x: Expander, old: Value, index: Value) -> Value:
    """Return `index` if it is known to fit a coordinate, else the nearest one that does: it is past the edge, too."""
    least, most = x.b.intervals.of(old)
    if least >= I32.limits[0] and most <= I32.limits[1]:
        return index
    return x.b.scalar("min", x.b.scalar("max", index, -INDEX32_LIMIT), INDEX32_LIMIT)


def _moved(x: Expander, index: Value, by: int) -> Value:
    return x.b.scalar("add", index, by) if by else index


def _prefetch(x: Expander, op: tma.Prefetch) -> None:
    users = [u for u, _ in op.tensor.uses if isinstance(u, (tma.Load, tma.Store)) and u.tensor is op.tensor]
    for described in dict.fromkeys(piece.map for user in users for piece in _pieces(user)):
        x.b.add(tma.MapPrefetch(map=x.tensor_map(described)))


# -- products --------------------------------------------------------------------------------------


def _begin(x: Expander, op: wgmma.Begin) -> None:
    registers = op.type.fragment.registers
    x.give(op.result, x.b.add(wgmma.Registers(dtype=registers[0], count=len(registers))).results)


Operand = Callable[[int, int], list[Value]]
"""What one instruction takes of an operand, by its block of 64 rows and its step of k: a descriptor, or registers."""


def _mma(x: Expander, op: wgmma.Mma) -> None:
    """Steps of k ascend, as the meaning of the product asks; in each, one instruction a block of 64 rows."""
    row, acc = op.row, op.fragment
    blocks = acc.dims[0] // (WGMMA_ROWS * _warpgroups(acc))
    registers = list(x.mapping[op.acc])
    each = len(registers) // blocks
    *left, right = op.shared_operands
    a = _in_shared(x, op, left[0], _warpgroups(acc)) if left else _in_registers(x, op, blocks)
    b = _in_shared(x, op, right, 1)
    attrs: dict[str, Any] = {name: DTYPES[getattr(row, name)] for name in ("a", "b", "acc")}
    attrs |= {"n": acc.dims[1], "turned_a": bool(left) and not left[0].k_major, "turned_b": not right.k_major}
    for k in range(op.k // row.k):
        accumulate = x.b.constant(True, BOOL) if k else x.one(op.accumulate)
        for block in range(blocks):
            held = slice(block * each, (block + 1) * each)
            operands = (accumulate, *a(block, k), *b(0, k), *registers[held])
            registers[held] = x.b.add(wgmma.Instruction(*operands, **attrs)).results
    x.give(op.result, registers)


def _warpgroups(acc: FragmentType) -> int:
    return acc.held_as.warps[0] // WARPGROUP_WARPS


def _warpgroup(x: Expander, acc: FragmentType) -> Value:
    """Number of this warpgroup among those that hold the accumulator."""
    b, layout = x.b, acc.held_as
    warp = b.value(gpu.WarpId(dtype=I32))
    if layout.first:
        warp = b.scalar("sub", warp, layout.first)
    number = b.scalar("floordiv", warp, WARPGROUP_WARPS)
    if x.kernel.thread_count != layout.threads:
        number = b.scalar("mod", number, _warpgroups(acc))
    # Descriptors are in uniform registers: of what each lane computes they would be copied there one by one.
    return b.cast(b.value(warp_ops.Uniform(b.cast(number, U32))), x.index)


def _in_registers(x: Expander, op: wgmma.Mma, blocks: int) -> Operand:
    """A in registers: of each block of rows those of one step of k after the other."""
    words = [x.word(register) for register in x.mapping[op.a]]
    each = len(words) // blocks

    return lambda block, k: words[block * each + 4 * k :][:4]


def _in_shared(x: Expander, op: wgmma.Mma, operand: wgmma.SharedOperand, groups: int) -> Operand:
    """An operand in shared memory, of whose rows of m each of `groups` warpgroups reads its share."""
    memory, origin, axes, size = operand
    layout, type_, element = tile.allocation(memory).placement, operand.type, operand.type.dtype.bytes
    assert isinstance(layout, Paneled), "check-hopper has approved the layout"
    span, sizes = layout.span, dict(zip(axes, (size, op.k), strict=True))
    x.require_within(op, memory, origin, tuple(sizes.get(axis, 1) for axis in range(type_.rank)))
    indices = x.all(origin)
    if groups > 1:
        rows = x.b.scalar("mul", _warpgroup(x, op.fragment), size // groups)
        first = indices[axes[0]]
        indices[axes[0]] = rows if integer(first) == 0 else x.b.scalar("add", first, rows)
    # The hardware permutes what it addresses: descriptors have places as they would be without.
    pointer = pointer_to(x.b, x.memories[memory], indices, permuted=False)
    panel_bytes, transposed = layout.panel_size(type_.dims) * element, not operand.k_major
    column = (integer(indices[-1]) or 0) * element % span

    def descriptor(block: int, k: int) -> list[Value]:
        if transposed:
            advance = k * (STEP_BYTES // element) * span + block * WGMMA_ROWS * element // span * panel_bytes
        else:
            panel, inside = divmod(column + k * STEP_BYTES, span)
            advance = panel * panel_bytes + inside - column + block * WGMMA_ROWS * span
        leading = panel_bytes if transposed else UNUSED_LEADING
        made = wgmma.Descriptor(pointer, advance=advance, leading=leading, stride=ROWS * span, swizzle=span)
        return [x.b.value(made)]

    return descriptor


def _wait(x: Expander, op: wgmma.Wait) -> None:
    """Only what is read afterwards is tied to the wait: a loop's accumulators stay where they are. So are left operands
    in registers, which products read until then."""
    registers = x.all(op.operands) if op.finish else []
    words = [x.word(register) for value in _held_until(op) for register in x.mapping[value]]
    waited = x.b.add(wgmma.WaitGroup(*registers, *words, pending=op.pending)).results
    x.give_each(op.results, waited[: len(registers)] if op.finish else x.all(op.operands))


def _held_until(op: wgmma.Wait) -> list[Value]:
    """The left operands in registers of the products that a wait for all of them is the first one after."""
    if op.pending:
        return []
    ops = op.block.ops
    found: dict[Value, None] = {}
    for other in reversed(ops[: ops.index(op)]):
        if isinstance(other, wgmma.Wait) and not other.pending:
            break
        if isinstance(other, wgmma.Mma) and isinstance(other.a.type, FragmentType):
            found[other.a] = None
    return list(found)


HOPPER_RULES: dict[type[Op], Rule] = {
    **dict.fromkeys(barriers.MbarrierOp.__subclasses__(), _mbarrier),
    async_copy.Send: _send,
    tma.Load: _box,
    tma.Store: _box,
    tma.Prefetch: _prefetch,
    wgmma.Begin: _begin,
    wgmma.Mma: _mma,
    wgmma.Wait: _wait,
}
