"""Scalar arithmetic: constants, the functions of the scalar table, casts and selection."""

from __future__ import annotations

from typing import Any, Sequence

from tiledsl.ir.core import OPS, Op, Value, attribute, operand
from tiledsl.ir.scalar import SCALAR, ScalarFn
from tiledsl.ir.types import BOOL, I32, I64, DType, FragmentType, Type

__all__ = ["Bitcast", "Cast", "Constant", "Scalar", "Select", "scalar"]


class Constant(Op):
    """A literal of `dtype`. `value` is an int, bool or float that the dtype represents exactly.

    A NaN, whatever its payload, stands for the canonical one.
    """

    name = "arith.constant"
    value = attribute[Any](object)
    dtype = attribute(DType)

    def infer(self) -> Sequence[Type]:
        return (self.dtype,)

    def verify(self) -> None:
        kind = self.dtype.kind
        wanted = {"float": float, "bool": bool}.get(kind, int)
        self.require(type(self.value) is wanted, f"a {self.dtype} constant holds a {wanted.__name__}")
        if kind in ("int", "index"):
            half = 1 << (self.dtype.bits - 1)
            self.require(-half <= self.value < half, f"{self.value} does not fit {self.dtype}")
        if kind == "uint":
            self.require(0 <= self.value < 1 << self.dtype.bits, f"{self.value} does not fit {self.dtype}")


class Scalar(Op):
    """Base of the ops that the scalar table generates: one class a row, named ``arith.<row>``.

    nowrap: an integer add, sub or mul whose result is used only where it fits: LLVM may then turn a
    product in a loop into a running sum. `expand` says so of addresses, whose range a launch proves.
    """

    fn: ScalarFn
    nowrap = attribute(bool, False)

    def infer(self) -> Sequence[Type]:
        return (BOOL if self.fn.to_bool else self.operands[0].type,)

    def verify(self) -> None:
        self.require(len(self.operands) == self.fn.arity, f"takes {self.fn.arity} operands")
        first = self.operands[0].type
        self.require(isinstance(first, DType) and self.fn.accepts(first), f"not defined for {first}")
        self.require(all(v.type == first for v in self.operands), "operands differ in dtype")
        if self.nowrap:
            plain = self.fn.name in ("add", "sub", "mul") and first in (I32, I64)
            self.require(plain, "nowrap is for add, sub and mul of i32 and i64")


for _row in SCALAR.values():
    type(f"Scalar_{_row.name}", (Scalar,), {"name": f"arith.{_row.name}", "fn": _row, "__doc__": _row.doc})


def scalar(fn: str, *operands: Value, **kwargs: Any) -> Op:
    """Construct the op of a row of the table: ``scalar("add", a, b, loc=loc)``."""
    return OPS[f"arith.{fn}"](*operands, **kwargs)


class Cast(Op):
    """Convert between dtypes.

    To a float: rounded to nearest even (an f64 to f16 or bf16 in one rounding); overflow gives
    infinity. From float to integer: truncated towards zero, saturated, NaN gives 0. Between
    integers: the low bits, or sign/zero extended by the source's signedness. To bool: ``x != 0``.
    From bool: 0 or 1.
    """

    name = "arith.cast"
    to = attribute(DType)
    src = operand(0)

    def infer(self) -> Sequence[Type]:
        return (self.to,)

    def verify(self) -> None:
        self.require(isinstance(self.src.type, DType), "casts a scalar")


class Bitcast(Op):
    """Reinterpret the bits as another dtype of the same width (not to or from bool and index)."""

    name = "arith.bitcast"
    to = attribute(DType)
    src = operand(0)

    def infer(self) -> Sequence[Type]:
        return (self.to,)

    def verify(self) -> None:
        src = self.src.type
        self.require(isinstance(src, DType) and src.bits == self.to.bits, f"{src} and {self.to} differ in width")
        assert isinstance(src, DType)
        self.require(not {src.kind, self.to.kind} & {"bool", "index"}, "bool and index have no bit pattern")


class Select(Op):
    """``condition ? a : b`` on scalars; both are evaluated."""

    name = "arith.select"
    condition, a, b = operand(0), operand(1), operand(2)

    def infer(self) -> Sequence[Type]:
        return (self.operands[1].type,)

    def verify(self) -> None:
        self.require(self.condition.type == BOOL, "the condition is not a bool")
        self.require(isinstance(self.a.type, (DType, FragmentType)), "selects scalars or fragments")
        self.require(self.a.type == self.b.type, f"{self.a.type} against {self.b.type}")
