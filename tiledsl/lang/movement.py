"""Movement of tiles by the whole block."""

from __future__ import annotations

from tiledsl.lang.memory import D, Memory
from tiledsl.lang.misuse import only_in_kernel

__all__ = ["copy"]


def copy(src: Memory[D], dst: Memory[D], vec: int = 16) -> None:
    """``copy(A[m, k], As)``: all threads of the block copy `src` to `dst`, of one dtype and shape.

    Elements past the edge of a `Global` are read as 0 and not written. vec: bytes of one access (2, 4, 8,
    16, or one element's) along the axis of stride 1, which must be provably aligned. If that is another
    axis of `src` than of `dst`, as for ``copy(A[m, k], As.T)``, one side is accessed in vectors (the
    `Global` one) and the other one by elements. The threads must divide the number of accesses. No
    barrier is implied: place one before other threads read `dst`. (PTX ISA: ld, st.)
    """
    raise only_in_kernel("copy()")
