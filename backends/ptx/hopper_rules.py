"""Hopper: mbarriers, tensor memory access, wgmma, parts of a block and clusters.

Inline PTX throughout: side effects keep the order that the IR has, and what lanes of a warp do together is convergent.
(PTX ISA: mbarrier, cp.async.bulk.tensor, wgmma, barrier, setmaxnreg, griddepcontrol.)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.llvm import ir
from tiledsl.backends.ptx.types import I1, I32, I64, VOID, integer, llvm_type, structure
from tiledsl.ir.core import Op, Value
from tiledsl.ir.ops import barriers, tma, wgmma

__all__ = ["needs_ptx"]

PTX_NAMES = {"i8": "s8", "i32": "s32"}
"""What wgmma calls dtypes whose name here is another."""

OWN_PTX = 86
"""From this PTX version on, TMA loads name the block's own memory. On sm_120a ptxas otherwise asks at run time whether
it is that of another block, and calls a function for it."""

HINTED_PTX = 74
"""The PTX version that brought createpolicy."""


def needs_ptx(op: Op) -> int:
    """The PTX version (major * 10 + minor) that `op` needs beyond the target's own; 0 for all but cache hints."""
    return HINTED_PTX if isinstance(op, tma.MapLoad) and op.hint else 0


def _emit(lw: Lowering, text: str, kinds: str = "", *args: Any, result: Any = VOID, convergent: bool = False) -> Any:
    """Inline PTX that is kept and stays in order."""
    constraints = ",".join([*kinds.split(), "~{memory}"])
    return lw.asm(text, constraints, result, *args, side_effect=True, convergent=convergent)


# -- mbarriers and fences --------------------------------------------------------------------------


@lowers(barriers.Init)
def lower_init(lw: Lowering, op: barriers.Init) -> Sequence[Any]:
    _emit(lw, f"mbarrier.init.shared::cta.b64 [$0], {op.count};", "r", lw.value(op.place[0]))
    return []


@lowers(barriers.Arrive)
def lower_arrive(lw: Lowering, op: barriers.Arrive) -> Sequence[Any]:
    pointer = lw.value(op.place[0])
    if not op.cluster:
        _emit(lw, "mbarrier.arrive.shared::cta.b64 _, [$0];", "r", pointer)
        return []
    text = (
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; mbarrier.arrive.shared::cluster.b64 _, [there]; }"
    )
    _emit(lw, text, "r r", pointer, lw.value(op.more[0]))
    return []


@lowers(barriers.ExpectTx)
def lower_expect_tx(lw: Lowering, op: barriers.ExpectTx) -> Sequence[Any]:
    text = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {op.bytes};"
    _emit(lw, text, "r", lw.value(op.place[0]))
    return []


@lowers(barriers.Wait)
def lower_wait(lw: Lowering, op: barriers.Wait) -> Sequence[Any]:
    """try_wait sleeps for a while by itself; the loop asks again."""
    text = (
        "{ .reg .pred done; WAIT${:uid}: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; "
        "@!done bra WAIT${:uid}; }"
    )
    _emit(lw, text, "r r", lw.value(op.place[0]), lw.value(op.operands[-1]), convergent=True)
    return []


@lowers(barriers.FenceInit)
def lower_fence_init(lw: Lowering, op: barriers.FenceInit) -> Sequence[Any]:
    _emit(lw, "fence.mbarrier_init.release.cluster;")
    return []


@lowers(barriers.FenceProxy)
def lower_fence_proxy(lw: Lowering, op: barriers.FenceProxy) -> Sequence[Any]:
    _emit(lw, "fence.proxy.async.shared::cta;")
    return []


# -- parts of a block, clusters, grids -------------------------------------------------------------


@lowers(barriers.NamedBarrier)
def lower_named_barrier(lw: Lowering, op: barriers.NamedBarrier) -> Sequence[Any]:
    number = integer(op.number, I32)
    if op.operands:
        number = lw.b.add(number, lw.value(op.operands[0]))
    what = "sync" if op.wait else "arrive"
    lw.intrinsic(f"llvm.nvvm.barrier.cta.{what}.aligned.count", VOID, number, integer(op.threads, I32))
    return []


@lowers(barriers.ClusterArrive)
def lower_cluster_arrive(lw: Lowering, op: barriers.ClusterArrive) -> Sequence[Any]:
    _emit(lw, "barrier.cluster.arrive.release.aligned;", convergent=True)
    return []


@lowers(barriers.ClusterWait)
def lower_cluster_wait(lw: Lowering, op: barriers.ClusterWait) -> Sequence[Any]:
    _emit(lw, "barrier.cluster.wait.acquire.aligned;", convergent=True)
    return []


@lowers(barriers.ClusterRank)
def lower_cluster_rank(lw: Lowering, op: barriers.ClusterRank) -> Sequence[Any]:
    return [lw.intrinsic("llvm.nvvm.read.ptx.sreg.cluster.ctarank", I32)]


@lowers(barriers.Elect)
def lower_elect(lw: Lowering, op: barriers.Elect) -> Sequence[Any]:
    text = "elect.sync _|$0, 0xffffffff;"
    return [_emit(lw, text, "=b", result=I1, convergent=True)]


@lowers(barriers.SetMaxNReg)
def lower_setmaxnreg(lw: Lowering, op: barriers.SetMaxNReg) -> Sequence[Any]:
    what = "inc" if op.increase else "dec"
    _emit(lw, f"setmaxnreg.{what}.sync.aligned.u32 {op.registers};", convergent=True)
    return []


@lowers(barriers.GridDependency)
def lower_grid_dependency(lw: Lowering, op: barriers.GridDependency) -> Sequence[Any]:
    _emit(lw, "griddepcontrol.wait;" if op.wait else "griddepcontrol.launch_dependents;")
    return []


# -- tensor memory access --------------------------------------------------------------------------


@lowers(tma.MapLoad)
def lower_map_load(lw: Lowering, op: tma.MapLoad) -> Sequence[Any]:
    kinds, args = ["r", "r", "l"], [*lw.operands([op.dst, op.mbarrier]), lw.tensor_maps[op.map]]
    box = _coordinates(lw, op.coordinates, kinds, args)
    own = lw.target.ptx >= OWN_PTX and not op.multicast
    space = "shared::cta" if own else "shared::cluster"
    what = f"cp.async.bulk.tensor.{len(op.coordinates)}d.{space}.global.mbarrier::complete_tx::bytes"
    more = ""
    if op.multicast:
        what, more = f"{what}.multicast::cluster", f", ${len(args)}"
        kinds, args = [*kinds, "h"], [*args, lw.value(op.operands[-1])]
    if op.hint:
        what, more = f"{what}.L2::cache_hint", f"{more}, ${len(args)}"
        kinds, args = [*kinds, "l"], [*args, _policy(lw, op.hint)]
    _emit(lw, f"{what} [$0], [$2, {box}], [$1]{more};", " ".join(kinds), *args)
    return []


@lowers(tma.MapStore)
def lower_map_store(lw: Lowering, op: tma.MapStore) -> Sequence[Any]:
    kinds, args = ["r", "l"], [lw.value(op.src), lw.tensor_maps[op.map]]
    box = _coordinates(lw, op.coordinates, kinds, args)
    what = f"cp.async.bulk.tensor.{len(op.coordinates)}d.global.shared::cta.bulk_group"
    _emit(lw, f"{what} [$1, {box}], [$0];", " ".join(kinds), *args)
    return []


def _coordinates(lw: Lowering, values: Sequence[Value], kinds: list[str], args: list[Any]) -> str:
    """Append them to the operands; their names there."""
    first = len(args)
    kinds += ["r"] * len(values)
    args += lw.operands(values)
    return "{" + ", ".join(f"${i}" for i in range(first, len(args))) + "}"


def _policy(lw: Lowering, hint: str) -> Any:
    """Pure, so that one is made for all loads."""
    return lw.asm(f"createpolicy.fractional.L2::{hint}.b64 $0, 1.0;", "=l", I64)


@lowers(tma.MapPrefetch)
def lower_map_prefetch(lw: Lowering, op: tma.MapPrefetch) -> Sequence[Any]:
    _emit(lw, "prefetch.tensormap [$0];", "l", lw.tensor_maps[op.map])
    return []


@lowers(tma.BulkCommit)
def lower_bulk_commit(lw: Lowering, op: tma.BulkCommit) -> Sequence[Any]:
    _emit(lw, "cp.async.bulk.commit_group;")
    return []


@lowers(tma.BulkWait)
def lower_bulk_wait(lw: Lowering, op: tma.BulkWait) -> Sequence[Any]:
    _emit(lw, f"cp.async.bulk.wait_group{'.read' if op.read else ''} {op.pending};")
    return []


# -- wgmma -----------------------------------------------------------------------------------------


@lowers(wgmma.Fence)
def lower_wgmma_fence(lw: Lowering, op: wgmma.Fence) -> Sequence[Any]:
    _emit(lw, "wgmma.fence.sync.aligned;", convergent=True)
    return []


@lowers(wgmma.Commit)
def lower_wgmma_commit(lw: Lowering, op: wgmma.Commit) -> Sequence[Any]:
    _emit(lw, "wgmma.commit_group.sync.aligned;", convergent=True)
    return []


@lowers(wgmma.Registers)
def lower_registers(lw: Lowering, op: wgmma.Registers) -> Sequence[Any]:
    return [ir.Constant(llvm_type(r.type), ir.Undefined) for r in op.results]


@lowers(wgmma.Descriptor)
def lower_descriptor(lw: Lowering, op: wgmma.Descriptor) -> Sequence[Any]:
    """Shared addresses have 18 bits, of which the field takes all but the last four; the constants of the low word are
    added to it. In a cluster the block's rank stands above them, in bits that would end up in another field."""
    b, bits = lw.b, op.bits
    address = b.and_(b.lshr(b.ptrtoint(lw.value(op.ptr), I32), integer(4, I32)), integer(0x3FFF, I32))
    low = b.add(address, integer(bits & 0xFFFFFFFF, I32))
    return [b.or_(b.zext(low, I64), integer(bits >> 32 << 32, I64))]


@lowers(wgmma.Instruction)
def lower_instruction(lw: Lowering, op: wgmma.Instruction) -> Sequence[Any]:
    count = len(op.accumulators)
    text = _instruction(op, count)
    register = {"float": "f", "i32": "r"}[str(llvm_type(op.acc_types[0]))]
    kinds = [f"={register}"] * count + ["b"] + (["r"] * op.a_registers or ["l"]) + ["l"]
    kinds += [str(i) for i in range(count)]
    result = structure(*(llvm_type(t) for t in op.acc_types))
    value = _emit(lw, text, " ".join(kinds), *lw.operands(op.operands), result=result, convergent=True)
    return [lw.b.extract_value(value, i) for i in range(count)]


def _instruction(op: wgmma.Instruction, count: int) -> str:
    """Operands: the accumulator's registers, then whether to add to them, a, b."""
    row = op.row
    left = [f"${count + 1 + i}" for i in range(op.a_registers or 1)]
    a = "{" + ", ".join(left) + "}" if op.a_registers else left[0]
    names = ".".join(PTX_NAMES.get(name, name) for name in (row.acc, row.a, row.b))
    # Neither operand negated; then which are turned, where an operand can be.
    signs = ", 1, 1" if row.acc != "i32" else ""
    turned = ([] if op.a_registers else [op.turned_a]) + [op.turned_b] if row.bits == 16 else []
    flags = "".join(f", {int(t)}" for t in turned)
    what = f"wgmma.mma_async.sync.aligned.m64n{op.n}k{row.k}.{names}"
    return f"{what} {_group(count)}, {a}, ${count + 1 + len(left)}, ${count}{signs}{flags};"


@cache
def _group(count: int) -> str:
    return "{" + ", ".join(f"${i}" for i in range(count)) + "}"


@lowers(wgmma.WaitGroup)
def lower_wait_group(lw: Lowering, op: wgmma.WaitGroup) -> Sequence[Any]:
    """The registers are tied to it: their values are read after it only."""
    text, count = f"wgmma.wait_group.sync.aligned {op.pending};", len(op.operands)
    if count == 0:
        _emit(lw, text, convergent=True)
        return []
    types = [llvm_type(v.type) for v in op.operands]
    register = ["f" if str(t) == "float" else "r" for t in types]
    kinds = [f"={r}" for r in register] + [str(i) for i in range(count)]
    result = structure(*types)
    value = _emit(lw, text, " ".join(kinds), *lw.operands(op.operands), result=result, convergent=True)
    return [lw.b.extract_value(value, i) for i in range(count)]
