"""Barriers and fences."""

from __future__ import annotations

from typing import Any

from tiledsl import lang
from tiledsl.frontend.calls import Call, intrinsic
from tiledsl.frontend.intrinsics.roles import group_barrier
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
    if call["reach"] not in ("cta", "gpu", "sys"):
        raise call.error(f"fence() reaches 'cta', 'gpu' or 'sys', got {call['reach']!r}", "fence('gpu')")
    call.builder.add(gpu.Fence(reach=call["reach"]))
