"""Errors about matrix fragments and asynchronous copies say what would do instead."""

from __future__ import annotations

import pytest

from tiledsl.errors import CompileErrors
from tiledsl.ir.parser import parse_kernel
from tiledsl.passes.pipeline import run_pipeline

KERNEL = """
kernel k(%A: global<{dtype}, [M, K], unit={unit}, align={align}>, %i: i32)
  grid(1) threads(32) level(tile) index_bits(32) {{
  %0 = arith.constant 0 : index
  %two = arith.constant 2 : index
  %any = arith.cast %i : index
  %even = arith.mul %any, %two : index
  %S = tile.shared_alloc {{layout = "{layout}"}} : shared<{dtype}, [32, 32]>
  {op}
  control.return
}}
"""
A_TYPE = "fragment<f16, [16, 16], mma.m16n8k16.a(1, 1)>"


def copy(vec: int, column: str = "%0") -> str:
    sides = "shape = (32, 32), src_axes = (0, 1), dst_axes = (0, 1), grouped = true"
    return f"%t = async.copy %A, %0, {column}, %S, %0, %0 {{{sides}, vec = {vec}}} : token"


def load(column: str = "%0", vec: int = 0) -> str:
    return f"%a = matrix.load %S, %0, {column} {{type = {A_TYPE}, axes = (0, 1), vec = {vec}}} : {A_TYPE}"


CASES = {
    "narrower": ({"align": 8, "op": copy(16)}, "or use vec=8"),
    "too narrow": ({"align": 2, "op": copy(4)}, "or use copy(vec=2), which goes through registers"),
    "narrower column": ({"op": copy(16, "%even")}, "write it as 8 * something, or use vec=4"),
    "any column": ({"op": copy(16, "%any")}, "or use copy(vec=2), which goes through registers"),
    "transposed": ({"unit": 0, "op": copy(16)}, "use copy(), which transposes through registers"),
    "transposed words": ({"unit": 0, "dtype": "f32", "op": copy(16)}, "or use vec=4, one element at once"),
    "no row": ({"op": load("%any")}, "or use load_fragment() and store()"),
    "padding": ({"layout": "padded(36)", "op": load()}, "pad S to a multiple of 8"),
    "small units": ({"layout": "swizzled(unit=4, span=4)", "op": load()}, "give S a swizzle of unit=8 or more"),
    "wide": ({"op": load(vec=8)}, "use vec=2 or 4"),
}


@pytest.mark.parametrize(("case", "fix"), CASES.values(), ids=CASES)
def test_what_to_do_instead(case: dict[str, object], fix: str) -> None:
    given = {"dtype": "f16", "unit": 1, "align": 16, "layout": "row", **case}
    with pytest.raises(CompileErrors) as caught:
        run_pipeline(parse_kernel(KERNEL.format(**given)))
    (error,) = caught.value.errors
    assert fix in error.fix, f"{error.message}: {error.fix}"
