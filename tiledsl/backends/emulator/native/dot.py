"""The truncated sums of `ir.tensor_core`, compiled: the loop in which the emulator spends its time on wgmma.

The definition stays `tensor_core._add`; a test holds both equal.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from tiledsl.backends.emulator.native.loops import compiled
from tiledsl.ir.tensor_core import LEAST_EXPONENT, Add, Terms

LANES = 8
"""Results side by side; the n of wgmma is a multiple of it."""

_BIAS, _MANTISSA = 1023, 52

_IR = f"""
define i64 @run(ptr noalias %out, ptr %a, ptr %b, ptr %c, ptr %ea, ptr %eb, ptr %ec, i64 %m, i64 %n, i64 %k, i64 %bits)
{{
entry:
  %total = mul i64 %m, %n
  br label %body
body:
  %at = phi i64 [ 0, %entry ], [ %at.next, %body.end ]
  %i = udiv i64 %at, %n
  %j = urem i64 %at, %n
  %ecp = getelementptr i64, ptr %ec, i64 %at
  %ec.v = load <8 x i64>, ptr %ecp, align 8
  %e.0 = call <8 x i64> @llvm.smax.v8i64(<8 x i64> %ec.v, <8 x i64> splat (i64 {LEAST_EXPONENT}))
  br label %largest
largest:
  %p = phi i64 [ 0, %body ], [ %p.next, %largest ]
  %e = phi <8 x i64> [ %e.0, %body ], [ %e.next, %largest ]
  %ea.row = mul i64 %p, %m
  %ea.at = add i64 %ea.row, %i
  %eap = getelementptr i64, ptr %ea, i64 %ea.at
  %ea.one = load i64, ptr %eap, align 8
  %ea.ins = insertelement <8 x i64> poison, i64 %ea.one, i32 0
  %ea.v = shufflevector <8 x i64> %ea.ins, <8 x i64> poison, <8 x i32> zeroinitializer
  %eb.row = mul i64 %p, %n
  %eb.at = add i64 %eb.row, %j
  %ebp = getelementptr i64, ptr %eb, i64 %eb.at
  %eb.v = load <8 x i64>, ptr %ebp, align 8
  %pair = add <8 x i64> %ea.v, %eb.v
  %e.next = call <8 x i64> @llvm.smax.v8i64(<8 x i64> %e, <8 x i64> %pair)
  %p.next = add i64 %p, 1
  %p.done = icmp eq i64 %p.next, %k
  br i1 %p.done, label %scale, label %largest
scale:
  %bits.ins = insertelement <8 x i64> poison, i64 %bits, i32 0
  %bits.v = shufflevector <8 x i64> %bits.ins, <8 x i64> poison, <8 x i32> zeroinitializer
  %up = sub <8 x i64> %bits.v, %e.next
  %up.biased = add <8 x i64> %up, splat (i64 {_BIAS})
  %up.bits = shl <8 x i64> %up.biased, splat (i64 {_MANTISSA})
  %factor = bitcast <8 x i64> %up.bits to <8 x double>
  %down.biased = sub <8 x i64> splat (i64 {_BIAS}), %up
  %down.bits = shl <8 x i64> %down.biased, splat (i64 {_MANTISSA})
  %inverse = bitcast <8 x i64> %down.bits to <8 x double>
  %cp = getelementptr double, ptr %c, i64 %at
  %c.v = load <8 x double>, ptr %cp, align 8
  %c.scaled = fmul <8 x double> %c.v, %factor
  %sum.0 = call <8 x double> @llvm.trunc.v8f64(<8 x double> %c.scaled)
  br label %products
products:
  %q = phi i64 [ 0, %scale ], [ %q.next, %products ]
  %sum = phi <8 x double> [ %sum.0, %scale ], [ %sum.next, %products ]
  %a.row = mul i64 %q, %m
  %a.at = add i64 %a.row, %i
  %ap = getelementptr double, ptr %a, i64 %a.at
  %a.one = load double, ptr %ap, align 8
  %a.ins = insertelement <8 x double> poison, double %a.one, i32 0
  %a.v = shufflevector <8 x double> %a.ins, <8 x double> poison, <8 x i32> zeroinitializer
  %b.row = mul i64 %q, %n
  %b.at = add i64 %b.row, %j
  %bp = getelementptr double, ptr %b, i64 %b.at
  %b.v = load <8 x double>, ptr %bp, align 8
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
declare <8 x double> @llvm.trunc.v8f64(<8 x double>)
"""


@cache
def add_terms() -> Add:
    """The compiled `tensor_core._add` for a [k, m, 1], b [k, 1, n] and c [m, 1, n], n a multiple of 8."""
    run = compiled(_IR, 11)

    def add(bits: int, terms: Terms, exponents: Terms) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        k, m, _ = terms[0].shape
        n = terms[1].shape[2]
        arrays = [np.ascontiguousarray(x, np.float64) for x in terms]
        arrays += [np.ascontiguousarray(x, np.int64) for x in exponents]
        out = np.empty((m, 1, n))
        run(out.ctypes.data, *(x.ctypes.data for x in arrays), m, n, k, bits)
        return out

    return add
