"""Check what tensor memory access and wgmma ask of tensors and tiles, so that `expand` can rely on it.

The hardware takes tiles in a few layouts, begins where a swizzle's pattern does, and moves boxes along the axis of
stride 1. What cannot be proven is an error. (PTX ISA: cp.async.bulk.tensor, wgmma; CUDA driver API:
cuTensorMapEncodeTiled.)

`check_box` and `check_operands` look at nothing but an op and its types: the frontend calls them too, as soon as it has
made the op, and reports their errors with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tiledsl.arch import TMA_GRAIN, TMA_MOST_BOX, TMA_MOST_RANK
from tiledsl.errors import CompileError
from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.ops import tile, tma, wgmma
from tiledsl.ir.types import FragmentType, GlobalType
from tiledsl.layout.shared import AUTO, ROW, ROWS, SPANS, Layout, Paneled
from tiledsl.layout.wgmma import STEP_BYTES
from tiledsl.passes.analysis.called import called, name_of
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.analysis.divisibility import power_of_two_in
from tiledsl.passes.checks.checker import Checker, of_each

if TYPE_CHECKING:  # it needs NumPy, which importing the pipeline must not load
    from tiledsl.passes.analysis.active_lanes import ActiveLanes

SWIZZLES = tuple(f"swizzle_{span}b" for span in SPANS)
"""The layouts of shared tiles that TMA writes and wgmma reads."""


def check_hopper(kernel: Kernel) -> None:
    """Runs at tile level after unrolling, when indices are as constant as they get."""
    of_each(kernel.walk(), _Checker(kernel).op)


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

    def box(self, op: tma.Load | tma.Store) -> None:
        layout = check_box(op)
        self.one_thread(op)
        if isinstance(layout, Paneled):
            self.begins(op, op.tile, op.place, (ROWS, layout.width), layout)
            return
        type_ = tile.allocation(op.tile).type
        for index, stride in zip(op.place, layout.strides(type_.dims), strict=True):
            known = self.divisibility.of(index) * power_of_two_in(stride * type_.dtype.bytes)
            if known < tma.TMA_ALIGNMENT:
                raise CompileError(
                    f"{called(op)} begins at a place of {name_of(op.tile)} that is only known to be a multiple of "
                    f"{known} bytes; {tma.TMA_ALIGNMENT} are needed",
                    fix="begin where the tile does, or at a multiple of more rows",
                    code="C405",
                )

    def one_thread(self, op: Op) -> None:
        """A whole warp that executes it would move the box 32 times."""
        mask = self.lanes.reaching(op)
        if mask.unknown or not bool(mask.lanes.all(axis=1).any()):
            return
        raise CompileError(
            f"{called(op)} moves the whole box for each thread that executes it, and {mask.lanes.sum()} threads do",
            fix="let one do it: in a role(..., threads=1), or under an if that is true for one thread",
            code="C405",
        )

    def product(self, op: wgmma.Mma) -> None:
        if isinstance(op.a.type, FragmentType) and not _is_waited_for(op):
            raise CompileError(
                f"{called(op)} reads its left operand from registers until all products are waited for, which must be "
                "in the same iteration, before the registers get other values",
                fix="wait there for all of them (in_flight=0), or let the left operand come from shared memory",
                code="C504",
            )
        for operand, layout in check_operands(op):
            column = operand.origin[-1]
            units = (ROWS, _step(column, op.k, layout)) if operand.k_major else (ROWS, layout.width)
            self.begins(op, operand.tile, operand.origin, units, layout)

    def begins(self, op: Op, memory: Value, place: list[Value], units: tuple[int, int], layout: Paneled) -> None:
        """Rows and columns begin at multiples of `units`."""
        for what, index, unit in zip(("row", "column"), place[-2:], units, strict=True):
            known = self.divisibility.of(index)
            if known < unit:
                raise CompileError(
                    f"{called(op)} begins at a {what} of {name_of(memory)} that is only known to be a multiple of "
                    f"{known}; with {layout} it must be one of {unit}",
                    fix=f"begin at {unit} * something",
                    code="C505",
                )


RULES: dict[type[Op], Callable[[_Checker, Any], None]] = {
    tma.Load: _Checker.box,
    tma.Store: _Checker.box,
    wgmma.Mma: _Checker.product,
}
"""Of the ops by which others than threads reach shared tiles, what each asks for."""


def _is_waited_for(op: wgmma.Mma) -> bool:
    ops = op.block.ops
    return any(isinstance(other, wgmma.Wait) and not other.pending for other in ops[ops.index(op) + 1 :])


def _step(column: Value, k: int, layout: Paneled) -> int:
    """What a column must be a multiple of where `k` columns of panels are read: they do not cross into another panel
    in the middle, or where they do is known."""
    if integer(column) is not None:
        return STEP_BYTES // layout.element
    return k if layout.width % k == 0 else layout.width


# -- one op ----------------------------------------------------------------------------------------


def check_box(op: tma.Load | tma.Store) -> Layout:
    """Raise CompileError for a tensor that TMA does not reach, and for a tile that a box does not fit; the tile's
    layout."""
    _check_tensor(op)
    layout, columns = _layout(op, op.tile, (*SWIZZLES, "row_major")), op.columns
    if isinstance(layout, Paneled):
        _require_panels(op, op.tile, columns, layout)
        return layout
    type_ = tile.allocation(op.tile).type
    size = columns * type_.dtype.bytes
    if columns != type_.dims[-1] or columns > TMA_MOST_BOX or size % TMA_GRAIN:
        row = type_.dims[-1] * type_.dtype.bytes
        swizzle = next((f"swizzle_{span}b" for span in SPANS if row % span == 0), SWIZZLES[0])
        raise CompileError(
            f"{called(op)} of {columns} columns ({size} bytes) of {name_of(op.tile)} in row order: it takes all "
            f"{type_.dims[-1]} of the tile, at most {TMA_MOST_BOX}, and a multiple of {TMA_GRAIN} bytes",
            op.loc,
            f"use layout={swizzle}, whose panels it moves one by one",
            code="C405",
        )
    return layout


def _check_tensor(op: tma.Load | tma.Store) -> None:
    type_, what, name, (down, across) = op.tensor.type, called(op), name_of(op.tensor), op.axes
    assert isinstance(type_, GlobalType)
    if type_.unit != across:
        unit = f"axis {type_.unit} of {name}" if type_.unit >= 0 else f"no axis of {name} in this call"
        message = f"{what} moves along the axis of stride 1, {unit}; along the rows of the tile lies axis {across}"
        fix = "copy it to one that is contiguous along an axis, or use copy()"
        if type_.unit == down:
            fix = f"load it transposed, {name}[...].T to a tile of {op.columns} x {op.rows}, and multiply with S.T"
        raise CompileError(message, op.loc, fix, code="C405")
    every = op.every if isinstance(op, tma.Load) else 1
    if type_.align * every % TMA_GRAIN:
        known = f"are known to be multiples of {type_.align}" if type_.align > 1 else "need not even be aligned"
        known += ", or one is negative," if type_.align == 8 else ""
        message = f"{what}: TMA needs an address and strides that are multiples of {TMA_GRAIN} bytes"
        fix = "pad its rows (a leading dimension in elements of 16 bytes), or choose another way by A.align == 16"
        if every > 1:
            message, fix = f"{message} for every {every} rows", f"every={TMA_GRAIN // type_.align}"
        raise CompileError(f"{message}; those of {name} {known} in this call", op.loc, fix, code="C405")
    if type_.rank > TMA_MOST_RANK:
        message = f"{what} of a tensor of {type_.rank} axes; {TMA_MOST_RANK} are possible"
        raise CompileError(message, op.loc, "merge axes of the tensor before the call, with reshape", code="C405")


def check_ends(op: tma.Store) -> None:
    """Raise CompileError if rows of the tensor may end within 16 bytes, which TMA writes whole (measured on an H200:
    docs/hardware.md). The frontend asks; IR that is written by hand says what it means."""
    type_, name = op.tensor.type, name_of(op.tensor)
    assert isinstance(type_, GlobalType)
    if not type_.whole:
        message = (
            f"{called(op)}: TMA writes whole {TMA_GRAIN} bytes, and the rows of {name} end within some in this call"
        )
        fix = f"choose another way to store, by {name}.whole, or make the extent a multiple of {TMA_GRAIN} bytes"
        raise CompileError(message, op.loc, fix, code="C405")


def check_operands(op: wgmma.Mma) -> list[tuple[wgmma.SharedOperand, Paneled]]:
    """The operands in shared memory, with their layouts. Raises CompileError for one that no descriptor describes."""
    found: list[tuple[wgmma.SharedOperand, Paneled]] = []
    for operand in op.shared_operands:
        name, rank, dtype = name_of(operand.tile), len(operand.origin), operand.type.dtype
        layout = _layout(op, operand.tile, SWIZZLES)
        assert isinstance(layout, Paneled)
        if sorted(operand.axes) != [rank - 2, rank - 1]:
            message = f"{called(op)} takes the last two axes of {name} as rows and columns, not {operand.axes}"
            raise CompileError(message, op.loc, "index the axes before them: S[stage, :, :]", code="C505")
        if not operand.k_major and dtype.bytes != 2:
            message = f"{called(op)} reads {dtype} along k only, but the rows of {name} run across it"
            fix = "store the tile transposed, so that k runs along its rows; 16-bit elements can lie either way"
            raise CompileError(message, op.loc, fix, code="C505")
        found.append((operand, layout))
    return found


def _layout(op: Op, memory: Value, possible: Sequence[str]) -> Layout:
    """The layout of a shared tile, which its author has chosen; an error if it is none of `possible`."""
    alloc = tile.allocation(memory)
    shown = "row_major" if alloc.layout == str(ROW) else alloc.layout
    if shown in possible:
        return alloc.placement
    has = "no layout of its own: the compiler chooses one" if shown == AUTO else f"the layout {shown}"
    fix = f"give it one that {called(op)} takes: shared(..., layout={' or '.join(possible)})"
    raise CompileError(f"{called(op)}: {name_of(memory)} has {has}", op.loc, fix, code="C505")


def _require_panels(op: Op, memory: Value, columns: int, layout: Paneled) -> None:
    if columns % layout.width:
        fits = [swizzle for swizzle, span in zip(SWIZZLES, SPANS, strict=True) if columns * layout.element % span == 0]
        raise CompileError(
            f"{called(op)} of {columns} columns, but with {layout} {name_of(memory)} has panels of {layout.width}",
            op.loc,
            f"make it a multiple of {layout.width}{f', or use {fits[0]}' if fits else ''}",
            code="C505",
        )
