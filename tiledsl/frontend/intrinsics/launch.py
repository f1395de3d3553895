"""grid, threads and positions; loops' `unroll`; cdiv."""

from __future__ import annotations

import ast
from math import prod
from typing import Any

from tiledsl import lang
from tiledsl.arch import MOST_BLOCKS_PER_SM, MOST_THREADS, MOST_THREADS_ALONG, PORTABLE_CLUSTER
from tiledsl.frontend.arithmetic import apply, at_compile_time, binary, common_dtype, items_of
from tiledsl.frontend.bindings import Range, Ranges, contains_value, describe
from tiledsl.frontend.budget import MAX_UNROLL
from tiledsl.frontend.calls import Call, intrinsic
from tiledsl.frontend.intrinsics.barriers import needs
from tiledsl.ir.core import Value
from tiledsl.ir.expr import FUNCTIONS, BinExpr, ConstExpr, Expr, NameExpr
from tiledsl.ir.ops import arith, gpu, tile
from tiledsl.ir.types import INDEX, DType, GlobalType

__all__ = ["host_expression"]


def _once(call: Call, what: str, declared: Any) -> tuple[Any, ...]:
    """The extents of grid() or threads(): one to three, declared once, at the top level."""
    extents: tuple[Any, ...] = call["extents"]
    if not 1 <= len(extents) <= 3:
        raise call.error(
            f"{what}() takes 1 to 3 extents, got {len(extents)}", f"{what}(x), {what}(x, y) or {what}(x, y, z)"
        )
    if declared is not None:
        raise call.error(f"{what}() is called twice", "declare the launch once")
    if not call.frame.at_top_level:
        raise call.error(f"{what}() under a run-time condition or loop", "declare the launch at the kernel's top level")
    return extents


def _positions(call: Call, op: type[gpu.ThreadId] | type[gpu.BlockId], count: int) -> Any:
    values = tuple(call.builder.value(op(axis=axis)) for axis in range(count))
    return values[0] if count == 1 else values


@intrinsic(lang.grid)
def _grid(call: Call) -> Any:
    extents = _once(call, "grid", call.frame.unit.grid)
    call.frame.unit.grid = tuple(host_expression(call, extent) for extent in extents)
    for op in call.frame.unit.host.ops:
        op.drop_operands()
    call.frame.unit.cluster = _cluster(call, call.frame.unit.grid)
    return _positions(call, gpu.BlockId, len(extents))


@intrinsic(lang.threads)
def _threads(call: Call) -> Any:
    extents = _once(call, "threads", call.frame.unit.threads)
    for extent in extents:
        if not isinstance(extent, int) or isinstance(extent, bool) or extent < 1:
            fix = "pass 1 or more" if isinstance(extent, int) else "use a const parameter"
            raise call.error(f"threads() takes positive compile-time ints, got {describe(extent)}", fix)
    count = 1
    for extent in extents:
        count *= extent
    if count > MOST_THREADS or (len(extents) == 3 and extents[2] > MOST_THREADS_ALONG[2]):
        limit = f"at most {MOST_THREADS} threads fit in a block, {MOST_THREADS_ALONG[2]} along z"
        shown = ", ".join(str(extent) for extent in extents)
        raise call.error(f"threads({shown}): {count} threads; {limit}", "use fewer threads, each doing more")
    blocks: Any = call["blocks"]
    if not isinstance(blocks, int) or isinstance(blocks, bool) or not 0 <= blocks <= MOST_BLOCKS_PER_SM:
        fix = "leave it out, or say how many blocks shall fit on an SM"
        raise call.error(f"blocks= is a compile-time int from 0 to {MOST_BLOCKS_PER_SM}, got {describe(blocks)}", fix)
    level: Any = call["assembler_level"]
    if not isinstance(level, int) or isinstance(level, bool) or not 0 <= level <= 3:
        message = f"assembler_level= is a compile-time int from 0 to 3, got {describe(level)}"
        raise call.error(message, "leave it out, which is 3")
    call.frame.unit.threads, call.frame.unit.blocks_per_sm = extents, blocks
    call.frame.unit.assembler_level = level
    return _positions(call, gpu.ThreadId, len(extents))


def _cluster(call: Call, grid: tuple[Expr, ...]) -> tuple[int, int, int]:
    """``cluster=`` as three extents."""
    given: Any = call["cluster"]
    sizes: tuple[Any, ...] = given if isinstance(given, tuple) else (given,)  # pyright: ignore
    if len(sizes) > len(grid) or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in sizes):
        shown = describe(given) if contains_value(given) else str(sizes)
        raise call.error(
            f"cluster= is as many positive ints as the grid has axes, at most; got {shown}", "cluster=(2, 1)"
        )
    if prod(sizes) > PORTABLE_CLUSTER:
        raise call.error(
            f"a cluster of {prod(sizes)} blocks; at most {PORTABLE_CLUSTER} are portable", "use a smaller one"
        )
    for axis, (blocks, size) in enumerate(zip(grid, sizes, strict=False)):
        if isinstance(blocks, ConstExpr) and blocks.value % size:
            message = f"clusters of {size} blocks along {'xyz'[axis]} in a grid of {blocks}, which that does not divide"
            raise call.error(message, f"round the grid up: cdiv({blocks}, {size}) * {size}")
    if prod(sizes) > 1:
        needs(call, "cluster", "a cluster")
    x, y, z = (*sizes, 1, 1, 1)[:3]
    return x, y, z


@intrinsic(lang.grid_size)
def _grid_size(call: Call) -> Any:
    if call["axis"] not in (0, 1, 2) or isinstance(call["axis"], bool):
        raise call.error(f"grid_size() takes an axis, 0 to 2, got {describe(call['axis'])}", "x is 0, y is 1, z is 2")
    return call.builder.value(gpu.GridSize(axis=call["axis"]))


def host_expression(call: Call, extent: Any) -> Expr:
    """A grid extent as an expression that the launch evaluates, read off the ops that compute it."""
    if isinstance(extent, int) and not isinstance(extent, bool):
        return ConstExpr(extent)
    if not isinstance(extent, Value):
        raise call.error(f"a grid extent is an integer, got {describe(extent)}", "as in cdiv(M, 128)")
    owner = extent.owner
    if (
        owner in (call.frame.unit.body, call.frame.unit.host)
        and isinstance(extent.type, DType)
        and extent.type.is_integer
    ):
        return NameExpr(extent.name)
    match owner:
        case arith.Constant() if owner.dtype.is_integer:
            return ConstExpr(owner.value)
        case tile.Dim() if type(owner) is tile.Dim:
            tensor = owner.tensor.type
            assert isinstance(tensor, GlobalType)
            size = tensor.dims[owner.axis]
            return ConstExpr(size) if isinstance(size, int) else NameExpr(size)
        case arith.Cast() if isinstance(extent.type, DType) and extent.type.is_integer:
            return host_expression(call, owner.src)
        case arith.Scalar() if owner.fn.name in FUNCTIONS:
            a, b = owner.operands
            return BinExpr(owner.fn.name, host_expression(call, a), host_expression(call, b))
        case _:
            raise call.error(
                "a grid extent depends on something that the host does not know before the launch",
                "compute it from dimensions, consts and integer scalars with + - * // %, cdiv, min and max",
            )


@intrinsic(lang.warp_id)
def _warp_id(call: Call) -> Any:
    return call.builder.value(gpu.WarpId())


@intrinsic(lang.lane_id)
def _lane_id(call: Call) -> Any:
    return call.builder.value(gpu.LaneId())


@intrinsic(lang.unroll)
def _unroll(call: Call) -> Any:
    """The compile-time sequence; with ``by=`` the loop itself is at run time, and `loops` makes it."""
    bounds: tuple[Any, ...] = call["bounds"]
    if call["by"] != 0:
        raise call.error("unroll(..., by=n) stands in a `for`", "write `for k in unroll(range(n), by=4)`")
    if not 1 <= len(bounds) <= 3:
        raise call.error(f"unroll() takes 1 to 3 bounds, got {len(bounds)}", "unroll(n)")
    if len(bounds) == 1 and isinstance(bounds[0], Ranges):
        return _compile_time_ranges(call, bounds[0])
    for bound in bounds:
        if not isinstance(bound, int) or isinstance(bound, bool):
            raise call.error(
                f"unroll() needs compile-time ints, got {describe(bound)}", "use range() for a loop at run time"
            )
    if len(bounds) == 3 and bounds[2] == 0:
        raise call.error("unroll() with step 0 never ends", "use a step of 1 or more, or a negative one")
    return range(*bounds)


@intrinsic(lang.pipelined)
def _pipelined(call: Call) -> Any:
    raise call.error("pipelined() stands in a `for`", "write `for k in pipelined(tiles(K, BK), stages=3)`")


def _compile_time_ranges(call: Call, ranges: Ranges) -> list[Range]:
    if not isinstance(ranges.extent, int):
        raise call.error(
            "unroll() of tiles() over an extent that is only known at run time",
            "leave unroll() out, or repeat the body a few times an iteration: unroll(tiles(K, BK), by=2)",
        )
    starts = range(0, ranges.extent, ranges.size)
    found = items_of(starts, call.frame, call.node, MAX_UNROLL, "unroll {} iterations")
    return [Range(start, ranges.size) for start in found]


def _ceildiv(a: Any, b: Any) -> Any:
    return -(-a // b)


@intrinsic(lang.cdiv)
def _cdiv(call: Call) -> Any:
    a, b = call["a"], call["b"]
    if not contains_value([a, b]):
        if b == 0:
            raise call.error("cdiv() by zero", "divide by a tile's extent, 1 or more")
        return at_compile_time(_ceildiv, [a, b], call.frame, call.node)
    frame, node = call.frame, call.node
    dtype = common_dtype([a, b], frame, node, "cdiv()")
    if dtype is not None and dtype != INDEX:  # a + b - 1 may wrap; a - 1 does so for an unsigned 0
        one = min(1, a) if isinstance(a, int) else 1 if dtype.kind == "int" else apply("min", [a, 1], frame, node)
        pieces = binary(ast.FloorDiv(), binary(ast.Sub(), a, one, frame, node), b, frame, node)
        return binary(ast.Add(), pieces, one, frame, node)
    less_one = binary(ast.Sub(), b, 1, frame, node)
    return binary(ast.FloorDiv(), binary(ast.Add(), a, less_one, frame, node), b, frame, node)
