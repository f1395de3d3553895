"""What a report holds: plain data, which ``report --json`` prints and the page shows.

A *place* is an index into `Report.places`, -1 for none: a position in the user's Python, with the place of the call for
what was inlined. All stages share these places, so two lines belong together if their places agree. `related` in
links.js says how.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from fractions import Fraction
from typing import Any, Literal

from tiledsl.backends.protocol import Resources
from tiledsl.compilation.launch_report import Room
from tiledsl.passes.banks.bank_report import AccessReport, TileReport

VERSION = 1
"""Of this structure. A field that is gone, or means something else, is a new version; a new field is not."""

MOST_DRAWN = 6000
"""Waits and phases of a timeline."""

Place = tuple[int, int, int, int]
"""(index into `Report.files`, line, column or 0, place of the call or -1)"""


@dataclass(frozen=True)
class Tensor:
    """`dims`: names of run-time extents, or numbers. unit: the axis of stride 1. align: in bytes."""

    name: str
    dtype: str
    dims: list[str]
    unit: int
    align: int
    written: bool


@dataclass(frozen=True)
class KernelFacts:
    """`label`: name and consts. `grid`: blocks along x, y, z, as expressions of extents. threads, cluster: numbers."""

    name: str
    label: str
    usage: str
    arch: str
    place: int
    tensors: list[Tensor]
    grid: list[str]
    threads: list[int]
    cluster: list[int]
    shared: int


@dataclass(frozen=True)
class Chunk:
    """Consecutive lines of a file from line `first` on: a function that something of the kernel came from."""

    file: int
    first: int
    lines: list[str]


@dataclass(frozen=True)
class Body:
    """The IR at one stage: for each line its text, an index into `IR.texts`, and its place."""

    texts: list[int]
    places: list[int]


@dataclass(frozen=True)
class Stage:
    """body: an index into `IR.bodies`, which stages share that are equal. added: lines that the stage before lacks;
    removed: how many of that one's lines are gone. Numbers of values do not count."""

    name: str
    body: int
    added: list[int]
    removed: int


@dataclass(frozen=True)
class IR:
    texts: list[str]
    bodies: list[Body]
    stages: list[Stage]


@dataclass(frozen=True)
class Ptx:
    """`text`: all of it. lines: numbers, from 1 on, of the lines that are shown, which are not debug information."""

    text: str
    lines: list[int]
    places: list[int]


@dataclass(frozen=True)
class Sass:
    """Up to `ptx` a column for each field, with one value an instruction.

    ptx: an index into `Ptx.lines`, -1 for none. live: general registers. awaited: for each instruction that
    waits, those whose scoreboards it waits for. labels: names of instructions. loops: their
    first and last instruction; hottest: an index into them, -1 without a loop. spills: (place, stores, loads) of local
    memory. unknown: opcodes whose operands are not fully known, so that more registers may be live.
    """

    addresses: list[int]
    controls: list[str]
    live: list[int]
    texts: list[str]
    places: list[int]
    ptx: list[int]
    awaited: list[tuple[int, tuple[int, ...]]]
    labels: list[tuple[str, int]]
    loops: list[tuple[int, int]]
    hottest: int
    spills: list[tuple[int, int, int]]
    unknown: list[str]


@dataclass(frozen=True)
class Role:
    title: str
    place: int
    first_warp: int
    warps: int
    instances: int
    threads: int
    registers: int
    turns: list[str]


@dataclass(frozen=True)
class RingEnd:
    role: str
    by: list[str]
    arrivals: int
    places: list[int]


@dataclass(frozen=True)
class Ring:
    """`tiles`: (name, bytes of a stage). held: slots that stay in use past the end of their use."""

    name: str
    place: int
    stages: int
    tiles: list[tuple[str, int]]
    producer: RingEnd
    consumer: RingEnd
    held: int
    shared_along: list[str]


@dataclass(frozen=True)
class Operand:
    """Of a product on tensor cores; `dims`: rows and columns. tile: its name, where it is in shared memory.

    Otherwise `layout` is that of a fragment: `warps` cut it into so many parts by rows and columns, and each warp has
    so many `tiles` of one instruction; a thread holds `size` elements. cells: of one instruction, (warp, lane, element
    that the lane holds) by row and column.
    """

    name: str
    dtype: str
    dims: tuple[int, int]
    tile: str
    layout: str = ""
    warps: tuple[int, int] = (0, 0)
    tiles: tuple[int, int] = (0, 0)
    size: int = 0
    cells: list[list[tuple[int, int, int]]] = field(default_factory=list[list[tuple[int, int, int]]])


@dataclass(frozen=True)
class Product:
    """`instruction`: its shape and dtypes."""

    place: int
    instruction: str
    operands: list[Operand]


@dataclass(frozen=True)
class Loop:
    """A pipelined loop; `text` and `schedule` as ``explain("pipeline")`` has them."""

    place: int
    stages: int
    text: str
    schedule: list[dict[str, str]]


@dataclass(frozen=True)
class Banks:
    """As ``explain("banks")``: see `passes.banks.bank_report`. `places`: of the accesses."""

    used: int
    limit: int | None
    tiles: list[TileReport]
    accesses: list[AccessReport]
    places: list[int]


@dataclass(frozen=True)
class Check:
    """`sizes`: what the kernel ran with on the emulator; None if it did not run, and `text` says how to. text: the
    errors, or what was found to be right."""

    sizes: dict[str, str] | None
    passed: bool
    text: str
    place: int


@dataclass(frozen=True)
class Roof:
    """What a GPU takes at least for each part of the work: `us`, by its name. limiter: the longest one. blocks: of
    the launch there. peak: TFLOP/s of this mix on all SMs; memory: TB/s."""

    gpu: str
    processors: int
    blocks: int
    mhz: int
    peak: float
    memory: float
    us: dict[str, float]
    limiter: str


@dataclass(frozen=True)
class Roofline:
    """Of the run of the check. `operations`: by unit and dtype. asked: bytes of global memory that accesses and copies
    ask for. distinct: bytes if each element is read once and written once. roofs: of GPUs of this target whose rates
    are known."""

    operations: dict[str, int]
    asked: int
    distinct: int
    roofs: list[Roof]


@dataclass(frozen=True)
class TimelineRow:
    """A warp of the first cluster. end: its clock at the end of the run."""

    rank: int
    warp: int
    role: str
    end: int


@dataclass(frozen=True)
class Slot:
    """Of a ring. spans: from full until free again, -1 for never."""

    name: str
    spans: list[tuple[int, int]]


@dataclass(frozen=True)
class Timeline:
    """What warps did in a run: in that of the check, on clocks that `backends.emulator.timeline` explains, or in one
    that was measured (`stamped`).

    barriers: names. waits: (row, start, end, barrier, row that released it or -1, place). phases: of barriers that
    ended: (barrier, time, row that released it). stuck: rows of a deadlock: (row, what it does, place). full_at: events
    from then on are left out; None: none is. unit: of time, "ops" of the emulator or "clocks" of an SM. work: those of
    `barriers` that stand for asynchronous work that is waited for.
    """

    rows: list[TimelineRow]
    barriers: list[str]
    waits: list[tuple[int, int, int, int, int, int]]
    phases: list[tuple[int, int, int]]
    slots: list[Slot]
    stuck: list[tuple[int, str, int]]
    full_at: int | None
    unit: Literal["ops", "clocks"] = "ops"
    work: list[int] = field(default_factory=list[int])


def role_of(roles: Sequence[Role], warp: int) -> str:
    return next((r.title for r in roles if r.first_warp <= warp < r.first_warp + r.warps), "")


@dataclass(frozen=True)
class Measured:
    """A run on a GPU. us: median and least time of the kernel as it is, back to back; of the build with stamps, the
    median, and whether its results were the same. mhz: of the SMs' clock in that run, 0 if it was too short to tell."""

    gpu: str
    sizes: dict[str, str]
    us: tuple[float, float]
    us_stamped: float
    same: bool
    mhz: int
    timeline: Timeline


@dataclass(frozen=True)
class Finding:
    """What to look at first. part: of the page, which shows more; "". also: other places that it is about, as those of
    the two accesses of a race."""

    level: Literal["error", "warning", "note"]
    text: str
    place: int
    part: str = ""
    also: list[int] = field(default_factory=list[int])


@dataclass(frozen=True)
class Report:
    """`missing`: why there is no SASS, or nothing of the assembler at all; "" where all is there. cubin: base64."""

    kernel: KernelFacts
    findings: list[Finding]
    files: list[str]
    places: list[Place]
    python: list[Chunk]
    ir: IR
    ptx: Ptx
    sass: Sass | None
    missing: str
    resources: Resources | None
    room: Room | None
    banks: Banks
    products: list[Product]
    launch_registers: int
    roles: list[Role]
    rings: list[Ring]
    loops: list[Loop]
    groups: list[str]
    check: Check
    timeline: Timeline | None
    roofline: Roofline | None
    measured: Measured | None
    provenance: dict[str, str]
    cubin: str
    schema: str = field(default="tiledsl.report", init=False)
    version: int = field(default=VERSION, init=False)

    def to_json(self, indent: int | None = None) -> str:
        """ASCII. Fields in the order in which they are declared."""
        separators = (",", ":") if indent is None else None
        return json.dumps(_fields(self), default=plain, indent=indent, separators=separators)


def _fields(value: Any) -> dict[str, Any]:
    # Not by `asdict`, which copies every list, of which some have a number for each instruction. A Loc is in `places`.
    return {f.name: getattr(value, f.name) for f in fields(value) if f.name != "loc"}


def plain(value: Any) -> Any:
    """What JSON has no form for."""
    if isinstance(value, Fraction):
        return float(value)
    assert is_dataclass(value), value
    return _fields(value)
