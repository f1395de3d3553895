"""print and assert leave records in memory, which the host reads.

A call of a device function makes ptxas wait after every wgmma (remark C7510), wherever in the kernel it stands; so do
trap and exit where products are in flight (C7518). So neither is a call. A failed assertion is two stores and goes on:
one writes which assertion it is, thread and block to memory of the host, the other one goes to address 0 and ends the
kernel. print writes its operands into a ring that the host empties (`print_records.py`). A module that
was given no memory for them writes nothing.
"""

from __future__ import annotations

from typing import Any

from tiledsl.backends.print_records import (
    CAPACITY,
    LINES,
    LOST,
    PRINTS,
    RECORDS,
    SITE,
    TIME,
    WORD,
    encode_prints,
    record_bytes,
)
from tiledsl.backends.protocol import ASSERTIONS, FAILURE, encode_assertions
from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.llvm import ir
from tiledsl.backends.ptx.types import I8, I64, global_variable
from tiledsl.ir.ops import debug, mem

FAIL = (
    "{ .reg .b64 at, nowhere; .reg .b32 number, x, y, z, block, upper; .reg .pred there; "
    f"ld.global.b64 at, [${FAILURE}]; setp.ne.b64 there, at, 0; mov.u32 number, NUMBER; "
    "mov.u32 x, %tid.x; mov.u32 y, %tid.y; mov.u32 z, %tid.z; shl.b32 y, y, 10; shl.b32 z, z, 20; "
    "or.b32 x, x, y; or.b32 x, x, z; mov.u32 block, %ctaid.x; mov.u32 upper, %ctaid.y; mov.u32 z, %ctaid.z; "
    "shl.b32 z, z, 16; or.b32 upper, upper, z; @there st.global.v4.b32 [at], {number, x, block, upper}; "
    "fence.acq_rel.sys; mov.b64 nowhere, 0; st.volatile.global.b32 [nowhere], number; }"
)
"""One store of 16 bytes, so that of several threads that fail one's record is whole; there before the illegal one."""


RESERVE = (
    "{ .reg .b64 ring, size, ticket, read, at; .reg .pred there, room, full; "
    f"ld.global.v2.b64 {{ring, size}}, [${LINES}]; setp.ne.b64 there, ring, 0; mov.b64 ticket, 0; mov.b64 read, 0; "
    f"@there atom.relaxed.gpu.global.add.u64 ticket, [${LINES}+{2 * WORD}], 1; "
    f"@there ld.acquire.sys.global.u64 read, [ring]; add.u64 read, read, {CAPACITY}; "
    "setp.lt.and.s64 room, ticket, read, there; setp.ge.and.s64 full, ticket, read, there; "
    f"@full red.relaxed.gpu.global.add.u64 [${LINES}+{2 * WORD}], -1; "
    f"@full red.relaxed.gpu.global.add.u64 [ring+{LOST}], 1; "
    f"@room atom.acq_rel.gpu.global.add.u64 ticket, [${LINES}+{3 * WORD}], 1; "
    f"and.b64 at, ticket, {CAPACITY - 1}; mad.lo.u64 at, at, size, ring; add.u64 ticket, ticket, 1; "
    f"mov.u64 read, NUMBER; @room st.global.b64 [at+{RECORDS + SITE}], read; mov.u64 read, %globaltimer; "
    f"@room st.global.b64 [at+{RECORDS + TIME}], read; "
)
"""The counter at `LOST` is in memory of the host, which only reads it: atomic for this GPU is enough, and needs no
atomic operations across PCIe. What the host read is acquired by who draws a ticket for that room (acq_rel)."""

PUBLISH = f"@room st.release.sys.global.u64 [at+{RECORDS}], ticket; }}"


@lowers(debug.Print)
def lower_print(lw: Lowering, op: debug.Print) -> None:
    """A record in the ring, or one line more that is lost: predicated code, so that no branch divides the block."""
    words = [lw.widened(lw.value(v), v.dtype, I64) for v in op.operands]
    stores = "".join(f"@room st.global.b64 [at+{RECORDS + record_bytes(i)}], ${i}; " for i in range(len(words)))
    lw.asm(RESERVE.replace("NUMBER", str(len(lw.prints))) + stores + PUBLISH, *words)
    lw.prints.append(op)


@lowers(debug.Assert)
def lower_assert(lw: Lowering, op: debug.Assert) -> None:
    b = lw.b
    fail, proceed = b.new_block("assert.fail"), b.new_block("assert.ok")
    b.cbranch(lw.value(op.condition), proceed, fail)
    b.block = fail
    lw.assertions.append(op)
    lw.asm(FAIL.replace("NUMBER", str(len(lw.assertions))))
    b.branch(proceed)
    b.block = proceed


def define_variables(lw: Lowering) -> None:
    """What the host finds in the module: where it puts addresses of its memory, and what is written there means."""
    if lw.assertions:
        _variable(lw, FAILURE, ir.Constant(I64, 0))
        _table(lw, ASSERTIONS, encode_assertions(lw.kernel, lw.assertions))
    if lw.prints:
        size = record_bytes(max(len(op.operands) for op in lw.prints))
        words = _variable(lw, LINES, ir.Constant(ir.ArrayType(I64, 4), [0, size, 0, 0]))
        words.align = 2 * WORD
        _table(lw, PRINTS, encode_prints(lw.kernel, lw.prints))


def _variable(lw: Lowering, name: str, initial: Any) -> Any:
    variable = global_variable(lw.module, initial.type, name, "global")
    variable.initializer = initial
    return variable


def _table(lw: Lowering, name: str, data: bytes) -> None:
    table = _variable(lw, name, ir.Constant(ir.ArrayType(I8, len(data)), bytearray(data)))
    table.global_constant = True


@lowers(debug.Breakpoint, mem.Within)
def lower_nothing(lw: Lowering, op: debug.Breakpoint | mem.Within) -> None:
    """What the emulator alone does."""
