"""Kernels of one warp that make one access to shared memory, at given offsets.

The contents of the tile do not matter, only the access. Offsets count in units of the access's width; a lane whose
offset is negative is inactive. With ldmatrix and stmatrix all lanes are active, and the offsets are those of the lanes
that supply a row's address.
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
    ptx,
    shared,
    threads,
    tile_kernel,
    u8,
    u32,
    unroll,
)
from tiledsl.kernel import TileKernel
from tiledsl.layout.banks import Kind

__all__ = ["PLACES", "access", "arguments", "micro_kernels"]

PLACES = 1056
"""The size of the tile in units of the access's width."""

Lanes = Literal[32]
Copied = Literal[128]
Matrices = Literal[1, 2, 4]
CopyBytes = Literal[4, 8, 16]


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
            S.store(index(at) * vec, fragment((vec,), f32, init=OUT[t]))


@tile_kernel
def shared_atomic(OFFSET: Global[i32, Lanes], OUT: Global[f32, Lanes], *, dtype: Const[Any], vec: const):
    grid(1)
    t = threads(32)
    S = shared(PLACES * vec, dtype)
    at = OFFSET[t]
    if at >= 0:
        S.atomic_add(index(at), at)


@tile_kernel
def matrix_load(OFFSET: Global[i32, Lanes], OUT: Global[f32, Lanes], *, num: Const[Matrices], trans: Const[bool]):
    grid(1)
    t = threads(32)
    S = shared(PLACES * 8, f16)
    got = ptx.ldmatrix(S, index(OFFSET[t]) * 8, num=num, trans=trans)
    total = f32(0)
    for i in unroll(num):
        total += got[i].to(f32)
    OUT[t] = total


@tile_kernel
def matrix_store(OFFSET: Global[i32, Lanes], OUT: Global[f32, Lanes], *, num: Const[Matrices], trans: Const[bool]):
    grid(1)
    t = threads(32)
    S = shared(PLACES * 8, f16)
    words = fragment((num,), u32, init=OUT[t].bitcast(u32))
    ptx.stmatrix(S, index(OFFSET[t]) * 8, words, trans=trans)


@tile_kernel
def asynchronous_copy(
    OFFSET: Global[i32, Lanes], DATA: Global[f32, Copied], *, width: Const[CopyBytes], zeros: Const[bool]
):
    """Lanes read neighbouring words. zeros: nothing is read, since the source is past the edge."""
    grid(1)
    t = threads(32)
    vec = width // 4
    S = shared(PLACES * vec, f32)
    at = OFFSET[t]
    if at >= 0:
        ptx.cp_async(S, index(at) * vec, DATA, t * vec + (128 if zeros else 0), bytes=width)
    ptx.commit_group()
    ptx.wait_group(0)


_KERNELS: dict[Kind, TileKernel] = {
    "load": shared_load,
    "store": shared_store,
    "atomic": shared_atomic,
    "ldmatrix": matrix_load,
    "stmatrix": matrix_store,
    "cp_async": asynchronous_copy,
}
_ELEMENTS: dict[int, tuple[Any, int]] = {1: (u8, 1), 2: (f16, 1), 4: (f32, 1), 8: (f32, 2), 16: (f32, 4)}


def micro_kernels(kind: Kind, width: int, **options: Any) -> tuple[TileKernel, dict[str, Any]]:
    """The kernel that makes an access of that kind and width, and its consts. options: num and trans of matrices, zeros
    of asynchronous copies."""
    dtype, vec = _ELEMENTS[width]
    match kind:
        case "ldmatrix" | "stmatrix":
            consts = {"num": 4, "trans": False}
        case "cp_async":
            consts = {"width": width, "zeros": False}
        case _:
            consts = {"dtype": i32 if kind == "atomic" else dtype, "vec": vec}
    assert options.keys() <= consts.keys(), f"{kind} has no {options.keys() - consts.keys()}"
    return _KERNELS[kind], {**consts, **options}


def arguments(kind: Kind, offsets: tuple[int, ...]) -> dict[str, Any]:
    """The kernel's arguments. Lanes that supply no matrix row still compute an address: any one in the tile."""
    offset = np.array(offsets, np.int32)
    if kind in ("ldmatrix", "stmatrix"):
        offset = np.maximum(offset, 0)
    if kind == "cp_async":
        return {"OFFSET": offset, "DATA": np.zeros(128, np.float32)}
    return {"OFFSET": offset, "OUT": np.zeros(32, np.float32)}


def access(kind: Kind, width: int, offsets: tuple[int, ...], device: str, **options: Any) -> None:
    """Make one access, on the "gpu" or the "emulator"."""
    kernel, consts = micro_kernels(kind, width, **options)
    kernel(**arguments(kind, offsets), device=device, **consts)
