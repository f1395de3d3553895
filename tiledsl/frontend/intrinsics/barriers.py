"""Functions that are one op: barriers, fences, mbarriers, and what warpgroups, blocks and clusters wait for."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

from tiledsl import lang
from tiledsl.arch import (
    LEAST_SETMAXNREG,
    MOST_ARRIVALS,
    MOST_SETMAXNREG,
    MOST_THREADS,
    MOST_TX_BYTES,
    NAMED_BARRIERS,
    REGISTER_UNIT,
    WARP,
)
from tiledsl.frontend.bindings import describe, is_place
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.intrinsics.roles import group_barrier
from tiledsl.frontend.views import located, memory_type
from tiledsl.ir.atomics import SCOPES
from tiledsl.ir.core import Op, Value
from tiledsl.ir.ops import barriers, gpu, tma, wgmma
from tiledsl.ir.types import I32, U32, U64, SharedType

_PLAIN: dict[Any, Callable[[], Op]] = {
    lang.warp_id: gpu.WarpId,
    lang.lane_id: gpu.LaneId,
    lang.syncwarp: gpu.SyncWarp,
    lang.tma_commit: tma.BulkCommit,
    lang.ptx.fence_mbarrier_init: barriers.FenceInit,
    lang.ptx.fence_proxy_async: barriers.FenceProxy,
    lang.ptx.wgmma_fence: wgmma.Fence,
    lang.ptx.wgmma_commit: wgmma.Commit,
    lang.ptx.elect: barriers.Elect,
    lang.ptx.cluster_arrive: barriers.ClusterArrive,
    lang.ptx.cluster_wait: barriers.ClusterWait,
    lang.ptx.cluster_rank: barriers.ClusterRank,
    lang.ptx.griddepcontrol_wait: partial(barriers.GridDependency, wait=True),
    lang.ptx.griddepcontrol_launch: partial(barriers.GridDependency, wait=False),
}
"""Functions without arguments."""


def _plain(make: Callable[[], Op], call: Call) -> Value | None:
    op = call.builder.add(make())
    return op.result if op.results else None


for _function, _make in _PLAIN.items():
    intrinsic(_function)(partial(_plain, _make))

intrinsic(lang.barrier)(group_barrier)


@intrinsic(lang.fence)
def _fence(call: Call) -> None:
    call.builder.add(gpu.Fence(reach=call.choice("reach", SCOPES)))


# -- mbarriers -------------------------------------------------------------------------------------


def mbarrier_place(call: Call, memory: Any, at: Any) -> list[Value]:
    """An mbarrier: the tile and its indices."""
    if not is_place(memory) or memory_type(memory) != SharedType(U64, memory_type(memory).dims):  # pyright: ignore
        message = f"{call.what}: mbarriers are the elements of a shared tile of u64, got {describe(memory)}"
        raise call.error(message, "bars = shared((STAGES,), u64), and the index of one: (bars, i)")
    base, indices = located(call.frame, call.node, memory, at)
    return [base, *indices]


def _mbarrier(call: Call) -> list[Value]:
    return mbarrier_place(call, call["barriers"], call["index"])


@intrinsic(lang.ptx.mbarrier_init)
def _init(call: Call) -> None:
    count = call.integer("count", 1, MOST_ARRIVALS)
    call.builder.add(barriers.Init(*_mbarrier(call), count=count))


@intrinsic(lang.ptx.mbarrier_arrive)
def _arrive(call: Call) -> None:
    rank = [] if call["rank"] is None else [call.value("rank", I32)]
    call.builder.add(barriers.Arrive(*_mbarrier(call), *rank, reach="cluster"))


@intrinsic(lang.ptx.mbarrier_expect_tx)
def _expect_tx(call: Call) -> None:
    size = call.integer("bytes", 1, MOST_TX_BYTES)
    call.builder.add(barriers.ExpectTx(*_mbarrier(call), bytes=size))


@intrinsic(lang.ptx.mbarrier_wait)
def _wait(call: Call) -> None:
    place, parity = _mbarrier(call), call["parity"]
    if isinstance(parity, int) and parity not in (0, 1):
        raise call.error(f"{call.what} with parity={parity}", "a phase has parity 0 or 1, in turns")
    call.builder.add(barriers.Wait(*place, call.value("parity", U32), reach="cluster"))


# -- the others ------------------------------------------------------------------------------------


@intrinsic(lang.tma_wait)
def _tma_wait(call: Call) -> None:
    pending = call.integer("pending", 0, 63, "how many of the last groups may still be in flight")
    call.builder.add(tma.BulkWait(pending=pending, read=call["read"]))


@intrinsic(lang.ptx.wgmma_wait)
def _wgmma_wait(call: Call) -> None:
    fix = "how many of the last groups may still be in flight; acc.wait() waits for all, and gives the elements"
    call.builder.add(wgmma.Wait(pending=call.integer("pending", 0, 7, fix), finish=False))


@intrinsic(lang.ptx.setmaxnreg)
def _setmaxnreg(call: Call) -> None:
    registers = call.integer("registers", LEAST_SETMAXNREG, MOST_SETMAXNREG, multiple=REGISTER_UNIT)
    call.builder.add(barriers.SetMaxNReg(registers=registers, increase=call["increase"]))


@intrinsic(lang.ptx.named_barrier)
def _named_barrier(call: Call) -> None:
    number = call.integer("number", 1, NAMED_BARRIERS - 1, "number 0 is that of barrier()")
    threads = call.integer("threads", WARP, MOST_THREADS, "whole warps meet there", multiple=WARP)
    call.builder.add(barriers.NamedBarrier(number=number, threads=threads, wait=call["wait"]))
