"""print and assert leave records in memory, which the host reads.

A call of a device function makes ptxas wait after every wgmma (remark C7510), wherever in the kernel it stands; so do
trap and exit where products are in flight (C7518). So neither is a call. A failed assertion is two stores and goes on:
one writes which assertion it is, thread and block to memory of the host, the other one goes to address 0 and ends the
kernel. print writes its operands into a ring that the host empties (`print_records.py`). A module that
was given no memory for them writes nothing.
"""

from __future__ import annotations

from typing import Any

from tiledsl.arch import WARP
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
from tiledsl.backends.ptx.types import I8, I32, I64, POINTERS, global_variable, integer
from tiledsl.backends.stamp_records import RANK, RECORD, REGION, STAMPS, Regions
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


STAMP = (
    "{ .reg .b64 at, time; .reg .b32 low, high, site, next; .reg .pred room, full; "
    "mov.u64 time, CLOCK; mov.b64 {low, high}, time; setp.lt.u32 room, $1, BYTES; "
    f"mov.u64 at, ${STAMPS}; cvt.u64.u32 time, $1; add.u64 at, at, time; mov.u32 site, NUMBER; "
    f"@room st.global.v4.b32 [at], {{low, high, site, $2}}; add.u32 next, $1, {RECORD}; "
    f"and.b32 low, next, {REGION - 1}; setp.eq.u32 full, low, 0; selp.b32 next, -1, next, full; "
    "selp.b32 $0, next, $1, room; }"
)
"""Where the next record goes is a register, $1 and then $0; -1 is nowhere. The first thing is to read the clock."""

BEGIN = (
    "{ .reg .b32 x, y, z, rank; .reg .pred here; mov.u32 x, %ctaid.x; mov.u32 y, %ctaid.y; mov.u32 z, %ctaid.z; "
    "mad.lo.u32 rank, z, HIGH, y; mad.lo.u32 rank, rank, WIDE, x; mad.lo.u32 rank, rank, WARPS, $1; "
    f"mul.lo.u32 rank, rank, {REGION}; setp.lt.u32 here, x, WIDE; setp.lt.and.u32 here, y, HIGH, here; "
    "setp.lt.and.u32 here, z, DEEP, here; setp.eq.and.u32 here, $2, 0, here; selp.b32 $0, rank, -1, here; }"
)


@lowers(debug.Stamp)
def lower_stamp(lw: Lowering, op: debug.Stamp) -> None:
    """Predicated code as well. The first stamp is the first op of the kernel, in the block where a variable belongs
    that LLVM keeps in a register."""
    if lw.stamp is None:
        lw.stamp = lw.b.emit(POINTERS["generic"], f"alloca {I32}, align 4")
        lw.b.store(_first_record(lw), lw.stamp, 4)
    clocks = ("%clock64", "%globaltimer") if not op.at else ("%clock64",)
    for clock in clocks:
        text = STAMP.replace("NUMBER", str(op.site + 1)).replace("CLOCK", clock)
        text = text.replace("BYTES", str(Regions.of(lw.kernel).bytes))
        (following,) = lw.asm(text, lw.b.load(lw.stamp, I32, 4), _place(lw, op), results=[I32])
        lw.b.store(following, lw.stamp, 4)


def _first_record(lw: Lowering) -> Any:
    (thread,) = lw.asm(
        "{ .reg .b32 x, y, z; mov.u32 x, %tid.x; mov.u32 y, %tid.y; mov.u32 z, %tid.z; "
        f"mad.lo.u32 y, z, {(*lw.kernel.threads, 1)[1]}, y; mad.lo.u32 $0, y, {lw.kernel.threads[0]}, x; }}",
        results=[I32], pure=True,
    )  # fmt: skip
    warp, lane = lw.b.lshr(thread, integer(WARP.bit_length() - 1, I32)), lw.b.and_(thread, integer(WARP - 1, I32))
    text = BEGIN
    for name, size in zip(("WIDE", "HIGH", "DEEP"), lw.kernel.cluster, strict=True):
        text = text.replace(name, str(size))
    text = text.replace("WARPS", str(Regions.of(lw.kernel).warps))
    return lw.asm(text, warp, lane, results=[I32], pure=True)[0]


def _place(lw: Lowering, op: debug.Stamp) -> Any:
    """See `stamp_records`. At the begin and the end it is the SM."""
    if not op.at:
        return lw.asm("mov.u32 $0, %smid;", results=[I32], pure=True)[0]
    if op.at != "mbarrier":
        return lw.value(op.which[0]) if op.which else integer(0, I32)
    base, *rank = lw.operands(op.which)
    place = lw.b.sub(lw.b.ptrtoint(base, I32), lw.b.ptrtoint(lw.shared, I32))
    if rank:
        above = lw.b.shl(lw.b.add(rank[0], integer(1, I32)), integer(RANK, I32))
        place = lw.b.or_(place, above)
    return place


def define_variables(lw: Lowering) -> None:
    """What the host finds in the module: where it puts addresses of its memory, and what is written there means."""
    if lw.assertions:
        _variable(lw, FAILURE, ir.Constant(I64, 0))
        _table(lw, ASSERTIONS, encode_assertions(lw.kernel, lw.assertions))
    if lw.stamp is not None:
        regions = _variable(lw, STAMPS, ir.Constant(ir.ArrayType(I8, Regions.of(lw.kernel).bytes), None))
        regions.align = RECORD
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
