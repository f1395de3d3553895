"""Host expressions: the integer arithmetic that a launch evaluates, such as ``floordiv(add(N, 15), 16)``.

They are the grid of a kernel, and have the values that the same expressions have in the kernel: integers wrap, and
``x // 0`` is 0. Their functions are rows of the scalar table on operands of one dtype, and two more:
``cast.i32(x)`` converts, ``select(p, a, b)`` is `a` if `p` else `b`. The dtype follows the name, except for `index`.
Text form is Python syntax, so that they print, parse and are stored.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tiledsl.ir.scalar import SCALAR
from tiledsl.ir.types import BOOL, DTYPES, INDEX, DType

PROCESSORS = "processors"
"""The name that stands for the number of SMs of the GPU that a launch is for."""


@dataclass(frozen=True, slots=True)
class CallExpr:
    """A function of `FUNCTIONS` on operands of `dtype`; `select` has a bool in front, and `cast` converts to it."""

    fn: str
    args: tuple[Expr, ...]
    dtype: DType = INDEX

    @property
    def result(self) -> DType:
        """Return the dtype of the value."""
        row = SCALAR.get(self.fn)
        return BOOL if row is not None and row.to_bool else self.dtype

    def __str__(self) -> str:
        dtype = "" if self.dtype == INDEX else f".{self.dtype}"
        return f"{_WRITTEN.get(self.fn, self.fn)}{dtype}({', '.join(map(str, self.args))})"


Expr = int | str | CallExpr
"""A str is the name of a run-time dimension or of an integer scalar argument, or PROCESSORS."""

FUNCTIONS: dict[str, int] = {
    **{name: row.arity for name, row in SCALAR.items() if row.kinds - {"float"}},
    "cast": 1,
    "select": 3,
}
"""The number of arguments of each function."""

_WRITTEN = {"and": "and_", "or": "or_", "not": "not_"}
"""The text of functions that are keywords of Python."""
_READ = {name: name for name in FUNCTIONS if name not in _WRITTEN} | {text: name for name, text in _WRITTEN.items()}


def ceildiv(a: int, b: int) -> int:
    """Return ``a / b`` rounded up, as the row `ceildiv` of the scalar table does where nothing wraps."""
    return -(-a // b)


_EXACT: dict[str, Callable[..., int]] = {
    "add": int.__add__,
    "sub": int.__sub__,
    "mul": int.__mul__,
    "floordiv": int.__floordiv__,
    "ceildiv": ceildiv,
    "mod": int.__mod__,
    "min": min,
    "max": max,
    "cast": int,
}
"""Functions whose value is that of Python's integers wherever the dtype has it. NumPy takes ten times as long."""

_LIMITS = {dtype: dtype.limits for dtype in DTYPES.values()}


# -- values ----------------------------------------------------------------------------------------


def evaluate(expr: Expr, values: Mapping[str, int]) -> int:
    """Return the value that `expr` has in a kernel.

    Raises:
        KeyError: A name is not in `values`.
        OverflowError: An index leaves its 64 bits. No launch needs that, and analyses of grids rely on it.
    """
    if isinstance(expr, int):
        return expr
    if isinstance(expr, str):
        return values[expr]
    if expr.fn == "select":
        return evaluate(chosen(expr, values), values)
    fn, dtype, args = expr.fn, expr.dtype, [evaluate(arg, values) for arg in expr.args]
    exact = exact_value(fn, args)
    if exact is not None:
        low, high = _LIMITS[dtype]
        if low <= exact <= high:
            return exact
        if never_wraps(fn, dtype):
            raise OverflowError(f"{expr} = {exact} does not fit in {dtype}")
    from tiledsl.ir.semantics import fold, fold_cast  # it needs NumPy, which importing must not load

    if fn == "cast":
        return int(fold_cast(args[0], INDEX if args[0] <= INDEX.limits[1] else DTYPES["u64"], dtype))
    return int(fold(fn, dtype, *args))


def chosen(select: CallExpr, values: Mapping[str, int]) -> Expr:
    """Return the operand that is the value of a `select`; nothing depends on the other one."""
    condition, a, b = select.args
    return a if evaluate(condition, values) else b


def never_wraps(fn: str, dtype: DType) -> bool:
    """Return whether `evaluate` raises an error where the result of `fn` leaves `dtype`."""
    return dtype == INDEX and fn in _EXACT and fn != "cast"


def exact_value(fn: str, args: list[int]) -> int | None:
    """Return the value of a function in Python's integers; None if they have none, or are not asked."""
    if fn not in _EXACT:
        return None
    try:
        return _EXACT[fn](*args)
    except ZeroDivisionError:
        return None


def names_of(expr: Expr) -> Iterator[str]:
    """Yield the names in `expr`, from left to right."""
    match expr:
        case str():
            yield expr
        case CallExpr():
            for arg in expr.args:
                yield from names_of(arg)
        case _:
            pass


def problem(expr: Expr, names: Mapping[str, DType]) -> str:
    """Return what is wrong with `expr` as an extent of a grid, or "". names: the dtypes of the names it may use."""
    try:
        _limits(expr, names)
    except ValueError as error:
        return str(error)
    a_bool = isinstance(expr, CallExpr) and expr.result == BOOL
    return f"the grid has the bool {expr} as an extent; an integer is needed" if a_bool else ""


def _limits(expr: Expr, names: Mapping[str, DType]) -> tuple[int, int]:
    """Return the limits of the dtype of `expr`. Raises ValueError if an operand may not fit in the dtype it is for."""
    match expr:
        case int():
            return expr, expr
        case str():
            if expr not in names:
                raise ValueError(f"the grid needs {expr}, which no parameter gives")
            return names[expr].limits
        case CallExpr(fn, args, dtype):
            of_dtype = (dtype.is_integer or dtype == BOOL) and (fn not in SCALAR or SCALAR[fn].accepts(dtype))
            if FUNCTIONS.get(fn) != len(args) or not of_dtype:
                raise ValueError(f"the grid has {expr}, and there is no such function of {dtype}")
            for number, arg in enumerate(args):
                low, high = _limits(arg, names)
                wanted = BOOL if fn == "select" and number == 0 else None if fn == "cast" else dtype
                if wanted is not None and not (wanted.limits[0] <= low and high <= wanted.limits[1]):
                    raise ValueError(f"the grid has {expr}, of which {arg} need not be a {wanted}; cast.{wanted}(...)")
            return expr.result.limits


# -- text ------------------------------------------------------------------------------------------


@lru_cache(1024)
def parse_expr(text: str) -> Expr:
    """Read what `str(expr)` wrote. Raises ValueError for anything else."""
    try:
        return _from_ast(ast.parse(text, mode="eval").body)
    except SyntaxError as error:
        raise ValueError(f"not a host expression: {text!r}") from error


def _from_ast(node: ast.expr) -> Expr:
    match node:
        case ast.Constant(value=value) if type(value) is int:
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if type(value) is int:
            return -value
        case ast.Name(id=name):
            return name
        case ast.Call(func=ast.Name(id=text), args=args, keywords=[]) if _is_function(text, args):
            return CallExpr(_READ[text], tuple(map(_from_ast, args)))
        case ast.Call(func=ast.Attribute(value=ast.Name(id=text), attr=dtype), args=args, keywords=[]) if (
            _is_function(text, args) and dtype in DTYPES and dtype != INDEX.name
        ):
            return CallExpr(_READ[text], tuple(map(_from_ast, args)), DTYPES[dtype])
        case _:
            raise ValueError(f"not a host expression: {ast.unparse(node)!r}")


def _is_function(text: str, args: list[ast.expr]) -> bool:
    return text in _READ and FUNCTIONS[_READ[text]] == len(args)
