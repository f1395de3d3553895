"""`store_tma`: a tile, or a fragment by way of a tile, to global memory in the background."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiledsl import lang
from tiledsl.frontend.bindings import View, describe, is_place
from tiledsl.frontend.calls import Call, intrinsic
from tiledsl.frontend.fragments import is_distributed
from tiledsl.frontend.intrinsics.barriers import needs
from tiledsl.frontend.intrinsics.roles import group_barrier, if_, leads
from tiledsl.frontend.intrinsics.tiles import copied_views
from tiledsl.frontend.intrinsics.tma import Box, box_of, refuse_many_threads
from tiledsl.frontend.views import as_view, memory_name, memory_type
from tiledsl.ir.core import Value
from tiledsl.ir.ops import barriers, matrix, tma
from tiledsl.ir.types import INDEX, FragmentType, GlobalType, SharedType
from tiledsl.layout.shared import SPANS
from tiledsl.passes.distribute.matrix_map import widths

__all__: list[str] = []

INSTRUCTION_COLUMNS = 8
"""Of an accumulator that a thread's registers hold together: chunks are multiples of it."""


@intrinsic(lang.store_tma)
def _store_tma(call: Call) -> None:
    what = "store_tma()"
    needs(call, "tma", what)
    src = call["src"]
    if is_distributed(src):
        _in_chunks(call, what, src)
        return
    if not is_place(src):
        fix = "x = acc.wait(), and store_tma(x.to(bf16), C[t.m, t.n], via=out); or a shared tile"
        raise call.error(f"{what} takes a fragment with a layout or a shared tile, got {describe(src)}", fix)
    if call["via"] is not None:
        raise call.error(f"{what} of a tile goes without via=", "via= is for fragments")
    tile, tensor = copied_views(call, what)
    box = box_of(call, what, tensor, tile)
    refuse_many_threads(call, what)
    call.builder.add(tma.Store(*box.operands, **box.attributes))


# -- fragments -------------------------------------------------------------------------------------


def _in_chunks(call: Call, what: str, value: Value) -> None:
    """The fragment goes to the buffers of `via`, a batch of them at a time, and from there on its way.

    All buffers are a batch where they hold the whole fragment, else half of them, so that one half is written while the
    other is read. A batch is free when the thread that begins the stores has seen that they have read it: all groups of
    earlier calls, and of this call's all but those from the other half.
    """
    type_: Any = value.type
    dst = _destination(call, what, type_)
    buffers = _buffers(call, what, type_)
    width: Any = buffers[0].dims[1]
    in_flight = call["in_flight"]
    if not isinstance(in_flight, int) or isinstance(in_flight, bool) or in_flight < 0:
        raise call.error(
            f"in_flight= is a compile-time int from 0 on, got {describe(in_flight)}", "use a const parameter"
        )
    builder, state = call.builder, call.frame.unit.cooperation
    state.stores.add(state.role)
    first, fence = leads(call.frame), barriers.FenceProxy
    chunks = range(type_.dims[1] // width)
    size = len(chunks) if len(buffers) >= len(chunks) else max(1, len(buffers) // 2)
    for batch in (chunks[start : start + size] for start in range(0, len(chunks), size)):
        pending = min(batch[0] // size, len(buffers) // size - 1) if batch[0] else in_flight
        if_(call.frame, first, lambda n=pending: builder.add(tma.BulkWait(pending=n, read=True)))
        group_barrier(call, what)
        boxes: list[Box] = []
        for number in batch:
            via = buffers[number % len(buffers)]
            boxes.append(box_of(call, what, _columns(call, dst, number * width, width), via))
            part = value if len(chunks) == 1 else builder.value(matrix.Slice(value, columns=(number * width, width)))
            _to_tile(call, part, via)
        builder.add(fence())
        group_barrier(call, what)
        if_(call.frame, first, lambda boxes=boxes: _begin(call, boxes))


def _begin(call: Call, boxes: Sequence[Box]) -> None:
    """One group of stores."""
    for box in boxes:
        call.builder.add(tma.Store(*box.operands, **box.attributes))
    call.builder.add(tma.BulkCommit())


def _to_tile(call: Call, part: Value, via: View) -> None:
    type_: Any = part.type
    origin = [call.builder.constant(i, INDEX) if isinstance(i, int) else i for i in via.origin]
    along = via.axes.index(memory_type(via).rank - 1)
    vec = 0 if type_.dtype.bits == 16 else widths(type_, along)[-1]
    call.builder.add(matrix.Store(part, via.base, *origin, axes=via.axes, vec=vec))


def _destination(call: Call, what: str, type_: FragmentType) -> View:
    dst = call["dst"]
    if not is_place(dst) or not isinstance(memory_type(dst), GlobalType):
        raise call.error(f"{what} goes to a view of a Global, got {describe(dst)}", "C[t.m, t.n]")
    view = as_view(dst)
    if view.dims != type_.dims:
        shapes = " and ".join(" x ".join(map(str, dims)) for dims in (type_.dims, view.dims))
        raise call.error(f"{what} of a fragment to a view of another shape: {shapes}", "both have one shape")
    if memory_type(view).dtype != type_.dtype:
        to = memory_type(view).dtype
        raise call.error(f"{what} of {type_.dtype} elements to {memory_name(view)} of {to}", f"convert it: x.to({to})")
    if type_.held_as.operand != "acc":
        raise call.error(f"{what} of a fragment held as {type_.layout}", "it takes accumulators")
    return view


def _buffers(call: Call, what: str, type_: FragmentType) -> list[View]:
    """The buffers of ``via=``: rows x W each."""
    via, (rows, columns) = call["via"], type_.dims
    example = _example(type_)
    if not is_place(via) or not isinstance(memory_type(via), SharedType):
        shown = "without via=" if via is None else f"with via= {describe(via)}"
        raise call.error(f"{what} of a fragment {shown}: it goes through a shared tile", example)
    view = as_view(via)
    if memory_type(view).dtype != type_.dtype:
        raise call.error(f"{what} of {type_.dtype} elements by way of {memory_type(view).dtype}", example)
    if view.rank not in (2, 3) or view.dims[-2] != rows:
        message = f"{what} of {rows} x {columns} elements by way of {describe(view)}"
        raise call.error(message, f"it has {rows} rows, or buffers of them: {example}")
    width: Any = view.dims[-1]
    if type_.held_as.warps[1] > 1 and width != columns:
        message = f"{what} of a fragment held as {type_.layout} in chunks of {width} columns"
        fix = f"its warps lie along n, too, and have columns of different chunks: as a whole, {_example(type_, 1)}"
        raise call.error(message, fix)
    if columns % width or width % INSTRUCTION_COLUMNS:
        divisors = [w for w in range(INSTRUCTION_COLUMNS, columns + 1, INSTRUCTION_COLUMNS) if columns % w == 0]
        near = [w for w in divisors if w <= width][-1:] + [w for w in divisors if w > width][:1]
        message = f"{what} of {columns} columns in chunks of {width}"
        raise call.error(message, f"take chunks that divide them: {' or '.join(map(str, near))} columns")
    if view.rank == 2:
        return [view]
    numbers = range(int(view.dims[0]))
    return [View(view.base, _moved(call, view, 0, number), view.axes[1:], view.dims[1:]) for number in numbers]


def _example(type_: FragmentType, buffers: int = 2) -> str:
    """Buffers as wide as the widest swizzle that divides the columns; a single one has them all."""
    (rows, columns), size = type_.dims, type_.dtype.bytes
    span = next((span for span in SPANS if columns * size % span == 0), 0)
    layout = f"swizzle_{span}b" if span else "row_major"
    dims = f"{rows}, {columns}" if buffers == 1 else f"{buffers}, {rows}, {span // size if span else columns}"
    return f"via=shared(({dims}), {type_.dtype}, layout={layout})"


def _columns(call: Call, view: View, first: int, count: int) -> View:
    """Some columns of the destination."""
    return View(view.base, _moved(call, view, 1, first), view.axes, (view.dims[0], count))


def _moved(call: Call, view: View, axis: int, distance: int) -> tuple[Any, ...]:
    """The origin of a view, moved along one of its axes."""
    origin, axis = list(view.origin), view.axes[axis]
    start = origin[axis]
    if isinstance(start, int):
        origin[axis] = start + distance
    elif distance:
        origin[axis] = call.builder.scalar("add", start, call.builder.constant(distance, INDEX))
    return tuple(origin)
