# ruff: noqa: E402 - what is hidden is hidden first
"""What works with NumPy and ml_dtypes alone, as JSON: ``numpy_alone.py SITE [NAME ...]``, run by test_packaging.py.

SITE holds the unpacked wheel. With names, all other installed packages are hidden, and so is what `os` has by these
names.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
from typing import Any

NEEDED = {"numpy", "ml_dtypes", "tiledsl"}


class Hides(PathFinder):
    """Finds what is on the path, except these packages."""

    names: frozenset[str] = frozenset()

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        return None if fullname.partition(".")[0] in cls.names else super().find_spec(fullname, path, target)


site, *hidden = sys.argv[1:]
sys.path.insert(0, site)
if hidden:
    Hides.names = frozenset({*packages_distributions()} - NEEDED)
    assert {"llvmlite", "cuda", "nvidia", "rich", "pygments"} <= Hides.names
    sys.meta_path[sys.meta_path.index(PathFinder)] = Hides
import numpy as np  # with what `os` has on this machine

for each in hidden:
    delattr(os, each)

import ml_dtypes

import tiledsl
from tiledsl import swizzled
from tiledsl.__main__ import main
from tiledsl.commands.starter import linear
from tiledsl.errors import ToolNotFoundError
from tiledsl.gemm.hopper import hopper_fastest


def failure(ask: Callable[[], object]) -> str:
    try:
        ask()
    except ToolNotFoundError as error:
        return str(error)
    return ""


def printed(*command: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([*command]) == 0
    return out.getvalue()


def digest(array: Any) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


random = np.random.default_rng(0)
A, B, bias = (random.standard_normal(shape, np.float32) for shape in ((70, 56), (56, 68), (68,)))
C = np.zeros((70, 68), np.float32)
linear(A, B, bias, C, device="emulator")
checked = linear.check(A, B, bias, np.zeros_like(C))
lowered = linear.lower("sm_90a", T=32)
H, J = (random.standard_normal((1, n, 256), np.float32).astype(ml_dtypes.bfloat16) for n in (128, 256))
K = np.zeros((1, 128, 256), np.float32)
hopper_fastest(H, J, K, device="emulator")

same = {
    "run": digest(C),
    "wgmma": digest(K),
    "check": checked.verdict,
    "tile": lowered.ir("tile"),
    "thread": lowered.ir("thread"),
    "banks": str(lowered.explain("banks")),
    "layout": swizzled(4, 8)._repr_html_(),
    "show": printed("show", linear.signature.loc.file, "--stage", "ir"),
    "explain": printed("explain", linear.signature.loc.file, "banks", "--json"),
}
differs = {
    "from": tiledsl.__file__,
    "works": json.loads(printed("doctor", "--json"))["works"],
    "lowered": failure(lambda: linear.lower().ptx),
    "compiled": failure(linear.compile),
}
print(json.dumps({"same": same, "differs": differs}))
