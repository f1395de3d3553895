"""What to say of two accesses to global memory that nothing orders: the edge that is missing, and how to add it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Relation:
    """Of two threads and their accesses. open: the earlier one goes on until somebody waits for it. by_tma: it was made
    by TMA. atomic: is this one, is the earlier one?"""

    same_warp: bool
    same_block: bool
    same_cluster: bool
    both_write: bool
    open: bool
    by_tma: bool
    atomic: tuple[bool, bool]


def of(relation: Relation) -> tuple[str, str]:
    """The missing edge, and the fix."""
    missing, fix = _waited(relation) if relation.open else _ordered(relation)
    if all(relation.atomic):
        fix = 'give both a scope that includes the other thread: scope="gpu" for those of all blocks'
        return "and the scope of one of the two leaves out the other thread", fix
    return missing, fix + ("; or make both atomic" if any(relation.atomic) else "")


def _waited(relation: Relation) -> tuple[str, str]:
    if relation.by_tma:
        return (
            "and no wait for that store orders the two",
            "let its thread wait until the store has ended (tma_commit(), tma_wait(0); read=True waits for the source "
            "alone), and let others know; or let no two stores have elements in common",
        )
    return (
        "and no wait for that copy orders the two",
        "let its thread wait for the copy before the element is written, and let others know by a barrier()",
    )


def _ordered(relation: Relation) -> tuple[str, str]:
    once = "let one thread write the element, or " if relation.both_write and not any(relation.atomic) else ""
    if relation.same_warp:
        return "with no syncwarp() between the two", once + "put a syncwarp() between the two"
    if relation.same_block:
        fix = "put a barrier() between the two, or let the one wait for the other at an mbarrier"
        return "with no barrier of the block between the two", once + fix
    if relation.same_cluster:
        return (
            "with no barrier of the cluster between the two",
            "put ptx.cluster_arrive() and ptx.cluster_wait() between the two, or let the one block arrive at an "
            "mbarrier of the other (rank=), which waits there",
        )
    missing = "with no release there that is acquired here"
    release = (
        'let the block that comes first release (barrier(), then one thread: an atomic operation with order="release", '
        'or fence() and a relaxed one) and the other acquire what it wrote there (order="acquire", then barrier())'
    )
    if relation.both_write:
        return missing, f"let one block write each element: check its tile's origin, and its guards; or {release}"
    return missing, f"{release}; or write in one kernel and read in the next"


def proxies(reads: bool) -> tuple[str, str]:
    """TMA meets what threads have written in the same launch."""
    return (
        "with no proxy fence for global memory between the two",
        f"let threads {'load' if reads else 'store'} it, too, or write it by TMA or in an earlier launch: the language "
        "has no proxy fence for global memory",
    )
