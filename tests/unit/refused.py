"""Kernels that the compiler refuses, and what it says: the tables of the tests of errors."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from tiledsl.errors import CompileError, CompileErrors

__all__ = ["Refused", "check"]


class Refused:
    """Collects kernels. Its instances are decorators: ``@bad("what the advice of one of the errors holds")``."""

    def __init__(self) -> None:
        self.cases: list[tuple[Any, str]] = []

    def __call__(self, fix: str) -> Any:
        def register(kernel: Any) -> Any:
            self.cases.append((kernel, fix))
            return kernel

        return register

    @property
    def names(self) -> list[str]:
        return [kernel.__name__ for kernel, _ in self.cases]


def check(kernel: Any, fix: str, arch: str = "sm_90a") -> None:
    """Exactly the lines that carry ``# error: <text>`` are refused, each with that text in its message."""
    lines, first = inspect.getsourcelines(kernel.__wrapped__)
    marked = [(first + i, re.search(r"# error: (.*)$", line)) for i, line in enumerate(lines)]
    wanted = [(number, match.group(1)) for number, match in marked if match]
    with pytest.raises(CompileError) as caught:
        kernel.compile(arch=arch)
    errors = caught.value.errors if isinstance(caught.value, CompileErrors) else (caught.value,)
    found = [(error.loc.line, error.message) for error in errors]
    assert [line for line, _ in found] == [line for line, _ in wanted], found
    for (_, message), (_, text) in zip(found, wanted, strict=True):
        assert text in message
    assert fix in str(caught.value)
