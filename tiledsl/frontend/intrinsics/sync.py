"""Barriers and fences."""

from __future__ import annotations

from typing import Any

from tiledsl import lang
from tiledsl.frontend.bindings import describe
from tiledsl.frontend.calls import Call, intrinsic
from tiledsl.frontend.intrinsics.roles import group_barrier
from tiledsl.ir.atomics import SCOPES
from tiledsl.ir.ops import gpu

__all__: list[str] = []


@intrinsic(lang.barrier)
def _barrier(call: Call) -> Any:
    group_barrier(call)


@intrinsic(lang.syncwarp)
def _syncwarp(call: Call) -> Any:
    call.builder.add(gpu.SyncWarp())


@intrinsic(lang.fence)
def _fence(call: Call) -> Any:
    if call["reach"] not in SCOPES:
        raise call.error(f"fence() has no reach {describe(call['reach'])}", f"one of {', '.join(map(repr, SCOPES))}")
    call.builder.add(gpu.Fence(reach=call["reach"]))
