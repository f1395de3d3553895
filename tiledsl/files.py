"""Read files that a user or a text names. A device, a pipe, or a folder in the place of a file is an OSError at once:
reading it might never end."""

from __future__ import annotations

import errno
import linecache
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MOST = 1 << 30
"""Bytes of a file."""
FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"))
"""Not blocking, for a pipe without a writer; Windows has only the last of these."""


def read_bytes(file: Path) -> bytes:
    """Return the content of a regular file. Raises OSError, whose `strerror` says what is there instead."""
    descriptor = os.open(file, FLAGS)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, f"expected a file, got {_kind(status.st_mode)}", str(file))
        if status.st_size > MOST:
            raise OSError(errno.EFBIG, f"expected at most {MOST >> 20} MiB, got {status.st_size >> 20}", str(file))
        with open(descriptor, "rb", closefd=False) as content:
            return content.read(MOST)
    finally:
        os.close(descriptor)


def read_text(file: Path) -> str:
    """Return the text of a regular file in UTF-8. Raises OSError as `read_bytes`, and UnicodeDecodeError."""
    return read_bytes(file).decode("utf-8").replace("\r\n", "\n")


def source_lines(file: str) -> list[str]:
    """Return the lines of a source file, with their ends; none for what is no file."""
    odd = file not in linecache.cache and os.path.exists(file) and not os.path.isfile(file)
    return [] if odd else linecache.getlines(file)


def source_line(file: str, line: int) -> str:
    """Return one line of a source file, counted from 1, without its end; "" if there is none."""
    lines = source_lines(file)
    return lines[line - 1].rstrip("\n") if 1 <= line <= len(lines) else ""


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")
