"""What a product is, as far as the choice of a kernel depends on it, and how it is computed.

`plan` chooses. Everything that it may look at is in `Problem`; everything that a call does follows from the `Plan`
(`steps.py`). So a choice can be tested and tuned without arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import gcd
from typing import Any, NamedTuple

from tiledsl.arch import TARGETS
from tiledsl.errors import KernelArgumentError
from tiledsl.gemm import mma
from tiledsl.gemm.choice import FEW_REGISTERS, SECTOR, Request, Variant, best, best_in_time, within_sectors
from tiledsl.gemm.ffma import fastest
from tiledsl.gemm.ffma_choice import PlanF32, Product, plan_f32
from tiledsl.gemm.formats import FORMATS, Format, Residues, Split
from tiledsl.gemm.hopper import hopper_fastest
from tiledsl.gemm.promoted import ROOM_OF_SCALES
from tiledsl.gemm.residues import LARGEST_K
from tiledsl.ir.types import DTYPES, F32
from tiledsl.kernel import TileKernel

EARLY = 1 << 34
"""Multiplications, under which a product is small enough to gain from early launches."""
PAD, COPY = 500, 4000
"""A launch that transposes an operand of `fastest` takes PAD, in ns, and reads and writes at the rate COPY, in bytes a
ns."""
ALIGNED = 16
"""Bytes of a vector."""
WORTH = 0.03
"""A result's rows that begin within sectors are looked at if these cost at most more than such a share of the time."""


class Problem(NamedTuple):
    """`batch` products of m x n x k.

    dtype: of A and B, tf32 if f32 is multiplied so; dtype_b: of B, if it differs. out: of C. unit_a, unit_b, unit_c: of
    [batch, rows, columns] the axis along which elements are neighbours in memory, 1 or 2, or 0 for none. tma_a, tma_b:
    TMA can read the operand. tma_c: TMA can store C. apart_a, apart_b: TMA cannot read the operand as it is, but in
    parts (`hopper_apart.parts_of`). add_c: beta is not 0. bias: one is given. epilogue: there is an epilogue function
    other than the default. arch: name of the target.
    processors: its SMs. batch_invariant: the order in which a row's products are added must not depend on m.
    promoted, split: as of `Format`. scaled: promoted sums by blocks, which are not exchanged, since their scales are of
    rows of A; others by rows of A and columns of B.
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: str = "bf16"
    out: str = "bf16"
    unit_a: int = 2
    unit_b: int = 2
    unit_c: int = 2
    tma_a: bool = True
    tma_b: bool = True
    tma_c: bool = True
    apart_a: bool = False
    apart_b: bool = False
    add_c: bool = False
    bias: bool = False
    epilogue: bool = False
    arch: str = "sm_90a"
    processors: int = 132
    batch_invariant: bool = False
    dtype_b: str = ""
    promoted: bool = False
    scaled: bool = False
    split: Split | Residues | None = None

    @property
    def format(self) -> Format:
        return FORMATS[self.dtype, self.dtype_b or self.dtype]

    @property
    def by_blocks(self) -> bool:
        return self.scaled and self.promoted


class Plan(NamedTuple):
    """One launch of `kernel` with `consts`, and what it needs.

    The kernel has the parameters A, B, C, alpha, beta and, if it can add one, bias. If these have two axes, it is
    launched for each product of the batch. Of the consts ADD_C, EPILOGUE, EARLY and EXCHANGED it gets those that it
    has; they are not in `consts`.

    pad_a, pad_b: the operand is first copied to a workspace, in aligned rows; in its own order, or, with along_k, along
    k, or, with across_k, across it. split: both are copied as planes, or as residues. exchanged: it is computed as
    C^T = B^T A^T: the kernel gets B, A and C with their matrix axes swapped, and adds the bias along rows. sums:
    shape of the f32 workspace that is the argument `sums`, or None. done: length of the u32 workspace `done`, which is
    zero before and after the launch; 0 for none. numbers: integer arguments by name. early: the kernels of this product
    may start before the previous kernel of the stream has ended; they wait for it themselves. every_other: A and C are
    two matrices each, of every other row; the const SHIFT moves tiles of the second to where sectors begin.
    """

    kernel: TileKernel
    consts: dict[str, Any]
    exchanged: bool = False
    pad_a: bool = False
    pad_b: bool = False
    along_k: bool = False
    across_k: bool = False
    split: Split | Residues | None = None
    sums: tuple[int, ...] | None = None
    done: int = 0
    numbers: Mapping[str, int] = {}
    early: bool = False
    every_other: bool = False


@cache
def plan(problem: Problem) -> Plan:
    """How to compute this product. Raises KernelArgumentError if no kernel can."""
    # Products by residues have factors of f64, also without k.
    if isinstance(problem.split, Residues) or (problem.split and problem.k):
        return _by_tensor_cores(problem, problem.split)
    if problem.dtype == "f32":
        return _for_f32(problem)
    # Nothing can be contiguous along a k of 0.
    if "wgmma" in TARGETS[problem.arch].features and (problem.k or not problem.format.along_k):
        return _for_wgmma(problem)
    return _for_mma(problem)


def _for_mma(problem: Problem) -> Plan:
    """By `mma_fastest`, which takes operands of any order."""
    target, eight_bits = TARGETS[problem.arch], {problem.dtype, problem.dtype_b, problem.out} & {"e4m3", "e5m2"}
    if eight_bits and "fp8" not in target.features:
        message = f"gemm(): {' and '.join(sorted(eight_bits))} on {target.name}, which has no instructions for them"
        raise KernelArgumentError(f"{message}\n  fix: use sm_89 or later, or bf16 or f16")
    if (problem.promoted or problem.scaled) and problem.k:
        asked = "scale_a and scale_b are given" if problem.scaled else "precision is 'promoted'"
        message = f"gemm(): {asked} on {target.name}, and only the kernel for wgmma does that"
        raise KernelArgumentError(f"{message}\n  fix: leave that out, or use sm_90a")
    consts = mma.choose(
        problem.m, problem.n, problem.k, problem.dtype, problem.arch,
        along_k=problem.unit_a == 2 and problem.unit_b == 1, processors=problem.processors,
    )  # fmt: skip
    return Plan(mma.mma_fastest, consts)


def _for_f32(problem: Problem) -> Plan:
    """By `fastest`. A result by columns is computed as a transposed one by rows, if nothing is done to its columns. A B
    that is contiguous along k, which the kernel would transpose for each row of tiles, is transposed before if that
    takes less time."""
    features, (product, exchanged) = TARGETS[problem.arch].features, choice_of_f32(problem)
    options = {"early": "griddepcontrol" in features, "batch_invariant": problem.batch_invariant}
    chosen = plan_f32(product, **options)
    if product.along and "wgmma" in features:
        copied = plan_f32(choice_of_f32(problem, across_k=True)[0], **options)
        if copied.us + 1e-3 * (PAD + 2 * F32.bytes * product.batch * product.n * product.k / COPY) < chosen.us:
            return of_plan_f32(copied, exchanged)._replace(pad_a=exchanged, pad_b=not exchanged, across_k=True)
    return of_plan_f32(chosen, exchanged)


def of_plan_f32(chosen: PlanF32, exchanged: bool = False) -> Plan:
    """As a `Plan`."""
    done = chosen.sums[1] if chosen.sums else 0
    early, numbers = chosen.consts.get("EARLY", False), {"whole": chosen.whole}
    return Plan(fastest, chosen.consts, exchanged, sums=chosen.sums, done=done, numbers=numbers, early=early)


def choice_of_f32(problem: Problem, *, across_k: bool = False) -> tuple[Product, bool]:
    """What `fastest` computes, and whether that is the transposed product. across_k: the kernel's B is copied first."""
    batch, m, n = (max(extent, 1) for extent in problem[:3])
    along = problem.unit_b == 1
    aligned = [problem.unit_a > 0 and problem.tma_a, problem.unit_b > 0 and problem.tma_b]
    exchanged = problem.unit_c == 1 and not (problem.bias or problem.epilogue)
    if exchanged:
        m, n, along, aligned = n, m, problem.unit_a == 2, aligned[::-1]
    if across_k:
        along, aligned[1] = False, True
    return Product(batch, m, n, problem.k, along, aligned.count(False), problem.processors), exchanged


def _for_wgmma(problem: Problem) -> Plan:
    """By `hopper_fastest`. Operands that TMA cannot read are padded first, or, of 16-bit elements, loaded in parts;
    those that wgmma reads along k only are transposed if they are not contiguous along it. A row's products are added
    32 bytes at a time along k whatever the tile is, so that parts of k alone make its bits depend on m."""
    time, chosen = best_in_time(choice_of(problem))
    if _has_two(problem) and within_sectors(problem.m, problem.n, DTYPES[problem.out].bytes) > WORTH * time:
        less, other = best_in_time(choice_as_two(problem))
        if less < time:
            return as_two(problem, other)
    return by_variant(problem, chosen)


def _has_two(problem: Problem) -> bool:
    """Whether every other row of A and C is a matrix that TMA can load and store, and nothing is added to the sums. An
    accumulator's columns are known by 8."""
    plain = not (problem.add_c or problem.bias or problem.epilogue or problem.promoted or problem.scaled)
    by_tma = problem.tma_a and problem.tma_b and problem.tma_c and DTYPES[problem.out].bytes <= 2
    return plain and by_tma and problem.unit_a == problem.unit_c == 2 and problem.batch == 1 and problem.m % 2 == 0


def choice_as_two(problem: Problem) -> Request:
    """As `choice_of`, for two products: of every other row of A and C."""
    return choice_of(problem._replace(batch=2, m=problem.m // 2))._replace(exchange=False, whole=True)


def as_two(problem: Problem, chosen: Variant) -> Plan:
    """Two products by this variant."""
    plan, shift = by_variant(problem, chosen), SECTOR // 2 // DTYPES[problem.out].bytes
    return plan._replace(consts=plan.consts | {"SHIFT": shift}, every_other=True)


def _by_tensor_cores(problem: Problem, split: Split | Residues) -> Plan:
    """By `hopper_fastest`, of operands that are split first. The choice is that of 16-bit operands along k, where k has
    all planes, or of i8, where the batch has all residues."""
    if "wgmma" not in TARGETS[problem.arch].features:
        message = f"gemm(): precision is {split.name!r} on {problem.arch}, and only the kernel for wgmma multiplies so"
        raise KernelArgumentError(f"{message}\n  fix: leave that out, or use sm_90a")
    if isinstance(split, Split):
        return planes_by_variant(problem, split, best(choice_of_planes(problem, split)))
    if problem.k > LARGEST_K:
        message = f"gemm(): K is {problem.k}; with precision {split.name!r} it may be {LARGEST_K}"
        raise KernelArgumentError(f"{message}\n  fix: add up products of parts of K, with beta=1")
    ordered = {"unit_a": 2, "unit_b": 1, "unit_c": 2, **dict.fromkeys(("tma_a", "tma_b", "tma_c"), True)}
    plain = {**dict.fromkeys(("apart_a", "apart_b", "add_c"), False), "bias": True, "epilogue": True, "split": None}
    product = problem._replace(batch=problem.batch * split.moduli, dtype="i8", out="i8", **ordered, **plain)
    return by_variant(product, best(choice_of(product)))._replace(split=split)


def choice_of_planes(problem: Problem, split: Split) -> Request:
    """As `choice_of`, of operands that are split first."""
    as_planes = {"k": problem.k * split.planes, "dtype": split.dtype.name, "unit_a": 2, "unit_b": 1}
    return choice_of(problem._replace(**as_planes, promoted=True))._replace(split=split)


def planes_by_variant(problem: Problem, split: Split, chosen: Variant) -> Plan:
    """By this variant of `hopper_fastest`, of operands that are split first."""
    consts = chosen.consts(0, F32.bytes, problem.tma_c, step=split.columns) | {"PLANES": split.planes}
    early = bool(chosen.parts) or problem.batch * problem.m * problem.n * problem.k < EARLY
    return _with_groups(Plan(hopper_fastest, consts, chosen.exchanged, split=split, early=early), problem, chosen)


def choice_of(problem: Problem) -> Request:
    """What `hopper_fastest` is asked for."""
    # The addresses of stores that TMA cannot do need registers.
    finishing = problem.bias or problem.epilogue or (problem.scaled and not problem.promoted)
    behind = problem.add_c + finishing if problem.tma_c else FEW_REGISTERS
    # Of an empty operand the last axis always counts as contiguous, also of a transposed one.
    along_k = (problem.unit_a != 1, problem.unit_b == 1) if problem.k else (False, False)
    if problem.format.along_k:
        along_k = (True, True)
    parted, sizes = not problem.batch_invariant, (problem.format.bytes, DTYPES[problem.out].bytes)
    more = loads_apart(problem), problem.promoted, *sizes, not problem.by_blocks
    unaligned = (False, False) if problem.format.along_k else (not problem.tma_a, not problem.tma_b)
    # Addresses are taken to be as aligned as rows.
    row = sizes[1] * (1, problem.m, problem.n)[problem.unit_c]
    by_threads = 0 if problem.tma_c else sizes[1] / gcd(row, ALIGNED)
    numbers = *problem[:4], along_k, behind, problem.processors, parted
    return Request(*numbers, *more, unaligned=unaligned, by_threads=by_threads)


def loads_apart(problem: Problem) -> bool:
    """Whether TMA can load in parts what it cannot read as it is."""
    loads = (problem.tma_a or problem.apart_a) and (problem.tma_b or problem.apart_b)
    return loads and not (problem.tma_a and problem.tma_b) and not problem.format.along_k


def by_variant(problem: Problem, chosen: Variant) -> Plan:
    """By this variant of `hopper_fastest`. Unless it loads them in parts, operands that TMA cannot read are padded
    first. Large products do not launch early: that was slower, or no faster."""
    batch, m, n, k = problem[:4]
    format, unaligned = problem.format, (not problem.tma_a, not problem.tma_b)
    padded = (False, False) if chosen.apart else unaligned
    if format.along_k:
        padded = padded[0] or problem.unit_a != 2, padded[1] or problem.unit_b != 1
    early = bool(chosen.parts) or batch * m * n * k < EARLY
    if problem.promoted and not problem.by_blocks:
        k = 0  # all steps have 128 elements, also where deeper ones would be faster
    beside = ROOM_OF_SCALES if problem.by_blocks else 0
    stored = DTYPES[problem.out].bytes, problem.tma_c
    consts = (
        chosen.consts_apart(k, unaligned, *stored) if chosen.apart else chosen.consts(k, *stored, format.bytes, beside)
    )
    consts |= {"PROMOTED": True} if problem.promoted else {}
    consts |= {"HALVES": True} if problem.promoted and chosen.in_halves else {}
    consts |= {"SCALED": True} if problem.scaled else {}
    plan = Plan(hopper_fastest, consts, chosen.exchanged, *padded, format.along_k, early=early)
    return _with_groups(plan, problem, chosen)


def _with_groups(plan: Plan, problem: Problem, chosen: Variant) -> Plan:
    """With the workspace of several clusters that share a tile."""
    if chosen.groups == 1:
        return plan
    sums = chosen.workspace(problem.batch * chosen.tiles(problem.m, problem.n))
    return plan._replace(sums=sums, done=sums[1])
