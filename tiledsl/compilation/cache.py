"""The on-disk cache: one file an entry, bytes under a checksum.

``TILEDSL_CACHE_DIR`` names the folder (default: ``~/.cache/tiledsl``), ``TILEDSL_CACHE_SIZE`` its bound
in bytes (default 512 MiB; the entries used longest ago go first), ``TILEDSL_CACHE=0`` switches it off.

A folder that cannot be used (read-only, full, a file in its place, ...) costs the caching and a warning, never the
compilation: `load` and `store` raise nothing. `clear` and `info` are asked for by name and raise CacheError.

Entries are code that will run on the GPU, so only what the user's own processes wrote is loaded:

- The folder is opened once for each use and reached through its descriptor, so that nobody can exchange it between
  check and use. It must belong to the user. One that others can read or write is closed to them, then emptied, and
  only then trusted; the sticky bit marks it in between, for processes that come meanwhile.
- An entry must be a file of the user with one name, that nobody else can write. Links are not followed.
- The checksum covers its key, too: under another name it is no entry.
- A file is published by a rename: a reader sees all or nothing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from tiledsl.errors import CacheError

__all__ = ["DiskCache", "disk_cache"]

MAGIC = b"tiledsl cache 3\n"
DEFAULT_SIZE = 512 * 2**20
SUFFIX, DRAFT = ".entry", ".draft"
STALE_SECONDS = 3600
"""Age at which another process's unfinished file counts as left behind."""

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
ENTRY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Not blocking: a pipe in the place of an entry has no writer."""
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
OTHERS = stat.S_IRWXG | stat.S_IRWXO

FIX = "set TILEDSL_CACHE_DIR to a folder of yours that can be written, or TILEDSL_CACHE=0 to do without"
WITHOUT = "  until then kernels are compiled, and not kept"

_warned: set[str] = set()


def disk_cache() -> DiskCache | None:
    """The cache that the environment asks for now; None if there is none to have. Creates nothing.

    Raises CacheError for a TILEDSL_CACHE_SIZE that is no size.
    """
    if os.environ.get("TILEDSL_CACHE", "1") == "0":
        return None
    text = os.environ.get("TILEDSL_CACHE_SIZE", str(DEFAULT_SIZE))
    if not text.isdecimal() or len(text) > 18:
        message = f"TILEDSL_CACHE_SIZE is {text!r}; expected a number of bytes, such as {DEFAULT_SIZE}"
        raise CacheError(f"{message}\n  fix: give it in bytes, or leave it out")
    named = os.environ.get("TILEDSL_CACHE_DIR")
    base = os.path.expanduser(named or "~/.cache/tiledsl")
    if base.startswith("~") or not (named or os.path.isabs(base)):
        _warn(f"no home folder is known, so that no compiled kernel is kept\n  fix: {FIX}")
        return None
    return DiskCache(Path(base) / "kernels", int(text))


class DiskCache:
    """Entries in `folder`, together at most `limit` bytes."""

    def __init__(self, folder: Path, limit: int = DEFAULT_SIZE) -> None:
        self.folder, self.limit = folder, limit

    def load(self, key: str) -> bytes | None:
        """The content of the entry, or None. One that is damaged, or not the user's own, is removed with a warning."""
        try:
            with self._opened() as folder:
                return self._read(folder, key)
        except CacheError as error:
            _warn(f"{error}\n{WITHOUT}")
            return None

    def store(self, key: str, content: bytes) -> None:
        """Publish an entry, then evict the oldest ones beyond the limit. A warning where it cannot be written."""
        try:
            with self._opened() as folder:
                self._publish(folder, key, content)
                self._evict(folder, keep=key + SUFFIX)
        except CacheError as error:
            _warn(f"{error}\n{WITHOUT}")

    def clear(self) -> int:
        """Remove all entries; the number of them. Raises CacheError for what cannot be removed."""
        with self._opened() as folder:
            removed, left = _empty(folder)
        if left:
            raise CacheError(f"cannot remove {self.folder / left[0]} and {len(left) - 1} more files\n  fix: {FIX}")
        return removed

    def info(self) -> tuple[int, int]:
        """The number of entries, and their bytes. Raises CacheError where the folder cannot be read."""
        with self._opened() as folder:
            found = _files(folder, SUFFIX)
        return len(found), sum(s.st_size for _, s in found)

    # -- the folder --------------------------------------------------------------------------------------

    @contextmanager
    def _opened(self) -> Generator[int]:
        """The descriptor of the folder, which is made if there is none; it is the user's own and closed to others.

        Raises CacheError where it cannot be used, and for each failure of the file system inside the block.
        """
        folder = None
        try:
            try:
                folder = os.open(self.folder, FOLDER)
            except FileNotFoundError:
                self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.folder.mkdir(mode=0o700, exist_ok=True)
                folder = os.open(self.folder, FOLDER)
            self._trust(folder)
            yield folder
        except OSError as error:
            message = f"the cache folder {self.folder} cannot be used: {error.strerror or error}"
            raise CacheError(f"{message}\n  fix: {FIX}") from None
        finally:
            if folder is not None:
                with suppress(OSError):
                    os.close(folder)

    def _trust(self, folder: int) -> None:
        """Raise CacheError unless all that can be loaded from the folder is the user's own."""
        status = os.fstat(folder)
        if status.st_uid != os.getuid():
            message = f"the cache folder {self.folder} belongs to user {status.st_uid}, not to you ({os.getuid()})"
            raise CacheError(f"{message}: its code is not trusted\n  fix: {FIX}")
        if not status.st_mode & (OTHERS | stat.S_ISVTX):
            return
        message = f"the cache folder {self.folder} was open to other users"
        os.fchmod(folder, stat.S_IRWXU | stat.S_ISVTX)
        if os.fstat(folder).st_mode & OTHERS:
            raise CacheError(f"{message}, and cannot be closed to them\n  fix: {FIX}")
        _, left = _empty(folder)
        if left:
            raise CacheError(f"{message}, and {left[0]} in it cannot be removed\n  fix: {FIX}")
        os.fchmod(folder, stat.S_IRWXU)
        _warn(f"{message}; it was closed and emptied", UserWarning)

    # -- entries -----------------------------------------------------------------------------------------

    def _read(self, folder: int, key: str) -> bytes | None:
        name = key + SUFFIX
        try:
            found = _read_own(folder, name)
        except FileNotFoundError:
            return None
        problem = "not a file of yours"
        if found is not None:
            head, content = found[:HEAD], found[HEAD:]
            if head == _head(key, content):
                return content
            problem = "damaged"
        _warn(f"the cache entry {self.folder / name} is {problem}; the kernel is compiled again")
        _remove(folder, name)
        return None

    def _publish(self, folder: int, key: str, content: bytes) -> None:
        # The name is unique to this process and moment, so that two writers of one key never share a file.
        draft = f"{key}.{os.urandom(8).hex()}{DRAFT}"
        try:
            with open(os.open(draft, NEW, 0o600, dir_fd=folder), "wb") as file:
                file.write(_head(key, content) + content)
            os.replace(draft, key + SUFFIX, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            _remove(folder, draft)
            raise

    def _evict(self, folder: int, keep: str) -> None:
        now = time.time()
        for name, status in _files(folder, DRAFT):
            if now - status.st_mtime > STALE_SECONDS:
                _remove(folder, name)
        found = sorted(_files(folder, SUFFIX), key=lambda file: file[1].st_mtime_ns)
        total = sum(status.st_size for _, status in found)
        for name, status in found:
            if total <= self.limit:
                break
            if name != keep:
                _remove(folder, name)
                total -= status.st_size


def _head(key: str, content: bytes) -> bytes:
    """What a file begins with: format, and the checksum of key and content."""
    return MAGIC + hashlib.sha256(key.encode() + b"\n" + content).digest()


HEAD = len(_head("", b""))


def _remove(folder: int, name: str) -> None:
    with suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _read_own(folder: int, name: str) -> bytes | None:
    """The content of a file of the folder; None if it is not the user's own. Raises FileNotFoundError."""
    try:
        file = os.open(name, ENTRY, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            return None
        raise
    try:
        if not _is_own(os.fstat(file)):
            return None
        with suppress(OSError):  # a read-only file system: the entry itself is good
            os.utime(file)  # the date of last use, for eviction
        with open(file, "rb", closefd=False) as content:
            return content.read()
    finally:
        os.close(file)


def _is_own(status: os.stat_result) -> bool:
    """True for a file of the user with one name, which nobody else can write."""
    plain = stat.S_ISREG(status.st_mode) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return plain and status.st_uid == os.getuid() and status.st_nlink <= 1


def _files(folder: int, suffix: str) -> list[tuple[str, os.stat_result]]:
    """What is in the folder under such names, links among it, but no folders."""
    found: list[tuple[str, os.stat_result]] = []
    with os.scandir(folder) as items:
        names = [item.name for item in items if item.name.endswith(suffix)]
    for name in names:
        with suppress(FileNotFoundError):  # evicted by another process
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                found.append((name, status))
    return found


def _empty(folder: int) -> tuple[int, list[str]]:
    """Remove entries and drafts: how many entries there were, and the names of what could not be removed."""
    removed, left = 0, list[str]()
    for suffix in (DRAFT, SUFFIX):
        for name, _ in _files(folder, suffix):
            try:
                os.unlink(name, dir_fd=folder)
                removed += suffix == SUFFIX
            except FileNotFoundError:
                continue
            except OSError:
                left.append(name)
    return removed, left


def _warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Once a process for each fault."""
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, category, stacklevel=2)
