"""Mathematical functions on f32, written in the language itself.

So they are exact by construction: the emulator and every GPU compute the same bits. They are
straight-line code, free of branches and tables, right for infinities, NaN (the result is the canonical
NaN), overflow and gradual underflow. Every sum of a product is an explicit `fma`, so nothing depends on
contraction. The coefficients come from tests/tools/fit_math.py; the errors stated are the largest
measured against float64, in ULP of the result (tests/unit/test_lang_math.py samples them again).
`tanh_approx` and the others of `lang.scalar` are faster and less exact.
"""

from __future__ import annotations

from typing import Any, Callable, cast, overload

from tiledsl.function import TileFunction, location, tile_function
from tiledsl.lang.dtypes import f32, i32
from tiledsl.lang.fragments import Fragment
from tiledsl.lang.scalar import fma, maximum, minimum, rint, where

__all__ = ["erf", "exp", "exp2", "gelu", "gelu_tanh", "log", "relu", "sigmoid", "silu", "tanh"]


class Elementwise(TileFunction[[f32], f32]):
    """A tile function of an f32, or of a fragment of them."""

    @overload
    def __call__(self, x: f32) -> f32: ...
    @overload
    def __call__(self, x: Fragment[f32]) -> Fragment[f32]: ...
    def __call__(self, x: Any) -> Any:
        return super().__call__(x)


def _elementwise(fn: Callable[[f32], f32]) -> Elementwise:
    return Elementwise(fn, location(fn))


def _of_any_float(fn: Callable[[Any], Any]) -> Elementwise:
    """Make a tile function that is right in other dtypes too, though type checkers see f32."""
    return cast(Elementwise, tile_function(fn))


# 1 / ln 2, and ln 2 as a float32 with 9 trailing zero bits (so that n * LN2_HI is exact) and its rest.
_LOG2E = 1.4426950216293335
_LN2_HI = 0.693145751953125
_LN2_LO = 1.428606765330187e-06

# exp(r) = 1 + r + r^2 q(r), |r| <= ln 2 / 2
_EXP = (
    0.0013940617209300399, 0.00836882833391428, 0.04166640341281891, 0.1666651964187622,
    0.5,
)  # fmt: skip

# 2^r = 1 + r q(r), |r| <= 1/2
_POW = (
    1.467075344407931e-05, 0.00015451414219569415, 0.0013336667325347662, 0.009618088603019714,
    0.05550406128168106, 0.24022650718688965, 0.6931471824645996,
)  # fmt: skip

# log(1 + f) = f + f^2 q(f), sqrt(1/2) <= 1 + f <= sqrt(2)
_LOG = (
    -0.07763886451721191, 0.12967047095298767, -0.13218379020690918, 0.1417149305343628,
    -0.16610558331012726, 0.20002438127994537, -0.250015527009964, 0.33333322405815125,
    -0.49999988079071045,
)  # fmt: skip
_MIN_NORMAL = 2.0**-126
_INFINITY = float("inf")
_NAN = float("nan")
_SQRT_HALF_BITS = 0x3F3504F3

# tanh(x) = x + x^3 q(x^2), |x| <= 0.65
_TANH = (
    -0.0055281249806284904, 0.020482825115323067, -0.053692806512117386, 0.13330897688865662,
    -0.3333326280117035,
)  # fmt: skip
_TANH_SMALL = 0.625

# erf(x) = x + x q(x^2), |x| <= 1; beyond, 1 - exp(q(|x|)) until it rounds to 1
_ERF = (
    7.920368079794571e-05, -0.0008030761382542551, 0.005190733820199966, -0.02685512602329254,
    0.11283618211746216, -0.3761262893676758, 0.12837916612625122,
)  # fmt: skip
_ERFC = (
    9.184935834127828e-08, -2.300306732649915e-05, 0.00044942673412151635, -0.004232423845678568,
    0.025267068296670914, -0.1084965169429779, -0.6331565380096436, -1.1296073198318481,
    0.00019370477821212262,
)  # fmt: skip
_ERF_ONE = 4.0

# erfc(z) = exp(-z^2) q(u) / (1 + z), u = (z - 2) / (z + 2), z >= 0
_ERFCX = (
    7.458808977389708e-05, 0.00015612359857186675, -0.0001736581907607615, -0.0007893202127888799,
    0.00015977748262230307, 0.003990094643086195, -0.0005200498853810132, -0.0252568107098341,
    0.042536333203315735, 0.03781507536768913, -0.2599748373031616, 0.7661870121955872,
)  # fmt: skip
_SQRT_HALF = 0.7071067690849304

# gelu_tanh(x) = x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))
_GELU1 = 1.5957691669464111
_GELU3 = 0.07135481387376785


@tile_function
def _polynomial(x: f32, coefficients: tuple[float, ...]) -> f32:
    """The polynomial of these coefficients, that of the highest power first, by Horner's scheme."""
    q = fma(x, coefficients[0], coefficients[1])
    for c in coefficients[2:]:
        q = fma(q, x, c)
    return q


@tile_function
def _power_of_two(n: i32) -> f32:
    """``2 ** n`` for -126 <= n <= 127."""
    return ((n + 127) << 23).bitcast(f32)


@tile_function
def _exp_scaled(x: f32, factor: f32) -> f32:
    """``factor * exp(x)`` for a factor neither huge nor tiny, rounded once where it is subnormal."""
    # Beyond these bounds the result is infinite or 0 for every factor up to 2^32; NaN passes both.
    x = where(x > 120.0, 120.0, where(x < -150.0, -150.0, x))
    n = rint(x * _LOG2E)
    r = fma(n, -_LN2_LO, fma(n, -_LN2_HI, x))
    q = _polynomial(r, _EXP)
    p = fma(r * r, q, r) + 1.0
    # 2^n in two factors: the first product is exact, so that only the second one can round.
    k = n.to(i32)
    half = k >> 1
    return p * factor * _power_of_two(half) * _power_of_two(k - half)


@_elementwise
def exp(x: f32) -> f32:
    """e to the power `x`, within 1.03 ULP (all arguments tried)."""
    return _exp_scaled(x, f32(1))


@_elementwise
def exp2(x: f32) -> f32:
    """2 to the power `x`, within 0.87 ULP (all arguments tried); exact for integers."""
    x = where(x > 160.0, 160.0, where(x < -200.0, -200.0, x))
    n = rint(x)
    r = x - n
    q = _polynomial(r, _POW)
    k = n.to(i32)
    half = k >> 1
    return fma(r, q, f32(1)) * _power_of_two(half) * _power_of_two(k - half)


@_elementwise
def log(x: f32) -> f32:
    """Natural logarithm, within 0.91 ULP (all of 1/8 to 8 tried); -inf for zero, NaN below."""
    subnormal = x < _MIN_NORMAL
    bits = where(subnormal, x * 2.0**23, x).bitcast(i32)
    shift = (bits - _SQRT_HALF_BITS) >> 23
    f = (bits - (shift << 23)).bitcast(f32) - 1.0
    e = (shift - where(subnormal, 23, i32(0))).to(f32)
    q = _polynomial(f, _LOG)
    # e * LN2_HI is exact; the sum with f is kept with its rounding error.
    whole = e * _LN2_HI
    high = whole + f
    low = fma(e, _LN2_LO, fma(f * f, q, f - (high - whole)))
    finite = high + low
    special = where(x == 0.0, f32(-_INFINITY), where(x == _INFINITY, f32(_INFINITY), f32(_NAN)))
    return where((x > 0.0) & (x < _INFINITY), finite, special)


@_elementwise
def sigmoid(x: f32) -> f32:
    """``1 / (1 + exp(-x))``, within 2.5 ULP."""
    t = exp(-abs(x))
    return where(x < 0.0, t, f32(1)) / (t + 1.0)


@_elementwise
def silu(x: f32) -> f32:
    """``x * sigmoid(x)``, within 3.5 ULP."""
    magnitude = abs(x)
    t = exp(-magnitude)
    negative = _exp_scaled(-magnitude, maximum(x, -150.0))
    return where(x < 0.0, negative, x) / (t + 1.0)


@_elementwise
def tanh(x: f32) -> f32:
    """Hyperbolic tangent, within 1.4 ULP (all arguments tried)."""
    magnitude = abs(x)
    s = x * x
    q = _polynomial(s, _TANH)
    small = where(s == 0.0, x, fma(x * s, q, x))  # the sum alone would make a +0 of -0
    large = 1.0 - 2.0 / (exp(magnitude * 2.0) + 1.0)
    return where(magnitude < _TANH_SMALL, small, where(x < 0.0, -large, large))


@_elementwise
def erf(x: f32) -> f32:
    """Error function, within 1.1 ULP (all arguments tried)."""
    s = x * x
    q = _polynomial(s, _ERF)
    small = fma(x, q, x)
    t = where(abs(x) > _ERF_ONE, _ERF_ONE, abs(x))
    p = _polynomial(t, _ERFC)
    large = 1.0 - exp(p)
    return where(t < 1.0, small, where(x < 0.0, -large, large))


@_of_any_float
def relu(x: Any) -> Any:
    """``max(x, 0)``, exact; a NaN stays as it is."""
    return where(x < 0.0, 0.0, x)


@_elementwise
def gelu(x: f32) -> f32:
    """``x * (1 + erf(x / sqrt(2))) / 2``, within 5.5 ULP also where it is tiny."""
    # x Phi(x) = x - x Phi(-x), so the side where Phi is small serves both, with no cancellation.
    magnitude = minimum(abs(x), 20.0)
    z = magnitude * _SQRT_HALF
    u = (z - 2.0) / (z + 2.0)
    q = _polynomial(u, _ERFCX)
    # exp(-x^2 / 2): the square's rounding error is a factor 1 + rest.
    half = magnitude * -0.5
    square = half * magnitude
    rest = fma(half, magnitude, -square)
    factor = magnitude * 0.5 * q / (z + 1.0)
    tail = _exp_scaled(square, fma(factor, rest, factor))
    return where(x < 0.0, -tail, x - tail)


@_elementwise
def gelu_tanh(x: f32) -> f32:
    """``x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2``.

    The error is below 2.5 * 2^-24 of `x`: within 16 ULP of a result over 0.001, more where it is tiny.
    """
    v = x * fma(x * x, _GELU3, _GELU1)
    magnitude = abs(v)
    negative = _exp_scaled(-magnitude, maximum(x, -150.0))
    return where(x < 0.0, negative, x) / (exp(-magnitude) + 1.0)
