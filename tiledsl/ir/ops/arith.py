"""Scalar arithmetic: constants, the functions of the scalar table, casts and selection."""

from __future__ import annotations

from typing import Any, Sequence

from tiledsl.ir.core import Op, Pure, Value, attribute, operand, operands
from tiledsl.ir.facts import NanBits, by
from tiledsl.ir.formats import FORMATS
from tiledsl.ir.scalar import SCALAR, ScalarFn, converts
from tiledsl.ir.types import BF16, BOOL, F32, I32, I64, INDEX, TF32, U32, DType, FragmentType, Type


class _Arithmetic(Pure):
    varies = "operands"
    nan = "computes"


class Constant(_Arithmetic):
    """A literal of `dtype`. `value` is an int, bool or float that the dtype represents exactly.

    A NaN, whatever its payload, stands for the canonical one.
    """

    name = "arith.constant"
    gives = ("dtype",)
    value = attribute[Any](object)
    dtype = attribute(DType)

    def verify(self) -> None:
        wanted = self.dtype.python
        if type(self.value) is not wanted:
            self.refuse(f"a {self.dtype} constant holds a {wanted.__name__}")
        if wanted is float:
            format_ = FORMATS["f32" if self.dtype is TF32 else self.dtype.name]  # the low bits of a tf32 are kept
            if not format_.holds(self.value):
                self.refuse(f"{self.value!r} is no {self.dtype}")
        if self.dtype.is_integer:
            least, most = self.dtype.limits
            if not least <= self.value <= most:
                self.refuse(f"{self.value} does not fit {self.dtype}")


class Scalar(_Arithmetic):
    """Base of the ops that the scalar table generates: one class a row, named ``arith.<row>``.

    nowrap: an integer add, sub or mul whose result is used only where it fits: LLVM may then turn a
    product in a loop into a running sum. `expand` says so of addresses, whose range a launch proves. Of an index: it
    is as small as an extent in every launch of a 32-bit specialisation, which the analysis of intervals then believes.
    """

    fn: ScalarFn
    nowrap = attribute(bool, False)
    values = operands(0)

    def infer(self) -> Sequence[Type]:
        return (BOOL if self.fn.to_bool else self.operands[0].type,)

    def verify(self) -> None:
        if len(self.operands) != self.fn.arity:
            self.refuse(f"takes {self.fn.arity} operands")
        first = self.operands[0].type
        if not (isinstance(first, DType) and self.fn.accepts(first)):
            self.refuse(f"not defined for {first}")
        self.require(all(v.type == first for v in self.operands), "operands differ in dtype")
        if self.nowrap:
            plain = self.fn.name in ("add", "sub", "mul") and first in (I32, I64, INDEX)
            self.require(plain, "nowrap is for add, sub and mul of i32, i64 and index")


def _of_row(row: ScalarFn) -> type[Scalar]:
    return type(f"Scalar_{row.name}", (Scalar,), {"name": f"arith.{row.name}", "fn": row, "__doc__": row.doc})


_SCALARS = {row.name: _of_row(row) for row in SCALAR.values()}


def scalar(fn: str, *operands: Value, **kwargs: Any) -> Op:
    """Construct the op of a row of the table: ``scalar("add", a, b, loc=loc)``."""
    return _SCALARS[fn](*operands, **kwargs)


CARRIERS = frozenset({(BF16, F32), (TF32, F32)})
"""Casts that move bits; what a NaN becomes is seen if the result's is."""


def _cast_nan(op: Any) -> NanBits:
    """A cast to tf32 tells NaNs apart: it drops the low bits of a payload."""
    return "carries" if (op.src.type, op.to) in CARRIERS else "sees" if op.to == TF32 else "computes"


class Cast(_Arithmetic):
    """Convert between dtypes.

    To a float: rounded to nearest even (an f64 to f16 or bf16 in one rounding); overflow gives
    infinity. A NaN gives the canonical one, but bf16 to f32 is a move: the bits become the upper half,
    so that the canonical 0x7fff becomes 0x7fff0000. From float to integer: truncated towards zero,
    saturated, NaN gives 0. Between integers: the low bits, or sign/zero extended by the source's
    signedness. To bool: ``x != 0``. From bool: 0 or 1.

    The formats of matrix operands convert to and from floats and each other only, rounded once:

    - To tf32: to nearest, ties away from zero, to 11 significant bits (subnormals: to multiples of 2^-136); overflow
      gives infinity. An f32 NaN keeps its sign and upper 19 bits, so that the canonical one becomes 0x7fffe000, and
      one with a payload in the low 13 bits alone becomes infinity. The PTX ISA leaves the layout of tf32 open; this is
      what ptxas makes of cvt.rna.tf32.f32 on every target: integer instructions. Other floats become an f32 first.
    - From tf32: to f32 the bits as they are, the low 13 and a NaN's payload included; to others from that f32.
    - To e4m3 and e5m2: to nearest even; what is larger than the largest number (448, 57344), infinity included,
      gives that number with its sign; a NaN gives 0x7f. (PTX ISA: cvt.rn.satfinite.)
    - From e4m3 and e5m2: exact, and a NaN gives the canonical one.
    """

    name = "arith.cast"
    nan = by(_cast_nan)
    gives = ("to",)
    to = attribute(DType)
    src = operand(0, DType)

    def verify(self) -> None:
        src = self.src.dtype
        if not converts(src, self.to):
            self.refuse(f"no conversion from {src} to {self.to}")


class Bitcast(_Arithmetic):
    """Reinterpret the bits as another dtype of the same width (not to or from bool and index)."""

    name = "arith.bitcast"
    nan = "sees"
    gives = ("to",)
    to = attribute(DType)
    src = operand(0, DType)

    def verify(self) -> None:
        src = self.src.dtype
        self.require(src.bits == self.to.bits, f"{src} and {self.to} differ in width")
        self.require(not {src.kind, self.to.kind} & {"bool", "index"}, "bool and index have no bit pattern")


class Select(_Arithmetic):
    """``condition ? a : b`` on scalars; both are evaluated."""

    name = "arith.select"
    nan = "chooses"
    gives = ("a",)
    condition, a, b = operand(0, BOOL), operand(1), operand(2)

    def verify(self) -> None:
        self.require(isinstance(self.a.type, (DType, FragmentType)), "selects scalars or fragments")
        self.require(self.a.type == self.b.type, f"{self.a.type} against {self.b.type}")


class PackWord(_Arithmetic):
    """A u32 of 2 or 4 scalars of 16 or 8 bits (not bool), the first one lowest."""

    name = "arith.pack_word"
    level = "thread"
    nan = "carries"
    gives = (U32,)
    elements = operands(0)

    def verify(self) -> None:
        types = {v.type for v in self.elements}
        self.require(len(types) == 1, "elements differ in dtype")
        _check_word(self, self.elements[0].type, len(self.elements))


class UnpackWord(_Arithmetic):
    """The 2 or 4 scalars of dtype `to` that a u32 holds, the lowest one first."""

    name = "arith.unpack_word"
    level = "thread"
    nan = "sees"
    to = attribute(DType)
    word = operand(0, U32)

    def infer(self) -> Sequence[Type]:
        return (self.to,) * (U32.bits // self.to.bits)

    def verify(self) -> None:
        _check_word(self, self.to, len(self.results))


def _check_word(op: Op, type_: Type, count: int) -> None:
    dtype = op.expect(type_, DType)
    op.require(dtype != BOOL and dtype.bits in (8, 16), f"{dtype} does not fill a word")
    op.require(count * dtype.bits == U32.bits, f"{count} elements of {dtype.bits} bits are not a word")
