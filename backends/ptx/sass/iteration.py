"""One iteration of a loop: of a block whose tile lies inside, when the loop also has code for the edge of a matrix.

Such a loop loads with wide accesses on one branch and element by element on another, and an iteration takes one of
them. The path chosen here has most multiply-adds; among those, most bytes loaded, so that no load is skipped; among
those, the fewest instructions, which is that of the wide accesses.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from tiledsl.backends.ptx.sass.classes import products_of
from tiledsl.backends.ptx.sass.program import Loop, Sass, SassProgram

LOADS = frozenset({"LDG", "LDGSTS", "LDS", "LDSM", "LD", "LDL"})
BYTES = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
LANE_BYTES = 4
"""A lane's part of a matrix of 8 rows of 16 bytes."""


def access_bytes(sass: Sass) -> int:
    """Bytes of one lane that a load or store moves."""
    mods = sass.opcode.split(".")[1:]
    if sass.base in ("LDSM", "STSM"):
        return LANE_BYTES * (int(mods[-1]) if mods[-1].isdigit() else 1)
    return next((BYTES[mod] for mod in mods if mod in BYTES), 4)


def full_iteration(program: SassProgram, loop: Loop) -> tuple[int, ...]:
    """Places of a full tile, in order, with one iteration of a loop inside; the whole body if it is no loop nest."""
    body = set(loop.body)
    again = {(i, inner.header) for inner in (loop, *program.inside(loop)) for i in inner.body}
    edges = [(i, t) for i in loop.body for t in program.successors[i] if t in body and (i, t) not in again]
    sorter = TopologicalSorter[int]({loop.header: ()})
    for i, t in edges:
        sorter.add(t, i)
    try:
        order = {place: number for number, place in enumerate(sorter.static_order())}
    except CycleError:
        return loop.body
    best: dict[int, tuple[tuple[int, ...], int | None]] = {loop.header: (_weight(program, loop.header), None)}
    for i, t in sorted(edges, key=lambda edge: order[edge[0]]):
        found = tuple(a + b for a, b in zip(best[i][0], _weight(program, t), strict=True))
        if t not in best or found > best[t][0]:
            best[t] = found, i
    latches = [i for i in order if loop.header in program.successors[i]]
    last: int | None = max(latches, key=lambda i: best[i][0])
    places: list[int] = []
    while last is not None:
        places.append(last)
        last = best[last][1]
    return tuple(places[::-1])


def _weight(program: SassProgram, place: int) -> tuple[int, int, int]:
    """Multiply-adds, bytes loaded, instructions."""
    sass = program.instructions[place]
    loaded = access_bytes(sass) if sass.base in LOADS and not sass.operands.never else 0
    return products_of(sass), loaded, -1
