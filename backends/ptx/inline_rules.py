"""ptx.inline: the user's PTX text with registers for its operands."""

from __future__ import annotations

import re
from typing import Any, Sequence

from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.types import I16, I32, llvm_type
from tiledsl.errors import CompileError
from tiledsl.ir.ops import ptx
from tiledsl.ir.types import BOOL, TF32, DType

DOLLAR = re.compile(r"\$(?:(\d+)|\{(\d+)\}|\{:uid\}|\$|(.{0,8}))", re.DOTALL)
"""What may follow a dollar sign; the last group is anything else."""


@lowers(ptx.Inline)
def lower_inline(lw: Lowering, op: ptx.Inline) -> Sequence[Any]:
    """A bool is a predicate; what else has 8 or 16 bits shares .b16 registers; a tf32 has a .b32 one, as in mma."""
    _check_operands(op)
    arguments = [_to_register(lw, v.dtype, lw.value(v)) for v in op.operands]
    types = [_register_type(dtype) for dtype in op.outputs]
    pure = not (op.volatile or op.convergent or not types)
    values = lw.asm(op.text, *arguments, results=types, pure=pure, convergent=op.convergent)
    return [lw.from_bits(value, llvm_type(dtype)) for dtype, value in zip(op.outputs, values, strict=True)]


def _register_type(dtype: DType) -> Any:
    if dtype == TF32:
        return I32
    return I16 if dtype != BOOL and dtype.bits <= 16 else llvm_type(dtype)


def _to_register(lw: Lowering, dtype: DType, value: Any) -> Any:
    register = _register_type(dtype)
    return value if register == value.type else lw.widened(value, dtype, register)


def _check_operands(op: ptx.Inline) -> None:
    """Refuse what LLVM would end the process for: an operand that is not there, a stray dollar sign."""
    count = len(op.outputs) + len(op.operands)
    for match in DOLLAR.finditer(op.text):
        number = match.group(1) or match.group(2)
        if match.group(3) is not None or (number is not None and int(number) >= count):
            raise CompileError(
                f"inline PTX has {match.group(0)!r}, which is none of its {count} results and operands",
                op.loc,
                "write $0, $1, ... for results, then operands, ${:uid} for a unique number, $$ for a dollar sign",
                code="C708",
            )
