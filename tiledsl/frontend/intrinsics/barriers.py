"""Functions that are one op: barriers, fences, mbarriers, and what warpgroups, blocks and clusters wait for."""

from __future__ import annotations

from functools import partial
from typing import Any

from tiledsl import lang
from tiledsl.frontend.arithmetic import as_value
from tiledsl.frontend.bindings import describe, is_place
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.intrinsics.memory import place_and_values, stored_vector
from tiledsl.frontend.intrinsics.roles import group_barrier
from tiledsl.frontend.memory import is_vector
from tiledsl.frontend.views import located, memory_type
from tiledsl.ir.core import Op, Value
from tiledsl.ir.declare import MOST_INT
from tiledsl.ir.ops import async_copy, barriers, gpu, tma, wgmma
from tiledsl.ir.types import I32, U32, U64, SharedType

_ONE_OP: dict[Any, type[Op]] = {
    lang.warp_id: gpu.WarpId,
    lang.lane_id: gpu.LaneId,
    lang.syncwarp: gpu.SyncWarp,
    lang.fence: gpu.Fence,
    lang.tma_commit: tma.BulkCommit,
    lang.tma_wait: tma.BulkWait,
    lang.ptx.wait_group: async_copy.WaitGroup,
    lang.ptx.fence_mbarrier_init: barriers.FenceInit,
    lang.ptx.fence_proxy_async: barriers.FenceProxy,
    lang.ptx.wgmma_fence: wgmma.Fence,
    lang.ptx.wgmma_commit: wgmma.Commit,
    lang.ptx.elect: barriers.Elect,
    lang.ptx.setmaxnreg: barriers.SetMaxNReg,
    lang.ptx.named_barrier: barriers.NamedBarrier,
    lang.ptx.cluster_arrive: barriers.ClusterArrive,
    lang.ptx.cluster_wait: barriers.ClusterWait,
    lang.ptx.cluster_rank: barriers.ClusterRank,
    lang.ptx.mbarrier_init: barriers.Init,
    lang.ptx.mbarrier_expect_tx: barriers.ExpectTx,
}
"""Functions that are one op. Its attributes are arguments of the same names, the others the place of an mbarrier."""

_FIXES = {
    "pending": "how many of the last groups may still be in flight, a compile-time int: 0 waits for all",
    "number": "number 0 is that of barrier()",
    "threads": "whole warps meet there",
}


def _one_op(cls: type[Op], call: Call) -> Value | None:
    attributes = {name: _attribute(cls, name, call) for name in call.arguments if name in cls.attributes}
    place = _mbarrier(call) if issubclass(cls, barriers.MbarrierOp) else []
    op = call.builder.add(cls(*place, **attributes))
    return op.result if op.results else None


def _attribute(cls: type[Op], name: str, call: Call) -> Any:
    """An argument that is an attribute of the op, in the range that its class declares."""
    declared, fix = cls.attributes[name], _FIXES.get(name, "use a const parameter")
    if isinstance(declared.among, range):
        return call.integer(name, declared.among[0], declared.among[-1], fix, multiple=declared.among.step)
    if declared.type is int:
        return call.integer(name, declared.least, None if declared.most == MOST_INT else declared.most, fix)
    return call.choice(name, declared.among) if declared.among else call[name]


for _function, _class in _ONE_OP.items():
    intrinsic(_function)(partial(_one_op, _class))

intrinsic(lang.barrier)(group_barrier)


# -- mbarriers -------------------------------------------------------------------------------------


def mbarrier_given(call: Call) -> list[Value]:
    """The argument `mbarrier`: a tile and an index of it."""
    given: Any = call["mbarrier"]
    parts: tuple[Any, ...] = given if isinstance(given, tuple) else ()  # pyright: ignore[reportUnknownVariableType]
    if len(parts) < 2:
        raise call.error(
            f"mbarrier= is a tile of u64 and an index, got {describe(given)}", "mbarrier=(bars, i)", code="C608"
        )
    return _mbarrier_place(call, parts[0], parts[1:])


def _mbarrier_place(call: Call, memory: Any, at: Any) -> list[Value]:
    """An mbarrier: the tile and its indices."""
    if not is_place(memory) or memory_type(memory) != SharedType(U64, memory_type(memory).dims):  # pyright: ignore
        message = f"{call.what}: mbarriers are the elements of a shared tile of u64, got {describe(memory)}"
        raise call.error(message, "bars = shared((STAGES,), u64), and the index of one: (bars, i)", code="C608")
    base, indices = located(call.frame, call.node, memory, at)
    return [base, *indices]


def _mbarrier(call: Call) -> list[Value]:
    return _mbarrier_place(call, call["barriers"], call["index"])


@intrinsic(lang.ptx.mbarrier_arrive)
def _arrive(call: Call) -> None:
    rank = [] if call["rank"] is None else [call.value("rank", I32)]
    call.builder.add(barriers.Arrive(*_mbarrier(call), *rank, reach=call.choice("scope", barriers.REACHES)))


@intrinsic(lang.ptx.mbarrier_wait)
def _wait(call: Call) -> None:
    place, parity = _mbarrier(call), call["parity"]
    if isinstance(parity, int) and parity not in (0, 1):
        raise call.error(f"{call.what} with parity={parity}", "a phase has parity 0 or 1, in turns", code="C608")
    reach = call.choice("scope", barriers.REACHES)
    call.builder.add(barriers.Wait(*place, call.value("parity", U32), reach=reach))


@intrinsic(lang.ptx.st_async)
def _st_async(call: Call) -> None:
    memory = call.memory("dst", SharedType)
    at, (value,) = place_and_values(call, "index_and_value", memory="dst")
    dtype = memory_type(memory).dtype
    count = value.type.size if is_vector(value) else 1
    size = count * dtype.bytes
    if dtype.bytes not in async_copy.SENT_ELEMENTS or size not in async_copy.CP_BYTES:
        fix = "4, 8 or 16 bytes at once, of elements of 4 or 8; pack others into such by bitcast()"
        raise call.error(f"{call.what} of {size} bytes, {count} {dtype}", fix, code="C401")
    if is_vector(value):
        value = stored_vector(call, memory, value)
    else:
        value = as_value(value, dtype, call.frame, call.node, "the value")
    base, place = located(call.frame, call.node, memory, at)
    call.builder.add(async_copy.Send(base, *place, *mbarrier_given(call), call.value("rank", I32), value, vec=count))


# -- the others ------------------------------------------------------------------------------------


@intrinsic(lang.ptx.wgmma_wait)
def _wgmma_wait(call: Call) -> None:
    call.builder.add(wgmma.Wait(pending=call.integer("pending", 0, 7, _FIXES["pending"]), finish=False))


@intrinsic(lang.ptx.griddepcontrol_wait, lang.ptx.griddepcontrol_launch)
def _grid_dependency(call: Call) -> None:
    call.builder.add(barriers.GridDependency(wait=call.callee is lang.ptx.griddepcontrol_wait))
