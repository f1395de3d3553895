"""Kernels and tile functions are copied and pickled as Python's functions are: not at all, and by their name."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from tests.unit import pickled_kernels
from tests.unit.pickled_kernels import compile_it, doubled, made, other_name, run_it, twice, wrong
from tiledsl import TileError, f32, gelu
from tiledsl.errors import CompileErrors
from tiledsl.ir.types import DTYPES

HERE = pickled_kernels.__name__


COPIED: tuple[Any, ...] = (doubled, doubled.signature, twice, gelu, f32, *DTYPES.values())


@pytest.mark.parametrize("value", COPIED, ids=lambda value: f"{type(value).__name__}-{getattr(value, 'name', value)}")
def test_a_copy_is_the_thing_itself(value: Any) -> None:
    assert copy.copy(value) is value
    assert copy.deepcopy([value])[0] is value
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(value, protocol)) is value


def test_what_was_compiled_is_copied_by_value() -> None:
    compiled = compile_it(doubled)
    assert copy.deepcopy(compiled) == compiled
    assert pickle.loads(pickle.dumps(compiled)) == compiled


@pytest.mark.parametrize("value", made(), ids=("kernel", "tile_function"))
def test_what_is_defined_inside_a_function_has_no_name(value: Any) -> None:
    assert copy.deepcopy(value) is value
    with pytest.raises(TileError, match=r"is not there, not this Tile.*, which is pickled by that name") as caught:
        pickle.dumps(value)
    assert "fix: define it at the top level of a module" in str(caught.value)


def test_a_name_that_stands_for_something_else() -> None:
    with pytest.raises(TileError, match=f"{HERE}.replaced is a function, not this TileKernel"):
        pickle.dumps(other_name)
    with pytest.raises(TileError, match=f"replaced is not found under its name, {HERE}.replaced"):
        pickle.dumps(other_name.signature)


@pytest.mark.parametrize(
    ("module", "name", "problem"),
    [
        (HERE, "absent", "is not there"),
        (HERE, "run_it", "is a function"),
        ("no_such_module", "doubled", "is not there: No module named 'no_such_module'"),
        ("__main__", "doubled", "is not there"),  # pickled by a script, and read by another one
    ],
)
def test_a_name_that_this_process_does_not_have(module: str, name: str, problem: str) -> None:
    data = pickle.dumps(doubled, 0).replace(b"doubled", name.encode()).replace(HERE.encode(), module.encode())
    with pytest.raises(TileError, match=f"a pickled TileKernel is looked up as {module}.{name}, which {problem}") as e:
        pickle.loads(data)
    assert "fix: define it in a module" in str(e.value)


def test_a_reloaded_module_does_not_pass_for_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, HERE)
    with pytest.raises(TileError, match="is not there, not this TileKernel"):
        pickle.dumps(doubled)


def test_a_process_pool_takes_kernels_and_returns_errors() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(run_it, doubled).result(timeout=120) == [2.0, 2.0, 2.0]
        with pytest.raises(CompileErrors, match="undefined") as caught:
            pool.submit(compile_it, wrong).result(timeout=120)
        assert caught.value.errors[0].loc.line == wrong.signature.loc.line + 1
        with pytest.raises(TileError, match="define it at the top level"):
            pool.submit(run_it, made()[0]).result(timeout=120)
