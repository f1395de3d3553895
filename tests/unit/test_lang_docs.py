"""Every example of docs/language.md compiles, or is refused with the message it states; those on tensor cores and with
asynchronous copies compute what they should. Its table of products is the one of the compiler."""

from __future__ import annotations

import importlib.util
import itertools
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tiledsl import CompileError, f16
from tiledsl.layout.mma import TABLE

PAGE = Path(__file__).parents[2] / "docs" / "language.md"
FENCE = re.compile(r"^```python(?: error: (?P<error>[^\n]*))?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    code: str
    error: str
    line: int

    @property
    def name(self) -> str:
        found = re.search(r"@tile_kernel\ndef (\w+)", self.code)
        return found.group(1) if found else "prelude"


def examples() -> list[Example]:
    text = PAGE.read_text()
    return [Example(m["code"], m["error"] or "", text.count("\n", 0, m.start()) + 2) for m in FENCE.finditer(text)]


PRELUDE, *REST = examples()


def load(example: Example, folder: Path) -> ModuleType:
    """The example as a module, behind the page's first one."""
    path = folder / f"language_{example.name}.py"
    path.write_text(f"{PRELUDE.code}\n\n{example.code}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[path.stem]
    return module


def test_the_page_has_examples() -> None:
    assert PRELUDE.name == "prelude"
    assert len({e.name for e in REST}) == len(REST) >= 12


@pytest.mark.parametrize("example", [e for e in REST if not e.error], ids=lambda e: e.name)
def test_example_compiles(example: Example, tmp_path: Path) -> None:
    module = load(example, tmp_path)
    kernel: Any = getattr(module, example.name)
    dtypes = {"D": f16} if "TypeVar(" in example.code else {}
    compiled = kernel.compile(arch="sm_90a", **dtypes)
    assert compiled.resources.spill_stores == 0


@pytest.mark.parametrize("example", [e for e in REST if e.error], ids=lambda e: e.name)
def test_example_is_refused(example: Example, tmp_path: Path) -> None:
    module = load(example, tmp_path)
    with pytest.raises(CompileError) as error:
        getattr(module, example.name).compile(arch="sm_90a")
    assert example.error in str(error.value)
    assert "fix: " in str(error.value)


# -- what they compute -----------------------------------------------------------------------------

RNG = np.random.default_rng(5)


def small(*shape: int, dtype: Any = np.float16) -> Any:
    """Integers, so that sums are exact."""
    return RNG.integers(-3, 4, shape).astype(dtype)


def matmul() -> tuple[list[Any], Any]:
    a, x = small(70, 40, dtype=ml_dtypes.bfloat16), small(36, 40, dtype=ml_dtypes.bfloat16)
    return [a, x, np.zeros((70, 36), np.float32)], a.astype(np.float32) @ x.astype(np.float32).T


def masked() -> tuple[list[Any], Any]:
    a, x, bias = small(70, 64), small(66, 64), small(66, dtype=np.float32)
    y = (a.astype(np.float64) @ x.astype(np.float64).T) * 0.25 + bias
    i, j = np.indices((70, 66))
    expected = np.where((i < j) | (y < -6), 0, np.where(y > 6, y, np.nan))  # gelu itself has tests of its own
    return [a, x, bias, np.zeros((70, 66), np.float16), 0.25], expected


def twice() -> tuple[list[Any], Any]:
    a, x = small(70, 32), small(32, 32)
    return [a, x, np.zeros((70, 32), np.float32)], (a.astype(np.float64) @ x) @ x


def double_buffered() -> tuple[list[Any], Any]:
    a = small(70, 100, dtype=np.float32)
    return [a, np.zeros(70, np.float32)], a.sum(axis=1)


def gemm() -> tuple[list[Any], Any]:
    a, x = small(70, 104), small(104, 40)
    return [a, x, np.zeros((70, 40), np.float16)], a.astype(np.float64) @ x


def one_warp() -> tuple[list[Any], Any]:
    a, x = small(16, 72), small(8, 72)
    return [a, x, np.zeros((16, 8), np.float32)], a.astype(np.float64) @ x.T


@pytest.mark.parametrize("case", [matmul, masked, twice, double_buffered, gemm, one_warp], ids=lambda c: c.__name__)
def test_example_computes(case: Any, tmp_path: Path) -> None:
    (example,) = (e for e in REST if e.name == case.__name__)
    arguments, expected = case()
    getattr(load(example, tmp_path), example.name).check(*arguments)
    result = next(a for a in reversed(arguments) if isinstance(a, np.ndarray)).astype(np.float64)
    known = ~np.isnan(expected)
    assert known.mean() > 0.5
    assert np.array_equal(result[known], expected[known])


def test_the_table_of_products() -> None:
    """| shapes | operands, "also mixed" if each may be another | accumulators | first target |"""
    rows = re.findall(
        r"^\| ((?:`m\d+n\d+k\d+` ?)+)\| ([^|]+) \| ([^|]+) \| sm_(\d+) \|$", PAGE.read_text(), re.MULTILINE
    )
    found: list[tuple[Any, ...]] = []
    for shapes, operands, accs, arch in rows:
        names = operands.partition(",")[0].split()
        pairs = itertools.product(names, names) if "mixed" in operands else ((n, n) for n in names)
        capability = divmod(int(arch), 10)
        found += [
            (s, *p, acc, capability) for s, p, acc in itertools.product(re.findall(r"\w+", shapes), pairs, accs.split())
        ]
    assert sorted(found) == sorted((str(r.shape), r.a, r.b, r.acc, r.capability) for r in TABLE)
