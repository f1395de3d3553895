"""grid, threads and positions; loops' `unroll`; cdiv."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from itertools import count
from math import prod
from typing import Any

from tiledsl import lang
from tiledsl.arch import MOST_BLOCKS_PER_SM, MOST_THREADS, MOST_THREADS_ALONG, PORTABLE_CLUSTER
from tiledsl.frontend.arithmetic import apply, at_compile_time, items_of
from tiledsl.frontend.bindings import Range, Ranges, contains_value, describe, is_int, positive_ints
from tiledsl.frontend.budget import MAX_GRID_OPS, MAX_UNROLL
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.steps import Bounds
from tiledsl.ir.core import Op, Value
from tiledsl.ir.declare import MOST_STAGES
from tiledsl.ir.expr import FUNCTIONS, CallExpr, Expr, ceildiv
from tiledsl.ir.ops import arith, gpu, tile
from tiledsl.ir.types import BOOL, DType, GlobalType, Type


def _once(call: Call, declared: tuple[Any, ...]) -> tuple[Any, ...]:
    """The extents of grid() or threads(): one to three, declared once, at the top level."""
    extents: tuple[Any, ...] = call["extents"]
    name = call.callee.__name__
    if not 1 <= len(extents) <= 3:
        fix = f"{name}(x), {name}(x, y) or {name}(x, y, z)"
        raise call.error(f"{name}() takes 1 to 3 extents, got {len(extents)}", fix, code="C115")
    if declared:
        raise call.error(f"{name}() is called twice", "declare the launch once", code="C115")
    if not call.frame.at_top_level:
        raise call.error(
            f"{name}() under a run-time condition or loop", "declare the launch at the kernel's top level", code="C115"
        )
    return extents


def _positions(call: Call, op: type[gpu.ThreadId] | type[gpu.BlockId], count: int) -> Any:
    values = tuple(call.builder.value(op(axis=axis)) for axis in range(count))
    return values[0] if count == 1 else values


@intrinsic(lang.grid)
def _grid(call: Call) -> Any:
    kernel = call.unit.kernel
    extents = _once(call, kernel.grid)
    kernel.grid = tuple(host_expression(call, extent) for extent in extents)
    for op in call.unit.host.ops:
        op.drop_operands()
    kernel.cluster = _cluster(call, kernel.grid)
    return _positions(call, gpu.BlockId, len(extents))


@intrinsic(lang.threads)
def _threads(call: Call) -> Any:
    kernel = call.unit.kernel
    extents = _once(call, kernel.threads)
    if positive_ints(extents) is None:
        shown = ", ".join(map(describe, extents))
        message = f"threads() takes positive compile-time ints, got {shown}"
        raise call.error(message, "use const parameters of 1 or more", code="C115")
    if prod(extents) > MOST_THREADS or (*extents, 1, 1)[2] > MOST_THREADS_ALONG[2]:
        limit = f"at most {MOST_THREADS} threads fit in a block, {MOST_THREADS_ALONG[2]} along z"
        shown = ", ".join(map(str, extents))
        raise call.error(
            f"threads({shown}): {prod(extents)} threads; {limit}", "use fewer threads, each doing more", code="C704"
        )
    fix = "leave it out, or give the minimum of resident blocks per SM"
    kernel.blocks_per_sm = call.integer("blocks", 0, MOST_BLOCKS_PER_SM, fix)
    kernel.assembler_level = call.integer("assembler_level", 0, 3, "leave it out, which is 3")
    kernel.threads = extents
    return _positions(call, gpu.ThreadId, len(extents))


def _cluster(call: Call, grid: tuple[Expr, ...]) -> tuple[int, int, int]:
    """``cluster=`` as three extents."""
    given: Any = call["cluster"]
    sizes = positive_ints(given)
    if sizes is None or type(given) is list or len(sizes) > len(grid):
        shown = describe(given) if contains_value(given) else str(given)  # pyright: ignore[reportUnknownArgumentType]
        message = f"cluster= is as many positive ints as the grid has axes, at most; got {shown}"
        raise call.error(message, "cluster=(2, 1)", code="C115")
    if prod(sizes) > PORTABLE_CLUSTER:
        message = f"a cluster of {prod(sizes)} blocks; at most {PORTABLE_CLUSTER} are portable"
        raise call.error(message, "use a smaller one", code="C115")
    for axis, (blocks, size) in enumerate(zip(grid, sizes, strict=False)):
        if isinstance(blocks, int) and blocks % size:
            message = f"clusters of {size} blocks along {'xyz'[axis]} in a grid of {blocks}, which that does not divide"
            raise call.error(message, f"round the grid up: cdiv({blocks}, {size}) * {size}", code="C115")
    if prod(sizes) > 1:
        call.needs("cluster", "a cluster")
    x, y, z = (*sizes, 1, 1, 1)[:3]
    return x, y, z


@intrinsic(lang.grid_size)
def _grid_size(call: Call) -> Any:
    return call.builder.value(gpu.GridSize(axis=call.integer("axis", 0, 2, "x is 0, y is 1, z is 2")))


def host_expression(call: Call, extent: Any) -> Expr:
    """Return a grid extent as an expression that the launch evaluates, read off the ops that compute it."""
    return _host_expression(call, extent, count(1))


def _host_expression(call: Call, extent: Any, calls: Iterator[int]) -> Expr:
    """Do as `host_expression`. calls: counts the calls for one extent; a value that is used twice is computed twice."""
    if next(calls) > MAX_GRID_OPS:
        message = f"a grid extent takes more than {MAX_GRID_OPS} operations, each use of a value counted"
        raise call.error(message, "compute it before the call, and pass it as a scalar", code="C115")
    if is_int(extent):
        return extent
    if not isinstance(extent, Value):
        raise call.error(f"a grid extent is an integer, got {describe(extent)}", "as in cdiv(M, 128)", code="C115")
    owner, integer = extent.owner, isinstance(extent.type, DType) and extent.type.is_integer
    if owner in (call.unit.kernel.body, call.unit.host) and integer:
        return extent.name
    match owner:
        case arith.Constant() if _on_host(owner.dtype):
            return int(owner.value)
        case tile.Dim() if type(owner) is tile.Dim:
            tensor = owner.tensor.type
            assert isinstance(tensor, GlobalType)
            return tensor.dims[owner.axis]
        case arith.Cast() if _on_host(to := owner.to) and _on_host(owner.src.type):
            given = _host_expression(call, owner.src, calls)
            (low, high), (least, most) = to.limits, owner.src.dtype.limits
            return given if low <= least and most <= high else CallExpr("cast", (given,), to)
        case arith.Scalar() if owner.fn.name in FUNCTIONS and _on_host(owner.operands[0].type):
            return CallExpr(owner.fn.name, _host_expressions(call, owner, calls), owner.operands[0].dtype)
        case arith.Select() if _on_host(extent.type):
            return CallExpr("select", _host_expressions(call, owner, calls), extent.dtype)
        case _:
            message = "a grid extent depends on something that the host does not know before the launch"
            fix = "compute it from dimensions, consts, and integer scalars with integer operators, cdiv, min, and max"
            raise call.error(message, fix, code="C115")


def _host_expressions(call: Call, op: Op, calls: Iterator[int]) -> tuple[Expr, ...]:
    return tuple(_host_expression(call, operand, calls) for operand in op.operands)


def _on_host(type_: Type) -> bool:
    """Return True for the types that host expressions have."""
    return isinstance(type_, DType) and (type_.is_integer or type_ == BOOL)


@intrinsic(range, signature=lambda *bounds: None)
def _range(call: Call) -> Bounds:
    """A loop at run time. Of compile-time numbers, `range` is Python's."""
    given: tuple[Any, ...] = call["bounds"]
    if len(given) > 3:
        raise call.error(f"range() takes 1 to 3 arguments, got {len(given)}", "range(n)", code="C105")
    lo, hi, step = (0, *given, 1) if len(given) == 1 else (*given, 1)[:3]
    return Bounds(call.frame, call.node, lo, hi, step)


@intrinsic(lang.unroll)
def _unroll(call: Call) -> Any:
    """The items of a loop at compile time; with ``by=`` a loop at run time."""
    bounds: tuple[Any, ...] = call["bounds"]
    if call["by"] != 0:
        by = call.integer("by", 1, MAX_UNROLL, _BY)
        loop = _at_run_time(call, bounds[0] if len(bounds) == 1 else bounds, _BY)
        if by > 1 and not loop.known:
            raise call.error(
                "by= needs a step that is known at compile time", "give the range a constant step", code="C106"
            )
        loop.how = {"unroll": by}
        return loop
    if len(bounds) == 1 and isinstance(bounds[0], Ranges):
        return _compile_time_ranges(call, bounds[0])
    if not 1 <= len(bounds) <= 3 or bounds[2:] == (0,):
        raise call.error(
            "unroll() takes 1 to 3 bounds, of which the third, the step, is not 0", "unroll(n)", code="C105"
        )
    for bound in bounds:
        if not is_int(bound):
            raise call.error(f"unroll() needs compile-time ints, got {describe(bound)}", _BY, code="C106")
    return items_of(range(*bounds), call.frame, call.node, MAX_UNROLL, "unroll {} iterations")


_BY = "a loop at run time is `for k in range(n)`, or `for k in unroll(range(n), by=4)`; unroll(4) repeats its body"
_STAGES = "write `for k in pipelined(tiles(K, BK), stages=3)`"


@intrinsic(lang.pipelined)
def _pipelined(call: Call) -> Bounds:
    loop = _at_run_time(call, call["loop"], _STAGES)
    stages, fragments = call.integer("stages", 1, MOST_STAGES, _STAGES), call.integer("fragments", 0, 2, _STAGES)
    loop.how = {"stages": stages, "fragments": fragments}
    return loop


def _at_run_time(call: Call, loop: Any, fix: str) -> Bounds:
    """The loop that ``unroll(loop, by=n)`` or `pipelined` changes."""
    match loop:
        case Bounds():
            return copy(loop)
        case range():
            return Bounds(call.frame, call.node, loop.start, loop.stop, loop.step)
        case Ranges():
            return Bounds(call.frame, call.node, loop.start, loop.extent, loop.size, size=loop.size)
        case _:
            raise call.error(f"{call.what} on {describe(loop)}; expected range(...) or tiles(...)", fix, code="C104")


def _compile_time_ranges(call: Call, ranges: Ranges) -> list[Range]:
    if not isinstance(ranges.extent, int) or not isinstance(ranges.start, int):
        fix = "leave unroll() out, or repeat the body a few times an iteration: unroll(tiles(K, BK), by=2)"
        raise call.error("unroll() of tiles() over an extent that is only known at run time", fix, code="C106")
    starts = range(ranges.start, ranges.extent, ranges.size)
    found = items_of(starts, call.frame, call.node, MAX_UNROLL, "unroll {} iterations")
    return [Range(start, ranges.size) for start in found]


@intrinsic(lang.cdiv)
def _cdiv(call: Call) -> Any:
    a, b = call["a"], call["b"]
    if contains_value([a, b]):
        return apply("ceildiv", [a, b], call.frame, call.node, "cdiv()")
    for name, value in (("a", a), ("b", b)):
        if not is_int(value):
            message = f"cdiv() expected an integer as {name}, got {describe(value)}"
            raise call.error(message, "pass integers, or use ceil(a / b) with floats", code="C105")
    if b == 0:
        raise call.error("cdiv() by zero", "divide by a tile's extent, 1 or more", code="C105")
    return at_compile_time(ceildiv, [a, b], call.frame, call.node)
