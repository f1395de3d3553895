"""Annotations of tile functions: literals take the declared dtype, everything else must have it, at every call."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tiledsl.errors import CompileErrors
from tiledsl.kernel import TileKernel

HEAD = """
from __future__ import annotations
from typing import *
import enum
from tiledsl import *
from tiledsl.dims import K, M, N
T = TypeVar("T", bound=Scalar)
F = TypeVar("F", f16, f32)
R = TypeVar("R", bound=Dim)
"""
KERNEL = """
@tile_kernel
def k(X: Global[f32, N], Z: Global[i32, M, Literal[4]], H: Global[f16, N]):
    grid(1); threads(1)
    S = shared((4, 8), f32)
    v = X.get(0, vec=16)
    n = Z[0, 1]
    {call}
"""
_NUMBERS = itertools.count()


def module(tmp_path: Path, text: str) -> ModuleType:
    path = tmp_path / f"declared_{next(_NUMBERS)}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def run(tmp_path: Path, function: str, call: str) -> tuple[Any, Any]:
    """Return the values that the call leaves in X[0] and in Z[0, 0]."""
    kernel: TileKernel = module(tmp_path, f"{HEAD}\n{function}\n{KERNEL.format(call=call)}").k
    X, Z, H = np.full(8, 2, np.float32), np.full((3, 4), 5, np.int32), np.full(8, 0.5, np.float16)
    kernel(X, Z, H)
    return X[0], Z[0, 0]


MEAN = "@tile_function\ndef f(a: i32, b: i32) -> i32:\n    return (a + b) // 2"
THIRD = "@tile_function\ndef f(x: {}) -> f32:\n    return x / 3"
EXTENT = "@tile_function\ndef f(A: Global[{}]) -> index:\n    return {}"

CONVERTED = {
    "wraps as an i32": (MEAN, "Z[0, 0] = f(2147483647, 1)", -1073741824),
    "wraps as an i32 by keyword": (MEAN, "Z[0, 0] = f(b=2147483647, a=1)", -1073741824),
    "rounds as an f32": (THIRD.format("f32"), "X[0] = f(1.0)", np.float32(1) / np.float32(3)),
    "for a type checker": (THIRD.format("f32 | float"), "X[0] = f(1.0)", np.float32(1) / np.float32(3)),
    "optional": (THIRD.format("Optional[f32]"), "X[0] = f(1)", np.float32(1) / np.float32(3)),
    "in quotes": (THIRD.format("'f32'"), "X[0] = f(1)", np.float32(1) / np.float32(3)),
    "annotated": (THIRD.format("Annotated[f32, 'metres']"), "X[0] = f(1)", np.float32(1) / np.float32(3)),
    "a default": (THIRD.format("f32 = 1"), "X[0] = f()", np.float32(1) / np.float32(3)),
    "each of several": (
        "@tile_function\ndef f(*xs: f32) -> f32:\n    return xs[0] / xs[1]", "X[0] = f(1, 3)",
        np.float32(1) / np.float32(3),
    ),
    "each of a tuple": (
        "@tile_function\ndef f(xs: tuple[f32, i32]) -> f32:\n    return xs[0] / 3 + f32(xs[1] << 31)",
        "X[0] = f((1, 2))", np.float32(1) / np.float32(3),
    ),
    "of the dtype that T is": (
        "@tile_function\ndef f(x: T, y: T) -> T:\n    return x * y + T(1)", "X[0] = f(2, X[1])", 5
    ),
    "T in the body": ("@tile_function\ndef f(x: T) -> T:\n    return x + T(0.5)", "X[0] = f(H[0]).to(f32)", 1),
    "T of memory": ("@tile_function\ndef f(A: Memory[T]) -> T:\n    return A[0] + T(0.5)", "X[0] = f(H).to(f32)", 1),
    "a result in a loop": (
        "@tile_function\ndef f() -> f32:\n    return 0",
        "acc = f()\n    for _ in range(3):\n        acc += X[1]\n    X[0] = acc", 6,
    ),
    "results on two paths": (
        "@tile_function\ndef f(x: f32) -> f32:\n    if x > 1:\n        return 1\n    return x", "X[0] = f(X[1]) / 3",
        np.float32(1) / np.float32(3),
    ),
    "other annotations are for readers": (
        "@tile_function\ndef f(x: Sequence[f16], y: type[f16], *z: *tuple[f16, ...]): return x", "X[0] = f(5, 1, n)", 5
    ),
    "None by default": (
        "@tile_function\ndef f(x: f32 = None) -> f32:\n    return 7 if x is None else x", "X[0] = f()", 7
    ),
    "a fragment goes element by element": (THIRD.format("f32"), "X[0] = f(v)[0]", np.float32(2) / np.float32(3)),
    "a bool is no boolean": (
        "@tile_function\ndef f(x: f32, p: bool) -> f32:\n    return x + max(int(p), 0)", "X[0] = f(X[1], True)", 3
    ),
    "an int for index | int stays one": (
        "@tile_function\ndef f(x: Fragment[f32], i: index | int) -> f32:\n    return x[i]", "X[0] = f(v, 1) + 1", 3
    ),
    "an extent has its name here": (EXTENT.format("i32, K, Any", "K"), "Z[0, 0] = i32(f(Z))", 3),
    "a static extent, too": (EXTENT.format("i32, Any, N", "N"), "Z[0, 0] = i32(f(Z))", 4),
    "an extent of a type variable": (EXTENT.format("i32, R, Literal[4]", "R"), "Z[0, 0] = i32(f(Z))", 3),
    "compile-time values": (
        "@tile_function\ndef f(n: int, s: str, p: bool, c: const, way: Literal['a', 'b'], x: float = 1) -> i32:\n"
        "    return i32(n + c) if p and way == s else 0",
        "Z[0, 0] = f(1, 'a', True, 2, 'a')", 3,
    ),
    "classes of the language": (
        "@tile_function\ndef f(r: Range, S: SharedTile[f32], V: View[f32], x: Callable[..., Any]) -> None:\n"
        "    S[0, 0] = 1\n    X = S[0, r]\n    V[0] = 9",
        "f(tile(0, 4), S, X[0:2], min)", 9,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERTED)
def test_arguments_and_results_become_what_is_declared(name: str, tmp_path: Path) -> None:
    function, call, expected = CONVERTED[name]
    X, Z = run(tmp_path, function, call)
    assert expected in ((X,) if "X[0] =" in call or "f(tile" in call else (Z,))


ONE = "@tile_function\ndef f(x: {}):\n    return x"
RESULT = "@tile_function\ndef f(x) -> {}:\n    return x  # here"

REFUSED = {
    "another dtype": (ONE.format("i32"), "f(X[0])", "C203"),
    "an index": (ONE.format("i32"), "f(N)", "C203"),
    "a value for an index": (ONE.format("index"), "f(n)", "C203"),
    "a fragment of another dtype": (ONE.format("i32"), "f(v)", "C203"),
    "a literal that is not exact": (ONE.format("f32"), "f(16777217)", "C202"),
    "a literal out of range": (ONE.format("u8"), "f(256)", "C202"),
    "a float for an integer": (ONE.format("i32"), "f(2.5)", "C202"),
    "an int for a boolean": (ONE.format("boolean"), "f(1)", "C202"),
    "a string": (ONE.format("i32"), "f('a')", "C203"),
    "None": (ONE.format("i32"), "f(None)", "C203"),
    "a tile": (ONE.format("f32"), "f(S)", "C203"),
    "an optional of another dtype": (ONE.format("i32 | None"), "f(X[0])", "C203"),
    "a value where an int is": (ONE.format("int"), "f(n)", "C105"),
    "a float where an int is": (ONE.format("int"), "f(1.0)", "C105"),
    "a value where a const is": (ONE.format("const"), "f(n)", "C106"),
    "no choice": (ONE.format("Literal['a']"), "f('b')", "C105"),
    "two dtypes for T": ("@tile_function\ndef f(x: T, y: T): return x", "f(X[0], n)", "C203"),
    "T in memory and in a value": ("@tile_function\ndef f(A: Global[T, Any], y: T): return y", "f(X, H[0])", "C203"),
    "T without that dtype": (ONE.format("F"), "f(n)", "C203"),
    "a tensor of another dtype": (ONE.format("Global[f16, Any]"), "f(X)", "C203"),
    "a tensor with more axes": (ONE.format("Global[i32, Any]"), "f(Z)", "C304"),
    "another static extent": (ONE.format("Global[i32, Any, Literal[5]]"), "f(Z)", "C304"),
    "two extents for a name": (ONE.format("Global[i32, M, M]"), "f(Z)", "C304"),
    "a shared tile for a tensor": (ONE.format("Global[f32, Any, Any]"), "f(S)", "C402"),
    "a tensor for a shared tile": (ONE.format("SharedTile[f32]"), "f(X)", "C402"),
    "a number for a tensor": (ONE.format("Memory[f32]"), "f(1)", "C402"),
    "a scalar for a fragment": (ONE.format("Fragment[f32]"), "f(X[0])", "C105"),
    "a number for a ring": (ONE.format("Ring[f32]"), "f(1)", "C105"),
    "a longer tuple": (ONE.format("tuple[int, int]"), "f((1, 2, 3))", "C105"),
    "one of several": ("@tile_function\ndef f(*xs: f32): return xs", "f(X[0], n)", "C203"),
    "one of several by name": ("@tile_function\ndef f(**xs: f32): return xs", "f(a=X[0], b=n)", "C203"),
    "a default that does not fit": ("@tile_function\ndef f(x: i32 = 0.5): return x", "f()", "C202"),
    "an annotation that is nothing": (ONE.format("missing"), "f(1)", "C103"),
}


def error_of(tmp_path: Path, function: str, call: str) -> tuple[str, str, list[str]]:
    """Return the code of the only error, the line that it is at, and those of its callers."""
    with pytest.raises(CompileErrors) as caught:
        run(tmp_path, function, f"{call}  # call")
    (error,) = caught.value.errors
    assert error.fix and "f()" in error.message
    lines = [Path(file).read_text().splitlines()[line - 1] for file, line in error.loc.lines]
    return error.code, lines[0], lines[1:]


@pytest.mark.parametrize("name", REFUSED)
def test_an_argument_that_does_not_fit_is_an_error_at_the_call(name: str, tmp_path: Path) -> None:
    function, call, code = REFUSED[name]
    found, line, _ = error_of(tmp_path, function, call)
    assert (found, "# call" in line) == (code, True)


@pytest.mark.parametrize(
    ("declared", "given", "code"),
    [
        ("f32", "n", "C203"),
        ("i32", "2.5", "C202"),
        ("None", "n", "C105"),
        ("bool", "n > 0", "C105"),
        ("f32", "None", "C203"),
    ],
)
def test_a_result_that_does_not_fit_is_an_error_at_the_return(
    declared: str, given: str, code: str, tmp_path: Path
) -> None:
    found, line, callers = error_of(tmp_path, RESULT.format(declared), f"f({given})")
    assert (found, "# here" in line, "# call" in callers[0]) == (code, True, True)


def test_a_function_that_returns_nothing_is_not_declared_to_return_a_value(tmp_path: Path) -> None:
    found, line, _ = error_of(tmp_path, "@tile_function\ndef f(x) -> f32:\n    y = x", "f(1)")
    assert (found, "# call" in line) == ("C203", True)


def test_annotations_as_text_may_name_locals(tmp_path: Path) -> None:
    local = (
        "def make(DT):\n    @tile_function\n    def f(x: DT) -> DT:\n        return x / 3\n    return f\nf = make(f32)"
    )
    assert run(tmp_path, local, "X[0] = f(1)")[0] == np.float32(1) / np.float32(3)


def test_a_private_name_in_an_annotation(tmp_path: Path) -> None:
    method = "class A:\n    __D = f32\n    @tile_function\n    def f(x: __D) -> __D:\n        return x / 3"
    assert run(tmp_path, method, "X[0] = A.f(1)")[0] == np.float32(1) / np.float32(3)


@pytest.mark.parametrize(
    ("function", "call", "shown"),
    [
        ("@tile_function\ndef f(A: Global[T, M, M]): return A[0, 0]", "f(Z)", "expected Global[T, M, M] as A"),
        (ONE.format("F"), "f(n)", "expected F: Scalar as x"),
        (ONE.format("bool"), "f(n > 0)", "expected bool as x; that is known at compile time"),
    ],
)
def test_errors_show_what_was_written(function: str, call: str, shown: str, tmp_path: Path) -> None:
    with pytest.raises(CompileErrors) as caught:
        run(tmp_path, function, call)
    assert shown in caught.value.errors[0].message


def test_the_fix_of_a_result_is_to_return_another(tmp_path: Path) -> None:
    with pytest.raises(CompileErrors) as caught:
        run(tmp_path, RESULT.format("f32"), "f(None)")
    assert caught.value.errors[0].fix.startswith("return ")
