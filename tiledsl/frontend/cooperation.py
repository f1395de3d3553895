"""Roles, rings and places in clusters as kernels name them, and what a compilation knows of where statements stand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tiledsl import lang
from tiledsl.frontend.bindings import LanguageObject, Ranges, View
from tiledsl.ir.core import Block, Value
from tiledsl.ir.ops import rings, roles


@dataclass(frozen=True, eq=False)
class RoleObject(LanguageObject):
    """What ``with role(...) as r`` binds. index: of the instance."""

    op: roles.Region
    index: Value | int

    described_by = lang.Role
    use = "it has .index and .turn(name)"

    @property
    def shown(self) -> str:  # type: ignore[override]
        return self.op.shown

    @property
    def data(self) -> dict[str, Any]:
        return {"index": self.index}


@dataclass(frozen=True, eq=False)
class RingObject(LanguageObject):
    """A ring. cursor: the name of a role's cursor of it in the environment, so that loops, branches and functions carry
    it."""

    value: Value
    cursor: str

    described_by = lang.Ring
    shown = "a ring"
    use = "it has .fill(), .use(), .take(), .slot(i), .free(i); its tiles are the slot's: `with ring.fill() as s:` s.a"


@dataclass(frozen=True, eq=False)
class SlotObject(LanguageObject):
    """A slot of a ring, by its number."""

    ring: RingObject
    slot: Value

    described_by = lang.Slot
    shown = "the slot of a ring"

    @property
    def data(self) -> dict[str, Any]:
        """Its part of each of the tiles, which have all stages."""
        make: Any = self.ring.value.op
        found: dict[str, View] = {}
        for tile in make.tiles:
            rest = tile.type.dims[1:]
            found[tile.name] = View(tile, (self.slot, *[0] * len(rest)), tuple(range(1, tile.type.rank)), rest)
        return found


@dataclass(frozen=True, eq=False)
class Place(LanguageObject):
    """Blocks of a cluster along m and n, and this block's place there; its number is ``m + n * blocks along m``."""

    m: int = 1
    n: int = 1
    at_m: Value | int = 0
    at_n: Value | int = 0

    described_by = lang.Place
    shown = "a place in a cluster"
    use = "it has .m and .n, the blocks along each axis, and .at_m and .at_n"

    @property
    def blocks(self) -> int:
        return self.m * self.n

    @property
    def data(self) -> dict[str, Any]:
        return vars(self)


@dataclass
class Cooperation:
    """rings: those made so far, and templates, the tiles that were given to them. cluster: as `persistent` declared it.
    stores: the roles that store by TMA, None for the block.

    Of the statements that are built now: their role; slots: what began the fills and uses around them, the innermost
    last; work: the body of the loop over work items around them, and k, what its item has along k; k_loop: the body of
    the loop over that, directly in the one over work items.
    """

    rings: list[RingObject] = field(default_factory=list[RingObject])
    templates: list[Value] = field(default_factory=list[Value])
    cluster: Place | None = None
    stores: set[roles.Region | None] = field(default_factory=set[roles.Region | None])
    role: roles.Region | None = None
    slots: tuple[rings.RingOp, ...] = ()
    work: Block | None = None
    k: Ranges | None = None
    k_loop: Block | None = None

    @property
    def carried(self) -> list[str]:
        """Names of the cursors in the environment, which loops carry where statements go now."""
        return [] if self.role is None else [ring.cursor for ring in self.rings]
