"""Features of the target: checked for every op that the frontend makes, by what its class declares."""

from __future__ import annotations

from tiledsl.arch import require_feature
from tiledsl.errors import Loc
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Op
from tiledsl.passes.analysis.called import called


class TargetBuilder(Builder):
    """Refuses ops for which `arch` has no instructions."""

    def __init__(self, block: Block, arch: str, loc: Loc) -> None:
        super().__init__(block, loc)
        self.arch = arch

    def add(self, op: Op) -> Op:
        for feature in op.features:
            require_feature(self.arch, feature, called(op), self.loc)
        return super().add(op)
