"""Ranges: the largest value that an index can have, read off the ops that made it: where a sum cannot carry."""

from __future__ import annotations

from math import prod

from tiledsl.arch import MOST_THREADS, WARP
from tiledsl.ir.core import Block, Value
from tiledsl.ir.ops import arith, control, gpu
from tiledsl.passes.analysis.constants import integer

__all__ = ["most"]

DEPTH = 12
"""How many ops deep one looks."""


def most(value: Value, depth: int = DEPTH, threads: tuple[int, ...] = ()) -> int | None:
    """A number that `value` never exceeds, where it is never negative either; None if that is not known.

    threads: of a block along each axis, where they are known.
    """
    known = integer(value)
    if known is not None:
        return known if known >= 0 else None
    op = value.op
    match op:
        case gpu.LaneId():
            return WARP - 1
        case gpu.WarpId():
            return -(-(prod(threads) if threads else MOST_THREADS) // WARP) - 1
        case gpu.ThreadId():
            return ((*threads, 1, 1)[op.axis] if threads else MOST_THREADS) - 1
        case arith.Cast() if op.src.dtype.is_integer and op.to.bits >= 32 and depth:
            return most(op.src, depth - 1, threads)
        case arith.Scalar() if op.operands[0].dtype.is_integer and depth:
            return _scalar(op, depth - 1, threads)
        case None if depth:
            return _induction(value, depth - 1, threads)
        case _:
            return None


def _induction(value: Value, depth: int, threads: tuple[int, ...]) -> int | None:
    """The variable of a loop that counts up, from 0 or more."""
    loop = value.owner.parent if isinstance(value.owner, Block) else None
    if not isinstance(loop, control.For) or value is not loop.body.args[0]:
        return None
    lo, hi, step = most(loop.lo, depth, threads), most(loop.hi, depth, threads), integer(loop.step)
    if lo is None or hi is None or step is None or step <= 0:
        return None
    first = integer(loop.lo)
    return max(hi - 1, 0) if first is None else max(range(first, hi, step), default=0)


def _scalar(op: arith.Scalar, depth: int, threads: tuple[int, ...]) -> int | None:
    number = integer(op.operands[-1])
    if number is not None and number >= 0 and op.fn.name in ("and", "mod"):
        return number if op.fn.name == "and" else number - 1 if number else None
    known = [most(v, depth, threads) for v in op.operands]
    bounds = [k for k in known if k is not None]
    if len(bounds) < len(known):
        return None
    return _bounded(op.fn.name, bounds, number)


def _bounded(fn: str, bounds: list[int], number: int | None) -> int | None:
    """number: the last operand, where it is a constant."""
    match fn:
        case "add":
            return sum(bounds)
        case "mul":
            return bounds[0] * bounds[1]
        case "min" | "max":
            return min(bounds) if fn == "min" else max(bounds)
        case "or" | "xor":
            return (1 << max(bounds).bit_length()) - 1
        case "shl" if number is not None and number < 31:
            return bounds[0] << number
        case "shr" if number is not None:
            return bounds[0] >> number
        case "floordiv" if number:
            return bounds[0] // number
        case "floordiv" | "mod" | "and":
            return bounds[0]
        case _:
            return None
