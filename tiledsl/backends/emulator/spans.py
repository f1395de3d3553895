"""What an access may touch: global tensors and tiles of shared memory as spans of addresses.

A pointer is an int64: a virtual address for global memory, where each tensor has a range of 2^40 bytes
to itself so that a stray address is recognised, and a byte offset into the block for shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.hooks import Bools, Ints
from tiledsl.errors import KernelArgumentError
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import DType, Space
from tiledsl.layout.shared import row_major

ADDRESS_BITS = 40


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Memory that an access may touch: the elements at addresses `low` ... `high` (bytes, end exclusive).

    `elements` is flat; the element at address a is ``elements[(a - origin) / itemsize + rows]``, where
    `rows` [groups, 1, 1] is None or selects the shared memory of each group's block. `base`: the address of element
    [0, ..., 0]; `dims`, `strides`: in elements. `valid`: None, or which elements belong to the tensor (a strided tensor
    has gaps).
    """

    space: Space
    label: str
    elements: NDArray[Any]
    origin: int
    low: int
    high: int
    base: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    rows: Ints | None = None
    valid: Bools | None = None
    writable: bool = True


def tensor_span(name: str, array: NDArray[Any], number: int) -> Span:
    """A tensor argument: any strides, read and written in place; its addresses are aligned as those of the host."""
    size = array.itemsize
    if any(s % size for s in array.strides):
        raise KernelArgumentError(
            f"{name}: strides of {array.strides} bytes are not multiples of its item size, {size}; pass a copy"
        )
    strides = tuple(s // size for s in array.strides)
    reach = [(n - 1) * s for n, s in zip(array.shape, strides, strict=True)] if array.size else []
    count, below = 1 + sum(map(abs, reach)) if array.size else 0, -sum(r for r in reach if r < 0)
    flipped = array[tuple(slice(None, None, -1 if s < 0 else 1) for s in array.strides)]
    # As plain words: NumPy's array interface does not know all dtypes of ml_dtypes.
    elements = np.lib.stride_tricks.as_strided(flipped.view(f"u{size}"), (count,), (size,)).view(array.dtype)
    valid = None
    if count > array.size:
        valid = np.zeros(count, np.bool_)
        np.lib.stride_tricks.as_strided(valid[below:], array.shape, strides)[...] = True
    start = (number << ADDRESS_BITS) + (1 << (ADDRESS_BITS - 1)) + flipped.__array_interface__["data"][0] % 4096
    base, writable = start + below * size, array.flags.writeable
    end = start + count * size
    return Span("global", name, elements, start, start, end, base, array.shape, strides, None, valid, writable)


class SharedMemory:
    """That of the blocks `first` ... `first + count - 1`: `bytes_` each, which begin `pitch` bytes apart."""

    def __init__(self, first: int, count: int, bytes_: int) -> None:
        self.first, self.count, self.bytes = first, count, bytes_
        self.pitch = -(-max(bytes_, 1) // 16) * 16
        self._bytes = np.zeros((count, self.pitch), np.uint8)
        self._typed: dict[np.dtype[Any], NDArray[Any]] = {}

    def typed(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """All of it as one flat array of `dtype`."""
        if dtype not in self._typed:
            self._typed[dtype] = self._bytes.reshape(-1).view(dtype)
        return self._typed[dtype]

    def pieces(self, width: int) -> NDArray[np.uint8]:
        """All of it as an array of aligned pieces of so many bytes."""
        return self._bytes.reshape(-1, width)

    def piece(self, rows: Ints, at: Ints, width: int) -> Ints:
        """Which of the pieces begins at byte `at` of these blocks, counted from the first."""
        return (rows * self.pitch + at) // width


@dataclass(frozen=True, slots=True)
class SharedTile:
    """A tile in shared memory: `bytes` from `offset` on; `dims` in elements, row-major.

    Tiles in another memory of the block are in a part of this one here.
    """

    label: str
    dtype: DType
    offset: int
    bytes: int
    dims: tuple[int, ...] = ()

    def span(self, memory: SharedMemory, blocks: Ints) -> Span:
        """`blocks`: of the groups of a cohort."""
        size, start = self.dtype.bytes, self.offset
        rows = ((blocks - memory.first) * (memory.pitch // size))[:, None, None]
        dims = self.dims or (self.bytes // size,)
        elements = memory.typed(numpy_dtype(self.dtype))
        return Span("shared", self.label, elements, 0, start, start + self.bytes, start, dims, row_major(dims), rows)
