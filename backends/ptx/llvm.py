"""The one import of llvmlite. It has no type information, so both modules are `Any` to the checker.

LLVM's command-line options are the process's, and so is llvmlite's lock, which each of its calls takes.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from tiledsl.backends.ptx.tools import no_llvmlite
from tiledsl.forks import held_by_forks

try:
    ir: Any = import_module("llvmlite.ir")
    binding: Any = import_module("llvmlite.binding")
except ImportError as error:
    raise no_llvmlite(error) from None

_library: Any = import_module("llvmlite.binding.ffi").lib
LOCK: Any = _library._lock
"""Held by whoever is in LLVM, in this library or in another one (numba). Reentrant."""
held_by_forks(LOCK)  # else LLVM would be half way through in the child


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
