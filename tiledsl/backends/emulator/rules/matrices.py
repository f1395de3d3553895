"""From the registers of warps to whole matrices and back, as `layout.fragments` says what lies where.

Matrices are *planes*: arrays with the warps last, as `tensor_core.mma_planes` takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP, WARPGROUP_WARPS
from tiledsl.backends.emulator.native.loops import fma
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.tensor_core import mma_planes
from tiledsl.ir.types import DTYPES, F64
from tiledsl.layout.fragments import FragmentLayout, Operand
from tiledsl.layout.mma import MmaRow
from tiledsl.layout.shared import CHUNK, ROWS, Paneled

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


def _stacked(values: Values, shape: tuple[int, ...]) -> Array:
    """[values, groups, warps, 32]."""
    stacked = np.empty((len(values), *shape), np.asarray(values[0]).dtype)
    for register, value in enumerate(values):
        stacked[register] = value
    return stacked


def _planes(row: MmaRow, operand: Operand, values: Values, shape: tuple[int, int, int]) -> Array:
    """[tiles, k, m, warps] of A, [tiles, k, n, warps] of B, [tiles, m, n, warps] of C."""
    stacked, dtype = _stacked(values, shape), _dtype(row, operand)
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


# -- wgmma ------------------------------------------------------------------------------------------


SPANS = (0, 128, 64, 32)
"""Bytes of the swizzle's span by the mode of a descriptor."""


def swizzled(chunks: Any, span: int) -> Any:
    """Where the hardware puts the chunk of 16 bytes at each of these places, counted from the start of memory."""
    if not span:
        return chunks
    units = span // CHUNK
    inner = Paneled(span, CHUNK).inner
    return chunks // units * units + inner.place(chunks // units, chunks % units, (1, units))


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Of one operand. start, leading, stride: bytes. span: of the swizzle; 0 for none."""

    start: int
    leading: int
    stride: int
    span: int
    base: int

    @staticmethod
    def of(bits: int) -> Descriptor:
        def field(at: int) -> int:
            return (bits >> at & 0x3FFF) << 4

        return Descriptor(field(0), field(16), field(32), SPANS[bits >> 62 & 3], bits >> 49 & 7)

    @property
    def begins_pattern(self) -> bool:
        """Does the operand begin in the first row of the swizzle's pattern, as a base offset of 0 says it does?"""
        return self.base == 0 and self.start % (ROWS * self.span or 1) < max(self.span, 1)

    def addresses(self, rows: int, k: int, size: int, transposed: bool) -> Ints:
        """Of the elements of `size` bytes of an operand: [rows, k], where rows run along m or n."""
        return _addresses(self, rows, k, size, transposed)


@lru_cache(maxsize=1024)
def _addresses(of: Descriptor, rows: int, k: int, size: int, transposed: bool) -> Ints:
    row, depth = np.arange(rows)[:, None], np.arange(k)
    unit = CHUNK // size
    if transposed:
        offset = _transposed_chunks(of, row, depth, unit) + row % unit * size
    else:
        # Rows of 8 are a pattern; along k one instruction has two chunks of 16 bytes.
        step = CHUNK if of.span else of.leading
        offset = row % ROWS * (of.span or CHUNK) + row // ROWS * of.stride + depth // unit * step + depth % unit * size
    address = of.start + offset
    return swizzled(address // CHUNK, of.span) * CHUNK + address % CHUNK


def _transposed_chunks(of: Descriptor, row: Ints, depth: Ints, unit: int) -> Ints:
    """Of the chunk that has the element. Without a swizzle, LBO is along k and SBO along m or n; with one, LBO leads to
    the next span along m or n, SBO to the next 8 of k."""
    chunk = row // unit
    if not of.span:
        return chunk * of.stride + depth % ROWS * CHUNK + depth // ROWS * of.leading
    units = of.span // CHUNK
    return chunk % units * CHUNK + chunk // units * of.leading + depth % ROWS * of.span + depth // ROWS * of.stride


# -- registers -------------------------------------------------------------------------------------


def accumulator(values: Sequence[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """[warpgroups, 64, n] from the registers of an instruction: elements, or words of two of them.

    Value v is at row 16 w + g + 8 (v >> 1 & 1) and column 8 (v >> 2) + 2 t + (v & 1).
    """
    stacked = _stacked(values, shape)
    groups = stacked[0].size // (WARPGROUP_WARPS * WARP)
    if stacked.dtype == dtype:
        parts = stacked.reshape(-1, 2, 2, groups, WARPGROUP_WARPS, 8, 4).transpose(3, 4, 1, 5, 0, 6, 2)
    else:
        parts = stacked.view(dtype).reshape(-1, 2, groups, WARPGROUP_WARPS, 8, 4, 2).transpose(2, 3, 1, 4, 0, 5, 6)
    return parts.reshape(groups, 16 * WARPGROUP_WARPS, -1)


def from_accumulator(matrix: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """The inverse; `dtype` is that of the registers."""
    groups = len(matrix)
    parts = matrix.reshape(groups, WARPGROUP_WARPS, 2, 8, -1, 4, 2)  # group, w, half, g, n / 8, t, element
    if matrix.dtype == dtype:
        return tuple(np.ascontiguousarray(parts.transpose(4, 2, 6, 0, 1, 3, 5)).reshape(-1, *shape))
    words = np.ascontiguousarray(parts.transpose(4, 2, 0, 1, 3, 5, 6)).view(dtype)
    return tuple(words.reshape(-1, *shape))


def left_operand(words: Sequence[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """[warpgroups, 64, k] from four words: word r has row 16 w + g + 8 (r & 1), of the (r >> 1)-th 16 bytes along k
    the t-th word."""
    run = np.dtype(np.uint32).itemsize // dtype.itemsize
    stacked = _stacked(words, shape).view(dtype).reshape(2, 2, -1, WARPGROUP_WARPS, 8, 4, run)
    parts = stacked.transpose(2, 3, 1, 4, 0, 5, 6)
    return parts.reshape(len(parts), 16 * WARPGROUP_WARPS, -1)
