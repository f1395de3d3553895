"""From the registers of warps to whole matrices and back, as `layout.fragments` says what lies where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.hooks import Ints
from tiledsl.backends.emulator.native.loops import fma
from tiledsl.ir.semantics import Array, numpy_dtype
from tiledsl.ir.tensor_core import mma_planes
from tiledsl.ir.types import DTYPES, F64
from tiledsl.layout.fragments import FragmentLayout
from tiledsl.layout.mma import MmaRow
from tiledsl.layout.shared import CHUNK, ROWS, SPANS, Paneled

Values = Sequence[Any]


Multiply = Callable[..., Array]
"""As `mma_planes`, or `tensor_core.wgmma`."""


def product(
    row: MmaRow,
    a: Values,
    b: Values,
    c: Values,
    tiles: tuple[int, int, int] = (1, 1, 1),
    multiply: Multiply = mma_planes,
) -> tuple[Any, ...]:
    """``a b + c`` from the values that each lane holds and to those: elements, or u32 words of narrow elements.

    tiles: how many instructions there are along m, n and k; those along k follow each other. Their operands lie row by
    row in the values, as `FragmentLayout` has them.
    """
    shape = _shape([*a, *b, *c])
    along_m, along_n, along_k = tiles
    acc = FragmentLayout(row.shape, "acc", (1, 1))
    given = ((acc.a, a, row.a), (acc.b, b, row.b), (acc, c, row.acc))
    left, right, sums = (held_matrices(x, x.tile, v, shape, numpy_dtype(DTYPES[name])) for x, v, name in given)
    warps = len(left)
    # Planes: every instruction of every warp is one more warp of `mma_planes`.
    left = left.reshape(warps, along_m, along_k, *left.shape[2:]).transpose(2, 4, 3, 1, 0)
    right = right.reshape(warps, along_k, along_n, *right.shape[2:]).transpose(1, 3, 4, 2, 0)
    total = sums.transpose(2, 3, 1, 0).reshape(*sums.shape[2:], -1)
    for x, y in zip(left, right, strict=True):
        every = (along_m, along_n, warps)
        x = np.broadcast_to(x[:, :, :, None], (*x.shape[:2], *every)).reshape(*x.shape[:2], -1)
        y = np.broadcast_to(y[:, :, None, :], (*y.shape[:2], *every)).reshape(*y.shape[:2], -1)
        total = multiply(row, x, y, total, _fma)
    sums = total.reshape(*sums.shape[2:], -1, warps).transpose(3, 2, 0, 1)
    return registers(acc, sums, shape, np.asarray(c[0]).dtype)


def _shape(values: Values) -> tuple[int, int, int]:
    """The groups and warps along which any of the values varies, and 32 lanes."""
    groups, warps, _ = np.broadcast_shapes((1, 1, WARP), *(np.shape(v) for v in values))
    return groups, warps, WARP


def held_matrices(
    layout: FragmentLayout, dims: tuple[int, int], values: Values, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Array:
    """[holders, matrices, rows, columns] of `dtype` from the values of the lanes, which are elements or u32 words.

    holders: each is as many warps as the layout has. matrices: of shape `dims`, one after the other in the values.
    """
    stacked = np.empty((len(values), *shape), np.asarray(values[0]).dtype)
    for register, value in enumerate(values):
        stacked[register] = value
    shared = stacked.itemsize // dtype.itemsize
    positions, _ = _positions(layout, dims, dtype.itemsize * 8, shared)
    by_holder = stacked.view(dtype).reshape(len(values), -1, layout.threads * shared).transpose(1, 0, 2)
    return by_holder.reshape(len(by_holder), -1, positions.size).take(positions, axis=2)


def registers(layout: FragmentLayout, matrices: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """The inverse of `held_matrices`; `dtype`: that of the values."""
    shared = dtype.itemsize // matrices.itemsize
    _, places = _positions(layout, matrices.shape[2:], matrices.itemsize * 8, shared)
    by_holder = matrices.reshape(*matrices.shape[:2], -1).take(places, axis=2)
    stacked = by_holder.reshape(len(matrices), -1, layout.threads * shared).transpose(1, 0, 2)
    return tuple(np.ascontiguousarray(stacked).view(dtype).reshape(-1, *shape))


@lru_cache(maxsize=256)
def _positions(layout: FragmentLayout, dims: tuple[int, int], bits: int, shared: int) -> tuple[Ints, Ints]:
    """Where each element of a block tile is among [values, warps, lanes, elements of a value], by row and column;
    and the inverse."""
    threads = np.arange(layout.threads)
    found = np.empty(dims, np.int64)
    for element in range(layout.size(dims)):
        value, within = divmod(element, shared)
        place = layout.place(dims, bits, element, layout.first + threads // WARP, threads % WARP)
        found[place] = (value * layout.threads + threads) * shared + within
    return found, np.argsort(found, axis=None)


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


def swizzled(chunks: Any, span: int) -> Any:
    """Where the hardware puts the chunk of 16 bytes at each of these places, counted from the start of memory."""
    if not span:
        return chunks
    units = span // CHUNK
    inner = Paneled(span, CHUNK).inner
    return chunks // units * units + inner.place(chunks // units, chunks % units, (1, units))


class Descriptor(NamedTuple):
    """Of one operand. start, leading, stride: bytes. span: of the swizzle; 0 for none, which no op asks for."""

    start: int
    leading: int
    stride: int
    span: int

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(bits: int) -> Descriptor:
        start, leading, stride = ((bits >> at & 0x3FFF) << 4 for at in (0, 16, 32))
        return Descriptor(start, leading, stride, (0, *SPANS)[bits >> 62 & 3])

    @property
    def begins_pattern(self) -> bool:
        """Does the operand begin in the first row of the swizzle's pattern, as a base offset of 0 says?"""
        return self.span > 0 and self.start % (ROWS * self.span) < self.span


@lru_cache(maxsize=1024)
def operand_chunks(of: Descriptor, rows: int, k: int, size: int, transposed: bool) -> Ints:
    """The addresses of an operand's chunks of 16 bytes: [rows, chunks], or [chunks, k] if it is `transposed`."""
    elements, several = operand_addresses(of, rows, k, size, transposed), CHUNK // size
    return elements[::several] if transposed else elements[:, ::several]


def operand_addresses(of: Descriptor, rows: int, k: int, size: int, transposed: bool) -> Ints:
    """Of the elements of `size` bytes of an operand: [rows, k], where rows run along m or n."""
    row, depth = np.arange(rows)[:, None], np.arange(k)
    if transposed:  # LBO leads to the next span along m or n, SBO to the next 8 of k
        span, inside = np.divmod(row * size, of.span)
        offset = span * of.leading + inside + depth // ROWS * of.stride + depth % ROWS * of.span
    else:  # rows of 8 are a pattern
        offset = row // ROWS * of.stride + row % ROWS * of.span + depth * size
    address = of.start + offset
    return swizzled(address // CHUNK, of.span) * CHUNK + address % CHUNK
