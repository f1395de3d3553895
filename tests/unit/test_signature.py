"""Annotations become a Signature; every mistake in one is an error at the parameter's line."""

from __future__ import annotations

import linecache
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Literal, TypeVar

import pytest

from tiledsl import Const, Dim, Global, bf16, boolean, const, f16, f32, i32, index, tile_function, tile_kernel
from tiledsl.dims import K, M, N
from tiledsl.errors import CompileError, CompileErrors, TileError
from tiledsl.ir.types import BF16, F32, I32
from tiledsl.signatures.annotations import read_signature
from tiledsl.signatures.signature import REQUIRED, ConstParam, GlobalParam, ScalarParam, Signature

T = TypeVar("T", f16, bf16)


class Rows(Dim):
    """Rows of a batch."""


def read(fn: Callable[..., Any]) -> Signature:
    return read_signature(fn)


def error_of(fn: Callable[..., Any]) -> CompileError:
    with pytest.raises(CompileErrors) as caught:
        read_signature(fn)
    return caught.value.errors[0]


def test_all_kinds_of_parameters() -> None:
    def gemm(
        A: Global[T, M, K], B: Global[T, K, N], C: Global[f32, M, N], bias: Global[f32, N] | None = None,
        alpha: f32 = 1.0, *, beta: i32, BM: const = 16, act: Const[str],
    ): ...  # fmt: skip

    signature = read(gemm)
    assert signature.params == (
        GlobalParam("A", "T", ("M", "K")),
        GlobalParam("B", "T", ("K", "N")),
        GlobalParam("C", F32, ("M", "N")),
        GlobalParam("bias", F32, ("N",), optional=True, default=None),
        ScalarParam("alpha", F32, 1.0),
        ScalarParam("beta", I32, REQUIRED, keyword=True),
    )
    assert signature.consts == (ConstParam("BM", int, 16), ConstParam("act", str))
    assert signature.dtype_variables == ("T",)
    assert signature.usage == "gemm(A, B, C, bias=None, alpha=1.0, *, beta, BM=16, act)"
    assert Path(signature.loc.file).name == Path(__file__).name
    assert "def gemm" in linecache.getline(signature.loc.file, signature.loc.line)


def test_static_extents_own_dimensions_and_ranks() -> None:
    def kernel(A: Global[bf16, Rows, Literal[3]], B: Global[f32, M, N, K, Rows]): ...

    first, second = read(kernel).tensors
    assert (first.dtype, first.dims) == (BF16, ("Rows", 3))
    assert second.dims == ("M", "N", "K", "Rows")


def test_annotations_may_use_names_of_an_enclosing_function() -> None:
    class Depth(Dim):
        """Only known here."""

    @tile_kernel
    def kernel(A: Global[f32, Depth]): ...

    assert kernel.signature.tensors[0].dims == ("Depth",)


def no_annotation(A): ...  # type: ignore[no-untyped-def]
def python_float(alpha: float): ...
def python_int(n: int): ...
def an_index(n: index): ...
def unknown_name(A: Global[f32, Unknown]): ...  # type: ignore[name-defined]  # noqa: F821
def text_dimension(A: Global[f32, "M"]): ...  # type: ignore[type-arg]  # noqa: UP037
def no_dtype(A: Global[M, K]): ...  # type: ignore[type-var]
def huge_extent(A: Global[f32, Literal[4294967296]]): ...
def too_many(A: Global[f32, M, N, K, M, N]): ...
def rank_zero(A: Global[f32]): ...
def positional_const(BM: const = 16): ...
def star(*arrays: Global[f32, M]): ...
def default_array(A: Global[f32, M] = 3): ...  # type: ignore[assignment]
def optional_scalar(alpha: f32 | None): ...
def named_device(device: Global[f32, M]): ...
def clash(A: Global[f32, M], M: i32): ...  # type: ignore[valid-type]


@pytest.mark.parametrize(
    ("fn", "message", "fix"),
    [
        (no_annotation, "parameter A has no annotation", "Global[f32, M, K]"),
        (python_float, "annotated float; expected Global[dtype, dims...], a dtype or const", "write f32 or f64"),
        (python_int, "annotated int", "i32 or i64 for a run-time integer, const for a compile-time one"),
        (an_index, "annotated index", "inside kernels only"),
        (unknown_name, "cannot be evaluated: name 'Unknown' is not defined", "import or define"),
        (text_dimension, "is no dimension of A", "tiledsl.dims"),
        (no_dtype, "Global of A begins with M; expected a dtype", "a dtype or a type variable"),
        (huge_extent, "is no dimension of A", "at most 2147483647"),
        (too_many, "A has 5 dimensions; 1 to 4 are possible", "merge dimensions"),
        (rank_zero, "A has 0 dimensions", "alpha: f32"),
        (positional_const, "const BM is positional", "keyword only"),
        (star, "*arrays", "list the parameters"),
        (default_array, "tensor A has the default 3", "| None = None"),
        (optional_scalar, "alpha is optional but no tensor", "default"),
        (named_device, "a parameter cannot be called device", "rename it"),
        (clash, "M names both an extent of A and a parameter", "rename"),
    ],
    ids=lambda p: p.__name__ if callable(p) else "",
)
def test_bad_parameters_are_errors_at_their_line(fn: Callable[..., Any], message: str, fix: str) -> None:
    error = error_of(fn)
    assert message in error.message
    assert fix in error.fix
    assert fn.__name__ in linecache.getline(error.loc.file, error.loc.line)
    assert "^" in str(error)


def test_several_bad_parameters_are_all_reported() -> None:
    def kernel(
        A: int,
        B: Global[f32, M],
        C: float,
    ): ...

    with pytest.raises(CompileErrors) as caught:
        read(kernel)
    first, second = caught.value.errors
    assert second.loc.line == first.loc.line + 2


def test_a_bare_prompt_has_no_source() -> None:
    program = "from tiledsl import *\nfrom tiledsl.dims import M\n@tile_kernel\ndef k(A: Global[f32, M]): pass"
    done = subprocess.run([sys.executable, "-c", f"exec({program!r})"], capture_output=True, text=True, check=False)
    assert "the source of k is not available" in done.stderr
    assert "fix: write it in a file or a notebook cell" in done.stderr


def test_a_notebook_cell_has_a_source() -> None:
    """IPython compiles a cell under a name of its own and leaves its text in linecache."""
    text = (
        "from __future__ import annotations\nfrom tiledsl import *\nfrom tiledsl.dims import M\n"
        "@tile_kernel\ndef cell_kernel(A: Global[f32, M]): pass\n"
    )
    name = "<ipython-input-7-0123456789ab>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), names)
    assert names["cell_kernel"].signature.loc.line == 5


def test_decorating_twice_and_decorating_no_function() -> None:
    @tile_function
    def helper(x: f32) -> f32:
        return x

    with pytest.raises(TileError, match="takes a function, got a TileFunction"):
        tile_kernel(helper)
    with pytest.raises(TileError, match="takes a function, got a int"):
        tile_kernel(3)  # type: ignore[call-overload]
    with pytest.raises(TileError, match="called from Python"):
        helper(1.0)  # type: ignore[arg-type]


def test_an_unknown_arch_is_refused_at_the_decorator() -> None:
    with pytest.raises(CompileError, match="sm_91"):
        tile_kernel(arch="sm_91")


def test_boolean_scalar() -> None:
    def kernel(A: Global[f32, M], flag: boolean): ...

    assert read(kernel).scalars[0].dtype.name == "bool"
