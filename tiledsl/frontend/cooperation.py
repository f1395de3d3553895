"""What a compilation knows of roles, rings and clusters while it builds a kernel: where statements stand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tiledsl import lang
from tiledsl.arch import WARP
from tiledsl.errors import Loc
from tiledsl.frontend.bindings import LanguageObject, View
from tiledsl.ir.core import Block, Value


@dataclass(frozen=True, eq=False)
class RoleObject(LanguageObject):
    """A role. first: its first warp; warps: of one instance. one_thread: is the body one thread's? index: of the
    instance."""

    name: str
    loc: Loc
    first: int
    warps: int
    instances: int
    registers: int
    one_thread: bool
    index: Value | int = 0

    described_by = lang.Role
    use = "it has .index and .turn(name)"

    @property
    def threads(self) -> int:
        """Of one instance."""
        return WARP * self.warps

    @property
    def all_warps(self) -> int:
        return self.warps * self.instances

    @property
    def shown(self) -> str:  # type: ignore[override]
        return f"the role {self.name}"

    @property
    def data(self) -> dict[str, Any]:
        return {"index": self.index}


@dataclass(frozen=True, eq=False)
class RingObject(LanguageObject):
    """A ring. tiles, by name: of (stages, *extents). cursor: the name of a role's cursor of it in the environment, so
    that loops, branches and functions carry it."""

    value: Value
    stages: int
    tiles: dict[str, Value]
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
        return {name: self._tile(tile) for name, tile in self.ring.tiles.items()}

    def _tile(self, stages: Value) -> View:
        """Its part of a tile of all stages."""
        type_: Any = stages.type
        rest = type_.dims[1:]
        return View(stages, (self.slot, *[0] * len(rest)), tuple(range(1, type_.rank)), rest)


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


@dataclass(eq=False)
class WorkBody:
    """The body of a loop over work items that is being built. k: what the item has along k; k_loop: the body of the
    loop over it, directly in this one, that is being built; used: the rings of which such a loop has used slots."""

    block: Block
    k: Any
    k_loop: Block | None = None
    used: list[RingObject] = field(default_factory=list[RingObject])


@dataclass
class Cooperation:
    """role: of the statements that are built now, and role_body: where its own begin. region: of a ring, around them.
    work: the loop around them over work items; turn: is one of its turns around them? cluster: as `persistent` declared
    it. templates: tiles that were given to rings. stores: the roles that store by TMA, None for the block."""

    roles: list[RoleObject] = field(default_factory=list[RoleObject])
    rings: list[RingObject] = field(default_factory=list[RingObject])
    role: RoleObject | None = None
    role_body: Block | None = None
    region: Any = None
    work: WorkBody | None = None
    turn: bool = False
    cluster: Place | None = None
    templates: list[Value] = field(default_factory=list[Value])
    stores: set[RoleObject | None] = field(default_factory=set[RoleObject | None])

    @property
    def carried(self) -> list[str]:
        """Names of the cursors in the environment, which loops carry where statements go now."""
        return [] if self.role is None else [ring.cursor for ring in self.rings]
