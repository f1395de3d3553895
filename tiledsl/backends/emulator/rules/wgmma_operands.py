"""What ``wgmma`` reads and writes: operands in shared memory by descriptor, the registers of a warpgroup as matrices.

(PTX ISA: asynchronous warpgroup level matrix shared memory layout; matrix descriptor; register fragments.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP, WARPGROUP_WARPS
from tiledsl.layout.shared import CHUNK, ROWS, Paneled

__all__ = ["Descriptor", "accumulator", "from_accumulator", "left_operand", "swizzled"]

Array = NDArray[Any]
Ints = NDArray[np.int64]

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

    def addresses(self, rows: int, k: int, size: int, turned: bool) -> Ints:
        """Of the elements of `size` bytes of an operand: [rows, k], where rows run along m or n."""
        return _addresses(self, rows, k, size, turned)


@lru_cache(maxsize=1024)
def _addresses(of: Descriptor, rows: int, k: int, size: int, turned: bool) -> Ints:
    row, depth = np.arange(rows)[:, None], np.arange(k)
    unit = CHUNK // size
    if turned:
        offset = _turned(of, row, depth, unit) + row % unit * size
    else:
        # Rows of 8 are a pattern; along k one instruction has two chunks of 16 bytes.
        step = CHUNK if of.span else of.leading
        offset = row % ROWS * (of.span or CHUNK) + row // ROWS * of.stride + depth // unit * step + depth % unit * size
    address = of.start + offset
    return swizzled(address // CHUNK, of.span) * CHUNK + address % CHUNK


def _turned(of: Descriptor, row: Ints, depth: Ints, unit: int) -> Ints:
    """Of the chunk that has the element. Without a swizzle, LBO is along k and SBO along m or n; with one, LBO leads to
    the next span along m or n, SBO to the next 8 of k."""
    chunk = row // unit
    if not of.span:
        return chunk * of.stride + depth % ROWS * CHUNK + depth // ROWS * of.leading
    units = of.span // CHUNK
    return chunk % units * CHUNK + chunk // units * of.leading + depth % ROWS * of.span + depth // ROWS * of.stride


# -- registers -------------------------------------------------------------------------------------


def _stacked(values: Sequence[Any], shape: tuple[int, ...]) -> Array:
    """[values, warpgroups, 4, 8, 4]: the warps of a warpgroup, and g and t of the lanes."""
    stacked = np.empty((len(values), *shape), np.asarray(values[0]).dtype)
    for register, value in enumerate(values):
        stacked[register] = value
    return stacked.reshape(len(values), -1, WARPGROUP_WARPS, 8, 4)


def accumulator(values: Sequence[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """[warpgroups, 64, n] from the registers of an instruction: elements, or words of two of them.

    Value v is at row 16 w + g + 8 (v >> 1 & 1) and column 8 (v >> 2) + 2 t + (v & 1).
    """
    stacked = _stacked(values, shape)
    groups = stacked.shape[1]
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
    stacked = _stacked(words, shape).view(dtype)
    groups, run = stacked.shape[1], WARP // (8 * dtype.itemsize)
    parts = stacked.reshape(2, 2, groups, WARPGROUP_WARPS, 8, 4, run).transpose(2, 3, 1, 4, 0, 5, 6)
    return parts.reshape(groups, 16 * WARPGROUP_WARPS, -1)
