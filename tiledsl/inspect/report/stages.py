"""The stages of a kernel for a report: IR after each pass, PTX, SASS, each line with its place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from typing import TypeVar

from tiledsl.backends.ptx.sass.report import SassReport
from tiledsl.inspect.report.data import IR, Body, Ptx, Sass, Stage
from tiledsl.inspect.report.places import Places
from tiledsl.inspect.source_lines import read_ir, read_ptx

T = TypeVar("T")

NUMBER = re.compile(r"%(?:\d+|(\w+?)_\d+)\b")
"""What the printer numbers: a value without a name, or one that shares its name."""


def ir_stages(printed: Mapping[str, str], places: Places) -> IR:
    """printed: the IR with locations by the name of its stage, in order."""
    texts: dict[str, int] = {}
    known: dict[str, int] = {}
    bodies: dict[str, int] = {}
    made: list[Body] = []
    meanings: list[list[int]] = []
    stages: list[Stage] = []
    for name, text in printed.items():
        if text not in bodies:
            bodies[text] = len(made)
            lines = [line for line in read_ir(text) if line.text]
            numbers = [texts.setdefault(line.text, len(texts)) for line in lines]
            made.append(Body(numbers, [places.of(line.loc) for line in lines]))
            # Equal for lines that differ in the numbers of values alone.
            meanings.append([known.setdefault(NUMBER.sub(r"%\1", line.text), len(known)) for line in lines])
        body, before = bodies[text], stages[-1].body if stages else bodies[text]
        added, removed = changes(meanings[before], meanings[body])
        stages.append(Stage(name, body, added, removed))
    return IR([*texts], made, stages)


def changes(before: Sequence[T], after: Sequence[T]) -> tuple[list[int], int]:
    """The places in `after` of what `before` lacks, and how much of `before` is gone."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
    old, new = before[same:], after[same:]
    added: list[int] = []
    removed = 0
    for what, a, b, c, d in SequenceMatcher(None, old, new).get_opcodes():
        if what != "equal":
            added += range(same + c, same + d)
            removed += b - a
    return added, removed


def ptx_stage(text: str, places: Places) -> Ptx:
    lines = list(read_ptx(text))
    return Ptx(text, [line.number for line in lines], [places.of(line.loc) for line in lines])


def sass_stage(report: SassReport, ptx: Ptx, places: Places) -> Sass:
    """The listing of ``explain("sass")``."""
    program = report.program
    sasses = program.instructions[: report.end]
    rows = {number: row for row, number in enumerate(ptx.lines)}
    hottest = report.hottest
    return Sass(
        addresses=[s.address for s in sasses],
        controls=[str(s.control) for s in sasses],
        live=report.live[: report.end],
        texts=[s.text for s in sasses],
        places=[places.of(s.loc) for s in sasses],
        ptx=[rows.get(s.ptx_line, -1) for s in sasses],
        awaited=[(place, setters) for place, setters in enumerate(report.awaited[: report.end]) if setters],
        labels=[(name, place) for name, place in program.labels.items() if place < report.end],
        loops=[(loop.body[0], loop.body[-1]) for loop in program.loops],
        hottest=program.loops.index(hottest) if hottest is not None else -1,
        spills=[(places.of(loc), stores, loads) for loc, (stores, loads) in report.spills.items()],
        unknown=list(report.unknown),
    )
