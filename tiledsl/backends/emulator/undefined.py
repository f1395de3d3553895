"""Find uses of values that a shuffle takes from lanes that the block does not have.

PTX leaves such a value undefined, and says nothing of the lanes that do not use it: in a sum over 16 threads by
`shuffle_down`, half of the lanes get one at each step, and lane 0 none. So each value that may depend on a shuffle has
a *shadow*, a register that holds for each lane 0, or the number of the shuffle, from 1 on. What is computed from a
value has its shadow, and so has what is chosen, moved, or shuffled. Whatever acts on memory, other threads, or control
flow uses it. (PTX ISA: shfl.sync.)

Only kernels whose last warp has fewer than 32 threads are run like this. Votes need no shadow of their own: they ask
the threads that there are. (PTX ISA: vote.sync waits for all non-exited threads of the mask.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.cohort import Cohort, blend, is_array
from tiledsl.backends.emulator.control import IfBegin, IfEnd, LoopBegin, LoopNext, LoopTest, OpInstr
from tiledsl.backends.emulator.hooks import Bools
from tiledsl.backends.emulator.program import Program
from tiledsl.backends.emulator.rules.gpu import shuffle_sources
from tiledsl.backends.emulator.schedule import Instr, Schedule, WaitInstr
from tiledsl.errors import HazardError, Loc
from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import arith, warp
from tiledsl.ir.types import DType, PtrType
from tiledsl.passes.analysis.called import called

DEFINED: Any = np.int16(0)
Tell = Callable[[HazardError], None]


def may_be_undefined(kernel: Kernel) -> bool:
    """Return whether a shuffle of the kernel may read a lane that the block does not have."""
    return kernel.thread_count % WARP != 0 and any(isinstance(op, warp.Shuffle) for op in kernel.walk())


def with_shadows(program: Program, tell: Tell) -> Program:
    """Return the program with shadows, which reports uses of undefined values. Its instructions keep their places."""
    shadowed = _shadowed(program.code)
    initial, fills = [*program.initial, DEFINED], dict(program.fills)
    shadows = _Shadows({}, len(program.initial), tell)
    for register in sorted(shadowed):
        shadows.of[register] = len(initial)
        fills[len(initial)] = False
        initial.append(None)
    return replace(program, code=[shadows.instr(i) for i in program.code], initial=initial, fills=fills)


def _shadowed(code: Sequence[Instr]) -> set[int]:
    """Return the registers whose values may depend on a shuffle."""
    found = {r for i in code if isinstance(i, OpInstr) and isinstance(i.op, warp.Shuffle) for r in i.dsts}
    size = -1
    while size != len(found):
        size = len(found)
        for instr in code:
            found.update(to for start, to in _moves(instr) if start in found)
    return found


def _moves(instr: Instr) -> Iterable[tuple[int, int]]:
    """Return from which registers an instruction passes values to which."""
    match instr:
        case OpInstr():
            return ((start, to) for start in instr.srcs for to in instr.dsts) if _computes(instr.op) else ()
        case IfEnd():
            return zip(instr.yields, instr.results, strict=True)
        case LoopBegin():
            return zip(instr.inits, instr.carried, strict=True)
        case LoopTest():
            return (*zip(instr.passed, instr.arguments, strict=True), *zip(instr.passed, instr.results, strict=True))
        case LoopNext():
            return zip(instr.yields, instr.carried, strict=True)
        case _:
            return ()


def _computes(op: Op) -> bool:
    """Return whether it only computes its results, for each lane from the operands there, or by an exchange."""
    if isinstance(op, (warp.Shuffle, warp.Vote, warp.Uniform)):
        return True
    scalars = all(isinstance(value.type, (DType, PtrType)) for value in (*op.operands, *op.results))
    return scalars and op.scope == "thread" and not op.effects and not op.blocks


@dataclass(frozen=True, eq=False)
class _Shadows:
    """The shadows of a program.

    `of`: the shadow of each register that has one. `defined`: a register whose value is always `DEFINED`. `first`:
    of each shuffle that reads a lane which is not there, in the order of their numbers, a block, a thread, and the
    lane. `told`: shuffles of which one use was reported."""

    of: dict[int, int]
    defined: int
    tell: Tell
    first: dict[Op, tuple[int, int, int]] = field(default_factory=dict[Op, tuple[int, int, int]])
    told: set[Loc] = field(default_factory=set[Loc])

    def instr(self, instr: Instr) -> Instr:
        """Return the instruction that moves shadows along with values."""
        of, free = self.of, [*instr.free, *(self.of[r] for r in instr.free if r in self.of)]
        match instr:
            case OpInstr() if any(r in of for r in (*instr.srcs, *instr.dsts)):
                return _Op(instr.op, instr.rule, instr.srcs, instr.dsts, self, free=free)
            case IfBegin() if instr.condition in of:
                fields = instr.condition, instr.saved, instr.pending, instr.blocking, instr.else_pc
                return _If(instr.op, *fields, shadows=self, free=free)
            case IfEnd():
                yields, results = self.moved(instr.yields, instr.results)
                return replace(instr, yields=yields, results=results, free=free)
            case LoopBegin():
                inits, carried = self.moved(instr.inits, instr.carried)
                return replace(instr, inits=inits, carried=carried, free=free)
            case LoopTest():
                passed, arguments = self.moved(instr.passed, instr.arguments, instr.passed)
                _, results = self.moved(instr.passed, instr.results, instr.passed)
                return _Test(
                    instr.op, instr.condition, passed, arguments, results, instr.blocking, instr.waits, instr.exit_pc,
                    shadows=self, free=free,
                )  # fmt: skip
            case LoopNext():
                yields, carried = self.moved(instr.yields, instr.carried)
                return replace(instr, yields=yields, carried=carried, free=free)
            case WaitInstr() if any(r in of for r in instr.srcs):
                return _Wait(instr.op, instr.condition, instr.srcs, self, free=free)
            case _:
                return replace(instr, free=free)

    def moved(
        self, sources: tuple[int, ...], targets: tuple[int, ...], having: tuple[int, ...] | None = None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the registers to read and to write, with the shadows of those that have one.

        Args:
            sources: The registers to read.
            targets: The registers to write.
            having: The registers whose shadows decide which pairs get some (default: the targets).
        """
        pairs = [pair for pair in zip(sources, targets, having or targets, strict=True) if pair[2] in self.of]
        more = [self.of.get(source, self.defined) for source, _, _ in pairs]
        return (*sources, *more), (*targets, *(self.of[target] for _, target, _ in pairs))

    def read(self, c: Cohort, register: int) -> Any:
        """Return the shadow of what a register holds."""
        shadow = c.regs[self.of[register]] if register in self.of else None
        return DEFINED if shadow is None else shadow

    # -- what ops do ---------------------------------------------------------------------------

    def after(self, c: Cohort, instr: OpInstr) -> Any:
        """Return the shadow of the results, before the op runs; report what the op uses."""
        op, given = instr.op, list[Any](self.read(c, r) for r in instr.srcs)
        if isinstance(op, warp.Shuffle):
            return self.shuffled(c, op, c.regs[instr.srcs[1]], *given)
        if not any(map(is_array, given)):
            return DEFINED
        if not _computes(op):
            self.use(c, op, given)
            return DEFINED
        values = [c.regs[r] for r in instr.srcs]
        if isinstance(op, arith.Select):
            condition, a, b = given
            return np.maximum(condition, blend(values[0], a, b))
        if isinstance(op, arith.Scalar) and op.fn.name in ("and", "or") and len(values) == 2:
            return _masked(op.fn.name == "or", values, given)
        found = _largest(given)
        if isinstance(op, (warp.Vote, warp.Uniform)):
            return np.amax(blend(c.active(), found, DEFINED), axis=2, keepdims=True)
        return found

    def shuffled(self, c: Cohort, op: warp.Shuffle, lane: Any, value: Any, of_lane: Any) -> Any:
        """Return the shadow of a shuffle's result: of the value in the lane that it reads, or the shuffle's own."""
        source, absent = shuffle_sources(c, op, lane)
        found = value
        if is_array(value) and value.shape[2] > 1:
            shape = np.broadcast_shapes(value.shape, source.shape)
            found = np.take_along_axis(np.broadcast_to(value, shape), np.broadcast_to(source, shape), axis=2)
        found = np.maximum(found, of_lane)
        missing = c.active() & absent
        if not missing.any():
            return found
        if op not in self.first:
            blocks, threads = c.lanes_of(missing)
            self.first[op] = int(blocks[0]), int(threads[0]), int(source[missing][0])
        return np.where(missing, np.int16([*self.first].index(op) + 1), found)

    def use(self, c: Cohort, op: Op, shadows: Iterable[Any]) -> None:
        """Report undefined values that active lanes use, once for each line of a shuffle."""
        for shadow in filter(is_array, shadows):
            used = c.active() & (shadow != 0)
            for number, shuffle in enumerate([*self.first], 1):
                if not (used & (shadow == number)).any():
                    continue
                if shuffle.loc not in self.told:
                    self.told.add(shuffle.loc)
                    self.tell(self.finding(c, op, c.spread(shadow == number) & used, shuffle))

    def finding(self, c: Cohort, op: Op, used: Bools, shuffle: Op) -> HazardError:
        launch, (block, thread, lane) = c.chunk.run.launch, self.first[shuffle]
        blocks, threads = c.lanes_of(used)
        side = launch.side(shuffle, f"reads lane {lane} of its warp", block, thread=thread)
        user = launch.side(op, "uses the value", int(blocks[0]), thread=int(threads[0]))
        x, y, z = launch.threads
        lanes = x * y * z - thread // WARP * WARP
        message = (
            f"{side.who} reads lane {lane} of its warp, of which the block has {min(lanes, WARP)} lanes, so that the "
            f"value is undefined; {'a condition' if op.blocks else called(op)} at {op.loc} uses it, in {user.who}"
        )
        fix = f"let threads(...) be a multiple of {WARP}; or use the value only where the lane is there"
        return HazardError(message, shuffle.loc, fix, code="T205", sides=(side, user))


def _masked(ones: bool, values: Sequence[Any], given: Sequence[Any]) -> Any:
    """Return the shadow of an `and`, or an `or` (`ones`): a defined 0, or all ones, decides alone."""
    zeros = np.zeros((), np.asarray(values[0]).dtype)
    decisive = ~zeros if ones else zeros
    alone = [(np.asarray(v) == decisive) & (np.asarray(s) == 0) for v, s in zip(values, given, strict=True)]
    return blend(alone[0] | alone[1], DEFINED, _largest(given))


def _largest(shadows: Sequence[Any]) -> Any:
    """Return the largest of the shadows, lane by lane."""
    found: Any = DEFINED
    for shadow in shadows:
        found = np.maximum(found, shadow)
    return found


@dataclass(slots=True, eq=False)
class _Op(OpInstr):
    shadows: _Shadows

    def step(self, c: Cohort, s: Schedule) -> bool:
        shadow = self.shadows.after(c, self)
        for register in self.dsts:
            if register in self.shadows.of:
                c.regs[self.shadows.of[register]] = shadow
        return OpInstr.step(self, c, s)


@dataclass(slots=True, eq=False)
class _If(IfBegin):
    shadows: _Shadows = field(kw_only=True)

    def step(self, c: Cohort, s: Schedule) -> bool:
        self.shadows.use(c, self.op, [self.shadows.read(c, self.condition)])
        return IfBegin.step(self, c, s)


@dataclass(slots=True, eq=False)
class _Test(LoopTest):
    shadows: _Shadows = field(kw_only=True)

    def step(self, c: Cohort, s: Schedule) -> bool:
        self.shadows.use(c, self.op, [self.shadows.read(c, self.condition)])
        return LoopTest.step(self, c, s)


@dataclass(slots=True, eq=False)
class _Wait(WaitInstr):
    shadows: _Shadows

    def step(self, c: Cohort, s: Schedule) -> bool:
        self.shadows.use(c, self.op, [self.shadows.read(c, r) for r in self.srcs])
        return WaitInstr.step(self, c, s)
