"""A call of a function of the language, with typed accessors for its arguments, and the table of handlers."""

from __future__ import annotations

import ast
import inspect
from typing import Any, Callable, Sequence

from tiledsl import lang
from tiledsl.arch import require_feature
from tiledsl.errors import CompileError
from tiledsl.frontend.arithmetic import as_value
from tiledsl.frontend.bindings import View, contains_value, describe, is_int, is_place, positive_ints
from tiledsl.frontend.frame import Frame
from tiledsl.frontend.views import as_view, memory_name, memory_type
from tiledsl.ir.core import Value
from tiledsl.ir.types import INDEX, DType, GlobalType, SharedType
from tiledsl.lang import ir_dtype

_MEMORY: dict[Any, str] = {GlobalType: "a Global", SharedType: "a shared tile", None: "memory"}


class Call:
    """One call of an intrinsic: bound arguments by parameter name, and where it stands."""

    def __init__(self, frame: Frame, node: ast.Call, callee: Any, arguments: dict[str, Any]) -> None:
        self.frame, self.node, self.callee, self.arguments = frame, node, callee, arguments
        self.builder: Any = frame.builder
        self.unit, self.state = frame.unit, frame.unit.cooperation

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @property
    def what(self) -> str:
        """How messages name the function: "mma()", "ptx.ldmatrix()", "ring.use()"."""
        owner = getattr(self.callee, "__qualname__", "").rpartition(".")[0]
        prefix = "ptx." if self.callee.__module__ == lang.ptx.__name__ else ""
        return f"{f'{owner.lower()}.' if owner in ('Ring', 'Wgmma') else prefix}{self.callee.__name__}()"

    def error(self, message: str, fix: str, *, code: str) -> CompileError:
        return self.frame.error(self.node, message, fix, code=code)

    def needs(self, feature: str, what: str = "") -> None:
        """As `require_feature`, before the arguments are looked at. The builder asks it of each op."""
        require_feature(self.unit.builder.arch, feature, what or self.what, self.frame.loc(self.node))

    def integer(
        self, name: str, low: int, high: int | None = None, fix: str = "use a const parameter", multiple: int = 1
    ) -> int:
        """An argument that is a compile-time int in a range."""
        value = self[name]
        if not is_int(value) or value < low or (high is not None and value > high) or value % multiple:
            limits = f"of {low} or more" if high is None else f"from {low} to {high}"
            limits += f", a multiple of {multiple}" if multiple > 1 else ""
            shown = str(value) if isinstance(value, int) else describe(value)
            raise self.error(f"{self.what}: {name} is a compile-time int {limits}, got {shown}", fix, code="C105")
        return value

    def choice(self, name: str, options: Sequence[str]) -> str:
        """An argument that is one of a few strings."""
        value = self[name]
        if not isinstance(value, str) or value not in options:
            shown = repr(value) if isinstance(value, str) else describe(value)
            raise self.error(
                f"{self.what} has no {name} {shown}", f"one of {', '.join(map(repr, options))}", code="C105"
            )
        return value

    def extents(self, name: str, count: int, fix: str) -> tuple[int, ...]:
        """An argument that is a tuple of `count` positive compile-time ints."""
        value = self[name]
        found = positive_ints(value)
        if not isinstance(value, tuple) or found is None or len(found) != count:
            shown = describe(value) if contains_value(value) else repr(value)  # pyright: ignore[reportUnknownArgumentType]
            raise self.error(
                f"{self.what}: {name}= is {count} positive compile-time ints, got {shown}", fix, code="C302"
            )
        return found

    def width(self, name: str, dtype: DType, widths: Sequence[int]) -> int:
        """An argument that says how many bytes of memory with elements of `dtype` are accessed at once."""
        value, size = self[name], dtype.bytes
        possible = [width for width in widths if width % size == 0]
        if not is_int(value) or value not in possible:
            shown = value if isinstance(value, int) else describe(value)
            fix = f"possible widths, in bytes: {', '.join(map(str, possible))}"
            raise self.error(f"{self.what} with {name}={shown} on elements of {size} bytes", fix, code="C401")
        return value

    def dtype(self) -> DType:
        """The argument `dtype`."""
        dtype = ir_dtype(self["dtype"])
        if dtype is None:
            raise self.error(
                f"expected a dtype of the language, got {describe(self['dtype'])}", "pass f32, f16, ...", code="C105"
            )
        return dtype

    def value(self, name: str, dtype: DType) -> Value:
        """An argument that is a run-time scalar of `dtype`, or a number that is exact in it."""
        return as_value(self[name], dtype, self.frame, self.node, name)

    def index(self, name: str) -> Value | int:
        """An argument that counts elements or tiles: a compile-time int or an index."""
        value = self[name]
        return value if is_int(value) else as_value(value, INDEX, self.frame, self.node, f"{name} of the range")

    def memory(self, name: str, kind: Any = None, fix: str = "", axes: int = 0) -> View:
        """An argument in memory, as a view. kind: `GlobalType`, `SharedType` or None for both. axes: 2 for rows and
        columns of a compile-time shape, 0 for any."""
        memory, wanted = self[name], _MEMORY[kind]
        if not is_place(memory) or (kind is not None and not isinstance(memory_type(memory), kind)):
            fix = fix or f"pass {wanted} as {name}, or a view of one"
            raise self.error(f"{self.what} takes {wanted} as {name}, got {describe(memory)}", fix, code="C402")
        view = as_view(memory)
        if axes not in (0, view.rank):
            fix = "take a view of two axes: a number drops an axis, as in S[stage, :, :]"
            raise self.error(f"{self.what} takes rows and columns, {name} has {view.rank} axes", fix, code="C304")
        if axes:
            self.require_static(view)
        return view

    def require_static(self, view: View) -> None:
        """An error for a view whose shape only a launch knows."""
        if any(isinstance(extent, str) for extent in view.dims):
            shape = " x ".join(map(str, view.dims))
            message = f"{self.what} of {memory_name(view)}, whose shape {shape} is only known at run time"
            fix = "take a part of compile-time shape: A[tile(by, BM), k] with k from tiles(K, BK)"
            raise self.error(message, fix, code="C305")


Handler = Callable[[Call], Any]
INTRINSICS: dict[Any, tuple[inspect.Signature, Handler]] = {}
"""The language's functions, and methods as functions of their class, with what they do."""


def intrinsic(*objects: Any, signature: Callable[..., Any] | None = None) -> Callable[[Handler], Handler]:
    """Register a handler for functions of `tiledsl.lang` or builtins; arguments are bound by their
    signature, or by that of `signature` where Python does not tell one."""

    def register(handler: Handler) -> Handler:
        for obj in objects:
            INTRINSICS[obj] = (inspect.signature(signature or obj), handler)
        return handler

    return register


def intrinsic_of(callee: Any) -> tuple[inspect.Signature, Handler] | None:
    """The signature and handler of `callee`; None for any object that is not of the language."""
    try:
        return INTRINSICS.get(callee)
    except Exception:  # a list, what contains one, or what the user's own __hash__ raises
        return None


def bind(
    frame: Frame, node: ast.AST, signature: inspect.Signature, callee: Any, args: list[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        shown = f"{getattr(callee, '__name__', callee)}{signature}"
        raise frame.error(node, f"{error}", f"call it as {shown}", code="C105") from None
    given = {*bound.arguments}
    bound.apply_defaults()
    return {name: value if name in given else frame.plain(node, value) for name, value in bound.arguments.items()}
