"""Host expressions: the small arithmetic that a launch evaluates, such as ``ceildiv(N, 16)``.

They are the grid of a kernel. Text form is Python syntax, so that they print, parse and are stored.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Callable, Mapping

from tiledsl.errors import KernelArgumentError

PROCESSORS = "processors"
"""The name that stands for the number of SMs of the GPU that a launch is for."""


@dataclass(frozen=True, slots=True)
class BinExpr:
    """`fn` is a function of `FUNCTIONS`."""

    fn: str
    a: Expr
    b: Expr

    def __str__(self) -> str:
        return f"{self.fn}({self.a}, {self.b})"


Expr = int | str | BinExpr
"""A str is the name of a run-time dimension or of an integer scalar argument, or PROCESSORS."""


def ceildiv(a: int, b: int) -> int:
    """Return ``a / b`` rounded up, as the row `ceildiv` of the scalar table does where nothing wraps."""
    return -(-a // b)


FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "add": int.__add__,
    "sub": int.__sub__,
    "mul": int.__mul__,
    "floordiv": int.__floordiv__,
    "ceildiv": ceildiv,
    "mod": int.__mod__,
    "min": lambda a, b: min(a, b),
    "max": lambda a, b: max(a, b),
}


def evaluate(expr: Expr, values: Mapping[str, int]) -> int:
    """The value of `expr` in exact integers. Raises KeyError for a name that is not in `values`, and
    KernelArgumentError for what these values leave undefined."""
    match expr:
        case int():
            return expr
        case str():
            return values[expr]
        case BinExpr(fn, a, b):
            left, right = evaluate(a, values), evaluate(b, values)
            if fn in ("floordiv", "ceildiv", "mod") and right == 0:
                message = f"the grid is undefined for these arguments: {expr} divides by zero"
                raise KernelArgumentError(f"{message}\n  fix: pass extents and scalars for which {b} is not 0")
            return FUNCTIONS[fn](left, right)


def parse_expr(text: str) -> Expr:
    """Read what `str(expr)` wrote. Raises ValueError for anything else."""
    try:
        return _from_ast(ast.parse(text, mode="eval").body)
    except SyntaxError as error:
        raise ValueError(f"not a host expression: {text!r}") from error


def _from_ast(node: ast.expr) -> Expr:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return -value
        case ast.Name(id=name):
            return name
        case ast.Call(func=ast.Name(id=fn), args=[a, b]) if fn in FUNCTIONS:
            return BinExpr(fn, _from_ast(a), _from_ast(b))
        case _:
            raise ValueError(f"not a host expression: {ast.unparse(node)!r}")
