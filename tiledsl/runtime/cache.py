"""The on-disk cache: one file an entry, a JSON header and raw bytes under a checksum.

``TILEDSL_CACHE_DIR`` names the folder (default: ``~/.cache/tiledsl``), ``TILEDSL_CACHE_SIZE`` its bound
in bytes (default 512 MiB; the entries used longest ago go first), ``TILEDSL_CACHE=0`` switches it off.
Entries are code that will run on the GPU, so the folder belongs to its owner alone (mode 0700), and
one that belongs to someone else is refused. A file is published by a rename: a reader sees all or nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

from tiledsl.errors import CacheError

__all__ = ["CacheInfo", "DiskCache", "Entry", "disk_cache"]

MAGIC = b"tiledsl cache 1\n"
DEFAULT_SIZE = 512 * 2**20
SUFFIX = ".entry"
STALE_SECONDS = 3600
"""Age at which another process's unfinished file counts as left behind."""

FIX = "set TILEDSL_CACHE_DIR to a folder of yours that can be written, or TILEDSL_CACHE=0 to do without"


@dataclass(frozen=True)
class Entry:
    """`header`: what JSON can hold. `parts`: named bytes."""

    header: dict[str, Any]
    parts: dict[str, bytes]


@dataclass(frozen=True)
class CacheInfo:
    """Where the cache is, how many entries it has, their bytes, and its bound in bytes."""

    folder: Path
    entries: int
    bytes: int
    limit: int


def disk_cache() -> DiskCache | None:
    """The cache that the environment asks for now; None if it is switched off. Creates nothing."""
    if os.environ.get("TILEDSL_CACHE", "1") == "0":
        return None
    base = os.environ.get("TILEDSL_CACHE_DIR") or os.path.expanduser("~/.cache/tiledsl")
    text = os.environ.get("TILEDSL_CACHE_SIZE", str(DEFAULT_SIZE))
    if not text.isdigit():
        raise CacheError(f"TILEDSL_CACHE_SIZE is {text!r}; expected a number of bytes, such as {DEFAULT_SIZE}")
    return DiskCache(Path(base) / "kernels", int(text))


class DiskCache:
    """Entries in `folder`, together at most `limit` bytes."""

    def __init__(self, folder: Path, limit: int = DEFAULT_SIZE) -> None:
        self.folder, self.limit = folder, limit

    def load(self, key: str) -> Entry | None:
        """The entry, or None. A damaged one is removed with a warning and counts as absent."""
        path = self.folder / (key + SUFFIX)
        if not self._is_safe():
            return None
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CacheError(f"cannot read the cache entry {path}: {error.strerror}\n  fix: {FIX}") from None
        entry = _decode(data)
        if entry is None:
            warnings.warn(
                f"the cache entry {path} is damaged; the kernel is compiled again", RuntimeWarning, stacklevel=2
            )
            path.unlink(missing_ok=True)
            return None
        # Evicted by another process meanwhile, or a read-only file system: the entry itself is good.
        with contextlib.suppress(OSError):
            os.utime(path)  # the date of last use, for eviction
        return entry

    def store(self, key: str, entry: Entry) -> None:
        """Publish an entry, then evict the oldest ones beyond the limit. Raises CacheError if it cannot be written."""
        self._prepare()
        path = self.folder / (key + SUFFIX)
        # The name is unique to this process and moment, so that two writers of one key never share a file.
        draft = self.folder / f"{key}.{os.getpid()}.{time.monotonic_ns()}.draft"
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(_encode(entry))
            os.replace(draft, path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise self._unwritable(error) from None
        self._evict(keep=path)

    def clear(self) -> int:
        """Remove all entries; the number of them."""
        found = self._entries()
        for path, _ in found:
            path.unlink(missing_ok=True)
        return len(found)

    def info(self) -> CacheInfo:
        found = self._entries()
        return CacheInfo(self.folder, len(found), sum(s.st_size for _, s in found), self.limit)

    def _is_safe(self) -> bool:
        """False if the folder does not exist. Raises CacheError if it is not the user's own."""
        try:
            status = os.lstat(self.folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._unwritable(error) from None
        if not stat.S_ISDIR(status.st_mode):
            raise CacheError(f"the cache folder {self.folder} is not a folder\n  fix: {FIX}")
        if status.st_uid != os.getuid():
            message = f"the cache folder {self.folder} belongs to user {status.st_uid}, not to you ({os.getuid()})"
            raise CacheError(f"{message}: its code is not trusted\n  fix: {FIX}")
        if status.st_mode & 0o077:
            self._restrict()
        return True

    def _restrict(self) -> None:
        """Others could write here: close the folder, and drop what they may have left."""
        try:
            os.chmod(self.folder, 0o700)
        except OSError as error:
            raise self._unwritable(error) from None
        self.clear()
        warnings.warn(
            f"the cache folder {self.folder} was open to other users; it was closed and emptied", stacklevel=2
        )

    def _prepare(self) -> None:
        try:
            self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from None
        self._is_safe()

    def _unwritable(self, error: OSError) -> CacheError:
        return CacheError(f"the cache folder {self.folder} cannot be written: {error.strerror}\n  fix: {FIX}")

    def _entries(self) -> list[tuple[Path, os.stat_result]]:
        found: list[tuple[Path, os.stat_result]] = []
        try:
            for item in os.scandir(self.folder):
                if item.name.endswith(SUFFIX):
                    found.append((Path(item.path), item.stat(follow_symlinks=False)))
        except FileNotFoundError:
            pass  # no folder yet, or an entry evicted by another process
        return found

    def _evict(self, keep: Path) -> None:
        for draft in self.folder.glob("*.draft"):
            try:
                if time.time() - draft.stat().st_mtime > STALE_SECONDS:
                    draft.unlink(missing_ok=True)
            except FileNotFoundError:
                continue
        found = sorted(self._entries(), key=lambda e: e[1].st_mtime_ns)
        total = sum(status.st_size for _, status in found)
        for path, status in found:
            if total <= self.limit:
                break
            if path != keep:
                path.unlink(missing_ok=True)
                total -= status.st_size


def _encode(entry: Entry) -> bytes:
    sizes = {name: len(part) for name, part in entry.parts.items()}
    header = json.dumps({"header": entry.header, "parts": sizes}).encode()
    body = len(header).to_bytes(8, "little") + header + b"".join(entry.parts.values())
    return MAGIC + hashlib.sha256(body).digest() + body


def _decode(data: bytes) -> Entry | None:
    """The entry in `data`, or None if a byte of it is wrong."""
    start = len(MAGIC) + 32
    body = data[start:]
    if not data.startswith(MAGIC) or hashlib.sha256(body).digest() != data[len(MAGIC) : start]:
        return None
    end = 8 + int.from_bytes(body[:8], "little")
    content: Mapping[str, Any] = json.loads(body[8:end])
    parts: dict[str, bytes] = {}
    for name, size in content["parts"].items():
        parts[name] = body[end : end + size]
        end += size
    return Entry(content["header"], parts)
