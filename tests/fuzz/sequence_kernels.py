"""Epilogue functions, and a kernel, for the calls of `sequences`."""

from __future__ import annotations

from typing import Any

from tiledsl import (
    Const,
    Fragment,
    Global,
    Memory,
    bf16,
    boolean,
    f16,
    f32,
    grid,
    i8,
    index,
    maximum,
    threads,
    tile_function,
    tile_kernel,
    u32,
)
from tiledsl.dims import M

__all__ = ["EPILOGUES", "many_scalars"]

SCALE = 2.0


@tile_function
def relu(x: Fragment[Any], bias: Memory[Any] | None, column: Fragment[index]) -> Fragment[Any]:
    return maximum(x, 0)


@tile_function
def doubled(x: Fragment[Any], bias: Memory[Any] | None, column: Fragment[index]) -> Fragment[Any]:
    y = x.to(f32) * SCALE
    return y + bias.get(column) if bias is not None else y


EPILOGUES = {"relu": relu, "doubled": doubled}
"""Epilogue functions by name: one that leaves out the bias, and one that converts and adds it."""


@tile_kernel
def many_scalars(
    C: Global[f32, M],
    x: f32 | float = 1.0,
    half: f16 | float = 0.0,
    brain: bf16 | float = 0.0,
    small: i8 | int = 0,
    large: u32 | int = 0,
    flag: boolean | bool = False,
    *,
    FACTOR: Const[float] = 1.0,
    COUNT: Const[int] = 1,
):
    """Add up all scalars and consts in each element of C."""
    at = grid(M)
    threads(1)
    total = x + f32(half) + f32(brain) + f32(small) + f32(large) + (f32(1) if flag else f32(0))
    C[at] = C[at] + total * FACTOR + COUNT
