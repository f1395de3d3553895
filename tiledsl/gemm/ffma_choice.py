"""Which tiles, and how many parts of k, for a product in fp32: the candidate that a cost model expects to end first.

The model adds up what a launch does: rounds of CTAs that share the SMs, each bounded by its FFMAs and by the latency of
its steps along k, and all of them by L2; then the reduction of parts of k. Its constants are fitted to times
of random shapes on one H200 (B in row order and along k, operands cold, launches by CUDA graphs), so that choices are
good: `python -m benchmarks.choice_fit --model f32`. They describe the model, and not the hardware: the rate of a
candidate, for example, means something only together with the stalls of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from tiledsl.gemm.traced import Options, slowest_of

where: Callable[..., Any] = np.where

PROCESSORS = 132
BYTES = 4
CLOCK = 128 * 1.85e3
"""FFMAs of an SM in a microsecond, at a clock of 1.85 GHz."""
EARLY = 2e10
"""Multiplications, under which a product is small enough to gain from an early launch."""
WORKSPACE = 1 << 27
"""The most elements of partial sums: 512 MB."""
MOST_PARTS = 512
GATHER = 2, 3, 4, 6, 8, 12, 16
"""Parts whose sums are loaded at once."""


# By kind of main loop, in microseconds where not stated.
SCHEDULES = ("written", "anew", "staged")
STALL = {"written": 3.17, "anew": 14.6, "staged": 2.32}
"""Warps of a CTA at which latencies double the time of its FFMAs."""
EACH = {"written": 1.95, "anew": 0.575, "staged": 0.284}
"""Of a CTA of an SM in a round."""
STEP = {"written": 0.827, "anew": 0.188, "staged": 0.247}
"""Latency of a step along k whose operands are in L2."""
FRESH = {"written": 0.0131, "anew": 0.041, "staged": 0.152}
"""More, if they come from memory: in the first round."""
ACROSS = {"written": 0.0343, "anew": 0.0498, "staged": 0.0472}
"""The relative cost, as a logarithm, of each operand that has no rows of whole vectors, where B is in row order."""
ALONG = {"written": 0.0145, "anew": 0.0204, "staged": 0.0127}
"""The same where B is contiguous along k."""
TRANSPOSED = {"written": 0.043, "anew": 0.0229, "staged": 0.0107}
"""The relative cost, as a logarithm, of a B that is contiguous along k."""

ROUND = 1.36
"""Microseconds of a round of CTAs."""
START = 0.197
"""Microseconds of a launch."""
L2 = 4174579
"""Bytes that L2 gives and takes in a microsecond, if all SMs have as much to do."""
PARTS = 1.64
"""Microseconds until a CTA knows that all parts of its tile have come."""
ADDED = 158176
"""Bytes of partial sums that a CTA stores and adds up in a microsecond."""
EXCHANGED = 4833171
"""Bytes of partial sums that all CTAs together store and load in a microsecond."""
RATES = {
    "written 128x256x8 64x64": 2.74,
    "written 128x128x8 64x64": 2.87,
    "written 64x128x8 64x64": 1.75,
    "anew 128x128x8 64x32": 1.72,
    "anew 64x128x8 64x32": 1.39,
    "anew 64x64x8 64x64": 2.11,
    "anew 64x64x8 32x32": 0.986,
    "anew 64x64x16 64x32/2": 1.57,
    "anew 64x64x16 32x32/2": 1.18,
    "anew 64x32x32 64x32/4": 1.54,
    "anew 32x64x32 32x64/4": 1.52,
    "anew 32x32x32 32x32/4": 1.02,
    "staged 64x64x32 32x32/2": 0.81,
    "staged 48x128x32 48x64/2": 0.76,
    "staged 32x64x32 32x64/4": 0.82,
    "staged 32x32x64 32x32/8": 0.882,
    "staged 32x32x32 32x32/4": 0.685,
    "staged 24x64x64 24x64/4": 0.561,
    "staged 16x128x32 16x128/4": 0.788,
    "staged 16x64x64 16x64/4": 0.428,
    "staged 8x128x64 8x128/4": 1.42,
    "staged 8x64x64 8x64/4": 0.649,
}
"""Of the main loop of a candidate, relative to `CLOCK`."""


class Candidate(NamedTuple):
    """Consts of `fastest`, and how many such CTAs an SM holds: for aligned operands with B along k, or in row order,
    and for operands one of which is not aligned. With k in parts, where that takes more registers."""

    consts: dict[str, Any]
    along: int
    across: int
    unaligned: int

    @property
    def bm(self) -> int:
        return self.consts["BM"]

    @property
    def bn(self) -> int:
        return self.consts["BN"]

    @property
    def bk(self) -> int:
        return self.consts["BK"]

    @property
    def warps(self) -> int:
        rows, columns = self.consts["WARP_TILE"]
        return self.bm // rows * (self.bn // columns) * self.consts["SLICES"]

    @property
    def ahead(self) -> int:
        """Steps along k whose loads are in flight."""
        return self.consts.get("STAGES", 3 if self.consts["SCHEDULE"] == "staged" else 2) - 1

    @property
    def name(self) -> str:
        """Schedule, tile, the tile of a warp, and how many warps share it."""
        (rows, columns), slices = self.consts["WARP_TILE"], self.consts["SLICES"]
        return f"{self.consts['SCHEDULE']} {self.bm}x{self.bn}x{self.bk} {rows}x{columns}" + f"/{slices}" * (slices > 1)


def _of(
    schedule: str,
    tile: tuple[int, int, int],
    warp_tile: tuple[int, int],
    slices: int,
    resident: tuple[int, int, int],
    **more: int,
) -> Candidate:
    names = dict(zip(("BM", "BN", "BK"), tile, strict=True))
    return Candidate({"SCHEDULE": schedule, **names, "WARP_TILE": warp_tile, "SLICES": slices, **more}, *resident)


CANDIDATES = (
    _of("written", (128, 256, 8), (64, 64), 1, (1, 1, 1)),
    _of("written", (128, 128, 8), (64, 64), 1, (2, 2, 2)),
    _of("written", (64, 128, 8), (64, 64), 1, (4, 4, 4)),
    _of("anew", (128, 128, 8), (64, 32), 1, (1, 1, 1)),
    _of("anew", (64, 128, 8), (64, 32), 1, (3, 3, 3)),
    _of("anew", (64, 64, 8), (64, 64), 1, (8, 8, 8)),
    _of("anew", (64, 64, 8), (32, 32), 1, (5, 5, 4)),
    _of("anew", (64, 64, 16), (64, 32), 2, (3, 3, 3)),
    _of("anew", (64, 64, 16), (32, 32), 2, (2, 2, 2)),
    _of("anew", (64, 32, 32), (64, 32), 4, (3, 3, 2)),
    _of("anew", (32, 64, 32), (32, 64), 4, (3, 3, 2)),
    _of("anew", (32, 32, 32), (32, 32), 4, (4, 4, 4)),
    _of("staged", (64, 64, 32), (32, 32), 2, (2, 2, 1)),
    _of("staged", (48, 128, 32), (48, 64), 2, (2, 2, 2)),
    _of("staged", (32, 64, 32), (32, 64), 4, (2, 3, 2)),
    _of("staged", (32, 32, 64), (32, 32), 8, (2, 2, 1)),
    _of("staged", (32, 32, 32), (32, 32), 4, (4, 4, 3)),
    _of("staged", (24, 64, 64), (24, 64), 4, (3, 3, 2)),
    _of("staged", (16, 128, 32), (16, 128), 4, (2, 3, 2), STAGES=4),
    _of("staged", (16, 64, 64), (16, 64), 4, (3, 3, 2)),
    _of("staged", (8, 128, 64), (8, 128), 4, (1, 1, 1), STAGES=4),
    _of("staged", (8, 64, 64), (8, 64), 4, (3, 4, 3)),
)


class Product(NamedTuple):
    """A product to compute, or arrays of products. along: whether B is contiguous along k. unaligned: how many of A and
    B have no rows of whole vectors, of 16 bytes."""

    batch: Any
    m: Any
    n: Any
    k: Any
    along: Any = False
    unaligned: Any = 0
    processors: int = PROCESSORS

    def tiles(self, bm: Any, bn: Any) -> Any:
        return self.batch * -(-self.m // bm) * -(-self.n // bn)


Option = tuple[Candidate, int, int]
"""A candidate, the number of parts of k, and that of tiles before those in parts."""


class EstimateF32(NamedTuple):
    """Microseconds that the model expects. Of `compute` (FFMAs, and waiting for their operands) and `l2` the longer one
    counts, and a little of the other. reduction: of parts of k."""

    launch: Any
    compute: Any
    l2: Any
    reduction: Any

    @property
    def total(self) -> Any:
        return self.launch + slowest_of(self.compute, self.l2) + self.reduction


class Table(NamedTuple):
    """Options as arrays, of what the model needs of each. schedule: its place in `SCHEDULES`. number: that in
    `CANDIDATES`."""

    number: Any
    schedule: Any
    bm: Any
    bn: Any
    bk: Any
    warps: Any
    ahead: Any
    along: Any
    across: Any
    unaligned: Any
    parts: Any
    whole: Any


@cache
def _facts() -> Any:
    """The columns of a `Table` that a candidate decides, a row for each."""
    return np.array(
        [
            (number, SCHEDULES.index(c.consts["SCHEDULE"]), c.bm, c.bn, c.bk, c.warps, c.ahead, *c[1:])
            for number, c in enumerate(CANDIDATES)
        ]
    )


def table_of(options: Sequence[Option]) -> Table:
    """Those of `CANDIDATES`."""
    numbers = {id(candidate): number for number, candidate in enumerate(CANDIDATES)}
    chosen = _facts()[[numbers[id(candidate)] for candidate, _, _ in options]]
    return Table(*chosen.T, *np.array([split for _, *split in options]).T)


def estimate(product: Product, of: Table) -> EstimateF32:
    """The times of options, all of one product, or each of its own."""
    batch, m, n, k, along, unaligned, processors = product

    def by_schedule(values: dict[str, float]) -> Any:
        return np.array(list(values.values()))[of.schedule]

    slower = where(along, unaligned * by_schedule(ALONG) + by_schedule(TRANSPOSED), unaligned * by_schedule(ACROSS))
    factor = np.exp(slower)
    all_steps, tiles, slots = -(-k // of.bk), product.tiles(of.bm, of.bn), _slots(product, of)
    moved = (tiles * (of.bm + of.bn) * of.bk * all_steps + batch * m * n) * BYTES
    split = (tiles - of.whole) * of.parts
    ctas = of.whole + split
    step = (by_schedule(STEP) + by_schedule(FRESH) * np.minimum(1, slots / ctas)) / of.ahead
    stall, each = 1 + by_schedule(STALL) / of.warps, by_schedule(EACH)
    of_step = of.bm * of.bn * of.bk * factor / (CLOCK * np.array(list(RATES.values()))[of.number])

    def rounds(ctas: Any, steps: Any) -> tuple[Any, Any]:
        """Of CTAs of so many steps along k; and the most that an SM has."""
        work = of_step * steps
        alone = work * stall + steps * step * factor
        full, rest = ctas // slots, -(-(ctas % slots) // processors)

        def together(count: Any) -> Any:
            """`count` CTAs on each SM."""
            return where(count > 0, slowest_of(count * work, alone) + ROUND + each * count, 0.0)

        return full * together(slots / processors) + together(rest), full * (slots / processors) + rest

    behind, most = rounds(split, -(-all_steps // of.parts))
    before, most_before = (0.0, 0.0) if isinstance(of.whole, int) else rounds(of.whole, all_steps)
    even = (of.whole * of.parts + split) / processors
    uneven = (most_before * of.parts + most) / even
    size = 2 * of.bm * of.bn * BYTES
    reduction = where(of.parts > 1, PARTS + size / ADDED + split * size / EXCHANGED, 0.0)
    return EstimateF32(START, before + behind, uneven * moved / L2, reduction)


def _slots(product: Product, of: Table) -> Any:
    """CTAs that run at once."""
    resident = where(product.unaligned, of.unaligned, where(product.along, of.along, of.across))
    return product.processors * resident


# -- the options of a product --------------------------------------------------------------------------------


class Rules(NamedTuple):
    """Which parts of k are worth a look: so many that all CTAs are this multiple of those that run at once (`slots`) or
    of the SMs (`processors`), or this number (`fixed`)."""

    slots: Any
    processors: Any
    fixed: Any


ONE = ((0, 0, 1),)
SOME = (*((rounds, 0, 0) for rounds in (1, 2, 3, 4)), (0, 1, 0), (0, 2, 0), (0, 0, 3), (0, 0, 6))
BEHIND = tuple((0, 0, parts) for parts in (2, 3, 4, 5, 7, 8, 11))
"""Of the tiles behind whole waves alone. Other numbers, here up to 12, and 2 to 8 and halves of rounds above, are 0.01%
faster by the model, in the mean of random products."""


def best(product: Product, batch_invariant: bool = False, split: bool = True) -> tuple[float, Option]:
    """The option that is expected to be fastest, and its time. split: k may be in parts."""
    found = (each.fastest(*product[:4]) for each in _options(product, batch_invariant, split))
    us, *option = min(found, key=itemgetter(0))
    return us, tuple(option)


def _options(product: Product, batch_invariant: bool, split: bool = True) -> list[Options]:
    """Those worth a look."""
    *_, along, unaligned, processors = product
    return _options_of(along, unaligned, processors, batch_invariant, split and not batch_invariant)


@cache
def _options_of(along: bool, unaligned: int, processors: int, batch_invariant: bool, split: bool) -> list[Options]:
    numbers = [i for i, c in enumerate(CANDIDATES) if not batch_invariant or c.consts["SLICES"] == 1]
    found: list[Options] = []
    for rules in (ONE + SOME, BEHIND) if split else (ONE,):
        each = np.repeat(numbers, len(rules))
        of = Table(*_facts()[each].T, parts=1, whole=0)
        columns = Rules(*np.tile(np.array(rules).T, len(numbers)))
        model = partial(_model, of, columns, rules is BEHIND, batch_invariant, (along, unaligned, processors))
        found.append(Options([CANDIDATES[i] for i in each], model))
    return found


def _model(
    of: Table, rules: Rules, behind: bool, batch_invariant: bool, fixed: Any, batch: Any, m: Any, n: Any, k: Any
) -> tuple[EstimateF32, Any, Any]:
    """That of `Options`; with parts of k, and tiles before those in parts."""
    product = Product(batch, m, n, k, *fixed)
    parts, whole, possible = _split(of, rules, behind, product)
    if not batch_invariant:
        possible = possible & _known(m, of.bm)
    times = estimate(product, of._replace(parts=parts, whole=whole))
    return times._replace(reduction=where(possible, times.reduction, np.inf)), parts, whole


def _split(of: Table, rules: Rules, behind: bool, product: Product) -> tuple[Any, Any, Any]:
    """Parts of k, tiles before those in parts, and whether that is worth a look."""
    tiles, slots = product.tiles(of.bm, of.bn), _slots(product, of)
    least = where(of.bk < 32, np.maximum(2, 64 // of.bk), 2)  # steps along k of a part
    most = np.minimum(-(-product.k // of.bk) // least, WORKSPACE // (tiles * of.bm * of.bn))
    most = np.minimum(most, MOST_PARTS)
    if not behind:
        filling = (slots * rules.slots + product.processors * rules.processors) // tiles
        parts = np.minimum(where(rules.fixed > 0, rules.fixed, filling), most)
        possible = (parts > 1) & ((rules.fixed == 0) | (4 * tiles > slots)) | (rules.fixed == 1)
        return np.maximum(parts, 1), 0, possible
    last = tiles % slots
    over = (last * rules.fixed) % slots
    possible = (last > 0) & (tiles > slots) & (rules.fixed <= most) & ((over > slots // 2) | (over == 0))
    return rules.fixed, where(possible, tiles - last, 0), possible


def _known(m: Any, bm: Any) -> Any:
    """Whether such tiles were timed for so many rows: neither far more rows than that nor far fewer."""
    return where(m <= 16, bm <= where(m <= 4, 16, 32), (bm >= 16) | (m <= 48))


def choose(m: int, n: int, k: int, format: str = "f32", processors: int = PROCESSORS) -> dict[str, Any]:
    """The consts for a product of m x n x k of aligned matrices in row order, without workspaces: k in one part."""
    return best(Product(1, max(m, 1), max(n, 1), k, processors=processors), split=False)[1][0].consts


class PlanF32(NamedTuple):
    """How to call `fastest`:
    ``fastest(A, B, C, alpha, beta, bias, sums, done, plan.whole, **plan.consts)``.

    sums: the shape of an f32 workspace, contents undefined: parts of k, tiles in parts, elements of a tile. done is a
    u32 workspace of a word for each of these tiles, which must be zero, and is zero again afterwards. Where k is in one
    part, sums is None, and None is passed for the workspaces. Launches that may overlap, on two streams, need
    workspaces of their own. us: microseconds that `plan_f32` expects.
    """

    consts: dict[str, Any]
    whole: int = 0
    sums: tuple[int, int, int] | None = None
    us: float = 0.0


@cache
def plan_f32(product: Product, *, early: bool = True, batch_invariant: bool = False) -> PlanF32:
    """How to compute a product in f32.

    It is faster to exchange the operands of a C that is contiguous along m: C^T = B^T A^T by views. early: the target
    has early launches (sm_90 and later). batch_invariant: the products of a row are added in the order of k, whatever m
    is. A bias and an epilogue change nothing: consts of their own, as EPILOGUE, are added by the caller.
    """
    us, option = best(product, batch_invariant)
    return plan_of(option, product, early)._replace(us=us)


def plan_of(option: Option, product: Product, early: bool) -> PlanF32:
    """How to compute a product with these tiles and parts. early: as of `plan_f32`."""
    of, parts, whole = option
    consts, split = dict(of.consts), int(product.tiles(of.bm, of.bn)) - whole
    if early and product.batch * product.m * product.n * product.k < EARLY:
        consts["EARLY"] = True
    if parts == 1:
        return PlanF32(consts)
    consts["GATHER"] = min(GATHER, key=lambda n: (parts // n + parts % n, -n))
    return PlanF32(consts, whole, (parts, split, of.bm * of.bn))


def ranked_f32(
    count: int, product: Product, batch_invariant: bool = False
) -> list[tuple[Candidate, int, int, EstimateF32]]:
    """The `count` fastest candidates, parts of k, and tiles before those in parts, among which `plan_f32` chooses, with
    the time that is expected."""
    found = [each for options in _options(product, batch_invariant) for each in options.possible(*product[:4])]
    known = {(of.name, *split): (of, *split, times) for of, times, *split in found}
    return sorted(known.values(), key=lambda each: each[3].total)[:count]
