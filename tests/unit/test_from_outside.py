"""Names and numbers from outside a kernel mean what they mean in Python: private names, and NumPy's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.unit.test_declared import module
from tiledsl import Const, Global, const, f32, grid, i32, shared, threads, tile_function, tile_kernel, unroll
from tiledsl.dims import N
from tiledsl.errors import CompileErrors, KernelArgumentError
from tiledsl.outside import NotPlain, plain

# -- private names ---------------------------------------------------------------------------------------

PRIVATE = """
from typing import Any
from tiledsl import *
from tiledsl.dims import N
__two, _A__two, _B__two, _Inner__two, _A__too__ = 3, 2, 5, 7, 11
__too__ = 13

class A:
    __own = 17
    def python(x): return x * __two
    kernel = tile_function(python)
    class Inner:
        def python(x): return x * __two
        kernel = tile_function(python)

class Attribute:
    __own, _Attribute__more = 19, 23
    def python(x): return x * Attribute.__own + Attribute.__more
    kernel = tile_function(python)

class Parameters:
    def python(x, __y=2, *__z):
        __w = x * __y
        return __w + len([__v for __v in __z])
    kernel = tile_function(python)

class __B:
    def python(x): return x * __two
    kernel = tile_function(python)

class ___:
    def python(x): return x * __two
    kernel = tile_function(python)

class Public:
    def python(x): return x * __too__
    kernel = tile_function(python)

def closed_over():
    _A__two = 29
    class A:
        def python(x): return x * __two
        kernel = tile_function(python)
    return A

def inside():
    class A:
        def make():
            def python(x): return x * __two
            return python, tile_function(python)
    class Made:
        python, kernel = A.make()
    return Made

CLASSES = {"A": A, "Inner": A.Inner, "Attribute": Attribute, "Parameters": Parameters, "leading": __B, "all": ___,
           "Public": Public, "closed over": closed_over(), "inside": inside()}

@tile_kernel
def k(X: Global[f32, N], *, f: Const[Any]):
    grid(1)
    X[threads(1)] = f(X[0])

class OfAKernel:
    __T = f32
    _OfAKernel__n = 1
    @tile_kernel
    def k(X: "Global[__T, N]", *, c: const = 3):
        grid(1)
        __x: __T = 31
        X[threads(1)] = __x * c

_OfAKernel__T = f32
"""


def test_private_names_are_those_of_python(tmp_path: Path) -> None:
    made = module(tmp_path, PRIVATE)
    for name, cls in made.CLASSES.items():
        X = np.full(1, 2, np.float32)
        made.k(X, f=cls.kernel)
        assert X[0] == cls.python(2), name
    X = np.ones(1, np.float32)
    made.OfAKernel.k(X)
    assert X[0] == 93


def test_a_private_name_that_is_not_defined_is_an_error(tmp_path: Path) -> None:
    made = module(tmp_path, PRIVATE.replace("_A__two, ", "_C__two, "))
    with pytest.raises(CompileErrors) as caught:
        made.k(np.ones(1, np.float32), f=made.A.kernel)
    assert [(e.code, e.loc.function) for e in caught.value.errors] == [("C103", "python")]


# -- NumPy's numbers -------------------------------------------------------------------------------------

Pair = __import__("collections").namedtuple("Pair", "n x")
INT, HALF, TRUE = np.int32(4), np.float32(0.5), np.bool_(True)
BF16, INT4, PI = ml_dtypes.bfloat16(0.5), ml_dtypes.int4(-3), np.float32(3.14)
PAIR, TABLE, NESTED = Pair(np.uint8(4), HALF), {"n": INT}, [(np.int64(4), [HALF])]
ARRAY = np.array([4, 5], np.int16)
PART = slice(np.int64(0), np.int64(2))


@tile_function
def by_default(x: Any, by: Any = HALF) -> Any:
    return x * by


@tile_kernel
def numbers(X: Global[f32, N], Z: Global[i32, N], *, T: const = 1, BY: Const[float] = 1.0, FLAG: Const[bool] = False):
    grid(1)
    threads(1)
    S = shared((INT, PAIR.n), f32)
    S[0, 0] = X[0]
    X[0] = X[0] * HALF + BF16
    X[3] = X[1] * PI
    X[2] = by_default(X[2]) * PAIR.x * BY
    n, (half,) = NESTED[0]
    X[PART][n - 3] = half
    for i in unroll(n):
        Z[i] = Z[i] + ARRAY[0] + TABLE["n"] * INT4 + T
    if FLAG and TRUE and Z[0] < INT:
        Z[5] = np.int8(7)
    for value in ARRAY:
        Z[6] = value


@pytest.mark.parametrize("consts", [(2, 0.25, True), (np.int16(2), np.float32(0.25), np.bool_(True))], ids=["py", "np"])
def test_numbers_of_numpy_act_as_those_of_python(consts: tuple[Any, Any, Any]) -> None:
    X, Z = np.ones(8, np.float32), np.zeros(8, np.int32)
    numbers(X, Z, T=consts[0], BY=consts[1], FLAG=consts[2])
    assert X.tolist() == [1.0, 0.5, 0.0625, float(PI), 1.0, 1.0, 1.0, 1.0]
    assert Z.tolist() == [-6, -6, -6, -6, 0, 7, 5, 0]


@tile_kernel
def untyped(X: Global[f32, N], *, C: Const[Any]):
    grid(1)
    X[threads(1)] = X[0] * C


@pytest.mark.parametrize("value", [np.float64(0.1), np.longdouble("0.1"), np.float32(0.1)])
def test_a_number_of_numpy_is_exact_or_refused(value: Any) -> None:
    X = np.ones(1, np.float32)
    if isinstance(value, np.float32):
        untyped(X, C=value)
        assert X[0] == value
    else:
        with pytest.raises((CompileErrors, KernelArgumentError)) as caught:
            untyped(X, C=value)
        assert caught.value.code in ("C202", "C805")


def test_what_numpy_calls_a_number_and_python_does_not_stays() -> None:
    for value in (np.timedelta64(1, "s"), np.complex64(1), np.array(1), np.str_("a")):
        assert plain(value) is value
    held = ([1, (2.0, "a")], {"a": None})
    assert plain(held) is held


# -- lists that contain themselves -----------------------------------------------------------------------


def endless(kind: str) -> Any:
    held: Any = [1]
    held.append({"list": held, "tuple": (held,), "dict": {"x": held}}[kind])
    return held


ENDLESS, OWN = endless("list"), {"x": endless("tuple")}


@tile_kernel
def of_a_list(X: Global[f32, N]):
    grid(1)
    X[threads(1)] = ENDLESS[0]


@tile_kernel
def of_an_item(X: Global[f32, N]):
    grid(1)
    X[threads(1)] = OWN["x"][0]


@tile_kernel
def of_a_call(X: Global[f32, N]):
    grid(1)
    X[threads(1)] = endless("dict")[0]


@tile_kernel
def of_an_item_in_python(X: Global[f32, N]):
    grid(1)
    X[threads(1)] = first(2)


def first(n: int) -> int:
    return ENDLESS[0] * n


@pytest.mark.parametrize("kernel", [of_a_list, of_an_item, of_a_call], ids=lambda kernel: kernel.__name__)
def test_a_list_that_contains_itself_is_an_error(kernel: Any) -> None:
    with pytest.raises(CompileErrors) as caught:
        kernel(np.zeros(1, np.float32))
    assert [(e.code, e.loc.function) for e in caught.value.errors] == [("C104", kernel.__name__)]


def test_such_a_list_is_fine_where_python_reads_it() -> None:
    X = np.zeros(1, np.float32)
    of_an_item_in_python(X)
    assert X[0] == 2


def test_lists_that_share_parts_take_no_longer() -> None:
    held: Any = [HALF]
    for _ in range(60):
        held = [held, held]
    found = plain(held)
    assert found[0] is found[1]
    for _ in range(200):
        held = [held]
    with pytest.raises(NotPlain):
        plain(held)
