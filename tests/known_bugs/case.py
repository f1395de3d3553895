"""What one known bug consists of."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Case", "counters", "ones"]

_MARK = re.compile(r"# found: (T\d+(?: or T\d+)*)$", re.MULTILINE)


def ones(*shape: int) -> NDArray[np.float32]:
    return np.ones(shape, np.float32)


def counters(*shape: int, value: int = 0) -> NDArray[np.int32]:
    return np.full(shape, value, np.int32)


@dataclass(frozen=True)
class Case:
    """kernel: the first line of its docstring says what is wrong where SAFE is false. arrays: its arguments, which are
    copied for each run. source: the public thread as owner/repository#number, or the theme of a textbook pair.
    seeds: orders under which the bug is looked for; 0 is the usual one alone. wrong: arguments of the bug that the
    mended twin does not have, where the bug is the caller's."""

    kernel: Any
    source: str
    arrays: Mapping[str, NDArray[Any]]
    seeds: int = 0
    wrong: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def bug(self) -> str:
        return inspect.cleandoc(self.kernel.fn.__doc__).splitlines()[0].rstrip(".")

    def arguments(self, safe: bool) -> dict[str, NDArray[Any]]:
        arrays = {**self.arrays, **({} if safe else self.wrong)}
        return {name: array.copy() for name, array in arrays.items()}

    def expected(self) -> set[tuple[str, int]]:
        """The marks of the kernel's text: code and line."""
        lines, first = inspect.getsourcelines(self.kernel.fn)
        marks = ((_MARK.search(line.rstrip()), first + i) for i, line in enumerate(lines))
        return {(code, line) for mark, line in marks if mark for code in mark[1].split(" or ")}
