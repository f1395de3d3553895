"""The one import of llvmlite. It has no type information, so both modules are `Any` to the checker.

LLVM's command-line options are the process's, and so is llvmlite's lock, which each of its calls takes.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

__all__ = ["LOCK", "binding", "ir", "options", "pass_manager"]

ir: Any = import_module("llvmlite.ir")
binding: Any = import_module("llvmlite.binding")

_library: Any = import_module("llvmlite.binding.ffi").lib
LOCK: Any = _library._lock
"""Held by whoever is in LLVM, in this library or in another one (numba). Reentrant."""


class _AtFork:
    """Takes the lock for the time of a fork: a child would find it locked for ever, and LLVM half way through."""

    held = False

    def before(self) -> None:
        LOCK.__enter__()
        self.held = True

    def after(self) -> None:
        if self.held:  # not where this module was imported between the two
            self.held = False
            LOCK.__exit__()


_at_fork = _AtFork()
os.register_at_fork(before=_at_fork.before, after_in_parent=_at_fork.after, after_in_child=_at_fork.after)


@contextmanager
def options(names: Sequence[str]) -> Generator[None]:
    """Switches of LLVM that are on inside the block only. Nobody else can be in LLVM meanwhile."""
    with LOCK:
        try:
            _set(names, "true")
            yield
        finally:
            try:
                _set(names, "false")
            except KeyboardInterrupt:  # in the middle of it
                _set(names, "false")
                raise


def _set(names: Sequence[str], value: str) -> None:
    for name in names:
        binding.set_option("tiledsl", f"-{name}={value}")


@contextmanager
def pass_manager(builder: Any) -> Generator[Any]:
    """LLVM's standard passes, as the builder has them. llvmlite frees them nowhere: they are 100 KiB."""
    passes = builder.getModulePassManager()
    try:
        yield passes
    finally:
        pointer = passes._ptr
        passes.detach()  # before it is freed: Ctrl-C may come between the two
        _library.LLVMPY_DisposeNewModulePassManger(pointer)
