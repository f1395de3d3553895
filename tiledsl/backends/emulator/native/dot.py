"""The truncated sums of `ir.tensor_core`, compiled: the loop in which the emulator spends its time on wgmma.

The definition stays `tensor_core._add`; a test holds both equal.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from tiledsl.backends.machine_code import address_of, available, compiled, splat
from tiledsl.ir.formats import FORMATS
from tiledsl.ir.tensor_core import LEAST_EXPONENT, Add, Formats, Terms, exponents

LANES = 8
"""Results side by side; the n of wgmma is a multiple of it."""

_BIAS, _MANTISSA = 1023, 52


def _loaded(name: str, type_: str, at: str) -> str:
    """Defines the vector ``%name.v`` of the elements of the array ``%name`` from number `at` on."""
    return f"""
  %{name}.p = getelementptr {type_}, ptr %{name}, i64 {at}
  %{name}.v = load <8 x {type_}>, ptr %{name}.p, align 8"""


def _row(name: str, type_: str, k: str) -> str:
    """The same for row `k` of an array of %n a row, from column %j on."""
    return f"""
  %{name}.row = mul i64 {k}, %n
  %{name}.at = add i64 %{name}.row, %j{_loaded(name, type_, f"%{name}.at")}"""


def _repeated(name: str, type_: str, k: str) -> str:
    """Defines the vector ``%name.v``, in every place row `k` and column %i of an array of %m a row."""
    return f"""
  %{name}.row = mul i64 {k}, %m
  %{name}.at = add i64 %{name}.row, %i
  %{name}.p = getelementptr {type_}, ptr %{name}, i64 %{name}.at
  %{name}.value = load {type_}, ptr %{name}.p{splat(f"{name}.v", type_, f"%{name}.value", LANES)}"""


_IR = f"""
define i64 @run(ptr noalias %out, ptr %a, ptr %b, ptr %c, ptr %ea, ptr %eb, i64 %m, i64 %n, i64 %k, i64 %bits,
                i64 %least)
{{
entry:
  %total = mul i64 %m, %n{splat("least.v", "i64", "%least", LANES)}
  br label %body
body:
  %at = phi i64 [ 0, %entry ], [ %at.next, %body.end ]
  %i = udiv i64 %at, %n
  %j = urem i64 %at, %n{_loaded("c", "double", "%at")}
  %c.bits = bitcast <8 x double> %c.v to <8 x i64>
  %c.upper = lshr <8 x i64> %c.bits, splat (i64 {_MANTISSA})
  %c.biased = and <8 x i64> %c.upper, splat (i64 {2 * _BIAS + 1})
  %c.exponent = sub <8 x i64> %c.biased, splat (i64 {_BIAS})
  %c.clamped = call <8 x i64> @llvm.smax.v8i64(<8 x i64> %c.exponent, <8 x i64> %least.v)
  %c.zero = icmp eq <8 x i64> %c.biased, zeroinitializer
  %e.c = select <8 x i1> %c.zero, <8 x i64> splat (i64 {LEAST_EXPONENT}), <8 x i64> %c.clamped
  %e.0 = trunc <8 x i64> %e.c to <8 x i16>
  br label %largest
largest:
  %p = phi i64 [ 0, %body ], [ %p.next, %largest ]
  %e = phi <8 x i16> [ %e.0, %body ], [ %e.next, %largest ]
  {_repeated("ea", "i16", "%p")}{_row("eb", "i16", "%p")}
  %pair = add <8 x i16> %ea.v, %eb.v
  %e.next = call <8 x i16> @llvm.smax.v8i16(<8 x i16> %e, <8 x i16> %pair)
  %p.next = add i64 %p, 1
  %p.done = icmp eq i64 %p.next, %k
  br i1 %p.done, label %scale, label %largest
scale:{splat("bits.v", "i64", "%bits", LANES)}
  %largest.e = sext <8 x i16> %e.next to <8 x i64>
  %up = sub <8 x i64> %bits.v, %largest.e
  %up.biased = add <8 x i64> %up, splat (i64 {_BIAS})
  %up.bits = shl <8 x i64> %up.biased, splat (i64 {_MANTISSA})
  %factor = bitcast <8 x i64> %up.bits to <8 x double>
  %down.biased = sub <8 x i64> splat (i64 {_BIAS}), %up
  %down.bits = shl <8 x i64> %down.biased, splat (i64 {_MANTISSA})
  %inverse = bitcast <8 x i64> %down.bits to <8 x double>
  %c.scaled = fmul <8 x double> %c.v, %factor
  %sum.0 = call <8 x double> @llvm.trunc.v8f64(<8 x double> %c.scaled)
  br label %products
products:
  %q = phi i64 [ 0, %scale ], [ %q.next, %products ]
  %sum = phi <8 x double> [ %sum.0, %scale ], [ %sum.next, %products ]
  {_repeated("a", "double", "%q")}{_row("b", "double", "%q")}
  %product = fmul <8 x double> %a.v, %b.v
  %scaled = fmul <8 x double> %product, %factor
  %term = call <8 x double> @llvm.trunc.v8f64(<8 x double> %scaled)
  %sum.next = fadd <8 x double> %sum, %term
  %q.next = add i64 %q, 1
  %q.done = icmp eq i64 %q.next, %k
  br i1 %q.done, label %body.end, label %products
body.end:
  %result = fmul <8 x double> %sum.next, %inverse
  %outp = getelementptr double, ptr %out, i64 %at
  store <8 x double> %result, ptr %outp, align 8
  %at.next = add i64 %at, {LANES}
  %done = icmp uge i64 %at.next, %total
  br i1 %done, label %exit, label %body
exit:
  ret i64 0
}}
declare <8 x i64> @llvm.smax.v8i64(<8 x i64>, <8 x i64>)
declare <8 x i16> @llvm.smax.v8i16(<8 x i16>, <8 x i16>)
declare <8 x double> @llvm.trunc.v8f64(<8 x double>)
"""


@cache
def add_terms() -> Add | None:
    """The compiled `tensor_core._add` for a [k, products, m, 1], b [k, products, 1, 1, n] and c [products, 1, m, n]; n
    is a multiple of 8. None without llvmlite."""
    if not available():
        return None
    run = compiled(_IR, 11)

    def add(bits: int, terms: Terms, formats: Formats) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        (a, b, c), least = terms, FORMATS[formats[2]].least_normal
        k, (products, _, m, n) = len(a), c.shape
        a, b = (np.ascontiguousarray(x.swapaxes(0, 1)) for x in (a, b))  # products first
        out = np.empty(c.shape)
        arrays = out, a, b, np.ascontiguousarray(c), *map(exponents, (a, b), formats)
        starts = [(address_of(x), x.nbytes // products) for x in arrays]
        for product in range(products):
            run(*(start + product * size for start, size in starts), m, n, k, bits, least)
        return out

    return add
