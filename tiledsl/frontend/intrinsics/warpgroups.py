"""`wgmma`: accumulators in flight, products of warpgroups, and the wait that ends them."""

from __future__ import annotations

from math import prod
from typing import Any

from tiledsl import lang
from tiledsl.arch import WARPGROUP, WARPGROUP_WARPS
from tiledsl.frontend.bindings import Pending, View, describe
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.fragments import distributed, is_distributed
from tiledsl.frontend.intrinsics.matrices import check_held, check_product_shapes, no_product
from tiledsl.frontend.intrinsics.rings import drain
from tiledsl.frontend.views import base_origin, memory_type
from tiledsl.ir.core import Value
from tiledsl.ir.ops import rings, tile, wgmma
from tiledsl.ir.types import BOOL, FragmentType, PendingType, SharedType
from tiledsl.lang.warpgroups import Wgmma
from tiledsl.layout.fragments import of_warpgroups
from tiledsl.layout.wgmma import WGMMA, WGMMA_ROWS, find_wgmma
from tiledsl.passes.checks.hopper import check_operands

pending_class: Any = lang.Pending  # generic, so that its methods are partly unknown to type checkers
Pending.described_by = pending_class


@intrinsic(Wgmma.accumulator)
def _accumulator(call: Call) -> Pending:
    call.needs("wgmma")
    what, dtype = call.what, call.dtype()
    known = tuple(dict.fromkeys(row.acc for row in WGMMA))
    if dtype.name not in known:
        raise call.error(f"{what} of {dtype}", f"products are added up in {', '.join(known)}", code="C503")
    dims, groups = call.extents("shape", 2, "rows and columns: (BM, BN)"), _warpgroups(call)
    unit, columns = WGMMA_ROWS * groups, next(row for row in WGMMA if row.acc == dtype.name).widths()
    if dims[1] not in columns:
        fix = "make two accumulators side by side" if dims[1] > columns[-1] else f"take {_near(dims[1], columns)}"
        raise call.error(f"{what} of {dims[1]} columns; n is a multiple of 8 up to {columns[-1]}", fix, code="C503")
    if dims[0] % unit:
        message = f"{what} of {dims[0]} rows for {groups} warpgroups: each has whole blocks of {WGMMA_ROWS} rows"
        raise call.error(
            message, f"use {-(-dims[0] // unit) * unit} rows, or another number of warpgroups", code="C503"
        )
    type_ = distributed(call.frame, call.node, dtype, dims, of_warpgroups(groups), what)
    return _accumulated(call, wgmma.Begin(type=PendingType(type_)), False)


def _accumulated(call: Call, op: wgmma.Begin | wgmma.Mma, started: bool) -> Pending:
    value = call.builder.value(op)
    value.name = "acc"
    return Pending(value, started)


def _near(n: int, possible: tuple[int, ...]) -> str:
    below, above = [w for w in possible if w < n], [w for w in possible if w > n]
    return " or ".join(str(w) for w in (*below[-1:], *above[:1]))


def _warpgroups(call: Call) -> int:
    """How many warpgroups are here: those of the role, else of the block."""
    role, threads = call.state.role, call.unit.kernel.threads
    if role is not None:
        if role.one_thread:
            message = f"{call.what} in {role.shown}, whose body one thread runs"
            raise call.error(message, "a role without threads=1 multiplies", code="C307")
        return role.warps // WARPGROUP_WARPS
    if not threads:
        message = f"{call.what} before threads(): who holds it is not known"
        raise call.error(message, "call threads(...) first, or use a role", code="C307")
    count = prod(threads)
    if count % WARPGROUP:
        message = f"{call.what} in a block of {count} threads, which are no whole warpgroups of {WARPGROUP}"
        raise call.error(message, f"use a multiple of {WARPGROUP} threads", code="C307")
    return count // WARPGROUP


# -- products --------------------------------------------------------------------------------------


@intrinsic(lang.wgmma)
def _wgmma(call: Call) -> Pending:
    call.needs("wgmma")
    what, a, acc = call.what, call["a"], call["acc"]
    if not isinstance(acc, Pending):
        fix = "acc = wgmma.accumulator((BM, BN), f32); what acc.wait() gave is complete, and can be added to its result"
        raise call.error(f"{what} adds to an accumulator in flight, acc is {describe(acc)}", fix, code="C504")
    type_, b = acc.type, _operand(call, "b")
    a_view = None if is_distributed(a) else _operand(call, "a")
    a_type: Any = a.type if a_view is None else memory_type(a_view)
    a_dims: tuple[Any, ...] = a_type.dims if a_view is None else a_view.dims
    left, right = a_type.dtype, memory_type(b).dtype
    row = find_wgmma(left.name, right.name, type_.dtype.name)
    if row is None:
        raise no_product(call, WGMMA, left, right, f"of {left} x {right} into {type_.dtype}")
    check_product_shapes(call, a_dims, b.dims, type_.dims)
    k = a_dims[1]
    if k % row.k:
        raise call.error(
            f"{what}: k is {k}, one instruction takes {row.k}", f"make it {-(-k // row.k) * row.k}", code="C503"
        )
    if a_view is None:
        check_held(call, "a", a_type, type_.held_as.a)
        _refuse_in_flight(call)
    operands = [a] if a_view is None else [a_view.base, *base_origin(call.frame, a_view)]
    axes: dict[str, Any] = {"a_axes": () if a_view is None else a_view.axes, "b_axes": b.axes}
    started = acc.started if isinstance(acc.started, Value) else call.builder.constant(acc.started, BOOL)
    op = wgmma.Mma(acc.value, started, *operands, b.base, *base_origin(call.frame, b), k=k, **axes)
    product = _accumulated(call, op, True)
    check_operands(op)
    return product


def _refuse_in_flight(call: Call) -> None:
    for around in call.state.slots[-1:]:
        if isinstance(around, rings.Wait) and around.in_flight:
            message = f"wgmma() with a in registers, in ring.use(in_flight={around.in_flight})"
            raise call.error(
                message, "registers that a product reads stay as they are until it ends: in_flight=0", code="C504"
            )


def _operand(call: Call, name: str) -> View:
    fix = "pass a view of one, as s.a or s.b.T" + "; or a fragment in the layout acc.a" * (name == "a")
    return call.memory(name, SharedType, fix, axes=2)


# -- the end ---------------------------------------------------------------------------------------


@intrinsic(pending_class.wait)
def _wait(call: Call) -> Value:
    acc: Pending = call["self"]
    fragment = call.builder.value(wgmma.Wait(acc.value, pending=0, finish=True))
    drain(call)
    if acc.started is True:
        return fragment
    if acc.started is False:
        return _zero(call, acc.type)
    # Of no products it is 0: a branch costs nothing, a select would cost an instruction for each element.
    return call.builder.either(acc.started, [fragment], lambda: [_zero(call, acc.type)], likely=True)[0]


def _zero(call: Call, type_: FragmentType) -> Value:
    return call.builder.value(tile.Pack(call.builder.constant(type_.dtype.python(0), type_.dtype), type=type_))
