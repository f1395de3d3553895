"""Every example of docs/language.md compiles, or is refused with the message it states."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tiledsl import CompileError, f16

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
