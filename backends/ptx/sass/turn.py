"""One turn of a loop: of a block whose tile lies inside, when the loop also has code for the edge of a matrix.

Such a loop loads with wide accesses on one branch and element by element on another, and a turn takes one of them. The
way chosen here has most multiply-adds; among those, most bytes loaded, so that no load is skipped; among
those, the fewest instructions, which is that of the wide accesses.

A branch may be short enough for ptxas to put a guard on its instructions: ``@P0 LDGSTS`` and then ``@P0 BRA`` past the
other branch. Such loads run only on the way that takes the jump.
"""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from tiledsl.backends.ptx.sass.classes import products_of
from tiledsl.backends.ptx.sass.operands import guard_of
from tiledsl.backends.ptx.sass.program import Loop, Sass, SassProgram

__all__ = ["Turn", "access_bytes", "full_turn"]

LOADS = frozenset({"LDG", "LDGSTS", "LDS", "LDSM", "LD", "LDL"})
BYTES = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
LANE_BYTES = 4
"""A lane's part of a matrix of 8 rows of 16 bytes."""

Weight = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Turn:
    """`places` of one turn, in order. idle: those of them that are issued, but that their guard keeps from running."""

    places: tuple[int, ...]
    idle: frozenset[int] = frozenset()


def access_bytes(sass: Sass) -> int:
    """Bytes of one lane that a load or store moves."""
    mods = sass.opcode.split(".")[1:]
    if sass.base in ("LDSM", "STSM"):
        return LANE_BYTES * (int(mods[-1]) if mods[-1].isdigit() else 1)
    return next((BYTES[mod] for mod in mods if mod in BYTES), 4)


def full_turn(program: SassProgram, loop: Loop) -> Turn:
    """The way of a full tile, on which a loop inside takes one turn; the whole body where that is no loop nest."""
    body = set(loop.body)
    again = {(i, inner.header) for inner in (loop, *program.inside(loop)) for i in inner.body}
    onward = {i: [t for t in program.successors[i] if t in body and (i, t) not in again] for i in loop.body}
    sorter = TopologicalSorter[int]()
    for i, targets in onward.items():
        for t in targets:
            sorter.add(t, i)
    try:
        order = [*sorter.static_order()]
    except CycleError:
        return Turn(loop.body)
    settled = {i: found for i in loop.body if (found := _settled(program, i, onward)) is not None}
    weights = {i: _weight(program.instructions[i], decided=i in settled) for i in loop.body}
    best: dict[int, tuple[Weight, int | None]] = {loop.header: (weights[loop.header], None)}
    for i in order:
        for t in onward[i]:
            loaded = sum(_loaded(program.instructions[load]) for load in _running(settled, i, t))
            (products, bytes_, instructions), more = best[i][0], weights[t]
            found = products + more[0], bytes_ + more[1] + loaded, instructions + more[2]
            if t not in best or found > best[t][0]:
                best[t] = found, i
    latches = [i for i in order if loop.header in program.successors[i]]
    last: int | None = max(latches, key=lambda i: best[i][0])
    places: list[int] = []
    while last is not None:
        places.append(last)
        last = best[last][1]
    return _turn(places[::-1], settled)


def _turn(places: list[int], settled: dict[int, tuple[int, bool]]) -> Turn:
    following = dict(pairwise(places))
    ran = {i for jump, t in following.items() for i in _running(settled, jump, t)}
    decided = {i for i, (jump, _) in settled.items() if i in following and jump in following}
    return Turn(tuple(places), frozenset(decided - ran))


def _settled(program: SassProgram, load: int, onward: dict[int, list[int]]) -> tuple[int, bool] | None:
    """For a load under a guard: the jump behind it under the same predicate, and whether the load runs if the jump is
    taken. None if there is no such jump before the next fork, or the predicate changes."""
    sass = program.instructions[load]
    guard = guard_of(sass.text)
    if guard is None or sass.base not in LOADS:
        return None
    i = load
    while len(onward[i]) == 1 and onward[i][0] == i + 1:
        i += 1
        later = program.instructions[i]
        if guard[0] in later.operands.writes:
            return None
        if len(onward[i]) == 2:
            jump = guard_of(later.text)
            return None if jump is None or jump[0] != guard[0] else (i, jump[1] == guard[1])
    return None


def _running(settled: dict[int, tuple[int, bool]], jump: int, target: int) -> list[int]:
    """Loads decided by the jump at `jump` that run on the way to `target`."""
    taken = target != jump + 1
    return [i for i, (place, if_taken) in settled.items() if place == jump and if_taken == taken]


def _loaded(sass: Sass) -> int:
    return access_bytes(sass) if sass.base in LOADS and not sass.operands.never else 0


def _weight(sass: Sass, *, decided: bool) -> Weight:
    """Multiply-adds, bytes loaded (those that a later jump decides apart), instructions."""
    return products_of(sass), 0 if decided else _loaded(sass), -1
