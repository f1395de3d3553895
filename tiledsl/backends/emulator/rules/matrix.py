"""Matrix operands in the registers of warps: products, fragments with a layout, ldmatrix and stmatrix.

At tile level such a fragment is the tuple of elements that a thread holds, at thread level they are its registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.hooks import AccessKind, Ints
from tiledsl.backends.emulator.memory import access_index, assign
from tiledsl.backends.emulator.rules.arith import from_word, to_word
from tiledsl.backends.emulator.rules.gpu import LANES, require_whole_warps
from tiledsl.backends.emulator.rules.matrices import Multiply, coordinates, product
from tiledsl.backends.emulator.rules.memory import located
from tiledsl.backends.emulator.rules.places import (
    Memory,
    Place,
    masked,
    read_place,
    shifted,
    write_place,
)
from tiledsl.backends.emulator.rules.registry import rule
from tiledsl.errors import EmulatorError
from tiledsl.ir.core import Op
from tiledsl.ir.ops import matrix, mem, ptx
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.tensor_core import mma_planes
from tiledsl.ir.types import FragmentType, PtrType, TileType

Fragment = tuple[Any, ...]


# -- products --------------------------------------------------------------------------------------


@rule(matrix.Mma)
def multiply(c: Cohort, op: matrix.Mma, a: Fragment, b: Fragment, acc: Fragment) -> Fragment:
    require_full_warps(c, op)
    (rows, depth), (_, columns) = (v.fragment.held_as.tiles(v.fragment.dims) for v in (op.a, op.acc))
    return product(op.row, a, b, acc, (rows, columns, depth))


@rule(ptx.MmaSync)
def multiply_registers(c: Cohort, op: ptx.MmaSync, *registers: Any, multiply: Multiply = mma_planes) -> Fragment:
    require_full_warps(c, op)
    a, b, _ = (len(values) for values in op.split())
    return product(op.row, registers[:a], registers[a : a + b], registers[a + b :], multiply=multiply)


def require_full_warps(c: Cohort, op: Op) -> None:
    """Raises EmulatorError if a warp comes with some of its lanes only, or has fewer than 32."""
    require_whole_warps(c, op)
    if c.exists is not None and (c.active().any(axis=2) & ~c.spread(c.exists).all(axis=2)).any():
        raise EmulatorError(
            f"{op.name} takes part with all 32 lanes of a warp, but the last warp of a block has fewer",
            op.loc,
            "let threads(...) be a multiple of 32",
            code="T415",
        )


# -- fragments -------------------------------------------------------------------------------------


def _coordinates(c: Cohort, type_: FragmentType) -> tuple[Ints, Ints]:
    """Row and column of each element that the lanes hold: [elements, groups or 1, warps, 32]."""
    rows, columns = coordinates(type_.held_as, type_.dims, type_.dtype.bits)
    warps = c.warps % rows.shape[1]
    return rows[:, warps], columns[:, warps]


@rule(matrix.Coordinates)
def position(c: Cohort, op: matrix.Coordinates) -> Fragment:
    return tuple(_coordinates(c, op.type)[op.axis])


@rule(matrix.Convert)
def convert(c: Cohort, op: matrix.Convert, fragment: Fragment) -> Fragment:
    assert op.sources is not None, "the verifier has seen that threads hold what they need"
    return tuple(fragment[source] for source in op.sources)


@rule(matrix.Slice)
def take_columns(c: Cohort, op: matrix.Slice, fragment: Fragment) -> Fragment:
    return tuple(fragment[element] for element in op.kept)


@rule(matrix.FromWords)
def from_words(c: Cohort, op: matrix.FromWords, *words: Any) -> Fragment:
    return tuple(element for word in words for element in from_word(word, numpy_dtype(op.type.dtype)))


@rule(matrix.ToWords)
def to_words(c: Cohort, op: matrix.ToWords, fragment: Fragment) -> Any:
    count = len(fragment) // len(op.results)
    if len(op.results) == 1:
        return to_word(fragment)
    return tuple(to_word(fragment[first : first + count]) for first in range(0, len(fragment), count))


@rule(matrix.Load)
def load_fragment(c: Cohort, op: matrix.Load, memory: Memory, *origin: Any) -> Fragment:
    """Element by element: how wide the accesses are is `distribute`'s choice."""
    return tuple(element for place in _places(c, op, op.type, memory, origin) for element in read_place(place))


@rule(matrix.Store)
def store_fragment(c: Cohort, op: matrix.Store, fragment: Fragment, memory: Memory, *origin: Any) -> None:
    type_ = op.fragment.fragment
    places = _places(c, op, type_, memory, origin)
    with masked(c, np.asarray(type_.held_as.holder(c.warps) == 0)[..., None]) as some:
        for place, value in zip(places, fragment, strict=True):
            if some:
                write_place(place, (value,))


def _places(
    c: Cohort, op: matrix.Load | matrix.Store, type_: FragmentType, memory: Memory, origin: tuple[Any, ...]
) -> list[Place]:
    """Where each element that a lane holds lies in the memory."""
    if op.vec == 0:
        require_full_warps(c, op)
    side, coordinates = op.side, zip(*_coordinates(c, type_), strict=True)
    return [Place(c, op, memory, shifted(origin, side.axes, at), side.type, 1) for at in coordinates]


# -- ldmatrix and stmatrix -------------------------------------------------------------------------


Load = matrix.LdMatrix | mem.LdMatrix
Store = matrix.StMatrix | mem.StMatrix


def _row_bytes(c: Cohort, op: Load | Store, values: Sequence[Any], kind: AccessKind) -> tuple[Ints, Sequence[Any]]:
    """Where the row of each lane begins in the chunk's shared memory, [groups or 1, warps or 1, 32], and the values
    behind the address. Lanes that a mask turns off, whole warps here, may have any."""
    require_full_warps(c, op)
    memory = op.operands[0].type
    assert isinstance(memory, (TileType, PtrType))
    vec, held = matrix.MATRIX_BYTES // memory.dtype.bytes, "columns" if op.trans else "rows"
    with masked(c, LANES[None, None] < matrix.MATRIX_ROWS * op.num):
        span, address, rest = located(c, op, 0, values, vec)
        start = access_index(c, op, span, address, kind, vec, held=held) * memory.dtype.bytes
    return np.broadcast_to(start, np.broadcast_shapes(start.shape, (1, 1, WARP))), rest


@rule(matrix.LdMatrix, mem.LdMatrix)
def load_matrices(c: Cohort, op: Load, *values: Any) -> Any:
    rows, _ = _row_bytes(c, op, values, "read")
    words: list[Any] = []
    for number in range(op.num):
        if op.trans:
            halves = c.chunk.memory.typed(np.dtype(np.uint16))
            words.append(to_word([halves.take(at) for at in _transposed(rows, number)]))
        else:
            words.append(c.chunk.memory.typed(np.dtype(np.uint32)).take(_straight(rows, number)))
    return tuple(words) if op.num > 1 else words[0]


@rule(matrix.StMatrix, mem.StMatrix)
def store_matrices(c: Cohort, op: Store, *values: Any) -> None:
    """Of rows at one address the last stays."""
    rows, words = _row_bytes(c, op, values, "write")
    for number, word in enumerate(words):
        if op.trans:
            halves = c.chunk.memory.typed(np.dtype(np.uint16))
            for at, part in zip(_transposed(rows, number), from_word(word, halves.dtype), strict=True):
                assign(halves, at, part, c.mask)
        else:
            assign(c.chunk.memory.typed(np.dtype(np.uint32)), _straight(rows, number), word, c.mask)


def _straight(rows: Ints, number: int) -> Ints:
    """The 32-bit word of matrix `number` that each lane, 4g + t, has: the t-th of row g."""
    return rows[:, :, 8 * number + LANES // 4] // 4 + LANES % 4


def _transposed(rows: Ints, number: int) -> list[Ints]:
    """The two 16-bit elements that lane 4g + t has of the transposed matrix: column g of rows 2t and 2t + 1."""
    return [rows[:, :, 8 * number + 2 * (LANES % 4) + e] // 2 + LANES // 4 for e in (0, 1)]
