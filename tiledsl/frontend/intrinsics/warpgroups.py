"""`wgmma`: accumulators on their way, products of warpgroups, and the wait that ends them."""

from __future__ import annotations

from typing import Any

from tiledsl import lang
from tiledsl.arch import WARPGROUP, WARPGROUP_WARPS
from tiledsl.frontend.bindings import Pending, View, describe, is_place
from tiledsl.frontend.calls import Call, intrinsic
from tiledsl.frontend.fragments import distributed, is_distributed
from tiledsl.frontend.intrinsics.barriers import needs
from tiledsl.frontend.intrinsics.rings import drain, refuse_in_flight
from tiledsl.frontend.views import as_view, base_origin, memory_name, memory_type
from tiledsl.ir.core import Block, Value
from tiledsl.ir.ops import control, tile, wgmma
from tiledsl.ir.types import BOOL, DType, FragmentType, PendingType, SharedType
from tiledsl.lang import ir_dtype
from tiledsl.lang.warpgroups import Wgmma
from tiledsl.layout.fragments import of_warpgroups
from tiledsl.layout.wgmma import WGMMA, WGMMA_ROWS, WgmmaRow, find_wgmma

pending_class: Any = lang.Pending  # generic, so that its methods are partly unknown to type checkers
Pending.described_by = pending_class

__all__: list[str] = []

OPERANDS = ("swizzle_128b", "swizzle_64b", "swizzle_32b")
"""Layouts of tiles that the instruction reads."""


@intrinsic(Wgmma.accumulator)
def _accumulator(call: Call) -> Pending:
    what = "wgmma.accumulator()"
    needs(call, "wgmma", what)
    dtype, shape = ir_dtype(call["dtype"]), call["shape"]
    known = tuple(dict.fromkeys(row.acc for row in WGMMA))
    if dtype is None or dtype.name not in known:
        shown = dtype.name if dtype is not None else describe(call["dtype"])
        raise call.error(f"{what} of {shown}", f"products are added up in {', '.join(known)}")
    dims: tuple[Any, ...] = tuple(shape) if isinstance(shape, (tuple, list)) else ()  # pyright: ignore
    if len(dims) != 2 or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in dims):
        raise call.error(f"{what} has rows and columns, compile-time ints; got {describe(shape)}", "(BM, BN)")
    groups = _warpgroups(call, what)
    widths = next(row for row in WGMMA if row.acc == dtype.name).widths()
    if dims[1] not in widths:
        fix = "make two accumulators side by side" if dims[1] > widths[-1] else f"take {_near(dims[1], widths)}"
        raise call.error(f"{what} of {dims[1]} columns; n is a multiple of 8 up to {widths[-1]}", fix)
    role = call.frame.unit.cooperation.role
    if dims[0] % (WGMMA_ROWS * groups):
        unit = WGMMA_ROWS * groups
        message = f"{what} of {dims[0]} rows for {groups} warpgroups: each has whole blocks of {WGMMA_ROWS} rows"
        raise call.error(message, f"use {-(-dims[0] // unit) * unit} rows, or another number of warpgroups")
    layout = of_warpgroups(groups, role.first if role is not None else 0)
    type_ = distributed(call.frame, call.node, dtype, dims, layout, what)
    value = call.builder.value(wgmma.Begin(type=PendingType(type_)))
    value.name = "acc"
    return Pending(value, False)


def _near(n: int, widths: tuple[int, ...]) -> str:
    below, above = [w for w in widths if w < n], [w for w in widths if w > n]
    return " or ".join(str(w) for w in (*below[-1:], *above[:1]))


def _warpgroups(call: Call, what: str) -> int:
    """How many warpgroups are here: those of the role, else of the block."""
    unit = call.frame.unit
    role = unit.cooperation.role
    if role is not None:
        if role.one_thread:
            raise call.error(
                f"{what} in {role.shown}, whose body one thread runs", "a role without threads=1 multiplies"
            )
        return role.warps // WARPGROUP_WARPS
    if unit.threads is None:
        raise call.error(
            f"{what} before threads(): who holds it is not known", "call threads(...) first, or use a role"
        )
    count = 1
    for extent in unit.threads:
        count *= extent
    if count % WARPGROUP:
        fix = f"use a multiple of {WARPGROUP} threads"
        raise call.error(f"{what} in a block of {count} threads, which are no whole warpgroups of {WARPGROUP}", fix)
    return count // WARPGROUP


# -- products --------------------------------------------------------------------------------------


@intrinsic(lang.wgmma)
def _wgmma(call: Call) -> Pending:
    what = "wgmma()"
    needs(call, "wgmma", what)
    acc: Any = call["acc"]
    if not isinstance(acc, Pending):
        fix = "acc = wgmma.accumulator((BM, BN), f32)"
        if is_distributed(acc):
            fix = "what wait() gave is complete; begin a new accumulator, and add the two when it is: " + fix
        raise call.error(f"{what} adds to an accumulator on its way, acc is {describe(acc)}", fix)
    type_ = acc.type
    a, b = call["a"], _operand(call, "b", what)
    from_registers = is_distributed(a)
    a_view = None if from_registers else _operand(call, "a", what)
    a_type: Any = a.type if a_view is None else memory_type(a_view)
    row = _row(call, what, a_type.dtype, memory_type(b).dtype, type_.dtype)
    a_dims: tuple[Any, ...] = a_type.dims if a_view is None else a_view.dims
    k = _inner(call, what, row, a_dims, b.dims, type_.dims)
    if a_view is None:
        _check_registers(call, what, a_type, type_)
    else:
        _check_axes(call, what, "a", a_view, row, along=1)
    _check_axes(call, what, "b", b, row, along=0)
    if type_.dims[1] not in row.widths():
        raise call.error(f"{what}: {row} has no n of {type_.dims[1]}", f"take {_near(type_.dims[1], row.widths())}")
    if from_registers:
        refuse_in_flight(call)
    left = [a] if a_view is None else [a_view.base, *base_origin(call.frame, a_view)]
    axes: dict[str, Any] = {"a_axes": () if a_view is None else a_view.axes, "b_axes": b.axes}
    started = acc.started if isinstance(acc.started, Value) else call.builder.constant(acc.started, BOOL)
    op = wgmma.Mma(acc.value, started, *left, b.base, *base_origin(call.frame, b), k=k, **axes)
    value = call.builder.value(op)
    value.name = "acc"
    return Pending(value, True)


def _operand(call: Call, name: str, what: str) -> View:
    value = call[name]
    if not is_place(value) or not isinstance(memory_type(value), SharedType):
        which = "a shared tile, or a fragment in the layout acc.a," if name == "a" else "a shared tile"
        raise call.error(f"{what} takes {which} as {name}, got {describe(value)}", "pass a view of one: s.a, s.b.T")
    view = as_view(value)
    if view.rank != 2:
        fix = "a number drops an axis, as in S[stage, :, :]"
        raise call.error(f"{what} takes rows and columns, {name} has {view.rank} axes", fix)
    alloc = view.base.op
    assert isinstance(alloc, tile.SharedAlloc)
    if alloc.layout not in OPERANDS:
        shown = "the layout that the compiler chooses" if alloc.layout == "auto" else f"the layout {alloc.layout}"
        fix = f"give it one that wgmma reads: layout={', '.join(OPERANDS)}"
        raise call.error(f"{what}: {memory_name(view)} has {shown}", fix)
    return view


def _row(call: Call, what: str, a: DType, b: DType, acc: DType) -> WgmmaRow:
    row = find_wgmma(a.name, b.name, acc.name)
    if row is None:
        known = dict.fromkeys(r.acc for r in WGMMA if (r.a, r.b) == (a.name, b.name))
        pairs = dict.fromkeys(f"{r.a} x {r.b}" for r in WGMMA)
        fix = f"{a} x {b} goes into {', '.join(known)}" if known else f"operands are {', '.join(pairs)}"
        raise call.error(f"{what}: there is no product of {a} x {b} into {acc}", fix)
    return row


def _inner(call: Call, what: str, row: WgmmaRow, a: tuple[Any, ...], b: tuple[Any, ...], acc: tuple[int, ...]) -> int:
    """The k of the product, of operands whose shapes fit."""
    (m, k), (k2, n) = a, b
    if (m, n) != acc or k != k2:
        shapes = f"{m} x {k} times {k2} x {n} into {acc[0]} x {acc[1]}"
        fix = (
            "a has as many columns as b has rows; S.T turns a tile"
            if k != k2
            else "a has the rows of acc, b its columns"
        )
        raise call.error(f"{what} of {shapes}", fix)
    if k % row.k:
        raise call.error(f"{what}: k is {k}, one instruction takes {row.k}", f"make it {-(-k // row.k) * row.k}")
    return k


def _check_registers(call: Call, what: str, type_: FragmentType, acc: FragmentType) -> None:
    wanted = acc.held_as.a
    if type_.layout != wanted:
        fix = "load_matrix(As, acc.a), or convert(x, acc.a) where each thread holds what it needs"
        raise call.error(f"{what} with a held as {type_.layout}, for this acc it is {wanted}", fix)


def _check_axes(call: Call, what: str, name: str, view: View, row: WgmmaRow, along: int) -> None:
    """Does the operand's axis `along`, which is k, lie along the tile's rows, or may the dtype be turned?"""
    type_ = memory_type(view)
    inner = type_.rank - 1
    if inner not in view.axes:
        message = f"{what}: {name} is a view without the axis along which {memory_name(view)} has its rows"
        raise call.error(message, "index the other axes only: S[stage, :, :]")
    if view.axes[along] != inner and row.bits != 16:
        message = f"{what} of {type_.dtype}: along the rows of {memory_name(view)} lies {'mn'[name == 'b']}, not k"
        raise call.error(message, "only 16-bit operands are turned: store the tile the other way round")


# -- the end ---------------------------------------------------------------------------------------


@intrinsic(pending_class.wait)
def _wait(call: Call) -> Value:
    acc: Pending = call["self"]
    builder = call.builder
    fragment = builder.value(wgmma.Wait(acc.value, pending=0, finish=True))
    drain(call)
    if acc.started is True:
        return fragment
    if acc.started is False:
        return _zero(call, acc.type)
    return _or_zero(call, acc, fragment)


def _zero(call: Call, type_: FragmentType) -> Value:
    return call.builder.value(tile.Pack(call.builder.constant(type_.dtype.python(0), type_.dtype), type=type_))


def _or_zero(call: Call, acc: Pending, fragment: Value) -> Value:
    """The sum, of no products 0: a branch costs nothing, a select would cost an instruction for each element."""
    blocks: list[Block] = []
    for value in (lambda: fragment, lambda: _zero(call, acc.type)):
        with call.frame.into(Block()) as block:
            call.builder.add(control.Yield(value()))
            blocks.append(block)
    return call.builder.value(control.If(acc.started, blocks=blocks, likely=True))
