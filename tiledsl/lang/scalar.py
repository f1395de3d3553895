"""Functions on scalars, and element by element on fragments. `ir.scalar` states what each one means, bit by bit.

Literals take the dtype of the other operands. Python's ``abs``, ``min`` and ``max`` work in kernels
too, the latter two as `minimum` and `maximum` (which type checkers like better).
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

from tiledsl.lang.dim import Dim
from tiledsl.lang.dtypes import Float, Number, Scalar, boolean, f32, f64, i32, i64, index, u32, u64
from tiledsl.lang.fragments import Fragment
from tiledsl.lang.misuse import only_in_kernel, typed_like

__all__ = [
    "ceil",
    "clz",
    "cos_approx",
    "exp2_approx",
    "floor",
    "fma",
    "log2_approx",
    "maximum",
    "minimum",
    "popc",
    "rcp_approx",
    "rint",
    "rsqrt_approx",
    "sin_approx",
    "sqrt",
    "tanh_approx",
    "trunc",
    "where",
]

S = TypeVar("S", bound=Scalar)
F = TypeVar("F", bound=Float)
N = TypeVar("N", bound=Number)
Real = TypeVar("Real", f32, f64, Fragment[f32], Fragment[f64])
Single = TypeVar("Single", f32, Fragment[f32])
Word = TypeVar("Word", i32, u32, i64, u64, Fragment[i32], Fragment[u32], Fragment[i64], Fragment[u64])


@overload
def fma(a: F | float, b: F | float, c: F | float) -> F: ...
@overload
def fma(a: Fragment[F], b: Fragment[F] | F | float, c: Fragment[F] | F | float) -> Fragment[F]: ...
@overload
def fma(a: F | float, b: Fragment[F], c: Fragment[F] | F | float) -> Fragment[F]: ...
@overload
def fma(a: F | float, b: F | float, c: Fragment[F]) -> Fragment[F]: ...
def fma(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` rounded once. (PTX ISA: fma.rn.)"""
    raise only_in_kernel("fma()")


@overload
def minimum(a: N, b: N | float) -> N: ...
@overload
def minimum(a: float, b: N) -> N: ...
@overload
def minimum(a: index | type[Dim], b: index | int | type[Dim]) -> index: ...
@overload
def minimum(a: int, b: type[Dim]) -> index: ...
@overload
def minimum(a: Fragment[N], b: Fragment[N] | N | float) -> Fragment[N]: ...
@overload
def minimum(a: N | float, b: Fragment[N]) -> Fragment[N]: ...
def minimum(a: Any, b: Any) -> Any:
    """The smaller; if one is NaN the other one; -0 is less than +0. (PTX ISA: min.)"""
    raise only_in_kernel("minimum()")


@typed_like(minimum)
def maximum(a: Any, b: Any) -> Any:
    """The larger; if one is NaN the other one; -0 is less than +0. (PTX ISA: max.)"""
    raise only_in_kernel("maximum()")


@overload
def where(condition: boolean | bool, a: S, b: S | float) -> S: ...
@overload
def where(condition: boolean | bool, a: float, b: S) -> S: ...
@overload
def where(condition: boolean | bool, a: bool, b: bool) -> boolean: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def where(condition: boolean | bool, a: int, b: int) -> index: ...
@overload
def where(condition: boolean | bool, a: Fragment[S], b: Fragment[S] | S | float) -> Fragment[S]: ...
@overload
def where(condition: boolean | bool, a: S | float, b: Fragment[S]) -> Fragment[S]: ...
@overload
def where(condition: Fragment[boolean], a: Fragment[S] | S, b: Fragment[S] | S | float) -> Fragment[S]: ...
@overload
def where(condition: Fragment[boolean], a: float, b: Fragment[S] | S) -> Fragment[S]: ...
def where(condition: Any, a: Any, b: Any) -> Any:
    """`a` if `condition` else `b`; both are evaluated. Two ints make an `index`. (PTX ISA: selp.)"""
    raise only_in_kernel("where()")


def sqrt(x: Real) -> Real:
    """Square root, correctly rounded; NaN below zero. (PTX ISA: sqrt.rn.)"""
    raise only_in_kernel("sqrt()")


def floor(x: Real) -> Real:
    """Rounded towards minus infinity. (PTX ISA: cvt.rmi.)"""
    raise only_in_kernel("floor()")


def ceil(x: Real) -> Real:
    """Rounded towards plus infinity. (PTX ISA: cvt.rpi.)"""
    raise only_in_kernel("ceil()")


def trunc(x: Real) -> Real:
    """Rounded towards zero. (PTX ISA: cvt.rzi.)"""
    raise only_in_kernel("trunc()")


def rint(x: Real) -> Real:
    """The nearest integer, ties to even. (PTX ISA: cvt.rni.)"""
    raise only_in_kernel("rint()")


def popc(x: Word) -> Word:
    """Number of set bits, in the dtype of `x`. (PTX ISA: popc.)"""
    raise only_in_kernel("popc()")


def clz(x: Word) -> Word:
    """Number of leading zero bits, in the dtype of `x`; the width for 0. (PTX ISA: clz.)"""
    raise only_in_kernel("clz()")


# The approximate ones are single instructions, outside the promise that emulator and GPU agree.


def rcp_approx(x: Single) -> Single:
    """``1 / x`` within 1 ULP. (PTX ISA: rcp.approx.f32.)"""
    raise only_in_kernel("rcp_approx()")


def rsqrt_approx(x: Single) -> Single:
    """``1 / sqrt(x)``, relative error 2^-22.9. (PTX ISA: rsqrt.approx.f32.)"""
    raise only_in_kernel("rsqrt_approx()")


def exp2_approx(x: Single) -> Single:
    """``2 ** x`` within 2 ULP; 0 where that is below 2^-126. (PTX ISA: ex2.approx.ftz.f32.)"""
    raise only_in_kernel("exp2_approx()")


def log2_approx(x: Single) -> Single:
    """Logarithm to base 2, absolute error 2^-22 near 1. (PTX ISA: lg2.approx.f32.)"""
    raise only_in_kernel("log2_approx()")


def tanh_approx(x: Single) -> Single:
    """Hyperbolic tangent, relative error 2^-10.987. (PTX ISA: tanh.approx.f32.)"""
    raise only_in_kernel("tanh_approx()")


def sin_approx(x: Single) -> Single:
    """Sine, absolute error 2^-20.5 in [-pi, pi]. (PTX ISA: sin.approx.f32.)"""
    raise only_in_kernel("sin_approx()")


def cos_approx(x: Single) -> Single:
    """Cosine, absolute error 2^-20.5 in [-pi, pi]. (PTX ISA: cos.approx.f32.)"""
    raise only_in_kernel("cos_approx()")
