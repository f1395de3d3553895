"""Arithmetic on bindings: literals take the other side's dtype, nothing else mixes; fragments work
element by element; compile-time operands are computed by Python."""

from __future__ import annotations

import ast
import math
import operator
from functools import partial
from itertools import product
from typing import Any, Callable, Sequence

from tiledsl.boundary import python_error
from tiledsl.errors import CompileError, Loc
from tiledsl.frontend.bindings import (
    Range,
    contains_value,
    describe,
    dtype_of,
    has_operators,
    instead_of,
    is_fragment,
    is_int,
    is_register,
)
from tiledsl.frontend.budget import MAX_BITS, MAX_ITEMS, bounded, count_of, too_large
from tiledsl.frontend.fragments import joined, relaid
from tiledsl.frontend.frame import Frame
from tiledsl.ir.core import Value
from tiledsl.ir.ops import tile
from tiledsl.ir.scalar import SCALAR, converts
from tiledsl.ir.types import BOOL, DTYPES, F64, I32, INDEX, DType, FragmentType
from tiledsl.passes.analysis.constants import semantics

_python: Any = operator  # its stubs are only partly typed

BINARY: dict[type[ast.operator], tuple[str, str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("add", "+", _python.add),
    ast.Sub: ("sub", "-", _python.sub),
    ast.Mult: ("mul", "*", _python.mul),
    ast.Div: ("div", "/", _python.truediv),
    ast.FloorDiv: ("floordiv", "//", _python.floordiv),
    ast.Mod: ("mod", "%", _python.mod),
    ast.LShift: ("shl", "<<", _python.lshift),
    ast.RShift: ("shr", ">>", _python.rshift),
    ast.BitAnd: ("and", "&", _python.and_),
    ast.BitOr: ("or", "|", _python.or_),
    ast.BitXor: ("xor", "^", _python.xor),
    ast.Pow: ("", "**", _python.pow),
    ast.MatMult: ("", "@", _python.matmul),
}


def rounded(value: float, dtype: DType) -> float:
    """`value` rounded once to the nearest number of a dtype of floats."""
    return value if math.isnan(value) else semantics().fold_cast(value, F64, dtype)


def literal(value: bool | int | float, dtype: DType, loc: Loc) -> bool | int | float:
    """The compile-time number as a constant of `dtype`, or an error if that would change it."""
    if isinstance(value, bool) != (dtype == BOOL) or (isinstance(value, float) and dtype.python is not float):
        fix = "write True, False or a comparison" if dtype == BOOL else f"write {dtype}(...) to convert it"
        raise CompileError(f"{value!r} where {dtype} is expected", loc, fix, code="C202")
    if dtype.python is float:
        try:
            exact = float(value)
        except OverflowError:
            exact = math.inf
        if not math.isnan(exact) and (exact != value or rounded(exact, dtype) != exact):
            fix = f"write {dtype}({value!r}) to round it on purpose"
            raise CompileError(f"{value!r} is not exact in {dtype}", loc, fix, code="C202")
        return exact
    # An index may be 32 bits wide: literals must fit either way.
    low, high = (I32 if dtype == INDEX else dtype).limits
    if not low <= value <= high:
        raise CompileError(f"{value} does not fit {dtype} ({low} to {high})", loc, "use a wider dtype", code="C202")
    return value


def as_value(binding: Any, dtype: DType, frame: Frame, node: ast.AST, what: str = "value") -> Value:
    """A run-time scalar of exactly `dtype`: a value of it, or a literal that is exact in it."""
    if isinstance(binding, Value) and binding.type == dtype:
        return binding
    if isinstance(binding, (bool, int, float)):
        return frame.builder.constant(literal(binding, dtype, frame.loc(node)), dtype)
    fix = f"convert it: {dtype}(...)" if is_register(binding) else f"pass a {dtype} or a number that is exact in it"
    raise frame.error(node, f"the {what} must be {dtype}, it is {describe(binding)}", fix, code="C203")


def as_condition(binding: Any, frame: Frame, node: ast.AST) -> Value | bool:
    """The truth of a condition: a compile-time bool, or a run-time value of dtype bool."""
    if not has_operators(binding):
        return at_compile_time(bool, [binding], frame, node, structure=True)
    if isinstance(binding, Value) and binding.type == BOOL:
        return binding
    fix = "compare it: write `x != 0`" if is_register(binding) else instead_of(binding)
    if is_fragment(binding):
        fix = "it has many elements: where(condition, a, b) chooses for each; `&`, `|` and `~` join conditions"
    raise frame.error(node, f"a condition must be a bool, it is {describe(binding)}", fix, code="C203")


def elements(value: Value, frame: Frame) -> list[Value]:
    """The scalars of a fragment, row-major, or those of it that a thread holds; a scalar is its own only element."""
    if not isinstance(value.type, FragmentType):
        return [value]
    made = value.op
    if isinstance(made, tile.Pack) and len(made.operands) == value.type.size:
        return list(made.operands)
    return [frame.builder.value(tile.Extract(value, at=at)) for at in product(*map(range, value.type.local))]


def common_dtype(bindings: list[Any], frame: Frame, node: ast.AST, what: str) -> DType | None:
    """The one dtype of all run-time operands; None if all are compile-time."""
    found: DType | None = None
    for binding in bindings:
        if isinstance(binding, (bool, int, float)):
            continue
        if not is_register(binding):
            raise frame.error(node, f"{what} is not defined for {describe(binding)}", instead_of(binding), code="C204")
        dtype = dtype_of(binding)
        if found is not None and dtype != found:
            message = f"{what} mixes {found} and {dtype}; operands must have one dtype"
            raise frame.error(node, message, f"convert one side: {found}(...) or {dtype}(...)", code="C201")
        found = dtype
    return found


def unify(bindings: list[Any], dtype: DType, frame: Frame, node: ast.AST) -> list[Value]:
    """All operands as run-time values; compile-time ones become constants of `dtype`."""
    return [b if isinstance(b, Value) else as_value(b, dtype, frame, node) for b in bindings]


def apply(fn: str, bindings: list[Any], frame: Frame, node: ast.AST, shown: str = "") -> Any:
    """A function of the scalar table on run-time operands (at least one), element by element."""
    shown = shown or fn
    dtype = common_dtype(bindings, frame, node, shown)
    assert dtype is not None, "compile-time operands are the caller's"
    if not SCALAR[fn].accepts(dtype):
        raise frame.error(node, f"{shown} is not defined for {dtype}", _instead(fn, dtype), code="C204")
    nowrap = frame.nowrap and dtype == INDEX and fn in ("add", "sub", "mul")
    compute = partial(frame.builder.scalar, fn, nowrap=nowrap)
    return elementwise(unify(bindings, dtype, frame, node), frame, node, shown, compute)


def _instead(fn: str, dtype: DType) -> str:
    if dtype.is_matrix:
        return f"convert it first: x.to(f32); {dtype} is only moved, converted and bit cast"
    if dtype == BOOL:
        return "use and, or, not; or convert: i32(x)"
    if fn == "div":
        return "use // for a floor division, or convert to a float dtype"
    if fn == "ceildiv":
        return "use ceil(a / b)"
    if fn in ("floordiv", "mod"):
        return "use / and floor()" if fn == "floordiv" else "compute a - floor(a / b) * b"
    return f"it takes {', '.join(taken_by(fn))}"


def taken_by(fn: str) -> list[str]:
    """The dtypes that a row takes, by name."""
    return [name for name, dtype in DTYPES.items() if SCALAR[fn].accepts(dtype)]


def elementwise(values: list[Value], frame: Frame, node: ast.AST, shown: str, emit: Callable[..., Value]) -> Value:
    """Apply `emit` to scalars, or to the elements of fragments of one shape and layout (scalars are repeated)."""
    types = [v.type for v in values if isinstance(v.type, FragmentType)]
    if not types:
        return emit(*values)
    type_ = joined(frame, node, types, shown)
    columns = [elements(v, frame) if isinstance(v.type, FragmentType) else [v] * type_.size for v in values]
    results = [emit(*row) for row in zip(*columns, strict=True)]
    return frame.builder.value(tile.Pack(*results, type=relaid(frame, node, type_, results[0].dtype, shown)))


def binary(op: ast.operator, a: Any, b: Any, frame: Frame, node: ast.AST) -> Any:
    """``a <op> b``."""
    fn, sign, compute = BINARY[type(op)]
    if isinstance(a, Range) and isinstance(op, (ast.Add, ast.Sub)):
        return _moved(a, fn, b, frame, node)
    huge = too_large(sign, a, b)
    if huge:
        fix = f"at most {MAX_BITS} bits and {MAX_ITEMS} items are possible at compile time"
        raise frame.error(node, f"{sign} makes {huge}", fix, code="C110")
    if not has_operators(a) and not has_operators(b):
        joins = isinstance(op, (ast.Add, ast.Mult)) and all(isinstance(x, (list, tuple, int)) for x in (a, b))
        return at_compile_time(compute, [a, b], frame, node, structure=joins)
    if not fn:
        fix = "use mma(a, b, acc) on tensor cores, or a loop of fma"
        if sign == "**":
            fix = "multiply, or use exp2(y * log(x) * f32(1.4426950408889634))"
        raise frame.error(node, f"{sign} is not part of the kernel language", fix, code="C101")
    return apply(fn, [a, b], frame, node, sign)


def _moved(range_: Range, fn: str, distance: Any, frame: Frame, node: ast.AST) -> Range:
    """``r + n``, ``r - n``."""
    start = range_.start
    if isinstance(start, int) and is_int(distance):
        return Range(start + distance if fn == "add" else start - distance, range_.size)
    first = as_value(start, INDEX, frame, node)
    by = as_value(distance, INDEX, frame, node, "distance that a range is moved by")
    return Range(frame.builder.scalar(fn, first, by), range_.size)


def at_compile_time(
    compute: Callable[..., Any], operands: Sequence[Any], frame: Frame, node: ast.AST, *, structure: bool = False
) -> Any:
    """`compute` of compile-time operands; what it raises becomes an error at the user's line.

    The only way from a kernel to Python's own operators, methods and functions. These would compare, hash and test
    run-time values by identity, so they never get one. `structure`: what moves the elements of a
    sequence and looks at none.
    """
    found = next((operand for operand in operands if contains_value(operand)), None)
    if found is not None and not structure:
        fix = "take its elements one by one: what they are is only known at run time"
        raise frame.error(node, f"Python cannot work on {describe(found)} with run-time values in it", fix, code="C106")
    try:
        found = compute(*operands)
    except CompileError as error:
        raise (
            error if error.loc.line else CompileError(error.message, frame.loc(node), error.fix, code=error.code)
        ) from None
    except Exception as error:
        raise python_error(error, frame.loc(node)) from error
    return frame.plain(node, found)


def items_of(items: Any, frame: Frame, node: ast.AST, most: int, what: str) -> list[Any]:
    """A compile-time iterable as a list of at most `most` items. what: what a message says is done with them."""
    found = at_compile_time(bounded, [items, most], frame, node, structure=True)
    if found is None:
        fix = "use range() for a loop at run time, or unroll(range(n), by=4) for a few iterations at a time"
        raise frame.error(node, f"this would {what.format(count_of(items, most))} (at most {most})", fix, code="C110")
    return found


def convert(binding: Any, dtype: DType, frame: Frame, node: ast.AST) -> Value:
    """``f32(x)``, ``x.to(f32)``: cast a run-time value, or round a compile-time number."""
    if isinstance(binding, (bool, int, float)):
        return frame.builder.constant(converted(binding, dtype, frame, node), dtype)
    if not is_register(binding):
        raise frame.error(node, f"cannot convert {describe(binding)} to {dtype}", instead_of(binding), code="C204")
    source = dtype_of(binding)
    if not converts(source, dtype):
        raise frame.error(
            node, f"no conversion from {source} to {dtype}", f"go by way of f32: {dtype}(f32(x))", code="C204"
        )

    return elementwise([binding], frame, node, "conversion", partial(frame.builder.cast, to=dtype))


def converted(value: bool | int | float, dtype: DType, frame: Frame, node: ast.AST) -> bool | int | float:
    """An explicit conversion of a number: floats are rounded, integers must fit."""
    if dtype.python is float:
        as_float = at_compile_time(float, [value], frame, node)
        if isinstance(value, int) and int(as_float) != value:
            fix = f"write a float that is: {dtype}({as_float!r})"
            raise frame.error(node, f"{value} is not exact in f64, so {dtype} would round it twice", fix, code="C202")
        return rounded(as_float, dtype)
    if dtype == BOOL:
        return bool(value)
    if isinstance(value, float):
        if not value.is_integer():
            fix = f"write {dtype}({int(value)})" if math.isfinite(value) else f"{dtype} has no such number: use a float"
            raise frame.error(node, f"{value!r} is not an integer", fix, code="C202")
        value = int(value)
    return literal(int(value), dtype, frame.loc(node))


def select(condition: Value, a: Any, b: Any, frame: Frame, node: ast.AST) -> Any:
    """``where(condition, a, b)`` on run-time operands."""
    dtype = common_dtype([a, b], frame, node, "where()")
    if dtype is None:
        if isinstance(a, bool) and isinstance(b, bool):
            dtype = BOOL
        elif isinstance(a, int) and isinstance(b, int):
            dtype = INDEX
        else:
            raise frame.error(
                node, f"the dtype of {a!r} and {b!r} is not known", "write f32(...) around one of them", code="C205"
            )
    values = unify([a, b], dtype, frame, node)
    return elementwise([condition, *values], frame, node, "where()", frame.builder.select)
