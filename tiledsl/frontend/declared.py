"""Fit arguments and results of tile functions to what their annotations declare.

Literals take the declared dtype, everything else must have it. docs/language.md says which annotations count.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from tiledsl import lang
from tiledsl.errors import CompileError
from tiledsl.frontend.arithmetic import literal
from tiledsl.frontend.attributes import lang_dtype
from tiledsl.frontend.bindings import (
    LanguageObject,
    Range,
    contains_value,
    describe,
    dtype_of,
    has_operators,
    instead_of,
    is_fragment,
    is_int,
    is_place,
    is_register,
    is_token,
    unusable,
)
from tiledsl.frontend.frame import Frame
from tiledsl.frontend.views import as_view, memory_type
from tiledsl.function import TileFunction
from tiledsl.ir.core import Value
from tiledsl.ir.types import INDEX, DType, GlobalType, SharedType
from tiledsl.lang.dtypes import Scalar
from tiledsl.signatures.declared import (
    PYTHON,
    CompileTime,
    Declared,
    InMemory,
    InRegisters,
    InTuple,
    OfClass,
    OfDType,
    OfVariable,
    OneOf,
    Unreadable,
    declared_of,
)

_SPACES: dict[str, Any] = {"Global": GlobalType, "SharedTile": SharedType}


class Misfit(Exception):  # noqa: N818 - becomes a CompileError where the call is known
    """A binding that an annotation does not allow. problem: "" for the annotation and the binding themselves."""

    def __init__(self, problem: str, fix: str, code: str = "C105") -> None:
        super().__init__(problem)
        self.problem, self.fix, self.code = problem, fix, code


@dataclass
class DeclaredNames:
    """The values of the type variables and dimensions of one call, each with the parameter that said so."""

    dtypes: dict[str, tuple[DType, str]] = field(default_factory=dict[str, tuple[DType, str]])
    dims: dict[str, tuple[int | str, str]] = field(default_factory=dict[str, tuple[int | str, str]])


@dataclass
class DeclaredFunction:
    """A tile function that is being inlined, with its annotations."""

    function: TileFunction[..., Any]
    names: DeclaredNames = field(default_factory=DeclaredNames)

    def __post_init__(self) -> None:
        self.declared = declared_of(self.function)

    def arguments(self, frame: Frame, node: ast.AST, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the call at `node` of `frame` as the function gets them."""
        found, parameters = dict(given), self.declared.signature.parameters
        wanted = [(name, self.declared.parameters[name]) for name in given if name in self.declared.parameters]
        wanted.sort(key=lambda pair: isinstance(given[pair[0]], (bool, int, float)))  # values say which dtype T is
        for name, declared in wanted:
            parameter, binding = parameters[name], given[name]
            if parameter.default is None and binding is None:
                continue
            fit = partial(self._fitted, declared, frame=frame, node=node, name=name)
            if parameter.kind is parameter.VAR_POSITIONAL:
                found[name] = tuple(map(fit, binding))
            elif parameter.kind is parameter.VAR_KEYWORD:
                found[name] = {key: fit(each) for key, each in binding.items()}
            else:
                found[name] = fit(binding)
        return found

    def result(self, frame: Frame, node: ast.AST, binding: Any) -> Any:
        """Return what the function returns as its caller gets it. It is returned at `node` of `frame`."""
        declared = self.declared.result
        return binding if declared is None else self._fitted(declared, binding, frame=frame, node=node, name="")

    def _fitted(self, declared: Declared, binding: Any, *, frame: Frame, node: ast.AST, name: str) -> Any:
        called, what = self.function.name, name or "its result"
        if isinstance(declared, Unreadable):
            message = f"{called}(): the annotation {declared.text} of {what} cannot be evaluated: {declared.why}"
            raise frame.error(node, message, "import or define the names in it, or drop it", code="C103")
        fit = _Fit(self.names, frame, node, name or "the result")
        try:
            found = fit.fitted(declared, binding)
        except Misfit as misfit:
            problem = f"; {misfit.problem}" if misfit.problem else f", got {describe(binding)}"
            message = f"{called}() expected {declared.text} as {what}{problem}"
            fix = misfit.fix if name else re.sub("^pass ", "return ", misfit.fix)
            raise frame.error(node, message, fix, code=misfit.code) from None
        self.names = fit.names
        return found


@dataclass
class _Fit:
    """One argument, or the result, and its annotation. name: how messages call it. Its methods raise Misfit."""

    names: DeclaredNames
    frame: Frame
    node: ast.AST
    name: str

    def fitted(self, declared: Declared, binding: Any) -> Any:
        """Return `binding` as `declared` says: literals become values of the dtype."""
        if unusable(binding):  # the error is where it is used
            return binding
        match declared:
            case OfDType():
                return self._of_dtype(declared.dtype, binding)
            case OfVariable():
                return self._of_variable(declared, binding)
            case CompileTime():
                return self._at_compile_time(declared, binding)
            case InTuple():
                return self._in_tuple(declared, binding)
            case OneOf():
                return self._one_of(declared, binding)
            case InMemory():
                self._in_memory(declared, binding)
            case InRegisters():
                if not is_fragment(binding):
                    raise Misfit("", "pass a fragment" if is_register(binding) else instead_of(binding))
                self._element(declared.dtype, dtype_of(binding))
            case OfClass():
                _require_class(declared.cls, binding)
            case _:
                pass
        return binding

    def _of_dtype(self, dtype: DType, binding: Any) -> Any:
        if is_register(binding):
            if dtype_of(binding) != dtype:
                raise Misfit("", f"convert it: x.to({dtype})", "C203")
            return binding
        if not isinstance(binding, (bool, int, float)):
            fix = f"pass a value of {dtype}, or a number that is exact in it"
            raise Misfit("", instead_of(binding) if has_operators(binding) else fix, "C203")
        try:
            number = literal(binding, dtype, self.frame.loc(self.node))
        except CompileError as error:
            raise Misfit(error.message, error.fix, error.code) from None
        # An index has no width, so that an int means the same and may still choose an element of a fragment.
        return binding if dtype == INDEX else self.frame.builder.constant(number, dtype)

    def _of_variable(self, declared: OfVariable, binding: Any) -> Any:
        if is_register(binding):
            self._element(declared, dtype_of(binding))
        elif isinstance(binding, (bool, int, float)) and declared.name in self.names.dtypes:
            return self._of_dtype(self.names.dtypes[declared.name][0], binding)
        return binding

    def _element(self, wanted: OfDType | OfVariable | None, dtype: DType) -> None:
        """Check the dtype of a value, or of the elements of a place or a fragment."""
        if isinstance(wanted, OfDType) and wanted.dtype != dtype:
            raise Misfit("", f"convert it, or declare {dtype}", "C203")
        if isinstance(wanted, OfVariable):
            among = wanted.among
            if not (dtype in among if among else issubclass(lang_dtype(dtype), wanted.bound)):
                allowed = ", ".join(map(str, among)) if among else f"a {wanted.bound.__name__}"
                raise Misfit(f"that is {allowed}, got {dtype}", "convert it, or widen the type variable", "C203")
            known, first = self.names.dtypes.setdefault(wanted.name, (dtype, self.name))
            if known != dtype:
                problem = f"{wanted.name} is {known} in {first}, but {dtype} in {self.name}"
                raise Misfit(problem, f"convert one of them: x.to({known})", "C203")

    def _in_memory(self, declared: InMemory, binding: Any) -> None:
        if not is_place(binding):
            raise Misfit("", "pass a tensor, a shared tile, or a view of one", "C402")
        type_ = memory_type(binding)
        if not isinstance(type_, _SPACES.get(declared.kind, object)):
            raise Misfit("", "declare it Memory[...], which is either", "C402")
        self._element(declared.dtype, type_.dtype)
        if declared.dims is None:
            return
        dims = as_view(binding).dims
        if len(dims) != len(declared.dims):
            problem = f"that has {len(declared.dims)} dimensions, got {describe(binding)}"
            raise Misfit(problem, "declare as many dimensions, or Memory[...]", "C304")
        for axis, (wanted, extent) in enumerate(zip(declared.dims, dims, strict=True)):
            if isinstance(wanted, int) and wanted != extent:
                problem = f"axis {axis} of that is {wanted}, got {extent}"
                raise Misfit(problem, f"declare {extent} there, or Any", "C304")
            if isinstance(wanted, str):
                known, first = self.names.dims.setdefault(wanted, (extent, self.name))
                if known != extent:
                    problem = f"{wanted} is {known} in {first}, but {extent} in {self.name}"
                    raise Misfit(problem, "declare another name, or Any, for one of them", "C304")

    def _at_compile_time(self, declared: CompileTime, binding: Any) -> Any:
        if contains_value(binding):
            raise Misfit("", "pass a compile-time value", "C106")
        among = declared.among
        if among is not None and not any(type(binding) is type(each) and binding == each for each in among):
            raise Misfit("", f"pass one of {', '.join(map(repr, among))}")
        if not isinstance(declared.inner, OfDType):  # a value of a dtype is none of compile time
            self.fitted(declared.inner, binding)
        return binding

    def _in_tuple(self, declared: InTuple, binding: Any) -> Any:
        if not isinstance(binding, tuple):
            raise Misfit("", "pass a tuple")
        items: list[Any] = list(binding)  # pyright: ignore[reportUnknownArgumentType]
        parts = declared.parts * len(items) if declared.repeated else declared.parts
        if len(parts) != len(items):
            raise Misfit(f"that has {len(parts)} items, got {len(items)}", f"pass {len(parts)} items")
        found: list[Any] = []
        for number, (part, each) in enumerate(zip(parts, items, strict=True)):
            try:
                found.append(self.fitted(part, each))
            except Misfit as misfit:
                problem = misfit.problem or f"expected {part.text}, got {describe(each)}"
                raise Misfit(f"item {number}: {problem}", misfit.fix, misfit.code) from None
        same = all(new is old for new, old in zip(found, items, strict=True))
        whole, make = cast(Any, binding), cast(Any, tuple)
        return whole if same else make.__new__(type(whole), found)

    def _one_of(self, declared: OneOf, binding: Any) -> Any:
        """Return the binding by the first option that takes it as it is, else by the one that converts it."""
        before, converted, misfits = self.names, list[Any](), list[Misfit]()
        for option in declared.options:
            self.names = DeclaredNames({**before.dtypes}, {**before.dims})
            try:
                found = self.fitted(option, binding)
            except Misfit as misfit:
                misfits.append(misfit)
                continue
            if found is binding:
                return found
            converted.append(found)
        self.names = before
        if len(converted) > 1:  # a literal for which several dtypes would do stays one
            return binding
        if converted:
            return converted[0]
        near = next((misfit for misfit in misfits if misfit.problem), misfits[0])
        raise Misfit(near.problem, near.fix, near.code)


def _require_class(cls: type[Any], binding: Any) -> None:
    """Raise Misfit unless `binding` is of a class of Python or of the language."""
    if _is_of(cls, binding):
        return
    if is_register(binding):
        dtype = dtype_of(binding)
        known = cls in PYTHON and cls is not type(None)
        problem = f"that is known at compile time, got a run-time {dtype}" if known else ""
        fix = f"declare it {'boolean' if dtype.name == 'bool' else dtype}, or pass a compile-time value"
        raise Misfit(problem, fix)
    raise Misfit("", f"pass {'None' if cls is type(None) else f'a value of {cls.__name__}'}, or change the annotation")


def _is_of(cls: type[Any], binding: Any) -> bool:
    is_number = isinstance(binding, (int, float)) and not isinstance(binding, bool)
    if cls in (int, float):
        return is_int(binding) if cls is int else is_number
    if cls is lang.Token:
        return is_token(binding)
    if isinstance(binding, LanguageObject):
        return binding.described_by is None or issubclass(binding.described_by, cls)
    if isinstance(binding, Value):
        return is_register(binding) and issubclass(lang_dtype(dtype_of(binding)), cls)
    if isinstance(binding, Range):
        return cls is lang.Range
    return isinstance(binding, cls) or (issubclass(cls, Scalar) and (is_number or isinstance(binding, bool)))
