"""Results of which every other row begins within one of L2's sectors of 32 bytes.

Pieces of these rows, as of others, would begin and end within sectors, which several stores then write in part, and
such sectors are read from memory first. So the result is two matrices of a batch, each of every other row. Tiles of the
second begin `shift` columns before it, at the start of a sector. TMA loads zeros there, but cannot store there: threads
store the first piece.
"""

from __future__ import annotations

from typing import Any

from tiledsl import Place, WorkItem
from tiledsl.gemm.split_k import part_count, part_item
from tiledsl.lang.schedules import unwrapped


@unwrapped
def other_count(
    place: Place, m: Any, n: Any, k: Any, sizes: Any, band: Any, batches: Any, parts: int, groups: Any, shift: Any
) -> Any:
    """As `part_count`."""
    return part_count(place, m, n + shift, k, sizes, band, batches, parts, groups)


@unwrapped
def other_item(
    i: Any,
    place: Place,
    m: Any,
    n: Any,
    k: Any,
    sizes: Any,
    band: Any,
    batches: Any,
    parts: int,
    groups: Any,
    shift: Any,
) -> Any:
    """As `part_item`."""
    t = part_item(i, place, m, n + shift, k, sizes, band, batches, parts, groups)
    return WorkItem(m=t.m, n=t.n + -t.batch * shift, k=t.k, batch=t.batch)
