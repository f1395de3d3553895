"""One function of a cubin as a program: decoded instructions, where control goes after each, and its loops."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from tiledsl.backends.ptx.sass.control import Control, check_target, decode_control
from tiledsl.backends.ptx.sass.disassemble import Instruction, Listing
from tiledsl.backends.ptx.sass.operands import Operands, decode_operands
from tiledsl.errors import Loc

__all__ = ["Loop", "Sass", "SassProgram", "decode_listing"]

LABEL = re.compile(r"`\(([^)]+)\)")
TARGETS = re.compile(r"\.L\w+")
BARRIER = re.compile(r"\bB\d+\b")
JUMPS = frozenset({"BRA", "BRX", "JMP", "JMX", "BRXU"})
ENDS = frozenset({"EXIT", "RET", "KILL"})


@dataclass(frozen=True, slots=True)
class Sass:
    """One instruction with all that is known about it."""

    raw: Instruction
    control: Control
    operands: Operands

    @property
    def address(self) -> int:
        return self.raw.address

    @property
    def text(self) -> str:
        return self.raw.text

    @property
    def loc(self) -> Loc | None:
        return self.raw.loc

    @property
    def ptx_line(self) -> int:
        return self.raw.ptx_line

    @property
    def opcode(self) -> str:
        return self.operands.opcode

    @property
    def base(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]


@dataclass(frozen=True)
class Loop:
    """A natural loop. header: the first instruction, by index. body: all its instructions by index, inner
    loops included. depth: 1 for an outermost loop. parent: the loop around it."""

    header: int
    body: tuple[int, ...]
    depth: int
    parent: Loop | None

    def __repr__(self) -> str:
        return f"Loop(header={self.header}, {len(self.body)} instructions, depth {self.depth})"


@dataclass(frozen=True)
class SassProgram:
    """`instructions` in the order of addresses; every place in the program is an index into them."""

    name: str
    target: str
    instructions: tuple[Sass, ...]
    labels: dict[str, int]

    @cached_property
    def _index(self) -> dict[int, int]:
        return {s.address: i for i, s in enumerate(self.instructions)}

    def _at(self, label: str) -> int | None:
        """The index of a label; None for one that is outside of this function."""
        address = self.labels.get(label)
        return None if address is None else self._index.get(address)

    def label_places(self) -> dict[str, int]:
        """Labels by name, as indices."""
        return {name: self._index[address] for name, address in self.labels.items() if address in self._index}

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Where control may go after each instruction. A call goes on behind itself: see `call_edges`."""
        return tuple(tuple(sorted(set(self._after(i)))) for i in range(len(self.instructions)))

    def _after(self, i: int) -> Iterable[int]:
        sass = self.instructions[i]
        following = (i + 1,) if i + 1 < len(self.instructions) else ()
        if sass.base in JUMPS:
            targets = [t for t in (self._at(name) for name in self._target_names(sass)) if t is not None]
            return (*targets, *(following if self._falls_through(sass) else ()))
        if sass.base == "BSYNC":
            target = self._reconvergence(i)
            return following if target is None else (target, *(following if sass.operands.conditional else ()))
        if sass.base in ENDS and not sass.operands.conditional:
            return ()
        return following

    def _target_names(self, sass: Sass) -> list[str]:
        found = LABEL.findall(sass.text)
        return found or TARGETS.findall(sass.text)  # BRX lists its targets in a comment

    def _falls_through(self, sass: Sass) -> bool:
        """A jump under a guard, or with a predicate among its operands, or one that only divergent warps take."""
        return sass.operands.conditional or (bool(sass.operands.reads) and sass.base == "BRA")

    def _reconvergence(self, i: int) -> int | None:
        """Where the BSYNC at `i` goes on: at the label of the BSSY before it that set its barrier."""
        name = _barrier(self.instructions[i])
        for sass in reversed(self.instructions[:i]):
            if sass.base == "BSSY" and _barrier(sass) == name:
                return next((t for t in map(self._at, LABEL.findall(sass.text)) if t is not None), None)
        return None

    @cached_property
    def call_edges(self) -> tuple[tuple[int, ...], ...]:
        """As `successors`, but a call goes to what it calls, and a return to behind every call of its function."""
        edges = list(self.successors)
        returns: dict[int, list[int]] = {}
        for i, sass in enumerate(self.instructions):
            target = next((t for t in map(self._at, LABEL.findall(sass.text)) if t is not None), None)
            if sass.base == "CALL" and target is not None:
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
        ordered = sorted(bodies.items(), key=lambda item: (-len(item[1]), item[0]))
        loops: list[Loop] = []
        for header, body in ordered:
            around = [loop for loop in loops if header in loop.body and body < set(loop.body)]
            parent = around[-1] if around else None
            loops.append(Loop(header, tuple(sorted(body)), 1 if parent is None else parent.depth + 1, parent))
        return tuple(sorted(loops, key=lambda loop: (loop.depth, loop.header)))

    def innermost(self) -> tuple[Loop, ...]:
        """The loops with no loop inside."""
        outer = {loop.parent.header for loop in self.loops if loop.parent is not None}
        return tuple(loop for loop in self.loops if loop.header not in outer)

    def inside(self, loop: Loop) -> tuple[Loop, ...]:
        """The loops inside of `loop`, at any depth."""
        body = set(loop.body)
        return tuple(other for other in self.loops if other.depth > loop.depth and other.header in body)

    def own(self, loop: Loop) -> tuple[int, ...]:
        """The places of `loop` that no loop inside has."""
        inner = {i for other in self.inside(loop) for i in other.body}
        return tuple(i for i in loop.body if i not in inner)


def decode_listing(listing: Listing) -> SassProgram:
    """Decode every instruction. Raises TileError for a target whose encoding is not known."""
    capability = check_target(listing.target)
    instructions = tuple(
        Sass(raw, decode_control(raw.encoding), decode_operands(raw.text, raw.encoding, capability=capability))
        for raw in listing.instructions
    )
    return SassProgram(listing.function, listing.target, instructions, listing.labels)


def _barrier(sass: Sass) -> str:
    found = BARRIER.search(sass.text)
    return found[0] if found else ""


def _natural_loops(successors: tuple[tuple[int, ...], ...]) -> dict[int, set[int]]:
    """Bodies by header: of every edge to a place that dominates where it comes from. (Dragon book, 9.6)"""
    predecessors: list[list[int]] = [[] for _ in successors]
    for i, targets in enumerate(successors):
        for t in targets:
            predecessors[t].append(i)
    depth_first = _depth_first(successors)
    rank = {place: n for n, place in enumerate(depth_first)}
    parent = _dominators(depth_first, predecessors, rank)
    bodies: dict[int, set[int]] = {}
    for i in depth_first:
        for header in successors[i]:
            if rank[header] <= rank[i] and _dominates(parent, header, i):
                bodies.setdefault(header, {header}).update(_reaching(i, header, predecessors))
    return bodies


def _depth_first(successors: tuple[tuple[int, ...], ...]) -> list[int]:
    """Reachable places in reverse postorder."""
    order: list[int] = []
    seen = {0}
    stack = [(0, iter(successors[0]))] if successors else []
    while stack:
        place, targets = stack[-1]
        for t in targets:
            if t not in seen:
                seen.add(t)
                stack.append((t, iter(successors[t])))
                break
        else:
            order.append(place)
            stack.pop()
    return order[::-1]


def _dominators(order: list[int], predecessors: list[list[int]], rank: dict[int, int]) -> dict[int, int]:
    """The immediate dominator of each reachable place (Cooper, Harvey, Kennedy: A Simple, Fast Dominance Algorithm)."""
    parent = {order[0]: order[0]} if order else {}
    changed = True
    while changed:
        changed = False
        for place in order[1:]:
            known = [p for p in predecessors[place] if p in parent]
            new = known[0]
            for p in known[1:]:
                new = _meet(new, p, parent, rank)
            if parent.get(place) != new:
                parent[place] = new
                changed = True
    return parent


def _meet(a: int, b: int, parent: dict[int, int], rank: dict[int, int]) -> int:
    while a != b:
        while rank[a] > rank[b]:
            a = parent[a]
        while rank[b] > rank[a]:
            b = parent[b]
    return a


def _dominates(parent: dict[int, int], header: int, place: int) -> bool:
    while place != header and parent[place] != place:
        place = parent[place]
    return place == header


def _reaching(place: int, header: int, predecessors: list[list[int]]) -> set[int]:
    """Places from which `place` is reached without passing `header`."""
    body, stack = {header}, [place]
    while stack:
        at = stack.pop()
        if at not in body:
            body.add(at)
            stack += predecessors[at]
    return body
