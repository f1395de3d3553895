"""The on-disk cache: what a key depends on, that entries are whole or absent, the folder's rights, the bound."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.cache_faults import ENTRY
from tiledsl import mma
from tiledsl.compilation import fingerprint
from tiledsl.compilation.cache import DiskCache, disk_cache
from tiledsl.errors import CacheError
from tiledsl.ir.types import F32
from tiledsl.signatures.signature import GlobalSpec, Specialization

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "base" / "kernels")


def test_what_is_stored_is_loaded(cache: DiskCache) -> None:
    assert cache.load("a") is None
    cache.store("a", ENTRY)
    assert cache.load("a") == ENTRY
    assert cache.load("b") is None
    assert cache.info()[0] == 1
    assert cache.clear() == 1
    assert cache.load("a") is None


def _write_often(folder: Path, seed: int) -> None:
    cache = DiskCache(folder)
    for i in range(40):
        cache.store(f"k{i % 4}", _text(i % 4, 5000))
        number = (i + seed) % 4
        assert cache.load(f"k{number}") in (None, _text(number, 5000))


def _text(number: int, size: int) -> bytes:
    """That cannot be compressed."""
    return random.Random(number).randbytes(size)


def test_a_kernel_is_compressed(cache: DiskCache) -> None:
    text = b"wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16;\n" * 1000
    cache.store("a", text)
    assert cache.load("a") == text and cache.info()[1] < len(text) / 8


def test_several_processes_share_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write_often, args=(tmp_path / "shared", n)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert not list((tmp_path / "shared").glob("*.draft"))


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "k", limit=35_000)
    for i, key in enumerate("abc"):
        cache.store(key, _text(i, 10_000))
        os.utime(cache.folder / f"{key}.entry", (1000 + i, 1000 + i))
    assert cache.load("a") is not None  # used now
    cache.store("d", _text(3, 10_000))
    assert [cache.load(k) is not None for k in "abcd"] == [True, False, True, True]
    assert cache.info()[1] <= 35_000


def test_drafts_left_behind_are_swept(cache: DiskCache) -> None:
    cache.store("a", ENTRY)
    stale = cache.folder / "x.1.2.draft"
    stale.write_bytes(b"")
    os.utime(stale, (time.time() - 7200,) * 2)
    cache.store("b", ENTRY)
    assert not stale.exists()


def test_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TILEDSL_CACHE_SIZE", "1000")
    found = disk_cache()
    assert found is not None and found.folder == tmp_path / "kernels" and found.limit == 1000
    for text in ("1G", "-1", "", "1.0", "²", "9" * 5000):
        monkeypatch.setenv("TILEDSL_CACHE_SIZE", text)
        with pytest.raises(CacheError, match=f"TILEDSL_CACHE_SIZE is '{text}'; expected a number of bytes"):
            disk_cache()
    monkeypatch.setenv("TILEDSL_CACHE", "0")
    assert disk_cache() is None


# -- keys ------------------------------------------------------------------------------------------------

SOURCE = """
from tiledsl import *
from tiledsl.dims import N
import helpers

TILE = 32
TABLE = {"a": (1, 2)}
UNUSED = 1

def plain(x):
    return x + TABLE["a"][0] + helpers.offset

@tile_function
def inner(x: f32) -> f32:
    return x + f32(1)

@tile_function
def outer(x: f32) -> f32:
    return inner(x)

@tile_kernel
def k(X: Global[f32, N], *, W: const = plain(1)):
    b = grid(cdiv(N, TILE))
    t = threads(TILE)
    X[b * TILE + t] = outer(X[b * TILE + t]) + f32(plain(2))
"""
HELPERS = "offset = 5\nunused = 6\n"


def load(folder: Path, source: str, helpers: str = HELPERS) -> ModuleType:
    """The module `source`, with `helpers` beside it, from the same path each time."""
    for name, text in (("helpers", helpers), ("kernels", source)):
        path = folder / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        # Not through the loader: its bytecode cache knows changes by their date only.
        exec(compile(text, str(path), "exec"), module.__dict__)
    import linecache

    linecache.checkcache()
    linecache.cache.pop(str(folder / "kernels.py"), None)
    return sys.modules["kernels"]


def kernel_key(kernel: Any) -> bytes:
    """The part of an entry's key that stands for the kernel."""
    return fingerprint.kernel_key(kernel.signature, kernel.builds.meaning())


@pytest.fixture
def key(tmp_path: Path) -> Any:
    def compute(source: str = SOURCE, helpers: str = HELPERS) -> bytes:
        return kernel_key(load(tmp_path, source, helpers).k)

    yield compute
    for name in ("helpers", "kernels"):
        sys.modules.pop(name, None)


def test_the_key_is_the_same_for_the_same_kernel(key: Any) -> None:
    assert key() == key()
    assert key(helpers=HELPERS.replace("unused = 6", "unused = 7")) == key()
    assert key(SOURCE.replace("UNUSED = 1", "UNUSED = 2")) == key()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("TILE = 32", "TILE = 64"),
        ("(1, 2)", "(1, 3)"),
        ("return x + f32(1)", "return x + f32(2)"),  # two tile functions away
        ("return x + TABLE", "return x * TABLE"),
        ("f32(plain(2))", "f32(plain(3))"),
        ("Global[f32, N]", "Global[f16, N]"),
        ("W: const = plain(1)", "W: const = plain(4)"),
        ("\nTILE", "\n\nTILE"),  # lines moved: locations in the code would be wrong
    ],
)
def test_the_key_changes_with_all_that_is_used(key: Any, old: str, new: str) -> None:
    assert old in SOURCE
    assert key(SOURCE.replace(old, new)) != key()


def test_the_key_follows_modules(key: Any) -> None:
    assert key(helpers=HELPERS.replace("offset = 5", "offset = 6")) != key()


def test_closures_and_objects_count(tmp_path: Path) -> None:
    source = """
from dataclasses import dataclass
from tiledsl import *
from tiledsl.dims import N

@dataclass(frozen=True)
class Config:
    tile: int
    scale: float = 1.0

def make(config):
    @tile_kernel
    def k(X: Global[f32, N]):
        b = grid(cdiv(N, config.tile))
        t = threads(config.tile)
        X[b * config.tile + t] = f32(config.scale)
    return k

k = make(Config(32))
other = make(Config(32, 2.0))
lazy = make(open)
"""
    module = load(tmp_path, source)
    assert kernel_key(module.k) != kernel_key(module.other)
    again = module.make(module.Config(32))
    assert kernel_key(module.k) == kernel_key(again)


def test_a_value_without_content_keeps_a_kernel_off_the_disk(tmp_path: Path) -> None:
    module = load(tmp_path, SOURCE)
    module.TABLE = iter([1, 2])
    with pytest.raises(fingerprint.NotUnderstood, match=r"TABLE: a builtins\.list_iterator has no content"):
        kernel_key(module.k)


def test_a_const_with_an_order_of_this_process_has_no_key() -> None:
    names = Specialization((), (("names", frozenset("abcdefgh")),))
    with pytest.raises(fingerprint.NotUnderstood, match="the const names: a set of strings"):
        fingerprint.specialization_key(names, "sm_90a")
    assert fingerprint.specialization_key(Specialization((), (("sizes", frozenset((1, 2))),)), "sm_90a")


def test_specialisation_and_target_count() -> None:
    base = Specialization((("A", GlobalSpec(F32, 1, 16)),), (("T", 16),))
    others = [
        (Specialization((("A", GlobalSpec(F32, 1, 8)),), (("T", 16),)), "sm_90a"),
        (Specialization((("A", GlobalSpec(F32, 1, 16, whole=True)),), (("T", 16),)), "sm_90a"),
        (Specialization((("A", None),), (("T", 16),)), "sm_90a"),
        (Specialization(base.tensors, (("T", 17),)), "sm_90a"),
        (Specialization(base.tensors, base.consts, 64), "sm_90a"),
        (base, "sm_80"),
    ]
    keys = {fingerprint.specialization_key(spec, arch) for spec, arch in [(base, "sm_90a"), *others]}
    assert len(keys) == len(others) + 1


def test_every_part_of_a_layout_counts() -> None:
    layouts = [
        mma.m16n8k16.acc(warps=(2, 2)),
        mma.m16n8k8.acc(warps=(2, 2)),
        mma.m16n8k16.acc(warps=(4, 1)),
        mma.m16n8k16.a(warps=(2, 2)),
    ]
    keys = {fingerprint.specialization_key(Specialization((), (("L", layout),)), "sm_90a") for layout in layouts}
    assert len(keys) == len(layouts)


def test_the_compilers_sources_count(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {p.name for p in fingerprint._sources(ROOT / "tiledsl")}
    assert {"targets.py", "pipeline.py", "errors.py"} <= sources  # backends/ptx too, behind its link
    first = fingerprint._compiler_parts()
    monkeypatch.setattr("tiledsl.backends.ptx.tools.tool_versions", lambda: (("ptxas", "another"),))
    assert fingerprint._compiler_parts() != first


# -- end to end ------------------------------------------------------------------------------------------

PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
from kernels import k
compiled = k.compile("sm_90a")
print(compiled.cached, "tiledsl.frontend" in sys.modules, "llvmlite" in sys.modules, len(compiled.cubin))
print(compiled.grid, compiled.threads, sorted(compiled.written), compiled.resources.registers)
"""


def run(folder: Path, cache: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(folder=str(folder))], capture_output=True, text=True, check=False,
        env={**os.environ, "TILEDSL_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT), **env},
    )  # fmt: skip


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "kernels.py").write_text(SOURCE)
    (folder / "helpers.py").write_text(HELPERS)
    return folder


def test_a_second_process_takes_the_kernel_from_disk(kernels: Path, tmp_path: Path) -> None:
    first, second = (run(kernels, tmp_path / "cache") for _ in range(2))
    assert first.stdout.startswith("False True True"), first.stderr
    assert second.stdout.startswith("True False False"), second.stderr
    assert first.stdout.split("\n")[1] == second.stdout.split("\n")[1]


def test_a_damaged_entry_is_compiled_again(kernels: Path, tmp_path: Path) -> None:
    run(kernels, tmp_path / "cache")
    (path,) = (tmp_path / "cache" / "kernels").glob("*.entry")
    path.write_bytes(path.read_bytes()[:-1])
    again = run(kernels, tmp_path / "cache")
    assert again.stdout.startswith("False")
    assert "is damaged; the kernel is compiled again" in again.stderr
    assert run(kernels, tmp_path / "cache").stdout.startswith("True")


def test_a_cache_that_cannot_be_written_costs_a_warning(kernels: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    first, second = (run(kernels, tmp_path / "cache") for _ in range(2))
    for done in (first, second):
        assert done.returncode == 0 and done.stdout.startswith("False True True")
        assert "cannot be used: Not a directory" in done.stderr and "TILEDSL_CACHE=0" in done.stderr
    assert not run(kernels, tmp_path / "cache", TILEDSL_CACHE="0").stderr
