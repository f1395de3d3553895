"""Check what tensor memory access and wgmma ask of tensors and tiles, so that `expand` can rely on it.

The hardware takes tiles in a few layouts, begins where a swizzle's pattern does, and moves boxes along the axis of
stride 1. What cannot be proven is an error. (PTX ISA: cp.async.bulk.tensor, wgmma; CUDA driver API:
cuTensorMapEncodeTiled.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tiledsl.arch import TMA_GRAIN, TMA_MOST_BOX, WARPGROUP_WARPS
from tiledsl.errors import CompileError
from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.ops import tile, tma, wgmma
from tiledsl.ir.types import FragmentType, GlobalType, SharedType
from tiledsl.layout.shared import ROW, ROWS, SPANS, Layout, Paneled
from tiledsl.layout.wgmma import STEP_BYTES
from tiledsl.passes.analysis.called import called, name_of
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.analysis.divisibility import power_of_two_in
from tiledsl.passes.checks.checker import Checker

if TYPE_CHECKING:  # it needs NumPy, which importing the pipeline must not load
    from tiledsl.passes.analysis.active_lanes import ActiveLanes


def check_hopper(kernel: Kernel) -> None:
    """Runs at tile level after unrolling, when indices are as constant as they get."""
    _Checker(kernel).run()


class _Checker(Checker):
    @cached_property
    def lanes(self) -> ActiveLanes:
        from tiledsl.passes.analysis.active_lanes import ActiveLanes
        from tiledsl.passes.analysis.lanes import Lanes

        return ActiveLanes(Lanes(self.kernel))

    def op(self, op: Op) -> None:
        rule = RULES.get(type(op))
        if rule is not None:
            rule(self, op)

    # -- tensor memory access ------------------------------------------------------------------

    def box(self, op: tma.Load | tma.Store) -> None:
        self.tensor(op)
        self.one_thread(op)
        type_, layout = _tile(op.tile)
        name, (rows, columns) = name_of(op.tile), (op.box[axis] for axis in op.axes)
        if type_.rank < 2:
            raise CompileError(f"{called(op)}: {name} has one axis", fix="give it rows and columns")
        if rows > type_.dims[-2] or columns > type_.dims[-1]:
            raise CompileError(
                f"{called(op)} of {rows} x {columns} elements, but {name} has {type_.dims[-2]} x {type_.dims[-1]}",
                fix="make the view as large as the tile, or a part of it",
            )
        if not isinstance(layout, Paneled):
            self.dense(op, type_, layout, columns)
            return
        if columns % layout.width:
            raise CompileError(
                f"{called(op)} of {columns} columns, but with {layout} {name} has panels of {layout.width}",
                fix=f"make it a multiple of {layout.width}{_narrower(layout, columns)}",
            )
        self.begins(op, op.tile, op.place, (ROWS, layout.width), layout)

    def tensor(self, op: tma.Load | tma.Store) -> None:
        type_, name = op.tensor.type, name_of(op.tensor)
        assert isinstance(type_, GlobalType)
        if type_.unit != op.axes[1]:
            along = "no axis of stride 1 in this call" if type_.unit < 0 else f"stride 1 along axis {type_.unit}"
            raise CompileError(
                f"{called(op)} moves along the axis of stride 1, and {name} has {along}, while rows of the tile run "
                f"along axis {op.axes[1]} of it",
                fix="pass a tensor that is contiguous there"
                if type_.unit < 0
                else "turn the tile: give it the axes in the tensor's order, and wgmma() its .T",
            )
        if type_.align < TMA_GRAIN:
            raise CompileError(
                f"{called(op)} needs rows of {name} that are aligned to {TMA_GRAIN} bytes; in this call they are "
                f"to {type_.align}",
                fix=f"pass a tensor whose address and row length are multiples of {TMA_GRAIN} bytes, or copy it to one",
            )
        if type_.rank > 5:
            raise CompileError(
                f"{called(op)} of a tensor of {type_.rank} axes; 5 are possible",
                fix="merge axes of the tensor before the call, with reshape",
            )

    def one_thread(self, op: Op) -> None:
        """A whole warp that executes it would move the box 32 times."""
        mask = self.lanes.reaching(op)
        if mask.unknown or not bool(mask.lanes.all(axis=1).any()):
            return
        raise CompileError(
            f"{called(op)} moves the whole box for each thread that executes it, and {mask.lanes.sum()} threads do",
            fix="let one do it: in a role(..., threads=1), or under an if that is true for one thread",
        )

    def dense(self, op: tma.Load | tma.Store, type_: SharedType, layout: Layout, columns: int) -> None:
        """Without a swizzle a box is a dense array."""
        name = name_of(op.tile)
        if layout != ROW:
            raise CompileError(
                f"{called(op)}: no tensor map describes the layout {layout} of {name}",
                fix=f"use layout={_swizzle_for(type_)} or row_major",
            )
        size = columns * type_.dtype.bytes
        if columns != type_.dims[-1] or columns > TMA_MOST_BOX or size % TMA_GRAIN:
            raise CompileError(
                f"{called(op)} of {columns} columns ({size} bytes) of {name} in row order: it takes all "
                f"{type_.dims[-1]} of the tile, at most {TMA_MOST_BOX}, and a multiple of {TMA_GRAIN} bytes",
                fix=f"use layout={_swizzle_for(type_)}, whose panels it moves one by one",
            )
        strides = layout.strides(type_.dims)
        for index, stride in zip(op.place, strides, strict=True):
            known = self.divisibility.of(index) * power_of_two_in(stride * type_.dtype.bytes)
            if known < tma.TMA_ALIGNMENT:
                raise CompileError(
                    f"{called(op)} begins at a place of {name} that is only known to be a multiple of {known} bytes; "
                    f"{tma.TMA_ALIGNMENT} are needed",
                    fix="begin where the tile does, or at a multiple of more rows",
                )

    # -- products ------------------------------------------------------------------------------

    def product(self, op: wgmma.Mma) -> None:
        acc = op.fragment
        layout = acc.held_as
        if layout.interleaved != WARPGROUP_WARPS or layout.first % WARPGROUP_WARPS:
            raise CompileError(
                f"{called(op)} into {layout}: a warpgroup is warps 0 to 3, 4 to 7 and so on, and deals them its rows",
                fix="make the accumulator with wgmma.accumulator()",
            )
        (m, n), k = acc.dims, op.k
        if isinstance(op.a.type, FragmentType):
            self.registers(op, op.a.type, acc)
        else:
            self.operand(op, op.a, op.a_origin, op.a_axes, (m, k))
        self.operand(op, op.b, op.b_origin, op.b_axes[::-1], (n, k))

    def registers(self, op: wgmma.Mma, type_: FragmentType, acc: FragmentType) -> None:
        if not _is_waited_for(op):
            raise CompileError(
                f"{called(op)} reads its left operand from registers until all products are waited for, which must be "
                "in the same iteration, before the registers get other values",
                fix="wait there for all of them (in_flight=0), or let the left operand come from shared memory",
            )
        if type_.layout != acc.held_as.a or type_.dims != (acc.dims[0], op.k):
            raise CompileError(
                f"{called(op)} takes its left operand from registers as {acc.held_as.a} of {acc.dims[0]} x {op.k}, "
                f"not {type_.layout} of {' x '.join(map(str, type_.dims))}",
                fix="convert() it to the accumulator's layout .a, or load_fragment() it so",
            )

    def operand(
        self, op: wgmma.Mma, memory: Value, origin: list[Value], axes: tuple[int, ...], sizes: tuple[int, int]
    ) -> None:
        """An operand in shared memory. axes: of the tile, that of m or n first, then that of k; sizes: along them."""
        (type_, layout), name, rank = _tile(memory), name_of(memory), len(origin)
        if not isinstance(layout, Paneled):
            raise CompileError(
                f"{called(op)} reads a tile in panels of 128, 64 or 32 bytes, and the layout of {name} is {layout}",
                fix=f"allocate it with layout={_swizzle_for(type_)}",
            )
        if sorted(axes) != [rank - 2, rank - 1]:
            raise CompileError(
                f"{called(op)} takes the last two axes of {name} as rows and columns, not {axes}",
                fix="index the axes before them",
            )
        for axis, size in zip(axes, sizes, strict=True):
            if size > type_.dims[axis]:
                raise CompileError(
                    f"{called(op)} of {size} elements along axis {axis} of {name}, which has {type_.dims[axis]} there",
                    fix="make the tile as large as the operand",
                )
        width = layout.width
        k_major = axes[1] == rank - 1
        if not k_major and type_.dtype.bytes != 2:
            raise CompileError(
                f"{called(op)} reads {type_.dtype} along k only, but the rows of {name} run across it",
                fix="transpose the tile, so that k runs along its rows; 16-bit elements can lie either way",
            )
        if not k_major and sizes[0] % width:
            raise CompileError(
                f"{called(op)} of {sizes[0]} columns of {name}, whose panels have {width}",
                fix=f"make it a multiple of {width}{_narrower(layout, sizes[0])}",
            )
        self.begins(op, memory, origin, (ROWS, _step(origin[-1], sizes[1], layout) if k_major else width), layout)

    def begins(self, op: Op, memory: Value, place: list[Value], units: tuple[int, int], layout: Paneled) -> None:
        """Rows and columns begin at multiples of `units`."""
        for what, index, unit in zip(("row", "column"), place[-2:], units, strict=True):
            known = self.divisibility.of(index)
            if known < unit:
                raise CompileError(
                    f"{called(op)} begins at a {what} of {name_of(memory)} that is only known to be a multiple of "
                    f"{known}; with {layout} it must be one of {unit}",
                    fix=f"begin at {unit} * something",
                )


RULES: dict[type[Op], Callable[[_Checker, Any], None]] = {
    tma.Load: _Checker.box,
    tma.Store: _Checker.box,
    wgmma.Mma: _Checker.product,
}
"""Of the ops by which others than threads reach shared tiles, what each asks for."""


def _is_waited_for(op: wgmma.Mma) -> bool:
    assert op.parent is not None
    ops = op.parent.ops
    return any(isinstance(other, wgmma.Wait) and not other.pending for other in ops[ops.index(op) + 1 :])


def _tile(memory: Value) -> tuple[SharedType, Layout]:
    alloc, type_ = memory.op, memory.type
    assert isinstance(alloc, tile.SharedAlloc) and isinstance(type_, SharedType)
    return type_, alloc.placement


def _step(column: Value, k: int, layout: Paneled) -> int:
    """What a column must be a multiple of where `k` columns of panels are read: they do not cross into another panel
    in the middle, or where they do is known."""
    if integer(column) is not None:
        return STEP_BYTES // layout.element
    return k if layout.width % k == 0 else layout.width


def _swizzle_for(type_: SharedType) -> str:
    """The widest swizzle whose panels the tile's rows are whole numbers of."""
    row = type_.dims[-1] * type_.dtype.bytes
    return next((f"swizzle_{span}b" for span in SPANS if row % span == 0), f"swizzle_{SPANS[0]}b")


def _narrower(layout: Paneled, columns: int) -> str:
    fits = [span for span in SPANS if columns * layout.element % span == 0]
    return f", or use swizzle_{fits[0]}b" if fits else ""
