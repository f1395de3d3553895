"""Extents of a grid: what the host computes is what the kernel computes, of scalars of every integer dtype."""

from __future__ import annotations

import linecache
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl import Global, cdiv, grid, grid_size, lang, threads, where
from tiledsl.backends import emulator
from tiledsl.dims import M
from tiledsl.errors import KernelArgumentError
from tiledsl.frontend import build
from tiledsl.ir.core import Kernel
from tiledsl.ir.expr import CallExpr, evaluate, parse_expr
from tiledsl.ir.grid import checked_grid
from tiledsl.ir.types import DTYPES, DType
from tiledsl.ir.verifier import verify
from tiledsl.passes.pipeline import run_pipeline
from tiledsl.signatures.annotations import read_signature
from tiledsl.signatures.signature import GlobalSpec, Specialization

COUNTER = count()
SCALARS = [DTYPES[f"{sign}{bits}"] for sign in "iu" for bits in (8, 16, 32, 64)]
NAMES: dict[str, Any] = {
    "M": M,
    **{t.name: getattr(lang, t.name) for t in (*SCALARS, DTYPES["index"])},
    **{f.__name__: f for f in (Global, grid, grid_size, threads, cdiv, where)},
}
BINARY = ["+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>"]


def edges(dtype: DType) -> list[int]:
    low, high = dtype.limits
    near = [low, low + 1, high - 1, high, high // 2 + 1, -1, 0, 1, 2, 3, 7, 8, 100]
    return [n for n in near if low <= n <= high]


@st.composite
def expressions(draw: st.DrawFn, dtype: DType, depth: int) -> str:
    """Draw the text of an expression of `dtype` from the scalars a and b, in any dtype, and the dimension M."""
    if depth == 0:
        dimension = "M" if dtype.name == "index" else f"{dtype}(M)"
        scalars = ["a", "b"] if dtype.name != "index" else ["index(a)", "index(b)"]
        return draw(st.sampled_from([*scalars, dimension]))
    part = expressions(dtype, depth - 1)
    kind = draw(st.sampled_from(["binary", "binary", "binary", "function", "where", "cast"]))
    if kind == "binary":
        literal = st.sampled_from(["1", "3", "8", "100"])  # not on both sides, where Python would compute
        return f"({draw(part)} {draw(st.sampled_from(BINARY))} {draw(part | literal)})"
    if kind == "function":
        return f"{draw(st.sampled_from(['min', 'max', 'cdiv']))}({draw(part)}, {draw(part)})"
    if kind == "where":
        return f"where({draw(part)} {draw(st.sampled_from(['<', '<=', '==', '!=']))} a, {draw(part)}, -a)"
    return f"{dtype}({draw(st.sampled_from(SCALARS))}({draw(part)}))"


def kernel_of(text: str, dtype: DType) -> Kernel:
    lines = [
        f"def program(Y: Global[i64, M], a: {dtype}, b: {dtype}):",
        f"    g = {text}",
        "    grid((g & 3) + 1)",
        "    threads(1)",
        "    Y[0] = i64(g)",
        "    Y[1] = i64(grid_size())",
    ]
    source, file = "\n".join([*lines, ""]), f"<program {next(COUNTER)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = dict(NAMES)
    exec(compile(source, file, "exec", dont_inherit=True), names)
    spec = Specialization((("Y", GlobalSpec(DTYPES["i64"], 0, 16)),), ())
    return build(read_signature(names["program"]), spec, "sm_90a")


@pytest.mark.parametrize("dtype", SCALARS, ids=str)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_the_host_computes_what_the_kernel_computes(dtype: DType, data: st.DataObject) -> None:
    text = f"a + {data.draw(expressions(dtype, 3))}"  # a value of the kernel's, of this dtype
    kernel = kernel_of(text, dtype)
    verify(kernel)
    stages = kernel, run_pipeline(kernel.clone(), verify_each=True)
    (blocks,) = kernel.grid
    assert isinstance(blocks, CallExpr) and parse_expr(str(blocks)) == blocks
    low_bits = blocks.args[0]
    assert isinstance(low_bits, CallExpr) and low_bits.fn == "and"
    value = st.sampled_from(edges(dtype))
    for a, b in data.draw(st.lists(st.tuples(value, value), min_size=4, max_size=8)):
        host = evaluate(low_bits.args[0], {"a": a, "b": b, "M": 2})
        for stage in stages:
            Y = np.full(2, -1)
            emulator.run(stage, {"Y": Y, "a": a, "b": b})
            assert Y.tolist() == [(host + 2**63) % 2**64 - 2**63, (host & 3) + 1], (text, a, b)


@pytest.mark.parametrize(
    ("text", "names", "shown"),
    [
        ("add.i8(n, 100)", {"n": 100}, ("-56 blocks for n = 100", "add.i8(n, 100) = 200 does not fit in i8")),
        ("sub.u32(n, 5)", {"n": 3}, ("4294967294 blocks for n = 3", "sub.u32(n, 5) = -2 does not fit in u32")),
        ("mul(M, M)", {"M": 2**32 - 1}, ("for M = 4294967295", "mul(M, M) = 18446744065119617025 does not fit")),
        ("floordiv(M, cast(n))", {"M": 9, "n": 0}, ("0 blocks for M = 9, n = 0", "for which cast(n) is not 0")),
        ("add.i64(n, n)", {"n": 2**62}, ("blocks for n = 4611686018427387904", "pass smaller numbers: add.i64(n, n)")),
    ],
)  # fmt: skip
def test_an_extent_that_cannot_be_names_what_it_was_computed_from(
    text: str, names: dict[str, int], shown: tuple[str, ...]
) -> None:
    with pytest.raises(KernelArgumentError) as caught:
        checked_grid("k", [parse_expr(text)], names, (1, 1, 1))
    assert all(part in str(caught.value) for part in shown), caught.value


@pytest.mark.parametrize(("n", "blocks"), [(0, 0), (2, 3), (-1, 0)])
def test_the_side_of_a_select_that_is_not_chosen_is_no_error(n: int, blocks: int) -> None:
    """``grid(M // n if n > 0 else 0)`` may divide by zero, or leave 64 bits, on the side that is not chosen."""
    quotient = parse_expr("select(gt.i32(n, 0), floordiv(M, cast(n)), 0)")
    assert checked_grid("k", [quotient], {"M": 7, "n": n}, (1, 1, 1)) == (blocks, 1, 1)
    far = parse_expr("select(gt.i32(n, 0), mul(M, mul(M, M)), 0)")
    if n <= 0:
        assert checked_grid("k", [far], {"M": 2**31, "n": n}, (1, 1, 1)) == (0, 1, 1)
    else:
        with pytest.raises(KernelArgumentError, match="M = 2147483648"):
            checked_grid("k", [far], {"M": 2**31, "n": n}, (1, 1, 1))
