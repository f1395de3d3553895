"""Hopper: mbarriers, tensor memory access, wgmma, parts of a block and clusters.

Inline PTX throughout: side effects keep the order that the IR has, and what lanes of a warp do together is convergent.
(PTX ISA: mbarrier, cp.async.bulk.tensor, wgmma, barrier, setmaxnreg, griddepcontrol.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.llvm import ir
from tiledsl.backends.ptx.types import I1, I32, I64, VOID, integer, llvm_type
from tiledsl.backends.ptx.vectors import numbered, product_names
from tiledsl.ir.core import Op
from tiledsl.ir.ops import barriers, tma, wgmma

OWN_PTX = 86
"""From this PTX version on, TMA loads name the block's own memory. On sm_120a ptxas otherwise asks at run time whether
it is that of another block, and calls a function for it."""

# Ops that are one text, with their operands and attributes.

BY_THREAD: dict[type[Op], str] = {
    barriers.Init: "mbarrier.init.shared::cta.b64 [$0], {op.count};",
    barriers.ExpectTx: "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {op.bytes};",
    barriers.FenceInit: "fence.mbarrier_init.release.cluster;",
    tma.BulkCommit: "cp.async.bulk.commit_group;",
}
BY_WARP: dict[type[Op], str] = {
    barriers.ClusterArrive: "barrier.cluster.arrive.release.aligned;",
    barriers.ClusterWait: "barrier.cluster.wait.acquire.aligned;",
    wgmma.Fence: "wgmma.fence.sync.aligned;",
    wgmma.Commit: "wgmma.commit_group.sync.aligned;",
}
"""Lanes of a warp run these together."""


@lowers(*BY_THREAD)
def lower_by_thread(lw: Lowering, op: Op) -> None:
    lw.asm(BY_THREAD[type(op)].format(op=op), *lw.operands(op.operands))


@lowers(barriers.FenceProxy)
def lower_fence_proxy(lw: Lowering, op: barriers.FenceProxy) -> None:
    lw.asm(f"fence.proxy.async.{'shared::cta' if op.space == 'shared' else op.space};")


@lowers(*BY_WARP)
def lower_by_warp(lw: Lowering, op: Op) -> None:
    lw.asm(BY_WARP[type(op)], *lw.operands(op.operands), convergent=True)


# -- mbarriers -------------------------------------------------------------------------------------


@lowers(barriers.Wait)
def lower_wait(lw: Lowering, op: barriers.Wait) -> None:
    # Without a scope it is .cta, and what another block has done to global memory need not be seen.
    order = ".acquire.cluster" if op.reach == "cluster" and lw.kernel.cluster != (1, 1, 1) else ""
    # try_wait sleeps for a while by itself; the loop asks again.
    wait = f"mbarrier.try_wait.parity{order}.shared::cta.b64 done, [$0], $1;"
    text = f"{{ .reg .pred done; WAIT${{:uid}}: {wait} @!done bra WAIT${{:uid}}; }}"
    lw.asm(text, *lw.operands(op.operands), convergent=True)


@lowers(barriers.Arrive)
def lower_arrive(lw: Lowering, op: barriers.Arrive) -> None:
    text = "mbarrier.arrive.shared::cta.b64 _, [$0];"
    if op.more:
        order = ".release.cluster" if op.reach == "cluster" else ""
        there = f"mapa.shared::cluster.u32 there, $0, $1; mbarrier.arrive{order}.shared::cluster.b64 _, [there];"
        text = f"{{ .reg .b32 there; {there} }}"
    lw.asm(text, *lw.operands(op.operands))


# -- parts of a block, clusters, grids -------------------------------------------------------------


@lowers(barriers.NamedBarrier)
def lower_named_barrier(lw: Lowering, op: barriers.NamedBarrier) -> None:
    number = integer(op.number, I32)
    if op.operands:
        number = lw.b.add(number, lw.value(op.operands[0]))
    what = "sync" if op.wait else "arrive"
    lw.intrinsic(f"llvm.nvvm.barrier.cta.{what}.aligned.count", VOID, number, integer(op.threads, I32))


@lowers(barriers.Elect)
def lower_elect(lw: Lowering, op: barriers.Elect) -> Sequence[Any]:
    return lw.asm("elect.sync _|$0, 0xffffffff;", results=[I1], convergent=True)


@lowers(barriers.SetMaxNReg)
def lower_setmaxnreg(lw: Lowering, op: barriers.SetMaxNReg) -> None:
    what = "inc" if op.increase else "dec"
    lw.asm(f"setmaxnreg.{what}.sync.aligned.u32 {op.registers};", convergent=True)


@lowers(barriers.GridDependency)
def lower_grid_dependency(lw: Lowering, op: barriers.GridDependency) -> None:
    lw.asm("griddepcontrol.wait;" if op.wait else "griddepcontrol.launch_dependents;")


# -- tensor memory access --------------------------------------------------------------------------


@lowers(tma.MapLoad)
def lower_map_load(lw: Lowering, op: tma.MapLoad) -> None:
    args = [*lw.operands([op.dst, op.mbarrier]), lw.tensor_maps[op.map], *lw.operands(op.coordinates)]
    box = numbered(3, len(args))
    own = lw.target.ptx >= OWN_PTX and not op.multicast
    space = "shared::cta" if own else "shared::cluster"
    what = f"cp.async.bulk.tensor.{len(op.coordinates)}d.{space}.global.mbarrier::complete_tx::bytes"
    more = ""
    if op.multicast:
        what, more = f"{what}.multicast::cluster", f", ${len(args)}"
        args.append(lw.value(op.operands[-1]))
    if op.hint:
        what, more = f"{what}.L2::cache_hint", f"{more}, ${len(args)}"
        # Pure, so that one is made for all loads.
        args += lw.asm(f"createpolicy.fractional.L2::{op.hint}.b64 $0, 1.0;", results=[I64], pure=True)
    lw.asm(f"{what} [$0], [$2, {box}], [$1]{more};", *args)


@lowers(tma.MapStore)
def lower_map_store(lw: Lowering, op: tma.MapStore) -> None:
    args = [lw.value(op.src), lw.tensor_maps[op.map], *lw.operands(op.coordinates)]
    what = f"cp.async.bulk.tensor.{len(op.coordinates)}d.global.shared::cta.bulk_group"
    lw.asm(f"{what} [$1, {numbered(2, len(args))}], [$0];", *args)


@lowers(tma.MapPrefetch)
def lower_map_prefetch(lw: Lowering, op: tma.MapPrefetch) -> None:
    lw.asm("prefetch.tensormap [$0];", lw.tensor_maps[op.map])


@lowers(tma.BulkWait)
def lower_bulk_wait(lw: Lowering, op: tma.BulkWait) -> None:
    lw.asm(f"cp.async.bulk.wait_group{'.read' if op.read else ''} {op.pending};")


# -- wgmma -----------------------------------------------------------------------------------------


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
    """Operands: the accumulator's registers, then whether to add to them, a, b."""
    row, count = op.row, len(op.accumulators)
    b = count + 1 + (op.a_registers or 1)
    a = numbered(count + 1, b) if op.a_registers else f"${count + 1}"
    # Neither operand negated; then which are transposed, where an operand can be.
    signs = ", 1, 1" if row.acc != "i32" else ""
    transposed = ([] if op.a_registers else [op.turned_a]) + [op.turned_b] if row.bits == 16 else []
    flags = "".join(f", {int(t)}" for t in transposed)
    what = f"wgmma.mma_async.sync.aligned.m64n{op.n}k{row.k}.{product_names(row.acc, row.a, row.b)}"
    text = f"{what} {numbered(0, count)}, {a}, ${b}, ${count}{signs}{flags};"
    results = [llvm_type(t) for t in op.acc_types]
    return lw.asm(text, *lw.operands(op.operands), results=results, convergent=True, tied=True)


@lowers(wgmma.WaitGroup)
def lower_wait_group(lw: Lowering, op: wgmma.WaitGroup) -> Sequence[Any]:
    """The registers are tied to it: their values are read after it only."""
    text, results = f"wgmma.wait_group.sync.aligned {op.pending};", [llvm_type(v.type) for v in op.operands]
    return lw.asm(text, *lw.operands(op.operands), results=results, convergent=True, tied=True)
