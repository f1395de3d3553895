"""The order of the passes, and why: from a tile-level kernel to the thread level that backends take."""

from __future__ import annotations

from functools import partial

from tiledsl.ir.core import Kernel
from tiledsl.passes.banks.bank_conflicts import choose_layouts
from tiledsl.passes.banks.merge_accesses import merge_accesses
from tiledsl.passes.banks.shared_layout import check_shared_memory
from tiledsl.passes.checks.accesses import check_accesses
from tiledsl.passes.checks.collectives import check_collectives
from tiledsl.passes.checks.early import check_early
from tiledsl.passes.checks.hopper import check_hopper
from tiledsl.passes.checks.spins import check_spins
from tiledsl.passes.cooperation.lower_roles import COOPERATION
from tiledsl.passes.distribute.distribute import distribute
from tiledsl.passes.lower.expand import expand
from tiledsl.passes.lower.stamps import insert_stamps
from tiledsl.passes.manager import Observer, Pass, run_passes, stages_of
from tiledsl.passes.pipelining.async_groups import group_copies
from tiledsl.passes.pipelining.loops import pipeline_loops
from tiledsl.passes.pipelining.predicate_copies import predicate_copies
from tiledsl.passes.scalar.canonicalize import canonicalize
from tiledsl.passes.scalar.ceil_division import lower_ceil_divisions
from tiledsl.passes.scalar.cse import merge_common_subexpressions
from tiledsl.passes.scalar.dce import drop_dead_code
from tiledsl.passes.scalar.index_width import widen_indices
from tiledsl.passes.scalar.licm import move_loop_invariants
from tiledsl.passes.scalar.order_chains import order_chains
from tiledsl.passes.scalar.unroll import unroll


def pipeline(
    *, shared_limit: int | None = None, target: str = "", bounds: bool = False, stamps: bool = False
) -> list[Pass]:
    """All passes in order. `shared_limit`: bytes of shared memory that `target` allows a block. `bounds`: for the
    emulator, with checks of accesses that are not proven in bounds (`expand`). `stamps`: for a run that is measured."""
    checks: list[Pass] = []
    if shared_limit is not None:
        checks.append(Pass("check-shared-memory", partial(check_shared_memory, limit=shared_limit, target=target)))
    return [
        # Tile level. Rings and roles are lowered first: later passes see branches, loops and barriers only. Rings come
        # before roles, since the enclosing role says which threads wait and arrive.
        *COOPERATION,
        # Before canonicalize, which makes shifts of most of the quotients.
        Pass("ceil-division", lower_ceil_divisions),
        # Constant conditions and bounds are folded before later passes check or copy what they control.
        Pass("canonicalize", canonicalize),
        # On the user's own control flow, before unroll copies it and expand adds branches.
        Pass("check-collectives", check_collectives),
        # Also on the loops as they were written.
        Pass("check-spins", check_spins),
        Pass("check-early", check_early),
        # While a loop's body is as it was written, and before layouts are chosen, so that capacity, alignment and
        # wavefronts are those of the multiplied buffers.
        Pass("pipeline", pipeline_loops),
        # Makes indices constant, which the checks below and the immediate offsets of expand need.
        Pass("unroll", unroll),
        # After unrolling, since each copy of a body commits groups; before distribute splits the asynchronous copies.
        Pass("async-groups", group_copies),
        # Expands copies into accesses per thread, for which layouts are chosen and alignment is proven below.
        Pass("distribute", distribute),
        # Proves what expand relies on, while tensors, tiles and indices are still known.
        Pass("check-accesses", check_accesses),
        # The same for TMA and wgmma, which reach memory by tensor maps and descriptors.
        Pass("check-hopper", check_hopper),
        # After the checks: no error mentions a vector that the user did not write. Before wavefronts are counted, which
        # are then those of the machine's accesses.
        Pass("merge-accesses", partial(merge_accesses, limit=shared_limit)),
        # Sees every access to shared memory in its final width; expand computes addresses with the layouts chosen here.
        Pass("bank-conflict", partial(choose_layouts, limit=shared_limit)),
        # Checks that the chosen layouts fit.
        *checks,
        # Last at tile level, when all indices exist: expand uses 32 bits for every index that this pass does not widen.
        Pass("index-width", partial(widen_indices, bounds=bounds)),
        # Thread level from here on.
        Pass("expand", partial(expand, bounds=bounds)),
        # Before cse, so that the copies' address arithmetic is in the block that it looks at.
        Pass("predicate-copies", predicate_copies),
        # Folds the extents, strides and casts that expand has written out.
        Pass("canonicalize", canonicalize),
        # Before licm, so that equal invariants of a loop are moved once.
        Pass("cse", merge_common_subexpressions),
        Pass("licm", move_loop_invariants),
        # Again: ops moved out of different loops are now in one block.
        Pass("cse", merge_common_subexpressions),
        # Everything above leaves unused ops behind.
        Pass("dce", drop_dead_code),
        # Last, since every other pass may move ops.
        Pass("order-chains", order_chains),
        # Behind all, so that what is measured is otherwise the kernel as it is.
        *([Pass("stamps", insert_stamps)] if stamps else []),
    ]


def stages() -> list[str]:
    """Names of the stages: ``Compiled.ir("after:cse")`` is the kernel after the pass of that name."""
    return stages_of(pipeline(shared_limit=0))


def named_passes(*, shared_limit: int, target: str) -> dict[str, Pass]:
    """Every pass by its name; see `pipeline`."""
    return {each.name: each for each in pipeline(shared_limit=shared_limit, target=target, stamps=True)}


def run_pipeline(
    kernel: Kernel,
    *,
    shared_limit: int | None = None,
    target: str = "",
    bounds: bool = False,
    stamps: bool = False,
    verify_each: bool = False,
    observe: Observer | None = None,
    until: str | None = None,
) -> Kernel:
    """Take `kernel` from tile level to thread level, in place; returns it.

    shared_limit, target, bounds, stamps: see `pipeline`; without a limit, any amount of shared memory passes.
    verify_each, observe: see `run_passes`. until: the name of the last pass that is wanted. Raises CompileError where
    the kernel asks for what cannot be had.
    """
    passes = pipeline(shared_limit=shared_limit, target=target, bounds=bounds, stamps=stamps)
    if until is not None:
        passes = passes[: stages_of(passes).index(until) + 1]
    return run_passes(kernel, passes, verify_each=verify_each, observe=observe)
