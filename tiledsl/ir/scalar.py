"""The table of scalar functions: the one place that says which exist and what they mean.

`ir.semantics` gives each row its exact value on NumPy arrays (the folder and the emulator use it);
`backends/ptx/scalar_rules.py` gives each row its PTX. The rules that hold for all rows:

- Floats are IEEE 754, round to nearest even, subnormals kept. A NaN that arithmetic produces is the
  canonical one (f64 0x7fffffffffffffff, f32 0x7fffffff, f16 0x7fff, bf16 0x7fff).
- The formats of matrix operands (tf32, e4m3, e5m2) are of no row's kind: they are moved, converted and bit cast.
  The NaN that conversions make is tf32 0x7fffe000, e4m3 0x7f, e5m2 0x7f.
- Integers wrap. A shift by the width or more gives 0, or the sign for `shr` of a signed value;
  the shift amount has the operand's dtype and is read as unsigned.
- Integer division by zero: ``x floordiv 0 = 0``, ``x ceildiv 0 = 0``, and ``x mod 0 = x``. ``MIN floordiv -1 = MIN``,
  as ``MIN ceildiv -1`` is.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.ir.types import DType

_FLOAT = frozenset({"float"})
_INT = frozenset({"int", "uint", "index"})
_BITS = _INT | {"bool"}
_NUMBER = _FLOAT | _INT
_ANY = _NUMBER | {"bool"}


@dataclass(frozen=True, slots=True)
class ScalarFn:
    """One row. `kinds`: dtype kinds it accepts. `to_bool`: the result is bool, not the dtype.

    `only`: the dtypes it exists for, where that is fewer than the kinds say.
    `ulp`: None for an exact function; for an approximate one its error bound in ULP, outside the
    promise that emulator and GPU agree bit for bit.
    """

    name: str
    arity: int
    kinds: frozenset[str]
    doc: str
    commutative: bool = False
    to_bool: bool = False
    only: frozenset[str] = frozenset()
    ulp: float | None = None

    def accepts(self, dtype: DType) -> bool:
        return dtype.kind in self.kinds and (not self.only or dtype.name in self.only)


_F32 = frozenset({"f32"})
_SQRT = frozenset({"f32", "f64"})
_WORDS = frozenset({"i32", "u32", "i64", "u64"})

_ROWS = (
    ScalarFn("add", 2, _NUMBER, "a + b", commutative=True),
    ScalarFn("sub", 2, _NUMBER, "a - b"),
    ScalarFn("mul", 2, _NUMBER, "a * b", commutative=True),
    ScalarFn("div", 2, _FLOAT, "a / b, correctly rounded"),
    ScalarFn("floordiv", 2, _INT, "quotient rounded towards minus infinity"),
    ScalarFn("ceildiv", 2, _INT, "quotient rounded towards plus infinity"),
    ScalarFn("mod", 2, _INT, "a - floordiv(a, b) * b: the sign of b"),
    ScalarFn("min", 2, _NUMBER, "the smaller; the other one if one is NaN; -0 < +0", commutative=True),
    ScalarFn("max", 2, _NUMBER, "the larger; the other one if one is NaN; -0 < +0", commutative=True),
    ScalarFn("fma", 3, _FLOAT, "a * b + c, rounded once"),
    ScalarFn("neg", 1, _NUMBER, "-a; flips the sign bit of a float (a NaN becomes canonical)"),
    ScalarFn("abs", 1, _NUMBER, "|a|; clears the sign bit of a float (a NaN becomes canonical)"),
    ScalarFn("and", 2, _BITS, "bitwise and", commutative=True),
    ScalarFn("or", 2, _BITS, "bitwise or", commutative=True),
    ScalarFn("xor", 2, _BITS, "bitwise exclusive or", commutative=True),
    ScalarFn("not", 1, _BITS, "all bits inverted; logical not of a bool"),
    ScalarFn("shl", 2, _INT, "a << b"),
    ScalarFn("shr", 2, _INT, "a >> b: arithmetic for signed, logical for unsigned"),
    ScalarFn("eq", 2, _ANY, "a == b", commutative=True, to_bool=True),
    ScalarFn("ne", 2, _ANY, "a != b; true if one is NaN", commutative=True, to_bool=True),
    ScalarFn("lt", 2, _NUMBER, "a < b", to_bool=True),
    ScalarFn("le", 2, _NUMBER, "a <= b", to_bool=True),
    ScalarFn("gt", 2, _NUMBER, "a > b", to_bool=True),
    ScalarFn("ge", 2, _NUMBER, "a >= b", to_bool=True),
    ScalarFn("floor", 1, _FLOAT, "towards minus infinity", only=_SQRT),
    ScalarFn("ceil", 1, _FLOAT, "towards plus infinity", only=_SQRT),
    ScalarFn("trunc", 1, _FLOAT, "towards zero", only=_SQRT),
    ScalarFn("rint", 1, _FLOAT, "to the nearest integer, ties to even", only=_SQRT),
    ScalarFn("sqrt", 1, _FLOAT, "square root, correctly rounded", only=_SQRT),
    ScalarFn("popc", 1, _INT, "number of set bits", only=_WORDS),
    ScalarFn("clz", 1, _INT, "number of leading zero bits", only=_WORDS),
    ScalarFn("rcp_approx", 1, _FLOAT, "1 / a (rcp.approx.f32)", only=_F32, ulp=1),
    ScalarFn("rsqrt_approx", 1, _FLOAT, "1 / sqrt(a) (rsqrt.approx.f32)", only=_F32, ulp=2),
    ScalarFn("exp2_approx", 1, _FLOAT, "2 ** a, 0 for what is subnormal (ex2.approx.ftz.f32)", only=_F32, ulp=2),
    ScalarFn("log2_approx", 1, _FLOAT, "log2(a) (lg2.approx.f32)", only=_F32, ulp=4),
    ScalarFn("tanh_approx", 1, _FLOAT, "tanh(a), relative error 2^-10.987", only=_F32, ulp=8192),
    ScalarFn("sin_approx", 1, _FLOAT, "sin(a), absolute error 2^-20.5 in [-pi, pi]", only=_F32, ulp=8192),
    ScalarFn("cos_approx", 1, _FLOAT, "cos(a), absolute error 2^-20.5 in [-pi, pi]", only=_F32, ulp=8192),
)

SCALAR: dict[str, ScalarFn] = {row.name: row for row in _ROWS}
"""Rows by name. Casts, bit casts and `select` are ops of their own in `ir.ops.arith`."""

OPPOSITE = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}
"""The comparison that holds where another one does not, of integers."""


def converts(src: DType, dst: DType) -> bool:
    """Is there a cast? The formats of matrix operands convert to and from floats and each other only."""
    return not (src.is_matrix or dst.is_matrix) or src.python is dst.python
