"""ptx.inline: the user's PTX text with registers for its operands."""

from __future__ import annotations

import re
from typing import Any, Sequence

from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.llvm import ir
from tiledsl.backends.ptx.types import VOID, llvm_type, structure
from tiledsl.errors import CompileError
from tiledsl.ir.ops import ptx
from tiledsl.ir.types import BOOL, DType

__all__ = ["lower_inline"]

I16 = ir.IntType(16)

DOLLAR = re.compile(r"\$(?:(\d+)|\{(\d+)\}|\{:uid\}|\$|(.{0,8}))", re.DOTALL)
"""What may follow a dollar sign; the last group is anything else."""


def _constraint(dtype: DType) -> str:
    """The register class: a bool is a predicate, 8 and 16 bits share .b16 ones, a tf32 has a .b32 one, as in mma."""
    if dtype == BOOL:
        return "b"
    if dtype.is_float and dtype.bits >= 32:
        return {32: "f", 64: "d"}[dtype.bits]
    return {8: "h", 16: "h", 32: "r", 64: "l"}[dtype.bits]


def _register_type(dtype: DType) -> Any:
    """What travels in that register: everything of 16 bits or less but a bool is an i16."""
    return I16 if dtype != BOOL and dtype.bits <= 16 else llvm_type(dtype)


@lowers(ptx.Inline)
def lower_inline(lw: Lowering, op: ptx.Inline) -> Sequence[Any]:
    _check_operands(op)
    arguments = [_to_register(lw, v.dtype, lw.value(v)) for v in op.operands]
    types = [_register_type(dtype) for dtype in op.outputs]
    result = VOID if not types else types[0] if len(types) == 1 else structure(*types)
    constraints = [f"={_constraint(dtype)}" for dtype in op.outputs]
    constraints += [_constraint(v.dtype) for v in op.operands]
    side_effect = op.volatile or op.convergent or not types
    if side_effect:
        constraints.append("~{memory}")
    value = lw.asm(
        op.text, ",".join(constraints), result, *arguments, side_effect=side_effect, convergent=op.convergent
    )
    if not types:
        return []
    values = [value] if len(types) == 1 else [lw.b.extract_value(value, i) for i in range(len(types))]
    return [_from_register(lw, dtype, v) for dtype, v in zip(op.outputs, values, strict=True)]


def _check_operands(op: ptx.Inline) -> None:
    """Refuse what LLVM would end the process for: an operand that is not there, a stray dollar sign."""
    count = len(op.outputs) + len(op.operands)
    for match in DOLLAR.finditer(op.text):
        number = match.group(1) or match.group(2)
        if number is not None and int(number) >= count:
            raise CompileError(
                f"inline PTX uses ${number}, but it has {count} results and operands, $0 to ${count - 1}"
                if count
                else f"inline PTX uses ${number}, but it has no results and no operands",
                op.loc,
                "results are numbered first, then operands",
            )
        if match.group(3) is not None:
            raise CompileError(
                f"inline PTX has a dollar sign that names nothing: {match.group(0)!r}",
                op.loc,
                "write $0, $1, ... for results and operands, ${:uid} for a unique number, $$ for a dollar sign",
            )


def _to_register(lw: Lowering, dtype: DType, value: Any) -> Any:
    if dtype.bits == 8 and dtype != BOOL:
        return lw.b.sext(value, I16) if dtype.is_signed else lw.b.zext(value, I16)
    return lw.b.bitcast(value, I16) if dtype.is_float and dtype.bits == 16 else value


def _from_register(lw: Lowering, dtype: DType, value: Any) -> Any:
    if dtype.bits == 8 and dtype != BOOL:
        return lw.b.trunc(value, llvm_type(dtype))
    return lw.b.bitcast(value, llvm_type(dtype)) if dtype.is_float and dtype.bits == 16 else value
