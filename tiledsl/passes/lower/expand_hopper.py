"""Expand: mbarriers, tensor memory access and wgmma; the only place where descriptors are computed.

- A box becomes one `mem.tma_load` or `mem.tma_store` a panel, and names its tensor map by number.
- A product becomes one `ptx.wgmma` for each step of k and each block of 64 rows that the warpgroup has. Descriptors
  have one variable part for each operand, the address where it begins; steps, blocks and panels are constants.
- A pending accumulator is its registers, which nothing touches from the first product to the wait that finishes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tiledsl.arch import TMA_MOST_BOX, WARPGROUP_WARPS
from tiledsl.ir.core import Op, Value
from tiledsl.ir.ops import barriers, gpu, tile, tma, wgmma
from tiledsl.ir.ops import warp as warp_ops
from tiledsl.ir.tensor_maps import TensorMap
from tiledsl.ir.types import BOOL, DTYPES, I32, U32, FragmentType, SharedType
from tiledsl.layout.shared import ROWS, Paneled
from tiledsl.layout.wgmma import STEP_BYTES, WGMMA_ROWS
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.lower.addresses import pointer_to
from tiledsl.passes.lower.expander import Expander, Rule

UNUSED_LEADING = 16
"""The leading byte offset where an operand is one panel along k: the hardware takes it for 1. (PTX ISA: wgmma.)"""


# -- mbarriers -------------------------------------------------------------------------------------


def _mbarrier(x: Expander, op: barriers.MbarrierOp) -> None:
    x.b.add(type(op)(_barrier_at(x, op, op.place), *x.all(op.more), **op.attrs))


def _barrier_at(x: Expander, op: Op, place: Sequence[Value]) -> Value:
    memory, *indices = place
    return x.address(op, memory, indices, (1,) * len(indices))


# -- tensor memory access --------------------------------------------------------------------------


def _tma_load(x: Expander, op: tma.Load) -> None:
    _require_box(x, op)
    mbarrier = _barrier_at(x, op, op.mbarrier)
    blocks = [x.one(op.operands[-1])] if op.multicast else []
    for piece in _pieces(op):
        to, at = _ends(x, op, piece)
        number = x.tensor_map(piece.map)
        x.b.add(tma.MapLoad(to, mbarrier, *at, *blocks, map=number, multicast=bool(op.multicast), hint=op.hint))


def _tma_store(x: Expander, op: tma.Store) -> None:
    _require_box(x, op)
    for piece in _pieces(op):
        source, at = _ends(x, op, piece)
        x.b.add(tma.MapStore(source, *at, map=x.tensor_map(piece.map)))


def _require_box(x: Expander, op: tma.Load | tma.Store) -> None:
    """The box lies in its tile; that of the tensor may lie across its edges."""
    rows, columns = (op.box[axis] for axis in op.axes)
    x.require_within(op, op.tile, op.place, (*[1] * (len(op.place) - 2), rows, columns))


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a box that begins `row` and `column` elements into it, and the tensor map that it goes by."""

    map: TensorMap
    row: int
    column: int


def _pieces(op: tma.Load | tma.Store) -> list[_Piece]:
    """What one instruction each moves of the box: one panel, at most 256 rows. (PTX ISA: cp.async.bulk.tensor, box.)"""
    row_axis, column_axis = op.axes
    rows, columns = op.box[row_axis], op.box[column_axis]
    alloc = op.tile.op
    assert isinstance(alloc, tile.SharedAlloc)
    layout = alloc.placement
    width = layout.width if isinstance(layout, Paneled) else columns
    swizzle = layout.span if isinstance(layout, Paneled) else 0
    others = [axis for axis in reversed(range(len(op.box))) if axis not in op.axes]
    axes = (column_axis, row_axis, *others)
    found: list[_Piece] = []
    for column in range(0, columns, width):
        for row, count in _shares(rows):
            box = (width, count, *(1 for _ in others))
            found.append(_Piece(TensorMap(op.tensor.name, axes, box, swizzle), row, column))
    return found


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
    row_axis, column_axis = op.axes
    shifts = {row_axis: piece.row, column_axis: piece.column}
    origin = x.all(op.origin)
    at = [x.b.cast(_moved(x, origin[axis], shifts.get(axis, 0)), I32) for axis in piece.map.axes]
    return pointer, at


def _moved(x: Expander, index: Value, by: int) -> Value:
    return x.b.scalar("add", index, x.b.constant(by, index.dtype)) if by else index


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
    if isinstance(op.a.type, FragmentType):
        a, transposed_a = _in_registers(x, op, blocks), False
    else:
        a, transposed_a = _in_shared(x, op, op.a, op.a_origin, op.a_axes, acc.dims[0], _warpgroups(acc))
    b, transposed_b = _in_shared(x, op, op.b, op.b_origin, op.b_axes[::-1], acc.dims[1], 1)
    attrs: dict[str, Any] = {name: DTYPES[getattr(row, name)] for name in ("a", "b", "acc")}
    attrs |= {"n": acc.dims[1], "turned_a": transposed_a, "turned_b": transposed_b}
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
        warp = b.scalar("sub", warp, b.constant(layout.first, I32))
    number = b.scalar("floordiv", warp, b.constant(WARPGROUP_WARPS, I32))
    if x.kernel.thread_count != layout.threads:
        number = b.scalar("mod", number, b.constant(_warpgroups(acc), I32))
    # Descriptors are in uniform registers: of what each lane computes they would be copied there one by one.
    return b.cast(b.value(warp_ops.Uniform(b.cast(number, U32))), x.index)


def _in_registers(x: Expander, op: wgmma.Mma, blocks: int) -> Operand:
    """A in registers: of each block of rows those of one step of k after the other."""
    words = [x.word(register) for register in x.mapping[op.a]]
    each = len(words) // blocks

    def registers(block: int, k: int) -> list[Value]:
        first = block * each + 4 * k
        return words[first : first + 4]

    return registers


def _in_shared(
    x: Expander, op: wgmma.Mma, memory: Value, origin: Sequence[Value], axes: Sequence[int], size: int, groups: int
) -> tuple[Operand, bool]:
    """An operand in shared memory, and whether rows of its tile run along m or n instead of k.

    axes: of the tile, along which m or n runs, over `size` elements that `groups` warpgroups share, and along which k.
    """
    alloc, type_ = memory.op, memory.type
    assert isinstance(alloc, tile.SharedAlloc) and isinstance(type_, SharedType)
    layout, element = alloc.placement, type_.dtype.bytes
    assert isinstance(layout, Paneled), "check-hopper has approved the layout"
    span = layout.span
    sizes = dict(zip(axes, (size, op.k), strict=True))
    x.require_within(op, memory, origin, tuple(sizes.get(axis, 1) for axis in range(type_.rank)))
    indices = x.all(origin)
    if groups > 1:  # each begins with its own
        rows = x.b.scalar("mul", _warpgroup(x, op.fragment), x.b.constant(size // groups, x.index))
        first = indices[axes[0]]
        indices[axes[0]] = rows if integer(first) == 0 else x.b.scalar("add", first, rows)
    # The hardware permutes what it addresses: descriptors have places as they would be without.
    pointer = pointer_to(x.b, x.memories[memory], indices, permuted=False)
    panel_bytes, transposed = layout.panel_size(type_.dims) * element, axes[0] == type_.rank - 1
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

    return descriptor, transposed


def _wait(x: Expander, op: wgmma.Wait) -> None:
    """Only what is read afterwards is tied to the wait: a loop's accumulators stay where they are. So are left operands
    in registers, which products read until then."""
    registers = x.all(op.operands) if op.finish else []
    words = [x.word(register) for value in _held_until(op) for register in x.mapping[value]]
    waited = x.b.add(wgmma.WaitGroup(*registers, *words, pending=op.pending)).results
    x.give_each(op.results, waited[: len(registers)] if op.finish else x.all(op.operands))


def _held_until(op: wgmma.Wait) -> list[Value]:
    """The left operands in registers of the products that a wait for all of them is the first one after."""
    assert op.parent is not None
    if op.pending:
        return []
    ops = op.parent.ops
    found: dict[Value, None] = {}
    for other in reversed(ops[: ops.index(op)]):
        if isinstance(other, wgmma.Wait) and not other.pending:
            break
        if isinstance(other, wgmma.Mma) and isinstance(other.a.type, FragmentType):
            found[other.a] = None
    return list(found)


HOPPER_RULES: dict[type[Op], Rule] = {
    **dict.fromkeys(barriers.MbarrierOp.__subclasses__(), _mbarrier),
    tma.Load: _tma_load,
    tma.Store: _tma_store,
    tma.Prefetch: _prefetch,
    wgmma.Begin: _begin,
    wgmma.Mma: _mma,
    wgmma.Wait: _wait,
}
