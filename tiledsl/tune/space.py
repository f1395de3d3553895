"""What there is to try: the consts of a kernel, each with some values. All combinations are candidates.

A file declares the space of a kernel k as ``SPACE = {"k": {"BM": (64, 128), ...}}``; the command line adds consts, or
replaces their values. Which combinations the kernel can have, it says itself: by `assert`, and by what does not fit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiledsl.errors import UsageError
from tiledsl.inspect.loading import parse_consts
from tiledsl.kernel import TileKernel

NAME = "SPACE"
MOST = 100_000
"""Candidates. More are a mistake: a second each is a day."""


@dataclass(frozen=True)
class Space:
    """Consts by name with their values."""

    values: Mapping[str, tuple[Any, ...]]

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.values.values())

    def candidates(self) -> list[dict[str, Any]]:
        return [dict(zip(self.values, chosen, strict=True)) for chosen in itertools.product(*self.values.values())]


def space_of(kernel: TileKernel, settings: Sequence[str] = ()) -> Space:
    """The space of a kernel: that of its file, with these settings (``BM=64,128``). Raises UsageError."""
    found: dict[str, Any] = kernel.fn.__globals__.get(NAME, {})
    try:
        values = {name: (*of,) for name, of in found.get(kernel.name, {}).items()}
    except (AttributeError, TypeError):
        fix = f'write {NAME} = {{"{kernel.name}": {{"CONST": (value, value), ...}}}}'
        raise UsageError(f"tune: {NAME} in the file of {kernel.name} is {found!r}\n  fix: {fix}") from None
    known = [const.name for const in kernel.signature.consts]
    for name in values:
        if name not in known:
            listed = ", ".join(known) or "none"
            message = f"tune: {NAME} has {name!r}, which is no const of {kernel.name}. It has: {listed}"
            raise UsageError(f"{message}\n  fix: name one of these")
    for setting in settings:
        name, _, texts = setting.partition("=")
        # One by one: errors name the value, and consts without a default may stay open here.
        values[name] = tuple(_parsed(kernel, name, f"{name}={text}", texts) for text in texts.split(","))
    if not values:
        fix = f'give CONST=VALUE,VALUE, or {NAME} = {{"{kernel.name}": {{"CONST": (value, value)}}}} in its file'
        raise UsageError(f"tune: {kernel.name} has no search space\n  fix: {fix}")
    space = Space(values)
    empty = [name for name, of in values.items() if not of]
    if empty:
        raise UsageError(f"tune: {empty[0]} of {kernel.name} has no values\n  fix: give it some, or leave it out")
    if len(space) > MOST:
        raise UsageError(f"tune: {len(space)} combinations of consts; at most {MOST}\n  fix: give fewer values")
    return space


def _parsed(kernel: TileKernel, name: str, setting: str, texts: str) -> Any:
    if not texts:
        raise UsageError(f"tune: {setting!r}: expected CONST=VALUE,VALUE\n  fix: give values, or leave it out")
    try:
        return parse_consts(kernel, [setting], complete=False)[name]
    except UsageError as error:
        raise UsageError(f"tune: {str(error).removeprefix('--const ')}") from None


def shown(value: Any) -> Any:
    """A value as a record has it: as JSON, or a name, or as Python shows it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [shown(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return getattr(value, "__name__", repr(value))
