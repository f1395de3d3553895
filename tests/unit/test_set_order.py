"""The order of a set of strings differs between processes: a kernel that may see it is not kept on disk."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiledsl.meaning import Meaning

ROOT = Path(__file__).parents[2]
SOURCE = """\
from tiledsl import *
from tiledsl.dims import M
from abc import ABC, abstractmethod

NAMES = {{"a", "b", "c", "d"}}
FROZEN = frozenset(NAMES)
NUMBERS = {{3, 1, 2}}
NESTED = {{(1, 2.5), (3, 4.5)}}
TABLE = ("a", "b", "c")
DEPTH = {{"a": 1.0, "b": 2.0}}
SAME = len

class Config:
    names = FROZEN

class Own(set):
    pass

OWN = Own(NAMES)

class Base(ABC):
    factor = 2.0
    @abstractmethod
    def one(self): ...
    @abstractmethod
    def two(self): ...

def first(values):
    return next(iter(values))

def place(name, values=TABLE):
    {helper}

@tile_kernel
def k(A: Global[f32, M]):
    i = grid(cdiv(M, 64)) * 64 + threads(64)
    {body}
    A.put(i, {expr})
"""


def meaning(folder: Path, expr: str, helper: str = "return 1.5", body: str = "pass") -> Meaning:
    file = folder / "kern.py"
    file.write_text(SOURCE.format(expr=expr, helper=helper, body=body))
    spec = importlib.util.spec_from_file_location("kern", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kern"] = module
    spec.loader.exec_module(module)
    return module.k.builds.meaning()


SEEN = [
    ("f32(ord(first(NAMES)))", "", ""),
    ("f32(ord(first(FROZEN)))", "", ""),
    ("f32(ord(first(Config.names)))", "", ""),
    ("f32(ord(first(OWN)))", "", ""),
    ("f32(len(NAMES) if first(NAMES) == 'a' else 1)", "", ""),
    ("f32(place('a'))", "return [*{*values}].index(name)", ""),
    ("f32(place('a'))", "return [v for v in {'a', 'b', 'c'}].index(name)", ""),
    ("f32(place('a'))", "return [*{v for v in values}].index(name)", ""),
    ("f32(place('a'))", "return [*set(values)].index(name)", ""),
    ("f32(place('a'))", "return [*(set(values) | {name})].index(name)", ""),
    ("f32(place('a'))", "return [*map(set, [values])][0].pop() == name", ""),
    ("f32(place('a'))", "return max({*values}, key=lambda v: 0) == name", ""),
    ("f32(place('a'))", "sorted = list; return sorted({*values}).index(name)", ""),
    ("f32(place('a'))", "s = {name, 'x'}; return [*s].index(name)", ""),
]
"""Expressions of a kernel, its helper, and its body that see the order of a set."""

HIDDEN = [
    ("1.5 if 'a' in NAMES else 2.5", "", ""),
    ("1.5 if 'a' in {'a', 'b', 'c'} else 2.5", "", ""),
    ("f32(len(FROZEN))", "", ""),
    ("f32(first(NUMBERS))", "", ""),
    ("f32(first(NESTED)[0])", "", ""),
    ("f32(Base.factor)", "", ""),
    ("f32(place('a'))", "return 1.5 if name in {'a', 'b', 'c'} else 2.5", ""),
    ("f32(place('a'))", "return sorted({*values}).index(name)", ""),
    ("f32(place('a'))", "return len({*values} - {name}) + (name in NAMES)", ""),
    ("f32(place('a'))", "return 1 if {name, 'b'} == NAMES else 2", ""),
    ("f32(place('a'))", "return 1 if isinstance(values, (tuple, list)) and NAMES.isdisjoint(values) else 2", ""),
    ("f32(place('a'))", "return sum(v for v in {1, 2, 3})", ""),
    ("f32(place('a'))", "return DEPTH[name]", "assert 'a' in FROZEN"),
]


@pytest.mark.parametrize(("expr", "helper", "body"), SEEN)
def test_what_sees_the_order_is_not_kept(tmp_path: Path, expr: str, helper: str, body: str) -> None:
    reasons = meaning(tmp_path, expr, helper or "return 1.5", body or "pass").reasons
    assert reasons and "differs between processes" in reasons[0]


@pytest.mark.parametrize(("expr", "helper", "body"), HIDDEN)
def test_what_does_not_see_it_is_kept(tmp_path: Path, expr: str, helper: str, body: str) -> None:
    assert not meaning(tmp_path, expr, helper or "return 1.5", body or "pass").reasons


def test_the_content_of_a_set_counts_and_the_order_of_numbers(tmp_path: Path) -> None:
    expr = "1.5 if 'a' in NAMES else f32(first(NUMBERS))"
    found = {meaning(tmp_path, expr).digest}
    module = sys.modules["kern"]
    module.NAMES.add("e")
    found.add(module.k.builds.meaning().digest)
    for order in ((0, 8), (8, 0)):  # both have the first place
        module.NUMBERS = {*order}
        found.add(module.k.builds.meaning().digest)
    assert [*{0, 8}] != [*{8, 0}] and len(found) == 4


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
from kern import k
found = k.builds.meaning()
print(found.digest.hex(), len(found.reasons))
"""


def test_one_key_in_all_processes(tmp_path: Path) -> None:
    """A kernel that reads sets of strings, and does not see their order, has the same key in all processes."""
    helper = "return len({*values} - {name}) + (name in NAMES) + (name in {'x', 'y', 'z'})"
    (tmp_path / "kern.py").write_text(SOURCE.format(expr="f32(place('a') + Base.factor)", helper=helper, body="pass"))
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(folder=str(tmp_path))], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        ).stdout
        for seed in "12"
    }  # fmt: skip
    assert len(found) == 1 and found.pop().endswith(" 0\n")
