"""Orders in which the elements of an m x n outer product can be computed, as (row, column) places."""

from __future__ import annotations

from typing import Callable

Order = tuple[tuple[int, int], ...]


def rows(m: int, n: int) -> Order:
    """Row after row."""
    return tuple((i, j) for i in range(m) for j in range(n))


def serpentine(m: int, n: int) -> Order:
    """Row after row, every other one backwards."""
    return tuple((i, j if i % 2 == 0 else n - 1 - j) for i in range(m) for j in range(n))


def spiral(m: int, n: int) -> Order:
    """maxas's order in each block of 8 x 8 (NervanaSystems/maxas, sgemm64.sass): around the four elements of rows
    (i, i + 2) and columns (j, j + 1), in a serpentine through the rows' pairs, column pair by column pair."""
    order: list[tuple[int, int]] = []
    for top in range(0, m, 8):
        for left in range(0, n, 8):
            pairs = [0, 1, 4, 5]
            for j in range(0, 8, 2):
                for i in pairs:
                    order += [(top + i + di, left + j + dj) for di, dj in ((2, 0), (2, 1), (0, 1), (0, 0))]
                pairs.reverse()
    return tuple(order)


def pairs(m: int, n: int) -> Order:
    """Two neighbouring rows at a time, around 2 x 2 elements, through the columns and back for the next two.

    Neighbours share a[i] and b[j] alternately, and each a[i] is used again every second time: where the reuse cache
    keeps an operand for each bank, both stay in it.
    """
    order: list[tuple[int, int]] = []
    for top in range(0, m, 2):
        columns = range(n) if top % 4 == 0 else reversed(range(n))
        for step, j in enumerate(columns):
            order += [(top + (i if step % 2 == 0 else 1 - i), j) for i in range(2)]
    return tuple(order)


def column_pairs(m: int, n: int) -> Order:
    """Two neighbouring columns at a time, down and up through all rows but the last, which comes at the end.

    For the assembler's level 1. That keeps the order as written but for one thing: it draws together the last few
    uses of a register that is not needed any more. Here the last use of each b[j] is its one FFMA in the last row.
    """
    return _column_groups(m, n, 2, m - 1)


def column_quads(m: int, n: int) -> Order:
    """Four neighbouring columns at a time, down and up through all rows but the last two, which come at the end.

    For the assembler's level 1, as `column_pairs` is: the fours are the vectors in which the columns are loaded.
    """
    return _column_groups(m, n, 4, max(m - 2, 0))


def _column_groups(m: int, n: int, width: int, top: int) -> Order:
    """`width` columns at a time, down and up through the first `top` rows; then the others, one after the other."""
    order: list[tuple[int, int]] = []
    for number, left in enumerate(range(0, n, width)):
        columns = range(left, left + width)
        down = range(top) if number % 2 == 0 else reversed(range(top))
        for step, i in enumerate(down):
            order += [(i, j) for j in (columns if step % 2 == 0 else reversed(columns))]
    for step, i in enumerate(range(top, m)):
        order += [(i, j) for j in (reversed(range(n)) if step % 2 == 0 else range(n))]
    return tuple(order)


_FUNCTIONS: tuple[Callable[[int, int], Order], ...] = (rows, serpentine, spiral, pairs, column_pairs, column_quads)
ORDERS = {order.__name__: order for order in _FUNCTIONS}
"""By the names that `outer_fma` takes."""

BLOCKS = {"spiral": (8, 8), "pairs": (2, 1), "column_pairs": (1, 2), "column_quads": (1, 4)}
"""What m and n have to be multiples of, where that is not 1."""
