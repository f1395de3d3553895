"""`tma_load`, and the boxes that TMA moves; `store_tma` is in `stores`."""

from __future__ import annotations

from typing import Any

from tiledsl import lang
from tiledsl.arch import TMA_GRAIN, TMA_MOST_BOX
from tiledsl.frontend.bindings import View, describe
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.cooperation import Place
from tiledsl.frontend.intrinsics.barriers import mbarrier_place
from tiledsl.frontend.intrinsics.rings import slot_filled
from tiledsl.frontend.intrinsics.tiles import SWIZZLES, copied_views, layout_of
from tiledsl.frontend.views import base_origin, memory_name, memory_type
from tiledsl.ir.core import Value
from tiledsl.ir.ops import tma
from tiledsl.ir.types import INDEX, U16, U32, GlobalType, SharedType
from tiledsl.layout.shared import ROWS


class Box:
    """A part of a tensor and one of a shared tile between which TMA moves.

    tile, place: the tile, and where the box begins there. tensor, origin: the same there. axes: which axes of the
    tensor run along the tile's rows and columns. rows, columns: how many there are.
    """

    def __init__(self, call: Call, tensor: View, shared: View) -> None:
        type_: Any = memory_type(shared)
        self.tile, self.tensor = shared.base, tensor.base
        self.place, self.origin = base_origin(call.frame, shared), base_origin(call.frame, tensor)
        order = [shared.axes.index(axis) for axis in (type_.rank - 2, type_.rank - 1)]
        self.axes = tuple(tensor.axes[i] for i in order)
        extents: list[Any] = [shared.dims[i] for i in order]
        self.rows, self.columns = extents

    @property
    def operands(self) -> list[Value]:
        return [self.tile, *self.place, self.tensor, *self.origin]

    @property
    def attributes(self) -> dict[str, Any]:
        extents = {self.axes[0]: self.rows, self.axes[1]: self.columns}
        box = tuple(extents.get(axis, 1) for axis in range(memory_type(self.tensor).rank))
        return {"box": box, "axes": self.axes}


def box_of(call: Call, tensor: View, shared: View) -> Box:
    """The box, or an error that says what TMA cannot reach. `copied_views` has compared shapes and dtypes."""
    if not isinstance(memory_type(tensor), GlobalType) or not isinstance(memory_type(shared), SharedType):
        found = " and ".join(f"{memory_name(view)} ({memory_type(view)})" for view in (tensor, shared))
        message = f"{call.what} moves between a Global and a shared tile, this one between {found}"
        raise call.error(message, "use copy()")
    type_: Any = memory_type(shared)
    if shared.rank != 2 or type_.rank < 2 or set(shared.axes) != {type_.rank - 2, type_.rank - 1}:
        fix = "a number drops an axis: S[stage, :, :] of a tile of stages, A[batch, m, k] of a tensor"
        raise call.error(f"{call.what} takes rows and columns, {memory_name(shared)} is {describe(shared)}", fix)
    box = Box(call, tensor, shared)
    _check_tensor(call, tensor, box)
    _check_layout(call, shared, box)
    return box


def _check_tensor(call: Call, view: View, box: Box) -> None:
    what, type_, name = call.what, memory_type(view), memory_name(view)
    if not isinstance(type_, GlobalType):
        return
    if type_.unit != box.axes[1]:
        if type_.unit == box.axes[0]:
            message = f"{what}: along the rows of the tile lies axis {box.axes[1]} of {name}, whose stride is not 1"
            fix = f"load it transposed, {name}[...].T to a tile of {box.columns} x {box.rows}, and multiply with S.T"
            raise call.error(message, fix)
        fix = "copy it to one that is contiguous along an axis, or use copy()"
        raise call.error(f"{what}: no axis of {name} that the tile has is known to have stride 1", fix)
    if type_.align < TMA_GRAIN:
        wanted = f"TMA needs an address and positive strides that are multiples of {TMA_GRAIN} bytes"
        known = f"are known to be multiples of {type_.align}" if type_.align > 1 else "need not even be aligned"
        known += ", or are not all positive," if type_.align == 8 else ""
        fix = "pad its rows (a leading dimension in elements of 16 bytes), or choose another way by A.align == 16"
        raise call.error(f"{what}: {wanted}; those of {name} {known} in this call", fix)


def _check_layout(call: Call, view: View, box: Box) -> None:
    size, layout = memory_type(view).dtype.bytes, layout_of(call, view, (*SWIZZLES, "row"))
    width = box.columns * size
    if width % 16:
        fix = f"make it {-(-width // 16) * 16 // size} columns wide"
        raise call.error(f"{call.what}: rows of {width} bytes; TMA moves multiples of 16", fix)
    if layout == "row" and box.columns > TMA_MOST_BOX:
        message = f"{call.what}: a row of {box.columns} elements; without a swizzle TMA moves at most {TMA_MOST_BOX}"
        raise call.error(message, "give the tile a swizzled layout, which is moved in panels: layout=swizzle_128b")


def refuse_many_threads(call: Call) -> None:
    """An error in a role that is run by more than one thread, unless a condition of the author's picks one."""
    role = call.state.role
    if role is not None and not role.one_thread and not call.unit.conditions:
        fix = f'give the loads a role of their own: role("load", threads=1); or `if` one thread of {role.title} does it'
        raise call.error(f"{call.what} is executed by one thread, and {role.shown} has {role.threads}", fix)


@intrinsic(lang.tma_load)
def _tma_load(call: Call) -> None:
    call.needs("tma")
    src, dst = copied_views(call)
    box = box_of(call, src, dst)
    hint = call.choice("hint", tma.HINTS)
    barrier = _barrier(call, dst)
    mask = _multicast(call, src, box)
    how: dict[str, Any] = {**box.attributes, "hint": hint, "multicast": call["multicast"] if mask else ""}
    call.builder.add(tma.Load(*box.operands, *barrier, *mask, **how))


def _barrier(call: Call, dst: View) -> list[Value]:
    """The mbarrier at which the bytes count."""
    given: Any = call["mbarrier"]
    if given is None:
        slot = slot_filled(call, dst)
        if slot is None:
            fix = "write it in `with ring.fill() as s:`, or pass mbarrier=(bars, i), which expects the bytes"
            raise call.error(f"{call.what} needs an mbarrier at which its bytes count", fix)
        return slot
    refuse_many_threads(call)
    parts: tuple[Any, ...] = given if isinstance(given, tuple) else ()  # pyright: ignore[reportUnknownVariableType]
    if len(parts) < 2:
        raise call.error(f"mbarrier= is a tile of u64 and an index, got {describe(given)}", "mbarrier=(bars, i)")
    return mbarrier_place(call, parts[0], parts[1:])


# -- multicast -------------------------------------------------------------------------------------


def _multicast(call: Call, src: View, box: Box) -> list[Value]:
    """The blocks that get the box, a u16; narrows the box to this block's share. Nothing where there is one alone."""
    axis, cluster = call.choice("multicast", ("", "m", "n")), call.state.cluster
    if axis == "":
        return []
    what = f"{call.what} with multicast={axis!r}"
    if cluster is None:
        fix = f"work = persistent(tile_schedule(...), cluster=Cluster({axis}=2))"
        raise call.error(f"{what} in a kernel without clusters", fix)
    count, here = (cluster.m, cluster.at_m) if axis == "m" else (cluster.n, cluster.at_n)
    if count == 1:
        return []
    call.needs("multicast", what)
    if any(isinstance(i, Value) and _depends(i, here) for i in src.origin):
        other = "n" if axis == "m" else "m"
        message = f"{what} of a part of {memory_name(src)} that differs along {axis}"
        raise call.error(message, f"blocks along {other} share what depends on {axis} alone: multicast={other!r}")
    if box.rows % (count * ROWS):
        message = f"{call.what}: {box.rows} rows, of which each of {count} blocks loads its share, whole {ROWS} rows"
        raise call.error(message, f"use a multiple of {count * ROWS} rows, or a smaller cluster")
    _narrow(call, box, here, count)
    return [_mask(call, cluster, axis)]


def _depends(value: Value, on: Any) -> bool:
    """Is `value` computed from `on`? What loops and branches give is not."""
    pending, seen = [value], set[Value]()
    while pending:
        here = pending.pop()
        if here is on:
            return True
        if here.op is not None and here not in seen:
            seen.add(here)
            pending += here.op.operands
    return False


def _narrow(call: Call, box: Box, at: Any, count: int) -> None:
    builder = call.builder
    box.rows //= count
    distance = builder.scalar("mul", at, builder.constant(box.rows, INDEX))
    rank: Any = memory_type(box.tile).rank
    box.place[rank - 2] = builder.scalar("add", box.place[rank - 2], distance)
    box.origin[box.axes[0]] = builder.scalar("add", box.origin[box.axes[0]], distance)


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
        raise call.error(f"tma_prefetch() takes a Global, got {describe(tensor)}", "pass the tensor itself: A")
    call.builder.add(tma.Prefetch(tensor))
