"""Calls: intrinsics of the language, conversions, tile functions (inlined), Python on compile-time
values. What a called object means is found by identity in `INTRINSICS`."""

from __future__ import annotations

import ast
import inspect
from contextlib import nullcontext
from functools import partial
from types import BuiltinMethodType, MappingProxyType
from typing import Any, Iterator

from tiledsl import lang
from tiledsl.errors import CompileError
from tiledsl.frontend.argument_types import check_types
from tiledsl.frontend.arithmetic import at_compile_time, convert, items_of
from tiledsl.frontend.assign import append
from tiledsl.frontend.bindings import (
    POISON,
    UNBOUND,
    LanguageObject,
    Poisoned,
    Unusable,
    contains_value,
    describe,
    is_fragment,
    is_method,
    is_token,
    leaves,
)
from tiledsl.frontend.budget import MAX_CALLS, MAX_ITEMS
from tiledsl.frontend.call import Call, bind, intrinsic_of
from tiledsl.frontend.control import run_statements
from tiledsl.frontend.declared import DeclaredFunction
from tiledsl.frontend.frame import Frame, evaluate, execute
from tiledsl.function import TileFunction
from tiledsl.ir.core import Value
from tiledsl.lang import ir_dtype
from tiledsl.lang.schedules import Unwrapped


@evaluate.register
def _(node: ast.Call, frame: Frame) -> Any:
    if isinstance(node.func, ast.Attribute) and node.func.attr == "append":
        given = len(node.args) + len(node.keywords)
        if len(node.args) != 1 or node.keywords:
            raise frame.error(node, f"append() takes one element, got {given}", "xs.append(x)", code="C105")
        return append(frame, node.func.value, lambda: evaluate(node.args[0], frame))
    callee = evaluate(node.func, frame)
    with frame.into(frame.unit.host) if callee is lang.grid else nullcontext():  # the host computes a grid's extents
        args, kwargs = _arguments(frame, node)
    frame.builder.loc = frame.loc(node)
    return call(frame, node, callee, args, kwargs)


def call(frame: Frame, node: ast.Call, callee: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call any object with evaluated arguments."""
    bound = is_method(callee) or (inspect.ismethod(callee) and intrinsic_of(callee.__func__))
    if bound:
        args, callee = [callee.__self__, *args], callee.__func__
    dtype = ir_dtype(callee)
    if dtype is not None:
        if len(args) != 1 or kwargs:
            raise frame.error(
                node, f"{dtype}(...) converts one value, got {len(args) + len(kwargs)}", f"{dtype}(x)", code="C105"
            )
        return convert(args[0], dtype, frame, node)
    entry = intrinsic_of(callee)
    if entry is not None and not (callee in PLAIN and not contains_value([args, kwargs])):
        signature, handler = entry
        if not bound and "self" in signature.parameters:
            name = callee.__qualname__
            fix = f"call it on what it belongs to: x.{callee.__name__}(...)"
            raise frame.error(node, f"{name}() is a method, and is called without an object", fix, code="C105")
        found = Call(frame, node, callee, bind(frame, node, signature, callee, args, kwargs))
        try:
            result = handler(found)
        except (CompileError, Poisoned):
            raise
        except Exception:
            check_types(found, signature)
            raise
        check_types(found, signature)
        return result
    if isinstance(callee, TileFunction):
        return inline(frame, node, callee, args, kwargs)  # pyright: ignore[reportUnknownArgumentType]
    return _call_python(frame, node, callee, args, kwargs)


PLAIN: set[Any] = {min, max, abs, len, range}
"""Builtins that are intrinsics on run-time values and plain Python otherwise."""


def _arguments(frame: Frame, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    for arg in node.args:
        if isinstance(arg, ast.Starred):
            sequence = evaluate(arg.value, frame)
            if not isinstance(sequence, (list, tuple, range)):
                raise frame.error(arg, f"* of {describe(sequence)}", "unpack a tuple or a list", code="C104")
            args += items_of(sequence, frame, arg, MAX_ITEMS, "unpack {} items")
        else:
            args.append(evaluate(arg, frame))
    kwargs: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise frame.error(
                node, "** in a call is not part of the kernel language", "write the arguments out", code="C101"
            )
        kwargs[keyword.arg] = evaluate(keyword.value, frame)
    return args, kwargs


_CHANGES = {
    getattr(kind, name)
    for kind, fixed in ((list, tuple), (dict, MappingProxyType), (set, frozenset), (bytearray, bytes))
    for name in set(dir(kind)) - set(dir(fixed)) - {"copy"}
    if not name.startswith("_")
}
"""Methods that change what they belong to. Both branches of a run-time `if` would see it, and every pass of a loop."""


def _call_python(frame: Frame, node: ast.Call, callee: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Plain Python runs on compile-time values only."""
    name = getattr(callee, "__name__", repr(callee))
    if type(callee).__name__ == "TileKernel":
        fix = "make the shared part a @tile_function and call that"
        raise frame.error(node, f"the kernel {name} is called inside a kernel", fix, code="C101")
    if not callable(callee):
        raise frame.error(
            node, f"{describe(callee)} is not callable", "call a function, a dtype or a method", code="C104"
        )
    if isinstance(callee, BuiltinMethodType) and getattr(type(callee.__self__), name, None) in _CHANGES:
        fix = f"make a new one and assign it, as xs = xs + [x] or xs = sorted(xs), in the place of .{name}()"
        raise frame.error(
            node, f"{name}() changes {describe(callee.__self__)} in place; here it is a value", fix, code="C104"
        )
    structural = callee in (tuple, list, zip, enumerate, reversed)
    if contains_value([args, kwargs]) and not structural:
        fix = "decorate it with @tile_function, so that it is compiled into the kernel"
        if callee in (int, float):
            fix = "convert to a dtype: i32(x), f32(x)"
        elif not inspect.isfunction(callee):  # nothing that can be decorated: sum, math.sqrt, a class
            fix = "write it out: a loop over unroll(...), or functions of tiledsl, such as sqrt and exp"
        raise frame.error(node, f"the Python function {name}() is called with a run-time value", fix, code="C106")
    args = [_finite(frame, node, callee, arg) for arg in args]
    result = at_compile_time(partial(callee, **kwargs), args, frame, node, structure=structural)
    return items_of(result, frame, node, MAX_ITEMS, "make {} items") if callee in _LAZY else result


_LAZY = (zip, enumerate, reversed)
_EXHAUSTING = (list, tuple, set, frozenset, dict, sorted, sum, any, all, min, max, bytes, bytearray)
"""Builtins that go through what they are given, for ever if that does not end."""


def _finite(frame: Frame, node: ast.AST, callee: Any, arg: Any) -> Any:
    if callee in (bytes, bytearray) and isinstance(arg, int) and arg > MAX_ITEMS:
        raise frame.error(node, f"this would make {arg} items (at most {MAX_ITEMS})", "make fewer", code="C110")
    if any(callee is each for each in _EXHAUSTING) and isinstance(arg, (range, Iterator)):
        return items_of(arg, frame, node, MAX_ITEMS, "go through {} items")
    return arg  # pyright: ignore[reportUnknownVariableType]


# -- tile functions --------------------------------------------------------------------------------


def inline(
    frame: Frame, node: ast.AST, function: TileFunction[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Compile the body of a tile function here, for these arguments. Recursion is an error."""
    callers = frame.callers
    if any(caller.fn is function.fn for caller in callers):
        raise frame.error(
            node, f"{function.name}() calls itself", "write a loop: kernels have no call stack", code="C110"
        )
    if len(callers) > MAX_CALLS:
        fix = "let the functions below do more in one of them"
        raise frame.error(node, f"more than {MAX_CALLS} tile functions inside each other", fix, code="C110")
    declared = DeclaredFunction(function)
    given = bind(frame, node, declared.declared.signature, function, args, kwargs)
    arguments = declared.arguments(frame, node, given)
    state = {name: frame.env[name] for name in frame.unit.cooperation.carried}
    nowrap = isinstance(function, Unwrapped)
    inner = Frame(frame.unit, function.fn, {**arguments, **state}, frame, frame.loc(node), nowrap)
    inner.dtypes = {name: dtype for name, (dtype, _) in declared.names.dtypes.items()}
    inner.dims = {name: extent for name, (extent, _) in declared.names.dims.items()}
    inner.returned = declared.result
    outer_loc = frame.builder.loc
    run_statements(inner, inner.source.tree.body)
    frame.env |= {name: inner.env[name] for name in state}
    frame.builder.loc = outer_loc
    return _returned(frame, node, inner, function.name)


def _returned(frame: Frame, node: ast.AST, inner: Frame, name: str) -> Any:
    value = inner.env.get("$value", UNBOUND)
    if value is POISON or (frame.unit.errors and value is UNBOUND):
        raise Poisoned
    if isinstance(value, Unusable):
        raise value.error(frame.loc(node))
    if value is UNBOUND:
        return None if inner.returned is None else inner.returned(frame, node, None)
    if inner.env["$return"] is not True:
        raise frame.error(
            node, f"{name}() may end without returning a value", "end every path with `return`, or none", code="C108"
        )
    return value


@execute.register
def _(node: ast.Expr, frame: Frame) -> None:
    if isinstance(node.value, ast.Constant):
        return  # a docstring
    value = evaluate(node.value, frame)  # first: what is wrong inside says more
    if not isinstance(node.value, ast.Call):
        raise frame.error(node, "this expression has no effect", "assign its value, or remove it", code="C107")
    if isinstance(value, LanguageObject):
        fix = f"bind it, x = {ast.unparse(node.value)}, or {value.fix}"
        raise frame.error(node, f"{value.shown} is dropped here", fix, code="C107")
    frame.unit.dropped += [leaf for leaf in leaves(value) if is_token(leaf)]
    if is_fragment(value) and not _written(value):
        name = ast.unparse(node.value.func)
        raise frame.error(
            node, f"{name}() gives a new fragment, which is dropped here", f"assign it: x = {name}(...)", code="C107"
        )


def _written(fragment: Value) -> bool:
    """Was something written to get it, as by `atomic_add`? Then it may be dropped."""
    pack = fragment.op
    return pack is not None and any(v.op is not None and "write" in v.op.effects for v in pack.operands)
