"""Collects the records of stamps on the emulator, as a run on a GPU leaves them (`backends.stamp_records`).

A hook, behind a `Timeline` whose clocks are the time: pass `Options(hooks=(timeline, Stamps(timeline)))`.
"""

from __future__ import annotations

from typing import cast

from tiledsl.backends.emulator.hooks import Hook, Ints
from tiledsl.backends.emulator.timeline import Timeline
from tiledsl.backends.stamp_records import Record
from tiledsl.ir.core import Op
from tiledsl.ir.ops.debug import Stamp


class Stamps(Hook):
    """`records`: of each warp of the first cluster, block by block."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._of_warp: dict[int, list[Record]] = {}

    @property
    def records(self) -> list[list[Record]]:
        return [self._of_warp.get(warp, []) for warp in range(len(self.timeline.now))]

    def on_stamp(self, op: Op, blocks: Ints, warps: Ints, places: Ints) -> None:
        site = cast(Stamp, op).site
        for block, warp, place in zip(blocks.tolist(), warps.tolist(), places.tolist(), strict=True):
            if block in self.timeline.blocks:
                row = self.timeline.blocks.index(block) * self.timeline.warps + warp
                record = site, int(self.timeline.now[row]), place
                # By both clocks.
                self._of_warp.setdefault(row, []).extend([record] * (1 if cast(Stamp, op).at else 2))
