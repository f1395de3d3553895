"""What an op class declares about itself, for every pass, backend and report: the words, and the check that none is
left out.

A class says these, itself or by a base of its family, where they apply to it:

  `touches`   the memory that it accesses: (`Access`, ...).
  `sync`      what it does for synchronisation: a `Sync`.
  `stays`     what else keeps it where it is: see `Stays`.
  `scope`     who must reach it together; `alike`, of collective ops: the parts that are checked to be the same for all.
  `features`  the rows of `arch.FEATURES` that it needs.
  `parts`     its operands by group, in order; "operands" are all. Those of a fixed number are what descriptors name.
  `varies`    how its results vary, and `nan`, what it does with the bits of a NaN: of ops with results.
  `cause`     ends "it depends on ...", of ops whose results may be less uniform than their operands.
  `called`    what the kernel's author calls it, of ops that errors speak of: those with an effect or a scope.

What depends on attributes is ``by(lambda op: ...)``. An op's `effects` follow from them. A class that leaves
one out is an error at import: no pass has to guess, and no list of classes has to grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Literal, NamedTuple, TypeVar, cast

from tiledsl.arch import FEATURES

Effect = Literal["read", "write", "sync", "io", "guard", "pinned", "identity"]
"""read, write: it accesses memory. sync: it orders accesses, or asynchronous work: no access moves past it, and memory
is read anew behind it, as behind "io". The others: see `Stays`."""

Stays = Literal["", "io", "guard", "pinned", "identity"]
"""Ops that do are neither merged nor dropped. io: it acts on the world, which may change memory, as by printing. guard:
what is behind it happens only if it lets it. pinned: where and how often it runs is its meaning, as for an exchange
between lanes, but it says nothing of memory. No access moves past these. identity: two are never the same, as
allocations."""

Scope = Literal["thread", "warp", "whole warp", "warpgroup", "cta"]
"""Who must execute an op together: a collective op under a less uniform condition is an error. "whole warp": all 32
lanes, also of the last warp of a block."""

Reach = Literal["", "warp", "cta", "cluster", "gpu", "sys"]
"""Among whom; "" is the thread alone."""

Work = Literal["", "cp_async", "token", "bulk", "mbarrier", "wgmma"]
"""What goes on by itself, by what tells that it has ended: groups of cp.async, the token of `async.copy`, bulk groups,
the bytes at an mbarrier, groups of wgmma. "" is no such work: it is complete when the op is."""

Varies = Literal["operands", "memory", "vote", "control", "grid", "cta", "warp", "thread"]
"""How results vary, given the operands. operands: as these do. memory: as the operands and what is read. vote: as the
operands, but not within a warp. control: by what decides which value is reached. A level: at least so much, whatever
they do."""

NanBits = Literal["computes", "packed", "absorbs", "carries", "chooses", "sees"]
"""computes: a NaN in the results is canonical, and those of float operands are all one to it. packed: so are those in
words, too. absorbs: those of the operands are all one to it, and results may have any. carries: moves bits to another
type. chooses: the result is one of the operands. sees: anything else, as of what stores or exchanges bits."""


class Access(NamedTuple):
    """One memory that an op reads or writes. In `Op.touches` without `memory`, in `Op.accesses()` with it.

    part: the operand, or the group of operands that begins with it, that is the memory or points into it; the attribute
    that numbers a tensor map of the kernel. "" stands for any memory.
    memory: that operand, a value, that number, or None for any memory.
    proxy: "async" for TMA and wgmma. (PTX ISA: proxies.)
    done: what tells that it is complete; the op does not wait for it.
    atomic: among whom it is indivisible; "" for a plain access.
    guarded: what is outside the memory is left out.
    matrix: lanes give the addresses of rows whose elements other lanes hold. (PTX ISA: ldmatrix.)
    align: bytes that a shared tile begins at a multiple of.
    """

    part: str
    writes: bool
    memory: Any = None
    proxy: Literal["generic", "async"] = "generic"
    done: Work = ""
    atomic: Reach = ""
    guarded: bool = False
    matrix: bool = False
    align: int = 1


def reads(part: str, **facts: Any) -> Access:
    return Access(part, False, **facts)


def writes(part: str, **facts: Any) -> Access:
    return Access(part, True, **facts)


@dataclass(frozen=True, slots=True)
class Sync:
    """What an op does for synchronisation, besides atomic accesses and asynchronous work that it begins.

    meets: with whom it waits for each other: behind it a thread sees what they did before theirs, and may overwrite
    what they have read.
    releases, acquires: who sees what this thread wrote before; whose writes it sees behind. (PTX ISA: memory model.)
    commits: what it has begun so far becomes a group; with `releases`, it arrives at an mbarrier when that has ended.
    completes: it waits for such work.
    orders: earlier plain accesses before later ones of the asynchronous "proxy"; accesses to "registers" before wgmma.
    kernels: it lets other kernels begin, or waits for them.
    """

    meets: Reach = ""
    releases: Reach = ""
    acquires: Reach = ""
    commits: Work = ""
    completes: Work = ""
    orders: Literal["", "proxy", "registers"] = ""
    kernels: Literal["", "launch", "wait"] = ""


NOTHING = Sync()
T = TypeVar("T")


def by(rule: Callable[[Any], T]) -> T:
    """Declares a fact that depends on the op's attributes or operands."""
    return cast(T, property(rule))


_ALWAYS: tuple[str, ...] = ("touches", "sync", "stays", "scope", "features")
_NO_CAUSE = ("operands", "memory", "control", "grid")


def check_declared(cls: type[Any], base: type[Any]) -> None:
    """TypeError if `cls` leaves out what it has to declare, or names parts that it does not have."""
    missing = [name for name in _wanted(cls, base) if not _declares(cls, base, name)]
    if missing:
        raise TypeError(f"op {cls.name} does not declare {', '.join(missing)}: see tiledsl/ir/facts.py")
    touches: Any = cls.touches
    named = [*cls.parts, *cls.alike, *(touch.part for touch in touches if touch.part)]
    known = {"operands", *(name for each in cls.__mro__ for name in vars(each))}
    unknown = [name for name in named if name not in known]
    if unknown:
        raise TypeError(f"op {cls.name} declares {', '.join(unknown)}, of which it has no operand or attribute")
    features: Any = cls.features
    absent = [] if isinstance(features, property) else [feature for feature in features if feature not in FEATURES]
    if absent:
        raise TypeError(f"op {cls.name} needs {', '.join(absent)}, not a row of arch.FEATURES")


def _wanted(cls: type[Any], base: type[Any]) -> list[str]:
    wanted = list(_ALWAYS)
    if cls.variadic:
        wanted.append("parts")
    if cls.infer is not base.infer or cls.gives:
        wanted += ["varies", "nan"]
        if cls.varies not in _NO_CAUSE and _declares(cls, base, "varies"):
            wanted.append("cause")
    if cls.scope != "thread" or cls.effects:
        wanted.append("called")
    if cls.scope != "thread":
        wanted.append("alike")
    return wanted


def _declares(cls: type[Any], base: type[Any], name: str) -> bool:
    """Does the class say so, or one of its family?"""
    return any(name in vars(each) for each in cls.__mro__ if issubclass(each, base) and each is not base)


def effects_of(cls: type[Any]) -> frozenset[Effect]:
    """What follows from the declarations of a class."""
    found: set[Effect] = {"write" if touch.writes else "read" for touch in cls.touches}
    if cls.sync != NOTHING or any(touch.atomic or touch.proxy == "async" for touch in cls.touches):
        found.add("sync")
    if cls.stays:
        found.add(cls.stays)
    return frozenset(found)
