"""A folder that the on-disk cache cannot use costs the caching and a warning, and nothing else."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cache_faults import ENTRY, failing, one_warning
from tiledsl.compilation import cache as cache_module
from tiledsl.compilation.cache import DiskCache, disk_cache
from tiledsl.errors import CacheError


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "base" / "kernels")


@pytest.fixture
def silent() -> Iterator[None]:
    """The test fails for any warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


CALLS = ("open", "mkdir", "replace", "unlink", "utime", "scandir", "stat", "fstat", "fchmod", "urandom")
CODES = (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOENT, errno.ENOTDIR, errno.ESTALE,
         errno.EMFILE, errno.ENAMETOOLONG, errno.ELOOP, errno.EPERM, errno.EINVAL)  # fmt: skip


@pytest.mark.parametrize("code", CODES, ids=lambda code: str(errno.errorcode[code]))
@pytest.mark.parametrize("call", CALLS)
def test_no_fault_of_the_file_system_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    """Each call fails in each way, whether the folder is new, used, or open to others: nothing wrong is loaded."""
    (tmp_path / "open").mkdir(mode=0o777)
    for folder in ("new", "used", "open"):
        cache = DiskCache(tmp_path / folder)
        if folder == "used":
            cache.store("a", ENTRY)
        cache_module._warned.clear()
        with warnings.catch_warnings(record=True) as caught, monkeypatch.context() as patch:
            warnings.simplefilter("always")
            patch.setattr(os, call, failing(code))
            for _ in range(3):
                assert cache.load("a") in (None, ENTRY)
                cache.store("b", ENTRY)
                assert cache.load("b") in (None, ENTRY)
        assert len(caught) <= 3, [str(w.message) for w in caught]
    assert DiskCache(tmp_path / "new").load("b") in (None, ENTRY)


def test_a_full_disk_leaves_no_half_of_a_file(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store("a", ENTRY)
    monkeypatch.setattr(os, "replace", failing(errno.ENOSPC))
    with one_warning(r"cannot be used: No space left on device[\s\S]*TILEDSL_CACHE_DIR[\s\S]*compiled, and not kept"):
        cache.store("b", ENTRY)
        cache.store("c", ENTRY)
    assert [p.name for p in cache.folder.iterdir()] == ["a.entry"]


def test_an_interrupted_store_leaves_nothing(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any, **settings: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cache.store("a", ENTRY)
    assert not list(cache.folder.iterdir())


def _a_file(path: Path) -> None:
    path.write_text("")


def _a_broken_link(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def _a_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("odd", [_a_file, _a_broken_link, _a_link_to_itself])
@pytest.mark.parametrize("place", ["base", "base/kernels"])
def test_something_else_in_the_place_of_the_folder(tmp_path: Path, odd: Callable[[Path], None], place: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    odd(tmp_path / place)
    cache = DiskCache(tmp_path / "base" / "kernels")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert cache.load("a") is None
            cache.store("a", ENTRY)
    assert 1 <= len(caught) <= 2 and all("cannot be used" in str(w.message) for w in caught)


def test_a_folder_that_is_a_link_is_not_followed(cache: DiskCache, tmp_path: Path) -> None:
    cache.store("a", ENTRY)
    (tmp_path / "link").symlink_to(cache.folder)
    with one_warning("cannot be used"):
        assert DiskCache(tmp_path / "link").load("a") is None


def test_folders_inside_do_not_matter(cache: DiskCache, silent: None) -> None:
    cache.store("a", ENTRY)
    for name in ("b.entry", "c.draft", "d"):
        (cache.folder / name).mkdir()
        (cache.folder / name / "x.entry").write_text("")
    cache.store("c", ENTRY)
    assert cache.info()[0] == 2
    assert cache.clear() == 2
    assert (cache.folder / "b.entry" / "x.entry").exists()


def test_what_is_asked_for_by_name_is_an_error(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store("a", ENTRY)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", failing(errno.EPERM))
        with pytest.raises(CacheError, match=r"cannot remove .*a.entry"):
            cache.clear()
    monkeypatch.setattr(os, "scandir", failing(errno.EIO))
    for ask in (cache.clear, cache.info):
        with pytest.raises(CacheError, match=r"cannot be used: Input/output error[\s\S]*fix: "):
            ask()


def test_a_home_folder_may_be_written_or_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TILEDSL_CACHE_DIR", "~/mine")
    found = disk_cache()
    assert found is not None and found.folder == tmp_path / "mine" / "kernels"
    monkeypatch.delenv("TILEDSL_CACHE_DIR")
    found = disk_cache()
    assert found is not None and found.folder == tmp_path / ".cache" / "tiledsl" / "kernels"
    monkeypatch.setenv("HOME", "somewhere")
    with one_warning("no home folder is known"):
        assert disk_cache() is None
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # HOME is not set, and the user has no entry
    assert disk_cache() is None
