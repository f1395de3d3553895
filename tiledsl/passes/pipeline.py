"""The order of the passes, and why: from a tile-level kernel to the thread level that backends take."""

from __future__ import annotations

from typing import Callable

from tiledsl.ir.core import Kernel
from tiledsl.passes.banks.bank_conflicts import BankConflicts
from tiledsl.passes.banks.merge_accesses import MergeAccesses
from tiledsl.passes.banks.shared_layout import CheckSharedMemory
from tiledsl.passes.checks.accesses import check_accesses
from tiledsl.passes.checks.collectives import check_collectives
from tiledsl.passes.checks.hopper import check_hopper
from tiledsl.passes.checks.spins import check_spins
from tiledsl.passes.cooperation.lower_roles import COOPERATION
from tiledsl.passes.distribute.distribute import distribute
from tiledsl.passes.lower.expand import Expand
from tiledsl.passes.manager import FunctionPass, Pass, PassManager
from tiledsl.passes.pipelining.async_groups import group_copies
from tiledsl.passes.pipelining.loops import pipeline_loops
from tiledsl.passes.pipelining.predicate_copies import predicate_copies
from tiledsl.passes.scalar.canonicalize import canonicalize
from tiledsl.passes.scalar.cse import merge_common_subexpressions
from tiledsl.passes.scalar.dce import drop_dead_code
from tiledsl.passes.scalar.index_width import widen_indices
from tiledsl.passes.scalar.licm import move_loop_invariants
from tiledsl.passes.scalar.order_chains import order_chains
from tiledsl.passes.scalar.unroll import Unroll

__all__ = ["named_passes", "pipeline", "run_pipeline", "stages"]


def pipeline(*, shared_limit: int | None = None, target: str = "", bounds: bool = False) -> list[Pass]:
    """All passes in order. `shared_limit`: the most bytes of shared memory that `target` gives a block. `bounds`: for
    the emulator, with checks of what is not proven to stay inside its memory (`expand`)."""
    checks: list[Pass] = [CheckSharedMemory(shared_limit, target)] if shared_limit is not None else []
    return [
        # Tile level. First, so that what follows knows branches, loops and barriers alone. Rings before roles: the role
        # around says who waits and arrives.
        *COOPERATION,
        # Conditions and bounds that are constant vanish before anything judges or copies them.
        FunctionPass("canonicalize", canonicalize),
        # On the user's own control flow: later, expand adds branches and unroll copies.
        FunctionPass("check-collectives", check_collectives),
        # On the loops as they were written, too.
        FunctionPass("check-spins", check_spins),
        # While a loop's body is still as it was written. Before layouts are chosen, so that capacity, alignment and
        # wavefronts are those of the buffers that there will be.
        FunctionPass("pipeline", pipeline_loops),
        # Makes indices constant: the checks below and the immediates of expand live on that.
        Unroll(),
        # Counts groups in every copy of a loop's body that there will be, while copies are still whole.
        FunctionPass("async-groups", group_copies),
        # Copies become accesses by then, at the latest: layouts are chosen and alignment is proven for those.
        FunctionPass("distribute", distribute),
        # Proves what expand relies on; last moment at which tensors, tiles and indices are still known.
        FunctionPass("check-accesses", check_accesses),
        # The same for TMA and wgmma, which reach memory by tensor maps and descriptors.
        FunctionPass("check-hopper", check_hopper),
        # On accesses that are right as the user wrote them, so that no error speaks of a vector nobody asked for; and
        # before wavefronts are counted, which then are those of the accesses that the machine makes.
        MergeAccesses(shared_limit),
        # Sees every access to shared memory as it will be, with its width proven; what it chooses, expand addresses.
        BankConflicts(shared_limit),
        # Of the bytes that the layouts take.
        *checks,
        # Last thing at tile level, on every index that there is: what it leaves, expand may give 32 bits.
        FunctionPass("index-width", widen_indices),
        # Thread level from here on.
        Expand(bounds),
        # Before what follows looks at blocks: the arithmetic of the copies' addresses then stands with its like.
        FunctionPass("predicate-copies", predicate_copies),
        # Folds the extents, strides and casts that expand has spelled out.
        FunctionPass("canonicalize", canonicalize),
        # First, so that equal invariants of a loop are moved once.
        FunctionPass("cse", merge_common_subexpressions),
        FunctionPass("licm", move_loop_invariants),
        # Again: what left different loops now meets in one block.
        FunctionPass("cse", merge_common_subexpressions),
        # Everything above leaves unused ops behind.
        FunctionPass("dce", drop_dead_code),
        # Last, since every other pass may move ops.
        FunctionPass("order-chains", order_chains),
    ]


def stages() -> list[str]:
    """Names of the stages: ``Compiled.ir("after:cse")`` is the kernel after the pass of that name."""
    return PassManager(pipeline(shared_limit=0)).stages


def named_passes(*, shared_limit: int, target: str) -> dict[str, Pass]:
    """Every pass by its name; see `pipeline`."""
    return {each.name: each for each in pipeline(shared_limit=shared_limit, target=target)}


def run_pipeline(
    kernel: Kernel,
    *,
    shared_limit: int | None = None,
    target: str = "",
    bounds: bool = False,
    verify_each: bool = False,
    observe: Callable[[str, Kernel], None] | None = None,
) -> Kernel:
    """Take `kernel` from tile level to thread level, in place; returns it.

    shared_limit, target, bounds: see `pipeline`; without a limit, any amount of shared memory passes.
    verify_each: check the IR's invariants after each pass. observe: called with (stage, kernel) after each.
    Raises CompileError where the kernel asks for what cannot be had.
    """
    passes = pipeline(shared_limit=shared_limit, target=target, bounds=bounds)
    return PassManager(passes, verify_each, observe).run(kernel)
