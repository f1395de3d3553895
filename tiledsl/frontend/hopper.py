"""What a compilation knows of roles, rings, clusters and schedules while it builds a kernel.

Much of it is known at the end alone: how many arrivals a slot waits for, whether a role takes or gives registers. The
ops that need it are kept here and completed by `finish`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Sequence

from tiledsl import lang
from tiledsl.arch import WARP
from tiledsl.errors import Loc
from tiledsl.frontend.bindings import LanguageObject, View
from tiledsl.ir.core import Block, Op, Value
from tiledsl.ir.ops import barriers
from tiledsl.ir.types import INDEX, Type

__all__ = [
    "ClusterShape",
    "Cooperation",
    "Processors",
    "RingObject",
    "RoleObject",
    "SlotObject",
    "WorkLoop",
]


class Processors(Op):
    """How many multiprocessors there are: the host knows. It stands for the name until `grid` has been read."""

    def infer(self) -> Sequence[Type]:
        return (INDEX,)


@dataclass(eq=False)
class RoleObject(LanguageObject):
    """A role. first: its first warp; warps: of one instance. barrier: number of its named barrier (of instance 0).

    one_thread: is the body one thread's? index: of the instance, an index or 0. turns: names to their first barriers.
    group_barriers: the first of its warpgroups' barriers, 0 if they need none. stores: does it store by TMA?
    """

    name: str
    loc: Loc
    first: int
    warps: int
    instances: int
    registers: int
    one_thread: bool
    barrier: int
    index: Value | int = 0
    setmaxnreg: barriers.SetMaxNReg | None = None
    turns: dict[str, int] = field(default_factory=dict[str, int])
    group_barriers: int = 0
    stores: bool = False

    described_by = lang.Role
    offers = "it has .index and .turn(name)"

    @property
    def all_warps(self) -> int:
        return self.warps * self.instances

    @property
    def threads(self) -> int:
        """Of one instance."""
        return WARP * self.warps

    @property
    def all_threads(self) -> int:
        """Of all instances."""
        return WARP * self.all_warps

    @property
    def shown(self) -> str:  # type: ignore[override]
        return f"the role {self.name}"

    def data(self, name: str) -> Any:
        return self.index if name == "index" else None


@dataclass(eq=False)
class RingObject(LanguageObject):
    """A ring. tiles, by name: of (stages, *extents). full, empty: its mbarriers, one a slot.

    number: of the ring in the kernel, which names its state. in_flight: as its uses say. multicast: the axes of the
    cluster along which its tiles are shared. inits, releases: ops that `finish` completes. read: tiles that uses ask
    for. products: do any read them? waits: for those of other uses, should there be any, by uses without. takes: where
    slots are taken by `take`; named: where `slot` and `free` name one; frees: is one handed back by `free`?
    """

    number: int
    loc: Loc
    stages: int
    tiles: dict[str, Value]
    full: Value
    empty: Value
    filler: RoleObject | None = None
    user: RoleObject | None = None
    in_flight: int | None = None
    multicast: set[str] = field(default_factory=set[str])
    inits: list[Op] = field(default_factory=list[Op])
    releases: list[Any] = field(default_factory=list[Any])
    read: set[str] = field(default_factory=set[str])
    products: bool = False
    waits: list[Op] = field(default_factory=list[Op])
    takes: list[Loc] = field(default_factory=list[Loc])
    named: list[Loc] = field(default_factory=list[Loc])
    frees: bool = False

    described_by = lang.Ring
    shown = "a ring"
    offers = (
        "it has .fill(), .use(), .take(), .slot(i), .free(i); its tiles are the slot's: `with ring.fill() as s:` s.a"
    )

    @property
    def filling(self) -> str:
        """Name of the filler's state in the environment: slot and phase."""
        return f"$$fill{self.number}"

    @property
    def using(self) -> str:
        """Name of the user's state: slot, phase, and how many slots it has not released yet."""
        return f"$$use{self.number}"


@dataclass(eq=False)
class SlotObject(LanguageObject):
    """The slot of a ring in a region."""

    ring: RingObject
    slot: Value
    used: bool

    described_by = lang.Slot
    shown = "the slot of a ring"

    @property
    def offers(self) -> str:  # type: ignore[override]
        return f"it has {', '.join('.' + name for name in self.ring.tiles)}"

    def data(self, name: str) -> Any:
        tile = self.ring.tiles.get(name)
        if tile is None:
            return None
        if self.used:
            self.ring.read.add(name)
        return self.view(tile)

    def view(self, tile: Value) -> View:
        type_: Any = tile.type
        rest = type_.dims[1:]
        return View(tile, (self.slot, *[0] * len(rest)), tuple(range(1, type_.rank)), rest)


@dataclass(frozen=True)
class ClusterShape:
    """Blocks of a cluster along m and n, and this block's place there. rank: its number, ``m + n * blocks along m``."""

    m: int = 1
    n: int = 1
    rank: Value | None = None
    at_m: Value | None = None
    at_n: Value | None = None

    @property
    def blocks(self) -> int:
        return self.m * self.n

    def along(self, axis: str) -> int:
        return self.m if axis == "m" else self.n


@dataclass(eq=False)
class WorkLoop:
    """A loop over work items that is being built. turns: first named barriers of the turns that stand in it."""

    body: Block
    turns: list[int] = field(default_factory=list[int])


@dataclass
class Cooperation:
    """Roles and rings of one kernel, and which of them is being built.

    role, fill, use: where statements go now; k_loop, work: the loops over tiles along k and over work items around
    them. templates: tiles given to rings. cluster: as `persistent` declared it. varies: of each
    axis of the cluster, where ranges along it begin. ready: the barriers behind which rings are seen to be initialised.
    stores: does the block, outside of roles, store by TMA? barriers: the first named barrier that is free. scheduled:
    the schedule. open_products: has a region begun products that are no group yet?
    """

    roles: list[RoleObject] = field(default_factory=list[RoleObject])
    rings: list[RingObject] = field(default_factory=list[RingObject])
    role: RoleObject | None = None
    fill: Any = None
    use: Any = None
    templates: list[Value] = field(default_factory=list[Value])
    cluster: ClusterShape | None = None
    varies: dict[str, set[Value]] = field(default_factory=lambda: {"m": set[Value](), "n": set[Value]()})
    ready: list[Op] = field(default_factory=list[Op])
    stores: bool = False
    barriers: int = 1
    scheduled: Any = None
    k_loop: Any = None
    work: WorkLoop | None = None
    open_products: bool = False

    @property
    def carried(self) -> list[str]:
        """Names of the state that loops carry where statements go now."""
        if self.role is None:
            return []
        return [ring.filling if self.role.one_thread else ring.using for ring in self.rings]
