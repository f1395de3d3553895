"""The on-disk cache: one file for each entry, with a checksum.

``TILEDSL_CACHE_DIR`` names the folder (default: ``~/.cache/tiledsl``), ``TILEDSL_CACHE_SIZE`` its largest size
in bytes (default 512 MiB; least recently used entries are evicted), ``TILEDSL_CACHE=0`` switches it off.

If the folder cannot be used (read-only, full, a file in its place, ...), kernels are compiled without caching, with a
warning: `load` and `store` raise nothing. `clear` and `info` raise CacheError.

Entries are code that will run on the GPU, so only files that the user's own processes wrote are loaded:

- The folder is opened once for each use and accessed through its descriptor, so that it cannot be replaced between
  check and use. It must belong to the user. If others can read or write it, it is closed to them, then emptied, and
  only then trusted; the sticky bit marks it until then for other processes.
- An entry must be a regular file of the user with one name, which nobody else can write. Links are not followed.
- The checksum covers the key, so a renamed entry is damaged.
- A file is published by a rename, so a reader sees all of it or nothing.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import time
import warnings
import zlib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, cast

from tiledsl.errors import CacheError
from tiledsl.outside import count_of

T = TypeVar("T")
MAGIC = b"tiledsl cache 6\n"
DEFAULT_SIZE = 512 * 2**20
SUFFIX, DRAFT = ".entry", ".draft"
MOST_NOTE = 1 << 16
MOST_CONTENT = 1 << 28
"""The most bytes of an entry, compressed or not. A kernel has some hundred thousand."""
NOTHING: Mapping[str, Any] = MappingProxyType({})
DRAFT_SECONDS = 3600
"""Age at which an unfinished file is taken to be from a process that died."""

SUPPORTED = hasattr(os, "O_DIRECTORY") and hasattr(os, "getuid")
"""On Windows a folder has no descriptor, so that what is in it cannot be trusted in this way: there is no cache."""
if SUPPORTED:
    FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    ENTRY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    """Not blocking, in case a pipe without a writer is in the place of an entry."""
    NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
OTHERS = stat.S_IRWXG | stat.S_IRWXO

FIX = "set TILEDSL_CACHE_DIR to a folder of yours that can be written, or TILEDSL_CACHE=0 to do without"
WITHOUT = "  until then kernels are compiled, and not kept"

_warned: set[str] = set()


def disk_cache() -> DiskCache | None:
    """The cache that the environment selects now, or None. Creates nothing.

    Raises CacheError for a TILEDSL_CACHE_SIZE that is not a number of bytes.
    """
    if os.environ.get("TILEDSL_CACHE", "1") == "0" or not SUPPORTED:
        return None
    text = os.environ.get("TILEDSL_CACHE_SIZE", str(DEFAULT_SIZE))
    if (size := count_of(text)) is None:
        message = f"TILEDSL_CACHE_SIZE is {text!r}; expected a number of bytes, such as {DEFAULT_SIZE}"
        raise CacheError(f"{message}\n  fix: give it in bytes, or leave it out")
    named = os.environ.get("TILEDSL_CACHE_DIR")
    base = os.path.expanduser(named or "~/.cache/tiledsl")
    if base.startswith("~") or not (named or os.path.isabs(base)):
        warn_once(f"no home folder is known, so that no compiled kernel is kept\n  fix: {FIX}")
        return None
    return DiskCache(Path(base) / "kernels", size)


@dataclass(frozen=True)
class Entry:
    """`bytes`: of its file. used: when last, in seconds since 1970. note: as `store` got it; empty where it cannot be
    read."""

    key: str
    bytes: int
    used: float
    note: dict[str, Any]


class DiskCache:
    """Entries in `folder`, together at most `limit` bytes."""

    def __init__(self, folder: Path, limit: int = DEFAULT_SIZE) -> None:
        self.folder, self.limit = folder, limit

    def load(self, key: str) -> bytes | None:
        """Return the content of an entry, or None if there is none, as `read` with what it is."""
        return self.read(key, bytes)

    def read(self, key: str, read: Callable[[bytes], T | None]) -> T | None:
        """Return what `read` makes of the content of an entry, or None if there is none.

        One that is damaged or not the user's own, or of which `read` makes nothing, is removed with a warning.
        """
        try:
            with self._opened() as folder:
                return None if folder is None else self._read(folder, key, read)
        except CacheError as error:
            warn_once(f"{error}\n{WITHOUT}")
            return None

    def store(self, key: str, content: bytes, note: Mapping[str, Any] = NOTHING) -> None:
        """Publish an entry, then evict old ones beyond the limit. Warns if it cannot be written.

        note: what `entries` says of it.
        """
        try:
            with self._opened(create=True) as folder:
                assert folder is not None
                self._publish(folder, key, json.dumps({**note}).encode() + b"\0" + packed(content))
                self._evict(folder, keep=key + SUFFIX)
        except CacheError as error:
            warn_once(f"{error}\n{WITHOUT}")

    def clear(self) -> int:
        """Remove all entries and return their number. Raises CacheError if one cannot be removed."""
        with self._opened() as folder:
            removed, left = (0, []) if folder is None else _empty(folder)
        if left:
            raise CacheError(f"cannot remove {self.folder / left[0]} and {len(left) - 1} more files\n  fix: {FIX}")
        return removed

    def info(self) -> tuple[int, int]:
        """The number of entries, and their bytes. Raises CacheError where the folder cannot be read."""
        with self._opened() as folder:
            found = [] if folder is None else _files(folder, SUFFIX)
        return len(found), sum(s.st_size for _, s in found)

    def entries(self) -> list[Entry]:
        """All entries, the one that was used last first. Raises CacheError where the folder cannot be read."""
        with self._opened() as folder:
            files = [] if folder is None else _files(folder, SUFFIX)
            assert folder is not None or not files
            notes = [(_note(folder, name), name, status) for name, status in files if folder is not None]
        found = [Entry(name.removesuffix(SUFFIX), status.st_size, status.st_mtime, n) for n, name, status in notes]
        return sorted(found, key=lambda entry: entry.used, reverse=True)

    # -- the folder --------------------------------------------------------------------------------------

    @contextmanager
    def _opened(self, *, create: bool = False) -> Generator[int | None]:
        """The descriptor of the folder, which is trusted; None if there is none and it is not to be created.

        Raises CacheError if it cannot be used, and for any failure of the file system inside the block.
        """
        folder = None
        try:
            try:
                folder = os.open(self.folder, FOLDER)
            except FileNotFoundError:
                if not create:
                    yield None
                    return
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
        """Raise CacheError unless the folder can only hold the user's own entries; empty it if others had access."""
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
        warn_once(f"{message}; it was closed and emptied", UserWarning)

    # -- entries -----------------------------------------------------------------------------------------

    def _read(self, folder: int, key: str, read: Callable[[bytes], T | None]) -> T | None:
        name = key + SUFFIX
        try:
            found = _read_own(folder, name)
        except FileNotFoundError:
            return None
        problem = "not a file of yours"
        if found is not None:
            head, content = found[:HEAD], found[HEAD:]
            whole = unpacked(content.partition(b"\0")[2]) if head == _head(key, content) else None
            if whole is not None and (made := read(whole)) is not None:
                return made
            problem = "damaged"
        warn_once(f"the cache entry {self.folder / name} is {problem}; the kernel is compiled again")
        _remove(folder, name)
        return None

    def _publish(self, folder: int, key: str, content: bytes) -> None:
        # A unique name, so that two writers of one key never share a file.
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
            if now - status.st_mtime > DRAFT_SECONDS:
                _remove(folder, name)
        found = sorted(_files(folder, SUFFIX), key=lambda file: file[1].st_mtime_ns)
        total = sum(status.st_size for _, status in found)
        for name, status in found:
            if total <= self.limit:
                break
            if name != keep:
                _remove(folder, name)
                total -= status.st_size


def packed(content: bytes) -> bytes:
    """Compressed, for zlib: a kernel, which has its IR and PTX as text, to an eighth, in 2 ms."""
    return zlib.compress(content, 1)


def unpacked(content: bytes) -> bytes | None:
    """Return what `packed` got; None for anything else."""
    inflate = zlib.decompressobj()
    try:
        found = inflate.decompress(content, MOST_CONTENT)
    except zlib.error:
        return None
    return found if inflate.eof and not inflate.unused_data else None


def _head(key: str, content: bytes) -> bytes:
    """The first bytes of a file: the format, and the checksum of key and content."""
    return MAGIC + hashlib.sha256(key.encode() + b"\n" + content).digest()


HEAD = len(_head("", b""))


def _remove(folder: int, name: str) -> None:
    with suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _read_own(folder: int, name: str) -> bytes | None:
    """The content of a file of the folder; None unless it is a file of the user with one name, which nobody else can
    write, and not too long. Raises FileNotFoundError."""
    try:
        file = os.open(name, ENTRY, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            return None
        raise
    try:
        status = os.fstat(file)
        plain = stat.S_ISREG(status.st_mode) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not plain or status.st_uid != os.getuid() or status.st_nlink > 1 or status.st_size > MOST_CONTENT:
            return None
        with suppress(OSError):  # a read-only file system: the entry itself is good
            os.utime(file)  # the date of last use, for eviction
        with open(file, "rb", closefd=False) as content:
            return content.read()
    finally:
        os.close(file)


def _note(folder: int, name: str) -> dict[str, Any]:
    """Of an entry, whose checksum is not looked at. Its date stays."""
    with suppress(OSError, ValueError, RecursionError):
        with open(os.open(name, ENTRY, dir_fd=folder), "rb") as file:
            start = file.read(HEAD + MOST_NOTE)
        if start.startswith(MAGIC):
            found = json.loads(start[HEAD:].partition(b"\0")[0])
            return cast(dict[str, Any], found) if isinstance(found, dict) else {}
    return {}


def _files(folder: int, suffix: str) -> list[tuple[str, os.stat_result]]:
    """Files and links in the folder whose names end with `suffix`."""
    found: list[tuple[str, os.stat_result]] = []
    with os.scandir(folder) as items:
        for item in items:
            with suppress(FileNotFoundError):  # evicted by another process
                if item.name.endswith(suffix) and not item.is_dir(follow_symlinks=False):
                    found.append((item.name, item.stat(follow_symlinks=False)))
    return found


def _empty(folder: int) -> tuple[int, list[str]]:
    """Remove entries and drafts. Returns the number of entries, and the names that could not be removed."""
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


def warn_once(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn once per process about each message."""
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, category, stacklevel=2)
