"""Tensor memory access: one thread moves whole tiles between global and shared memory, in the background.

The runtime describes a tensor to the hardware by tensor maps, which it makes from the kernel's own declarations. What
that needs: the axis of stride 1 runs along the rows of the tile, and the address and the other strides are multiples of
16 bytes.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from tiledsl.lang.dtypes import Scalar, u64
from tiledsl.lang.fragments import Fragment
from tiledsl.lang.memory import Extent, Global, Memory
from tiledsl.lang.misuse import only_in_kernel

__all__ = ["store_tma", "tma_commit", "tma_load", "tma_prefetch", "tma_wait"]

D = TypeVar("D", bound=Scalar)

Hint = Literal["", "evict_first", "evict_last"]


def tma_load(
    src: Memory[D],
    dst: Memory[D],
    multicast: Literal["", "m", "n"] = "",
    hint: Hint = "",
    mbarrier: tuple[Memory[u64], Extent] | None = None,
    every: int = 1,
    first: int = 0,
) -> None:
    """``tma_load(A[t.m, k], s.a)``: begins to fill a shared tile from a view of a `Global` of its shape and dtype.

    One thread executes it. Elements past the edge arrive as 0. In ``with ring.fill()`` the bytes count at the slot's
    barrier; elsewhere at ``mbarrier=(bars, i)``, which must expect them. The tile has the layout `row_major` or one of
    `swizzle_128b`, `swizzle_64b`, `swizzle_32b`. Outside of rings, threads that have read or written it themselves have
    made a `ptx.fence_proxy_async` before.

    multicast: "m" (or "n"): the blocks of the cluster that are neighbours along m (along n) need the same tile: each
    loads its share of the rows, and all of them get it. hint: what becomes of the lines in the L2 cache. every, first:
    compile-time; row i of the view is row first + every * i of the tensor. TMA asks for strides of whole 16 bytes, and
    the stride of every n-th row may be such a one where that of the rows is not: every=16 // A.align. Boxes begin at
    multiples of 16 bytes, too: such a view begins at the last one at or before its first element.
    (PTX ISA: cp.async.bulk.tensor.)
    """
    raise only_in_kernel("tma_load()")


def store_tma(src: Memory[D] | Fragment[D], dst: Memory[D], via: Memory[D] | None = None, in_flight: int = 0) -> None:
    """``store_tma(acc.wait().to(bf16), C[t.m, t.n], via=out)``: a fragment to a view of a `Global`, in the background.

    via: a shared tile of rows x W or, as several buffers, n x rows x W, through which the fragment goes, W columns at a
    time; where there are several warps along n, all at once: W is the fragment's width. The threads that hold the
    fragment wait until the buffers have been read, write their part (stmatrix, where that is possible), and one of
    them, the role's first, begins the store. Nothing waits for its end: that is done before the role (or the kernel)
    ends. in_flight: how many of the last calls used other buffers, whose stores need not have read them yet.

    ``store_tma(S, C[m, n])`` begins to write a shared tile. One thread executes it, after a proxy fence and a barrier;
    it belongs to this thread's next `tma_commit`. Nothing is written past the edge. (PTX ISA: cp.async.bulk.tensor.)
    """
    raise only_in_kernel("store_tma()")


def tma_commit() -> None:
    """The stores that this thread has begun since its last group are a group. (PTX ISA: cp.async.bulk.commit_group.)"""
    raise only_in_kernel("tma_commit()")


def tma_wait(pending: int = 0, read: bool = False) -> None:
    """Wait until at most the last `pending` groups of this thread are in flight. read: until the others have read
    their tiles, which may then be written again. Both are compile-time. (PTX ISA: cp.async.bulk.wait_group.)"""
    raise only_in_kernel("tma_wait()")


def tma_prefetch(tensor: Global[Any, *tuple[Any, ...]]) -> None:
    """Brings the tensor maps of a `Global` near, so that the first `tma_load` finds them. One thread executes it.

    (PTX ISA: prefetch.tensormap.)
    """
    raise only_in_kernel("tma_prefetch()")
