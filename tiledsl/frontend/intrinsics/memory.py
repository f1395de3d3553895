"""shared, fragment, and the methods of tensors and tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tiledsl import lang
from tiledsl.arch import MOST_REGISTERS
from tiledsl.frontend.arithmetic import as_value, convert, elementwise
from tiledsl.frontend.bindings import describe
from tiledsl.frontend.calls import Call, intrinsic
from tiledsl.frontend.fragments import distributed, is_distributed
from tiledsl.frontend.gather import Gather, gather, is_gather
from tiledsl.frontend.memory import is_vector, vector_length
from tiledsl.frontend.views import as_view, located, memory_type
from tiledsl.ir.core import Value
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.arith import Bitcast
from tiledsl.ir.types import BOOL, INDEX, DType, FragmentType, SharedType
from tiledsl.lang import ir_dtype
from tiledsl.layout.shared import AUTO, MAX_EXTENT, Layout, Paneled

scalar_class: Any = lang.Scalar
fragment_class: Any = lang.Fragment
memory_class: Any = lang.Memory  # generic, so that its methods are partly unknown to type checkers

__all__: list[str] = []

MAX_FRAGMENT = 1024


def _shape(call: Call) -> tuple[int, ...]:
    shape: Any = call["shape"]
    dims: tuple[Any, ...] = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)  # pyright: ignore
    for extent in dims:
        if not isinstance(extent, int) or isinstance(extent, bool) or extent < 1:
            fix = "use const parameters; run-time extents belong to Global tensors"
            if isinstance(extent, int):
                fix = "pass 1 or more"
            raise call.error(f"a shape is made of positive compile-time ints, got {describe(extent)}", fix)
        if extent > MAX_EXTENT:
            raise call.error(f"an extent of {extent} elements; at most {MAX_EXTENT}", "make the tile smaller")
    if not dims:
        raise call.error("a shape needs at least one extent", "as in shared((64, 32), f32)")
    return dims


def _dtype(call: Call) -> DType:
    dtype = ir_dtype(call["dtype"])
    if dtype is None or dtype == INDEX:
        fix = "index has no size in memory: use i32 or i64" if dtype == INDEX else "pass f32, f16, ..."
        raise call.error(f"dtype must be a dtype of the language, got {describe(call['dtype'])}", fix)
    return dtype


@intrinsic(lang.shared)
def _shared(call: Call) -> Any:
    if not call.frame.at_top_level:
        raise call.error(
            "shared() under a run-time condition or loop", "allocate at the top level, and pass the tile to functions"
        )
    type_ = SharedType(_dtype(call), _shape(call))
    over: Any = call["over"]
    tiles: list[Any] = list(over) if isinstance(over, (tuple, list)) else [] if over is None else [over]  # pyright: ignore
    for other in tiles:
        if not isinstance(other, Value) or not isinstance(other.type, SharedType):
            raise call.error(f"over= takes shared tiles, got {describe(other)}", "pass what shared() gave")
    value = call.builder.value(tile.SharedAlloc(*tiles, type=type_, layout=_layout(call, type_)))
    return value


def _layout(call: Call, type_: SharedType) -> str:
    """``layout=`` as the text that stands in the IR."""
    layout = call["layout"]
    if layout is None:
        return AUTO
    if not isinstance(layout, Layout):
        fix = "pass row_major, padded(n), swizzled(...), swizzle_128b, or None to let the compiler choose"
        raise call.error(f"layout= takes a layout, got {describe(layout)}", fix)
    if isinstance(layout, Paneled):
        layout = replace(layout, element=type_.dtype.bytes)
    problem = layout.problem(type_.dims)
    if problem is not None:
        raise call.error(problem.message, problem.fix)
    return str(layout)


@intrinsic(lang.fragment)
def _fragment(call: Call) -> Any:
    dtype, dims, layout = _dtype(call), _shape(call), call["layout"]
    if layout is None:
        type_ = FragmentType(dtype, dims)
        if type_.size > MAX_FRAGMENT:
            fix = "spread it over more threads: layout=mma.m16n8k16.acc(...) has the block hold it together"
            raise call.error(f"a fragment of {type_.size} elements; a thread has {MOST_REGISTERS} registers", fix)
    else:
        type_ = distributed(call.frame, call.node, dtype, dims, layout, "fragment()")
    init = as_value(call["init"], type_.dtype, call.frame, call.node, "init")
    return call.builder.value(tile.Pack(init, type=type_))


@intrinsic(memory_class.get)
def _get(call: Call) -> Any:
    memory, vec = call["self"], call["vec"]
    dtype = memory_type(memory).dtype
    if is_gather(call["index"]):
        return _gathered_get(call, dtype)
    count = vector_length(call.frame, call.node, memory, vec) if vec != 0 else 1
    base, at = located(call.frame, call.node, memory, call["index"])
    value = call.builder.value(tile.Get(base, *at, _padding(call, dtype, count), vec=count))
    return _as_vector(call, value, vec)


def _gathered_get(call: Call, dtype: DType) -> Value:
    if call["vec"] != 0:
        fix = "leave vec out: elements that lie side by side are read together where that is proven"
        raise call.error("get() with vec= and fragments of indices, which name single elements", fix)
    found = gather(call.frame, call.node, call["self"], call["index"])
    others = found.values(_zero_of(call["other"], dtype), dtype, "other")
    loads = [tile.Get(found.base, *row, other, gathered=True) for row, other in zip(found.rows, others, strict=True)]
    return found.fragment([call.builder.value(load) for load in loads])


def _zero_of(other: Any, dtype: DType) -> Any:
    """The default of other=, 0, in the only dtype that has no 0."""
    return False if dtype == BOOL and not isinstance(other, (Value, bool)) and other == 0 else other


def _padding(call: Call, dtype: DType, count: int) -> Value:
    """``other=``: what stands past the edge, for a vector of `count` elements."""
    other: Any = call["other"]
    if not is_vector(other) or count == 1:
        scalar = as_value(_zero_of(other, dtype), dtype, call.frame, call.node, "other")
        return scalar if count == 1 else call.builder.value(tile.Pack(scalar, type=FragmentType(dtype, (count,))))
    if other.type != FragmentType(dtype, (count,)):
        fix = f"pass a number, or a fragment of {count} {dtype}"
        raise call.error(f"other= is {describe(other)}, and the vector has {count} elements of {dtype}", fix)
    return other


def _as_vector(call: Call, value: Value, vec: int) -> Value:
    """An access that asked for a vector gives a fragment, also if that is one element."""
    if vec == 0 or isinstance(value.type, FragmentType):
        return value
    return call.builder.value(tile.Pack(value, type=FragmentType(value.dtype, (1,))))


@intrinsic(memory_class.load)
def _load(call: Call) -> Any:
    memory = call["self"]
    count = vector_length(call.frame, call.node, memory, call["vec"])
    base, at = located(call.frame, call.node, memory, call["index"])
    return _as_vector(call, call.builder.value(tile.Load(base, *at, vec=count)), call["vec"])


def _split(call: Call, name: str, what: str) -> tuple[Value, list[Value], Any]:
    """The memory, the indices there and the last argument of put and store."""
    at, value = _index_and_value(call, name, what)
    return *located(call.frame, call.node, call["self"], at), value


def _scattered(call: Call, name: str, what: str, dtype: DType) -> tuple[Gather, list[Value]]:
    """The same where some of the indices are fragments."""
    at, value = _index_and_value(call, name, what)
    found = gather(call.frame, call.node, call["self"], at)
    return found, found.values(value, dtype, "value")


def _index_and_value(call: Call, name: str, what: str) -> tuple[tuple[Any, ...], Any]:
    arguments: tuple[Any, ...] = call[name]
    rank = as_view(call["self"]).rank
    if len(arguments) != rank + 1:
        raise call.error(
            f"{what}() on a tile of {rank} axes takes as many indices and a value, got {len(arguments)} arguments",
            f"t.{what}({', '.join('ijkl'[:rank])}, x)",
        )
    return arguments[:-1], arguments[-1]


def _store(call: Call, op: type[tile.Store], name: str, what: str) -> None:
    dtype = memory_type(call["self"]).dtype
    if is_gather(call[name][:-1]):
        found, elements = _scattered(call, name, what, dtype)
        for row, element in zip(found.rows, elements, strict=True):
            call.builder.add(op(found.base, *row, element, gathered=True))
        return
    memory, at, value = _split(call, name, what)
    if is_distributed(value):
        fix = "store(x, C[m, n]); or name a place for each element: rows, columns = coordinates(x)"
        raise call.error(f"{what}() at one place of {describe(value)}, which the block holds together", fix)
    if not is_vector(value):
        call.builder.add(op(memory, *at, as_value(value, dtype, call.frame, call.node, "value")))
        return
    if value.type.dtype != dtype:
        raise call.error(f"a fragment of {value.type.dtype} stored to {dtype}", f"convert it: {dtype}(...)")
    count = value.type.size
    vector_length(call.frame, call.node, call["self"], count * dtype.bytes)
    if count == 1:
        value = call.builder.value(tile.Extract(value, at=(0,)))
    call.builder.add(op(memory, *at, value, vec=count))


@intrinsic(memory_class.put)
def _put(call: Call) -> None:
    _store(call, tile.Put, "index_and_value", "put")


@intrinsic(memory_class.store)
def _vector_store(call: Call) -> None:
    value = call["index_and_fragment"][-1] if call["index_and_fragment"] else None
    if not is_vector(value) and not is_distributed(value):
        raise call.error("store() writes a 1-D fragment", "write one element with t[i, j] = x")
    _store(call, tile.Store, "index_and_fragment", "store")


@intrinsic(scalar_class.to, fragment_class.to)
def _to(call: Call) -> Any:
    return convert(call["self"], _dtype_or_index(call), call.frame, call.node)


def _dtype_or_index(call: Call) -> DType:
    dtype = ir_dtype(call["dtype"])
    if dtype is None:
        raise call.error(f"expected a dtype, got {describe(call['dtype'])}", "pass f32, f16, ...")
    return dtype


@intrinsic(scalar_class.bitcast, fragment_class.bitcast)
def _bitcast(call: Call) -> Any:
    value, dtype = call["self"], _dtype_or_index(call)
    source: DType = value.type.dtype if isinstance(value.type, FragmentType) else value.type
    if source.bits != dtype.bits or {source, dtype} & {BOOL, INDEX}:
        raise call.error(f"bitcast from {source} to {dtype}", "both sides must have the same width; not bool or index")

    def cast(scalar: Value) -> Value:
        return call.builder.value(Bitcast(scalar, to=dtype))

    return elementwise([value], call.frame, call.node, "bitcast()", cast)
