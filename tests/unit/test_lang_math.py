"""tiledsl.lang.math on the emulator: errors against float64, special values, gradual underflow."""

from __future__ import annotations

import math
from typing import Any, Callable, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from tiledsl import Const, Global, Number, TileFunction, cdiv, f16, f32, f64, grid, i32, threads, tile_kernel
from tiledsl.dims import N
from tiledsl.errors import CompileError
from tiledsl.lang import math as lang_math

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
T = TypeVar("T", bound=Number)
INF, NAN, TINY = math.inf, math.nan, 2.0**-149


@tile_kernel
def apply(X: Global[f32, N], Y: Global[f32, N], *, function: Const[TileFunction[[f32], f32]]):
    i = grid(cdiv(N, 256)) * 256 + threads(256)
    Y.put(i, function(X.get(i)))


def run(name: str, x: F32) -> F32:
    y = np.full_like(x, 12345)
    apply(x, y, function=getattr(lang_math, name), device="emulator")
    return y


@tile_kernel
def apply_to_fragments(X: Global[f32, N], Y: Global[f32, N], *, function: Const[Callable[[Any], Any]]):
    i = (grid(cdiv(N, 256)) * 64 + threads(64)) * 4
    Y.put(i, function(X.get(i, vec=16)))


@pytest.mark.parametrize("name", ["exp", "exp2", "log", "tanh", "erf", "sigmoid", "silu", "relu", "gelu", "gelu_tanh"])
def test_functions_go_element_by_element_over_fragments(name: str) -> None:
    special = np.array([0, -0.0, INF, -INF, NAN, TINY, 1, -1], np.float32)
    x = np.concatenate([np.random.default_rng(3).standard_normal(120, np.float32) * 10, special])
    y = np.zeros_like(x)
    apply_to_fragments(x, y, function=getattr(lang_math, name), device="emulator")
    assert (y.view(np.uint32) == run(name, x).view(np.uint32)).all()


def each(function: Callable[[float], float]) -> Callable[[F64], F64]:
    return np.vectorize(function, otypes=[np.float64])


def logistic(x: F64) -> F64:
    t = np.exp(-np.abs(x))
    return np.where(x < 0, t, 1) / (1 + t)


def gelu_tanh(x: F64) -> F64:
    return x * logistic(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


# Reference, where it is sampled, and the error in ULP of the result that math.py states.
FUNCTIONS: dict[str, tuple[Callable[[F64], F64], tuple[float, float], float]] = {
    "exp": (np.exp, (-105, 89), 1.03),
    "exp2": (np.exp2, (-151, 129), 0.87),
    "log": (np.log, (0, 8), 0.91),
    "tanh": (np.tanh, (-12, 12), 1.4),
    "erf": (each(math.erf), (-5, 5), 1.1),
    "sigmoid": (logistic, (-105, 30), 2.5),
    "silu": (lambda x: x * logistic(x), (-110, 30), 3.5),
    "gelu": (lambda x: 0.5 * x * each(math.erfc)(-x / math.sqrt(2)), (-14, 8), 5.5),
    "relu": (lambda x: np.maximum(x, 0), (-10, 10), 0),
}


def ulps(got: F32, exact: F64) -> F64:
    """Distance in units of the last place that float32 has at `exact`, subnormals included."""
    _, exponent = np.frexp(exact)
    return np.abs(got - exact) / np.ldexp(1.0, np.maximum(exponent - 24, -149))


def sample(low: float, high: float) -> F32:
    """Even over the range, over all magnitudes in it, and dense around 0 and 1."""
    rng = np.random.default_rng(7)
    size = 60_000
    bits = rng.integers(0, 2**32, size, dtype=np.uint32).view(np.float32)
    near = rng.uniform(-1.5, 1.5, size)
    even = rng.uniform(low, high, size)
    points = np.concatenate([bits, *(x.astype(np.float32) for x in (even, near, 1 + near * 0.01))])
    return points[(points >= low) & (points <= high) & (points != 0)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_is_as_stated(name: str) -> None:
    reference, (low, high), bound = FUNCTIONS[name]
    x = sample(low, high)
    y, exact = run(name, x), reference(x.astype(np.float64))
    fits = np.abs(exact) < float(np.finfo(np.float32).max)
    error = ulps(y, exact)[fits]
    worst = int(np.argmax(error))
    assert error[worst] <= bound, f"{name}({x[fits][worst]!r}) = {y[fits][worst]!r}: {error[worst]:.3f} ULP"
    assert np.isinf(y[~fits]).all()


def test_gelu_tanh_error_is_as_stated() -> None:
    x = sample(-14, 8)
    y, exact = run("gelu_tanh", x), gelu_tanh(x.astype(np.float64))
    assert (np.abs(y - exact) <= 2.5 * 2.0**-24 * np.abs(x) + TINY).all()
    assert ulps(y, exact)[np.abs(exact) > 1e-3].max() <= 16


SPECIAL: dict[str, list[tuple[float, float]]] = {
    "exp": [(0, 1), (-0.0, 1), (INF, INF), (-INF, 0), (88.73, INF), (-104, 0), (1e30, INF), (-1e30, 0), (-103.2, TINY)],
    "exp2": [
        (0, 1),
        (INF, INF),
        (-INF, 0),
        (128, INF),
        (-149, TINY),
        (-150, 0),
        (127, 2.0**127),
        (-126, 2.0**-126),
        (10, 1024),
    ],
    "log": [
        (1, 0),
        (0, -INF),
        (-0.0, -INF),
        (-1, NAN),
        (-INF, NAN),
        (INF, INF),
        (TINY, math.log(TINY)),
        (2.0**-126, -126 * math.log(2)),
    ],
    "tanh": [(0, 0), (-0.0, -0.0), (INF, 1), (-INF, -1), (20, 1), (TINY, TINY), (-TINY, -TINY)],
    "erf": [(0, 0), (-0.0, -0.0), (INF, 1), (-INF, -1), (4, 1), (-5, -1), (TINY, TINY)],
    "sigmoid": [(0, 0.5), (-0.0, 0.5), (INF, 1), (-INF, 0), (1e30, 1), (-1e30, 0)],
    "silu": [(0, 0), (-0.0, -0.0), (INF, INF), (-INF, -0.0), (1e30, 1e30), (-1e30, -0.0)],
    "gelu": [(0, 0), (-0.0, -0.0), (INF, INF), (-INF, -0.0), (1e30, 1e30), (-1e30, -0.0), (30, 30)],
    "gelu_tanh": [(0, 0), (-0.0, -0.0), (INF, INF), (-INF, -0.0), (1e30, 1e30), (-1e30, -0.0), (30, 30)],
    "relu": [(0, 0), (INF, INF), (-INF, 0), (-3, 0), (3, 3), (TINY, TINY)],
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name: str) -> None:
    x, wanted = np.array([*SPECIAL[name], (NAN, NAN)]).astype(np.float32).T
    got = run(name, np.ascontiguousarray(x))
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(np.signbit(got[wanted == 0]), np.signbit(wanted[wanted == 0]))


@pytest.mark.parametrize("name", [n for n in SPECIAL if n != "relu"])
def test_nan_is_canonical(name: str) -> None:
    """Whatever the payload and sign of the argument; relu passes it on."""
    x = np.array([0x7FC00001, 0xFFC12345, 0x7F800001], np.uint32).view(np.float32)
    assert (run(name, x).view(np.uint32) == 0x7FFFFFFF).all()


def test_exp_underflows_gradually() -> None:
    """Each subnormal result is rounded once: half a ULP besides the error of the normal result."""
    x = np.linspace(-103.9, -87.4, 20_000).astype(np.float32)
    y, exact = run("exp", x), np.exp(x.astype(np.float64))
    assert (np.abs(y - exact) <= 0.5 * TINY + exact * 2.0**-23).all()
    assert (np.diff(y.astype(np.float64)) >= 0).all()


@tile_kernel
def of_another_dtype(X: Global[T, N], Y: Global[T, N], *, function: Const[Callable[[Any], Any]]):
    grid(1)
    Y[threads(32)] = function(X[threads(32)])


@pytest.mark.parametrize("name", sorted(set(lang_math.__all__) - {"relu"}))
@pytest.mark.parametrize("dtype", [f16, f64, i32], ids=str)
def test_another_dtype_is_refused_at_the_call(name: str, dtype: Any) -> None:
    with pytest.raises(CompileError, match=rf"{name}\(\) expected f32 as x, got {dtype.__name__}") as caught:
        of_another_dtype.compile("sm_90a", T=dtype, function=getattr(lang_math, name))
    assert "x.to(f32)" in str(caught.value)
    assert "lang/math.py" not in str(caught.value)


def test_functions_are_compiled_only() -> None:
    with pytest.raises(Exception, match="only inside a kernel"):
        lang_math.exp(np.float32(1))  # pyright: ignore[reportArgumentType]


def test_every_function_is_covered() -> None:
    names: set[Any] = set(lang_math.__all__)
    assert names == set(SPECIAL) == set(FUNCTIONS) | {"gelu_tanh"}
