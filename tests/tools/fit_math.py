"""Derives the polynomial coefficients of tiledsl/lang/math.py: run it to print them.

Each row is a weighted minimax fit in float64 (Lawson's iteration: least squares whose weights grow
where the error is large). Coefficients are then rounded to float32 from the lowest degree up, and the
remaining ones fitted again, so that rounding one is made good by the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
POINTS, ROUNDS = 2000, 300


@dataclass(frozen=True)
class Fit:
    """Approximate `target(x)` on [lo, hi] by a polynomial; the error at x counts `weight(x)` times."""

    name: str
    target: Callable[[Array], Array]
    weight: Callable[[Array], Array]
    lo: float
    hi: float
    degree: int


def nodes(lo: float, hi: float) -> Array:
    """Chebyshev nodes of [lo, hi]."""
    return 0.5 * (lo + hi) + 0.5 * (hi - lo) * np.cos((np.arange(POINTS) + 0.5) * np.pi / POINTS)


def minimax(powers: Array, wanted: Array, weight: Array) -> Array:
    """Coefficients c with the least largest ``|weight * (powers @ c - wanted)|``."""
    emphasis = np.full(len(wanted), 1.0 / len(wanted))
    best, least = np.zeros(powers.shape[1]), np.inf
    for _ in range(ROUNDS):
        scale = weight * np.sqrt(emphasis)
        coefficients = np.linalg.lstsq(powers * scale[:, None], wanted * scale, rcond=None)[0]
        error = np.abs(weight * (powers @ coefficients - wanted))
        if error.max() < least:
            best, least = coefficients, float(error.max())
        emphasis = emphasis * error
        emphasis /= emphasis.sum()
    return best


def fit(task: Fit) -> tuple[list[float], float]:
    """float32 coefficients from degree 0 up, and the largest weighted error left."""
    x = nodes(task.lo, task.hi)
    weight, rest = task.weight(x), task.target(x)
    powers = x[:, None] ** np.arange(task.degree + 1)
    rounded: list[float] = []
    for degree in range(task.degree + 1):
        coefficient = float(np.float32(minimax(powers[:, degree:], rest, weight)[0]))
        rounded.append(coefficient)
        rest = rest - coefficient * powers[:, degree]
    return rounded, float(np.abs(weight * rest).max())


def series(terms: Callable[[int], float], count: int = 40) -> Callable[[Array], Array]:
    """The function with these Taylor coefficients, for where the direct formula cancels."""
    return lambda x: np.asarray(sum(terms(i) * x**i for i in range(count)))


def erf(x: Array) -> Array:
    return np.array([math.erf(v) for v in x])


def erfc(x: Array) -> Array:
    return np.array([math.erfc(v) for v in x])


LN2, HALF = math.log(2), math.log(2) / 2
SCALED = 16.0
"""erfc(z) exp(z^2) is fitted in u = (z - 2) / (z + 2), for z up to this."""


def erfcx_of_u(u: Array) -> Array:
    z = 2 * (1 + u) / (1 - u)
    return np.exp(z * z) * erfc(z) * (1 + z)


def odd_tail(x2: Array, value: Callable[[Array], Array]) -> Array:
    """q of ``f(x) = x + x^3 q(x^2)``."""
    x = np.sqrt(x2)
    return (value(x) / x - 1) / x2


FITS = (
    # exp(r) = 1 + r + r^2 q(r)
    Fit("EXP", series(lambda i: 1 / math.factorial(i + 2)), lambda r: r * r, -HALF * 1.001, HALF * 1.001, 4),
    # 2^r = 1 + r q(r)
    Fit("EXP2", series(lambda i: LN2 ** (i + 1) / math.factorial(i + 1)), abs, -0.5, 0.5, 6),
    # log(1 + f) = f + f^2 q(f)
    Fit("LOG", lambda f: (np.log1p(f) - f) / (f * f), abs, math.sqrt(0.5) - 1, math.sqrt(2) - 1, 8),
    # tanh(x) = x + x^3 q(x^2)
    Fit("TANH", lambda s: odd_tail(s, np.tanh), lambda s: s, 1e-3, 0.65**2, 4),
    # erf(x) = x + x q(x^2)
    Fit("ERF", lambda s: erf(np.sqrt(s)) / np.sqrt(s) - 1, np.ones_like, 1e-6, 1.0, 6),
    # erfc(x) = exp(q(x)), x beyond 1
    Fit("ERFC", lambda x: np.log(erfc(x)), erfc, 0.98, 4.0, 8),
    # erfc(z) = exp(-z^2) q(u) / (1 + z)
    Fit("ERFCX", erfcx_of_u, lambda u: 1 / erfcx_of_u(u), -1.0, (SCALED - 2) / (SCALED + 2), 11),
)


def main() -> None:
    for task in FITS:
        coefficients, error = fit(task)
        print(f"# {task.name}: degree {task.degree}, error {error:.2e} = 2^{math.log2(error):.1f}")
        print(f"_{task.name} = {tuple(reversed(coefficients))!r}")


if __name__ == "__main__":
    main()
