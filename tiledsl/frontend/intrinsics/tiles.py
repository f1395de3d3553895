"""Ranges, copies by the whole block, and the outer product of fragments."""

from __future__ import annotations

from tiledsl import lang
from tiledsl.frontend.arithmetic import as_value, elements
from tiledsl.frontend.bindings import Range, Ranges, View, describe, is_place, is_register
from tiledsl.frontend.calls import Call, intrinsic
from tiledsl.frontend.fragments import is_distributed
from tiledsl.frontend.intrinsics.roles import refuse_in_role
from tiledsl.frontend.views import as_view, base_origin, memory_name, memory_type
from tiledsl.ir.core import Value
from tiledsl.ir.ops import tile
from tiledsl.ir.types import INDEX, DType, FragmentType
from tiledsl.layout.orders import BLOCKS, ORDERS

__all__ = ["IN_ROLES", "add_copy", "bytes_at_once", "copied_views", "require_static"]


def _size(call: Call, what: str) -> int:
    size = call["size"]
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        fix = "pass 1 or more" if isinstance(size, int) else "use a const parameter for it"
        raise call.error(f"{what}: a range of a run-time length; the size is {describe(size)}", fix)
    return size


def _index(call: Call, name: str) -> Value | int:
    """An argument that counts elements or tiles: a compile-time int or an index."""
    value = call[name]
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return as_value(value, INDEX, call.frame, call.node, f"{name} of the range")


@intrinsic(lang.tile)
def _tile(call: Call) -> Range:
    size, i = _size(call, "tile()"), _index(call, "i")
    if isinstance(i, int):
        return Range(i * size, size)
    return Range(call.builder.scalar("mul", i, call.builder.constant(size, INDEX), nowrap=call.frame.nowrap), size)


@intrinsic(lang.tiles)
def _tiles(call: Call) -> Ranges:
    return Ranges(_index(call, "extent"), _size(call, "tiles()"), start=_index(call, "start"))


IN_ROLES = "tma_load() in a role with threads=1; or elements, with load_fragment() and store()"


# -- copy ------------------------------------------------------------------------------------------


@intrinsic(lang.copy)
def _copy(call: Call) -> None:
    refuse_in_role(call, "copy()", IN_ROLES)
    src, dst = copied_views(call, "copy()")
    add_copy(call, tile.Copy, src, dst, bytes_at_once(call, memory_type(src).dtype, "copy()"))


def bytes_at_once(call: Call, dtype: DType, what: str) -> int:
    """``vec=`` of what the block moves together: the bytes of one element or of a vector."""
    vec, size = call["vec"], dtype.bytes
    if not isinstance(vec, int) or not (vec == size or (vec in tile.VECTOR_BYTES and vec % size == 0)):
        widths = ", ".join(str(v) for v in sorted({size, *tile.VECTOR_BYTES}) if v % size == 0)
        shown = vec if isinstance(vec, int) else describe(vec)
        raise call.error(f"{what} with vec={shown} on elements of {size} bytes", f"vec counts bytes: {widths}")
    return vec


def require_static(call: Call, view: View, what: str) -> None:
    """An error for a view whose shape only a launch knows."""
    if any(isinstance(extent, str) for extent in view.dims):
        shape = " x ".join(map(str, view.dims))
        fix = "take a part of compile-time shape: A[tile(by, BM), k] with k from tiles(K, BK)"
        raise call.error(f"{what} of {memory_name(view)}, whose shape {shape} is only known at run time", fix)


def copied_views(call: Call, what: str) -> tuple[View, View]:
    """Both sides of a copy: memory of one compile-time shape and one dtype."""
    for name in ("src", "dst"):
        if not is_place(call[name]):
            fix = "pass a Global, a shared tile, or a view of one; fragments move with .load() and .store()"
            if is_distributed(call[name]):
                fix = "a fragment with a layout moves with load_matrix(), load_fragment() and store()"
            raise call.error(f"{what} takes memory, {name} is {describe(call[name])}", fix)
    src, dst = as_view(call["src"]), as_view(call["dst"])
    for view in (src, dst):
        require_static(call, view, what)
    _check_shapes(call, what, src.dims, dst.dims)
    dtype, other = memory_type(src).dtype, memory_type(dst).dtype
    if dtype != other:
        fix = f"convert elements one by one: dst.put(i, j, src.get(i, j).to({other}))"
        raise call.error(f"{what} from {dtype} to {other}: it moves elements as they are", fix)
    return src, dst


def add_copy(call: Call, cls: type[tile.Copy], src: View, dst: View, vec: int) -> tile.Copy:
    """The op of a whole-block copy between two views."""
    operands = [src.base, *base_origin(call.frame, src), dst.base, *base_origin(call.frame, dst)]
    op = cls(*operands, shape=src.dims, src_axes=src.axes, dst_axes=dst.axes, vec=vec)
    call.builder.add(op)
    return op


def _check_shapes(call: Call, what: str, src: tuple[int | str, ...], dst: tuple[int | str, ...]) -> None:
    if src == dst:
        return
    fix = "both sides have one shape"
    if src == dst[::-1]:
        fix = "transpose one side: copy(src, dst.T)"
    elif len(src) != len(dst):
        fix = "an axis indexed with a number is dropped: S[stage, :, :]"
    shapes = " and ".join(" x ".join(map(str, dims)) or "one element" for dims in (src, dst))
    raise call.error(f"{what} between different shapes: {shapes}", fix)


# -- outer product ---------------------------------------------------------------------------------


@intrinsic(lang.outer_fma)
def _outer_fma(call: Call) -> Value:
    acc, a, b, order = call["acc"], call["a"], call["b"], call["order"]
    for name, rank in (("acc", 2), ("a", 1), ("b", 1)):
        value = call[name]
        if not (is_register(value) and isinstance(value.type, FragmentType) and len(value.type.dims) == rank):
            raise call.error(
                f"outer_fma() takes a fragment of {rank} axes as {name}, got {describe(value)}",
                "acc is m x n, a has m elements, b has n",
            )
        if is_distributed(value):
            fix = "mma(a, b, acc) is the product of fragments with a layout"
            raise call.error(f"outer_fma() takes fragments of one thread, {name} is {describe(value)}", fix)
    (m, n), dtype = acc.type.dims, acc.type.dtype
    if (a.type, b.type) != (FragmentType(dtype, (m,)), FragmentType(dtype, (n,))):
        raise call.error(
            f"outer_fma() on acc {acc.type} with a {a.type} and b {b.type}",
            f"for this acc, a is a fragment of {m} and b one of {n} {dtype}",
        )
    if not dtype.is_float:
        raise call.error(f"outer_fma() is not defined for {dtype}", "it takes floats")
    if order not in ORDERS:
        raise call.error(f"no such order: {order!r}", f"use one of {', '.join(ORDERS)}")
    down, across = BLOCKS.get(order, (1, 1))
    if m % down or n % across:
        fix = f"make the extents multiples of {down} and {across}, or use order='serpentine'"
        raise call.error(f"{order!r} goes through blocks of {down} x {across}, and acc is {m} x {n}", fix)
    rows, columns, sums = elements(a, call.frame), elements(b, call.frame), elements(acc, call.frame)
    for i, j in ORDERS[order](m, n):
        sums[i * n + j] = call.builder.scalar("fma", rows[i], columns[j], sums[i * n + j])
    return call.builder.value(tile.Pack(*sums, type=acc.type))
