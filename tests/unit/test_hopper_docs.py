"""Every example of docs/hopper.md compiles and computes what it should, or is refused with the message it states."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tiledsl import CompileError, ptx

PAGE = (Path(__file__).parents[2] / "docs" / "hopper.md").read_text()
FENCE = re.compile(r"^```python(?: error: (?P<error>[^\n]*))?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
PRELUDE, *REST = [(m["code"], m["error"] or "") for m in FENCE.finditer(PAGE)]
NAMES = [re.findall(r"^def (\w+)", code, re.MULTILINE)[-1] for code, _ in REST]

Array = NDArray[Any]
BF16: Any = ml_dtypes.bfloat16


def kernel(name: str, folder: Path) -> Any:
    """The example of this name, as a module behind the page's first one."""
    path = folder / f"hopper_{name}.py"
    path.write_text(f"{PRELUDE[0]}\n\n{REST[NAMES.index(name)][0]}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[path.stem]
    return getattr(module, name)


@pytest.mark.parametrize("name", [name for name, (_, error) in zip(NAMES, REST, strict=True) if not error])
def test_example_compiles(name: str, tmp_path: Path) -> None:
    resources = kernel(name, tmp_path).compile().resources
    assert (resources.spill_stores, resources.stack) == (0, 0)


@pytest.mark.parametrize("name", [name for name, (_, error) in zip(NAMES, REST, strict=True) if error])
def test_example_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError) as error:
        kernel(name, tmp_path).compile()
    assert REST[NAMES.index(name)][1] in str(error.value)
    assert "fix: " in str(error.value)


def small(*shape: int, dtype: Any = BF16) -> Array:
    """Integers, so that sums are exact."""
    return np.random.default_rng(sum(shape)).integers(-2, 3, shape).astype(dtype)


@pytest.mark.parametrize("name", ["one_tile", "producer_consumers", "in_turns"])
def test_example_computes(name: str, tmp_path: Path) -> None:
    a, b, c = small(264, 200), small(136, 200), np.full((264, 136), 7, BF16)
    kernel(name, tmp_path).check(a, b, c)
    expected = (a.astype(np.float32) @ b.astype(np.float32).T).astype(BF16)
    np.testing.assert_array_equal(c.astype(np.float32), expected.astype(np.float32))


def test_what_threads_convert_computes(tmp_path: Path) -> None:
    a, b, c = small(264, 200), small(136, 200), np.full((264, 136), 7, BF16)
    kernel("converted", tmp_path).check(a.astype(np.float32), b, c)
    np.testing.assert_array_equal(c, (a.astype(np.float32) @ b.astype(np.float32).T).astype(BF16))


def test_batches_compute(tmp_path: Path) -> None:
    a, b, c = small(3, 200, 136, dtype=np.float16), small(3, 200, 104, dtype=np.float16), np.zeros((3, 136, 104), "f4")
    kernel("batched", tmp_path).check(a, b, c)
    np.testing.assert_array_equal(c, a.astype(np.float32).transpose(0, 2, 1) @ b.astype(np.float32))


def test_stores_to_another_block_compute(tmp_path: Path) -> None:
    x, y = small(2, 512, dtype=np.float32), np.zeros(512, np.float32)
    kernel("summed", tmp_path).check(x, y)
    np.testing.assert_array_equal(y, x[0] + x[1])


def test_groups_compute(tmp_path: Path) -> None:
    sizes = [70, 0, 128, 1]
    a, b, c = small(200, 136), small(4, 104, 136), np.full((200, 104), 7, "f4")
    expected = c.copy()
    for group, size in enumerate(sizes):
        rows = slice(sum(sizes[:group]), sum(sizes[:group]) + size)
        expected[rows] = a[rows].astype(np.float32) @ b[group].astype(np.float32).T
    kernel("grouped", tmp_path).check(a, b, c, np.array(sizes, np.int32))
    np.testing.assert_array_equal(c, expected)


def test_every_raw_instruction_is_in_the_table() -> None:
    """Those of other pages are in language.md."""
    table = PAGE[PAGE.index("| `tiledsl.ptx`") : PAGE.index("An mbarrier is an element")]
    listed = set(re.findall(r"`(\w+)\(", table))
    elsewhere = {"commit_group", "cp_async", "inline", "ldmatrix", "mma_sync", "stmatrix", "wait_group"}
    assert listed == set(ptx.__all__) - elsewhere
