"""Take in what comes from outside: files, numbers as text, and numbers of NumPy."""

from __future__ import annotations

import errno
import linecache
import os
import stat
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path  # what every import of the package would pay for

# -- files -----------------------------------------------------------------------------------------

MOST_BYTES = 1 << 30
"""The most bytes that a file may have."""
FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"))
"""The flags to open files with: not blocking, for a pipe without a writer. Windows has only the last of these."""


def read_bytes(file: Path) -> bytes:
    """Return the content of a regular file. Raises OSError, whose `strerror` says what is there instead."""
    descriptor = os.open(file, FLAGS)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, f"expected a file, got {_kind(status.st_mode)}", str(file))
        if status.st_size > MOST_BYTES:
            raise OSError(
                errno.EFBIG, f"expected at most {MOST_BYTES >> 20} MiB, got {status.st_size >> 20}", str(file)
            )
        with open(descriptor, "rb", closefd=False) as content:
            return content.read(MOST_BYTES)
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


# -- numbers as text -------------------------------------------------------------------------------

MOST_DIGITS = 18
"""The most digits that a count may have."""
LONGEST = 1e15
"""A time below which all times must be, in any unit."""


def count_of(text: str, least: int = 0) -> int | None:
    """Return the whole number that `text` says in decimal digits; None for anything else, and for less than `least`."""
    if not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS):
        return None
    return int(text) if int(text) >= least else None


def seconds_of(text: str) -> float | None:
    """Return a time above 0 that ends; None for anything else."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if is_time(seconds) else None


def is_time(value: object) -> bool:
    """Return whether this is a number above 0, neither infinite nor absurd."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < LONGEST


# -- values of Python ------------------------------------------------------------------------------

exact_type: Callable[[Any], type[Any]] = type
"""The class of an object, whatever its `__class__` says."""

MOST_DEPTH = 200
"""The most lists, tuples, and dicts inside each other."""

ATOMS = frozenset({int, float, bool, str, bytes, type(None)})
"""Types of values that are plain; a shortcut for the usual ones."""


class NotPlain(ValueError):  # noqa: N818 - the callers make an error of it
    """A value that has no plain form: its text says what it holds, `fix` and `code` are those of the error for it."""

    def __init__(self, message: str, fix: str, code: str) -> None:
        super().__init__(message)
        self.fix, self.code = fix, code


def plain(value: Any) -> Any:
    """Return `value` with each number of NumPy or ml_dtypes in it replaced by the Python number of the same value.

    Lists, tuples, dicts, and slices are searched; what holds no such number is returned as it is. Raises NotPlain for
    a container that contains itself, and for a number that no Python number equals.
    """
    return value if type(value) in ATOMS else _plain(value, {}, ())


def python_number(value: Any) -> Any:
    """Return a number of NumPy as the equal number of Python, and anything else as it is."""
    try:
        return _number(value)
    except NotPlain:
        return value


def _plain(value: Any, done: dict[int, Any], around: tuple[int, ...]) -> Any:
    """Do as `plain`. done: what containers became, by their ids. around: ids of the containers that contain `value`."""
    kind = exact_type(value)
    if kind in ATOMS:
        return value
    if kind in (list, tuple) and ATOMS.issuperset(map(exact_type, value)):  # a long table, often
        return value
    parts = _parts(value, kind)
    if parts is None:
        return _number(value)
    if id(value) in done:
        return done[id(value)]
    if id(value) in around or len(around) > MOST_DEPTH:
        endless = f"a {kind.__name__} that contains itself"
        deep = f"more than {MOST_DEPTH} lists, tuples, or dicts inside each other"
        raise NotPlain(endless if id(value) in around else deep, "pass its numbers in a flat list or tuple", "C104")
    inside = (*around, id(value))
    found = [_plain(part, done, inside) for part in parts]
    same = all(new is old for new, old in zip(found, parts, strict=True))
    done[id(value)] = made = value if same else _made(value, kind, found)
    return made


def _parts(value: Any, kind: type[Any]) -> list[Any] | None:
    """Return the parts of a container; None for any other value."""
    names: Any = getattr(kind, "_fields", None)
    if kind in (list, tuple) or (names is not None and issubclass(kind, tuple)):
        return [*value]
    if kind is dict:
        return [*value.values()]
    return [value.start, value.stop, value.step] if kind is slice else None


def _made(value: Any, kind: type[Any], parts: list[Any]) -> Any:
    if kind is dict:
        return dict(zip(value, parts, strict=True))
    if kind is slice:
        return slice(*parts)
    made: Any = tuple
    return parts if kind is list else made.__new__(kind, parts)


def _number(value: Any) -> Any:
    numpy = sys.modules.get("numpy")
    of_numpy = type(value).__module__.partition(".")[0] in ("numpy", "ml_dtypes")  # and no class that is derived there
    if numpy is None or not of_numpy or not isinstance(value, numpy.generic):
        return value
    if isinstance(value, numpy.timedelta64):  # an integer to NumPy; its unit would be lost
        return value
    if isinstance(value, numpy.longdouble) and not isinstance(value.item(), float):
        number: Any = float(value)
        if number != value and not numpy.isnan(value):
            raise NotPlain(f"{value!r}, which no Python float equals", f"round it on purpose: float({value!s})", "C202")
        return number
    number = value.item()
    return number if type(number) in (bool, int, float) else value
