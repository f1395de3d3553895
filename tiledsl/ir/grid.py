"""The grid of a launch: a kernel's expressions evaluated, and checked against the limits of a GPU."""

from __future__ import annotations

from typing import Iterator, Mapping, Sequence

from tiledsl.arch import MOST_GRID
from tiledsl.errors import KernelArgumentError
from tiledsl.ir.expr import Expr, evaluate


def checked_grid(
    kernel: str, exprs: Sequence[Expr], names: Mapping[str, int], cluster: tuple[int, int, int]
) -> tuple[int, int, int]:
    """Blocks along x, y, z. Raises KernelArgumentError for a grid or a cluster that a GPU cannot launch."""
    x, y, z = (*(evaluate(e, names) for e in exprs), 1, 1)[:3]
    for message, fix in _grid_problems(exprs, (x, y, z), cluster):
        raise KernelArgumentError(f"{kernel}(): {message}\n  fix: {fix}")
    return x, y, z


def _grid_problems(
    exprs: Sequence[Expr], grid: tuple[int, int, int], cluster: tuple[int, int, int]
) -> Iterator[tuple[str, str]]:
    """(what is wrong, how to fix it) for each limit that is exceeded."""
    for axis, extent, limit, expr in zip("xyz", grid, MOST_GRID, exprs, strict=False):
        what = f"{axis} = {expr} = {extent} blocks"
        if extent > limit:
            fix = "use larger tiles, or put the long dimension on x, the first of grid(...)"
            yield f"the grid is too large: {what}; at most {limit}", fix
        if extent < 0:
            yield f"the grid is negative: {what}", "give grid(...) extents that are 0 or more for these arguments"
    shown = " x ".join(map(str, cluster))
    for axis, extent, size in zip("xyz", grid, cluster, strict=True):
        if extent % size:
            fix = f"round grid(...) up to a multiple of {size} and let the blocks past the edge do nothing"
            yield f"the grid has {extent} blocks along {axis}, no multiple of the cluster's {size} ({shown})", fix
