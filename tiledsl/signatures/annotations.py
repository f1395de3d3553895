"""Reads a kernel's annotations into its `Signature`. Every error stands at the parameter's line."""

from __future__ import annotations

import ast
import builtins
import inspect
import types
import typing
from typing import Any, Callable, Mapping, TypeVar

from tiledsl.errors import CompileError, CompileErrors, Loc
from tiledsl.ir.types import INDEX, MOST_EXTENT, DType
from tiledsl.signatures.signature import REQUIRED, ConstParam, GlobalParam, ScalarParam, Signature
from tiledsl.signatures.source import FunctionSource, checked_source, closure_values

MAX_RANK = 4
Param = GlobalParam | ScalarParam | ConstParam


def read_signature(fn: Callable[..., Any], arch: str = "", namespace: Mapping[str, Any] | None = None) -> Signature:
    """The parameters of `fn` as a kernel. `namespace`: locals of the place that defines it, for annotations.

    Raises CompileErrors with one error for each parameter that cannot be read.
    """
    source = checked_source(fn)
    node = source.tree
    reader = _Reader(fn, source, node, dict(namespace or {}))
    found: list[Param] = []
    errors: list[CompileError] = []
    for parameter in _parameters(fn, source).values():
        try:
            found.append(reader.read(parameter))
        except CompileError as error:
            errors.append(error)
    if errors:
        raise CompileErrors(errors)
    params = tuple(p for p in found if not isinstance(p, ConstParam))
    consts = tuple(p for p in found if isinstance(p, ConstParam))
    _check_names(params, consts, reader)
    def_line = Loc(source.file, node.lineno, node.col_offset + 1, function=fn.__name__)
    return Signature(fn.__name__, fn, params, consts, def_line, arch)


def _parameters(fn: Callable[..., Any], source: FunctionSource) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(fn, follow_wrapped=False).parameters  # of the function that is compiled
    except NameError as error:  # Python 3.14 evaluates annotations only now
        loc = Loc(source.file, source.line, function=fn.__name__)
        fix = "import or define the names in it"
        raise CompileErrors([CompileError(f"an annotation cannot be evaluated: {error}", loc, fix)]) from None


def _check_names(
    params: tuple[GlobalParam | ScalarParam, ...], consts: tuple[ConstParam, ...], reader: _Reader
) -> None:
    """Extents share the kernel's name space with scalars and consts: the grid is computed from all of them."""
    scalars = {p.name for p in params if isinstance(p, ScalarParam)} | {c.name for c in consts}
    for param in params:
        clash = [d for d in param.dims if d in scalars] if isinstance(param, GlobalParam) else []
        if clash:
            message = f"{clash[0]} names both an extent of {param.name} and a parameter"
            raise CompileErrors([CompileError(message, reader.loc(param.name), "rename one of them")])


class _Reader:
    def __init__(
        self, fn: Callable[..., Any], source: FunctionSource, node: ast.FunctionDef, namespace: dict[str, Any]
    ) -> None:
        self.fn, self.source = fn, source
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        every += [a for a in (node.args.vararg, node.args.kwarg) if a is not None]
        self.nodes = {a.arg: a for a in every}
        self.namespace = {**vars(builtins), **fn.__globals__, **namespace, **closure_values(fn)}
        self.namespace.update({p.__name__: p for p in getattr(fn, "__type_params__", ())})

    def loc(self, name: str) -> Loc:
        return self.source.loc(self.nodes[name])

    def read(self, parameter: inspect.Parameter) -> Param:
        name, loc = parameter.name, self.loc(parameter.name)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            message = f"{parameter} is not possible: a kernel's parameters are fixed"
            raise CompileError(message, loc, "list the parameters")
        if name == "device" or name.startswith("_"):
            why = "`device=` chooses where a call runs" if name == "device" else "names with _ belong to the launcher"
            raise CompileError(f"a parameter cannot be called {name}: {why}", loc, "rename it")
        default = REQUIRED if parameter.default is parameter.empty else parameter.default
        keyword = parameter.kind is parameter.KEYWORD_ONLY
        declared = self.evaluate(parameter)
        annotation = _without(declared, type(None))
        optional = annotation is not declared
        if _is_global(annotation):
            if default is not REQUIRED and not (optional and default is None):
                fix = "write `| None = None` for an optional tensor"
                raise CompileError(f"tensor {name} has the default {default!r}", loc, fix)
            dtype, dims = self.read_global(name, annotation, loc)
            return GlobalParam(name, dtype, dims, optional, default, keyword)
        if optional:
            fix = "only a Global can be `| None`; give a const a default instead"
            raise CompileError(f"{name} is optional but no tensor", loc, fix)
        const = _const_type(annotation)
        if const is not None:
            if not keyword:
                raise CompileError(f"const {name} is positional", loc, "move it after `*,`: consts are keyword only")
            return ConstParam(name, const, default)
        # A type checker accepts `alpha: f32 | float = 1.0`, but not `alpha: f32 = 1.0`.
        dtype = _dtype(_without(annotation, int, float, bool))
        if dtype is not None and dtype.is_matrix:
            fix = f"pass f32 and convert it in the kernel: {dtype}({name})"
            raise CompileError(f"{name} is a scalar of dtype {dtype}, which only tensors have", loc, fix)
        if dtype is not None and dtype != INDEX:
            return ScalarParam(name, dtype, default, keyword)
        message = (
            f"parameter {name} is annotated {_shown(annotation)}; expected Global[dtype, dims...], a dtype or const"
        )
        raise CompileError(message, loc, _suggestion(annotation))

    def evaluate(self, parameter: inspect.Parameter) -> Any:
        annotation: Any = parameter.annotation
        if annotation is parameter.empty:
            message = f"parameter {parameter.name} has no annotation"
            raise CompileError(message, self.loc(parameter.name), "write its type, such as `A: Global[f32, M, K]`")
        if not isinstance(annotation, str):
            return annotation
        try:
            return eval(annotation, self.namespace)
        except Exception as error:
            message = f"the annotation {annotation} cannot be evaluated: {error}"
            raise CompileError(message, self.loc(parameter.name), "import or define the names in it") from None

    def read_global(self, name: str, annotation: Any, loc: Loc) -> tuple[DType | str, tuple[int | str, ...]]:
        args = typing.get_args(annotation)
        dtype = _name_or_dtype(args[0]) if args else None
        if dtype is None or dtype == INDEX:
            # A type variable that is named by anything but a string has no repr.
            got = "nothing" if not args else "a type variable" if isinstance(args[0], TypeVar) else _shown(args[0])
            fix = "write a dtype or a type variable, as in Global[f32, M, K]"
            raise CompileError(f"Global of {name} begins with {got}; expected a dtype", loc, fix)
        dims = tuple(_dim(arg) for arg in args[1:])
        for arg, dim in zip(args[1:], dims, strict=True):
            if dim is None or (isinstance(dim, int) and not 0 <= dim <= MOST_EXTENT):
                fix = f"use a dimension of tiledsl.dims, or Literal[3] for a fixed extent, at most {MOST_EXTENT}"
                raise CompileError(f"{_shown(arg)} is no dimension of {name}", loc, fix)
        if not 1 <= len(dims) <= MAX_RANK:
            fix = "pass a scalar by its dtype, `alpha: f32`" if not dims else "merge dimensions with reshape"
            raise CompileError(f"{name} has {len(dims)} dimensions; 1 to {MAX_RANK} are possible", loc, fix)
        return dtype, tuple(d for d in dims if d is not None)


# -- what the objects of tiledsl.lang look like: the only place that knows ------------------------------


def _name_or_dtype(annotation: Any) -> DType | str | None:
    """A dtype, or the name of a type variable that stands for one; Python lets that name be any object."""
    if not isinstance(annotation, TypeVar):
        return _dtype(annotation)
    name: Any = annotation.__name__
    return name if isinstance(name, str) else None


def _without(annotation: Any, *kinds: Any) -> Any:
    """X for ``X | K`` with kinds K; any other annotation as it is."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation
    rest = [a for a in typing.get_args(annotation) if a not in kinds]
    return rest[0] if len(rest) == 1 else annotation


def _is_global(annotation: Any) -> bool:
    cls = typing.get_origin(annotation) or annotation
    return getattr(cls, "__name__", "") == "Global" and cls.__module__.startswith("tiledsl.")


def _dtype(annotation: Any) -> DType | None:
    ir = getattr(annotation, "ir", None)
    if isinstance(ir, DType):
        return ir
    return annotation if isinstance(annotation, DType) else None


def _dim(argument: Any) -> int | str | None:
    if typing.get_origin(argument) is typing.Literal:
        values = typing.get_args(argument)
        return values[0] if len(values) == 1 and type(values[0]) is int else None
    if type(argument) is int:
        return argument
    if isinstance(argument, type) and any(base.__name__ == "Dim" for base in argument.__mro__[1:]):
        return argument.__name__
    return None


def _const_type(annotation: Any) -> Any:
    """T of ``Const[T]`` (const is Const[int]); None for anything else."""
    markers = getattr(annotation, "__metadata__", ())
    if any(type(m).__name__ == "ConstMarker" for m in markers):
        return typing.get_args(annotation)[0]
    return None


def _shown(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _suggestion(annotation: Any) -> str:
    if annotation is int:
        return "write i32 or i64 for a run-time integer, const for a compile-time one"
    if annotation is float:
        return "write f32 or f64"
    if annotation is bool:
        return "write boolean for a run-time value, Const[bool] for a compile-time one"
    if _dtype(annotation) == INDEX:
        return "index exists inside kernels only: write i32 or i64"
    return "see docs/language.md for the parameters of a kernel"
