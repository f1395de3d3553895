"""The on-disk cache loads what the user's own processes wrote, and nothing else."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cache_faults import ENTRY, failing, one_warning
from tiledsl.compilation import cache as cache_module
from tiledsl.compilation.cache import DiskCache
from tiledsl.errors import CacheError


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "base" / "kernels")


def test_the_folder_is_its_owners(cache: DiskCache) -> None:
    cache.store("a", ENTRY)
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    assert all(p.stat().st_mode & 0o077 == 0 for p in cache.folder.iterdir())


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755, 0o701, 0o1700])
def test_a_folder_open_to_others_is_closed_and_emptied(cache: DiskCache, tmp_path: Path, mode: int) -> None:
    """All that could be loaded goes, links too, and nothing else. Mode 1700: another process has only closed it yet."""
    cache.store("a", ENTRY)
    outside = tmp_path / "outside"
    outside.write_bytes((cache.folder / "a.entry").read_bytes())
    (cache.folder / "link.entry").symlink_to(outside)
    (cache.folder / "hard.entry").hardlink_to(outside)
    (cache.folder / "late.draft").write_bytes(b"")
    (cache.folder / "folder.entry").mkdir()
    (cache.folder / "notes.txt").write_text("of no concern")
    cache.folder.chmod(mode)
    with pytest.warns(UserWarning, match="was open to other users; it was closed and emptied"):
        assert cache.load("a") is None
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert {p.name for p in cache.folder.iterdir()} == {"folder.entry", "notes.txt"}
    assert outside.exists()


def test_the_folder_is_closed_before_it_is_emptied(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store("a", ENTRY)
    cache.folder.chmod(0o777)
    modes: list[int] = []
    unlink = os.unlink

    def watch(name: str, *, dir_fd: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(dir_fd).st_mode))
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", watch)
    with pytest.warns(UserWarning, match="was open to other users"):
        cache.load("a")
    assert modes == [0o1700]  # which a process that comes now does not trust either


def test_a_folder_that_cannot_be_emptied_is_not_used(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store("a", ENTRY)
    cache.folder.chmod(0o777)
    monkeypatch.setattr(os, "unlink", failing(errno.EPERM))
    for _ in range(2):  # nor later, once it is closed
        with one_warning("was open to other users, and a.entry in it cannot be removed"):
            assert cache.load("a") is None
        cache_module._warned.clear()


def test_a_folder_that_cannot_be_closed_is_not_used(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store("a", ENTRY)
    cache.folder.chmod(0o777)
    monkeypatch.setattr(os, "fchmod", lambda *_: None)  # as on file systems without rights
    with one_warning("was open to other users, and cannot be closed to them"):
        assert cache.load("a") is None


def test_a_folder_of_another_user_is_not_used(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store("a", ENTRY)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with one_warning(r"belongs to user \d+, not to you \(12345\)"):
        assert cache.load("a") is None
        cache.store("b", ENTRY)
    with pytest.raises(CacheError, match="belongs to user"):
        cache.clear()
    assert len(list(cache.folder.iterdir())) == 1


def _linked(path: Path, outside: Path) -> None:
    path.unlink()
    path.symlink_to(outside)


def _hard_linked(path: Path, outside: Path) -> None:
    path.unlink()
    path.hardlink_to(outside)


def _piped(path: Path, outside: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _made_a_folder(path: Path, outside: Path) -> None:
    path.unlink()
    path.mkdir()


FORGERIES: dict[str, Callable[[Path, Path], None]] = {
    "a link": _linked,
    "a second name of a file": _hard_linked,
    "a pipe": _piped,
    "a folder": _made_a_folder,
    "one that the group can write": lambda path, _: path.chmod(0o620),
    "one that all can write": lambda path, _: path.chmod(0o602),
    "one of another user": lambda path, _: os.chown(path, 12345, -1),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_only_a_plain_file_of_ones_own_is_an_entry(cache: DiskCache, tmp_path: Path, forge: Any) -> None:
    cache.store("a", ENTRY)
    path, outside = cache.folder / "a.entry", tmp_path / "outside"
    outside.write_bytes(path.read_bytes())
    if forge is FORGERIES["one of another user"] and os.getuid() != 0:
        forge = _linked  # only root can give a file away
    forge(path, outside)
    with one_warning("a.entry is not a file of yours; the kernel is compiled again"):
        assert cache.load("a") is None
        assert cache.load("a") is None
    assert outside.exists()


def test_an_entry_under_another_key_is_none(cache: DiskCache) -> None:
    cache.store("a", ENTRY)
    (cache.folder / "a.entry").rename(cache.folder / "b.entry")
    with one_warning("b.entry is damaged"):
        assert cache.load("b") is None


def test_the_folder_is_not_exchanged_between_check_and_use(
    cache: DiskCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who can write its parent puts another folder in its place just after it was checked."""
    cache.store("a", ENTRY)
    forged = DiskCache(tmp_path / "forged")
    forged.store("a", b"forged")
    trust = DiskCache._trust

    def exchange(self: DiskCache, folder: int) -> None:
        trust(self, folder)
        cache.folder.rename(tmp_path / "away")
        forged.folder.rename(cache.folder)

    monkeypatch.setattr(DiskCache, "_trust", exchange)
    assert cache.load("a") == ENTRY


@pytest.mark.parametrize("position", [0, 20, 60, 100, -1])
def test_a_damaged_entry_counts_as_absent(cache: DiskCache, position: int) -> None:
    cache.store("a", ENTRY)
    path = next(cache.folder.iterdir())
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.warns(RuntimeWarning, match="is damaged; the kernel is compiled again"):
        assert cache.load("a") is None
    assert not path.exists()


@pytest.mark.parametrize("size", [0, 10, 70])
def test_a_cut_entry_counts_as_absent(cache: DiskCache, size: int) -> None:
    cache.store("a", ENTRY)
    path = next(cache.folder.iterdir())
    path.write_bytes(path.read_bytes()[:size])
    with pytest.warns(RuntimeWarning, match="is damaged"):
        assert cache.load("a") is None
