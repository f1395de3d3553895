"""Orders in which the elements of an m x n outer product can be computed, as (row, column) places."""

from __future__ import annotations

from typing import Callable

__all__ = ["ORDERS", "Order", "rows", "serpentine", "spiral"]

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


ORDERS: dict[str, Callable[[int, int], Order]] = {"rows": rows, "serpentine": serpentine, "spiral": spiral}
"""By the names that `outer_fma` takes. The spiral needs multiples of 8."""
