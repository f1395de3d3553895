"""Every example of docs/memory_model.md compiles and computes what it should; its tables are the compiler's."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tiledsl.ir.atomics import ATOMICS, SCOPES
from tiledsl.ranks import OnRank, check_ranks

PAGE = (Path(__file__).parents[2] / "docs" / "memory_model.md").read_text()
PRELUDE, *REST = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = {re.findall(r"^def (\w+)", code, re.MULTILINE)[-1]: code for code in REST}
UPDATES = sorted(ATOMICS.keys() - {"load", "store"})

Array = NDArray[Any]


def module(name: str, code: str, folder: Path) -> ModuleType:
    """The code behind the page's first example."""
    path = folder / f"memory_{name}.py"
    path.write_text(f"{PRELUDE}\n\n{code}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made
    try:
        spec.loader.exec_module(made)
    finally:
        del sys.modules[path.stem]
    return made


def small(*shape: int) -> Array:
    """Integers, so that sums are exact."""
    return np.random.default_rng(sum(shape)).integers(-8, 9, shape).astype(np.float32)


def split_k() -> tuple[list[Array], Array]:
    a, x, c = small(40, 70), small(70, 24), np.full((40, 24), np.nan, np.float32)
    return [a, x, c, np.zeros((2, 6), np.int32)], a @ x


def mean() -> tuple[list[Array], Array]:
    x = small(9, 64)
    counter, out = np.zeros(1, np.int32), np.zeros(1, np.float32)
    return [x, np.zeros(9, np.float32), counter, out], x.sum()[None] / np.float32(x.size)


def largest() -> tuple[list[Array], Array]:
    x = small(9, 64)
    value, at = np.full(1, -np.inf, np.float32), np.zeros(1, np.int32)
    return [x, np.zeros(1, np.int32), value, at], np.array([x.argmax()])


CASES: dict[str, Any] = {"split_k": split_k, "mean": mean, "largest": largest}


def test_the_page_has_these_examples() -> None:
    assert EXAMPLES.keys() == CASES.keys() | {"reduce_scatter", "publish"}


def test_the_example_of_a_fence_after_the_barrier(tmp_path: Path) -> None:
    kernel = module("publish", EXAMPLES["publish"], tmp_path).publish
    for by_fence in (True, False):
        assert kernel.compile(arch="sm_90a", BY_FENCE=by_fence).resources.spill_stores == 0
        ready = np.zeros(3, np.int32)
        kernel.check(np.zeros((3, 64), np.float32), ready, BY_FENCE=by_fence)
        assert ready.tolist() == [1, 1, 1]


def test_the_example_of_several_gpus(tmp_path: Path) -> None:
    kernel = module("reduce_scatter", EXAMPLES["reduce_scatter"], tmp_path).reduce_scatter
    assert kernel.compile(arch="sm_90a").resources.spill_stores == 0
    mine, others = ([small(5, 64), small(5, 64)[::-1].copy()] for _ in range(2))
    inboxes, outs = ([np.zeros((5, 64), np.float32) for _ in range(2)] for _ in range(2))
    flags = [np.zeros(5, np.int32) for _ in range(2)]
    launches = [
        OnRank(r, kernel, (mine[r], others[r], inboxes[r], flags[r], inboxes[1 - r], flags[1 - r], outs[r]))
        for r in range(2)
    ]
    assert check_ranks(launches, seeds=4)
    for r in range(2):
        np.testing.assert_array_equal(outs[r], mine[r] + others[1 - r])


@pytest.mark.parametrize("name", CASES)
def test_example_compiles_and_computes(name: str, tmp_path: Path) -> None:
    kernel = getattr(module(name, EXAMPLES[name], tmp_path), name)
    assert kernel.compile(arch="sm_90a").resources.spill_stores == 0
    arguments, expected = CASES[name]()
    for _ in range(2):  # again: counters are as before, or are set back here
        if name == "split_k":
            arguments[3][...] = 0
        kernel.check(*arguments)
        result = arguments[2] if name == "split_k" else arguments[3]
        np.testing.assert_array_equal(result, expected)


def test_the_table_of_dtypes() -> None:
    """The column of dtypes, one row a method or several."""
    rows = re.findall(r"^\| (`\w+\.atomic_[^|]*) \|[^\n]*\| ([^|]*) \|$", PAGE, re.MULTILINE)
    found = {name: set(re.findall(r"`(\w+)`", dtypes)) for names, dtypes in rows for name in methods(names)}
    matrix = {"e4m3", "e5m2", "tf32"}
    assert found.keys() == ATOMICS.keys()
    assert {name: dtypes for name, dtypes in found.items() if name not in ("load", "store")} == {
        name: set(ATOMICS[name].dtypes) for name in UPDATES
    }
    assert found["load"] == found["store"] == matrix  # "all but"
    assert not matrix & ATOMICS["load"].dtypes


def methods(text: str) -> list[str]:
    return re.findall(r"\.atomic_(\w+)\(", text)


def test_the_table_of_orders_and_that_of_scopes(tmp_path: Path) -> None:
    """Each row becomes the PTX that it names."""
    rows = re.findall(r"^\| (`atomic_\w+`|the others) \| `\"(\w+)\"` \| `([\w.]+)` \|", PAGE, re.MULTILINE)
    assert re.findall(r"^\| `\"(\w+)\"` \| ", PAGE, re.MULTILINE) == list(SCOPES)
    orders: dict[str, list[str]] = {"load": [], "store": [], "max": []}
    for method, order, instruction in rows:
        name = method.strip("`").removeprefix("atomic_") if method != "the others" else "max"
        orders[name].append(order)
        value = "" if name == "load" else ", 1"
        code = f"""
@tile_kernel
def row(X: Global[i32, N]):
    grid(1)
    threads(1)
    X.atomic_{name}(0{value}, order="{order}")
"""
        text = module(f"{name}_{order}", f"from tiledsl.dims import N\n{code}", tmp_path).row.compile(arch="sm_80").ptx
        assert f"{instruction.replace('scope', 'gpu')}.global" in text
    assert {name: tuple(found) for name, found in orders.items()} == {name: ATOMICS[name].orders for name in orders}
