"""`ptx.inline`: a check names the lines that rest on a model given as `emulate=`, and addresses are integers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiledsl import (
    Const,
    Global,
    barrier,
    f32,
    grid,
    i32,
    ptx,
    shared,
    threads,
    tile_function,
    tile_kernel,
    u8,
    u32,
    u64,
)
from tiledsl.dims import N
from tiledsl.errors import CompileErrors
from tiledsl.inspect.report.check import checked as checked_for_report
from tiledsl.inspect.report.places import Places
from tiledsl.ir.ops.ptx import addresses
from tiledsl.ir.types import F32, U64
from tiledsl.ranks import OnRank, check_ranks

LINES = Path(__file__).read_text().splitlines()


def negative(x: Any) -> Any:
    return -x


@tile_function
def flipped(x: f32) -> f32:
    return ptx.inline("neg.f32 $0, $1;", f32, x, emulate=negative)  # inlined


@tile_kernel
def flip(X: Global[f32, N], *, MODEL: Const[bool] = True, RIGHT: Const[bool] = True) -> None:
    i = grid(1) * 0 + threads(64)
    S = shared((64,), f32)
    S[i] = flipped(X[i]) if MODEL else X[i]
    if RIGHT:
        barrier()
    if MODEL:
        X[i] = ptx.inline("neg.f32 $0, $1;", f32, S[i ^ 32], emulate=negative)  # direct
    else:
        X[i] = S[i ^ 32]


@tile_kernel
def without(X: Global[f32, N]) -> None:
    i = grid(1) * 0 + threads(64)
    X[i] = ptx.inline("neg.f32 $0, $1;", f32, X[i])


def values() -> Any:
    return np.ones(64, np.float32)


def comments(result: Any) -> list[str]:
    """Return the comments after the lines for which the check assumes a model."""
    return sorted(LINES[loc.line - 1].rpartition("# ")[2] for loc in result.assumed)


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_verdict_names_each_line_that_rests_on_a_model(seeds: int) -> None:
    result = flip.check(values(), seeds=seeds)
    assert result.verdict == "clean" and result
    assert comments(result) == ["direct", "inlined"]
    *lines, last = str(result).splitlines()
    assert len(lines) == 2 and "assuming the models of ptx.inline at 2 lines" in last


def test_a_finding_hides_no_model() -> None:
    result = flip.check(values(), RIGHT=False, raises=False)
    assert result.verdict == "findings" and comments(result) == ["direct", "inlined"]


def test_nothing_is_assumed_without_a_model() -> None:
    assert flip.check(values(), MODEL=False).assumed == ()
    result = without.check(values(), raises=False)
    assert (result.verdict, result.assumed) == ("incomplete", ())


def test_kernels_of_several_ranks() -> None:
    result = check_ranks([OnRank(0, flip, (values(),)), OnRank(1, flip, (values(),))])
    assert result.verdict == "clean" and comments(result) == ["direct", "inlined"]


def test_json_sarif_notebooks_and_reports_name_them() -> None:
    result = flip.check(values())
    lines = {loc.line for loc in result.assumed}
    inlined = next(each for each in json.loads(result.to_json())["assumed"] if each["called_at"] is not None)
    assert (inlined["function"], inlined["called_at"]["function"]) == ("flipped", "flip")
    (run,) = json.loads(result.to_sarif())["runs"]
    notes = run["invocations"][0]["toolExecutionNotifications"]
    assert {note["level"] for note in notes} == {"note"}
    assert {note["locations"][0]["physicalLocation"]["region"]["startLine"] for note in notes} == lines
    assert "assuming" in result._repr_html_()
    assert "assuming" in checked_for_report(flip, {}, ["N=64"], Places()).check.text


# -- addresses ---------------------------------------------------------------------------------------


@tile_kernel
def addressed(X: Global[f32, N], *, TEXT: Const[str], D: Const[Any]) -> None:
    i = grid(1) * 0 + threads(32)
    X[i] = ptx.inline(TEXT, f32, D(1), X[i])  # here


@pytest.mark.parametrize("dtype", [f32, u8], ids=str)
@pytest.mark.parametrize("address", ["[$1]", "[${1}]", "[ $1 + 16 ]", "[$1, {$2, $2}]"])
def test_an_address_is_an_integer(address: str, dtype: Any) -> None:
    with pytest.raises(CompileErrors) as caught:
        addressed.lower(TEXT=f"ld.global.f32 $0, {address};", D=dtype).ir()
    (error,) = caught.value.errors
    assert error.code == "C708" and LINES[error.loc.line - 1].endswith("# here")


@pytest.mark.parametrize("dtype", [u64, u32, i32], ids=str)
def test_integers_are_addresses(dtype: Any) -> None:
    addressed.lower(TEXT="ld.f32 $0, [$1];", D=dtype).ir()


def test_coordinates_in_braces_are_no_addresses() -> None:
    assert addresses("tex.2d.v4.f32.f32 {$0, $0, $0, $0}, [$1, {$2, ${3}}];", [F32, U64, F32, F32]) == [("$1", U64)]
    assert addresses("add.f32 $0, $1, $2;", [F32, F32, F32]) == []
