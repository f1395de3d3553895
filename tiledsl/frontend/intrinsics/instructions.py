"""Raw instructions of `tiledsl.lang.ptx` on matrices and groups of copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiledsl import lang
from tiledsl.frontend.arithmetic import elements
from tiledsl.frontend.bindings import describe, is_place
from tiledsl.frontend.calls import Call, intrinsic
from tiledsl.frontend.intrinsics.async_copies import refuse_in_pipelined
from tiledsl.frontend.memory import vector_length
from tiledsl.frontend.views import as_view, located, memory_name, memory_type, places
from tiledsl.ir.core import Value
from tiledsl.ir.ops import async_copy, matrix, ptx, tile
from tiledsl.ir.ops.arith import Bitcast
from tiledsl.ir.types import U32, DType, FragmentType, GlobalType, SharedType
from tiledsl.lang import ir_dtype
from tiledsl.layout.mma import SHAPES, TABLE, find_row

__all__: list[str] = []


def _memory(call: Call, name: str, what: str, wanted: type[GlobalType] | type[SharedType]) -> Any:
    """An argument in shared or global memory."""
    memory = call[name]
    if not is_place(memory) or not isinstance(memory_type(memory), wanted):
        kind = "a shared tile" if wanted is SharedType else "a Global"
        fix = f"pass {kind} as {name}"
        raise call.error(f"{what} takes {kind}, or a view of one, as {name}, got {describe(memory)}", fix)
    return memory


def _own_fragment(call: Call, name: str, value: Any, what: str) -> FragmentType:
    """The type of an argument that is a thread's own fragment."""
    if isinstance(value, Value) and isinstance(value.type, FragmentType) and value.type.layout is None:
        return value.type
    fix = "raw instructions take one thread's registers; mma(), load_matrix() and store_matrix() take layouts"
    raise call.error(f"{what} takes a fragment of registers as {name}, got {describe(value)}", fix)


# -- matrices --------------------------------------------------------------------------------------


def _matrix_attributes(call: Call, memory: Any, num: Any, what: str) -> dict[str, Any]:
    """What ldmatrix and stmatrix share."""
    count, trans = vector_length(call.frame, call.node, memory, matrix.MATRIX_BYTES), call["trans"]
    if num not in (1, 2, 4):
        shown = num if isinstance(num, int) else describe(num)
        raise call.error(f"{what} moves 1, 2 or 4 matrices, got {shown}", "move them in several instructions")
    dtype = memory_type(memory).dtype
    if trans and dtype.bits != 16:
        raise call.error(f"{what} with trans=True of {dtype}: only 16-bit elements are transposed", "leave trans out")
    return {"num": num, "trans": trans, "vec": count}


@intrinsic(lang.ptx.ldmatrix)
def _ldmatrix(call: Call) -> Value:
    what = "ptx.ldmatrix()"
    memory = _memory(call, "src", what, SharedType)
    attributes = _matrix_attributes(call, memory, call["num"], what)
    base, at = located(call.frame, call.node, memory, call["index"])
    op = call.builder.add(matrix.LdMatrix(base, *at, **attributes))
    return call.builder.value(tile.Pack(*op.results, type=FragmentType(U32, (len(op.results),))))


@intrinsic(lang.ptx.stmatrix)
def _stmatrix(call: Call) -> None:
    what = "ptx.stmatrix()"
    memory = _memory(call, "dst", what, SharedType)
    arguments, rank = call["index_and_words"], as_view(memory).rank
    if len(arguments) != rank + 1:
        message = f"{what} to {memory_name(memory)}, of {rank} axes, takes as many indices and the words"
        raise call.error(f"{message}, got {len(arguments)} arguments", "ptx.stmatrix(S, row, column, words)")
    words = arguments[-1]
    type_ = _own_fragment(call, "words", words, what)
    if type_.dtype != U32:
        raise call.error(f"{what} takes u32 words, got {type_}", "x.bitcast(u32) of 32-bit elements")
    attributes = _matrix_attributes(call, memory, type_.size, what)
    base, at = located(call.frame, call.node, memory, arguments[:-1])
    call.builder.add(matrix.StMatrix(base, *at, *elements(words, call.frame), **attributes))


@intrinsic(lang.ptx.mma_sync)
def _mma_sync(call: Call) -> Value:
    what = "ptx.mma_sync()"
    shape, given = call["shape"], call["dtypes"]
    if shape not in SHAPES:
        shown = repr(shape) if isinstance(shape, str) else describe(shape)
        raise call.error(f"{what} has no shape {shown}", f"the shapes are {', '.join(SHAPES)}")
    dtypes = [ir_dtype(item) for item in given] if isinstance(given, tuple) else []  # pyright: ignore
    if len(dtypes) != 3 or None in dtypes:
        raise call.error(f"{what}: dtypes= is {describe(given)}", "three dtypes, of a, b and c: dtypes=(f16, f16, f32)")
    a, b, acc = (d for d in dtypes if d is not None)
    if find_row(SHAPES[shape], a.name, b.name, acc.name) is None:
        known = ", ".join(f"{row.a} x {row.b} -> {row.acc}" for row in TABLE if str(row.shape) == shape)
        raise call.error(f"{what}: no product {shape} of {a} x {b} into {acc}", f"{shape} has {known}")
    attributes: dict[str, Any] = {"shape": shape, "a": a, "b": b, "acc": acc}
    wanted = ptx.MmaSync(**attributes).registers()
    a_b_c = [_registers(call, name, types, what) for name, types in zip("abc", wanted, strict=True)]
    op = call.builder.add(ptx.MmaSync(*(v for operand in a_b_c for v in operand), **attributes))
    result = FragmentType(wanted[2][0], call["c"].type.dims)
    return call.builder.value(tile.Pack(*op.results, type=result))


def _registers(call: Call, name: str, wanted: Sequence[DType], what: str) -> list[Value]:
    """The registers of operand `name`, as the instruction takes them."""
    type_ = _own_fragment(call, name, call[name], what)
    dtype = wanted[0]
    if type_.size != len(wanted) or (type_.dtype != dtype and not (type_.dtype == U32 and dtype.bits == 32)):
        fix = f"make it fragment(({len(wanted)},), {dtype})"
        raise call.error(f"{what} takes {len(wanted)} {dtype} as {name} of this product, got {type_}", fix)
    values = elements(call[name], call.frame)
    return values if type_.dtype == dtype else [call.builder.value(Bitcast(v, to=dtype)) for v in values]


# -- groups of copies ------------------------------------------------------------------------------


@intrinsic(lang.ptx.cp_async)
def _cp_async(call: Call) -> None:
    what = "ptx.cp_async()"
    refuse_in_pipelined(call, what)
    dst, src = _memory(call, "dst", what, SharedType), _memory(call, "src", what, GlobalType)
    dtype, other, size = memory_type(dst).dtype, memory_type(src).dtype, call["bytes"]
    if dtype != other:
        raise call.error(f"{what} from {other} to {dtype}: it moves elements as they are", f"make the tile of {other}")
    if not isinstance(size, int) or size not in async_copy.CP_BYTES or size % dtype.bytes:
        widths = ", ".join(str(v) for v in async_copy.CP_BYTES if v % dtype.bytes == 0)
        shown = size if isinstance(size, int) else describe(size)
        raise call.error(f"{what} of {shown} bytes on elements of {dtype.bytes}", f"it copies {widths} bytes")
    count = size // dtype.bytes
    for memory in (dst, src):
        vector_length(call.frame, call.node, memory, size)
    to, at = located(call.frame, call.node, dst, places(call["dst_index"]))
    base, origin = located(call.frame, call.node, src, places(call["src_index"]))
    call.builder.add(async_copy.Cp(to, *at, base, *origin, vec=count))


@intrinsic(lang.ptx.commit_group)
def _commit_group(call: Call) -> None:
    refuse_in_pipelined(call, "ptx.commit_group()")
    call.frame.unit.raw_groups = True
    call.builder.add(async_copy.CommitGroup())


@intrinsic(lang.ptx.wait_group)
def _wait_group(call: Call) -> None:
    refuse_in_pipelined(call, "ptx.wait_group()")
    pending = call["pending"]
    if not isinstance(pending, int) or isinstance(pending, bool) or pending < 0:
        fix = "how many of the last groups may still be on their way, a compile-time int: ptx.wait_group(1)"
        raise call.error(f"ptx.wait_group() takes a number of groups, got {describe(pending)}", fix)
    call.builder.add(async_copy.WaitGroup(pending=pending))
