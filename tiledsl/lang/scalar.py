"""Functions on scalars. `ir.scalar` states what each one means, bit by bit.

Literals take the dtype of the other operands. Python's ``abs``, ``min`` and ``max`` work in kernels
too, the latter two as `minimum` and `maximum` (which type checkers like better).
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

from tiledsl.lang.dim import Dim
from tiledsl.lang.dtypes import Float, Number, Scalar, boolean, f32, f64, i32, i64, index, u32, u64
from tiledsl.lang.misuse import only_in_kernel

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
F32F64 = TypeVar("F32F64", f32, f64)
Bits = TypeVar("Bits", i32, u32, i64, u64)


def fma(a: F | float, b: F | float, c: F | float) -> F:
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
def minimum(a: Any, b: Any) -> Any:
    """The smaller; if one is NaN the other one; -0 is less than +0. (PTX ISA: min.)"""
    raise only_in_kernel("minimum()")


@overload
def maximum(a: N, b: N | float) -> N: ...
@overload
def maximum(a: float, b: N) -> N: ...
@overload
def maximum(a: index | type[Dim], b: index | int | type[Dim]) -> index: ...
@overload
def maximum(a: int, b: type[Dim]) -> index: ...
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
def where(condition: boolean | bool, a: Any, b: Any) -> Any:
    """`a` if `condition` else `b`; both are evaluated. Two ints make an `index`. (PTX ISA: selp.)"""
    raise only_in_kernel("where()")


def sqrt(x: F32F64) -> F32F64:
    """Square root, correctly rounded; NaN below zero. (PTX ISA: sqrt.rn.)"""
    raise only_in_kernel("sqrt()")


def floor(x: F32F64) -> F32F64:
    """Rounded towards minus infinity. (PTX ISA: cvt.rmi.)"""
    raise only_in_kernel("floor()")


def ceil(x: F32F64) -> F32F64:
    """Rounded towards plus infinity. (PTX ISA: cvt.rpi.)"""
    raise only_in_kernel("ceil()")


def trunc(x: F32F64) -> F32F64:
    """Rounded towards zero. (PTX ISA: cvt.rzi.)"""
    raise only_in_kernel("trunc()")


def rint(x: F32F64) -> F32F64:
    """The nearest integer, ties to even. (PTX ISA: cvt.rni.)"""
    raise only_in_kernel("rint()")


def popc(x: Bits) -> Bits:
    """Number of set bits, in the dtype of `x`. (PTX ISA: popc.)"""
    raise only_in_kernel("popc()")


def clz(x: Bits) -> Bits:
    """Number of leading zero bits, in the dtype of `x`; the width for 0. (PTX ISA: clz.)"""
    raise only_in_kernel("clz()")


# The approximate ones are single instructions, outside the promise that emulator and GPU agree.


def rcp_approx(x: f32) -> f32:
    """``1 / x`` within 1 ULP. (PTX ISA: rcp.approx.f32.)"""
    raise only_in_kernel("rcp_approx()")


def rsqrt_approx(x: f32) -> f32:
    """``1 / sqrt(x)``, relative error 2^-22.9. (PTX ISA: rsqrt.approx.f32.)"""
    raise only_in_kernel("rsqrt_approx()")


def exp2_approx(x: f32) -> f32:
    """``2 ** x`` within 2 ULP. (PTX ISA: ex2.approx.f32.)"""
    raise only_in_kernel("exp2_approx()")


def log2_approx(x: f32) -> f32:
    """Logarithm to base 2, absolute error 2^-22 near 1. (PTX ISA: lg2.approx.f32.)"""
    raise only_in_kernel("log2_approx()")


def tanh_approx(x: f32) -> f32:
    """Hyperbolic tangent, relative error 2^-10.987. (PTX ISA: tanh.approx.f32.)"""
    raise only_in_kernel("tanh_approx()")


def sin_approx(x: f32) -> f32:
    """Sine, absolute error 2^-20.5 in [-pi, pi]. (PTX ISA: sin.approx.f32.)"""
    raise only_in_kernel("sin_approx()")


def cos_approx(x: f32) -> f32:
    """Cosine, absolute error 2^-20.5 in [-pi, pi]. (PTX ISA: cos.approx.f32.)"""
    raise only_in_kernel("cos_approx()")
