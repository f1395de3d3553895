"""Products whose k is split within one launch, for kernels whose threads hold their sums in registers.

The first `whole` tiles of the result have one CTA each, the others `parts` CTAs, each with a part of k: so the last
wave of a large product is shared by all SMs, and a product of few tiles has enough CTAs. Parts are whole numbers of BK
that differ by one at most. The CTAs of such a tile meet to add up their sums (`parts.py`).
"""

from __future__ import annotations

from typing import Any

from tiledsl.lang.schedules import cdiv_any, unwrapped

__all__ = ["blocks", "part_of", "placed"]


@unwrapped
def blocks(count: Any, whole: Any, parts: Any) -> Any:
    """CTAs of `count` tiles."""
    return min(whole, count) + max(count - whole, 0) * parts


@unwrapped
def placed(block: Any, count: Any, whole: Any, parts: Any) -> Any:
    """The tile of a CTA, and its part of k. Those of one tile are neighbours, so that they run at the same time."""
    rest = max(block - whole, 0)
    return min(min(block, whole) + rest // parts, count - 1), rest % parts


@unwrapped
def part_of(depth: Any, bk: int, part: Any, parts: Any) -> Any:
    """Where part number `part` of k begins and ends."""
    steps = cdiv_any(depth, bk)
    # The first minimum says no more than the interval analysis needs: a part begins inside k.
    return min(part * steps // parts, depth // bk) * bk, min((part + 1) * steps // parts * bk, depth)
