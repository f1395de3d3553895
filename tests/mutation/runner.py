"""Makes mutants, and says what the check finds of each."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

from tests.mutation.equivalent import why_equivalent
from tests.mutation.operators import Change, Operator, map_changes
from tests.mutation.processes import Result, apart
from tests.mutation.reached import STEPS, ops_reached
from tests.mutation.subjects import OUTSIDE, Built, Run, built, differences, more_runs
from tests.mutation.table import MUTATORS, PROTOCOL
from tiledsl.arch import TARGETS, target_named
from tiledsl.backends.emulator import Prepared
from tiledsl.backends.ptx.assemble import assemble
from tiledsl.backends.ptx.codegen import emit_ptx
from tiledsl.errors import AssemblerError, CompileError, EmulatorError, TileError, VerifyError
from tiledsl.findings import INCOMPLETE, OWN_FAULT
from tiledsl.ir.core import OPS, Kernel, Op
from tiledsl.ir.verifier import verify
from tiledsl.passes.pipeline import run_pipeline
from tiledsl.recursion import deep_recursion

__all__ = [
    "CAUGHT",
    "OUTCOMES",
    "PATIENCE",
    "Kinds",
    "Mutant",
    "Unmutated",
    "drawn",
    "executed",
    "mutants_of",
    "mutated",
    "outcome_of",
    "outcome_of_unmutated",
    "run_apart",
    "sampled",
    "unmutated_runs",
]

Stage = Literal["written", "lowered"]
Kinds = Literal["general", "protocol", "all"]
"""The operators to use: those of `MUTATORS`, those of `PROTOCOL`, or both."""

CAUGHT = "finding", "deadlock", "refused", "wrong result", "other error", "no end"
OUTCOMES = *CAUGHT, "equivalent", "no difference", "survived", "not reached", "failed"
"""finding: of the check, but deadlocks and waits without end. refused: by the verifier or a pass. no end: stopped by
the limit of steps. no difference: a change of values that inputs of random sizes do not show either:
tested, not proven. not reached: no input executes the op, so that the mutant is a miss. failed: what runs mutants has a
fault or needs more time, and so the mutant is a miss, too."""

PATIENCE = 120.0
"""Seconds until a mutant's process is ended."""
SEEDS = 1, 2
"""Other schedules, for those of ops that order, or begin asynchronous work, which the usual one does not show."""


@dataclass(frozen=True)
class Mutant:
    """The `change`-th change by the `operator`-th operator of the kind of op number `at` of a subject, at a stage; of
    tensor map number -1 - `at`.

    `by`: the name of the operator. `what`: the change in words. `line`: of the op."""

    subject: str
    stage: Stage
    at: int
    op: str
    operator: int
    change: int
    by: str
    what: str
    line: str

    @property
    def key(self) -> str:
        return f"{self.subject}/{self.stage}/{self.at}/{self.op}/{self.by}/{self.what}"


@dataclass(frozen=True)
class Unmutated:
    """A run of a subject as it is: input number `input`, under the schedule of a seed, None for the usual one."""

    subject: str
    input: int
    seed: int | None

    @property
    def key(self) -> str:
        return f"{self.subject}/unmutated/{self.input}/{self.seed or 0}"


# -- mutants ---------------------------------------------------------------------------------------


def _kernel(made: Built, stage: Stage) -> Kernel:
    return made.written if stage == "written" else made.lowered


def _mutated_at(op: Op, stage: Stage) -> bool:
    """Each op at thread level, and those that are none there."""
    return stage == "lowered" or op.level == "tile"


def mutants_of(name: str, kinds: Kinds = "general") -> Iterator[Mutant]:
    """Yield all mutants of a subject by these operators. Outside the gallery, "protocol" stands for all operators of
    ops that order."""
    stages: tuple[Stage, ...] = ("written", "lowered")
    for stage in stages:
        for at, op in enumerate(_kernel(built(name), stage).walk()):
            if not _mutated_at(op, stage):
                continue
            line = f"{os.path.basename(op.loc.file)}:{op.loc.line}"
            every = kinds == "protocol" and name in OUTSIDE and _orders(op.name)
            for number, operator in _operators(op.name, "all" if every else kinds):
                for count, change in enumerate(operator.changes(op)):
                    yield Mutant(name, stage, at, op.name, number, count, operator.name, change.what, line)
    lowered = built(name).lowered
    if kinds == "protocol":
        return
    for number in range(len(lowered.tensor_maps)):
        for count, (by, change) in enumerate(map_changes(lowered, number)):
            yield Mutant(name, "lowered", -1 - number, "tensor map", 0, count, by, change.what, lowered.name)


def _operators(op: str, kinds: Kinds) -> list[tuple[int, Operator]]:
    """Return the operators for a kind of op, with their numbers, which are the same whatever is chosen."""
    general, protocol = MUTATORS.get(op, ()), PROTOCOL.get(op, ())
    numbered = [*enumerate((*general, *protocol))]
    first = len(general)
    return {"general": numbered[:first], "protocol": numbered[first:], "all": numbered}[kinds]


def drawn(mutants: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """Draw `count` mutants at random, from each operator in turn, so that rare operators are drawn as often as frequent
    ones."""
    left: dict[str, list[Mutant]] = {}
    for each in mutants:
        left.setdefault(each.by, []).append(each)
    rng = random.Random(seed)
    for like in left.values():
        rng.shuffle(like)
    found: list[Mutant] = []
    while len(found) < count and any(left.values()):
        found += [like.pop() for like in left.values() if like]
    return found[:count]


def sampled(mutants: Iterator[Mutant], most: int) -> list[Mutant]:
    """Of like mutants, which differ in the place of the op alone, at most so many, of as many lines as can be: the
    first ones, the last ones. Four times as many of what orders, or begins asynchronous work. Nothing is left to
    chance: equal kernels give equal samples."""
    alike: dict[tuple[Any, ...], dict[str, list[Mutant]]] = {}
    for each in mutants:
        key = each.stage, each.op, each.operator, each.change
        alike.setdefault(key, {}).setdefault(each.line, []).append(each)
    found: list[Mutant] = []
    for (_, op, *_), lines in alike.items():
        room = most * 4 if _orders(op) else most
        left = [[*each] for each in lines.values()]
        chosen: list[Mutant] = []
        for turn in range(room):
            for each in left:
                if each and len(chosen) < room:
                    chosen.append(each.pop(0 if turn % 2 == 0 else -1))
        found += chosen
    return found


def _orders(name: str) -> bool:
    """Is it a kind of op that orders, or begins asynchronous work?"""
    effects: Any = OPS[name].effects if name in OPS else ()
    return not isinstance(effects, property) and "sync" in effects


# -- one mutant ------------------------------------------------------------------------------------


def _change(kernel: Kernel, mutant: Mutant) -> tuple[Op | None, Change]:
    """The op, and the change of it, which is not made."""
    if mutant.at < 0:
        return None, [*map_changes(kernel, -1 - mutant.at)][mutant.change][1]
    op = next(op for at, op in enumerate(kernel.walk()) if at == mutant.at)
    return op, [*_operators(op.name, "all")[mutant.operator][1].changes(op)][mutant.change]


def _lowered(made: Built, kernel: Kernel, stage: Stage) -> Kernel:
    verify(kernel)
    if stage == "lowered":
        return kernel
    limit = target_named(made.arch).shared_per_block
    return run_pipeline(kernel, shared_limit=limit, target=made.arch, bounds=True)


def _mutated(mutant: Mutant) -> Kernel:
    """What the emulator runs. Raises CompileError or VerifyError."""
    made = built(mutant.subject)
    kernel = _kernel(made, mutant.stage).clone()
    _change(kernel, mutant)[1].make()
    return _lowered(made, kernel, mutant.stage)


def mutated(mutant: Mutant) -> Kernel | None:
    """The same; None if it is refused."""
    try:
        return _mutated(mutant)
    except (CompileError, VerifyError):
        return None


def outcome_of(mutant: Mutant) -> Result:
    """What becomes of a mutant, in this process."""
    made = built(mutant.subject)
    try:
        kernel = _mutated(mutant)
        prepared = Prepared(kernel)
    except (CompileError, VerifyError) as error:
        return Result("refused", error.message)
    for run in made.runs:
        if found := _found(made, prepared, run, None):
            return found
    if why := why_equivalent(made, kernel, *_change(_kernel(made, mutant.stage), mutant)):
        return Result("equivalent", why)
    if not is_reached(mutant):
        return Result("not reached")
    if _orders(mutant.op):
        for seed in SEEDS:
            if found := _found(made, prepared, made.runs[0], seed):
                return replace(found, detail=f"seed {seed}: {found.detail}")
    if _is_of_registers(mutant):
        return _assembled(kernel, made.arch) or Result(
            "equivalent", "another number of registers, to which ptxas keeps"
        )
    if not mutant.op.startswith(VALUES):
        return Result("survived")
    for run in more_runs(mutant.subject):
        if found := _found(made, prepared, run, None):
            return replace(found, detail=f"another size: {found.detail}")
    return Result("no difference")


VALUES = "arith.", "control.", "tile.get", "tile.put", "gpu.thread_id", "gpu.block_id"
"""Kinds of op, by the beginning of their name, that choose values, not an order."""


def _is_of_registers(mutant: Mutant) -> bool:
    return mutant.op == "gpu.setmaxnreg" or (mutant.op == "role.region" and mutant.what.startswith("registers"))


def _assembled(kernel: Kernel, arch: str) -> Result | None:
    """What ptxas has against a kernel: nothing, or that an instruction is ignored, say, which is an error of ours."""
    target = TARGETS[arch]
    try:
        assemble(deep_recursion()(emit_ptx)(kernel.clone(), target)[1], target, name=kernel.name)
    except AssemblerError as error:
        return Result("refused", error.message)
    return None


def unmutated_runs(name: str, seeds: int) -> list[Unmutated]:
    """A subject as it is, on every input under so many schedules."""
    return [Unmutated(name, at, seed or None) for at in range(len(built(name).runs)) for seed in range(seeds)]


def outcome_of_unmutated(run: Unmutated) -> Result:
    """What a run shows, in this process."""
    made = built(run.subject)
    return _found(made, _prepared(run.subject), made.runs[run.input], run.seed) or Result("nothing")


@cache
def _prepared(name: str) -> Prepared:
    return Prepared(built(name).lowered)


def _found(made: Built, prepared: Prepared, run: Run, seed: int | None) -> Result | None:
    """What a run shows of a fault; None for nothing."""
    arguments = run.arguments()
    try:
        prepared.run(arguments, options=run.options(made.subject, max_steps=STEPS, seed=seed))
    except EmulatorError as error:
        return Result(_kind(error.finding.code), f"{error.finding.code}: {error.message}")
    except TileError as error:
        return Result("other error", str(error))
    wrong = differences(run, arguments)
    return Result("wrong result", wrong) if wrong else None


def _kind(code: str) -> str:
    if code in ("T401", "T403"):
        return "deadlock"
    if code == "T402":
        return "no end"
    return "other error" if code in (*INCOMPLETE, *OWN_FAULT) else "finding"


# -- what runs -------------------------------------------------------------------------------------


@cache
def executed(name: str) -> tuple[frozenset[Any], frozenset[str]]:
    """The blocks of the lowered subject that some input enters, and the places of their ops."""
    made = built(name)
    ops = ops_reached(made, made.lowered)
    return frozenset(op.parent for op in ops), frozenset(str(op.loc) for op in ops)


def is_reached(mutant: Mutant) -> bool:
    """Does an input execute the op? Of one that the passes take apart: anything at its place."""
    if mutant.at < 0:
        return True
    blocks, places = executed(mutant.subject)
    op = [*_kernel(built(mutant.subject), mutant.stage).walk()][mutant.at]
    return op.parent in blocks if mutant.stage == "lowered" else str(op.loc) in places


# -- processes -------------------------------------------------------------------------------------


@cache
def _ready(name: str) -> None:
    """Builds a subject for the processes to come. They need not look for garbage in what they share."""
    built(name)
    gc.collect()
    gc.freeze()


def run_apart(mutant: Mutant) -> Result:
    """`outcome_of` in a process of its own. The subject is built here, once for all of its mutants."""
    _ready(mutant.subject)
    return apart(partial(outcome_of, mutant), PATIENCE)
