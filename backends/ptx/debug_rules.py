"""print through the CUDA runtime's vprintf, assert by a record that the host reads.

A call of a device function makes ptxas wait after every wgmma (remark C7510), wherever in the kernel it stands; so do
trap and exit where products are in flight (C7518). So a failed assertion is two stores and goes on: one writes which
assertion it is, thread and block to memory of the host, the other one goes to address 0 and ends the kernel. A kernel
with wgmma cannot print. Only print may bring a stack frame: vprintf reads its arguments from memory. (CUDA guide:
formatted output.)
"""

from __future__ import annotations

from typing import Any, Sequence

from tiledsl.backends.protocol import ASSERTIONS, FAILURE, encode_assertions
from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.llvm import ir
from tiledsl.backends.ptx.types import I8, I32, I64, VOID, global_variable, integer, pointer_to, structure
from tiledsl.errors import CompileError
from tiledsl.ir.ops import debug, mem, wgmma
from tiledsl.ir.types import BOOL, F64, DType

__all__ = ["define_assertions", "lower_assert", "lower_nothing", "lower_print"]

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


FAIL = (
    "{ .reg .b64 at, nowhere; .reg .b32 number, x, y, z, block, upper; .reg .pred there; "
    f"ld.global.b64 at, [${FAILURE}]; setp.ne.b64 there, at, 0; mov.u32 number, $0; "
    "mov.u32 x, %tid.x; mov.u32 y, %tid.y; mov.u32 z, %tid.z; shl.b32 y, y, 10; shl.b32 z, z, 20; "
    "or.b32 x, x, y; or.b32 x, x, z; mov.u32 block, %ctaid.x; mov.u32 upper, %ctaid.y; mov.u32 z, %ctaid.z; "
    "shl.b32 z, z, 16; or.b32 upper, upper, z; @there st.global.v4.b32 [at], {number, x, block, upper}; "
    "fence.acq_rel.sys; mov.b64 nowhere, 0; st.volatile.global.b32 [nowhere], number; }"
)
"""One store of 16 bytes, so that of several threads that fail one's record is whole; there before the illegal one."""


@lowers(debug.Print)
def lower_print(lw: Lowering, op: debug.Print) -> Sequence[Any]:
    """One vprintf of the whole line. Floats print with the digits that identify them."""
    if any(isinstance(other, wgmma.Instruction) for other in lw.kernel.walk()):
        raise CompileError(
            "print() in a kernel with wgmma is for the emulator: on a GPU it is a call, behind which ptxas "
            "would wait for every wgmma",
            op.loc,
            'run the kernel with device="emulator", check with assert_(condition, message), which is no call, '
            "or store the values to a tensor",
        )
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
    vprintf = lw.module.globals.get("vprintf")
    vprintf = vprintf or ir.Function(lw.module, ir.FunctionType(I32, [GENERIC, GENERIC]), "vprintf")
    b.call(vprintf, [_string(lw, text + "\n"), arguments])
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
    lw.assertions.append(op)
    lw.asm(FAIL, "n,~{memory}", VOID, integer(len(lw.assertions), I32), side_effect=True)
    b.branch(proceed)
    b.position_at_end(proceed)
    return []


def define_assertions(lw: Lowering) -> None:
    """What the host finds in the module: where it puts the address of the record, and what each number means."""
    if not lw.assertions:
        return
    address = global_variable(lw.module, I64, FAILURE, "global")
    address.initializer = ir.Constant(I64, 0)
    data = encode_assertions(lw.kernel, lw.assertions)
    type_ = ir.ArrayType(I8, len(data))
    sites = global_variable(lw.module, type_, ASSERTIONS, "global")
    sites.initializer, sites.global_constant = ir.Constant(type_, bytearray(data)), True


@lowers(debug.Breakpoint, mem.Within)
def lower_nothing(lw: Lowering, op: debug.Breakpoint | mem.Within) -> Sequence[Any]:
    """What the emulator alone does."""
    return []
