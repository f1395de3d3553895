"""Reads a kernel's annotations into its `Signature`. Every error stands at the parameter's line."""

from __future__ import annotations

import ast
import inspect
import types
import typing
from typing import Any, Callable, Mapping, TypeVar

from tiledsl.errors import CompileError, CompileErrors
from tiledsl.ir.expr import PROCESSORS
from tiledsl.ir.types import INDEX, MOST_EXTENT, DType
from tiledsl.lang.constants import ConstMarker
from tiledsl.lang.dim import Dim
from tiledsl.lang.dtypes import index, ir_dtype
from tiledsl.lang.memory import Global
from tiledsl.signatures.private import class_around, mangle
from tiledsl.signatures.signature import REQUIRED, ConstParam, GlobalParam, ScalarParam, Signature
from tiledsl.signatures.source import FunctionSource, checked_source, closure_values

MAX_RANK = 4
Param = GlobalParam | ScalarParam | ConstParam


def read_signature(fn: Callable[..., Any], arch: str = "", namespace: Mapping[str, Any] | None = None) -> Signature:
    """The parameters of `fn` as a kernel. `namespace`: locals of the place that defines it, for annotations.

    Raises CompileErrors with one error for each parameter that cannot be read.
    """
    source = checked_source(fn)
    reader = _Reader(fn, source, namespace or {})
    found: list[Param] = []
    errors: list[CompileError] = []
    for parameter in inspect.signature(
        fn, follow_wrapped=False
    ).parameters.values():  # of the function that is compiled
        try:
            found.append(reader.read(parameter))
        except CompileError as error:
            errors.append(error)
    # Extents share the kernel's name space with scalars and consts: the grid is computed from all of them.
    others = {param.name for param in found if not isinstance(param, GlobalParam)}
    for param in found:
        for dim in param.dims if isinstance(param, GlobalParam) else ():
            if dim in others:
                message = f"{dim} names both an extent of {param.name} and a parameter"
                errors.append(reader.error(param.name, message, "rename one of them", code="C114"))
        if PROCESSORS in (param.dims if isinstance(param, GlobalParam) else (param.name,)):
            message = f"{PROCESSORS} is the number of SMs in the extents of a grid, and no name of a parameter's"
            errors.append(reader.error(param.name, message, "rename it", code="C114"))
    if errors:
        raise CompileErrors(errors)
    params = tuple(p for p in found if not isinstance(p, ConstParam))
    consts = tuple(p for p in found if isinstance(p, ConstParam))
    return Signature(fn.__name__, fn, params, consts, source.loc(source.tree), arch)


class _Reader:
    def __init__(self, fn: Callable[..., Any], source: FunctionSource, namespace: Mapping[str, Any]) -> None:
        self.source = source
        args = source.tree.args
        every = (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg)
        self.nodes = {arg.arg: arg for arg in every if arg is not None}
        self.fn, self.namespace = fn, namespace

    def error(self, name: str, message: str, fix: str, *, code: str) -> CompileError:
        return CompileError(message, self.source.loc(self.nodes[name]), fix, code=code)

    def read(self, parameter: inspect.Parameter) -> Param:
        name = parameter.name
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            message = f"{parameter} is not possible: a kernel's parameters are fixed"
            raise self.error(name, message, "list the parameters", code="C114")
        if name == "device" or name.startswith("_"):
            message = f"a parameter cannot be called {name}: `device=` and names with _ belong to the launcher"
            raise self.error(name, message, "rename it", code="C114")
        default = REQUIRED if parameter.default is parameter.empty else parameter.default
        keyword = parameter.kind is parameter.KEYWORD_ONLY
        declared = self.evaluate(parameter)
        annotation = _without(declared, type(None))
        optional = annotation is not declared
        if (typing.get_origin(annotation) or annotation) is Global:
            if default is not REQUIRED and not (optional and default is None):
                fix = "write `| None = None` for an optional tensor"
                raise self.error(name, f"tensor {name} has the default {default!r}", fix, code="C114")
            dtype, dims = self.read_global(name, annotation)
            return GlobalParam(name, dtype, dims, optional, default, keyword)
        if optional:
            fix = "only a Global can be `| None`; give a const a default instead"
            raise self.error(name, f"{name} is optional but no tensor", fix, code="C114")
        if any(isinstance(marker, ConstMarker) for marker in getattr(annotation, "__metadata__", ())):
            if not keyword:
                raise self.error(
                    name, f"const {name} is positional", "move it after `*,`: consts are keyword only", code="C114"
                )
            return ConstParam(name, typing.get_args(annotation)[0], default)
        # A type checker accepts `alpha: f32 | float = 1.0`, but not `alpha: f32 = 1.0`.
        dtype = ir_dtype(_without(annotation, int, float, bool))
        if dtype is None or dtype == INDEX or annotation is bool:
            message = f"parameter {name} is annotated {shown(annotation)}"
            fix = next((fix for kind, fix in _INSTEAD.items() if kind is annotation), "see docs/language.md")
            raise self.error(name, f"{message}; expected Global[dtype, dims...], a dtype or const", fix, code="C114")
        if dtype.is_matrix:
            fix = f"pass f32 and convert it in the kernel: {dtype}({name})"
            raise self.error(name, f"{name} is a scalar of dtype {dtype}, which only tensors have", fix, code="C114")
        return ScalarParam(name, dtype, default, keyword)

    def evaluate(self, parameter: inspect.Parameter) -> Any:
        annotation: Any = parameter.annotation
        if annotation is parameter.empty:
            message = f"parameter {parameter.name} has no annotation"
            raise self.error(parameter.name, message, "write its type, such as `A: Global[f32, M, K]`", code="C114")
        if not isinstance(annotation, str):
            return annotation
        try:
            return evaluated(annotation, self.fn, self.namespace)
        except Exception as error:
            message = f"the annotation {annotation} cannot be evaluated: {error}"
            raise self.error(parameter.name, message, "import or define the names in it", code="C114") from None

    def read_global(self, name: str, annotation: Any) -> tuple[DType | str, tuple[int | str, ...]]:
        first, *rest = typing.get_args(annotation) or (None,)
        # Python lets a type variable have any object as its name.
        dtype: Any = first.__name__ if isinstance(first, TypeVar) else ir_dtype(first)
        if dtype == INDEX or not isinstance(dtype, (DType, str)):
            message = f"Global of {name} begins with {shown(first)}; expected a dtype"
            raise self.error(name, message, "write a dtype or a type variable, as in Global[f32, M, K]", code="C114")
        dims: list[int | str] = []
        for argument in rest:
            dim = dim_of(argument)
            if dim is None or (isinstance(dim, int) and not 0 <= dim <= MOST_EXTENT):
                fix = f"use a dimension of tiledsl.dims, or Literal[3] for a fixed extent, at most {MOST_EXTENT}"
                raise self.error(name, f"{shown(argument)} is no dimension of {name}", fix, code="C114")
            dims.append(dim)
        if not 1 <= len(dims) <= MAX_RANK:
            fix = "pass a scalar by its dtype, `alpha: f32`" if not dims else "merge dimensions with reshape"
            raise self.error(name, f"{name} has {len(dims)} dimensions; 1 to {MAX_RANK} are possible", fix, code="C114")
        return dtype, tuple(dims)


_INSTEAD = {
    int: "write i32 or i64 for a run-time integer, const for a compile-time one",
    float: "write f32 or f64",
    bool: "write boolean for a run-time value, Const[bool] for a compile-time one",
    index: "index exists inside kernels only: write i32 or i64",
}
"""What to write in the place of an annotation."""


def _without(annotation: Any, *kinds: Any) -> Any:
    """X for ``X | K`` with kinds K; any other annotation as it is."""
    if not is_union(annotation):
        return annotation
    rest = [a for a in typing.get_args(annotation) if a not in kinds]
    return rest[0] if len(rest) == 1 else annotation


def is_union(annotation: Any) -> bool:
    """Return True for ``X | Y``, however it was written."""
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def evaluated(text: str, fn: Callable[..., Any], names: Mapping[str, Any]) -> Any:
    """Return the object that an annotation of `fn` kept as text stands for. names: locals of the place that defines it.

    Raises what Python raises.
    """
    tree = ast.parse(text.strip(), mode="eval")
    mangle(tree, class_around(fn.__code__))
    variables = {p.__name__: p for p in getattr(fn, "__type_params__", ())}
    return eval(compile(tree, "<annotation>", "eval"), fn.__globals__, {**names, **closure_values(fn), **variables})


def dim_of(argument: Any) -> int | str | None:
    """Return the extent or the name of a dimension in ``Global[f32, M, Literal[3]]``; None for anything else."""
    if typing.get_origin(argument) is typing.Literal and len(typing.get_args(argument)) == 1:
        (argument,) = typing.get_args(argument)
    if type(argument) is int:
        return argument
    return (
        argument.__name__ if isinstance(argument, type) and issubclass(argument, Dim) and argument is not Dim else None
    )


def shown(annotation: Any) -> str:
    """Return how a message shows an annotation."""
    if isinstance(annotation, TypeVar):  # one that is named by anything but a string has no repr
        return "a type variable"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
