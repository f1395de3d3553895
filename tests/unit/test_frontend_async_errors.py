"""Wrong asynchronous copies, tokens, groups and pipelined loops.

One error each, at the line that carries ``# error: <text>``; a kernel may hold several such lines.
"""

from __future__ import annotations

from typing import Any

import pytest
from refused import Refused, check

from tiledsl import (
    Global,
    Token,
    barrier,
    copy,
    copy_async,
    f16,
    f32,
    f64,
    fragment,
    grid,
    i32,
    pipelined,
    ptx,
    shared,
    threads,
    tile_function,
    tile_kernel,
    tiles,
    unroll,
    wait,
)
from tiledsl.dims import M, N

bad = Refused()

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportOptionalSubscript=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportAttributeAccessIssue=false


# -- copies ----------------------------------------------------------------------------------------


@bad("use copy()")
@tile_kernel
def other_ways(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    S, T = shared((16, 8), f32), shared((16, 8), f32)
    t = copy_async(S, A[0:16, 0:8])  # error: goes from a Global to a shared tile, this one from S (shared<f32
    u = copy_async(S, T)  # error: copy_async() goes from a Global to a shared tile
    wait(t, u)


@bad("possible widths, in bytes: 4, 8, 16")
@tile_kernel
def widths(A: Global[f16, M, N], D: Global[f64, M, N]):
    grid(1)
    threads(32)
    S, T = shared((16, 8), f16), shared((16, 8), f64)
    t = copy_async(A[0:16, 0:8], S, vec=2)  # error: copy_async() with vec=2 on elements of 2 bytes
    u = copy_async(D[0:16, 0:8], T, vec=4)  # error: copy_async() with vec=4 on elements of 8 bytes
    wait(t, u)


@bad("both sides have one shape")
@tile_kernel
def shapes(A: Global[f16, M, N], B: Global[f32, M, N]):
    grid(1)
    threads(32)
    S = shared((16, 8), f16)
    t = copy_async(A[0:16, 0:16], S)  # error: copy_async() between different shapes: 16 x 16 and 16 x 8
    u = copy_async(B[0:16, 0:8], S)  # error: copy_async() from f32 to f16: it moves elements as they are
    v = copy_async(A, S)  # error: copy_async() of A, whose shape M x N is only known at run time
    w = copy_async(fragment((16, 8), f16), S)  # error: copy_async() takes memory as src, got fragment<f16, [16, 8]>
    wait(t, u, v, w)


# -- tokens ----------------------------------------------------------------------------------------


@bad("token = copy_async(src, dst), then wait(token) where the tile is needed")
@tile_kernel
def token_dropped(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    S = shared((16, 8), f32)
    copy_async(A[0:16, 0:8], S)  # error: this copy_async() is never waited for, so its tile


@tile_function
def fetched(A: Any, S: Any) -> Token:
    return copy_async(A[0:16, 0:8], S)


@bad("t = copy_async(...); wait(t)")
@tile_kernel
def waits_for_something_else(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    S = shared((16, 8), f32)
    t = copy_async(A[0:16, 0:8], S)
    wait()  # error: wait() for nothing
    wait(S)  # error: wait() takes tokens of copy_async(), got the tile S
    wait(0)  # error: wait() takes tokens of copy_async(), got the compile-time value 0
    wait([t, t])  # error: wait() takes tokens of copy_async(), got a list of length 2
    wait(t)


@bad("wait for it: wait(token)")
@tile_kernel
def arithmetic_on_tokens(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    S = shared((16, 8), f32)
    t = copy_async(A[0:16, 0:8], S)
    A[0, 0] = t + 1  # error: + is not defined for the token of a copy_async()
    A[0, 1] = f32(t)  # error: cannot convert the token of a copy_async() to f32
    A[0, 2] = t  # error: the value stored to A must be f32, it is the token of a copy_async()
    if t:  # error: a condition must be a bool, it is the token of a copy_async()
        A[0, 3] = 0
    if t == t:  # error: == is not defined for the token of a copy_async()
        A[0, 4] = 0
    print(t)  # error: print() of the token of a copy_async()
    A[0, 5] = t.dtype(0)  # error: the token of a copy_async() has no attribute dtype
    wait(t)


@bad("have a token on every path")
@tile_kernel
def token_of_one_path(A: Global[f32, M, N]):
    i = grid(1)
    threads(32)
    S = shared((16, 8), f32)
    t = i32(0)
    if i > 0:
        t = copy_async(A[0:16, 0:8], S)
    wait(t)  # error: t is the token of a copy_async() on one path and i32 on the other


@bad("assign t before the `if`")
@tile_kernel
def token_of_a_branch(A: Global[f32, M, N]):
    i = grid(1)
    threads(32)
    S = shared((16, 8), f32)
    if i > 0:
        t = copy_async(A[0:16, 0:8], S)
    wait(t)  # error: t may be unbound: only one branch assigns it


@bad("have a token on every path")
@tile_kernel
def token_that_a_loop_changes(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    S = shared((16, 8), f32)
    t = copy_async(A[0:16, 0:8], S)
    for _ in range(4):  # error: t is the token of a copy_async() before the loop and the compile-time value 0
        wait(t)
        t = 0


@tile_function
def fetched_if(A: Any, S: Any, i: Any) -> Any:
    if i > 0:
        return copy_async(A[0:16, 0:8], S)


@bad("return it on every path, or wait for it first")
@tile_kernel
def token_returned_on_one_path(A: Global[f32, M, N]):
    i = grid(1)
    threads(32)
    S = shared((16, 8), f32)
    wait(fetched_if(A, S, i))  # error: the token of a copy_async() is returned on some paths only


# -- groups ----------------------------------------------------------------------------------------


@bad("in flight, a compile-time int: 0 waits for all")
@tile_kernel
def groups_counted_wrongly(A: Global[f32, M, N]):
    i = grid(1)
    threads(32)
    ptx.wait_group(-1)  # error: ptx.wait_group(): pending is a compile-time int of 0 or more, got -1
    ptx.wait_group(i)  # error: ptx.wait_group(): pending is a compile-time int of 0 or more, got index


@bad("possible widths, in bytes: 4, 8, 16")
@tile_kernel
def raw_copies(A: Global[f32, M, N], H: Global[f16, M, N]):
    grid(1)
    t = threads(32)
    S = shared((32, 8), f32)
    ptx.cp_async(S, (t, 0), A, (t, 0), 12)  # error: ptx.cp_async() with bytes=12 on elements of 4 bytes
    ptx.cp_async(S, (t, 0), H, (t, 0))  # error: ptx.cp_async() from f16 to f32
    ptx.cp_async(A, (t, 0), S, (t, 0))  # error: ptx.cp_async() takes a shared tile as dst, got the tile A (global<f32,
    ptx.cp_async(S, (t, 0), S, (t, 0))  # error: ptx.cp_async() takes a Global as src, got the tile S (shared<f32, [32,
    ptx.cp_async(S, t, A, (t, 0))  # error: S has 2 axes, got 1 indices
    ptx.cp_async(S, (t, 0), A[:, 0], t)  # error: along the axis of stride 1 of A, which this view has dropped


# -- pipelined loops -------------------------------------------------------------------------------


@bad("call it as pipelined(loop")
@tile_kernel
def other_arguments_of_pipelined(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    for k in pipelined(tiles(N, 8)):  # error: missing a required argument: 'stages'
        A[0, k.start] = 0
    for k in pipelined(tiles(N, 8), 3):  # error: too many positional arguments
        A[0, k.start] = 0


@bad("write `for k in pipelined(tiles(K, BK), stages=3)`")
@tile_kernel
def stages_of_another_kind(A: Global[f32, M, N]):
    i = grid(1)
    threads(32)
    for k in pipelined(tiles(N, 8), stages=0):  # error: stages is a compile-time int from 1 to
        A[0, k.start] = 0
    for k in pipelined(tiles(N, 8), stages=i):  # error: stages is a compile-time int from 1 to
        A[0, k.start] = 0
    for k in pipelined(tiles(N, 8), stages=2, fragments=3):  # error: fragments is a compile-time int from 0 to 2, got
        A[0, k.start] = 0
    for k in pipelined(unroll(4), stages=2):  # error: pipelined() on a list of length 4
        A[0, k] = 0
    for k in pipelined(A, stages=2):  # error: pipelined() on the tile A
        A[0, k] = 0


@bad("leave pipelined() out")
@tile_kernel
def loops_that_are_left(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    for k in pipelined(range(4), stages=2):  # error: pipelined() on a loop that `break` or `return` may leave
        if A[k, 0] > 0:
            break
    for k in pipelined(range(4), stages=2):  # error: pipelined() on a loop that `break` or `return` may leave
        if A[k, 0] > 0:
            return


@bad("pipeline one of them: the inner one, as a rule")
@tile_kernel
def pipelined_in_pipelined(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    S = shared((16, 8), f32)
    for m in pipelined(tiles(M, 16), stages=2):
        for k in pipelined(tiles(N, 8), stages=2):  # error: a pipelined loop inside the one of line
            copy_async(A[m, k], S)


@bad("leave the wait out; or leave pipelined() out")
@tile_kernel
def tokens_in_a_pipelined_loop(A: Global[f32, M, N]):
    grid(1)
    t = threads(32)
    S = shared((16, 8), f32)
    for k in pipelined(tiles(N, 8), stages=2):
        token = copy_async(A[0:16, k], S)
        wait(token)  # error: a copy_async() in a pipelined loop has no token: the loop waits for it
        A[0, k.start] = S[t, 0]


@bad("place groups, waits and barriers yourself")
@tile_kernel
def groups_in_a_pipelined_loop(A: Global[f32, M, N], C: Global[f32, M, N]):
    grid(1)
    t = threads(32)
    S, T = shared((32, 8), f32), shared((16, 8), f32)
    done = copy_async(A[0:16, 0:8], T)
    for k in pipelined(tiles(N, 8), stages=2):
        copy_async(A[0:32, k], S)
        wait(done)  # error: wait() inside a pipelined loop, which commits and waits by itself
        ptx.cp_async(T, (t, 0), A, (t, k.start))  # error: ptx.cp_async() inside a pipelined loop
        ptx.commit_group()  # error: ptx.commit_group() inside a pipelined loop
        ptx.wait_group(0)  # error: ptx.wait_group() inside a pipelined loop
        C[0, k.start] = S[t, 0]


@bad("wait for it before the loop, and take no tokens in its body")
@tile_kernel
def token_carried_by_a_pipelined_loop(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    S, T = shared((16, 8), f32), shared((16, 8), f32)
    token = copy_async(A[0:16, 0:8], T)
    for k in pipelined(tiles(N, 8), stages=2):  # error: a pipelined loop cannot carry token, the token of a copy_
        token = copy_async(A[0:16, k], S)  # noqa: F841 - that is the mistake
    barrier()
    copy(T, A[0:16, 0:8])


@bad("use another name in the body")
@tile_kernel
def wait_after_a_pipelined_loop_that_failed(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    S, T = shared((16, 8), f32), shared((16, 8), f32)
    token, x = copy_async(A[0:16, 0:8], T), f32(0)
    for k in pipelined(tiles(N, 8), stages=2):  # error: x is f32 before the loop and f16 at the end of its body
        copy_async(A[0:16, k], S)
        x = x.to(f16)
    wait(token)
    A[0, 0] = x


@pytest.mark.parametrize(("kernel", "fix"), bad.cases, ids=bad.names)
def test_error_at_its_line(kernel: Any, fix: str) -> None:
    check(kernel, fix)
