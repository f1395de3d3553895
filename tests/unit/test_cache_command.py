"""``tiledsl cache``: what is kept, and why a compilation is a miss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tiledsl.__main__ import main
from tiledsl.compilation import fingerprint
from tiledsl.compilation.cache import DiskCache, disk_cache

KERNEL = """\
from tiledsl import Global, const, f32, grid, threads, tile_kernel
from tiledsl.dims import N

SCALE = 2.0


@tile_kernel
def scaled(X: Global[f32, N], *, T: const = 32):
    i = grid(N) * T + threads(T)
    X.put(i, X.get(i) * SCALE)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel, and an empty cache."""
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "scaled.py"
    file.write_text(KERNEL)
    return file


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, dict[str, Any]]:
    """The text, and the JSON."""
    assert main(["cache", *arguments]) == 0
    text = capsys.readouterr().out
    assert main(["cache", *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "tiledsl.cache/1"
    return text, found


def build(capsys: pytest.CaptureFixture[str], file: Path, *arguments: str) -> None:
    assert main(["show", str(file), "--stage", "ptx", *arguments]) == 0
    capsys.readouterr()


def test_entries_are_listed(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert asked(capsys, "list")[1]["entries"] == []
    build(capsys, file)
    build(capsys, file, "--const", "T=64", "--arch", "sm_80")
    text, found = asked(capsys, "list")
    assert [(e["kernel"], e["target"]) for e in found["entries"]] == [
        ("scaled(T=64)", "sm_80"),
        ("scaled(T=32)", "sm_90a"),
    ]
    for entry, line in zip(found["entries"], text.splitlines()[2:], strict=False):
        assert line.split()[:2] == [entry["kernel"], entry["target"]] and line.endswith(entry["used"])
    assert found["kernels"] == 2 and found["bytes"] == sum(e["bytes"] for e in found["entries"])
    before = found["entries"]
    assert asked(capsys, "list")[1]["entries"] == before, "listing is no use"


def test_what_cannot_be_read_is_listed_too(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    build(capsys, file)
    cache = disk_cache()
    assert cache is not None
    (cache.folder / f"{'a' * 64}.entry").write_bytes(b"tiledsl cache 3\nx")
    (cache.folder / f"{'b' * 64}.entry").write_bytes(b"")
    cache.store("d" * 64, b"", {"label": None, "parts": [1], "name": "scaled"})
    (cache.folder / f"{'c' * 64}.entry").symlink_to("/etc/passwd")
    names = sorted(e["kernel"] for e in asked(capsys, "list")[1]["entries"])
    assert names == ["None", *["of another version of tiledsl"] * 3, "scaled(T=32)"]
    assert asked(capsys, "explain", str(file), "--const", "T=8")[1]["changed"][0]["part"] == "consts"


def changed(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["part"]: (each["then"], each["now"]) for each in found["changed"]}


def test_why_a_compilation_is_a_miss(
    capsys: pytest.CaptureFixture[str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explained(*arguments: str, hit: bool = False) -> dict[str, Any]:
        text, found = asked(capsys, "explain", str(file), *arguments)
        assert found["hit"] is hit and text.startswith(f"{found['kernel']} for {found['arch']}: {found['why']}")
        assert all(f"\n  {each['part']}" in text for each in found["changed"])
        return found

    assert explained()["why"] == "it is not in the cache, and no other kernel called scaled is"
    build(capsys, file)
    assert explained(hit=True)["why"].startswith("it is in the cache, and was used last on 20")
    assert changed(explained("--const", "T=64")) == {"consts": ("T=32", "T=64")}
    assert changed(explained("--arch", "sm_80")) == {"target": ("sm_90a", "sm_80")}

    file.write_text(KERNEL.replace("SCALE = 2.0", "SCALE = 3.0"))
    assert [*changed(explained())] == ["source, and what it reads"]
    file.write_text("# a line more\n" + KERNEL)
    assert changed(explained()) == {"place": (f"{file}:7", f"{file}:8")}
    file.write_text(KERNEL.replace("X.get(i) *", "X.get(i) +"))
    assert [*changed(explained())] == ["source"]
    file.write_text(KERNEL)
    explained(hit=True)

    monkeypatch.setattr("tiledsl.compilation.fingerprint.sources_key", lambda: b"another")
    assert [*changed(explained())] == ["sources of tiledsl"]
    monkeypatch.setattr("tiledsl.backends.ptx.tools.tool_versions", lambda: (("ptxas", "x"), ("llvmlite", "0.1")))
    differ = changed(explained())
    assert [*differ] == ["ptxas", "llvmlite", "sources of tiledsl"] and differ["llvmlite"][1] == "0.1"


def test_the_closest_entry_is_the_one_that_is_compared(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    build(capsys, file, "--const", "T=64")
    build(capsys, file, "--arch", "sm_80")
    _, found = asked(capsys, "explain", str(file), "--const", "T=64", "--arch", "sm_89")
    assert changed(found) == {"target": ("sm_90a", "sm_89")}


def test_what_is_never_kept(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(KERNEL.replace("SCALE = 2.0", "import time\nSCALE = time").replace("* SCALE", "* SCALE.time()"))
    _, found = asked(capsys, "explain", str(file))
    assert not found["hit"] and found["why"].startswith("it is never kept: ") and "time" in found["why"]


def test_without_a_cache(capsys: pytest.CaptureFixture[str], file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_CACHE", "0")
    for action in (["list"], ["info"], ["clear"], ["explain", str(file)]):
        text, found = asked(capsys, *action)
        assert text.startswith("there is no disk cache: TILEDSL_CACHE=0") and found["folder"] is None
    assert main(["cache", "explain", "nowhere.py"]) == 2


def test_a_note_is_no_part_of_what_is_kept(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "kernels")
    cache.store("a", b"x\0y\0z", {"name": "\0"})
    assert cache.load("a") == b"x\0y\0z"
    (entry,) = cache.entries()
    assert entry.note == {"name": "\0"} and entry.key == "a"


def test_every_part_of_the_key_counts() -> None:
    parts = {"a": "1", "b": "2"}
    others = ({"a": "1"}, {"a": "2", "b": "2"}, {"a": "12", "b": ""}, {"c": "1", "b": "2"})
    assert len({fingerprint.entry_key(each) for each in (parts, *others)}) == 5
