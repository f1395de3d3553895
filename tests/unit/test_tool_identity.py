"""Compiled kernels on disk are those of one ptxas: it counts by its content, and a script is never trusted."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.pickled_kernels import doubled
from tiledsl.backends.ptx import tools
from tiledsl.backends.ptx.tools import PTXAS, tool_versions
from tiledsl.commands import doctor
from tiledsl.compilation import cache as cache_module
from tiledsl.compilation import fingerprint
from tiledsl.compilation.compiler import compile_kernel
from tiledsl.errors import TileError
from tiledsl.ir.types import F32
from tiledsl.signatures.signature import GlobalSpec, Specialization
from tiledsl.tune.carried import toolchain


def program(path: Path, content: bytes) -> Path:
    """Write an executable file whose time of change is always the same."""
    path.write_bytes(content)
    path.chmod(0o755)
    os.utime(path, (1e9, 1e9))
    return path


@pytest.fixture
def ptxas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEDSL_PTXAS", str(tmp_path / "ptxas"))
    return tmp_path / "ptxas"


def test_a_changed_program_counts_though_its_size_and_time_are_the_same(ptxas: Path) -> None:
    program(ptxas, tools.ELF + b"one")
    first = tool_versions()
    assert tool_versions() == first
    program(ptxas, tools.ELF + b"two")
    second = tool_versions()
    assert second != first
    ptxas.unlink()  # another file in its place
    program(ptxas, tools.ELF + b"one")
    assert tool_versions() == first


def test_a_program_is_read_once(ptxas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(ptxas, tools.ELF)
    content = PTXAS.content()
    monkeypatch.setattr(tools.hashlib, "file_digest", None)
    assert PTXAS.content() == content != ""


def test_the_library_of_llvmlite_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "libllvmlite" in dict(tool_versions())["llvmlite"]
    library = tmp_path / "binding" / "libllvmlite.so"
    library.parent.mkdir()
    monkeypatch.setattr(tools, "find_spec", lambda name: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    found: set[str] = set()
    for content in (b"", b"x"):
        library.write_bytes(content)
        tools._llvmlite.cache_clear()
        found.add(tools._llvmlite())
    tools._llvmlite.cache_clear()
    assert len(found) == 2


def test_what_a_script_makes_is_not_kept_on_disk(ptxas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the text of a script nor its environment identifies it; one warning says so for all kernels."""
    real = tools._in_wheel(PTXAS.wheel, "ptxas") or "ptxas"
    program(ptxas, f'#!/bin/sh\nexec {real} $FLAG "$@"\n'.encode())
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path / "cache"))
    cache_module._warned.clear()
    made: list[bytes] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for registers in (16, 24):
            monkeypatch.setenv("FLAG", f"-maxrregcount={registers}")
            spec = Specialization((("X", GlobalSpec(F32, 0, 16)),), ())
            compiled = compile_kernel(doubled.signature, spec, "sm_90a", doubled.builds.meaning())
            assert not compiled.cached
            made.append(compiled.cubin)
    assert made[0] != made[1]
    assert [str(w.message).partition("\n")[0] for w in caught] == [
        f"{ptxas} is not an ELF executable, so what it does may change while the file does not"
    ]
    assert not (tmp_path / "cache").exists()
    with pytest.raises(fingerprint.UnknownTool):
        fingerprint.entry_parts(doubled.signature, spec, "sm_90a", doubled.builds.meaning())
    with pytest.raises(TileError, match="not an ELF executable"):
        toolchain()
    assert "are not kept" in doctor._cache()


@pytest.mark.parametrize("content", [b"", b"\x7fEL", b"#!/bin/sh\n"])
def test_only_an_elf_executable_has_content(ptxas: Path, content: bytes) -> None:
    program(ptxas, content)
    assert PTXAS.content() == ""
