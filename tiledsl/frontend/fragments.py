"""Fragments that the block's threads hold together: their types, and what keeps a layout valid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tiledsl.arch import MOST_REGISTERS, MOST_THREADS
from tiledsl.errors import CompileError, Loc
from tiledsl.frontend.bindings import describe
from tiledsl.frontend.frame import Frame, Unit
from tiledsl.ir.core import Value
from tiledsl.ir.ops.roles import Region
from tiledsl.ir.types import DType, FragmentType
from tiledsl.layout.fragments import FragmentLayout

EXAMPLE = "mma.m16n8k16.acc(warps=(2, 2))"
"""A layout as messages show one."""
_LAYOUTS = f"pass {EXAMPLE}, or acc.a, acc.b or acc.layout of an accumulator; the value of the elements is init=..."


def is_distributed(binding: Any) -> bool:
    """True for a fragment with a layout."""
    return isinstance(binding, Value) and isinstance(binding.type, FragmentType) and binding.type.layout is not None


def distributed(frame: Frame, node: Any, dtype: DType, dims: tuple[int, ...], layout: Any, what: str) -> FragmentType:
    """The type of a fragment of `dims` that the block holds in `layout`; `what` asked for it."""
    if not isinstance(layout, FragmentLayout):
        raise frame.error(node, f"{what} takes a layout of a fragment, got {describe(layout)}", _LAYOUTS, code="C307")
    role = frame.unit.cooperation.role
    if role is not None:
        layout = replace(layout, first=role.first)
    problem = layout.problem(dims, dtype.bits)
    if problem is not None:
        raise frame.error(node, problem.message, problem.fix, code="C307")
    type_ = FragmentType(dtype, dims, layout)
    registers = type_.size // type_.per_register * max(1, dtype.bits // 32)
    if registers > MOST_REGISTERS:
        held = f"{' x '.join(map(str, dims))} {dtype} held as {layout}"
        message = f"{held} is {registers} registers a thread, of which there are {MOST_REGISTERS}"
        raise frame.error(node, message, "spread it over more warps, or make it smaller", code="C308")
    _hold(frame.unit, layout, frame.loc(node))
    return type_


def _hold(unit: Unit, layout: FragmentLayout, loc: Loc) -> None:
    """Compare the layout's threads with the role's or the block's, now or once threads() has been called."""
    role = unit.cooperation.role
    if role is None and not unit.kernel.threads:
        unit.held.append((layout, loc))
    elif wrong := _wrong_threads(unit, role, layout, loc):
        raise wrong


def check_threads(unit: Unit) -> None:
    """Report the fragments that came before threads() and do not fit it."""
    for layout, loc in unit.held if unit.kernel.threads else ():
        if wrong := _wrong_threads(unit, None, layout, loc):
            unit.report(wrong)


def _wrong_threads(unit: Unit, role: Region | None, layout: FragmentLayout, loc: Loc) -> CompileError | None:
    """The error for a layout whose threads are not those of the role, or of the block; None if they are."""
    there = unit.kernel.thread_count
    if role is not None:
        there = 1 if role.one_thread else role.threads
    if layout.threads == there:
        return None
    shown, fix = "the block", f"write threads({layout.threads}), or take another grid of warps"
    if role is not None:
        shown, fix = role.shown, "take another grid of warps, or give the role more or fewer warpgroups"
    elif layout.threads > MOST_THREADS:
        fix = f"a block has at most {MOST_THREADS} threads; take another grid of warps"
    warps = f"{layout.warps[0]} x {layout.warps[1]} warps"
    has = "one thread" if there == 1 else f"{there}"
    return CompileError(
        f"{layout} is held by {layout.threads} threads ({warps}), {shown} has {has}", loc, fix, code="C307"
    )


# -- element by element ----------------------------------------------------------------------------


def joined(frame: Frame, node: Any, types: list[FragmentType], what: str) -> FragmentType:
    """The shape and layout that all the fragments of an operation have; its dtype is the first one's."""
    first = types[0]
    for other in types[1:]:
        if other.dims != first.dims:
            shapes = " and ".join(str(dims) for dims in sorted({first.dims, other.dims}))
            raise frame.error(
                node, f"{what} of fragments of different shapes: {shapes}", "give both one shape", code="C301"
            )
        if other.layout != first.layout:
            fix = "convert(x, y.layout) where each thread holds what it needs, else go through a shared tile"
            if first.layout is None or other.layout is None:
                fix = f"give both one layout: fragment(shape, dtype, {first.layout or other.layout})"
            shown = " and ".join(str(type_.layout or "each thread's own") for type_ in (first, other))
            raise frame.error(node, f"{what} of fragments of different layouts: {shown}", fix, code="C307")
        _require_places(frame, node, first, other.dtype, what)
    return first


def relaid(frame: Frame, node: Any, type_: FragmentType, dtype: DType, what: str) -> FragmentType:
    """The type of the elements of `type_` made `dtype`, each where it was."""
    _require_places(frame, node, type_, dtype, what)
    return FragmentType(dtype, type_.dims, type_.layout)


def _require_places(frame: Frame, node: Any, type_: FragmentType, dtype: DType, what: str) -> None:
    """Where an operand's elements lie depends on their width; an accumulator's do not move."""
    layout = type_.layout
    if layout is None or layout.operand == "acc" or dtype.bits == type_.dtype.bits:
        return
    message = f"{what} of {type_.dtype} elements held as {layout} gives {dtype}, which has other threads hold them"
    fix = f"do it where the width does not matter: on the accumulator, or before it is loaded as {layout}"
    raise frame.error(node, message, fix, code="C307")
