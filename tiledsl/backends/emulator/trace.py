"""What one thread computed, op by op; and what tells hooks of ops."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, Callable

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.chunk import Chunk
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.control import OpInstr
from tiledsl.backends.emulator.hooks import LaunchInfo, OpHook
from tiledsl.backends.emulator.options import RunResult, TraceRow
from tiledsl.backends.emulator.program import Program
from tiledsl.backends.emulator.rules.gpu import arrive_at_barrier
from tiledsl.backends.emulator.rules.memory import within
from tiledsl.backends.emulator.rules.registry import Rule
from tiledsl.backends.emulator.schedule import Instr
from tiledsl.errors import KernelArgumentError, Loc
from tiledsl.ir.core import Op
from tiledsl.outside import python_number

_ROW_STEPS = 4
"""Iterations of a loop that a row of the trace counts as."""

Index = int | tuple[int, ...]


def traced(
    program: Program,
    launch: LaunchInfo,
    where: tuple[Index, Index],
    result: RunResult,
    spend: Callable[[Loc, Chunk, int], None],
) -> Program:
    """The program, whose ops append to `result.trace` when the thread executes them, all but checks and barriers."""
    block = _linear("block", where[0], launch.grid)
    thread = _linear("thread", where[1], launch.threads)
    return _with_rules(program, lambda rule: _tracing(rule, block, thread, result, spend))


def told(program: Program, hook: OpHook) -> Program:
    """The program, whose ops tell `hook` that they are executed."""
    return _with_rules(program, lambda rule: _telling(rule, hook))


def _with_rules(program: Program, new: Callable[[Rule], Rule]) -> Program:
    """With other rules of all ops but checks and barriers."""
    code = list[Instr]()
    for instr in program.code:
        if isinstance(instr, OpInstr) and not instr.op.blocks and instr.rule not in (within, arrive_at_barrier):
            instr = replace(instr, rule=new(instr.rule))
        code.append(instr)
    return replace(program, code=code)


def _telling(rule: Rule, hook: OpHook) -> Rule:
    def run(c: Cohort, op: Op, *operands: Any) -> Any:
        hook.on_op(op, c.blocks, c.warps, c.mask)
        return rule(c, op, *operands)

    return run


def _linear(what: str, index: Index, extents: tuple[int, int, int]) -> int:
    coordinates = tuple(map(python_number, index if isinstance(index, tuple) else (index,)))
    limits = extents if isinstance(index, tuple) else (prod(extents),)
    inside = all(type(i) is int and 0 <= i < n for i, n in zip(coordinates, limits, strict=False))
    if not inside or not 1 <= len(coordinates) <= 3:
        fix = f"pass its number, below {prod(extents)}, or coordinates below {extents}, as in {what}=(3, 1)"
        raise KernelArgumentError(f"trace: {what} is {index!r}, and no {what} of this launch\n  fix: {fix}")
    x, y, z = (*coordinates, 0, 0)[:3]
    return x + extents[0] * (y + extents[1] * z)


def _tracing(rule: Rule, block: int, thread: int, result: RunResult, spend: Callable[[Loc, Chunk, int], None]) -> Rule:
    """The rule, which adds a row when the thread is among those that execute it."""

    def run(c: Cohort, op: Op, *operands: Any) -> Any:
        value = rule(c, op, *operands)
        for group, column in np.argwhere((c.blocks[:, None] == block) & (c.warps == thread // WARP)):
            lane = (group, column, thread % WARP)
            if c.active()[lane]:
                spend(op.loc, c.chunk, _ROW_STEPS)
                values = value if len(op.results) > 1 else (value,) if op.results else ()
                result.trace.append(TraceRow(op.loc, op.name, tuple(c.of_lanes(v, lane) for v in values)))
        return value

    return run
