"""Nothing that orders the roles of a Hopper kernel is superfluous: without any one barrier, fence, arrive, wait or
commit the checks of the emulator stop it.

Ops are taken out at thread level one by one, and at ring level with all that becomes of them: a `ring.release` with its
commit, its wait, its fence and its arrival. What is not found is listed, each with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from taken_out import is_stopped, not_found, not_found_of_text

from tiledsl import frontend
from tiledsl.backends import emulator
from tiledsl.backends.emulator import Options
from tiledsl.errors import HazardError
from tiledsl.inspect.loading import load_module
from tiledsl.ir.core import Kernel
from tiledsl.ir.ops import mem
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.passes.pipeline import run_pipeline

GEMM = Path(__file__).parents[2] / "examples" / "gemm"
LIBRARY = Path(__file__).parents[2] / "tiledsl" / "gemm"

ONE_WARPGROUP = (
    "a group of products is one of all four warps (PTX ISA: wgmma.commit_group), and no others read the tile"
)
NOT_AGAIN = "a block has one tile: nobody fills the slots of the last uses again"
ALIGNED = "lanes that roles have led apart meet for an aligned instruction (PTX ISA: barrier.cluster)"
FIRST_PIECE = "at the second piece of a tile: the first one has waited for all stores of the tile before"
TWICE = "the ring's mbarriers and the kernel's own one are initialised one after the other, and one suffices for both"
LEFT_BEFORE = "here the first cluster to come has left, and so released its sums, before the other one takes a piece"
ALL_ARRIVED = "each block of the cluster waits for all arrivals, so that none is at a block that has ended"
INSIDE = "of two rings that are used together, the use inside has waited for all products"
RELEASED = "a slot is given back when the product has read it, and then its sums are there, too"
MET = "the lanes have met for the slot that is filled inside, and have read nothing since"


@dataclass(frozen=True)
class Case:
    """Each block has several tiles, where it stays, and each tile more steps along k than the ring has stages.

    unaligned: TMA cannot store C. runs: scalars of each run; what any of them finds is found. room: the shapes of its
    workspace. ring, thread: what is not found at that level."""

    name: str
    consts: dict[str, Any]
    size: tuple[int, int, int]
    processors: int = 1
    unaligned: bool = False
    runs: tuple[dict[str, Any], ...] = ({},)
    room: tuple[tuple[int, int, int], int] | None = None
    ring: Sequence[tuple[str, str]] = ()
    thread: Sequence[tuple[str, str]] = ()


SMALL = {"BM": 64, "BN": 64}
HALVES = {"BM": 128, "BN": 64, "STAGES": 2}
BARRIER = [("gpu.barrier", ONE_WARPGROUP)]
DRAIN: Any = {"ring": [("ring.drain", NOT_AGAIN)], "thread": [("mbarrier.arrive", NOT_AGAIN)]}
SYNC: Any = {"ring": [("gpu.sync_warp", ALIGNED)], "thread": [("gpu.sync_warp", ALIGNED)]}
PARTS = [
    ("fence.mbarrier_init", TWICE),
    ("cluster.wait", ALL_ARRIVED),
]
CASES: dict[str, Case] = {
    "tma": Case("hopper_tma", SMALL, (64, 64, 192), ring=BARRIER, thread=BARRIER),
    "ring": Case("hopper_ring", {**SMALL, "STAGES": 3}, (64, 64, 256), ring=BARRIER, thread=BARRIER),
    "roles": Case("hopper_roles", HALVES, (128, 64, 192), **DRAIN),
    "one consumer": Case("hopper_roles", {**SMALL, "STAGES": 2, "CONSUMERS": 1}, (64, 64, 192), **DRAIN),
    "persistent": Case("hopper_persistent", HALVES, (256, 64, 192)),
    "persistent, cluster": Case("hopper_persistent", {**HALVES, "CLUSTER": (2, 1)}, (256, 128, 192), 2, **SYNC),
    "store": Case("hopper_store", {**HALVES, "BN": 128}, (256, 128, 192)),
    "pingpong": Case("hopper_pingpong", {**SMALL, "STAGES": 2, "OUT": 1}, (256, 64, 192)),
    "fastest": Case(
        "hopper_fastest",
        {**HALVES, "BN": 192},
        (256, 192, 192),
        ring=[("tma.wait_group", FIRST_PIECE), ("gpu.barrier", FIRST_PIECE)],
        thread=[("tma.wait_group", FIRST_PIECE), ("gpu.named_barrier", FIRST_PIECE)],
    ),
    "fastest, cluster": Case("hopper_fastest", {**HALVES, "CLUSTER": (2, 2)}, (256, 256, 192), 4, **SYNC),
    "fastest, instances": Case("hopper_fastest", {**SMALL, "STAGES": 2, "INSTANCES": 2}, (256, 64, 192)),
    "fastest, both": Case(
        "hopper_fastest",
        {**SMALL, "STAGES": 2, "INSTANCES": 2, "CLUSTER": (1, 2)},
        (256, 128, 192),
        2,
        ring=SYNC["ring"],
        thread=SYNC["thread"],
    ),
    "fastest, by lines": Case("hopper_fastest", HALVES, (256, 64, 192), unaligned=True),
    "fastest, lines in order": Case(
        "hopper_fastest",
        {**SMALL, "BM": 128, "STAGES": 2, "APART": 2},
        (256, 64, 191),
        thread=[("gpu.sync_warp", MET), ("ptx.wgmma_wait", INSIDE)],
    ),
    "fastest, parts": Case(
        "hopper_fastest",
        {**SMALL, "STAGES": 2, "INSTANCES": 2, "SPLIT": 2, "GATHER": 2},
        (64, 192, 768),
        4,
        room=((2, 6, 64 * 32), 6),
        ring=[*SYNC["ring"], *PARTS, ("gpu.barrier", LEFT_BEFORE)],
        thread=[*SYNC["thread"], *PARTS, ("gpu.named_barrier", LEFT_BEFORE)],
    ),
    "scaled": Case(
        "hopper_scaled",
        {"STAGES": 2},
        (128, 128, 384),
        ring=[("wgmma.wait", RELEASED)],
        thread=[("ptx.wgmma_wait", RELEASED)],
    ),
    "split": Case(
        "hopper_split",
        {"BN": 64, "STAGES": 2},
        (128, 64, 96),
        ring=[("wgmma.wait", RELEASED)],
        thread=[("ptx.wgmma_wait", RELEASED)],
    ),
    "int4": Case(
        "hopper_int4",
        {"STAGES": 2},
        (16, 64, 384),
        ring=[("wgmma.wait", RELEASED)],
        thread=[("ptx.wgmma_wait", RELEASED)],
    ),
    "mma": Case(
        "mma_fastest",
        {**SMALL, "BK": 64, "STAGES": 2, "WARPS": (2, 2), "TMA": True},
        (128, 64, 192),
        runs=({}, {"beta": 0.5}),
        ring=[("ring.make", TWICE), ("gpu.barrier", TWICE)],
        thread=[("fence.mbarrier_init", TWICE), *[("gpu.barrier", TWICE)] * 2],
    ),
}


@dataclass
class Called:
    """What calls run. written: as the frontend makes it; each op stands in a line of its text. lowered: with places in
    that text. arguments: of each run."""

    written: Kernel
    lowered: Kernel
    arguments: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


@cache
def called(name: str) -> Called:
    case = CASES[name]
    m, n, k = case.size
    rng = np.random.default_rng(0)
    shapes = {"A": (m, k), "B": (k, n), "C": (m, n)}
    arrays = {n: rng.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for n, shape in shapes.items()}
    if case.name == "hopper_scaled":
        eight = ((n, arrays[n].T if n == "B" else arrays[n]) for n in "AB")
        arrays |= {n: np.ascontiguousarray(array).astype(ml_dtypes.float8_e4m3fn) for n, array in eight}
        arrays |= {
            f"scale_{n}": np.ones((-(-extent // by), k // 128), np.float32)
            for n, extent, by in (("a", case.size[0], 1), ("b", case.size[1], 128))
        }
    if case.name == "hopper_split":
        arrays |= {n: np.ascontiguousarray(np.stack([arrays[n].T if n == "B" else arrays[n]] * 3)) for n in "AB"}
        arrays["C"] = arrays["C"].astype(np.float32)
    if case.name == "hopper_int4":
        q = rng.integers(0, 16, (k, n), np.uint8)
        file = load_module(GEMM / "hopper_int4.py")
        arrays = {"W": file.packed(q), "X": arrays["A"], "C": arrays["C"], "scales": np.ones((k // 128, n), np.float32)}
    if case.unaligned:
        arrays["C"] = np.pad(arrays["C"], ((0, 0), (0, 1)))[:, :-1]
    if case.name == "hopper_fastest":  # it takes batches
        arrays = {n: array[None] for n, array in arrays.items()}
    if case.room is not None:
        arrays |= {"sums": np.full(case.room[0], np.nan, np.float32), "done": np.zeros(case.room[1], np.uint32)}
    built: list[Kernel] = []
    arguments: list[dict[str, Any]] = []
    build = frontend.build

    def keep(prepared: emulator.Prepared, given: dict[str, Any], options: Any) -> None:
        arguments.append(given)

    def build_and_keep(*args: Any) -> Kernel:
        built.append(build(*args))
        return built[-1].clone()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(GEMM), *sys.path])
        patch.setattr(emulator.Prepared, "run", keep)
        patch.setattr(frontend, "build", build_and_keep)
        kernel = getattr(import_module(case.name), case.name)
        for scalars in case.runs:
            kernel(**arrays, **scalars, device="emulator", **case.consts)
    written = parse_kernel(print_kernel(built[0]))
    written.externals = built[0].externals
    return Called(written, run_pipeline(written.clone(), bounds=True), arguments)


def run(name: str, kernel: Kernel) -> None:
    """On a workspace as at first, which a run that was stopped does not leave."""
    for arguments in called(name).arguments:
        room = {n: arguments[n].copy() for n in ("sums", "done") if arguments.get(n) is not None}
        emulator.run(kernel, arguments | room, options=Options(checks=True, processors=CASES[name].processors))


@cache
def is_found(name: str, numbers: tuple[int, ...]) -> bool:
    return is_stopped(called(name).lowered, numbers, partial(run, name))


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_found_as_it_stands(name: str) -> None:
    run(name, called(name).lowered)


@pytest.mark.parametrize("name", CASES)
def test_each_barrier_fence_arrive_and_wait_is_needed(name: str) -> None:
    left = not_found(called(name).lowered, partial(is_found, name))
    assert left == sorted(op for op, _ in CASES[name].thread)


@pytest.mark.parametrize("name", CASES)
def test_each_op_of_rings_and_roles_is_needed(name: str) -> None:
    """An op of the text that the frontend makes is taken out: all that it orders."""
    left = not_found_of_text(called(name).written, called(name).lowered, partial(is_found, name))
    assert left == sorted(op for op, _ in CASES[name].ring)


@pytest.mark.parametrize(
    ("attribute", "weaker"),
    [("order", "relaxed"), ("order", "acquire"), ("order", "release"), ("reach", "cta"), ("reach", "cluster")],
)
def test_the_count_of_clusters_needs_its_order_and_scope(attribute: str, weaker: str) -> None:
    """A cluster that adds up a piece reads what all have stored."""
    kernel = called("fastest, parts").lowered.clone()
    counts = [op for op in kernel.walk() if isinstance(op, mem.Atomic) and op.fn.name == "add"]
    assert [count.order for count in counts] == ["acq_rel"], "to come"
    setattr(counts[0], attribute, weaker)
    with pytest.raises(HazardError, match=r"race: .* of block \(.*\) .* of block \(.*\)"):
        run("fastest, parts", kernel)


def test_kernels_of_the_gallery_with_rings_or_roles_are_all_here() -> None:
    texts = (*GEMM.glob("*.py"), *LIBRARY.glob("*.py"))
    files = {p.stem for p in texts if any(word in p.read_text() for word in (" Ring(", " role(", "mbarrier"))}
    library = {"hopper": "hopper_fastest", "split_k": "hopper_fastest", "mma": "mma_fastest", "int4": "hopper_int4"}
    apart = {"grouped", "grouped_call"}  # one text more with the ring, the roles and the stores of `hopper_fastest`
    assert {library.get(name, name) for name in files - apart} == {case.name for case in CASES.values()}
