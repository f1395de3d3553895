"""What one known bug consists of, and what the check says of it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["REFUSED", "Case", "counters", "ones"]

REFUSED = "refused"
"""In place of a code: the compiler does not accept the bug."""

_MARK = re.compile(r"# (?:found: (T\d+(?:, T\d+)*)|(refused))$")


def ones(*shape: int) -> NDArray[np.float32]:
    return np.ones(shape, np.float32)


def counters(*shape: int, value: int = 0) -> NDArray[np.int32]:
    return np.full(shape, value, np.int32)


@dataclass(frozen=True)
class Case:
    """A kernel whose const `const` is true in the mended twin; the first sentence of its docstring is the bug.

    source: the public thread as owner/repository#number, or the theme of a textbook pair. arrays: the arguments, which
    are copied for each run. seeds: orders under which the bug is looked for; 0 is the usual one alone. wrong: arguments
    that take the place of the mended twin's, where the bug is the caller's. unwritten: arrays that the caller says hold
    nothing. missed: why the check does not find it.
    """

    kernel: Any
    source: str
    arrays: Mapping[str, NDArray[Any]]
    seeds: int = 0
    wrong: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    unwritten: str = ""
    missed: str = ""
    const: str = "SAFE"

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def file(self) -> Path:
        return Path(inspect.getsourcefile(self.kernel.fn) or "")

    @cached_property
    def bug(self) -> str:
        text = " ".join(inspect.cleandoc(self.kernel.fn.__doc__).partition("\n\n")[0].split())
        return text.removesuffix(".")

    @cached_property
    def expected(self) -> set[tuple[str, int]]:
        """What stands at the kernel's lines: ``# found: T101, T201`` or ``# refused``."""
        lines, first = inspect.getsourcelines(self.kernel.fn)
        marks = ((_MARK.search(line.rstrip()), first + i) for i, line in enumerate(lines))
        return {(code, line) for mark, line in marks if mark for code in (mark[1] or REFUSED).split(", ")}

    @property
    def codes(self) -> str:
        return ", ".join(sorted({code for code, _ in self.expected}))

    def arguments(self, safe: bool) -> dict[str, Any]:
        """Of a call: fresh arrays, and the const."""
        arrays = {**self.arrays, **({} if safe else self.wrong)}
        return {**{name: array.copy() for name, array in arrays.items()}, self.const: safe}

    def check(self, safe: bool, seeds: int = 0) -> Any:
        orders = {"seeds": seeds} if seeds else {}
        return self.kernel.check(**self.arguments(safe), **orders, unwritten=self.unwritten, raises=False)
