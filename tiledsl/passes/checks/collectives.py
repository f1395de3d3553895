"""Check that ops which threads must reach together are reached together.

A barrier needs all threads of the block, a product of `wgmma` all of the warpgroup, a shuffle or vote all lanes of the
warp. Every condition and loop around such an op must be at least as uniform as that; otherwise some threads wait for
ever. The condition of a role counts as well: no op of the whole block stands in one.
"""

from __future__ import annotations

from functools import cached_property

from tiledsl.arch import WARP, WARPGROUP
from tiledsl.errors import CompileError
from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.ops import control
from tiledsl.ir.types import FragmentType
from tiledsl.passes.analysis.called import called, name_of
from tiledsl.passes.analysis.structure import deciders, ops_around
from tiledsl.passes.analysis.uniformity import LEVELS, Level, PlainlyUniform, Uniformity, least_uniform
from tiledsl.passes.checks.checker import Checker, of_each

_WHO: dict[Level, str] = {
    "cta": "all threads of the block",
    "warpgroup": f"all {WARPGROUP} threads of the warpgroup",
    "warp": f"all {WARP} lanes of the warp",
}
_WHAT: dict[type[Op], str] = {
    control.If: "condition",
    control.For: "loop bounds",
    control.While: "loop condition",
}


def check_collectives(kernel: Kernel) -> None:
    of_each(kernel.walk(), _Checker(kernel).op)


class _Checker(Checker):
    @cached_property
    def plain(self) -> PlainlyUniform:
        return PlainlyUniform(self.kernel)

    @cached_property
    def uniformity(self) -> Uniformity:
        return Uniformity(self.kernel)

    def op(self, op: Op) -> None:
        if op.scope == "thread":
            return
        around = [owner for owner, _ in ops_around(op.parent)]
        for owner in reversed(around):
            self.condition(op, owner)
        threads = self.kernel.thread_count
        if op.scope == "whole warp" and threads % WARP:
            raise CompileError(
                f"{called(op)} needs all {WARP} lanes of each warp, but a block of {threads} threads ends "
                f"with a warp of {threads % WARP}",
                fix=f"let threads(...) be a multiple of {WARP}",
                code="C601",
            )
        # Who moves a view together: all threads, or those that hold its fragment, a warpgroup or more of a block or
        # role that has several.
        type_, groups = op.held, op.groups
        held_by = type_.held_as.threads if isinstance(type_, FragmentType) else threads
        role = next((o.role[1] for o in around if isinstance(o, control.If) and o.role), 0)
        together: Level = "warpgroup" if held_by < (role * WARP or threads) else "cta"
        for value in (v for name in op.alike for v in groups[name]):
            self.common_place(op, value, together)

    def condition(self, op: Op, owner: Op) -> None:
        """What decides whether and how often `op` is reached is the same for all that must reach it."""
        if all(map(self.plain.of, deciders(owner))):
            return
        worst = max(deciders(owner), key=lambda v: LEVELS.index(self.uniformity.of(v)))
        level, scope = self.uniformity.of(worst), "warp" if op.scope == "whole warp" else op.scope
        if least_uniform(level, scope) == scope:
            return
        asked, what = called(op), _WHAT[type(owner)]
        where = f"line {owner.loc.line}" if owner.loc.line else "around it"
        raise CompileError(
            f"{asked} must be reached by {_WHO[scope]}, but the {what} in {where} "
            f"may differ from {_varies(level)}{self.because(worst)}",
            fix=f"move {asked} out of the {'loop' if 'loop' in what else 'if'}, "
            f"or use a condition that {_WHO[scope]} agree on",
            code="C601",
        )

    def common_place(self, op: Op, value: Value, together: Level) -> None:
        """What threads move together is one view, the same for all of them."""
        if self.plain.of(value):
            return
        level = self.uniformity.of(value)
        if least_uniform(level, together) != together:
            raise CompileError(
                f"{called(op)} moves one view by {_WHO[together]}, but where this one begins may differ "
                f"from {_varies(level)}{self.because(value)}",
                fix="begin it where the block's tile begins; one thread's elements move with get() and put()",
                code="C601",
            )

    def because(self, value: Value) -> str:
        """What makes the value differ."""
        cause = self.uniformity.cause(value)
        if cause is None:
            return ""
        at = f" (line {cause.loc.line})" if cause.loc.line else ""
        if cause.varies != "memory":
            return f": it depends on {cause.cause or cause.name}{at}"
        memory = cause.accesses()[0].memory
        assert isinstance(memory, Value)
        return f": it depends on a load of {name_of(memory)}{at}, which the kernel may write meanwhile"


def _varies(level: Level) -> str:
    name = "block" if level == "cta" else level
    return f"{name} to {name}"
