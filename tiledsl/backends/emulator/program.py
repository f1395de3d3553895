"""From a structured kernel to linear code with registers, which is what cohorts execute.

Every SSA value gets a register of its own, freed after its last use so that the working set of arrays
stays in cache. A region is *blocking* if a warp may have to wait inside it: it holds an op with a condition, a copy
that the warps meet at, or a loop that may wait for another's write (`_spins`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence, TypeVar

import numpy as np

from tiledsl.backends.emulator import control as code
from tiledsl.backends.emulator.chunk import Roles
from tiledsl.backends.emulator.repeats import waiting_loops
from tiledsl.backends.emulator.rules.registry import CONDITIONS, RULES, Rule, rule_of
from tiledsl.backends.emulator.schedule import Instr, Loops, WaitInstr
from tiledsl.errors import EmulatorError
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import arith, control, gpu, mem, tile
from tiledsl.ir.semantics import canonical, numpy_dtype
from tiledsl.passes.analysis.structure import ops_around

I = TypeVar("I", bound=Instr)  # noqa: E741


@dataclass(frozen=True)
class Program:
    """`initial`: registers at the start, with constants in place; `arguments`: those of the body's arguments.

    `fills`: for registers that hold masks, what None means in each lane when cohorts merge. `roles`: those of the
    kernel, for messages. `loops`: where it has some that wait.
    """

    code: list[Instr]
    initial: list[Any]
    arguments: tuple[int, ...]
    fills: dict[int, bool]
    roles: Roles
    loops: Loops


def flatten(kernel: Kernel, rules: Callable[[Op], Rule] = rule_of, of_float: Callable[..., Any] = canonical) -> Program:
    """rules: gives that of each op. of_float: what a register holds, from a constant and its dtype. Raises
    EmulatorError for an op that has no rule."""
    joined = _joined_copies(kernel)
    flat = _Flattener(joined, _blocking(kernel, joined), waiting_loops(kernel), rules, of_float)
    arguments = flat.define(kernel.body.args)
    flat.block_ops(kernel.body)
    flat.code.append(code.ReturnInstr(kernel.body.terminator))
    loops = Loops(flat.heads, frozenset(flat.waiting))
    return Program(flat.code, flat.initial, arguments, flat.fills, roles_of(kernel), loops)


def roles_of(kernel: Kernel) -> Roles:
    return {(op.role[0], op.role[1]): op.loc for op in kernel.walk() if isinstance(op, control.If) and op.role}


def _joined_copies(kernel: Kernel) -> frozenset[Op]:
    """The copies of pipelined loops, before and after which all warps of a block meet.

    The author writes no barriers there, the pass `pipeline` does: until then the emulator keeps the program's order.
    """
    loops = [op for op in kernel.walk() if isinstance(op, control.For) and op.stages > 0]
    return frozenset(op for loop in loops for op in loop.walk() if isinstance(op, tile.Copy))


def _spins(op: Op) -> bool:
    """May the loop wait for another warp's write? A `for` that asks by an atomic operation again and again may, too."""
    if isinstance(op, control.For):
        return any(isinstance(i, (tile.Atomic, mem.Atomic)) and i.fn.polls for i in op.body.walk())
    return isinstance(op, control.While) and any("read" in inner.effects for b in op.blocks for inner in b.walk())


def _last_use(value: Value, block: Block, places: Mapping[Op, int]) -> Op | None:
    """The op of `block` in which, or inside which, `value` is used last; None without uses. places: of its ops."""
    last = -1
    for user, _ in value.uses:
        while user.parent is not block:
            owner = user.block.parent
            assert isinstance(owner, Op), "a value is used outside the block that defines it"
            user = owner
        last = max(last, places[user])
    return None if last < 0 else block.ops[last]


def _blocking(kernel: Kernel, joined: frozenset[Op]) -> set[Op]:
    """Ops in which a warp may have to wait for others, and those that they lie in."""
    found: set[Op] = set()
    for op in kernel.walk():
        if type(op) in CONDITIONS or op in joined or _spins(op):
            found |= {op, *(owner for owner, _ in ops_around(op.parent))}
    return found


class _Flattener:
    """A kernel that is being flattened.

    `joined`: ops before and after which all warps of a block meet. `blocking`: see `_blocking`. `loops`: see
    `waiting_loops`.
    """

    def __init__(
        self,
        joined: frozenset[Op],
        blocking: set[Op],
        loops: Mapping[control.While, tuple[int, ...]],
        rules: Callable[[Op], Rule],
        of_float: Callable[..., Any],
    ) -> None:
        self.joined, self.blocking, self.loops = joined, blocking, loops
        self.rules, self.of_float = rules, of_float
        self.heads: dict[int, Op] = {}
        self.waiting: set[int] = set()
        self.code: list[Instr] = []
        self.initial: list[Any] = []
        self.registers: dict[Value, int] = {}
        self.fills: dict[int, bool] = {}

    def scratch(self, fill: bool | None = None) -> int:
        self.initial.append(None)
        register = len(self.initial) - 1
        if fill is not None:
            self.fills[register] = fill
        return register

    def define(self, values: Sequence[Value]) -> tuple[int, ...]:
        for value in values:
            self.registers[value] = self.scratch()
        return self.read(values)

    def read(self, values: Sequence[Value]) -> tuple[int, ...]:
        return tuple(self.registers[v] for v in values)

    def append(self, instr: I) -> I:
        self.code.append(instr)
        return instr

    def block_ops(self, block: Block) -> list[int]:
        """Code for all ops but the terminator. Returns the registers to free at the terminator."""
        dying: dict[Op, list[int]] = {}
        places = {op: place for place, op in enumerate(block.ops)}
        for op in block.ops[:-1]:
            if isinstance(op, arith.Constant):
                self.constant(op)
                continue
            last = self.emit(op)
            for result in op.results:
                dying.setdefault(_last_use(result, block, places) or op, []).append(self.registers[result])
            last.free += dying.get(op, [])
        return dying.get(block.ops[-1], [])

    def constant(self, op: arith.Constant) -> None:
        (register,) = self.define(op.results)
        value = np.array(op.value, numpy_dtype(op.dtype))
        self.initial[register] = self.of_float(value, op.dtype) if op.dtype.python is float else value

    def emit(self, op: Op) -> Instr:
        """Code for one op; returns the instruction after which its operands may be freed."""
        match op:
            case control.If():
                return self.emit_if(op)
            case control.For():
                return self.emit_for(op)
            case control.While():
                return self.emit_while(op)
            case _ if op.blocks:
                raise EmulatorError(f"the emulator cannot run {op.name}", op.loc, code="T901")
            case _ if type(op) in CONDITIONS:
                return self.emit_wait(op, type(op), self.read(op.operands))
            case _ if op in self.joined:
                self.emit_wait(op, gpu.Barrier, ())
                self.emit_op(op)
                return self.emit_wait(op, gpu.Barrier, ())
            case _:
                return self.emit_op(op)

    def emit_op(self, op: Op) -> Instr:
        return self.append(code.OpInstr(op, self.rules(op), self.read(op.operands), self.define(op.results)))

    def emit_wait(self, op: Op, cls: type[Op], operands: tuple[int, ...]) -> Instr:
        """At `op`, as ops of a class with a condition do; it may have a rule, too."""
        condition = CONDITIONS[cls]
        if condition.after:
            ticket = self.scratch()
            self.append(code.OpInstr(op, RULES[cls], operands, (ticket,)))
            return self.append(WaitInstr(op, condition, (ticket, *operands), free=[ticket]))
        wait = self.append(WaitInstr(op, condition, operands))
        return self.emit_op(op) if cls in RULES else wait

    def emit_if(self, op: control.If) -> Instr:
        blocking, condition = op in self.blocking, self.registers[op.condition]
        saved, pending = self.scratch(True), self.scratch(False)
        begin = self.append(code.IfBegin(op, condition, saved, pending, blocking))
        results = self.define(op.results)
        ends: list[code.IfEnd] = []
        for block in op.blocks:
            begin.else_pc = len(self.code)  # in the end that of the else block
            free = self.block_ops(block)
            yields = self.read(block.terminator.operands)
            ends.append(self.append(code.IfEnd(op, yields, results, pending, free=free)))
        ends[0].join_pc = len(self.code)
        return self.append(code.Join(op, saved, blocking, free=[saved, pending]))

    def emit_for(self, op: control.For) -> Instr:
        lo, hi, step = self.read(op.operands[:3])
        trips, more = self.scratch(), self.scratch()
        induction, *rest = self.define(op.body.args)
        carried = tuple(rest)
        self.append(code.OpInstr(op, code.begin_counting, (lo, hi, step), (induction, trips)))
        begin = self.append(code.LoopBegin(op, self.read(op.inits), carried, self.scratch(True)))
        head_pc = len(self.code)
        self.append(code.OpInstr(op, code.count_down, (induction, step, trips), (induction, trips, more)))
        test = code.LoopTest(op, more, carried, carried, self.define(op.results), op in self.blocking, _spins(op))
        return self.end_loop(begin, head_pc, test, op.body, (trips, more, induction))

    def emit_while(self, op: control.While) -> Instr:
        before = self.define(op.before.args)
        begin = self.append(code.LoopBegin(op, self.read(op.operands), before, self.scratch(True)))
        head_pc = len(self.code)
        free = self.block_ops(op.before)
        condition, *passed = self.read(op.before.terminator.operands)
        after, results = self.define(op.after.args), self.define(op.results)
        test = code.LoopTest(op, condition, tuple(passed), after, results, op in self.blocking, True, free=free)
        return self.end_loop(begin, head_pc, test, op.after, after)

    def end_loop(
        self, begin: code.LoopBegin, head_pc: int, test: code.LoopTest, body: Block, scratch: tuple[int, ...]
    ) -> Instr:
        op, carried, saved = begin.op, begin.carried, begin.saved
        self.append(test)
        free = self.block_ops(body)
        yields = self.read(body.terminator.operands)
        deciding, spins = None, _spins(op)
        if spins:
            self.heads[head_pc] = op
        if isinstance(op, control.While) and op in self.loops:
            deciding = tuple(carried[position] for position in self.loops[op])
            self.waiting.update(range(head_pc, len(self.code) + 1))
        self.append(code.LoopNext(op, yields, carried, saved, head_pc, test.waits, spins, deciding, free=free))
        test.exit_pc = len(self.code)
        return self.append(code.Join(op, saved, test.blocking, free=[saved, *carried, *scratch]))
