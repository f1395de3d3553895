"""Raw instructions of `tiledsl.lang.ptx`: mbarriers, fences, and what warpgroups, blocks and clusters wait for."""

from __future__ import annotations

from typing import Any

from tiledsl import lang
from tiledsl.arch import (
    LEAST_SETMAXNREG,
    MOST_ARRIVALS,
    MOST_SETMAXNREG,
    MOST_THREADS,
    NAMED_BARRIERS,
    REGISTER_UNIT,
    WARP,
)
from tiledsl.frontend.arithmetic import as_value
from tiledsl.frontend.bindings import describe, is_place
from tiledsl.frontend.calls import Call, intrinsic
from tiledsl.frontend.targets import require_feature
from tiledsl.frontend.views import located, memory_type
from tiledsl.ir.core import Op, Value
from tiledsl.ir.ops import barriers, wgmma
from tiledsl.ir.types import I32, INDEX, U32, U64, SharedType

__all__ = ["compile_time_int", "mbarrier_place", "needs"]


def needs(call: Call, feature: str, what: str) -> None:
    """As `require_feature`, before the arguments of a function are looked at. The builder asks it of each op."""
    require_feature(call.frame.unit.arch, feature, what, call.frame.loc(call.node))


def compile_time_int(call: Call, name: str, what: str, low: int, high: int, fix: str = "use a const parameter") -> int:
    """An argument that is a compile-time int in a range."""
    value: Any = call[name]
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        shown = str(value) if isinstance(value, int) else describe(value)
        raise call.error(f"{what}: {name} is a compile-time int from {low} to {high}, got {shown}", fix)
    return value


# -- mbarriers -------------------------------------------------------------------------------------


def mbarrier_place(call: Call, memory: Any, at: Any, what: str) -> list[Value]:
    """An mbarrier: the tile and its indices."""
    if not is_place(memory) or memory_type(memory) != SharedType(U64, memory_type(memory).dims):  # pyright: ignore
        fix = "bars = shared((STAGES,), u64), and the index of one: (bars, i)"
        raise call.error(f"{what}: mbarriers are the elements of a shared tile of u64, got {describe(memory)}", fix)
    base, indices = located(call.frame, call.node, memory, at)
    return [base, *indices]


def _mbarrier(call: Call, what: str) -> list[Value]:
    return mbarrier_place(call, call["barriers"], call["index"], what)


@intrinsic(lang.ptx.mbarrier_init)
def _init(call: Call) -> None:
    what = "ptx.mbarrier_init()"
    count = compile_time_int(call, "count", what, 1, MOST_ARRIVALS)
    call.builder.add(barriers.Init(*_mbarrier(call, what), count=count))


@intrinsic(lang.ptx.mbarrier_arrive)
def _arrive(call: Call) -> None:
    place, rank = _mbarrier(call, "ptx.mbarrier_arrive()"), call["rank"]
    if rank is None:
        call.builder.add(barriers.Arrive(*place))
        return
    value = as_value(rank, I32, call.frame, call.node, "rank")
    call.builder.add(barriers.Arrive(*place, value, cluster=True))


@intrinsic(lang.ptx.mbarrier_expect_tx)
def _expect_tx(call: Call) -> None:
    what = "ptx.mbarrier_expect_tx()"
    size = compile_time_int(call, "bytes", what, 1, MOST_ARRIVALS)
    call.builder.add(barriers.ExpectTx(*_mbarrier(call, what), bytes=size))


@intrinsic(lang.ptx.mbarrier_wait)
def _wait(call: Call) -> None:
    place, parity = _mbarrier(call, "ptx.mbarrier_wait()"), call["parity"]
    if isinstance(parity, int) and parity not in (0, 1):
        raise call.error(f"ptx.mbarrier_wait() with parity={parity}", "a phase has parity 0 or 1, in turns")
    if isinstance(parity, Value) and parity.type == INDEX:
        raise call.error("the parity must be u32, it is index", "convert it: parity=u32(i // STAGES % 2)")
    call.builder.add(barriers.Wait(*place, as_value(parity, U32, call.frame, call.node, "parity")))


# -- the others ------------------------------------------------------------------------------------


def _plain(function: Any, make: type[Op], **attributes: Any) -> None:
    """A function without arguments that is one op, and gives its result if it has one."""

    @intrinsic(function)
    def _(call: Call) -> Value | None:
        op: Op = call.builder.add(make(**attributes))
        return op.result if op.results else None


_plain(lang.ptx.fence_mbarrier_init, barriers.FenceInit)
_plain(lang.ptx.fence_proxy_async, barriers.FenceProxy)
_plain(lang.ptx.wgmma_fence, wgmma.Fence)
_plain(lang.ptx.wgmma_commit, wgmma.Commit)
_plain(lang.ptx.elect, barriers.Elect)
_plain(lang.ptx.cluster_arrive, barriers.ClusterArrive)
_plain(lang.ptx.cluster_wait, barriers.ClusterWait)
_plain(lang.ptx.cluster_rank, barriers.ClusterRank)
_plain(lang.ptx.griddepcontrol_wait, barriers.GridDependency, wait=True)
_plain(lang.ptx.griddepcontrol_launch, barriers.GridDependency, wait=False)


@intrinsic(lang.ptx.wgmma_wait)
def _wgmma_wait(call: Call) -> None:
    what = "ptx.wgmma_wait()"
    fix = "how many of the last groups may still be on their way; acc.wait() waits for all, and gives the elements"
    pending = compile_time_int(call, "pending", what, 0, 7, fix)
    call.builder.add(wgmma.Wait(pending=pending, finish=False))


@intrinsic(lang.ptx.setmaxnreg)
def _setmaxnreg(call: Call) -> None:
    what = "ptx.setmaxnreg()"
    registers = compile_time_int(call, "registers", what, LEAST_SETMAXNREG, MOST_SETMAXNREG)
    if registers % REGISTER_UNIT:
        fix = f"a multiple of {REGISTER_UNIT}: {registers // REGISTER_UNIT * REGISTER_UNIT}"
        raise call.error(f"{what} of {registers} registers", fix)
    call.builder.add(barriers.SetMaxNReg(registers=registers, increase=call["increase"]))


@intrinsic(lang.ptx.named_barrier)
def _named_barrier(call: Call) -> None:
    what = "ptx.named_barrier()"
    number = compile_time_int(call, "number", what, 1, NAMED_BARRIERS - 1, "number 0 is that of barrier()")
    threads = compile_time_int(call, "threads", what, WARP, MOST_THREADS)
    if threads % WARP:
        raise call.error(f"{what} of {threads} threads, which are no whole warps", f"pass {-(-threads // WARP) * WARP}")
    call.builder.add(barriers.NamedBarrier(number=number, threads=threads, wait=call["wait"]))
