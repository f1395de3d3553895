"""Movement of tiles by the whole block, at once or in the background."""

from __future__ import annotations

from tiledsl.lang.memory import D, Memory
from tiledsl.lang.misuse import only_in_kernel

__all__ = ["Token", "copy", "copy_async", "wait"]


class Token:
    """A `copy_async` in flight. Loops and branches carry it; `wait` is all that it is for."""


def copy(src: Memory[D], dst: Memory[D], vec: int = 16) -> None:
    """``copy(A[m, k], As)``: all threads of the block copy `src` to `dst`, of one dtype and shape.

    Elements past the edge of a `Global` are read as 0 and not written. vec: bytes of one access (2, 4, 8,
    16, or one element's) along the axis of stride 1, which must be provably aligned. If that is another
    axis of `src` than of `dst`, as for ``copy(A[m, k], As.T)``, one side is accessed in vectors (the
    `Global` one) and the other one by elements. The threads must divide the number of accesses. No
    barrier is implied: place one before other threads read `dst`. (PTX ISA: ld, st.)
    """
    raise only_in_kernel("copy()")


def copy_async(src: Memory[D], dst: Memory[D], vec: int = 16) -> Token:
    """``token = copy_async(A[m, k], As)``: like `copy`, from a `Global` to a shared tile, while the threads go on.

    No register holds what is in flight. Nothing may be read from `dst`, or written there, before ``wait(token)`` and a
    barrier. Past the edge zeros arrive. vec: bytes of one access, 4, 8 or 16, along the axis of stride 1, which is the
    same one of both sides, so that it cannot transpose. In a `pipelined` loop there is no token: the loop waits. (PTX
    ISA: cp.async.)
    """
    raise only_in_kernel("copy_async()")


def wait(*tokens: Token) -> None:
    """Wait until what this thread copied under `tokens` has arrived; a `barrier` behind it shows the block all of it.

    Every token is waited for, on every path. (PTX ISA: cp.async.wait_group.)
    """
    raise only_in_kernel("wait()")
