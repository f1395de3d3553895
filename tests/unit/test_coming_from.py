"""The kernels of docs/coming_from.md compute what they should, and its names and its formula are right."""

from __future__ import annotations

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tiledsl
from tiledsl import ptx, swizzled

PAGE = (Path(__file__).parents[2] / "docs" / "coming_from.md").read_text()
PRELUDE, *KERNELS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
BF16: Any = ml_dtypes.bfloat16


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("page") / "coming_from.py"
    path.write_text("\n\n".join((PRELUDE, *KERNELS)))
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small(*shape: int, dtype: Any = np.float32) -> Any:
    """Integers, so that sums are exact."""
    return np.random.default_rng(sum(shape)).integers(-2, 3, shape).astype(dtype)


def test_from_cuda(page: Any) -> None:
    x, y = small(5, 300), np.zeros(5, np.float32)
    page.row_sums.check(x, y)
    assert (y == x.sum(axis=1)).all()


def test_from_triton(page: Any) -> None:
    a, b, c = small(100, 72, dtype=BF16), small(72, 88, dtype=BF16), np.zeros((100, 88), np.float32)
    page.relu_product.check(a, b, c)
    assert (c == np.maximum(a.astype(np.float32) @ b.astype(np.float32), 0)).all()


def test_from_cute(page: Any) -> None:
    a, b, c = small(200, 136, dtype=BF16), small(152, 136, dtype=BF16), np.zeros((200, 152), BF16)
    page.warp_specialised.check(a, b, c)
    assert (c == (a.astype(np.float32) @ b.astype(np.float32).T).astype(BF16)).all()


@pytest.mark.parametrize("kernel", ["row_sums", "relu_product", "warp_specialised"])
def test_they_compile_without_spills(page: Any, kernel: str) -> None:
    assert getattr(page, kernel).compile(arch="sm_90a").resources.spill_stores == 0


@pytest.mark.parametrize(("bits", "base", "shift"), [(3, 3, 3), (2, 3, 3), (1, 3, 3), (3, 2, 4), (2, 0, 5)])
def test_a_swizzle_of_cute_is_the_layout_that_the_page_says(bits: int, base: int, shift: int) -> None:
    """`Swizzle<bits, base, shift>` xors the bits of an offset from base + shift on into those from base on."""
    rows, columns = 32, 2 ** (base + bits)
    layout = swizzled(unit=2**base, span=2**bits, every=2 ** (shift - bits))
    for row in range(rows):
        for column in range(columns):
            offset = row * columns + column
            picked = offset >> (base + shift) & (2**bits - 1)
            assert layout.offset((row, column), (rows, columns)) == offset ^ (picked << base)


def test_its_names_are_those_of_the_language() -> None:
    """In the last column of each table: what is called, or an attribute of ptx."""
    cells = [line.rsplit(" | ", 1)[1] for line in PAGE.splitlines() if line.startswith("| ") and " | " in line]
    code = [name for cell in cells for name in re.findall(r"`([^`]*)`", cell)]
    called = {name for text in code for name in re.findall(r"(?<![\w.])([a-z]\w+)\(", text)}
    assert len(called) > 25 and {*called} <= {*tiledsl.__all__, "range", "type", "print", "assert_"}
    assert {name for text in code for name in re.findall(r"ptx\.(\w+)", text)} <= {*ptx.__all__}
