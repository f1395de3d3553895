"""print and assert through the CUDA runtime's device functions. (PTX ISA and CUDA guide: vprintf, __assertfail.)

Only here may a kernel have a stack frame: vprintf reads its arguments from memory.
"""

from __future__ import annotations

from typing import Any, Sequence

from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.llvm import ir
from tiledsl.backends.ptx.types import I8, I32, I64, VOID, global_variable, integer, pointer_to, structure
from tiledsl.errors import Loc
from tiledsl.ir.ops import debug, mem
from tiledsl.ir.types import BOOL, F64, DType

__all__ = ["NEEDS_STACK", "lower_assert", "lower_nothing", "lower_print"]

NEEDS_STACK = (debug.Print, debug.Assert)
"""Ops whose calls may bring a stack frame."""

GENERIC = pointer_to("generic")

DIGITS = {64: 17, 32: 9, 16: 5}
"""Decimal digits that tell all floats of a width apart."""


def _string(lw: Lowering, text: str) -> Any:
    """A generic pointer to a zero-terminated constant; equal texts are stored once."""
    data = text.encode() + b"\0"
    if data not in lw.strings:
        type_ = ir.ArrayType(I8, len(data))
        array = global_variable(lw.module, type_, f"$text{len(lw.strings)}", "global")
        array.initializer = ir.Constant(type_, bytearray(data))
        array.global_constant = True
        array.linkage = "private"
        lw.strings[data] = array
    return lw.b.addrspacecast(lw.strings[data], GENERIC)


def _callee(lw: Lowering, name: str, result: Any, arguments: Sequence[Any]) -> Any:
    found = lw.module.globals.get(name)
    return found or ir.Function(lw.module, ir.FunctionType(result, arguments), name)


@lowers(debug.Print)
def lower_print(lw: Lowering, op: debug.Print) -> Sequence[Any]:
    """One vprintf of the whole line. Floats print with the digits that identify them."""
    b = lw.b
    parts = [part.replace("%", "%%") for part in op.format.split("{}")]
    converted = [_printable(lw, v.dtype, lw.value(v)) for v in op.operands]
    text = parts[0] + "".join(spec + part for (spec, _), part in zip(converted, parts[1:], strict=True))
    arguments = ir.Constant(GENERIC, None)
    if converted:
        record = structure(*(value.type for _, value in converted))
        arguments = b.alloca(record, GENERIC)
        for position, (_, value) in enumerate(converted):
            place = b.gep(arguments, [integer(0, I32), integer(position, I32)], source_etype=record)
            b.store(value, place)
    b.call(_callee(lw, "vprintf", I32, [GENERIC, GENERIC]), [_string(lw, text + "\n"), arguments])
    return []


def _printable(lw: Lowering, dtype: DType, value: Any) -> tuple[str, Any]:
    """A printf directive and the value as C's variadic calls pass it."""
    b = lw.b
    if dtype == BOOL:
        return "%s", b.select(value, _string(lw, "True"), _string(lw, "False"))
    if dtype.is_float:
        double = value if dtype == F64 else b.fpext(value, ir.DoubleType())
        return f"%.{DIGITS[dtype.bits]}g", double
    letter = "d" if dtype.is_signed else "u"
    if dtype.bits == 64:
        return f"%ll{letter}", value
    if dtype.bits < 32:
        value = b.sext(value, I32) if dtype.is_signed else b.zext(value, I32)
    return f"%{letter}", value


@lowers(debug.Assert)
def lower_assert(lw: Lowering, op: debug.Assert) -> Sequence[Any]:
    b = lw.b
    fail, proceed = lw.new_block("assert.fail"), lw.new_block("assert.ok")
    b.cbranch(lw.value(op.condition), proceed, fail)
    b.position_at_end(fail)
    _call_assertfail(lw, op.message or "assertion failed", op.loc)
    b.unreachable()
    b.position_at_end(proceed)
    return []


def _call_assertfail(lw: Lowering, message: str, loc: Loc) -> None:
    types = [GENERIC, GENERIC, I32, GENERIC, I64]
    callee = _callee(lw, "__assertfail", VOID, types)
    callee.attributes.add("noreturn")
    function = loc.function or lw.kernel.name
    arguments = [_string(lw, message), _string(lw, loc.file), integer(loc.line, I32), _string(lw, function)]
    lw.b.call(callee, [*arguments, integer(1, I64)], attrs=("noreturn",))


@lowers(debug.Breakpoint, mem.Within)
def lower_nothing(lw: Lowering, op: debug.Breakpoint | mem.Within) -> Sequence[Any]:
    """What the emulator alone does."""
    return []
