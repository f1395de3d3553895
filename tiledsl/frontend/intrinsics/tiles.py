"""Ranges, copies by the whole block, and the outer product of fragments."""

from __future__ import annotations

from typing import Any

from tiledsl import lang
from tiledsl.frontend.arithmetic import elements
from tiledsl.frontend.bindings import Range, Ranges, View, describe, is_fragment
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.fragments import is_distributed
from tiledsl.frontend.intrinsics.roles import refuse_in_role
from tiledsl.frontend.views import base_origin, memory_name, memory_type
from tiledsl.ir.core import Value
from tiledsl.ir.ops import tile
from tiledsl.ir.types import INDEX, DType, FragmentType
from tiledsl.layout.orders import BLOCKS, ORDERS


@intrinsic(lang.tile)
def _tile(call: Call) -> Range:
    size, i = call.integer("size", 1), call.index("i")
    if isinstance(i, int):
        return Range(i * size, size)
    return Range(call.builder.scalar("mul", i, call.builder.constant(size, INDEX), nowrap=call.frame.nowrap), size)


@intrinsic(lang.tiles)
def _tiles(call: Call) -> Ranges:
    return Ranges(call.index("extent"), call.integer("size", 1), start=call.index("start"))


# -- copy ------------------------------------------------------------------------------------------

IN_ROLES = "tma_load() in a role with threads=1; or elements, with load_fragment() and store()"


@intrinsic(lang.copy)
def _copy(call: Call) -> None:
    refuse_in_role(call, IN_ROLES)
    src, dst = copied_views(call)
    add_copy(call, tile.Copy, src, dst, bytes_at_once(call, memory_type(src).dtype))


def bytes_at_once(call: Call, dtype: DType) -> int:
    """``vec=`` of what the block moves together: the bytes of one element or of a vector."""
    return call.width("vec", dtype, sorted({dtype.bytes, *tile.VECTOR_BYTES}))


def copied_views(call: Call) -> tuple[View, View]:
    """Both sides of a copy: memory of one compile-time shape and one dtype."""
    views: list[View] = []
    for name in ("src", "dst"):
        fix = "pass a Global, a shared tile, or a view of one; fragments move with .load() and .store()"
        if is_distributed(call[name]):
            fix = "a fragment with a layout moves with load_matrix(), load_fragment() and store()"
        views.append(call.memory(name, fix=fix))
        call.require_static(views[-1])
    src, dst = views
    _check_shapes(call, src.dims, dst.dims)
    dtype, other = memory_type(src).dtype, memory_type(dst).dtype
    if dtype != other:
        fix = f"convert elements one by one: dst.put(i, j, src.get(i, j).to({other}))"
        raise call.error(f"{call.what} from {dtype} to {other}: it moves elements as they are", fix, code="C203")
    return src, dst


def destination(call: Call, name: str, type_: FragmentType, kind: Any = None) -> View:
    """Where a fragment goes: a view of its shape and dtype."""
    tile_ = f"shared(({', '.join(map(str, type_.dims))}), {type_.dtype}), which may lie over= tiles that are done with"
    fix = f"pass via={tile_}" if name == "via" else ""
    view = call.memory(name, kind, fix, axes=2)
    _check_shapes(call, type_.dims, view.dims)
    dtype = memory_type(view).dtype
    if dtype != type_.dtype:
        message = f"{call.what} of {type_.dtype} elements to {memory_name(view)} of {dtype}"
        raise call.error(message, f"convert it: x.to({dtype})", code="C203")
    return view


def add_copy(call: Call, cls: type[tile.Copy], src: View, dst: View, vec: int) -> tile.Copy:
    """The op of a whole-block copy between two views."""
    operands = [src.base, *base_origin(call.frame, src), dst.base, *base_origin(call.frame, dst)]
    return call.builder.add(cls(*operands, shape=src.dims, src_axes=src.axes, dst_axes=dst.axes, vec=vec))


def _check_shapes(call: Call, src: tuple[int | str, ...], dst: tuple[int | str, ...]) -> None:
    if src == dst:
        return
    fix = "both sides have one shape"
    if src == dst[::-1]:
        fix = "transpose one side: dst.T"
    elif len(src) != len(dst):
        fix = "an axis indexed with a number is dropped: S[stage, :, :]"
    shapes = " and ".join(" x ".join(map(str, dims)) or "one element" for dims in (src, dst))
    raise call.error(f"{call.what} between different shapes: {shapes}", fix, code="C301")


# -- outer product ---------------------------------------------------------------------------------


@intrinsic(lang.outer_fma)
def _outer_fma(call: Call) -> Value:
    acc, a, b = call["acc"], call["a"], call["b"]
    for name, rank in (("acc", 2), ("a", 1), ("b", 1)):
        value = call[name]
        if not is_fragment(value) or is_distributed(value) or len(value.type.dims) != rank:
            message = f"outer_fma() takes one thread's fragment of {rank} axes as {name}, got {describe(value)}"
            fix = "acc is m x n, a has m elements, b has n; mma(a, b, acc) is the product of fragments with a layout"
            raise call.error(message, fix, code="C307")
    (m, n), dtype = acc.type.dims, acc.type.dtype
    if (a.type, b.type) != (FragmentType(dtype, (m,)), FragmentType(dtype, (n,))):
        fix = f"for this acc, a is a fragment of {m} and b one of {n} {dtype}"
        raise call.error(f"outer_fma() on acc {acc.type} with a {a.type} and b {b.type}", fix, code="C301")
    if not dtype.is_float:
        raise call.error(f"outer_fma() is not defined for {dtype}", "it takes floats", code="C204")
    order = call.choice("order", tuple(ORDERS))
    down, across = BLOCKS.get(order, (1, 1))
    if m % down or n % across:
        fix = f"make the extents multiples of {down} and {across}, or use order='serpentine'"
        raise call.error(f"{order!r} goes through blocks of {down} x {across}, and acc is {m} x {n}", fix, code="C301")
    rows, columns, sums = elements(a, call.frame), elements(b, call.frame), elements(acc, call.frame)
    for i, j in ORDERS[order](m, n):
        sums[i * n + j] = call.builder.scalar("fma", rows[i], columns[j], sums[i * n + j])
    return call.builder.value(tile.Pack(*sums, type=acc.type))
