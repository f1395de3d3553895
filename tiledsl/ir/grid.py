"""The grid of a launch: a kernel's expressions evaluated, and checked against the limits of a GPU."""

from __future__ import annotations

from typing import Iterator, Mapping, Sequence

from tiledsl.arch import MOST_GRID
from tiledsl.errors import KernelArgumentError
from tiledsl.ir.expr import CallExpr, Expr, chosen, evaluate, exact_value, names_of


def checked_grid(
    kernel: str, exprs: Sequence[Expr], names: Mapping[str, int], cluster: tuple[int, int, int]
) -> tuple[int, int, int]:
    """Return the blocks along x, y, z. Raises KernelArgumentError for a grid or a cluster that a GPU cannot launch."""
    try:
        x, y, z = (*(evaluate(e, names) for e in exprs), 1, 1)[:3]
    except OverflowError as wide:
        given = "".join(_given(e, names) for e in exprs)
        raise KernelArgumentError(
            f"{kernel}(): the grid is too large{given}: {wide}\n  fix: pass smaller ones"
        ) from None
    for message, fix in _grid_problems(exprs, names, (x, y, z), cluster):
        raise KernelArgumentError(f"{kernel}(): {message}\n  fix: {fix}")
    return x, y, z


def _grid_problems(
    exprs: Sequence[Expr], names: Mapping[str, int], grid: tuple[int, int, int], cluster: tuple[int, int, int]
) -> Iterator[tuple[str, str]]:
    """Yield (what is wrong, how to fix it) for each limit that is exceeded."""
    for axis, extent, limit, expr in zip("xyz", grid, MOST_GRID, exprs, strict=False):
        if 0 < extent <= limit:
            continue
        what = f"{axis} = {expr} = {extent} blocks{_given(expr, names)}"
        if extent == 0:
            for divisor in _zero_divisors(expr, names):
                fix = f"pass extents and scalars for which {divisor} is not 0"
                yield f"the grid is empty: {what}, since it divides by zero", fix
            continue
        fix = next(_wrapped(expr, names), "")
        if extent > limit:
            fix = fix or "use larger tiles, or put the long dimension on x, the first of grid(...)"
            yield f"the grid is too large: {what}; at most {limit}", fix
        else:
            fix = fix or "give grid(...) extents that are 0 or more for these arguments"
            yield f"the grid is negative: {what}", fix
    shown = " x ".join(map(str, cluster))
    for axis, extent, size in zip("xyz", grid, cluster, strict=True):
        if extent % size:
            fix = f"round grid(...) up to a multiple of {size} and let the blocks past the edge do nothing"
            yield f"the grid has {extent} blocks along {axis}, no multiple of the cluster's {size} ({shown})", fix


def _given(expr: Expr, names: Mapping[str, int]) -> str:
    """Return the values of the names in a function, as text."""
    if not isinstance(expr, CallExpr):
        return ""
    return f" for {', '.join(f'{name} = {names[name]}' for name in dict.fromkeys(names_of(expr)))}"


def _calls(expr: Expr, names: Mapping[str, int]) -> Iterator[CallExpr]:
    """Yield the functions on which the value of `expr` depends, the innermost first: of a `select`, the chosen side."""
    if isinstance(expr, CallExpr):
        taken = (expr.args[0], chosen(expr, names)) if expr.fn == "select" else expr.args
        for arg in taken:
            yield from _calls(arg, names)
        yield expr


def _zero_divisors(expr: Expr, names: Mapping[str, int]) -> Iterator[Expr]:
    """Yield the divisors in `expr` that are 0."""
    for call in _calls(expr, names):
        if call.fn in ("floordiv", "ceildiv", "mod") and evaluate(call.args[1], names) == 0:
            yield call.args[1]


def _wrapped(expr: Expr, names: Mapping[str, int]) -> Iterator[str]:
    """Yield a fix for each function in `expr` whose exact value does not fit in its dtype."""
    for call in _calls(expr, names):
        exact = None if call.fn == "select" else exact_value(call.fn, [evaluate(arg, names) for arg in call.args])
        value = evaluate(call, names)
        if exact not in (None, value):
            how = "compute it in a wider type, as in i64(n) * n" if call.dtype.bits < 64 else "pass smaller numbers"
            yield f"{how}: {call} = {exact} does not fit in {call.dtype} and wraps to {value}"
