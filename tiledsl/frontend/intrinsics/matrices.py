"""Matrix fragments: their layouts, loads and stores, products, conversions and coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiledsl import lang
from tiledsl.errors import CompileError
from tiledsl.frontend.arithmetic import elements
from tiledsl.frontend.bindings import (
    LanguageObject,
    View,
    contains_value,
    describe,
    is_fragment,
    is_int,
    is_place,
)
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.fragments import EXAMPLE, distributed, is_distributed
from tiledsl.frontend.intrinsics.memory import fragment_class
from tiledsl.frontend.intrinsics.roles import refuse_in_role
from tiledsl.frontend.intrinsics.tiles import add_copy, bytes_at_once, destination
from tiledsl.frontend.views import base_origin, memory_name, memory_type, unit_axis
from tiledsl.ir.core import Value
from tiledsl.ir.ops import gpu, matrix, tile
from tiledsl.ir.types import BOOL, F32, INDEX, DType, FragmentType, SharedType
from tiledsl.lang.matrices import Product
from tiledsl.layout.fragments import FragmentLayout, converted
from tiledsl.layout.mma import TABLE, MmaRow, find_row
from tiledsl.layout.wgmma import WgmmaRow
from tiledsl.passes.distribute.matrix_map import widths

OPERAND_NAMES = {"a": "left operand", "b": "right operand"}


# -- layouts ---------------------------------------------------------------------------------------


@intrinsic(Product.acc, Product.a, Product.b)
def _layout(call: Call) -> FragmentLayout:
    method: Any = call.callee
    return method(call["self"], call.extents("warps", 2, "how many are along m and along n: warps=(2, 2)"))


def _held(call: Call, name: str) -> Value:
    """An argument that is a fragment with a layout."""
    value = call[name]
    if is_distributed(value):
        return value
    fix = f"make it with one: fragment(shape, f32, {EXAMPLE})"
    if isinstance(value, LanguageObject):
        fix = value.fix
    elif is_place(value):
        fix = "load it: load_matrix(As[:, kk], acc.a)"
    elif is_fragment(value) and call.callee is not lang.mma:
        fix = f"{fix}; a thread's own is written with t.store(i, j, x) or t.put(i, j, x)"
    raise call.error(f"{call.what} takes a fragment with a layout as {name}, got {describe(value)}", fix, code="C307")


# -- loads and stores ------------------------------------------------------------------------------


def _check_matrix_side(call: Call, view: View, type_: FragmentType, bits: tuple[int, ...], instead: str) -> None:
    """Can 8 x 8 matrices be moved between this view and fragments of this type? bits: of the elements it may have."""
    layout, dtype, memory = type_.held_as, type_.dtype, memory_type(view)
    what, axis = f"{call.what} of {dtype} held as {layout}", unit_axis(view)
    if not isinstance(memory, SharedType):
        fix = f"copy it to a shared tile first, or {instead}"
        raise call.error(f"{call.what} reaches shared memory only, {memory_name(view)} is {memory}", fix, code="C402")
    if dtype == BOOL or dtype.bits not in bits:
        raise call.error(
            f"{what}: the instruction moves elements of {' or '.join(map(str, bits))} bits", instead, code="C505"
        )
    if axis != layout.inner and (axis is None or dtype.bits != 16):
        here, fix = "this view has dropped the axis of stride 1", "take a view that keeps it"
        if axis is not None:
            here = f"here those of a {('column', 'row')[axis]} are, and only 16-bit elements are transposed"
            fix = "store the tile transposed"
        wanted = f"the elements of a {('column', 'row')[layout.inner]} must be contiguous in memory"
        raise call.error(f"{what}: {wanted}, {here}", f"{fix}, or {instead}", code="C505")


@intrinsic(lang.load_matrix, lang.load_fragment)
def _load(call: Call) -> Value:
    view = call.memory("src", axes=2)
    dims, dtype = tuple(n for n in view.dims if isinstance(n, int)), memory_type(view).dtype
    type_ = distributed(call.frame, call.node, dtype, dims, call["layout"], call.what)
    if call.callee is lang.load_matrix:
        bits = (16,) if type_.held_as.operand == "acc" else (8, 16, 32)
        _check_matrix_side(call, view, type_, bits, "use load_fragment(src, layout), which reads elements")
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
    value = _held(call, "fragment")
    view = destination(call, "dst", value.fragment)
    _check_matrix_side(call, view, value.fragment, (16,), "use store(x, dst), which writes elements")
    store_to(call, value, view, 0)


@intrinsic(lang.store)
def _store(call: Call) -> None:
    value = _held(call, "fragment")
    if call["via"] is not None:
        _staged_store(call, value, value.fragment)
        return
    view = destination(call, "dst", value.fragment)
    store_to(call, value, view, _width(call, value.fragment.dtype))


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


def _accumulator(call: Call) -> Value:
    """The argument `acc`."""
    value = _held(call, "acc")
    layout = value.fragment.held_as
    if layout.operand != "acc":
        message = f"{call.what} takes an accumulator, acc is held as {layout}, a {OPERAND_NAMES[layout.operand]}"
        raise call.error(message, f"make acc with {layout.acc}", code="C502")
    return value


# -- products --------------------------------------------------------------------------------------


@intrinsic(lang.mma)
def _mma(call: Call) -> Value:
    a, b, acc = _held(call, "a"), _held(call, "b"), _accumulator(call)
    layout, dtypes = acc.fragment.held_as, [each.fragment.dtype for each in (a, b, acc)]
    if find_row(layout.shape, *(dtype.name for dtype in dtypes)) is None:
        what = f"{layout.shape} of {dtypes[0]} x {dtypes[1]} into {dtypes[2]}"
        raise no_product(call, TABLE, dtypes[0], dtypes[1], what)
    check_held(call, "a", a.fragment, layout.a)
    check_held(call, "b", b.fragment, layout.b)
    check_product_shapes(call, a.fragment.dims, b.fragment.dims, acc.fragment.dims)
    return call.builder.value(matrix.Mma(a, b, acc))


def check_held(call: Call, name: str, operand: FragmentType, wanted: FragmentLayout) -> None:
    """Does the accumulator take an operand, `name` being "a" or "b", as it is held?"""
    if operand.layout == wanted:
        return
    fix = f"load it with acc.{name}: load_matrix(..., acc.{name})"
    if operand.held_as.operand == "acc":
        fix = f"convert(x, acc.{name}) where each thread holds what it needs, else store it to a shared tile and {fix}"
    raise call.error(f"{call.what} with {name} held as {operand.layout}, for this acc it is {wanted}", fix, code="C502")


def check_product_shapes(call: Call, a: tuple[Any, ...], b: tuple[Any, ...], acc: tuple[int, ...]) -> None:
    (m, k), (k2, n) = a, b
    if (m, n) != acc or k != k2:
        shapes = f"{m} x {k} times {k2} x {n} into {acc[0]} x {acc[1]}"
        fix = "a has as many columns as b has rows" if k != k2 else "a has the rows of acc, b its columns"
        raise call.error(f"{call.what} of {shapes}", fix, code="C502")


def no_product(call: Call, rows: Sequence[MmaRow | WgmmaRow], a: DType, b: DType, what: str) -> CompileError:
    """The error for a product that `rows` do not have, with those that they have of its operands."""
    own = [str(row) for row in rows if (row.a, row.b) == (a.name, b.name)]
    fix = f"there are {', '.join(own or dict.fromkeys(f'{row.a} x {row.b}' for row in rows))}"
    if F32 in (a, b):
        fix = "multiply as tf32: x.to(tf32) rounds, x.bitcast(tf32) leaves off the low bits"
    return call.error(f"{call.what}: there is no product {what}", fix, code="C501")


# -- between layouts -------------------------------------------------------------------------------


@intrinsic(fragment_class.columns)
def _columns(call: Call) -> Value:
    value, first, count = _held(call, "self"), call["first"], call["count"]
    layout, total = value.fragment.held_as, value.fragment.dims[1]
    if layout.operand != "acc" or layout.warps[1] != 1:
        message = f"{call.what} of a fragment held as {layout}"
        raise call.error(message, "it takes accumulators whose warps are distributed along m alone", code="C307")
    unit = layout.tile[1]
    if any(not is_int(n) or n % unit for n in (first, count)):
        shown = ", ".join(describe(n) if contains_value(n) else str(n) for n in (first, count))
        raise call.error(
            f"{call.what} takes compile-time multiples of {unit}, got {shown}", f"x.columns(0, {unit})", code="C302"
        )
    if count <= 0 or not 0 <= first <= total - count:
        raise call.error(
            f"columns {first} to {first + count - 1} of a fragment of {total}", "stay within it", code="C303"
        )
    return call.builder.value(matrix.Slice(value, columns=(first, count)))


@intrinsic(fragment_class.registers)
def _registers(call: Call) -> Value:
    value = _held(call, "self")
    own = elements(value, call.frame)
    return call.builder.value(tile.Pack(*own, type=FragmentType(value.fragment.dtype, (len(own),))))


@intrinsic(lang.convert)
def _convert(call: Call) -> Value:
    value = _held(call, "fragment")
    type_, layout = value.fragment, value.fragment.held_as
    to = distributed(call.frame, call.node, type_.dtype, type_.dims, call["layout"], call.what)
    if converted(layout, to.held_as, to.dims, to.dtype.bits) is None:
        message = f"a thread does not hold all elements of {to.layout} that it needs: they are held as {layout}"
        fix = "go through shared memory: store() the fragment into a tile, barrier(), load_matrix() it"
        raise call.error(message, fix, code="C307")
    return value if to.layout == layout else call.builder.value(matrix.Convert(value, type=to))


@intrinsic(lang.coordinates)
def _coordinates(call: Call) -> tuple[Value, Value]:
    type_ = _accumulator(call).fragment
    places = FragmentType(INDEX, type_.dims, type_.layout)
    rows, columns = (call.builder.value(matrix.Coordinates(type=places, axis=axis)) for axis in (0, 1))
    return rows, columns
