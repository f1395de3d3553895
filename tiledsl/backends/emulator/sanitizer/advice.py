"""What to say of two accesses to global memory that nothing orders: the edge that is missing, and how to add it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tiledsl.errors import Accessed, HazardError, Loc, Side


class Edge(NamedTuple):
    """One that is missing: `code` of the finding, its `name` (`findings.EDGES`), what to say of it, the fix."""

    code: str
    name: str
    text: str
    fix: str


def race(side: Side, memory: Accessed, other: Side | None, edge: Edge, text: str = "") -> HazardError:
    """`side` accesses what `other` did before. text: what is said of that, if not who did what where."""
    text = text or (f"which {other.who} {other.does} at {other.loc}, {edge.text}" if other is not None else edge.text)
    message = f"race: {side.who} {side.does} {memory} at {side.loc}, {text}"
    sides = (side,) if other is None else (side, other)
    return HazardError(message, side.loc, edge.fix, code=edge.code, sides=sides, memory=memory, missing=edge.name)


@dataclass(frozen=True, slots=True)
class Relation:
    """Of two threads and their accesses. same_rank: are they on one GPU? open: the earlier one goes on until somebody
    waits for it. by_tma: it was made by TMA. atomic: is this one, is the earlier one?"""

    same_warp: bool
    same_block: bool
    same_cluster: bool
    same_launch: bool
    same_rank: bool
    both_write: bool
    open: bool
    by_tma: bool
    atomic: tuple[bool, bool]


NARROW = Edge(
    "T102",
    "scope",
    "and the arrival between the two has the scope of a block, which orders shared memory alone",
    'leave out scope="cta" of the arrival at the mbarrier and of the wait',
)


def of(relation: Relation) -> Edge:
    """In global memory."""
    edge = _waited(relation) if relation.open else _ordered(relation)
    if all(relation.atomic):
        fix = 'give both a scope that includes the other thread: scope="gpu" for those of all blocks'
        if not relation.same_rank:
            fix = 'give both scope="sys", which includes the threads of other GPUs'
        return Edge("T103", "scope", "and the scope of one of the two leaves out the other thread", fix)
    return edge._replace(fix=edge.fix + "; or make both atomic") if any(relation.atomic) else edge


def _waited(relation: Relation) -> Edge:
    if relation.by_tma:
        return Edge(
            "T107",
            "store-wait",
            "and no wait for that store orders the two",
            "let its thread wait until the store has ended (tma_commit(), tma_wait(0); read=True waits for the source "
            "alone), and let others know; or let no two stores have elements in common",
        )
    return Edge(
        "T107",
        "copy-wait",
        "and no wait for that copy orders the two",
        "let its thread wait for the copy before the element is written, and let others know by a barrier()",
    )


def _ordered(relation: Relation) -> Edge:
    once = "let one thread write the element, or " if relation.both_write and not any(relation.atomic) else ""
    if relation.same_warp:
        fix = once + "put a syncwarp() between the two"
        return Edge("T102", "syncwarp", "with no syncwarp() between the two", fix)
    if relation.same_block:
        fix = "put a barrier() between the two, or let the one wait for the other at an mbarrier"
        return Edge("T102", "barrier", "with no barrier of the block between the two", once + fix)
    if relation.same_cluster:
        return Edge(
            "T102",
            "cluster-barrier",
            "with no barrier of the cluster between the two",
            "put ptx.cluster_arrive() and ptx.cluster_wait() between the two, or let the one block arrive at an "
            "mbarrier of the other (rank=), which waits there",
        )
    release = (
        'let the block that comes first release (barrier(), then one thread: an atomic operation with order="release", '
        'or fence() and a relaxed one) and the other acquire what it wrote there (order="acquire", then barrier())'
    )
    if not relation.same_rank:
        release += ', both with scope="sys", as they are on different GPUs'
        text = 'with no release there of scope="sys" that is acquired here with that scope'
        return Edge("T102", "release-acquire", text, release)
    if not relation.same_launch:
        return Edge("T102", "release-acquire", "with no release there that is acquired here", release)
    if relation.both_write:
        fix = f"let one block write each element: check its tile's origin, and its guards; or {release}"
    else:
        fix = f"{release}; or write in one kernel and read in the next"
    return Edge("T102", "release-acquire", "with no release there that is acquired here", fix)


def fenced_early(loc: Loc, same_rank: bool) -> Edge:
    """Return the edge where the writer made a fence at `loc` before a barrier, and another thread then signaled."""
    scope, both = ("", "") if same_rank else ('"sys"', ', both with scope="sys", as they are on different GPUs')
    return Edge(
        "T102",
        "release-acquire",
        f"with no release there that is acquired here: the fence at {loc} comes before the barrier, after which "
        "another thread signals, and a fence makes a release of later writes of its own thread alone",
        f"put the fence after the barrier, in the thread that signals: barrier(), then `if t == 0: fence({scope}); "
        "flag.atomic_store(0, 1)`; or let it release: barrier(), then `if t == 0: flag.atomic_store(0, 1, "
        f'order="release")`{both}',
    )


def proxies(reads: bool) -> Edge:
    """TMA meets what threads have written in the same run."""
    return Edge(
        "T105",
        "proxy-fence",
        "with no proxy fence for global memory between the two",
        'let the thread that starts TMA execute fence_proxy_async("global") after it has waited for them; or let '
        f"threads {'load' if reads else 'store'} it, too, or write it by TMA or in an earlier launch",
    )


# -- in shared memory ------------------------------------------------------------------------------

MBARRIER = Edge("T108", "", "where a live mbarrier is", "leave mbarriers to their own operations")
DELIVERY = Edge(
    "T106",
    "copy-wait",
    "has not delivered",
    "wait for the copy (its group, or the mbarrier that counts its bytes); then others need a barrier()",
)
READING = Edge(
    "T107",
    "read-wait",
    "may still read",
    "let that warp wait for it (wgmma_wait, tma_wait), and let this one know: at an mbarrier or a barrier",
)
PROXY = Edge(
    "T104",
    "proxy-fence",
    "with no proxy fence since",
    "let the threads that did so execute fence_proxy_async() before they arrive where this one waits",
)


LANES = Edge(
    "T101",
    "syncwarp",
    "and another lane of its warp has arrived without waiting for it",
    "put a syncwarp() before one lane arrives for its warp, or let all lanes arrive",
)


def unordered(by_thread: bool, same_warp: bool, one_atomic: bool) -> Edge:
    """by_thread: the earlier access, not by a copy. one_atomic: one of the two is, the other is not."""
    name = "syncwarp" if same_warp else "barrier" if by_thread else "mbarrier-wait"
    fix = "put a barrier() between the two, or let the one wait for the other at an mbarrier"
    return Edge("T101", name, "and nothing orders the two", fix + ", or make both atomic" * one_atomic)
