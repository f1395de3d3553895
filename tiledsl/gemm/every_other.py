"""Results of which every other row begins within one of L2's sectors of 32 bytes.

Pieces of these rows, as of others, would begin and end within sectors, which several stores then write in part, and
such sectors are read from memory first. So the result is two matrices of a batch, each of every other row. Tiles of the
second begin `shift` columns before it, at the start of a sector. TMA loads zeros there, but cannot store there: threads
store the first piece.
"""

from __future__ import annotations

from typing import Any

from tiledsl import WorkItem, tile_function


@tile_function
def shifted(t: Any, shift: int) -> Any:
    """The item, whose tile of the second matrix begins `shift` columns earlier."""
    return WorkItem(m=t.m, n=t.n + -t.batch * shift, k=t.k, batch=t.batch)
