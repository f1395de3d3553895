"""Every kind of op has mutators, or a reason to have none; and a small sample of planted faults is found.

``make mutate`` plants them all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from benchmarks.report import RESULTS
from tests.mutation.inputs import gallery_file
from tests.mutation.places import apart
from tests.mutation.processes import Result
from tests.mutation.reached import STEPS
from tests.mutation.report import column_of
from tests.mutation.reviewed import MOST, REASONS
from tests.mutation.runner import drawn, mutants_of, mutated, outcome_of_unmutated, run_apart, sampled, unmutated_runs
from tests.mutation.subjects import OUTSIDE, SUBJECTS, Run, Subject, built, differences, digest_of
from tests.mutation.table import MUTATORS, NOT_CHANGED, NOT_MUTATED, PROTOCOL
from tiledsl import frontend
from tiledsl.backends import emulator
from tiledsl.backends.emulator import Prepared
from tiledsl.backends.emulator.residues import differs, of_floats
from tiledsl.errors import EmulatorError, TileError
from tiledsl.ir.core import OPS

assert frontend and emulator  # they define the ops


def test_every_kind_of_op_has_mutators_or_a_reason() -> None:
    assert not MUTATORS.keys() & NOT_MUTATED.keys()
    assert MUTATORS.keys() | NOT_MUTATED.keys() == OPS.keys()
    assert all(MUTATORS.values()) and all(NOT_MUTATED.values())
    assert PROTOCOL.keys() <= MUTATORS.keys() and all(PROTOCOL.values())


def test_every_attribute_is_changed_or_has_a_reason() -> None:
    left: set[str] = set()
    used: set[str] = set()
    for name in MUTATORS:
        operators = (*MUTATORS[name], *PROTOCOL.get(name, ()))
        changed = {attribute for operator in operators for attribute in operator.attributes}
        assert changed <= OPS[name].attributes.keys(), f"{name} has no {changed - OPS[name].attributes.keys()}"
        for attribute in OPS[name].attributes.keys() - changed:
            reasons = {attribute, f"{name}.{attribute}"} & NOT_CHANGED.keys()
            used |= reasons
            left |= {f"{name}.{attribute}"} if not reasons else set()
    assert not left, "no operator changes these, and no reason is given"
    assert used == NOT_CHANGED.keys(), "reasons for attributes that there are not, or that are changed"


# -- a sample of faults ----------------------------------------------------------------------------

Fault = tuple[str, str, str, str, str]
"""A subject, a kind of op, an operator, the change (its beginning), and what becomes of the first such mutant."""

SAMPLE: list[Fault] = [
    ("shared_tiled", "gpu.barrier", "delete", "", "finding: T101"),
    ("shared_tiled", "gpu.barrier", "move_later", "", "finding: T101"),
    ("shared_tiled", "mem.store", "delete", "", "finding: T201"),
    ("naive", "arith.lt", "shift", "operand 1", "finding: T501"),
    ("naive", "control.for", "shift", "operand 0", "wrong result: C is wrong"),
    ("naive", "mem.store", "delete", "", "wrong result: C is wrong"),
    ("naive", "tile.dim", "off_by_one", "axis 1 -> 2", "refused: "),
    ("hopper_tma", "mbarrier.init", "off_by_one", "count 1 -> 2", "deadlock: T401"),
    ("hopper_tma", "mbarrier.expect_tx", "off_by_one", "bytes 16384 -> 16400", "deadlock: T401"),
    ("hopper_tma", "mbarrier.wait", "delete", "", "finding: T106"),
    ("hopper_tma", "fence.mbarrier_init", "delete", "", "finding: T408"),
    ("hopper_tma", "wgmma.fence", "delete", "", "finding: T306"),
    ("hopper_tma", "wgmma.commit_group", "delete", "", "finding: T107"),
    ("hopper_tma", "ptx.wgmma_wait", "delete", "", "finding: T107"),
    ("hopper_tma", "ptx.wgmma_descriptor", "off_by_one", "swizzle", "wrong result: C is wrong"),
    ("hopper_tma", "tensor map", "other_value", "swizzle 128 -> 0", "wrong result: C is wrong"),
    ("hopper_roles", "ring.release", "delete", "", "refused: "),
    ("hopper_roles", "mbarrier.arrive", "delete", "", "deadlock: T401"),
    ("hopper_ring", "ptx.wgmma_wait", "off_by_one", "pending 1 -> 0", "equivalent: a stronger wait"),
    # Mistakes between ops, threads, and iterations, in kernels outside the gallery.
    ("two_halves", "gpu.named_barrier", "exchange", "number 1 <->", "deadlock: T401"),
    ("by_hand", "mbarrier.wait", "other_barrier", "", "finding: T101"),
    ("by_hand", "mbarrier.wait", "next_stage", "", "deadlock: T401"),
    ("by_hand", "arith.and", "drops", "is its operand 0", "finding: T508"),
    ("by_hand", "arith.ge", "compares", "ge -> gt", "finding: T101"),
    ("by_hand", "gpu.barrier", "narrower", "", "finding: T407"),
    ("by_hand", "mbarrier.init", "rescale", "count 64 -> 128", "deadlock: T401"),
    ("turned", "mbarrier.expect_tx", "rescale", "bytes 1024 -> 2048", "deadlock: T401"),
    ("turned", "mem.store", "other_swizzle", "", "wrong result: C is wrong"),
    ("turned", "fence.proxy_async", "partly", "by even warps", "finding: T104"),
    ("turned", "tma.commit_group", "skips", "not in the first", "finding: T107"),
    ("sent", "mbarrier.arrive", "own_rank", "", "finding: T101"),
    ("locked", "mem.atomic_exchange", "weaken", "order release -> acquire", "finding: T102"),
    ("locked", "mem.atomic_exchange", "weaker", "order release -> relaxed", "finding: T102"),
    ("released_on", "mem.atomic_load", "weaken", "order acquire -> relaxed", "finding: T102"),
    ("voted", "gpu.sync_warp", "delete", "", "finding: T101"),
    ("voted", "arith.add", "transposes", "", "finding: T501"),
    ("copied_by_warps", "async.commit_group", "move_later", "after async.wait_group", "finding: T106"),
    ("copied_by_warps", "async.wait_group", "off_by_one", "pending 1 -> 2", "finding: T106"),
    ("copied_by_warps", "mem.store", "skips", "not in the last", "wrong result: C is wrong"),
    ("copied_by_warps", "mem.cp_async", "skips", "not in the last", "equivalent: all threads that reach"),
]


def test_the_sample_as_it_stands() -> None:
    """The kernels themselves: nothing is found."""
    for name in dict.fromkeys(fault[0] for fault in SAMPLE):
        for run in unmutated_runs(name, 1):
            assert outcome_of_unmutated(run) == Result("nothing")


@pytest.mark.parametrize("fault", SAMPLE, ids=" ".join)
def test_a_fault_is_found(fault: Fault) -> None:
    name, op, by, what, expected = fault
    mutants = (m for m in mutants_of(name, "all") if (m.op, m.by) == (op, by) and m.what.startswith(what))
    result = run_apart(next(mutants))
    assert f"{result.outcome}: {result.detail}".startswith(expected)


def misses(names: Sequence[str], most: int) -> list[str]:
    """Return those of at most `most` mutants, of as many of these subjects, that nothing finds. Mutants with a reviewed
    reason are left out: they are no misses, and it takes runs on all inputs to show that."""
    found: list[str] = []
    drawn_from = names[:: -(-len(names) // most) or 1]
    for name in drawn_from:
        mutants = [m for m in sampled(mutants_of(name), 1) if not any(reason.fits(m) for reason in REASONS)]
        for mutant in mutants[:: -(-len(mutants) * len(drawn_from) // most)]:
            if column_of(mutant, run_apart(mutant)) == "miss":
                found.append(mutant.key)
    return found


def test_faults_in_kernels_that_have_changed_are_found() -> None:
    """Since `make mutate` planted all of them."""
    known = json.loads((RESULTS / "mutation.json").read_text())["kernels"]
    names = [name for name in SUBJECTS if name not in OUTSIDE]
    assert misses([name for name in names if known.get(name) != digest_of(name)], 16) == []


def test_a_kernel_that_has_not_been_mutated() -> None:
    assert misses(["shared_tiled"], 8) == []


# -- the parts -------------------------------------------------------------------------------------


def test_a_move_is_past_what_the_op_has_to_do_with() -> None:
    ops = [*built("shared_tiled").lowered.walk()]
    barrier = next(op for op in ops if op.name == "gpu.barrier")
    loads = {op.operands[0].type.space: op for op in ops if op.name == "mem.load"}  # pyright: ignore
    assert apart(barrier, loads["global"]), "nothing writes A and B"
    assert not apart(barrier, loads["shared"])
    assert not apart(barrier, barrier)
    assert apart(loads["global"], loads["shared"])


def test_a_sample_has_each_kind_of_fault() -> None:
    mutants = [*mutants_of("hopper_tma")]
    chosen = sampled(iter(mutants), 1)
    assert len(chosen) < len(mutants)
    kinds = {(m.stage, m.op, m.operator, m.change) for m in mutants}
    assert {(m.stage, m.op, m.operator, m.change) for m in chosen} == kinds
    assert {*sampled(iter(mutants), len(mutants))} == {*mutants}


def test_all_kernels_of_the_gallery_are_mutated() -> None:
    gallery = gallery_file("gallery")
    entries = (*gallery.GALLERY, *gallery.HOPPER, *gallery.PREPARED)
    mutated = {subject.kernel for name, subject in SUBJECTS.items() if name not in OUTSIDE}
    assert {entry.kernel for entry in entries} == mutated


def test_a_draw_takes_every_operator_in_turn() -> None:
    mutants = [*mutants_of("by_hand", "protocol")]
    kinds = {m.by for m in mutants}
    assert {m.by for m in drawn(mutants, len(kinds), 1)} == kinds
    assert drawn(mutants, 30, 1) == drawn(mutants, 30, 1) != drawn(mutants, 30, 2)
    assert {*drawn(mutants, 10**6, 1)} == {*mutants}


def test_there_are_few_reviewed_reasons() -> None:
    assert len(REASONS) <= MOST
    assert all(reason.text for reason in REASONS)


# -- in exact arithmetic ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "step"), [("naive", 2), ("shared_tiled", 3), ("hopper_tma", 10)])
def test_a_wrong_result_is_a_wrong_sum(name: str, step: int) -> None:
    """Residues show every fault that only the bits of the result show, and the kernel as it is has none."""
    made = built(name)
    unmutated = Prepared(made.lowered)
    assert all(_wrong_sum(unmutated, run, made.subject) is None for run in made.runs)
    found = 0
    for mutant in sampled(mutants_of(name), 1)[::step]:
        kernel = mutated(mutant)
        if kernel is None:
            continue
        prepared = Prepared(kernel)
        outcomes = [_outcome(prepared, run, made.subject) for run in made.runs]
        if any(outcome not in ("", "wrong") for outcome in outcomes):
            continue  # it is found by other means
        codes = {_wrong_sum(prepared, run, made.subject) for run in made.runs} - {None}
        assert codes == ({"T203"} if "wrong" in outcomes else set()), mutant.key
        found += len(codes)
    assert found > 5


def _outcome(prepared: Prepared, run: Run, subject: Subject) -> str:
    arguments = run.arguments()
    try:
        prepared.run(arguments, options=run.options(subject, max_steps=STEPS))
    except TileError:
        return "found"
    return "wrong" if differences(run, arguments) else ""


def _wrong_sum(prepared: Prepared, run: Run, subject: Subject) -> str | None:
    """The code of what exact arithmetic finds in a run that computes C = A B."""
    arguments = run.arguments()
    A, B = (of_floats(arguments[name]) for name in "AB")
    try:
        result = prepared.run(arguments, options=run.options(subject, max_steps=STEPS, residues=True))
    except EmulatorError as error:
        return error.finding.code
    error = differs(subject.name, prepared.kernel.loc, "C", result.tensors["C"], A @ B)
    return None if error is None else error.finding.code
