"""Raw instructions of `tiledsl.lang.ptx` on matrices and groups of copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiledsl import lang
from tiledsl.frontend.arithmetic import elements
from tiledsl.frontend.bindings import View, describe, is_fragment
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.fragments import is_distributed
from tiledsl.frontend.intrinsics.matrices import no_product
from tiledsl.frontend.intrinsics.memory import place_and_values
from tiledsl.frontend.memory import vector_length
from tiledsl.frontend.views import located, memory_type, places
from tiledsl.ir.core import Value
from tiledsl.ir.ops import async_copy, matrix, ptx, tile
from tiledsl.ir.ops.arith import Bitcast
from tiledsl.ir.types import U32, DType, FragmentType, GlobalType, SharedType
from tiledsl.lang import ir_dtype
from tiledsl.layout.mma import SHAPES, TABLE, find_row


def _own_fragment(call: Call, name: str, value: Any) -> FragmentType:
    """The type of an argument that is a thread's own fragment."""
    if is_fragment(value) and not is_distributed(value):
        return value.type
    fix = "raw instructions take one thread's registers; mma(), load_matrix() and store_matrix() take layouts"
    raise call.error(f"{call.what} takes a fragment of registers as {name}, got {describe(value)}", fix, code="C506")


# -- matrices --------------------------------------------------------------------------------------


def _matrix_attributes(call: Call, memory: View, num: Any) -> dict[str, Any]:
    """What ldmatrix and stmatrix share."""
    count, trans = vector_length(call.frame, call.node, memory, matrix.MATRIX_BYTES), call["trans"]
    if num not in (1, 2, 4):
        shown = num if isinstance(num, int) else describe(num)
        raise call.error(
            f"{call.what} moves 1, 2 or 4 matrices, got {shown}", "move them in several instructions", code="C506"
        )
    dtype = memory_type(memory).dtype
    if trans and dtype.bits != 16:
        message = f"{call.what} with trans=True of {dtype}: only 16-bit elements are transposed"
        raise call.error(message, "leave trans out", code="C506")
    return {"num": num, "trans": trans, "vec": count}


@intrinsic(lang.ptx.ldmatrix)
def _ldmatrix(call: Call) -> Value:
    memory = call.memory("src", SharedType)
    attributes = _matrix_attributes(call, memory, call["num"])
    base, at = located(call.frame, call.node, memory, call["index"])
    op = call.builder.add(matrix.LdMatrix(base, *at, **attributes))
    return call.builder.value(tile.Pack(*op.results, type=FragmentType(U32, (len(op.results),))))


@intrinsic(lang.ptx.stmatrix)
def _stmatrix(call: Call) -> None:
    memory = call.memory("dst", SharedType)
    index, (words,) = place_and_values(call, "index_and_words", ("words",), "dst")
    type_ = _own_fragment(call, "words", words)
    if type_.dtype != U32:
        raise call.error(f"{call.what} takes u32 words, got {type_}", "x.bitcast(u32) of 32-bit elements", code="C506")
    attributes = _matrix_attributes(call, memory, type_.size)
    base, at = located(call.frame, call.node, memory, index)
    call.builder.add(matrix.StMatrix(base, *at, *elements(words, call.frame), **attributes))


@intrinsic(lang.ptx.mma_sync)
def _mma_sync(call: Call) -> Value:
    shape, given = call.choice("shape", tuple(SHAPES)), call["dtypes"]
    dtypes = [ir_dtype(item) for item in given] if isinstance(given, tuple) else []  # pyright: ignore
    if len(dtypes) != 3 or None in dtypes:
        message = f"{call.what}: dtypes= is {describe(given)}"
        raise call.error(message, "three dtypes, of a, b and c: dtypes=(f16, f16, f32)", code="C506")
    a, b, acc = (d for d in dtypes if d is not None)
    if find_row(SHAPES[shape], a.name, b.name, acc.name) is None:
        raise no_product(call, TABLE, a, b, f"{shape} of {a} x {b} into {acc}")
    attributes: dict[str, Any] = {"shape": shape, "a": a, "b": b, "acc": acc}
    wanted = ptx.MmaSync(**attributes).registers()
    registers = [v for name, types in zip("abc", wanted, strict=True) for v in _registers(call, name, types)]
    op = call.builder.add(ptx.MmaSync(*registers, **attributes))
    result = FragmentType(wanted[2][0], call["c"].type.dims)
    return call.builder.value(tile.Pack(*op.results, type=result))


def _registers(call: Call, name: str, wanted: Sequence[DType]) -> list[Value]:
    """The registers of operand `name`, as the instruction takes them."""
    type_ = _own_fragment(call, name, call[name])
    dtype = wanted[0]
    if type_.size != len(wanted) or (type_.dtype != dtype and not (type_.dtype == U32 and dtype.bits == 32)):
        fix = f"make it fragment(({len(wanted)},), {dtype})"
        raise call.error(
            f"{call.what} takes {len(wanted)} {dtype} as {name} of this product, got {type_}", fix, code="C506"
        )
    values = elements(call[name], call.frame)
    return values if type_.dtype == dtype else [call.builder.value(Bitcast(v, to=dtype)) for v in values]


# -- groups of copies ------------------------------------------------------------------------------


@intrinsic(lang.ptx.cp_async)
def _cp_async(call: Call) -> None:
    dst, src = call.memory("dst", SharedType), call.memory("src", GlobalType)
    dtype, other = memory_type(dst).dtype, memory_type(src).dtype
    if dtype != other:
        message = f"{call.what} from {other} to {dtype}: it moves elements as they are"
        raise call.error(message, f"make the tile of {other}", code="C203")
    size = call.width("bytes", dtype, async_copy.CP_BYTES)
    for memory in (dst, src):
        vector_length(call.frame, call.node, memory, size)
    to, at = located(call.frame, call.node, dst, places(call["dst_index"]))
    base, origin = located(call.frame, call.node, src, places(call["src_index"]))
    call.builder.add(async_copy.Cp(to, *at, base, *origin, vec=size // dtype.bytes))


@intrinsic(lang.ptx.commit_group)
def _commit_group(call: Call) -> None:
    call.unit.raw_groups = True
    call.builder.add(async_copy.CommitGroup())
