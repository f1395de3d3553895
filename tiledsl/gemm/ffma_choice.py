"""Which tiles, and how many parts of k, for a product in fp32: the candidate that a cost model expects to end first.

The model adds up what a launch does: rounds of CTAs that share the SMs, each bounded by its FFMAs and by the latency of
its steps along k, and all of them by memory and L2; then the reduction of parts of k. Its numbers were fitted to 3600
times of 110 random shapes on one H200 (B in row order and along k, operands cold, launches by CUDA graphs), so that
times fit and choices are good. They describe the model, and not the hardware: the rate of a candidate, for example,
means something only together with the stalls of its kind.

On three random shapes of each family that were left out of a fit, its choices took 1.03 times as long as the fastest of
the candidates that were timed there. benchmarks/results/ffma_candidates.json has all times.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import exp, hypot
from typing import Any, NamedTuple

from tiledsl.lang import cdiv

__all__ = ["Candidate", "EstimateF32", "PlanF32", "choose", "plan_f32", "ranked_f32"]

PROCESSORS = 132
BYTES = 4
RATE = 128 * 1.85e3
"""FFMAs of an SM in a microsecond, at a clock of 1.85 GHz."""
EARLY = 2e10
"""Multiplications, under which a product is small enough to gain from an early launch."""
WORKSPACE = 1 << 27
"""The most elements of partial sums: 512 MB."""
MOST_PARTS = 512
"""Of a tile: their CTAs are counted in 10 bits (ffma_parts.py)."""


class Kind(NamedTuple):
    """A kind of main loop, in microseconds where not stated.

    stall: warps of a CTA at which latencies double the time of its FFMAs. fixed: of a round. each: of a CTA in it.
    step: of one BK whose operands are in L2. fresh: more, if they come from memory. unaligned: the relative cost, as a
    logarithm, of an operand that has no rows of whole vectors.
    """

    stall: float
    fixed: float
    each: float
    step: float
    fresh: float
    unaligned: float


KINDS = {
    "written": Kind(2.119, 2.186, 1.056, 0.8808, 0.0884, 0.0966),
    "anew": Kind(10.664, 0.739, 0.512, 0.1238, 0.6932, 0.0342),
    "staged": Kind(0.802, 1.158, 0.174, 0.0317, 0.0903, 0.1117),
}
START = 0.450
"""Microseconds of a launch."""
SLICED = 0.036
"""Microseconds of adding up the slices of a tile."""
MEMORY = 3.97e06
"""Bytes that the memory gives in a microsecond."""
L2 = 5.63e06
"""Bytes that L2 gives in a microsecond."""
UNEVEN = 0.85
"""How far the time of memory and L2 grows with the most CTAs of an SM over the mean: the exponent of that ratio."""
PARTS = 1.79
"""Microseconds until the last CTA of a tile knows that it is the last."""
ADDED = 7.16e04
"""Bytes of partial sums that a CTA adds up in a microsecond."""
EXCHANGED = 4.54e06
"""Bytes of partial sums that all CTAs together store and load in a microsecond."""


class Candidate(NamedTuple):
    """Consts of `fastest`. along, across: the CTAs that an SM holds, and the rate of the loop relative to RATE, for a B
    that is contiguous along k, and for another one."""

    consts: dict[str, Any]
    along: tuple[int, float]
    across: tuple[int, float]

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
        return self.consts.get("STAGES", 2) - 1


def _of(
    schedule: str,
    tile: tuple[int, int, int],
    warp_tile: tuple[int, int],
    slices: int,
    along: tuple[int, float],
    across: tuple[int, float],
    **more: int,
) -> Candidate:
    names = dict(zip(("BM", "BN", "BK"), tile, strict=True))
    return Candidate({"SCHEDULE": schedule, **names, "WARP_TILE": warp_tile, "SLICES": slices, **more}, along, across)


CANDIDATES = (
    _of("written", (128, 128, 8), (64, 64), 1, (2, 1.331), (2, 1.338)),
    _of("anew", (128, 128, 8), (64, 32), 1, (1, 1.595), (1, 1.464)),
    _of("anew", (128, 64, 8), (64, 64), 1, (4, 1.195), (4, 1.200)),
    _of("anew", (128, 64, 8), (64, 32), 1, (3, 0.931), (3, 0.988)),
    _of("anew", (64, 128, 8), (64, 32), 1, (3, 1.063), (3, 0.930)),
    _of("anew", (64, 64, 8), (64, 64), 1, (8, 1.118), (8, 1.163)),
    _of("anew", (64, 64, 8), (64, 32), 1, (6, 0.891), (6, 0.820)),
    _of("anew", (64, 64, 8), (32, 32), 1, (4, 0.750), (5, 0.748)),
    _of("anew", (64, 64, 16), (64, 32), 2, (3, 0.932), (3, 1.013)),
    _of("anew", (64, 64, 16), (32, 32), 2, (2, 0.800), (2, 0.800)),
    _of("anew", (32, 64, 32), (32, 64), 4, (3, 0.835), (3, 0.892)),
    _of("anew", (32, 64, 16), (32, 64), 2, (6, 0.797), (6, 0.880)),
    _of("anew", (64, 32, 32), (64, 32), 4, (3, 0.777), (3, 0.823)),
    _of("anew", (32, 32, 32), (32, 32), 4, (4, 0.628), (4, 0.641)),
    _of("anew", (32, 32, 64), (32, 32), 8, (2, 0.596), (2, 0.645)),
    _of("staged", (64, 128, 16), (64, 32), 1, (2, 0.581), (3, 0.632), STAGES=3),
    _of("staged", (48, 128, 32), (48, 64), 2, (2, 0.606), (2, 0.649), STAGES=3),
    _of("staged", (32, 128, 32), (32, 64), 2, (2, 0.586), (3, 0.643), STAGES=3),
    _of("staged", (64, 64, 32), (64, 32), 4, (1, 0.758), (1, 0.800), STAGES=3),
    _of("staged", (64, 64, 32), (32, 32), 2, (2, 0.687), (2, 0.675), STAGES=3),
    _of("staged", (64, 64, 32), (64, 32), 2, (2, 0.619), (3, 0.677), STAGES=3),
    _of("staged", (32, 64, 32), (32, 64), 4, (2, 0.620), (3, 0.645), STAGES=3),
    _of("staged", (16, 128, 32), (16, 128), 4, (2, 0.585), (3, 0.547), STAGES=4),
    _of("staged", (24, 64, 64), (24, 64), 4, (2, 0.570), (3, 0.558), STAGES=3),
    _of("staged", (32, 32, 64), (32, 32), 8, (2, 0.587), (2, 0.572), STAGES=3),
    _of("staged", (32, 32, 32), (32, 32), 4, (4, 0.700), (4, 0.700), STAGES=3),
    _of("staged", (32, 32, 64), (32, 32), 4, (3, 0.619), (4, 0.594), STAGES=3),
    _of("staged", (16, 64, 64), (16, 64), 4, (3, 0.599), (3, 0.524), STAGES=3),
    _of("staged", (8, 128, 64), (8, 128), 4, (2, 0.490), (2, 0.462), STAGES=3),
    _of("staged", (8, 128, 64), (8, 128), 4, (1, 0.618), (1, 0.587), STAGES=4),
    _of("staged", (8, 64, 64), (8, 64), 4, (3, 0.473), (4, 0.483), STAGES=3),
)


class _Product(NamedTuple):
    """A product to compute. along: whether B is contiguous along k. unaligned: how many of A and B have no rows of
    whole vectors."""

    batch: int
    m: int
    n: int
    k: int
    along: bool
    unaligned: int
    processors: int

    def tiles(self, candidate: Candidate) -> int:
        return self.batch * cdiv(self.m, candidate.bm) * cdiv(self.n, candidate.bn)

    def resident(self, candidate: Candidate) -> int:
        return (candidate.along if self.along else candidate.across)[0]


def _piece(candidate: Candidate, parts: int) -> int:
    """Vectors that a CTA adds up at once: of few parts several, so that enough loads are in flight."""
    held = candidate.bm * candidate.bn // (128 * candidate.warps)  # vectors of a thread, if all have some
    return next(count for count in (4, 2, 1) if count == 1 or (held % count == 0 and count * parts <= 16))


def _known(product: _Product, candidate: Candidate) -> bool:
    """Whether such tiles were timed for so many rows: neither far more rows than that nor far fewer."""
    if product.m <= 16:
        return candidate.bm <= (16 if product.m <= 4 else 32)
    return candidate.bm >= 16 or product.m <= 48


def _splits(product: _Product, candidate: Candidate) -> Iterator[tuple[int, int]]:
    """Numbers of parts worth a look, and of tiles before those in parts: parts that fill the SMs a few times, and
    small ones, of all tiles, or of those behind whole waves."""
    tiles, bk = product.tiles(candidate), candidate.bk
    least = max(2, 64 // bk) if bk < 32 else 2  # steps along k of a part
    size = tiles * candidate.bm * candidate.bn
    most = min(cdiv(product.k, bk) // least, WORKSPACE // size, MOST_PARTS)
    slots = product.processors * product.resident(candidate)
    full = {slots * rounds // (2 * tiles) for rounds in (1, 2, 4, 6, 8)}
    full |= {product.processors * rounds // tiles for rounds in (1, 2, 3)}
    small = range(2, 9) if 4 * tiles > slots else ()
    yield 1, 0
    for parts in sorted({min(parts, most) for parts in full | set(small)} - {0, 1}):
        yield parts, 0
    waves, last = divmod(tiles, slots)
    for rest in (last, last + slots)[: waves if last else 0]:
        for parts in range(2, min(13, most + 1)):
            if rest * parts % slots > slots // 2 or rest * parts % slots == 0:
                yield parts, tiles - rest


class EstimateF32(NamedTuple):
    """Microseconds that the model expects. Of `compute` (FFMAs, and waiting for their operands), `memory` and `l2` the
    longest counts, and a little of the others. reduction: of parts of k."""

    launch: float
    compute: float
    memory: float
    l2: float
    reduction: float

    @property
    def total(self) -> float:
        return self.launch + sum(bound**5 for bound in (self.compute, self.memory, self.l2)) ** 0.2 + self.reduction


def _time(product: _Product, candidate: Candidate, parts: int, whole: int = 0) -> float:
    return _estimate(product, candidate, parts, whole).total


def _estimate(product: _Product, candidate: Candidate, parts: int, whole: int = 0) -> EstimateF32:
    batch, m, n, k, along, unaligned, processors = product
    kind = KINDS[candidate.consts["SCHEDULE"]]
    resident, rate = candidate.along if along else candidate.across
    bm, bn, bk = candidate.bm, candidate.bn, candidate.bk
    once = batch * (m * k + k * n + m * n) * BYTES
    all_steps, tiles = cdiv(k, bk), product.tiles(candidate)
    staged = tiles * (bm + bn) * bk * all_steps * BYTES
    fresh = kind.step + kind.fresh * min(1, once / max(staged, 1))
    sliced = SLICED if candidate.consts["SLICES"] > 1 else 0.0

    def rounds(ctas: int, steps: int) -> tuple[float, int]:
        """Of CTAs of so many steps along k; and the most that an SM has."""
        work = bm * bn * bk * steps / (RATE * rate * exp(-kind.unaligned * unaligned))
        alone = hypot(work * (1 + kind.stall / candidate.warps), steps * fresh / candidate.ahead)

        def together(count: int) -> float:
            """`count` CTAs on each SM."""
            if not count:
                return 0.0
            return ((count * work) ** 4 + alone**4) ** 0.25 + kind.fixed + sliced + kind.each * count

        full, rest = divmod(ctas, processors * resident)
        return full * together(resident) + together(cdiv(rest, processors)), full * resident + cdiv(rest, processors)

    split = (tiles - whole) * parts
    before, most_before = rounds(whole, all_steps)
    behind, most = rounds(split, cdiv(all_steps, parts))
    uneven = ((most_before * parts + most) * processors / max(whole * parts + split, 1)) ** UNEVEN
    reduction = 0.0
    if parts > 1:
        size = bm * bn * BYTES
        reduction += PARTS + 2 * size / ADDED + 2 * split * size / EXCHANGED
    return EstimateF32(START, before + behind, uneven * once / MEMORY, uneven * staged / L2, reduction)


def choose(m: int, n: int, k: int, format: str = "f32", processors: int = PROCESSORS) -> dict[str, Any]:
    """The consts for a product of m x n x k of aligned matrices in row order, without workspaces: k in one part."""
    product = _Product(1, m, n, k, False, 0, processors)
    known = [candidate for candidate in CANDIDATES if _known(product, candidate)]
    return min(known, key=lambda candidate: _time(product, candidate, 1)).consts


class PlanF32(NamedTuple):
    """How to call `fastest`:
    ``fastest(A, B, C, alpha, beta, bias, sums, done, plan.parts, plan.whole, **plan.consts)``.

    sums: the shape of an f32 workspace, contents undefined. done: that of a u32 workspace, which must be zero, and is
    zero again afterwards. Both are None where k is in one part; then None is passed for the workspaces, too. One may be
    larger along its first axis. Launches that may overlap, on two streams, need workspaces of their own.
    """

    consts: dict[str, Any]
    parts: int
    whole: int
    sums: tuple[int, int] | None
    done: tuple[int] | None


@cache
def plan_f32(
    batch: int,
    m: int,
    n: int,
    k: int,
    a_unit: int = 2,
    b_unit: int = 2,
    c_unit: int = 2,
    *,
    a_align: int = 16,
    b_align: int = 16,
    early: bool = True,
    batch_invariant: bool = False,
    processors: int = PROCESSORS,
) -> PlanF32:
    """How to compute `batch` products of m x n x k in f32.

    a_unit, b_unit, c_unit: the axes of stride 1 of A [batch, m, k], B [batch, k, n] and C [batch, m, n], -1: none;
    a_align, b_align: bytes, 16 or fewer, that divide the address and the other strides; all as a kernel sees them
    (`Global.unit`, `Global.align`). With c_unit=1 results are stored in vectors, too, but it is faster to exchange the
    operands: C^T = B^T A^T by views. early: the target has early launches (sm_90 and later). batch_invariant: the
    products of a row are added in the order of k, whatever m is. A bias and an epilogue change nothing: consts of their
    own, as EPILOGUE, are added by the caller.
    """
    del c_unit  # the tiles are the same
    product = _product(batch, m, n, k, a_unit, b_unit, a_align, b_align, processors)
    best, parts, whole = min(_options(product, batch_invariant), key=lambda option: _time(product, *option))
    consts, split = dict(best.consts), product.tiles(best) - whole
    if early and batch * m * n * k < EARLY:
        consts["EARLY"] = True
    if parts == 1:
        return PlanF32(consts, 1, 0, None, None)
    consts |= {"SPLIT": True, "PIECE": _piece(best, parts)}
    return PlanF32(consts, parts, whole, (split * parts, best.bm * best.bn), (split,))


def ranked_f32(
    count: int, batch: int, m: int, n: int, k: int, a_unit: int = 2, b_unit: int = 2, c_unit: int = 2, *,
    a_align: int = 16, b_align: int = 16, early: bool = True, batch_invariant: bool = False,
    processors: int = PROCESSORS,
) -> list[tuple[Candidate, int, int, EstimateF32]]:  # fmt: skip
    """The `count` fastest candidates, parts of k, and tiles before those in parts, among which `plan_f32` chooses, with
    the time that is expected."""
    del c_unit, early
    product = _product(batch, m, n, k, a_unit, b_unit, a_align, b_align, processors)
    found = [(*option, _estimate(product, *option)) for option in _options(product, batch_invariant)]
    return sorted(found, key=lambda each: each[-1].total)[:count]


def _product(
    batch: int, m: int, n: int, k: int, a_unit: int, b_unit: int, a_align: int, b_align: int, processors: int
) -> _Product:
    unaligned = (a_unit < 0 or a_align < 16) + (b_unit < 0 or b_align < 16)
    return _Product(max(batch, 1), max(m, 1), max(n, 1), k, b_unit == 1, unaligned, processors)


def _options(product: _Product, batch_invariant: bool) -> list[tuple[Candidate, int, int]]:
    """Candidates, numbers of parts, and of tiles before those in parts."""
    if batch_invariant:
        return [(c, 1, 0) for c in CANDIDATES if c.consts["SLICES"] == 1]
    return [(c, *split) for c in CANDIDATES if _known(product, c) for split in _splits(product, c)]
