"""`tma_load`, and the boxes that TMA moves; `store_tma` is in `stores`."""

from __future__ import annotations

from typing import Any

from tiledsl import lang
from tiledsl.frontend.bindings import Range, View, describe
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.cooperation import Place
from tiledsl.frontend.intrinsics.barriers import mbarrier_given
from tiledsl.frontend.intrinsics.rings import slot_filled
from tiledsl.frontend.intrinsics.tiles import copied_views
from tiledsl.frontend.views import base_origin, memory_name, memory_type, subview
from tiledsl.ir.core import Value
from tiledsl.ir.ops import tma
from tiledsl.ir.types import INDEX, U16, U32, GlobalType, SharedType
from tiledsl.layout.shared import ROWS
from tiledsl.passes.analysis.structure import reached
from tiledsl.passes.checks.hopper import check_box, check_ends


def check_reach(call: Call, tensor: View, shared: View) -> None:
    """An error that says what TMA cannot reach. `copied_views` has compared shapes and dtypes."""
    if not isinstance(memory_type(tensor), GlobalType) or not isinstance(memory_type(shared), SharedType):
        found = " and ".join(f"{memory_name(view)} ({memory_type(view)})" for view in (tensor, shared))
        message = f"{call.what} moves between a Global and a shared tile, this one between {found}"
        raise call.error(message, "use copy()", code="C402")
    type_: Any = memory_type(shared)
    if shared.rank != 2 or type_.rank < 2 or set(shared.axes) != {type_.rank - 2, type_.rank - 1}:
        fix = "a number drops an axis: S[stage, :, :] of a tile of stages, A[batch, m, k] of a tensor"
        raise call.error(
            f"{call.what} takes rows and columns, {memory_name(shared)} is {describe(shared)}", fix, code="C304"
        )


def add_box(call: Call, cls: type[tma.Load | tma.Store], tensor: View, shared: View, *more: Value, **how: Any) -> None:
    """The op that moves between two views that `check_reach` accepts. more, how: its other operands and attributes."""
    rows_first = [shared.axes.index(axis) for axis in sorted(shared.axes)]
    axes = tuple(tensor.axes[i] for i in rows_first)
    extents = dict(zip(tensor.axes, shared.dims, strict=True))
    box = tuple(extents.get(axis, 1) for axis in range(memory_type(tensor).rank))
    places = [[view.base, *base_origin(call.frame, view)] for view in (shared, tensor)]
    op = call.builder.add(cls(*places[0], *places[1], *more, box=box, axes=axes, **how))
    check_box(op)
    if isinstance(op, tma.Store):
        check_ends(op)


@intrinsic(lang.tma_load)
def _tma_load(call: Call) -> None:
    call.needs("tma")
    src, dst = copied_views(call)
    check_reach(call, src, dst)
    hint = call.choice("hint", tma.HINTS)
    barrier = _barrier(call, dst)
    src, dst, mask = _multicast(call, src, dst)
    every = call.integer("every", 1)
    first = call.integer("first", 0, every - 1)
    along = call["multicast"] if mask else ""
    add_box(call, tma.Load, src, dst, *barrier, *mask, hint=hint, multicast=along, every=every, first=first)


def _barrier(call: Call, dst: View) -> list[Value]:
    """The mbarrier at which the bytes count."""
    if call["mbarrier"] is None:
        slot = slot_filled(call, dst)
        if slot is None:
            fix = "write it in `with ring.fill() as s:`, or pass mbarrier=(bars, i), which expects the bytes"
            raise call.error(f"{call.what} needs an mbarrier at which its bytes count", fix, code="C608")
        return slot
    return mbarrier_given(call)


# -- multicast -------------------------------------------------------------------------------------


def _multicast(call: Call, src: View, dst: View) -> tuple[View, View, list[Value]]:
    """This block's share of both views, and the blocks that get it, a u16. Of one block: all of them, and nothing."""
    axis, cluster = call.choice("multicast", ("", "m", "n")), call.state.cluster
    if axis == "":
        return src, dst, []
    what = f"{call.what} with multicast={axis!r}"
    if cluster is None:
        fix = f"work = persistent(tile_schedule(...), cluster=Cluster({axis}=2))"
        raise call.error(f"{what} in a kernel without clusters", fix, code="C406")
    count, here = (cluster.m, cluster.at_m) if axis == "m" else (cluster.n, cluster.at_n)
    if count == 1:
        return src, dst, []
    call.needs("multicast", what)
    if any(isinstance(i, Value) and _depends(i, here) for i in src.origin):
        other = "n" if axis == "m" else "m"
        message = f"{what} of a part of {memory_name(src)} that differs along {axis}"
        raise call.error(
            message, f"blocks along {other} share what depends on {axis} alone: multicast={other!r}", code="C406"
        )
    position = dst.axes.index(min(dst.axes))
    rows: Any = dst.dims[position]
    if rows % (count * ROWS):
        message = f"{call.what}: {rows} rows, of which each of {count} blocks loads its share, whole {ROWS} rows"
        raise call.error(message, f"use a multiple of {count * ROWS} rows, or a smaller cluster", code="C406")
    share: list[Any] = [slice(None), slice(None)]
    share[position] = Range(call.builder.scalar("mul", here, rows // count), rows // count)
    dst, src = (subview(call.frame, call.node, view, share) for view in (dst, src))
    return src, dst, [_mask(call, cluster, axis)]


def _depends(value: Value, on: Any) -> bool:
    """Is `value` computed from `on`? What loops and branches give is not."""
    return on in reached([value], lambda here: here.op.operands if here.op is not None else ())


def _mask(call: Call, cluster: Place, axis: str) -> Value:
    """Bits of the blocks that are neighbours of this one along `axis`; the number of a block is m + n * cluster.m."""
    builder, first = call.builder, cluster.at_m
    if axis == "m":
        first = builder.scalar("mul", cluster.at_n, builder.constant(cluster.m, INDEX))
        pattern = (1 << cluster.m) - 1
    else:
        pattern = sum(1 << (n * cluster.m) for n in range(cluster.n))
    bits = builder.scalar("shl", builder.constant(pattern, U32), builder.cast(first, U32))
    return builder.cast(bits, U16)


@intrinsic(lang.tma_prefetch)
def _prefetch(call: Call) -> None:
    tensor = call["tensor"]
    if not isinstance(tensor, Value) or not isinstance(tensor.type, GlobalType):
        raise call.error(
            f"tma_prefetch() takes a Global, got {describe(tensor)}", "pass the tensor itself: A", code="C402"
        )
    call.builder.add(tma.Prefetch(tensor))
