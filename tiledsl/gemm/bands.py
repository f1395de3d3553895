"""The order in which CTAs take the tiles of a result."""

from __future__ import annotations

from tiledsl import index, minimum, tile_function

__all__ = ["in_bands"]


@tile_function
def in_bands(i: index, rows: index, columns: index, height: int) -> tuple[index, index]:
    """Row and column of tile number i; tiles are numbered in bands of `height` rows, column by column within a band."""
    band, within = i // (height * columns), i % (height * columns)
    here = minimum(rows - band * height, height)
    return band * height + within % here, within // here
