"""Compiled stand-ins for the slowest NumPy code: fused multiply-adds, which NumPy has not, and gathers.

Each variant is compiled on first use (llvmlite, some milliseconds) for the host's CPU. The definitions stay
`ir.semantics` and `memory`; tests hold both equal. What a function here cannot handle is left to NumPy, and all of it
where there is no llvmlite.

A loop walks the groups and warps of an array [groups, warps, 32] and handles the 32 lanes of a warp as one vector. An
operand is an address and its element strides along groups and warps, 0 where it does not vary; one that does not vary
along the lanes either has one element a warp.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.backends.emulator.hooks import Ints
from tiledsl.backends.emulator.spans import Span
from tiledsl.backends.machine_code import address_of, available, compiled, splat
from tiledsl.ir import semantics
from tiledsl.ir.types import DType

SMALL = 256
"""Fewer elements than this NumPy gathers itself."""


def _loop(parameters: str, body: str) -> str:
    """``run(out, groups, warps, ...)``: `body` for each warp, the %row-th. Gives the or of all its %bad."""
    return f"""
define i64 @run(ptr noalias %out, i64 %groups, i64 %warps, {parameters}) {{
entry:
  %rows = mul i64 %groups, %warps
  br label %body
body:
  %row = phi i64 [ 0, %entry ], [ %row.next, %body ]
  %any = phi i1 [ false, %entry ], [ %any.next, %body ]
  %g = udiv i64 %row, %warps
  %w = urem i64 %row, %warps
{body}
  %any.next = or i1 %any, %bad
  %row.next = add i64 %row, 1
  %done = icmp eq i64 %row.next, %rows
  br i1 %done, label %exit, label %body
exit:
  %result = zext i1 %any.next to i64
  ret i64 %result
}}
"""


def _operand(name: str, type_: str, align: int, varies: bool) -> str:
    """Defines the vector ``%name``. varies: along the lanes."""
    at = f"""
  %{name}.g = mul i64 %g, %{name}.groups
  %{name}.w = mul i64 %w, %{name}.warps
  %{name}.from = add i64 %{name}.g, %{name}.w
  %{name}.at = getelementptr {type_}, ptr %{name}.start, i64 %{name}.from"""
    if varies:
        return f"{at}\n  %{name} = load <32 x {type_}>, ptr %{name}.at, align {align}"
    return f"{at}\n  %{name}.value = load {type_}, ptr %{name}.at" + splat(name, type_, f"%{name}.value", WARP)


def _parameters(*names: str) -> str:
    return ", ".join(f"ptr %{name}.start, i64 %{name}.groups, i64 %{name}.warps" for name in names)


def _steps(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> tuple[bool, int, int] | None:
    """Does an array of such elements vary along the lanes, and its element strides along groups and warps. None: its
    lanes do not lie side by side."""
    if not shape:
        return False, 0, 0
    (groups, warps, lanes), (along_groups, along_warps, along_lanes) = shape, strides
    if lanes > 1 and along_lanes != size:
        return None
    return lanes > 1, along_groups // size if groups > 1 else 0, along_warps // size if warps > 1 else 0


# -- arithmetic ------------------------------------------------------------------------------------

_FLOATS = {"f32": ("float", "i32", 0x7FFFFFFF), "f64": ("double", "i64", 0x7FFFFFFFFFFFFFFF)}
"""The types of an element and of its bits, and the canonical NaN."""


@cache
def _fma(dtype: DType, varies: tuple[bool, ...]) -> Callable[..., int]:
    scalar, bits, nan = _FLOATS[dtype.name]
    vector, function = f"<32 x {scalar}>", f"@llvm.fma.v32{dtype.name}"
    body = "".join(_operand(x, scalar, dtype.bytes, v) for x, v in zip("abc", varies, strict=True))
    body += f"""
  %bad = or i1 false, false
  %r = call {vector} {function}({vector} %a, {vector} %b, {vector} %c)
  %nan = fcmp uno {vector} %r, zeroinitializer
  %raw = bitcast {vector} %r to <32 x {bits}>
  %clean = select <32 x i1> %nan, <32 x {bits}> splat ({bits} {nan}), <32 x {bits}> %raw
  %to = getelementptr <32 x {bits}>, ptr %out, i64 %row
  store <32 x {bits}> %clean, ptr %to, align {dtype.bytes}
"""
    declare = f"declare {vector} {function}({vector}, {vector}, {vector})\n"
    return compiled(declare + _loop(_parameters(*"abc"), body), 12)


@lru_cache(maxsize=1 << 12)
def _planned(
    dtype: DType, *arrays: tuple[int, ...]
) -> tuple[Callable[..., int], tuple[int, ...], list[list[int]]] | None:
    """What is the same for all operands of these shapes and strides, one after the other: the loop, the shape of the
    result, and each operand's strides along groups and warps. None: left to NumPy."""
    shapes, strides = arrays[::2], arrays[1::2]
    shape = np.broadcast_shapes(*shapes)
    if len(shape) != 3 or shape[2] != WARP:
        return None
    steps = [_steps(*each, dtype.bytes) for each in zip(shapes, strides, strict=True)]
    known = [each for each in steps if each is not None]
    if len(known) < len(steps):
        return None
    return _fma(dtype, tuple(varies for varies, _, _ in known)), shape, [along for _, *along in known]


@cache
def fma(dtype: DType) -> Callable[..., Any]:
    """The function `fma` of the scalar table, for f32 or f64."""
    plain, numpy = semantics.function("fma", dtype), semantics.numpy_dtype(dtype)
    if not available():
        return plain

    def evaluate(*operands: Any) -> Any:
        a, b, c = (x if type(x) is np.ndarray else np.asarray(x) for x in operands)
        plan = _planned(dtype, a.shape, a.strides, b.shape, b.strides, c.shape, c.strides)
        if plan is None:
            return plain(*operands)
        run, shape, (of_a, of_b, of_c) = plan
        out = np.empty(shape, numpy)
        run(address_of(out), shape[0], shape[1], address_of(a), *of_a, address_of(b), *of_b, address_of(c), *of_c)
        return out

    return evaluate


# -- memory ----------------------------------------------------------------------------------------


@cache
def _gather(bits: int, varies: bool) -> Callable[..., int]:
    """The element of address a in group g is at ``memory + a + rows[g] * size``; a is inside if ``(a - low) <= room``,
    unsigned, and ``a & misaligned`` is 0. `memory` has the origin taken off."""
    vector, size = f"<32 x i{bits}>", bits // 8
    splats = "".join(splat(f"{name}.all", "i64", f"%{name}", WARP) for name in ("low", "room", "misaligned"))
    body = f"""{_operand("a", "i64", 8, varies)}{splats}
  %off.low = sub <32 x i64> %a, %low.all
  %within = icmp ule <32 x i64> %off.low, %room.all
  %off = and <32 x i64> %a, %misaligned.all
  %aligned = icmp eq <32 x i64> %off, zeroinitializer
  %inside = and <32 x i1> %within, %aligned
  %good = call i1 @llvm.vector.reduce.and.v32i1(<32 x i1> %inside)
  %bad = xor i1 %good, true
  %row.at = getelementptr i64, ptr %memory.rows, i64 %g
  %first = load i64, ptr %row.at
  %byte = mul i64 %first, {size}
  %start = getelementptr i8, ptr %memory, i64 %byte
  %places = getelementptr i8, ptr %start, <32 x i64> %a
  %got = call {vector} @llvm.masked.gather.v32i{bits}.v32p0(<32 x ptr> align {size} %places, <32 x i1> %inside, {vector} zeroinitializer)
  %to = getelementptr {vector}, ptr %out, i64 %row
  store {vector} %got, ptr %to, align {size}
"""  # noqa: E501
    declare = f"""
declare i1 @llvm.vector.reduce.and.v32i1(<32 x i1>)
declare {vector} @llvm.masked.gather.v32i{bits}.v32p0(<32 x ptr>, <32 x i1>, {vector})
"""
    parameters = f"ptr %memory, ptr %memory.rows, {_parameters('a')}, i64 %low, i64 %room, i64 %misaligned"
    return compiled(declare + _loop(parameters, body), 11)


def gather(span: Span, address: Ints, vec: int) -> tuple[NDArray[Any], ...] | None:
    """What `memory.load` returns, or None for small accesses and if any lane is outside."""
    size = span.elements.itemsize
    room = span.high - span.low - vec * size
    if address.ndim != 3 or address.shape[2] != WARP or room < 0 or not available():
        return None
    if (steps := _steps(address.shape, address.strides, address.itemsize)) is None:
        return None
    groups = max(address.shape[0], 1 if span.rows is None else len(span.rows))
    shape = groups, *address.shape[1:]
    if shape[0] * shape[1] * WARP < SMALL:
        return None
    rows = np.zeros(groups, np.int64) if span.rows is None else span.rows
    memory, (varies, *along) = address_of(span.elements) - span.origin, steps
    run, where = _gather(size * 8, varies), (address_of(rows), address_of(address), *along)
    results = [np.empty(shape, span.elements.dtype) for _ in range(vec)]
    for e, out in enumerate(results):
        bad = run(address_of(out), *shape[:2], memory + e * size, *where, span.low, room, vec * size - 1)
        if bad:
            return None
    return tuple(results)
