"""`store_tma`: a tile, or a fragment by way of a tile, to global memory in the background."""

from __future__ import annotations

from typing import Any

from tiledsl import lang
from tiledsl.frontend.bindings import View, describe, is_place
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.fragments import is_distributed
from tiledsl.frontend.intrinsics.matrices import store_to
from tiledsl.frontend.intrinsics.roles import group_barrier
from tiledsl.frontend.intrinsics.tiles import copied_views, destination
from tiledsl.frontend.intrinsics.tma import add_box, check_reach
from tiledsl.frontend.views import as_view, memory_type, subview, unit_axis
from tiledsl.ir.core import Value
from tiledsl.ir.ops import barriers, matrix, roles, tma
from tiledsl.ir.types import FragmentType, GlobalType, SharedType
from tiledsl.layout.shared import SPANS
from tiledsl.passes.distribute.matrix_map import widths

INSTRUCTION_COLUMNS = 8
"""Of an accumulator that a thread's registers hold together: chunks are multiples of it."""


@intrinsic(lang.store_tma)
def _store_tma(call: Call) -> None:
    call.needs("tma")
    src = call["src"]
    if is_distributed(src):
        _in_chunks(call, src)
        return
    if not is_place(src):
        fix = "x = acc.wait(), and store_tma(x.to(bf16), C[t.m, t.n], via=out); or a shared tile"
        raise call.error(
            f"{call.what} takes a fragment with a layout or a shared tile, got {describe(src)}", fix, code="C402"
        )
    if call["via"] is not None:
        raise call.error(f"{call.what} of a tile goes without via=", "via= is for fragments", code="C402")
    tile, tensor = copied_views(call)
    check_reach(call, tensor, tile)
    add_box(call, tma.Store, tensor, tile)


# -- fragments -------------------------------------------------------------------------------------


def _in_chunks(call: Call, value: Value) -> None:
    """The fragment goes to the buffers of `via`, a batch of them at a time, and from there to global memory.

    All buffers are a batch where they hold the whole fragment, else half of them, so that one half is written while the
    other is read. A batch is free when the thread that begins the stores has seen that they have read it: all groups of
    earlier calls, and of this call's all but those from the other half.
    """
    type_: Any = value.type
    dst = destination(call, "dst", type_, GlobalType)
    if type_.held_as.operand != "acc":
        raise call.error(f"{call.what} of a fragment held as {type_.layout}", "it takes accumulators", code="C410")
    buffers = _buffers(call, type_)
    check_reach(call, dst, buffers[0])
    width: Any = buffers[0].dims[1]
    in_flight = call.integer("in_flight", 0)
    frame, builder = call.frame, call.builder
    call.state.stores.add(call.state.role)
    first = builder.value(roles.Leads())
    chunks = range(type_.dims[1] // width)
    size = len(chunks) if len(buffers) >= len(chunks) else max(1, len(buffers) // 2)
    for batch in (chunks[start : start + size] for start in range(0, len(chunks), size)):
        pending = min(batch[0] // size, len(buffers) // size - 1) if batch[0] else in_flight
        with builder.when(first):
            builder.add(tma.BulkWait(pending=pending, read=True))
        group_barrier(call)
        parts: list[tuple[View, View]] = []
        for number in batch:
            via, columns = buffers[number % len(buffers)], slice(number * width, (number + 1) * width)
            parts.append((subview(frame, call.node, dst, (slice(None), columns)), via))
            part = value if len(chunks) == 1 else builder.value(matrix.Slice(value, columns=(columns.start, width)))
            store_to(call, part, via, 0 if type_.dtype.bits == 16 else widths(type_, unit_axis(via))[-1])
        builder.add(barriers.FenceProxy())
        group_barrier(call)
        with builder.when(first):
            for part_of_dst, via in parts:
                add_box(call, tma.Store, part_of_dst, via)
            builder.add(tma.BulkCommit())


def _buffers(call: Call, type_: FragmentType) -> list[View]:
    """The buffers of ``via=``: rows x W each."""
    via, what, (rows, columns) = call["via"], call.what, type_.dims
    example = _example(type_)
    if not is_place(via) or not isinstance(memory_type(via), SharedType):
        shown = "without via=" if via is None else f"with via= {describe(via)}"
        raise call.error(f"{what} of a fragment {shown}: it goes through a shared tile", example, code="C410")
    view = as_view(via)
    if memory_type(view).dtype != type_.dtype or view.rank not in (2, 3) or view.dims[-2] != rows:
        message = f"{what} of {rows} x {columns} {type_.dtype} elements by way of {describe(view)}"
        raise call.error(message, f"it has {rows} rows of {type_.dtype}, or buffers of them: {example}", code="C410")
    width: Any = view.dims[-1]
    if type_.held_as.warps[1] > 1 and width != columns:
        message = f"{what} of a fragment held as {type_.layout} in chunks of {width} columns"
        fix = f"its warps along n hold columns of different chunks: as a whole, {_example(type_, 1)}"
        raise call.error(message, fix, code="C410")
    if columns % width or width % INSTRUCTION_COLUMNS:
        divisors = [w for w in range(INSTRUCTION_COLUMNS, columns + 1, INSTRUCTION_COLUMNS) if columns % w == 0]
        message = f"{what} of {columns} columns in chunks of {width}"
        raise call.error(message, f"take chunks that divide them: {', '.join(map(str, divisors))} columns", code="C410")
    if view.rank == 2:
        return [view]
    whole = (slice(None), slice(None))
    return [subview(call.frame, call.node, view, (number, *whole)) for number in range(int(view.dims[0]))]


def _example(type_: FragmentType, buffers: int = 2) -> str:
    """Buffers as wide as the widest swizzle that divides the columns; a single one has them all."""
    (rows, columns), size = type_.dims, type_.dtype.bytes
    span = next((span for span in SPANS if columns * size % span == 0), 0)
    layout = f"swizzle_{span}b" if span else "row_major"
    dims = f"{rows}, {columns}" if buffers == 1 else f"{buffers}, {rows}, {span // size if span else columns}"
    return f"via=shared(({dims}), {type_.dtype}, layout={layout})"
