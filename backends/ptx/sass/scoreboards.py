"""Who waits for whom: the instructions that set the scoreboards which another one waits for. A forward data flow.

An instruction waits by the mask of its control code, or is a DEPBAR, which names its scoreboard and how many of those
that set it may still be under way. Calls go through the subroutines that ptxas adds.
"""

from __future__ import annotations

import re

from tiledsl.backends.ptx.sass.program import Sass, SassProgram

DEPBAR = re.compile(r"\bSB(\d), 0x([0-9a-f]+)")
COUNT = 6
"""Scoreboards of a warp."""


def awaited(program: SassProgram) -> list[tuple[int, ...]]:
    """For each instruction the places of those that it waits for, on any path to it, in order."""
    sasses = program.instructions
    before: list[list[frozenset[int]]] = [[frozenset()] * COUNT for _ in sasses]
    waits = [_waits(sass) for sass in sasses]
    changed = True
    while changed:  # only loops take more than two passes
        changed = False
        for i, sass in enumerate(sasses):
            after = [*before[i]]
            for board, complete in waits[i].items():
                if complete:
                    after[board] = frozenset()
            for board in (sass.control.write_barrier, sass.control.read_barrier):
                if board is not None:
                    after[board] |= {i}
            for t in program.call_edges[i]:
                for board, setters in enumerate(after):
                    if not setters <= before[t][board]:
                        before[t][board] |= setters
                        changed = True
    found = (frozenset[int]().union(*(now[b] for b in boards)) for now, boards in zip(before, waits, strict=True))
    return [tuple(sorted(setters)) for setters in found]


def _waits(sass: Sass) -> dict[int, bool]:
    """The scoreboards that it waits for, and whether for all that set them."""
    found = DEPBAR.search(sass.text) if sass.base == "DEPBAR" else None
    named = {int(found[1]): int(found[2], 16) == 0} if found else {}
    return named | dict.fromkeys(sass.control.waits, True)
