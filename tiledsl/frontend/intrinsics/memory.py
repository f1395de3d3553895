"""shared, fragment, and the methods of tensors and tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tiledsl import lang
from tiledsl.arch import MOST_REGISTERS
from tiledsl.frontend.arithmetic import convert, elements, elementwise
from tiledsl.frontend.bindings import describe, dtype_of, is_fragment, positive_ints
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.fragments import distributed, is_distributed
from tiledsl.frontend.memory import access, is_vector, vector_length
from tiledsl.frontend.views import as_view, located, memory_type
from tiledsl.ir.core import Value
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.arith import Bitcast
from tiledsl.ir.types import BOOL, INDEX, DType, FragmentType, SharedType
from tiledsl.layout.shared import AUTO, MAX_EXTENT, Layout, Paneled

scalar_class: Any = lang.Scalar
fragment_class: Any = lang.Fragment
memory_class: Any = lang.Memory  # generic, so that its methods are partly unknown to type checkers

MAX_FRAGMENT = 1024


def _shape(call: Call) -> tuple[int, ...]:
    shape: Any = call["shape"]
    dims = positive_ints(shape)
    if not dims:
        given: list[Any] = [*shape] if isinstance(shape, (tuple, list)) else [shape]
        shown = ", ".join(map(describe, given)) or "no extent"
        fix = "use const parameters of 1 or more, as in shared((T, 32), f32); run-time extents belong to Global tensors"
        raise call.error(f"a shape is made of positive compile-time ints, got {shown}", fix, code="C302")
    if max(dims) > MAX_EXTENT:
        raise call.error(
            f"an extent of {max(dims)} elements; at most {MAX_EXTENT}", "make the tile smaller", code="C302"
        )
    return dims


def _dtype(call: Call) -> DType:
    dtype = call.dtype()
    if dtype == INDEX:
        raise call.error("the dtype is index, which has no size in memory", "use i32 or i64", code="C204")
    return dtype


@intrinsic(lang.shared)
def _shared(call: Call) -> Value:
    if not call.frame.at_top_level:
        fix = "allocate at the top level, and pass the tile to functions"
        raise call.error("shared() under a run-time condition or loop", fix, code="C408")
    type_ = SharedType(_dtype(call), _shape(call))
    over: Any = call["over"]
    tiles: list[Any] = list(over) if isinstance(over, (tuple, list)) else [] if over is None else [over]  # pyright: ignore
    for other in tiles:
        if not isinstance(other, Value) or not isinstance(other.type, SharedType):
            raise call.error(f"over= takes shared tiles, got {describe(other)}", "pass what shared() gave", code="C408")
    return call.builder.value(tile.SharedAlloc(*tiles, type=type_, layout=_layout(call, type_)))


def _layout(call: Call, type_: SharedType) -> str:
    """``layout=`` as the text that stands in the IR."""
    layout = call["layout"]
    if layout is None:
        return AUTO
    if not isinstance(layout, Layout):
        fix = "pass row_major, padded(n), swizzled(...), swizzle_128b, or None to let the compiler choose"
        raise call.error(f"layout= takes a layout, got {describe(layout)}", fix, code="C306")
    if isinstance(layout, Paneled):
        layout = replace(layout, element=type_.dtype.bytes)
    problem = layout.problem(type_.dims)
    if problem is not None:
        raise call.error(problem.message, problem.fix, code="C306")
    return str(layout)


@intrinsic(lang.fragment)
def _fragment(call: Call) -> Value:
    dtype, dims, layout = _dtype(call), _shape(call), call["layout"]
    if layout is None:
        type_ = FragmentType(dtype, dims)
        if type_.size > MAX_FRAGMENT:
            fix = "spread it over more threads: layout=mma.m16n8k16.acc(...) has the block hold it together"
            raise call.error(
                f"a fragment of {type_.size} elements; a thread has {MOST_REGISTERS} registers", fix, code="C308"
            )
    else:
        type_ = distributed(call.frame, call.node, dtype, dims, layout, call.what)
        if is_vector(call["init"]):
            return _of_registers(call, type_, call["init"])
    return call.builder.value(tile.Pack(call.value("init", dtype), type=type_))


def _of_registers(call: Call, type_: FragmentType, init: Value) -> Value:
    """A fragment of which `init` is what each thread holds."""
    if init.type != FragmentType(type_.dtype, (type_.size,)):
        message = f"a fragment of {type_} from {describe(init)}"
        raise call.error(
            message, f"each thread holds {type_.size} {type_.dtype} of it: pass what x.registers() gives", code="C307"
        )
    return call.builder.value(tile.Pack(*elements(init, call.frame), type=type_))


# -- loads -----------------------------------------------------------------------------------------


@intrinsic(memory_class.get)
def _get(call: Call) -> Value:
    memory, vec, other = call["self"], call["vec"], call["other"]
    dtype = memory_type(memory).dtype
    count = vector_length(call.frame, call.node, memory, vec) if vec != 0 else 1
    found = access(call.frame, call.node, memory, call["index"])
    if found.gathered and vec != 0:
        fix = "leave vec out: contiguous elements are read together where that is proven"
        raise call.error("get() with vec= and fragments of indices, which name single elements", fix, code="C104")
    if count > 1 and is_vector(other):
        others = [other]
        if other.type != FragmentType(dtype, (count,)):
            fix = f"pass a number, or a fragment of {count} {dtype}"
            raise call.error(
                f"other= is {describe(other)}, and the vector has {count} elements of {dtype}", fix, code="C301"
            )
    else:
        zero = dtype == BOOL and not isinstance(other, (Value, bool)) and other == 0  # the default, in bool
        others = found.values(False if zero else other, dtype, "other")
        if count > 1:
            others = [call.builder.value(tile.Pack(*others, type=FragmentType(dtype, (count,))))]
    return _as_vector(call, found.each(tile.Get, others, vec=count, gathered=found.gathered))


@intrinsic(memory_class.load)
def _load(call: Call) -> Value:
    count = vector_length(call.frame, call.node, call["self"], call["vec"])
    base, at = located(call.frame, call.node, call["self"], call["index"])
    return _as_vector(call, call.builder.value(tile.Load(base, *at, vec=count)))


def _as_vector(call: Call, value: Value) -> Value:
    """An access that asked for a vector gives a fragment, also if that is one element."""
    if call["vec"] == 0 or is_fragment(value):
        return value
    return call.builder.value(tile.Pack(value, type=FragmentType(value.dtype, (1,))))


# -- stores ----------------------------------------------------------------------------------------


def place_and_values(
    call: Call, name: str, values: Sequence[str] = ("value",), memory: str = "self"
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The indices in `memory`, and the values that follow them in one argument, `name`."""
    given: tuple[Any, ...] = call[name]
    rank = as_view(call[memory]).rank
    if len(given) != rank + len(values):
        wanted = ", ".join(("i", "j", "k", "l")[:rank] + tuple(values))
        message = f"{call.what} on a tile of {rank} axes takes ({wanted}), got {len(given)} arguments"
        raise call.error(message, "an element is named by one index an axis; values follow", code="C304")
    return given[:rank], given[rank:]


@intrinsic(memory_class.put)
def _put(call: Call) -> None:
    _store(call, tile.Put, "index_and_value")


@intrinsic(memory_class.store)
def _vector_store(call: Call) -> None:
    value = call["index_and_fragment"][-1] if call["index_and_fragment"] else None
    if not is_vector(value) and not is_distributed(value):
        raise call.error("store() writes a 1-D fragment", "write one element with t[i, j] = x", code="C104")
    _store(call, tile.Store, "index_and_fragment")


def _store(call: Call, op: type[tile.Store], name: str) -> None:
    dtype = memory_type(call["self"]).dtype
    at, (value,) = place_and_values(call, name)
    found = access(call.frame, call.node, call["self"], at)
    if is_distributed(value) and not found.gathered:
        fix = "store(x, C[m, n]); or name a place for each element: rows, columns = coordinates(x)"
        raise call.error(
            f"{call.what} at one place of {describe(value)}, which the block holds together", fix, code="C104"
        )
    if found.gathered or not is_vector(value):
        found.each(op, found.values(value, dtype, "value"), gathered=found.gathered)
        return
    found.each(op, [stored_vector(call, call["self"], value)], vec=value.type.size)


def stored_vector(call: Call, memory: Any, value: Value) -> Value:
    """A 1-D fragment as an op stores it at once: of one element, that element."""
    type_, dtype = value.type, memory_type(memory).dtype
    assert isinstance(type_, FragmentType)
    if type_.dtype != dtype:
        raise call.error(f"a fragment of {type_.dtype} stored to {dtype}", f"convert it: {dtype}(...)", code="C203")
    vector_length(call.frame, call.node, memory, type_.size * dtype.bytes)
    return call.builder.value(tile.Extract(value, at=(0,))) if type_.size == 1 else value


# -- conversions -----------------------------------------------------------------------------------


@intrinsic(scalar_class.to, fragment_class.to)
def _to(call: Call) -> Value:
    return convert(call["self"], call.dtype(), call.frame, call.node)


@intrinsic(scalar_class.bitcast, fragment_class.bitcast)
def _bitcast(call: Call) -> Value:
    value, dtype = call["self"], call.dtype()
    source = dtype_of(value)
    if source.bits != dtype.bits or {source, dtype} & {BOOL, INDEX}:
        raise call.error(
            f"bitcast from {source} to {dtype}", "both sides must have the same width; not bool or index", code="C204"
        )

    def cast(scalar: Value) -> Value:
        return call.builder.value(Bitcast(scalar, to=dtype))

    return elementwise([value], call.frame, call.node, "bitcast()", cast)
