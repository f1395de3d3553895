"""Atomic operations and fences: inline PTX. (PTX ISA: ld, st, atom, fence.)

LLVM has these instructions, but for NVPTX it drops the order and the scope of ``atomicrmw`` (LLVM 22), and it may turn
one operation into another that it holds equal. Inline PTX with a side effect and a clobber of memory is neither moved,
merged, removed nor repeated, and no plain access moves across it.
"""

from __future__ import annotations

from typing import Any, Sequence

from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.llvm import ir
from tiledsl.backends.ptx.types import I16, integer, llvm_type
from tiledsl.ir.atomics import ATOMICS
from tiledsl.ir.core import OPS
from tiledsl.ir.ops import gpu, mem
from tiledsl.ir.types import BF16, BOOL, DType


@lowers(*(OPS[f"mem.atomic_{row}"] for row in ATOMICS))
def lower_atomic(lw: Lowering, op: mem.Atomic) -> Sequence[Any]:
    """Values travel as their bits, which PTX allows for floats, and 8 bits in registers of 16."""
    dtype = op.dtype
    values = [lw.bits(v) for v in lw.operands(op.values)]
    if dtype.bits == 8:  # a bool is one bit in registers
        values = [lw.b.zext(v, I16) for v in values]
    held = [ir.IntType(max(16, dtype.bits))] * len(op.results)
    found = lw.asm(_text(lw, op), lw.value(op.ptr), *values, results=held, early=True)
    if dtype == BOOL:
        return [lw.b.icmp("ne", bits, integer(0, I16)) for bits in found]
    return [lw.from_bits(bits, llvm_type(dtype)) for bits in found]


def _text(lw: Lowering, op: mem.Atomic) -> str:
    how, space, dtype = _how(op.order, op.reach), mem.pointer(op).space, op.dtype
    match op.fn.name:
        case "load":
            return f"ld.{how}.{space}.b{dtype.bits} $0, [$1];"
        case "store":
            return f"st.{how}.{space}.b{dtype.bits} [$0], $1;"
        case "add" if dtype == BF16 and "bf16_atomics" not in lw.target.features:
            return _bf16_cas_loop(f"atom.{how}.{space}", f"ld.relaxed.{op.reach}.{space}")
        case name:
            last = ", $3" if op.fn.values == 2 else ""
            return f"atom.{how}.{space}.{_suffix(name, dtype)} $0, [$1], $2{last};"


def _how(order: str, reach: str) -> str:
    """Order and scope. A volatile access is PTX's relaxed one of scope sys, and is not to be merged with others."""
    return order if order == "volatile" else f"{order}.{reach}"


def _suffix(name: str, dtype: DType) -> str:
    """The operation and the type that the instruction names."""
    match name:
        case "add" if dtype.is_float:
            return f"add.noftz.{dtype}" if dtype.bits == 16 else f"add.{dtype}"
        case "add":
            return f"add.u{dtype.bits}"  # two's complement: signed is unsigned
        case "min" | "max":
            return f"{name}.{'s' if dtype.is_signed else 'u'}{dtype.bits}"
        case _:
            return f"{'exch' if name == 'exchange' else name}.b{dtype.bits}"


def _bf16_cas_loop(atom: str, load: str) -> str:
    """Before sm_90 there is no bf16 addition: compare and swap 16 bits until nobody came between."""
    return (
        "{ .reg .pred again; .reg .b16 seen, sum, one; mov.b16 one, 0x3F80; "
        f"{load}.b16 seen, [$1]; "
        "ADD${:uid}: fma.rn.bf16 sum, seen, one, $2; "
        f"{atom}.cas.b16 $0, [$1], seen, sum; "
        "setp.ne.b16 again, $0, seen; mov.b16 seen, $0; @again bra ADD${:uid}; }"
    )


@lowers(gpu.Fence)
def lower_fence(lw: Lowering, op: gpu.Fence) -> None:
    lw.asm(f"fence.{_how('acq_rel', op.reach)};")
