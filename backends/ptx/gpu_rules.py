"""Positions, synchronisation and exchange within a warp. (PTX ISA: special registers, bar, shfl, vote.)"""

from __future__ import annotations

from typing import Any, Sequence

from tiledsl.arch import LANE_BITS, WARP
from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.types import I1, I32, I64, VOID, bits_of, integer
from tiledsl.ir.ops import arith, barriers, gpu, warp

FULL_WARP = (1 << WARP) - 1

REGISTERS = {gpu.ThreadId: "tid", gpu.BlockId: "ctaid", gpu.GridSize: "nctaid"}
"""Special registers with a word for each axis."""


def _special_register(lw: Lowering, name: str) -> Any:
    return lw.intrinsic(f"llvm.nvvm.read.ptx.sreg.{name}", I32)


@lowers(*REGISTERS)
def lower_position(lw: Lowering, op: gpu.ThreadId | gpu.BlockId | gpu.GridSize) -> Sequence[Any]:
    return [_special_register(lw, f"{REGISTERS[type(op)]}.{'xyz'[op.axis]}")]


@lowers(barriers.ClusterRank)
def lower_cluster_rank(lw: Lowering, op: barriers.ClusterRank) -> Sequence[Any]:
    return [_special_register(lw, "cluster.ctarank")]


@lowers(gpu.WarpId)
def lower_warp_id(lw: Lowering, op: gpu.WarpId) -> Sequence[Any]:
    return [lw.b.lshr(_linear_thread(lw), integer(LANE_BITS, I32))]


@lowers(gpu.LaneId)
def lower_lane_id(lw: Lowering, op: gpu.LaneId) -> Sequence[Any]:
    return [_lane(lw)]


def _lane(lw: Lowering) -> Any:
    return lw.b.and_(_linear_thread(lw), integer(WARP - 1, I32))


def _linear_thread(lw: Lowering) -> Any:
    """x + X * (y + Y * z), leaving out the axes along which the block has one thread."""
    linear, scale = integer(0, I32), 1
    for axis, extent in zip("xyz", lw.kernel.threads, strict=False):
        if extent > 1:
            part = lw.b.mul(_special_register(lw, f"tid.{axis}"), integer(scale, I32))
            linear = lw.b.add(linear, part)
        scale *= extent
    return linear


@lowers(gpu.Barrier)
def lower_barrier(lw: Lowering, op: gpu.Barrier) -> None:
    lw.intrinsic("llvm.nvvm.barrier.cta.sync.aligned.all", VOID, integer(0, I32))


@lowers(gpu.SyncWarp)
def lower_sync_warp(lw: Lowering, op: gpu.SyncWarp) -> None:
    lw.intrinsic("llvm.nvvm.bar.warp.sync", VOID, integer(FULL_WARP, I32))


@lowers(warp.Vote)
def lower_vote(lw: Lowering, op: warp.Vote) -> Sequence[Any]:
    """By ballots: ptxas (13.0, 13.5) may drop the conversion to a float of what vote.any or vote.all gives, also where
    the bool becomes an integer first. all: no lane that there is has another opinion."""
    predicate = lw.value(op.predicate)
    asked = lw.b.xor(predicate, integer(1, I1)) if op.mode == "all" else predicate
    ballot = lw.intrinsic("llvm.nvvm.vote.ballot.sync", I32, integer(FULL_WARP, I32), asked)
    return [ballot if op.mode == "ballot" else lw.b.icmp("eq" if op.mode == "all" else "ne", ballot, integer(0, I32))]


@lowers(warp.Uniform)
def lower_uniform(lw: Lowering, op: warp.Uniform) -> Sequence[Any]:
    """The only instruction of a warp whose result is a uniform register; of equal numbers the least is each of them."""
    return [lw.intrinsic("llvm.nvvm.redux.sync.umin", I32, lw.value(op.value), integer(FULL_WARP, I32))]


@lowers(warp.Shuffle)
def lower_shuffle(lw: Lowering, op: warp.Shuffle) -> Sequence[Any]:
    value, lane = lw.operands(op.operands)
    # Operand c of shfl.sync: segment mask in bits 8-12, clamp in bits 0-4.
    mode, control = op.mode, (WARP - op.width) << 8 | (0 if op.mode == "up" else WARP - 1)
    if op.mode != "idx" and not _in_range(op):
        lane, mode, control = _source_lane(lw, op, lane), "idx", WARP - 1
    name = f"llvm.nvvm.shfl.sync.{'bfly' if mode == 'xor' else mode}.i32"

    def moved(word: Any) -> Any:
        return lw.intrinsic(name, I32, integer(FULL_WARP, I32), word, lane, integer(control, I32))

    b, bits = lw.b, lw.bits(value)
    if bits_of(bits.type) <= I32.width:
        return [lw.from_bits(moved(b.zext(bits, I32)), value.type)]
    upper = integer(I32.width, I64)
    low, high = (moved(word) for word in (b.trunc(bits, I32), b.trunc(b.lshr(bits, upper), I32)))
    shifted = b.shl(b.zext(high, I64), upper)
    return [lw.from_bits(b.or_(b.zext(low, I64), shifted), value.type)]


def _in_range(op: warp.Shuffle) -> bool:
    """True if the hardware's rule (5 bits of the operand, no lower bound for xor) is the op's."""
    distance = op.lane.op
    return isinstance(distance, arith.Constant) and 0 <= distance.value < op.width


def _source_lane(lw: Lowering, op: warp.Shuffle, lane: Any) -> Any:
    """The lane to read, in full 32-bit arithmetic; the own lane if that lies outside the group."""
    b, own = lw.b, _lane(lw)
    source = {"up": b.sub, "down": b.add, "xor": b.xor}[op.mode](own, lane)
    outside = b.lshr(b.xor(source, own), integer(op.width.bit_length() - 1, I32))
    return b.select(b.icmp("eq", outside, integer(0, I32)), source, own)
