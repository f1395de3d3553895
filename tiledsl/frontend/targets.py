"""Features of the target: checked for every op that the frontend makes, by what its class declares."""

from __future__ import annotations

from tiledsl.arch import FEATURES, INSTEAD
from tiledsl.errors import CompileError, Loc
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Op
from tiledsl.passes.analysis.called import called


def require_feature(arch: str, feature: str, what: str, loc: Loc) -> None:
    """An error where the kernel is compiled for a target without `feature`, a row of `FEATURES`, which `what` needs."""
    have = FEATURES[feature]
    if arch not in have:
        best = "sm_90a" if "sm_90a" in have else have[0]
        instead = INSTEAD.get(feature, "for other GPUs, copy_async() and mma() do the same work")
        fix = f'write @tile_kernel(arch="{best}"); {instead}'
        message = f"{what} needs {'one of ' * (len(have) > 1)}{', '.join(have)}, and this is compiled for {arch}"
        raise CompileError(message, loc, fix)


class TargetBuilder(Builder):
    """Refuses ops for which `arch` has no instructions."""

    def __init__(self, block: Block, arch: str, loc: Loc) -> None:
        super().__init__(block, loc)
        self.arch = arch

    def add(self, op: Op) -> Op:
        for feature in op.features:
            require_feature(self.arch, feature, called(op), self.loc)
        return super().add(op)
