"""A kernel and a tile function at the top level of a module, and some that are not."""

from __future__ import annotations

from typing import Any

from tiledsl import Global, cdiv, f32, grid, threads, tile_function, tile_kernel
from tiledsl.dims import M


@tile_function
def twice(x: f32) -> f32:
    return x + x


@tile_kernel
def doubled(X: Global[f32, M]):
    i = grid(cdiv(M, 32)) * 32 + threads(32)
    X.put(i, twice(X.get(i)))


@tile_kernel
def wrong(X: Global[f32, M]):
    X[grid(1) + threads(1)] = undefined  # pyright: ignore[reportUndefinedVariable]  # noqa: F821


def made() -> tuple[Any, Any]:
    """A kernel and a tile function that have no name which another process could find."""

    @tile_function
    def inner(x: f32) -> f32:
        return x

    @tile_kernel
    def local(X: Global[f32, M]):
        X[grid(M) + threads(1)] = inner(f32(1))

    return local, inner


def replaced(X: Global[f32, M]):
    X[grid(M) + threads(1)] = f32(1)


other_name = tile_kernel(replaced)
"""Its name, `replaced`, is that of the plain function."""


def run_it(kernel: Any) -> list[float]:
    """The work of another process: what `kernel` makes of three ones."""
    import numpy as np

    x = np.ones(3, np.float32)
    kernel(x, device="emulator")
    return x.tolist()


def compile_it(kernel: Any) -> Any:
    return kernel.compile("sm_90a")
