"""Kernels that nest deeper than Python does by itself: they compile, and give what Python gives.

Deep are the exits (each puts what follows it under a condition), chains of elif, loops that are unrolled with exits in
them, tile functions that call each other, and long sums.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from tiledsl.backends import emulator
from tiledsl.compilation.lowering import lower
from tiledsl.ir.core import Kernel
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.verifier import verify
from tiledsl.kernel import TileKernel

HEAD = """
from tiledsl import *
from tiledsl.dims import M

"""

START = """
@tile_kernel
def k(A: Global[f32, M]):
    i = grid(cdiv(M, 32)) * 32 + threads(32)
    x = A.get(i)
"""


def body(text: str) -> str:
    return HEAD + START + "".join(f"    {line}\n" for line in text.splitlines())


def early_returns(x: float) -> float:
    return x if any(x == j for j in range(200)) else x + 0.5


def chain(x: float) -> float:
    return next((x + j for j in range(200) if x > -j), x)


def counted_until(x: float) -> float:
    for j in range(600):
        if x > j:
            return x
        x += 1
    return x


def counted_where(x: float) -> float:
    for j in range(1024):
        x += x > j
    return x


CASES: dict[str, tuple[str, Callable[[float], float]]] = {
    "200 early returns": (
        body("".join(f"if x == {j}:\n    return\n" for j in range(200)) + "A.put(i, x + 0.5)"),
        early_returns,
    ),
    "200 elifs": (
        body(
            "if x > 0:\n    x = x + 0\n"
            + "".join(f"elif x > {-j}:\n    x = x + {j}\n" for j in range(1, 200))
            + "A.put(i, x)"
        ),
        chain,
    ),
    "unroll(1024) with an if": (
        body("for j in unroll(1024):\n    if x > j:\n        x = x + 1\nA.put(i, x)"),
        counted_where,
    ),
    "unroll(600) with a break": (
        body("for j in unroll(600):\n    if x > j:\n        break\n    x = x + 1\nA.put(i, x)"),
        counted_until,
    ),
    "95 nested tile functions": (
        HEAD
        + "".join(
            f"@tile_function\ndef fn{j}(x: f32) -> f32:\n    return {f'fn{j - 1}(x)' if j else 'x'} + 1.0\n"
            for j in range(95)
        )
        + START
        + "    A.put(i, fn94(x))\n",
        lambda x: x + 95,
    ),
    "a sum of 400 terms": (body("A.put(i, " + " + ".join(["x"] * 400) + ")"), lambda x: 400 * x),
    "a sum of 1000 terms": (body("A.put(i, " + " - ".join(["x"] * 1000) + ")"), lambda x: -998 * x),
    "200 terms of many kinds": (body("A.put(i, x" + " + x * 2 - 3 + 1" * 200 + ")"), lambda x: 401 * x - 400),
}


@pytest.mark.parametrize(("text", "wanted"), CASES.values(), ids=CASES.keys())
def test_compiles_and_runs(text: str, wanted: Callable[[float], float], tmp_path: Path) -> None:
    kernel = load(text, tmp_path)
    compiled = kernel.compile("sm_90a")
    assert compiled.ptx
    texts: dict[str, str] = {}

    def observe(stage: str, found: Kernel) -> None:
        if stage in ("tile", "thread"):
            texts[stage] = print_kernel(found)

    lowered, _ = lower(kernel.signature, compiled.spec, compiled.arch, bounds=True, observe=observe)
    for printed in texts.values():
        read = parse_kernel(printed)
        verify(read)
        assert print_kernel(read) == printed
    values = np.arange(-40, 24, dtype=np.float32)
    expected = np.array([wanted(float(x)) for x in values], np.float32)
    emulator.run(lowered, {"A": values})
    np.testing.assert_array_equal(values, expected)


def load(text: str, folder: Path) -> TileKernel:
    path = folder / "deep_kernel.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("deep_kernel", path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.k
