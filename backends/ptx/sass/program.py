"""One function of a cubin as a program: decoded instructions, where control goes after each, and its loops."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tiledsl.backends.ptx.sass.control import Control, decode_control
from tiledsl.backends.ptx.sass.operands import Operands, decode_operands
from tiledsl.errors import Loc

LABEL = re.compile(r"`\(([^)]+)\)")
TARGETS = re.compile(r"\.L\w+")
BARRIER = re.compile(r"\bB\d+\b")
JUMPS = frozenset({"BRA", "BRX", "JMP", "JMX", "BRXU"})
ENDS = frozenset({"EXIT", "RET", "KILL"})


@dataclass(frozen=True)
class Sass:
    """One machine instruction.

    address: bytes from the start of its function. text: as nvdisasm writes it, with predicate and operands. encoding:
    its 128 bits. loc: the Python line, with the chain of callers of an inlined function, or None. ptx_line: line of the
    PTX text, or 0.
    """

    address: int
    text: str
    encoding: int = 0
    loc: Loc | None = None
    ptx_line: int = 0

    @cached_property
    def control(self) -> Control:
        return decode_control(self.encoding)

    @cached_property
    def operands(self) -> Operands:
        return decode_operands(self.text)

    @property
    def opcode(self) -> str:
        """With its modifiers, without the predicate: "LDG.E.CONSTANT"."""
        return self.operands.opcode

    @property
    def base(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]


@dataclass(frozen=True)
class Loop:
    """A natural loop. header: the first instruction, by index. body: all its instructions by index, inner
    loops included. depth: 1 for an outermost loop."""

    header: int
    body: tuple[int, ...]
    depth: int


@dataclass(frozen=True)
class SassProgram:
    """One function: `instructions` in the order of addresses. Every place in it, labels too, is an index into them."""

    name: str
    target: str
    instructions: tuple[Sass, ...]
    labels: dict[str, int]

    def _target(self, sass: Sass) -> int | None:
        """The place of the first label in the text of `sass`; None for one outside of this function."""
        return next((self.labels[name] for name in LABEL.findall(sass.text) if name in self.labels), None)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Where control may go after each instruction. A call goes on behind itself: see `call_edges`."""
        return tuple(tuple(sorted(set(self._after(i)))) for i in range(len(self.instructions)))

    def _after(self, i: int) -> Iterable[int]:
        sass = self.instructions[i]
        following = (i + 1,) if i + 1 < len(self.instructions) else ()
        if sass.base in JUMPS:
            names = LABEL.findall(sass.text) or TARGETS.findall(sass.text)  # BRX lists its targets in a comment
            targets = [self.labels[name] for name in names if name in self.labels]
            # Under a guard, or with a condition before its target.
            passes = sass.operands.conditional or (len(sass.operands.sources) > 1 and sass.base == "BRA")
            return (*targets, *(following if passes else ()))
        if sass.base == "BSYNC":
            target = self._reconvergence(i)
            return following if target is None else (target, *(following if sass.operands.conditional else ()))
        if sass.base in ENDS and not sass.operands.conditional:
            return ()
        return following

    def _reconvergence(self, i: int) -> int | None:
        """Where the BSYNC at `i` goes on: at the label of the BSSY before it that set its barrier."""
        name = BARRIER.findall(self.instructions[i].text)
        before = (s for s in reversed(self.instructions[:i]) if s.base == "BSSY" and BARRIER.findall(s.text) == name)
        setter = next(before, None)
        return None if setter is None else self._target(setter)

    @cached_property
    def call_edges(self) -> tuple[tuple[int, ...], ...]:
        """As `successors`, but a call goes to what it calls, and a return to behind every call of its function."""
        edges = list(self.successors)
        returns: dict[int, list[int]] = {}
        for i, sass in enumerate(self.instructions):
            target = self._target(sass) if sass.base == "CALL" else None
            if target is not None:
                edges[i] = (target, i + 1) if sass.operands.conditional else (target,)
                returns.setdefault(target, []).append(i + 1)
        starts = sorted(returns)
        for i, sass in enumerate(self.instructions):
            mine = [s for s in starts if s <= i]
            if sass.base == "RET" and mine:
                edges[i] = (*edges[i], *returns[mine[-1]])
        return tuple(edges)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Every natural loop, outer ones before those inside them, then by address."""
        bodies = _natural_loops(self.successors)
        depths = {header: 1 + sum(body < other for other in bodies.values()) for header, body in bodies.items()}
        loops = [Loop(header, tuple(sorted(body)), depths[header]) for header, body in bodies.items()]
        return tuple(sorted(loops, key=lambda loop: (loop.depth, loop.header)))

    def inside(self, loop: Loop) -> tuple[Loop, ...]:
        """The loops inside of `loop`, at any depth."""
        body = set(loop.body)
        return tuple(other for other in self.loops if other.depth > loop.depth and other.header in body)

    def own(self, loop: Loop) -> tuple[int, ...]:
        """The places of `loop` that no loop inside has."""
        inner = {i for other in self.inside(loop) for i in other.body}
        return tuple(i for i in loop.body if i not in inner)


def _natural_loops(successors: tuple[tuple[int, ...], ...]) -> dict[int, set[int]]:
    """Bodies by header: of every edge to a place that dominates where it comes from. (Dragon book, 9.6)"""
    predecessors: list[list[int]] = [[] for _ in successors]
    for i, targets in enumerate(successors):
        for t in targets:
            predecessors[t].append(i)
    reached = _reachable([0], successors)
    bodies: dict[int, set[int]] = {}
    for header in (i for i in reached if len(predecessors[i]) > 1 or not i or i in successors[i]):
        back = reached & {*predecessors[header]} - _reachable([0], successors, past=header)
        if back:
            bodies[header] = {header} | _reachable(back, predecessors, past=header)
    return bodies


def _reachable(starts: Iterable[int], edges: Sequence[Sequence[int]], past: int = -1) -> set[int]:
    """Places that are reached from `starts` without going through `past`, which is not among them."""
    found: set[int] = set()
    stack = [*starts]
    while stack:
        place = stack.pop()
        if place not in found and place != past:
            found.add(place)
            stack += edges[place]
    return found
