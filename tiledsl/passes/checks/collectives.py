"""Check that ops which threads must reach together are reached together.

A barrier needs all threads of the block, a product of `wgmma` all of the warpgroup, a shuffle or vote all lanes of the
warp. Every condition and loop around such an op must be at least as uniform as that; otherwise some threads wait for
ever. The condition of a role counts as well: no op of the whole block stands in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tiledsl.arch import WARP, WARPGROUP
from tiledsl.errors import CompileError, CompileErrors, Loc
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import control
from tiledsl.ir.types import FragmentType
from tiledsl.passes.analysis.called import called, name_of
from tiledsl.passes.analysis.structure import ops_around
from tiledsl.passes.analysis.uniformity import LEVELS, Level, Uniformity, least_uniform

__all__ = ["CheckCollectives"]

_WHO = {
    "cta": "all threads of the block",
    "warpgroup": f"all {WARPGROUP} threads of the warpgroup",
    "warp": "all 32 lanes of the warp",
    "whole warp": "all 32 lanes of the warp",
}
_VARIES = {
    "cta": "block to block",
    "warpgroup": "warpgroup to warpgroup",
    "warp": "warp to warp",
    "thread": "thread to thread",
}
_SCOPES: dict[str, Level] = {"cta": "cta", "warpgroup": "warpgroup", "warp": "warp", "whole warp": "warp"}


@dataclass(frozen=True, slots=True)
class _Condition:
    """What decides whether an op is reached: an `if`, or a loop's bounds, with the value to blame."""

    what: str
    loc: Loc
    level: Level
    value: Value


@dataclass(frozen=True)
class CheckCollectives:
    name: ClassVar[str] = "check-collectives"

    def run(self, kernel: Kernel) -> None:
        if not any(op.scope != "thread" for op in kernel.walk()):
            return
        checker = _Checker(Uniformity(kernel), kernel.thread_count)
        checker.block(kernel.body, ())
        if checker.errors:
            raise CompileErrors(checker.errors)


class _Checker:
    def __init__(self, uniformity: Uniformity, threads: int) -> None:
        self.uniformity, self.threads = uniformity, threads
        self.errors: list[CompileError] = []

    def block(self, block: Block, around: tuple[_Condition, ...]) -> None:
        for op in block.ops:
            if op.scope != "thread":
                self.collective(op, around)
            match op:
                case control.If():
                    inside = (*around, self.condition("condition", op.loc, op.condition))
                case control.For():
                    inside = (*around, self.condition("loop bounds", op.loc, *op.operands[:3]))
                case control.While():
                    inside = (*around, self.condition("loop condition", op.loc, op.before.terminator.operands[0]))
                case _:
                    continue
            for inner in op.blocks:
                self.block(inner, inside)

    def condition(self, what: str, loc: Loc, *values: Value) -> _Condition:
        worst = max(values, key=lambda v: LEVELS.index(self.uniformity.of(v)))
        return _Condition(what, loc, self.uniformity.of(worst), worst)

    def collective(self, op: Op, around: tuple[_Condition, ...]) -> None:
        scope = _SCOPES[op.scope]
        for condition in around:
            if least_uniform(condition.level, scope) != scope:
                self.errors.append(self.error(op, condition))
                return
        if op.scope == "whole warp" and self.threads % WARP:
            self.errors.append(
                CompileError(
                    f"{called(op)} needs all {WARP} lanes of each warp, but a block of {self.threads} threads ends "
                    f"with a warp of {self.threads % WARP}",
                    op.loc,
                    fix=f"let threads(...) be a multiple of {WARP}",
                )
            )
        elif op.alike:
            groups = op.groups
            self.common_place(op, [v for name in op.alike for v in groups[name]], self.holders(op))

    def holders(self, op: Op) -> Level:
        """Who moves a view together: all threads, or those that hold its fragment, a warpgroup or more of a block or
        role that has several."""
        type_ = op.held
        if not isinstance(type_, FragmentType):
            return "cta"
        around = next((o.role[1] for o, _ in ops_around(op.parent) if isinstance(o, control.If) and o.role), 0)
        threads = around * WARP or self.threads
        return "warpgroup" if type_.held_as.threads < threads else "cta"

    def common_place(self, op: Op, origins: Sequence[Value], together: Level = "cta") -> None:
        """What threads move together is one view, the same for all of them."""
        for value in origins:
            level = self.uniformity.of(value)
            if least_uniform(level, together) == together:
                continue
            cause = self.uniformity.cause(value)
            origin = "" if cause is None else f": it depends on {_described(cause)}"
            self.errors.append(
                CompileError(
                    f"{called(op)} moves one view by {_WHO[together]}, but where this one begins may differ "
                    f"from {_VARIES[level]}{origin}",
                    op.loc,
                    fix="begin it where the block's tile begins; one thread's elements move with get() and put()",
                )
            )
            return

    def error(self, op: Op, condition: _Condition) -> CompileError:
        asked = called(op)
        cause = self.uniformity.cause(condition.value)
        origin = "" if cause is None else f": it depends on {_described(cause)}"
        where = f"line {condition.loc.line}" if condition.loc.line else "around it"
        return CompileError(
            f"{asked} must be reached by {_WHO[op.scope]}, but the {condition.what} in {where} "
            f"may differ from {_VARIES[condition.level]}{origin}",
            op.loc,
            fix=f"move {asked} out of the {'loop' if 'loop' in condition.what else 'if'}, "
            f"or use a condition that {_WHO[op.scope]} agree on",
        )


def _described(cause: Op) -> str:
    at = f" (line {cause.loc.line})" if cause.loc.line else ""
    if cause.varies == "memory":
        memory = cause.accesses()[0].memory
        assert isinstance(memory, Value)
        return f"a load of {name_of(memory)}{at}, which the kernel may write meanwhile"
    return f"{cause.cause or cause.name}{at}"
