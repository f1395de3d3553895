"""tiledsl: a Python language for tiled GEMM kernels, compiled to PTX.

``from tiledsl import *`` gives what a kernel author needs; the names of dimensions are in
`tiledsl.dims`. Importing needs no GPU, driver, NumPy or LLVM: those load when first used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tiledsl import dims, lang
from tiledsl.errors import CompileError, DeviceError, EmulatorError, HazardError, KernelArgumentError, TileError
from tiledsl.function import TileFunction, tile_function
from tiledsl.lang import *  # noqa: F403 - one list of names, in tiledsl.lang

if TYPE_CHECKING:
    from tiledsl.kernel import TileKernel, tile_kernel

__all__ = [
    "CompileError",
    "DeviceError",
    "EmulatorError",
    "HazardError",
    "KernelArgumentError",
    "TileError",
    "TileFunction",
    "TileKernel",
    "dims",
    "tile_function",
    "tile_kernel",
]
__all__ += lang.__all__


def _check_checkout() -> None:
    """`tiledsl/backends/ptx` is a link in a checkout; Git without symbolic links makes a text file of it."""
    folder = os.path.join(os.path.dirname(__file__), "backends", "ptx")
    if not os.path.isdir(folder):
        found = "a plain file" if os.path.isfile(folder) else "missing"
        message = f"tiledsl is not complete: {folder} should be a link to ../../backends/ptx, and is {found}"
        fix = "run `git config core.symlinks true`, then `git checkout -- tiledsl/backends/ptx`; or install the wheel"
        raise ImportError(f"{message}. The checkout did not keep symbolic links.\n  fix: {fix}")


_check_checkout()


def __getattr__(name: str) -> Any:
    # The launch path is loaded with the first kernel, not with the names of the language.
    if name in ("TileKernel", "tile_kernel"):
        from tiledsl import kernel

        return getattr(kernel, name)
    raise AttributeError(f"module 'tiledsl' has no attribute {name!r}")
