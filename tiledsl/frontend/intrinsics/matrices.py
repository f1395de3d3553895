"""Matrix fragments: their layouts, loads and stores, products, conversions and coordinates."""

from __future__ import annotations

from typing import Any

from tiledsl import lang
from tiledsl.frontend.bindings import (
    LanguageObject,
    View,
    contains_value,
    describe,
    is_fragment,
    is_int,
    is_place,
    positive_ints,
)
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.fragments import EXAMPLE, distributed, is_distributed
from tiledsl.frontend.intrinsics.roles import refuse_in_role
from tiledsl.frontend.intrinsics.tiles import add_copy, bytes_at_once, destination
from tiledsl.frontend.views import base_origin, memory_name, memory_type, unit_axis
from tiledsl.ir.core import Value
from tiledsl.ir.ops import gpu, matrix, tile
from tiledsl.ir.types import BOOL, F32, INDEX, DType, FragmentType, SharedType
from tiledsl.lang.matrices import Product
from tiledsl.layout.fragments import FragmentLayout, converted
from tiledsl.layout.mma import TABLE, MmaRow, find_row, rows_of
from tiledsl.passes.distribute.matrix_map import widths

_fragment_class: Any = lang.Fragment
OPERAND_NAMES = {"a": "left operand", "b": "right operand", "acc": "accumulator"}


# -- layouts ---------------------------------------------------------------------------------------


@intrinsic(Product.acc, Product.a, Product.b)
def _layout(call: Call) -> FragmentLayout:
    warps: Any = call["warps"]
    pair, is_tuple = positive_ints(warps), type(warps) is tuple
    if not is_tuple or pair is None or len(pair) != 2:
        shown = str(warps) if is_tuple and not contains_value(warps) else describe(warps)
        fix = "two positive compile-time ints, the warps along m and along n: warps=(2, 2)"
        raise call.error(f"warps= is {shown}", fix)
    method: Any = call.callee
    return method(call["self"], warps)


def _held(call: Call, name: str) -> tuple[Value, FragmentType, FragmentLayout]:
    """An argument that is a fragment with a layout: the value, its type and its layout."""
    value = call[name]
    if is_distributed(value):
        return value, value.type, value.type.layout
    fix = f"make it with one: fragment(shape, f32, {EXAMPLE})"
    if isinstance(value, LanguageObject):
        fix = value.fix
    elif is_place(value):
        fix = "load it: load_matrix(As[:, kk], acc.a)"
    elif is_fragment(value) and call.callee is not lang.mma:
        fix = f"{fix}; a thread's own is written with t.store(i, j, x) or t.put(i, j, x)"
    raise call.error(f"{call.what} takes a fragment with a layout as {name}, got {describe(value)}", fix)


# -- loads and stores ------------------------------------------------------------------------------


def _check_matrix_side(call: Call, view: View, type_: FragmentType, instead: str) -> None:
    """Can 8 x 8 matrices be moved between this view and fragments of this type?"""
    what, layout, dtype, memory = call.what, type_.held_as, type_.dtype, memory_type(view)
    if not isinstance(memory, SharedType):
        fix = f"copy it to a shared tile first, or {instead}"
        raise call.error(f"{what} reaches shared memory only, {memory_name(view)} is {memory}", fix)
    if dtype == BOOL or dtype.bits > 32 or (layout.operand == "acc" and dtype.bits != 16):
        which = "accumulators of 16-bit elements" if layout.operand == "acc" else "elements of 8, 16 and 32 bits"
        raise call.error(f"{what} of {dtype} held as {layout}: the instruction moves {which}", instead)
    axis = unit_axis(view)
    if axis is None:
        message = f"{what} goes along the axis of stride 1 of {memory_name(view)}, which this view has dropped"
        raise call.error(message, f"take a view that keeps it, or {instead}")
    if axis != layout.inner and dtype.bits != 16:
        here, there = (("column", "row")[i] for i in (axis, layout.inner))
        message = (
            f"{what} of {dtype} held as {layout}: the elements of a {there} must be contiguous in memory, "
            f"here those of a {here} are, and only 16-bit elements are transposed"
        )
        raise call.error(message, f"store the tile transposed, or {instead}")


@intrinsic(lang.load_matrix, lang.load_fragment)
def _load(call: Call) -> Value:
    view = call.memory("src", axes=2)
    dims, dtype = tuple(n for n in view.dims if isinstance(n, int)), memory_type(view).dtype
    type_ = distributed(call.frame, call.node, dtype, dims, call["layout"], call.what)
    if call.callee is lang.load_matrix:
        _check_matrix_side(call, view, type_, "use load_fragment(src, layout), which reads elements")
        vec = 0
    else:
        vec = _width(call, dtype)
    operands = [view.base, *base_origin(call.frame, view)]
    return call.builder.value(matrix.Load(*operands, type=type_, axes=view.axes, vec=vec))


def _width(call: Call, dtype: DType) -> int:
    """``vec=`` of plain loads and stores, 0 being one element."""
    return dtype.bytes if call["vec"] == 0 else bytes_at_once(call, dtype)


def store_to(call: Call, value: Value, view: View, vec: int) -> None:
    call.builder.add(matrix.Store(value, view.base, *base_origin(call.frame, view), axes=view.axes, vec=vec))


@intrinsic(lang.store_matrix)
def _store_matrix(call: Call) -> None:
    value, type_, _ = _held(call, "fragment")
    view = destination(call, "dst", type_)
    instead = "use store(x, dst), which writes elements"
    if type_.dtype.bits != 16:
        raise call.error(f"{call.what} of {type_.dtype} elements: the instruction moves those of 16 bits", instead)
    _check_matrix_side(call, view, type_, instead)
    store_to(call, value, view, 0)


@intrinsic(lang.store)
def _store(call: Call) -> None:
    value, type_, _ = _held(call, "fragment")
    if call["via"] is not None:
        _staged_store(call, value, type_)
        return
    view = destination(call, "dst", type_)
    store_to(call, value, view, _width(call, type_.dtype))


def _staged_store(call: Call, value: Value, type_: FragmentType) -> None:
    """``store(x, dst, via=S)``: through a shared tile, from which whole rows are copied."""
    refuse_in_role(call, "store_tma(x, C[m, n], via=...), or store() without via=", "store() with via=")
    via, dst = destination(call, "via", type_, SharedType), destination(call, "dst", type_)
    via.base.name = via.base.name or "via"
    vec = 16 if call["vec"] == 0 else _width(call, type_.dtype)
    # Others may still read what `via` lies over.
    call.builder.add(gpu.Barrier())
    store_to(call, value, via, widths(type_, unit_axis(via))[-1])
    call.builder.add(gpu.Barrier())
    add_copy(call, tile.Copy, via, dst, vec)


# -- products --------------------------------------------------------------------------------------


@intrinsic(lang.mma)
def _mma(call: Call) -> Value:
    a, a_type, _ = _held(call, "a")
    b, b_type, _ = _held(call, "b")
    acc, type_, layout = _held(call, "acc")
    if layout.operand != "acc":
        message = f"mma() adds to an accumulator, acc is held as {layout}, a {OPERAND_NAMES[layout.operand]}"
        raise call.error(message, f"make acc with {layout.acc}")
    _check_product(call, layout, a_type.dtype, b_type.dtype, type_.dtype)
    check_held(call, "a", a_type, layout.a)
    check_held(call, "b", b_type, layout.b)
    check_product_shapes(call, a_type.dims, b_type.dims, type_.dims)
    return call.builder.value(matrix.Mma(a, b, acc))


def check_held(call: Call, name: str, operand: FragmentType, wanted: FragmentLayout) -> None:
    """Does the accumulator take an operand, `name` being "a" or "b", as it is held?"""
    if operand.layout == wanted:
        return
    fix = f"load it with acc.{name}: load_matrix(..., acc.{name})"
    if operand.held_as.operand == "acc":
        fix = f"convert(x, acc.{name}) where each thread holds what it needs, else store it to a shared tile and {fix}"
    raise call.error(f"{call.what} with {name} held as {operand.layout}, for this acc it is {wanted}", fix)


def check_product_shapes(call: Call, a: tuple[Any, ...], b: tuple[Any, ...], acc: tuple[int, ...]) -> None:
    (m, k), (k2, n) = a, b
    if (m, n) != acc or k != k2:
        shapes = f"{m} x {k} times {k2} x {n} into {acc[0]} x {acc[1]}"
        fix = "a has as many columns as b has rows" if k != k2 else "a has the rows of acc, b its columns"
        raise call.error(f"{call.what} of {shapes}", fix)


def _check_product(call: Call, layout: FragmentLayout, a: DType, b: DType, acc: DType) -> None:
    if find_row(layout.shape, a.name, b.name, acc.name) is not None:
        return
    known = rows_of(a.name, b.name)
    if F32 in (a, b):
        fix = "multiply as tf32, with m16n8k8: x.to(tf32) rounds, x.bitcast(tf32) leaves off the low bits"
    elif known:
        fix = f"{a} x {b} goes {_offer(known)}"
    else:
        fix = f"operands are {_operand_dtypes()}"
    raise call.error(f"there is no product {layout.shape} of {a} x {b} into {acc}", fix)


def _offer(rows: list[MmaRow]) -> str:
    shapes = {row.acc: ", ".join(str(r.shape) for r in rows if r.acc == row.acc) for row in rows}
    return ", or ".join(f"into {acc} with {names}" for acc, names in shapes.items())


def _operand_dtypes() -> str:
    """All pairs of operands, each once, whatever their order."""
    pairs = dict.fromkeys(tuple(sorted((row.a, row.b))) for row in TABLE)
    return ", ".join(f"{a} x {b}" for a, b in pairs)


# -- between layouts -------------------------------------------------------------------------------


@intrinsic(_fragment_class.columns)
def _columns(call: Call) -> Value:
    value, type_, layout = _held(call, "self")
    first, count = call["first"], call["count"]
    if layout.operand != "acc" or layout.warps[1] != 1:
        message = f"{call.what} of a fragment held as {layout}"
        raise call.error(message, "it takes accumulators whose warps are distributed along m alone")
    unit, total = layout.tile[1], type_.dims[1]
    if any(not is_int(n) or n % unit for n in (first, count)):
        shown = ", ".join(describe(n) if contains_value(n) else str(n) for n in (first, count))
        raise call.error(f"{call.what} takes compile-time multiples of {unit}, got {shown}", f"x.columns(0, {unit})")
    if count <= 0 or not 0 <= first <= total - count:
        raise call.error(f"columns {first} to {first + count - 1} of a fragment of {total}", "stay within it")
    return call.builder.value(matrix.Slice(value, columns=(first, count)))


@intrinsic(lang.convert)
def _convert(call: Call) -> Value:
    value, type_, layout = _held(call, "fragment")
    to = distributed(call.frame, call.node, type_.dtype, type_.dims, call["layout"], call.what)
    if converted(layout, to.held_as, to.dims, to.dtype.bits) is None:
        message = f"a thread does not hold all elements of {to.layout} that it needs: they are held as {layout}"
        fix = "go through shared memory: store() the fragment into a tile, barrier(), load_matrix() it"
        raise call.error(message, fix)
    return value if to.layout == layout else call.builder.value(matrix.Convert(value, type=to))


@intrinsic(lang.coordinates)
def _coordinates(call: Call) -> tuple[Value, Value]:
    _, type_, layout = _held(call, "acc")
    if layout.operand != "acc":
        message = f"coordinates() of a fragment held as {layout}, a {OPERAND_NAMES[layout.operand]}"
        raise call.error(message, "they are those of an accumulator")
    places = FragmentType(INDEX, type_.dims, layout)
    rows, columns = (call.builder.value(matrix.Coordinates(type=places, axis=axis)) for axis in (0, 1))
    return rows, columns
