"""Kernels of one warp that make one access to shared memory, at the offsets that they are given.

What the tile contains does not matter, only how the access goes. Offsets count in units of the access's width;
a lane whose offset is negative takes no part.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from tiledsl import (
    Const,
    Global,
    const,
    f16,
    f32,
    fragment,
    grid,
    i32,
    index,
    shared,
    threads,
    tile_kernel,
    u8,
    unroll,
)
from tiledsl.kernel import TileKernel
from tiledsl.layout.banks import Kind

__all__ = ["PLACES", "access", "micro_kernels"]

PLACES = 1056
"""How many places of the width of an access the tile has."""

Lanes = Literal[32]


@tile_kernel
def shared_load(OFFSET: Global[i32, Lanes], OUT: Global[f32, Lanes], *, dtype: Const[Any], vec: const):
    grid(1)
    t = threads(32)
    S = shared(PLACES * vec, dtype)
    at = OFFSET[t]
    if at >= 0:
        total = f32(0)
        if vec == 1:
            total += S[index(at)].to(f32)
        else:
            got = S.load(index(at) * vec, vec=4 * vec)
            for i in unroll(vec):
                total += got[i]
        OUT[t] = total


@tile_kernel
def shared_store(OFFSET: Global[i32, Lanes], OUT: Global[f32, Lanes], *, dtype: Const[Any], vec: const):
    grid(1)
    t = threads(32)
    S = shared(PLACES * vec, dtype)
    at = OFFSET[t]
    if at >= 0:
        if vec == 1:
            S[index(at)] = OUT[t].to(dtype)
        else:
            S.store(index(at) * vec, fragment((vec,), f32, OUT[t]))


@tile_kernel
def shared_atomic(OFFSET: Global[i32, Lanes], OUT: Global[f32, Lanes], *, dtype: Const[Any], vec: const):
    grid(1)
    t = threads(32)
    S = shared(PLACES * vec, dtype)
    at = OFFSET[t]
    if at >= 0:
        S.atomic_add(index(at), at)


_KERNELS: dict[Kind, TileKernel] = {"load": shared_load, "store": shared_store, "atomic": shared_atomic}
_ELEMENTS: dict[int, tuple[Any, int]] = {1: (u8, 1), 2: (f16, 1), 4: (f32, 1), 8: (f32, 2), 16: (f32, 4)}


def micro_kernels(kind: Kind, width: int) -> tuple[TileKernel, dict[str, Any]]:
    """The kernel that makes an access of that kind and width, and its consts."""
    dtype, vec = _ELEMENTS[width]
    return _KERNELS[kind], {"dtype": i32 if kind == "atomic" else dtype, "vec": vec}


def access(kind: Kind, width: int, offsets: tuple[int, ...], device: str) -> None:
    """Make one access, on the "gpu" or the "emulator"."""
    kernel, consts = micro_kernels(kind, width)
    kernel(np.array(offsets, np.int32), np.zeros(32, np.float32), device=device, **consts)
