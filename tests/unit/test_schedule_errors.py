"""Schedules that are wrong. One error each, at the line that carries ``# error: <text>``; a kernel may hold several."""

from __future__ import annotations

from typing import Any

import pytest
from refused import Refused, check

from tiledsl import (
    Const,
    Global,
    Place,
    Ring,
    Schedule,
    WorkItem,
    bf16,
    cdiv,
    f32,
    grid,
    i32,
    index,
    lane_id,
    persistent,
    role,
    shared,
    swizzle_128b,
    threads,
    tile,
    tile_function,
    tile_kernel,
    tile_schedule,
    tiles,
    tma_load,
    warp_id,
)
from tiledsl.dims import K, M, N
from tiledsl.errors import CompileErrors

bad = Refused()

# ruff: noqa: F841, B007
# pyright: basic, reportArgumentType=false, reportCallIssue=false


@tile_function
def count(place: Place, rows: Any) -> Any:
    return cdiv(rows, 64)


@tile_function
def item(i: Any, place: Place, rows: Any) -> Any:
    return WorkItem(m=tile(i, 64))


@tile_function
def own_ring() -> Any:
    return Ring(2, a=shared((64, 64), bf16, layout=swizzle_128b))


# -- its functions ---------------------------------------------------------------------------------


def of_python(place: Place, rows: Any) -> Any:
    return 1


@bad("@tile_function above def item(i, place, ...)")
@tile_kernel
def no_tile_functions(A: Global[f32, M]):
    threads(32)
    Schedule(of_python, item, M)  # error: Schedule(): count is a tile function, got a compile-time function
    Schedule(count, M, M)  # error: Schedule(): item is a tile function, got index


@bad("call it as count(place: 'Place', rows: 'Any') -> 'Any'")
@tile_kernel
def other_arguments(A: Global[f32, M]):
    threads(32)
    Schedule(count, item)  # error: missing a required argument: 'rows'
    Schedule(count, item, M, 64)  # error: too many positional arguments
    Schedule(count, count, M)  # error: too many positional arguments


@tile_function
def pair(i: Any, place: Place, rows: Any) -> Any:
    return tile(i, 64), rows


@bad("return WorkItem(m=tile(i, BM), n=tile(j, BN), k=tiles(K, BK))")
@tile_kernel
def an_item_that_is_none(A: Global[f32, M]):
    threads(32)
    work = persistent(Schedule(count, pair, M))  # error: pair() gives a tuple of length 2, not a work item
    for t in work:
        A[t.m.start] = 0


@tile_function
def numbered(i: Any, place: Place, rows: Any) -> Any:
    return WorkItem(index=2 * i)


@tile_function
def half(place: Place, rows: Any) -> Any:
    return f32(rows) / 2


@tile_function
def nothing(place: Place, rows: Any) -> None:
    pass


@bad("convert it: index(...)")
@tile_kernel
def a_count_that_is_no_index(A: Global[f32, M]):
    threads(32)
    first, second = Schedule(half, item, M), Schedule(nothing, item, M)  # error: count that half() gives must be index
    persistent(first)
    for t in second:
        A[t.m.start] = 0


@tile_function
def misspelt(i: Any, place: Place, rows: Any) -> Any:
    return WorkItem(m=tile(i, size))  # noqa: F821  # pyright: ignore


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (misspelt, "the name size is not defined"),
        (numbered, "WorkItem(index=...): .index is the number that every item"),
    ],
)
def test_what_is_wrong_in_a_function_is_said_there_once(function: Any, message: str) -> None:
    """Two roles ask for items; the function has the mistake."""

    @tile_kernel(arch="sm_90a")
    def kernel(A: Global[bf16, M, K], *, ITEM: Const[Any]):
        work = persistent(Schedule(count, ITEM, M))
        with role("one"):
            for t in work:
                A[t.m.start, 0] = 0
        with role("other"):
            for t in work:
                A[t.m.start, 1] = 0

    with pytest.raises(CompileErrors) as caught:
        kernel.compile(ITEM=function)
    assert {error.message for error in caught.value.errors} == {caught.value.errors[0].message}
    assert message in caught.value.errors[0].message
    assert f"in {function.name}(), called here" in str(caught.value)


# -- where it stands -------------------------------------------------------------------------------


@bad("make it at the kernel's top level")
@tile_kernel
def under_a_condition(A: Global[f32, M], n: i32):
    threads(32)
    grid(1)
    if n > 0:
        work = Schedule(count, item, M)  # error: Schedule() under a run-time condition, in a loop or in a role


@bad("work = persistent(...), and go through what that gives")
@tile_kernel
def the_one_that_is_not_persistent(A: Global[f32, M]):
    threads(32)
    work = tile_schedule(M, 1, 1, tile=(64, 1, 1))
    stays = persistent(work)
    for t in work:  # error: this schedule is not persistent, and the kernel has the grid of one that is
        A[t.m.start] = 0


# -- what all threads agree on ---------------------------------------------------------------------


@tile_function
def rows_of_lanes(i: Any, place: Place, rows: Any) -> Any:
    first = index(0)
    while first < i:
        first += lane_id()
    return WorkItem(m=tile(first, 64))


@tile_function
def lengths_of_warps(i: Any, place: Place, rows: Any) -> Any:
    return WorkItem(m=tile(i, 64), k=tiles(rows, 8, start=warp_id()))


@tile_function
def next_of_all(i: Any, place: Place, queue: Any) -> Any:
    return WorkItem(m=tile(index(queue.atomic_add(0, 1)), 64))


@tile_function
def read_by_lanes(i: Any, place: Place, queue: Any) -> Any:
    return WorkItem(m=tile(index(queue[lane_id()]), 64))


@bad("compute it from the item's number, extents, consts and memory that the kernel does not write")
@tile_kernel
def items_of_threads(A: Global[f32, M], Q: Global[i32, N]):
    threads(64)
    for t in persistent(Schedule(count, rows_of_lanes, M)):  # error: rows_of_lanes() gives as .m differs between the
        A[t.m.start] = 0


@bad("it depends on the warp's index")
@tile_kernel
def lengths_that_warps_do_not_agree_on(A: Global[f32, M]):
    threads(64)
    for t in Schedule(count, lengths_of_warps, M):  # error: lengths_of_warps() gives as .k differs between the threads
        A[t.m.start] = 0


@bad("it depends on the thread index along x")
@tile_kernel
def arguments_of_threads(A: Global[f32, M]):
    tid = threads(64)
    for t in Schedule(count, item, M + tid):  # error: what count() gives differs between the threads of a block
        A[t.m.start] = 0


@tile_function
def one(place: Place, queue: Any) -> Any:
    return 1


@bad("it depends on the old value that an atomic add returns")
@tile_kernel
def a_queue_that_each_thread_asks(A: Global[f32, M], Q: Global[i32, N]):
    threads(64)
    for t in Schedule(one, next_of_all, Q):  # error: what next_of_all() gives as .m differs between the threads
        A[t.m.start] = 0


@bad("it depends on the lane")
@tile_kernel
def a_table_that_each_lane_asks(A: Global[f32, M], Q: Global[i32, N]):
    threads(64)
    for t in Schedule(one, read_by_lanes, Q):  # error: what read_by_lanes() gives as .m differs between the threads
        A[t.m.start] = 0


# -- grids -----------------------------------------------------------------------------------------


@tile_function
def counted_in_memory(place: Place, sizes: Any) -> Any:
    return index(sizes[0])


@bad("persistent(...) has a block for each processor")
@tile_kernel
def a_count_that_the_host_does_not_know(A: Global[f32, M], Sizes: Global[i32, N]):
    threads(32)
    for t in Schedule(counted_in_memory, item, Sizes):  # error: how many items counted_in_memory() counts, the host
        A[t.m.start] = 0


# -- instances -------------------------------------------------------------------------------------


@bad("WorkItem(..., k=tiles(K, BK))")
@tile_kernel(arch="sm_90a")
def instances_without_k(A: Global[bf16, M, K]):
    work = persistent(Schedule(count, item, M))
    ring = own_ring()
    with role("math", instances=2):
        for t in work:  # error: the role math has instances, and work items without k
            A[t.m.start, 0] = 0


@bad("go through all items in one loop")
@tile_kernel(arch="sm_90a")
def instances_that_go_through_their_items_otherwise(A: Global[bf16, M, K], n: i32):
    """What one instance goes past is what the other one uses."""
    work = persistent(tile_schedule(M, 64, K, tile=(64, 64, 64)))
    ring = own_ring()
    with role("load", threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a)
    with role("math", instances=2) as math:
        if n > 0:
            for t in work:  # error: a loop over work items under a condition or in a loop, in the role math
                pass
        for t in work:
            for k in t.k:
                with ring.use() as s:  # error: which has 2 instances, outside of a turn: one could be a round
                    pass
            with math.turn("multiply"):
                if n > 1:
                    for k in t.k:
                        with ring.use() as s:  # error: outside of `for k in t.k` directly in `for t in work`
                            pass
                for k in tiles(K, 64):
                    with ring.use() as s:  # error: outside of `for k in t.k` directly in `for t in work`
                        pass
                for k in t.k:
                    with ring.use() as s:
                        pass
                for k in t.k:
                    with ring.use() as s:  # error: a second ring.use() for one tile along k
                        pass
        for t in work:  # error: a second loop over work items in the role math, which has instances
            pass


@pytest.mark.parametrize(("kernel", "fix"), bad.cases, ids=bad.names)
def test_refused(kernel: Any, fix: str) -> None:
    check(kernel, fix)
