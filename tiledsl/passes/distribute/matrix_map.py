"""How a lane reaches what it holds of a fragment: by matrices (ldmatrix, stmatrix) or by plain accesses.

Both are read off `layout.fragments`: the matrices of a fragment are where the first lane's words begin, and what a lane
holds side by side is the same for all lanes. Positions are (row, column) in the block tile, without the warp's part.
(PTX ISA: ldmatrix, stmatrix.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tiledsl.ir.ops.tile import VECTOR_BYTES, Side
from tiledsl.ir.types import FragmentType
from tiledsl.layout.fragments import ROWS, WORD_BITS

ROW_BITS = ROWS.bit_length() - 1

Place = tuple[int, int]


def place(type_: FragmentType, register: int, warp: int = 0, lane: int = 0) -> Place:
    """Row and column of what a lane holds. warp: counted from the first that holds a part."""
    layout = type_.held_as
    return layout.place(type_.dims, type_.dtype.bits, register, layout.first + warp, lane)


@dataclass(frozen=True, slots=True)
class Matrices:
    """One ldmatrix or stmatrix. `at`: where the first of its `num` matrices begins; `steps`: how far from there the one
    begins whose number has bit 0, bit 1 set."""

    num: int
    at: Place
    steps: tuple[Place, ...]

    def row_of(self, lane: Any, side: Side, origin: tuple[Any, Any]) -> list[Any]:
        """Row and column of where the row begins that a lane addresses, in the part of a warp that begins at `origin`.

        Rows follow each other along the axis that is not contiguous.
        """
        found: list[Any] = []
        for axis in (0, 1):
            weights = [0 if axis == side.unit else 1 << bit for bit in range(ROW_BITS)]
            terms = _by_lane_bits([*weights, *(step[axis] for step in self.steps)])
            parts = (lane // (1 << low) % (1 << count) * weight for low, count, weight in terms)
            found.append(sum(parts, origin[axis] + self.at[axis]))
        return found


def _by_lane_bits(weights: list[int]) -> list[tuple[int, int, int]]:
    """The sum of the lane's bits times these weights in as few terms as there are, each (low, count, weight), which
    stands for ``lane // 2**low % 2**count * weight``."""
    found: list[tuple[int, int, int]] = []
    for bit, weight in enumerate(weights):
        low, count, first = found[-1] if found else (0, 0, 0)
        if weight and bit == low + count and weight == first << count:
            found[-1] = low, count + 1, first
        elif weight:
            found.append((bit, 1, weight))
    return found


def matrices(type_: FragmentType) -> list[Matrices]:
    """The instructions that move a fragment, four matrices each where possible; their words are a lane's, in order.

    All have the same steps as far as they go, so that their addresses differ by constants.
    """
    begins = [place(type_, register) for register in range(0, type_.size, WORD_BITS // type_.dtype.bits)]
    found: list[Matrices] = []
    common: tuple[Place, ...] = ()
    while begins:
        num = next(n for n in (4, 2, 1) if _fits(begins[:n], n, common))
        steps = _steps(begins[:num])
        common = max(common, steps, key=len)
        found.append(Matrices(num, begins[0], steps))
        begins = begins[num:]
    return [replace(m, steps=common) for m in found]


def _fits(begins: list[Place], num: int, common: tuple[Place, ...]) -> bool:
    """Are these `num` matrices, the last one where the steps of the others say, and the steps those of the others?"""
    if len(begins) < num:
        return False
    steps = _steps(begins)
    regular = num < 4 or _minus(begins[3], begins[2]) == steps[0]
    return regular and all(a == b for a, b in zip(steps, common, strict=False))


def _steps(begins: list[Place]) -> tuple[Place, ...]:
    return tuple(_minus(begins[1 << bit], begins[0]) for bit in range(len(begins).bit_length() - 1))


def _minus(a: Place, b: Place) -> Place:
    return a[0] - b[0], a[1] - b[1]


@dataclass(frozen=True, slots=True)
class Run:
    """Elements of a lane that lie side by side: `registers` in order, the first of lane 0 at `at`."""

    at: Place
    registers: tuple[int, ...]


def runs(type_: FragmentType, unit: int | None, count: int) -> list[Run] | None:
    """A fragment as runs of `count` elements along the axis `unit`; None if a lane does not hold them so."""
    places = [place(type_, r) for r in range(type_.size)]
    if count == 1:
        return [Run(at, (r,)) for r, at in enumerate(places)]
    if unit is None:
        return None
    register = {at: r for r, at in enumerate(places)}
    found: list[Run] = []
    for row, column in (at for at in places if at[unit] % count == 0):
        run = [(row + i, column) if unit == 0 else (row, column + i) for i in range(count)]
        if all(at in register for at in run):
            found.append(Run((row, column), tuple(register[at] for at in run)))
    return found if len(found) * count == len(places) else None


def widths(type_: FragmentType, unit: int | None) -> list[int]:
    """Bytes that one access of a lane may have along `unit`, the narrowest first."""
    size = type_.dtype.bytes
    return [size, *(v for v in VECTOR_BYTES if v > size and runs(type_, unit, v // size) is not None)]
