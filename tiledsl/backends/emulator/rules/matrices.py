"""From the registers of warps to whole matrices and back, as `layout.fragments` says what lies where.

Matrices are *planes*: arrays with the warps last, as `tensor_core.mma_planes` takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.backends.emulator.native.loops import fma
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.tensor_core import mma_planes
from tiledsl.ir.types import DTYPES, F64
from tiledsl.layout.fragments import FragmentLayout, Operand
from tiledsl.layout.mma import MmaRow

__all__ = ["coordinates", "permutation", "product"]

Array = NDArray[Any]
Ints = NDArray[np.int64]
Values = Sequence[Any]


def product(row: MmaRow, a: Values, b: Values, c: Values, tiles: tuple[int, int, int] = (1, 1, 1)) -> tuple[Any, ...]:
    """``a b + c`` from the values that each lane holds and to those: elements, or u32 words of narrow elements.

    tiles: how many instructions there are along m, n and k; those along k follow each other. Their operands lie row by
    row in the values, as `FragmentLayout` has them.
    """
    shape = _shape([*a, *b, *c])
    along_m, along_n, along_k = tiles
    left, right, sums = _planes(row, "a", a, shape), _planes(row, "b", b, shape), _planes(row, "acc", c, shape)
    warps = left.shape[-1]
    # [tiles, rows, columns, warps]: every instruction of every warp is one more warp of `mma_planes`.
    left = left.reshape(along_m, along_k, *left.shape[1:]).transpose(1, 2, 3, 0, 4)
    right = right.reshape(along_k, along_n, *right.shape[1:]).transpose(0, 2, 3, 1, 4)
    total = sums.transpose(1, 2, 0, 3).reshape(*sums.shape[1:3], -1)
    for x, y in zip(left, right, strict=True):
        every = (along_m, along_n, warps)
        x = np.broadcast_to(x[:, :, :, None], (*x.shape[:2], *every)).reshape(*x.shape[:2], -1)
        y = np.broadcast_to(y[:, :, None, :], (*y.shape[:2], *every)).reshape(*y.shape[:2], -1)
        total = mma_planes(row, x, y, total, _fma)
    planes = total.reshape(*sums.shape[1:3], -1, warps).transpose(2, 0, 1, 3)
    return _registers(row, planes, shape, np.asarray(c[0]).dtype)


def _shape(values: Values) -> tuple[int, int, int]:
    """The groups and warps along which any of the values varies, and 32 lanes."""
    groups, warps, _ = np.broadcast_shapes((1, 1, WARP), *(np.shape(v) for v in values))
    return groups, warps, WARP


def _planes(row: MmaRow, operand: Operand, values: Values, shape: tuple[int, int, int]) -> Array:
    """[tiles, k, m, warps] of A, [tiles, k, n, warps] of B, [tiles, m, n, warps] of C."""
    stacked = np.empty((len(values), *shape), np.asarray(values[0]).dtype)
    for register, value in enumerate(values):
        stacked[register] = value
    dtype = _dtype(row, operand)
    shared = stacked.itemsize // dtype.itemsize
    positions = _positions(FragmentLayout(row.shape, operand, (1, 1)), dtype.itemsize * 8, shared)
    elements = stacked.view(dtype).reshape(len(values), -1, WARP * shared)
    by_lane = elements.transpose(0, 2, 1).reshape(-1, positions.size, elements.shape[1])
    return by_lane[:, positions]


def _registers(row: MmaRow, planes: Array, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """The inverse of `_planes` for the accumulators; `dtype`: that of the values."""
    shared = dtype.itemsize // planes.itemsize
    positions = _positions(FragmentLayout(row.shape, "acc", (1, 1)), planes.itemsize * 8, shared)
    by_lane = planes.reshape(len(planes), positions.size, -1)[:, np.argsort(positions, axis=None)]
    elements = by_lane.reshape(-1, WARP * shared, planes.shape[-1]).transpose(0, 2, 1)
    return tuple(np.ascontiguousarray(elements).view(dtype).reshape(-1, *shape))


def _dtype(row: MmaRow, operand: Operand) -> np.dtype[Any]:
    return numpy_dtype(DTYPES[{"a": row.a, "b": row.b, "acc": row.acc}[operand]])


@lru_cache(maxsize=256)
def _positions(layout: FragmentLayout, bits: int, shared: int) -> Ints:
    """Where each element of one instruction's operand is among [values, lanes, elements of a value].

    Of A by column and row, of the others by row and column.
    """
    lanes = np.arange(WARP)
    found = np.empty(layout.tile, np.int64)
    for element in range(layout.tile_size):
        value, within = divmod(element, shared)
        found[layout.place(layout.tile, bits, element, 0, lanes)] = (value * WARP + lanes) * shared + within
    return found.T.copy() if layout.operand == "a" else found


def _fma(a: Array, b: Array, c: Array) -> Array:
    """In f64; arrays of a multiple of 32 elements."""
    flat = (np.ascontiguousarray(x).reshape(1, -1, WARP) for x in (a, b, c))
    return np.asarray(fma(F64)(*flat)).reshape(c.shape)


# -- whole fragments -------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def coordinates(layout: FragmentLayout, dims: tuple[int, ...], bits: int) -> tuple[Ints, Ints]:
    """Row and column in the block tile of every element that a thread holds: [elements, warps, 32]."""
    warps, lanes = np.arange(layout.threads // WARP)[:, None], np.arange(WARP)
    shape = (len(warps), WARP)
    places = [layout.place(dims, bits, element, warps, lanes) for element in range(layout.size(dims))]
    rows, columns = (np.stack([np.broadcast_to(p[axis], shape) for p in places]) for axis in (0, 1))
    return rows, columns


@lru_cache(maxsize=256)
def permutation(src: FragmentLayout, dst: FragmentLayout, dims: tuple[int, ...], bits: int) -> tuple[int | None, ...]:
    """For every element that a thread holds in the layout `dst`, which one in `src` it is; None if threads differ."""
    held = {_key(src, dims, bits, element): element for element in range(src.size(dims))}
    return tuple(held.get(_key(dst, dims, bits, element)) for element in range(dst.size(dims)))


def _key(layout: FragmentLayout, dims: tuple[int, ...], bits: int, element: int) -> bytes:
    rows, columns = coordinates(layout, dims, bits)
    return (rows[element] * dims[1] + columns[element]).tobytes()
