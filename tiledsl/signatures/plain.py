"""Plain Python values of what comes from outside a kernel: a number of NumPy acts as the equal number of Python."""

from __future__ import annotations

import sys
from typing import Any

from tiledsl.meaning.origin import exact_type

MOST_DEPTH = 200
"""Lists, tuples, and dicts inside each other."""

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


def is_numpy_scalar(value: Any) -> bool:
    """Return True for np.float32(1) and the like, also of ml_dtypes; an array of no dimensions is no scalar."""
    return (
        type(value).__module__.split(".")[0] in ("numpy", "ml_dtypes")
        and getattr(value, "shape", None) == ()
        and (type(value).__name__ != "ndarray")
    )


def _plain(value: Any, done: dict[int, Any], around: tuple[int, ...]) -> Any:
    """done: what containers became, by their ids. around: ids of the containers that contain `value`."""
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
    """The parts of a container; None for any other value."""
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
    if numpy is None or not isinstance(value, numpy.generic) or not is_numpy_scalar(value):
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
