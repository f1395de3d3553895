"""Positions, synchronisation and exchange within a warp. (PTX ISA: special registers, bar, shfl, vote.)"""

from __future__ import annotations

from typing import Any, Sequence

from tiledsl.arch import LANE_BITS, WARP
from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.llvm import ir
from tiledsl.backends.ptx.types import I1, I32, I64, VOID, integer
from tiledsl.ir.ops import arith, gpu, warp

__all__ = [
    "lower_barrier",
    "lower_block_id",
    "lower_lane_id",
    "lower_shuffle",
    "lower_sync_warp",
    "lower_thread_id",
    "lower_uniform",
    "lower_vote",
    "lower_warp_id",
]

FULL_WARP = (1 << WARP) - 1


def _special_register(lw: Lowering, name: str) -> Any:
    return lw.intrinsic(f"llvm.nvvm.read.ptx.sreg.{name}", I32)


def _linear_thread(lw: Lowering) -> Any:
    """x + X * (y + Y * z), leaving out the axes along which the block has one thread."""
    linear, scale = integer(0, I32), 1
    for axis, extent in zip("xyz", lw.kernel.threads, strict=False):
        if extent > 1:
            part = lw.b.mul(_special_register(lw, f"tid.{axis}"), integer(scale, I32))
            linear = lw.b.add(linear, part)
        scale *= extent
    return linear


@lowers(gpu.ThreadId)
def lower_thread_id(lw: Lowering, op: gpu.ThreadId) -> Sequence[Any]:
    return [_special_register(lw, f"tid.{'xyz'[op.axis]}")]


@lowers(gpu.BlockId)
def lower_block_id(lw: Lowering, op: gpu.BlockId) -> Sequence[Any]:
    return [_special_register(lw, f"ctaid.{'xyz'[op.axis]}")]


@lowers(gpu.GridSize)
def lower_grid_size(lw: Lowering, op: gpu.GridSize) -> Sequence[Any]:
    return [_special_register(lw, f"nctaid.{'xyz'[op.axis]}")]


@lowers(gpu.WarpId)
def lower_warp_id(lw: Lowering, op: gpu.WarpId) -> Sequence[Any]:
    return [lw.b.lshr(_linear_thread(lw), integer(LANE_BITS, I32))]


@lowers(gpu.LaneId)
def lower_lane_id(lw: Lowering, op: gpu.LaneId) -> Sequence[Any]:
    return [_lane(lw)]


def _lane(lw: Lowering) -> Any:
    return lw.b.and_(_linear_thread(lw), integer(WARP - 1, I32))


@lowers(gpu.Barrier)
def lower_barrier(lw: Lowering, op: gpu.Barrier) -> Sequence[Any]:
    lw.intrinsic("llvm.nvvm.barrier.cta.sync.aligned.all", VOID, integer(0, I32))
    return []


@lowers(gpu.SyncWarp)
def lower_sync_warp(lw: Lowering, op: gpu.SyncWarp) -> Sequence[Any]:
    lw.intrinsic("llvm.nvvm.bar.warp.sync", VOID, integer(FULL_WARP, I32))
    return []


@lowers(warp.Vote)
def lower_vote(lw: Lowering, op: warp.Vote) -> Sequence[Any]:
    result = I32 if op.mode == "ballot" else I1
    mask = integer(FULL_WARP, I32)
    return [lw.intrinsic(f"llvm.nvvm.vote.{op.mode}.sync", result, mask, lw.value(op.predicate))]


@lowers(warp.Uniform)
def lower_uniform(lw: Lowering, op: warp.Uniform) -> Sequence[Any]:
    """The only instruction of a warp whose result is a uniform register; of equal numbers the least is each of them."""
    return [lw.intrinsic("llvm.nvvm.redux.sync.umin", I32, lw.value(op.value), integer(FULL_WARP, I32))]


@lowers(warp.Shuffle)
def lower_shuffle(lw: Lowering, op: warp.Shuffle) -> Sequence[Any]:
    value, lane = lw.operands(op.operands)
    words = _words(lw, value)
    mode, control = _shuffle_control(op)
    if op.mode != "idx" and not _in_range(op):
        lane, mode, control = _source_lane(lw, op, lane), "idx", WARP - 1
    name = f"llvm.nvvm.shfl.sync.{mode}.i32"
    moved = [lw.intrinsic(name, I32, integer(FULL_WARP, I32), w, lane, integer(control, I32)) for w in words]
    return [_from_words(lw, moved, value.type)]


def _shuffle_control(op: warp.Shuffle) -> tuple[str, int]:
    """The mode and operand c of shfl.sync: segment mask in bits 8-12, clamp in bits 0-4."""
    segment = (WARP - op.width) << 8
    return {"idx": "idx", "up": "up", "down": "down", "xor": "bfly"}[op.mode], segment | (
        0 if op.mode == "up" else WARP - 1
    )


def _in_range(op: warp.Shuffle) -> bool:
    """True if the hardware's rule (5 bits of the operand, no lower bound for xor) is the op's."""
    distance = op.lane.op
    return isinstance(distance, arith.Constant) and 0 <= distance.value < op.width


def _source_lane(lw: Lowering, op: warp.Shuffle, lane: Any) -> Any:
    """The lane to read, in full 32-bit arithmetic; the own lane if that lies outside the group."""
    b, own = lw.b, _lane(lw)
    source = {"up": b.sub, "down": b.add, "xor": b.xor}[op.mode](own, lane)
    outside = b.lshr(b.xor(source, own), integer(op.width.bit_length() - 1, I32))
    return b.select(b.icmp_unsigned("==", outside, integer(0, I32)), source, own)


def _words(lw: Lowering, value: Any) -> list[Any]:
    """A scalar as one or two 32-bit registers."""
    b = lw.b
    width = 64 if str(value.type) == "double" else 32 if str(value.type) == "float" else 16
    bits = value if isinstance(value.type, ir.IntType) else b.bitcast(value, ir.IntType(width))
    if bits.type.width < 32:
        return [b.zext(bits, I32)]
    if bits.type.width == 32:
        return [bits]
    return [b.trunc(bits, I32), b.trunc(b.lshr(bits, integer(32, I64)), I32)]


def _from_words(lw: Lowering, words: Sequence[Any], type_: Any) -> Any:
    b = lw.b
    bits = words[0]
    if len(words) == 2:
        high = b.shl(b.zext(words[1], I64), integer(32, I64))
        bits = b.or_(b.zext(words[0], I64), high)
    if isinstance(type_, ir.IntType):
        return bits if type_.width >= 32 else b.trunc(bits, type_)
    if str(type_) in ("half", "bfloat"):
        bits = b.trunc(bits, ir.IntType(16))
    return b.bitcast(bits, type_)
