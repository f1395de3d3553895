"""Several scalars as one LLVM vector, and several registers as an operand of inline PTX."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from tiledsl.backends.ptx.context import Lowering
from tiledsl.backends.ptx.llvm import ir
from tiledsl.backends.ptx.types import I32, integer, llvm_type
from tiledsl.ir.core import Value
from tiledsl.ir.ops import arith
from tiledsl.ir.types import BF16, F16, F32, DType

PAIRS = {F16: "f16x2", BF16: "bf16x2"}


def vector_of(lw: Lowering, values: Sequence[Any]) -> Any:
    """A vector of LLVM values of one type."""
    vector = ir.Constant(ir.VectorType(values[0].type, len(values)), ir.Undefined)
    for position, value in enumerate(values):
        vector = lw.b.insert_element(vector, value, integer(position, I32))
    return vector


def are_rounded_pairs(values: Sequence[Value]) -> bool:
    """True if `rounded_pairs` converts these."""
    dtype = values[0].type
    casts = [op for v in values if isinstance(op := v.op, arith.Cast) and op.src.type == F32]
    return isinstance(dtype, DType) and dtype in PAIRS and len(casts) == len(values) and len(values) % 2 == 0


def rounded_pairs(lw: Lowering, values: Sequence[Value]) -> list[Any] | None:
    """16-bit floats as 32-bit words of two, if all of them are f32 that are rounded: one instruction a pair.

    (PTX ISA: cvt.rn.f16x2.f32.) LLVM finds such pairs as well, unless it has moved single conversions away from where
    they meet, into the two sides of a branch.
    """
    if not are_rounded_pairs(values):
        return None
    dtype = values[0].dtype
    pair = ir.VectorType(llvm_type(dtype), 2)
    name = f"llvm.nvvm.ff2{PAIRS[dtype]}.rn"
    wide = [lw.value(op.src) for v in values if isinstance(op := v.op, arith.Cast)]
    rounded = [lw.intrinsic(name, pair, high, low) for low, high in zip(wide[::2], wide[1::2], strict=True)]
    return [lw.b.bitcast(each, I32) for each in rounded]


@cache
def numbered(start: int, end: int) -> str:
    """Operands `start` to `end` - 1 of inline PTX as one: ``{$0, $1}``."""
    return "{" + ", ".join(f"${i}" for i in range(start, end)) + "}"


def product_names(*dtypes: str) -> str:
    """The dtypes of a product as mma and wgmma call them."""
    return ".".join({"i8": "s8", "i32": "s32"}.get(name, name) for name in dtypes)
