"""Wrong loads by TMA, rings, roles, clusters, schedules and pending accumulators.

One error each, at the line that carries ``# error: <text>``; a kernel may hold several such lines.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from refused import Refused, check

from tiledsl import (
    Cluster,
    Global,
    Ring,
    barrier,
    bf16,
    const,
    copy,
    copy_async,
    f16,
    f32,
    fragment,
    grid,
    i8,
    i32,
    index,
    lane_id,
    load_fragment,
    load_matrix,
    mma,
    padded,
    persistent,
    processors,
    ptx,
    role,
    row_major,
    shared,
    store,
    store_tma,
    swizzle_64b,
    swizzle_128b,
    threads,
    tile,
    tile_function,
    tile_kernel,
    tile_schedule,
    tma_commit,
    tma_load,
    tma_prefetch,
    tma_wait,
    u32,
    u64,
    warp_id,
    wgmma,
)
from tiledsl.dims import K, M, N
from tiledsl.errors import CompileErrors
from tiledsl.frontend import build
from tiledsl.signatures.specialize import assumed, check_consts

bad = Refused()

# ruff: noqa: F841, B007, SIM117
# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportOptionalSubscript=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportAttributeAccessIssue=false


# -- tma_load --------------------------------------------------------------------------------------


@bad("write it in `with ring.fill() as s:`, or pass mbarrier=(bars, i)")
@tile_kernel(arch="sm_90a")
def loads_without_barriers(A: Global[bf16, M, K]):
    grid(1)
    threads(128)
    S, bars = shared((64, 64), bf16, layout=swizzle_128b), shared((2,), u64)
    words = shared((2,), u32)
    tma_load(A[0:64, 0:64], S)  # error: tma_load() needs an mbarrier at which its bytes count
    tma_load(A[0:64, 0:64], S, mbarrier=bars)  # error: mbarrier= is a tile of u64 and an index, got the tile bars
    tma_load(A[0:64, 0:64], S, mbarrier=(words, 0))  # error: mbarriers are the elements of a shared tile of u64, got
    tma_load(A[0:64, 0:64], S, mbarrier=(bars, 2))  # error: index 2 is outside axis 0 of bars, whose extent is 2


@bad("shared(..., layout=swizzle_128b or swizzle_64b or swizzle_32b or row_major)")
@tile_kernel(arch="sm_90a")
def layouts_that_tma_does_not_write(A: Global[bf16, M, K]):
    grid(1)
    threads(128)
    bars = shared((1,), u64)
    S, P = shared((64, 64), bf16), shared((64, 64), bf16, layout=padded(72))
    narrow, wide = shared((64, 12), bf16, layout=row_major), shared((8, 512), bf16, layout=row_major)
    tma_load(A[0:64, 0:64], S, mbarrier=(bars, 0))  # error: S has no layout of its own: the compiler chooses one
    tma_load(A[0:64, 0:64], P, mbarrier=(bars, 0))  # error: tma_load(): P has the layout padded(72)
    tma_load(A[0:64, 0:12], narrow, mbarrier=(bars, 0))  # error: of 12 columns (24 bytes) of narrow in row order
    tma_load(A[0:8, 0:512], wide, mbarrier=(bars, 0))  # error: it takes all 512 of the tile, at most 256


@bad("make it 64 columns, or use swizzle_32b")
@tile_kernel(arch="sm_90a")
def swizzles_out_of_range(A: Global[bf16, M, K]):
    grid(1)
    threads(128)
    shared((64, 48), bf16, layout=swizzle_128b)  # error: swizzle_128b has panels of 64 columns (128 bytes), and 48 is
    shared((2, 60, 64), bf16, layout=swizzle_128b)  # error: panels of 60 rows do not begin where the pattern of 8 rows
    shared((64,), bf16, layout=swizzle_64b)  # error: swizzle_64b on a tile of one axis


@bad("a number drops an axis: S[stage, :, :] of a tile of stages, A[batch, m, k] of a tensor")
@tile_kernel(arch="sm_90a")
def what_tma_moves(A: Global[bf16, M, K], B: Global[f16, M, K], V: Global[bf16, K]):
    grid(1)
    threads(128)
    bars = shared((1,), u64)
    S, T = shared((2, 64, 64), bf16, layout=swizzle_128b), shared((64,), bf16)
    tma_load(A[0:64, 0:64], S, mbarrier=(bars, 0))  # error: tma_load() between different shapes: 64 x 64 and 2 x 64 x
    tma_load(V[0:64], T, mbarrier=(bars, 0))  # error: tma_load() takes rows and columns, T is
    tma_load(B[0:64, 0:64], S[0, :, :], mbarrier=(bars, 0))  # error: tma_load() from f16 to bf16: it moves elements
    tma_load(S[1, :, :], S[0, :, :], mbarrier=(bars, 0))  # error: tma_load() moves between a Global and a shared tile
    tma_load(A, S[0, :, :], mbarrier=(bars, 0))  # error: tma_load() of A, whose shape M x K is only known at run time
    tma_load(A[0:64, 0:64].T, S[0, :, :], mbarrier=(bars, 0))  # error: along the rows of the tile lies axis 0
    tma_load(A[0:64, 0:64], S[0, :, :], hint="hot", mbarrier=(bars, 0))  # error: tma_load() has no hint 'hot'
    tma_load(A[0:64, 0:64], S[0, :, :], multicast="k", mbarrier=(bars, 0))  # error: tma_load() has no multicast 'k'
    tma_load(A[0:64, 0:64], S[0, :, :], multicast="m", mbarrier=(bars, 0))  # error: in a kernel without clusters
    tma_load(A[0:64, 0:64], S[0, :, :], every=0, mbarrier=(bars, 0))  # error: every is a compile-time int of 1 or more
    tma_load(A[0:64, 0:64], S[0, :, :], first=1, mbarrier=(bars, 0))  # error: first is a compile-time int from 0 to 0
    tma_prefetch(S)  # error: tma_prefetch() takes a Global, got the tile S
    tma_wait(-1)  # error: pending is a compile-time int of 0 or more, got -1


# -- raw instructions ------------------------------------------------------------------------------


@bad("convert it: u32(...)")
@tile_kernel(arch="sm_90a")
def raw_barriers(A: Global[f32, M]):
    b = grid(1)
    threads(128)
    bars, S = shared((2,), u64), shared((2,), f32)
    ptx.mbarrier_init(bars, 0, count=0)  # error: ptx.mbarrier_init(): count is a compile-time int from 1 to 1048575,
    ptx.mbarrier_init(bars, 0, count=b)  # error: count is a compile-time int from 1 to 1048575, got index
    ptx.mbarrier_init(S, 0, count=1)  # error: mbarriers are the elements of a shared tile of u64, got the tile S
    ptx.mbarrier_arrive(bars)  # error: bars has 1 axes, got 0 indices
    ptx.mbarrier_arrive(bars, 0, rank=b)  # error: the rank must be i32, it is index
    ptx.mbarrier_expect_tx(bars, 0, bytes=1 << 20)  # error: bytes is a compile-time int from 1 to 1048575
    ptx.mbarrier_wait(bars, 0, parity=2)  # error: ptx.mbarrier_wait() with parity=2
    ptx.mbarrier_wait(bars, 0, parity=b)  # error: the parity must be u32, it is index
    ptx.setmaxnreg(100, increase=True)  # error: registers is a compile-time int from 24 to 256, a multiple of 8, got
    ptx.setmaxnreg(16, increase=False)  # error: from 24 to 256, a multiple of 8, got 16
    ptx.named_barrier(0, threads=128)  # error: number is a compile-time int from 1 to 15, got 0
    ptx.named_barrier(1, threads=100)  # error: from 32 to 1024, a multiple of 32, got 100
    ptx.wgmma_wait(b)  # error: pending is a compile-time int from 0 to 7, got index


# -- wgmma -----------------------------------------------------------------------------------------


@bad("take 248 or 256")
@tile_kernel(arch="sm_90a")
def accumulators(A: Global[bf16, M, K]):
    grid(1)
    wgmma.accumulator((64, 64), f32)  # error: wgmma.accumulator() before threads(): who holds it is not known
    threads(256)
    wgmma.accumulator((64, 64), f32)  # error: of 64 rows for 2 warpgroups: each has whole blocks of 64 rows
    wgmma.accumulator((128, 252), f32)  # error: of 252 columns; n is a multiple of 8 up to 256
    wgmma.accumulator((128, 320), f32)  # error: of 320 columns; n is a multiple of 8 up to 256
    wgmma.accumulator((128, 64), bf16)  # error: wgmma.accumulator() of bf16
    wgmma.accumulator(128, f32)  # error: shape= is 2 positive compile-time ints, got 128
    wgmma.accumulator((512, 256), f32)  # error: is 512 registers a thread, of which there are 255


@bad("a has as many columns as b has rows")
@tile_kernel(arch="sm_90a")
def operands(A: Global[bf16, M, K]):
    grid(1)
    threads(128)
    S, P = shared((64, 64), bf16, layout=swizzle_128b), shared((64, 64), bf16)
    H, I8 = shared((64, 64), f16, layout=swizzle_128b), shared((128, 128), i8, layout=swizzle_128b)
    wide = shared((64, 128), bf16, layout=swizzle_128b)
    acc = wgmma.accumulator((64, 64), f32)
    sums = wgmma.accumulator((64, 128), i32_of())
    x = load_fragment(A[0:64, 0:64], mma.m16n8k16.acc(warps=(4, 1)).a)
    y1 = wgmma(P, S.T, acc)  # error: wgmma(): P has no layout of its own: the compiler chooses one
    y2 = wgmma(S, A[0:64, 0:64], acc)  # error: wgmma() takes a shared tile as b, got a view of 64 x 64 elements of A
    y3 = wgmma(A[0:64, 0:64], S, acc)  # error: wgmma() takes a shared tile as a, got a view of 64 x 64 elements of A
    y4 = wgmma(S, H.T, acc)  # error: wgmma(): there is no product of bf16 x f16 into f32
    y5 = wgmma(wide, S.T, acc)  # error: wgmma() of 64 x 128 times 64 x 64 into 64 x 64
    y6 = wgmma(S, wide, acc)  # error: wgmma() of 64 x 64 times 64 x 128 into 64 x 64
    y7 = wgmma(S[:, 0:8], S.T[0:8, :], acc)  # error: wgmma(): k is 8, one instruction takes 16
    y8 = wgmma(I8[0:64, :], I8, sums)  # error: wgmma() reads i8 along k only, but the rows of I8 run
    y9 = wgmma(x, S.T, acc)  # error: wgmma() with a held as mma.m16n8k16.a(4, 1), for this acc it is wgmma.a(1)
    y0 = wgmma(S, S.T, x)  # error: wgmma() adds to an accumulator in flight, acc is fragment<bf16, [64, 64],
    done = acc.wait()
    none = sums.wait()
    A[0, 0] = S[0, 0]


def i32_of() -> Any:
    """The dtype of sums of integers, by a Python function."""
    from tiledsl import i32

    return i32


@bad("wait for it: x = acc.wait()")
@tile_kernel(arch="sm_90a")
def read_early(A: Global[bf16, M, K], C: Global[f32, M, N]):
    grid(1)
    threads(128)
    S = shared((64, 64), bf16, layout=swizzle_128b)
    acc = wgmma.accumulator((64, 64), f32)
    acc = wgmma(S, S.T, acc)
    y = acc + 1  # error: + is not defined for an accumulator that products are still being added to
    z = acc.to(bf16)  # error: an accumulator that products are still being added to has no attribute to
    store(acc, C[0:64, 0:64])  # error: got an accumulator that products are still being added to
    store_tma(acc, C[0:64, 0:64])  # error: store_tma() takes a fragment with a layout or a shared tile, got an
    C[0, 0] = acc[0, 0]  # error: an accumulator that products are still being added to cannot be indexed
    print(acc)  # error: print() of an accumulator that products are still being added to
    if acc:  # error: a condition must be a bool, it is an accumulator that products are still being added to
        C[0, 0] = 1
    x = acc.wait()
    store(x, C[0:64, 0:64])


@bad("x = acc.wait() gives its elements")
@tile_kernel(arch="sm_90a")
def dropped(A: Global[bf16, M, K], C: Global[f32, M, N], n: u32):
    grid(1)
    threads(128)
    S = shared((64, 64), bf16, layout=swizzle_128b)
    first = wgmma.accumulator((64, 64), f32)  # error: nothing is added to this accumulator, and nobody waits for it
    acc = wgmma.accumulator((64, 64), f32)
    acc = wgmma(S, S.T, acc)  # error: these products are never waited for: the accumulator is dropped
    sums = wgmma.accumulator((64, 64), f32)
    for i in range(4):  # error: these products are never waited for: the accumulator is dropped
        sums = wgmma(S, S.T, sums)


@bad("bind it, x = wgmma(S, S.T, acc), or wait for it")
@tile_kernel(arch="sm_90a")
def given_on_twice(A: Global[bf16, M, K], C: Global[f32, M, N]):
    grid(1)
    threads(128)
    S = shared((64, 64), bf16, layout=swizzle_128b)
    acc = wgmma.accumulator((64, 64), f32)
    wgmma(S, S.T, acc)  # error: an accumulator that products are still being added to is dropped here
    x = acc.wait()


@bad("continue with the result of that: acc = wgmma(a, b, acc)")
@tile_kernel(arch="sm_90a")
def given_on_again(A: Global[bf16, M, K], C: Global[f32, M, N]):
    grid(1)
    threads(128)
    S = shared((64, 64), bf16, layout=swizzle_128b)
    acc = wgmma.accumulator((64, 64), f32)
    one = wgmma(S, S.T, acc)
    two = wgmma(S, S.T, acc)  # error: this accumulator was used before, in line
    x, y = one.wait(), two.wait()
    other = wgmma.accumulator((64, 64), f32)
    for i in range(3):
        z = other.wait()  # error: a loop takes the same accumulator in every iteration


@tile_function
def maybe(acc: Any, S: Any, n: Any) -> Any:
    if n > 0:
        return wgmma(S, S.T, acc)
    return None


@bad("with role(")
@tile_kernel(arch="sm_90a")
def accumulators_of_some_paths(A: Global[bf16, M, K], n: u32):
    grid(1)
    threads(128)
    S = shared((64, 64), bf16, layout=swizzle_128b)
    ring = Ring(2, a=shared((64, 64), bf16, layout=swizzle_128b))
    acc = wgmma.accumulator((64, 64), f32)
    acc = maybe(acc, S, n)  # error: what is returned is an accumulator that products are still being added to
    with ring.use() as s:  # error: ring.use() outside of a role
        pass


# -- roles -----------------------------------------------------------------------------------------


@bad("registers=224 fits the role math")
@tile_kernel(arch="sm_90a")
def registers_that_do_not_fit(A: Global[f32, M]):
    grid(1)
    with role("load", registers=40, threads=1):
        A[0] = 1
    with role("math", warpgroups=2, registers=240):  # error: 128 x 24 = 69632; the block has 512 x 128 = 65536
        A[1] = 1
    with role("idle", registers=24):
        A[2] = 1


@bad("registers=232 fits the role math")
@tile_kernel(arch="sm_90a")
def registers_that_the_launch_does_not_deal_out(A: Global[f32, M]):
    """65536 in all, and of these 384 threads get 168 each."""
    grid(1)
    with role("load", registers=32, threads=1):
        A[0] = 1
    with role("math", warpgroups=2, registers=240):  # error: 256 x 240 = 65536; the block has 384 x 168 = 64512
        A[1] = 1


@bad("say it for every role, or for none")
@tile_kernel(arch="sm_90a")
def registers_of_some(A: Global[f32, M]):
    grid(1)
    with role("load", threads=1):  # error: the role load says no registers=, and the role math does
        A[0] = 1
    with role("math", registers=200):
        A[1] = 1


@bad("write threads(256), or leave threads() out")
@tile_kernel(arch="sm_90a")
def threads_that_do_not_fit(A: Global[f32, M]):
    grid(1)
    threads(512)
    with role("load", threads=1):
        A[0] = 1
    with role("math"):  # error: the roles have 128 + 128 = 256 threads, the block has 512
        A[1] = 1


@bad("use fewer warpgroups")
@tile_kernel(arch="sm_90a")
def threads_beyond_a_block(A: Global[f32, M]):
    grid(1)
    with role("load", threads=1):
        A[0] = 1
    with role("math", warpgroups=8):  # error: the roles have 128 + 1024 = 1152 threads; a block has at most 1024
        A[1] = 1


@bad("24 to 40 for a role that only loads, up to 240 for one that multiplies")
@tile_kernel(arch="sm_90a")
def arguments_of_roles(A: Global[f32, M], n: u32):
    grid(1)
    with role("a", registers=100):  # error: a compile-time int from 24 to 240, a multiple of 8, got 100
        A[0] = 1
    with role("a", registers=248):  # error: from 24 to 240, a multiple of 8, got 248
        A[0] = 1
    with role("a", warpgroups=0):  # error: warpgroups is a compile-time int from 1 to 8, got 0
        A[0] = 1
    with role("a", threads=32):  # error: threads is a compile-time int from 0 to 1, got 32
        A[0] = 1
    with role("a", instances=3):  # error: instances is a compile-time int from 1 to 2, got 3
        A[0] = 1
    with role("a", warpgroups=2, threads=1):  # error: role() of one thread with several warpgroups
        A[0] = 1
    role("a")  # error: a role is dropped here
    with shared((8,), f32):  # pyright: ignore # error: with is not part of the kernel language on
        A[0] = 1
    with role("a"):
        with role("b"):  # error: role() under a condition, in a loop, in another role or in a tile function
            A[0] = 1
    with role("a"):  # error: a second role 'a'; the first one is in line
        A[0] = 1
    if n > 0:
        with role("c"):  # error: role() under a condition, in a loop, in another role or in a tile function
            A[0] = 1
    threads(128)


@bad("tma_load() in a role with threads=1; or elements, with load_fragment() and store()")
@tile_kernel(arch="sm_90a")
def what_a_role_cannot_do(A: Global[bf16, M, K], C: Global[f32, M, N], n: u32):
    grid(1)
    S, bars = shared((64, 64), bf16, layout=swizzle_128b), shared((1,), u64)
    with role("load", threads=1) as load:
        barrier()  # error: barrier() in the role load, whose body one thread runs
        acc = wgmma.accumulator((64, 64), f32)  # error: in the role load, whose body one thread runs
        y = load.name  # error: the role load has no attribute name
    with role("math") as math:
        copy(A[0:64, 0:64], S)  # error: copy() is done by all threads of the block, and the role math has some of them
        t = copy_async(A[0:64, 0:64], S)  # error: copy_async() is done by all threads of the block
        frag = load_fragment(A[0:64, 0:64], mma.m16n8k16.acc(warps=(2, 4)))  # error: is held by 256 threads (2 x 4
        shared((8,), f32)  # error: shared() under a run-time condition or loop
        with math.turn("store"):  # error: the turn 'store' under a condition, or outside of the loop over work items
            pass


@bad("what roles share is in shared memory; what all need is computed before them")
@tile_kernel(arch="sm_90a")
def names_of_a_role(A: Global[f32, M]):
    grid(1)
    x = f32(0)
    with role("a") as a:
        x = f32(1)
        A[0] = x
    A[1] = x  # error: x is assigned in the role a, and is that role's own
    with a.turn("store"):  # error: a is assigned in the role a, and is that role's own
        pass


@bad("put the statements to skip under an `if`")
@tile_kernel(arch="sm_90a")
def leaves_a_region(A: Global[f32, M], n: u32):
    grid(1)
    with role("a"):  # error: `return` leaves the body of a `with`, whose end would be skipped
        if n > 0:
            return
        A[0] = 1
    threads(128)


# -- rings -----------------------------------------------------------------------------------------


@bad("read s.b, or leave b out of the ring")
@tile_kernel(arch="sm_90a")
def rings_without_both_ends(A: Global[bf16, M, K]):
    grid(1)
    unused = Ring(2, a=shared((64, 64), bf16, layout=swizzle_128b))  # error: this ring is never filled
    half = Ring(2, a=shared((64, 64), bf16, layout=swizzle_128b))  # error: this ring is never used
    idle = Ring(2, a=tile_of(), b=tile_of())  # error: the tile b of this ring is never read in its ring.use()
    with role("load", threads=1):
        with half.fill() as s:
            tma_load(A[0:64, 0:64], s.a)
        with idle.fill() as s:
            tma_load(A[0:64, 0:64], s.a)
            tma_load(A[0:64, 0:64], s.b)
    with role("math"):
        with unused.use() as s:
            store(load_fragment(s.a, mma.m16n8k16.acc(warps=(4, 1))), A[0:64, 0:64])
        with idle.use() as s:
            store(load_fragment(s.a, mma.m16n8k16.acc(warps=(4, 1))), A[0:64, 0:64])


@bad("write it after `with`; what has attributes is bound by its `as`: with ring.fill() as s:")
@tile_kernel(arch="sm_90a")
def regions_without_with(A: Global[bf16, M, K]):
    grid(1)
    ring = Ring(2, a=tile_of())
    r = role("early").index  # error: a role has no attribute index
    with role("load", threads=1):
        with ring.fill() as s:
            tma_load(A[0:64, 0:64], ring.fill().a)  # error: ring.fill() has no attribute a
            tma_load(A[0:64, 0:64], s.a)
    with role("math"):
        with ring.use() as s:
            x = load_fragment(ring.use().a, mma.m16n8k16.acc(warps=(4, 1)))  # error: ring.use() has no attribute a
            store(load_fragment(s.a, mma.m16n8k16.acc(warps=(4, 1))), A[0:64, 0:64])


@tile_function
def tile_of() -> Any:
    return shared((64, 64), bf16, layout=swizzle_128b)


@bad("its tiles are s.a; elsewhere pass mbarrier=(bars, i)")
@tile_kernel(arch="sm_90a")
def fills(A: Global[bf16, M, K], n: u32):
    grid(1)
    T = shared((64, 64), bf16, layout=swizzle_128b)
    ring = Ring(2, a=shared((64, 64), bf16, layout=swizzle_128b))
    with role("load", threads=1):
        with ring.fill() as s:
            tma_load(A[0:64, 0:64], T)  # error: tma_load() in ring.fill() to T, which is no tile of this ring
        with ring.fill() as s:
            if n > 0:
                tma_load(A[0:64, 0:64], s.a)  # error: under a run-time condition or loop: how many bytes come is not
        with ring.fill() as s:
            tma_load(A[0:64, 0:64], s.c)  # error: the slot of a ring has no attribute c
        ring.fill()  # error: ring.fill() is dropped here
    with role("math"):
        with ring.use(in_flight=2) as s:  # error: ring.use(): in_flight is a compile-time int from 0 to 1, got 2
            pass
        with ring.use(in_flight=0) as s:
            with ring.use() as again:  # error: ring.use() inside a region of the same ring
                pass


@bad("in_flight=0")
@tile_kernel(arch="sm_90a")
def ends_of_rings(A: Global[bf16, M, K]):
    """Each ring is looked at by itself, when the kernel is there."""
    grid(1)
    both, twice = Ring(2, a=tile_of(), b=tile_of()), Ring(2, a=tile_of())
    flying, shared_out = Ring(2, a=tile_of()), Ring(2, a=tile_of())
    with role("load", threads=1):
        with both.fill() as s:  # error: ring.fill() loads nothing into s.b
            tma_load(A[0:64, 0:64], s.a)
        with twice.fill() as s:  # error: ring.fill() loads 16384 bytes into s.a, which has 8192
            tma_load(A[0:64, 0:64], s.a)
            tma_load(A[0:64, 0:64], s.a)
        with flying.fill() as s:
            tma_load(A[0:64, 0:64], s.a)
        with shared_out.fill() as s:
            tma_load(A[0:64, 0:64], s.a)
    with role("math"):
        for ring in (both, twice, shared_out):
            with ring.use() as s:
                x = load_fragment(s.a, mma.m16n8k16.acc(warps=(4, 1)))
        with flying.use(in_flight=0) as s:
            x = load_fragment(s.a, mma.m16n8k16.acc(warps=(4, 1)))
        with flying.use(in_flight=1) as s:  # error: in_flight=1, and elsewhere in_flight=0
            x = load_fragment(s.a, mma.m16n8k16.acc(warps=(4, 1)))
    with role("more"):
        with shared_out.use() as s:  # error: this ring is used by the role math already, and now by the role more
            x = load_fragment(s.a, mma.m16n8k16.acc(warps=(4, 1)))


@bad("allocate one for each")
@tile_kernel(arch="sm_90a")
def tiles_of_rings(A: Global[bf16, M, K], n: u32):
    grid(1)
    S = shared((64, 64), bf16, layout=swizzle_128b)
    Ring(2)  # error: Ring() without tiles
    ring = Ring(2, a=S)
    other = Ring(2, a=S)  # error: Ring(): the tile of a is that of another ring, or of another name
    view = Ring(2, a=S[0:8, :])  # error: Ring(): a is a new shared tile, got a view of 8 x 64 elements of S
    none = Ring(0, a=S)  # error: Ring(): stages is a compile-time int from 1 to 32, got 0
    if n > 0:
        late = Ring(2, a=S)  # error: Ring() under a run-time condition, in a loop or in a role
    threads(128)


@bad("i = ring.take(), and ring.free(i)")
@tile_kernel(arch="sm_90a")
def slots_taken_and_freed(A: Global[bf16, M, K]):
    grid(1)
    ring = Ring(2, a=tile_of())
    ring.take()  # error: ring.take() outside of a role
    with role("load", threads=1):
        with ring.fill() as s:
            tma_load(A[0:64, 0:64], s.a)
    with role("math"):
        ring.free(0)  # error: ring.free() takes the number of a slot, got the compile-time value 0
        i = ring.take()
        x = load_fragment(ring.slot(i).a, mma.m16n8k16.acc(warps=(4, 1)))
        y = ring.slot(i).b  # error: the slot of a ring has no attribute b
        ring.slot(1)  # error: ring.slot() takes the number of a slot, got the compile-time value 1
        ring.free(i)


@bad("i = ring.take(), and ring.free(i) after its last read")
@tile_kernel(arch="sm_90a")
def slots_never_taken(A: Global[bf16, M, K], i: i32):
    grid(1)
    ring = Ring(2, a=tile_of())
    with role("load", threads=1):
        with ring.fill() as s:
            tma_load(A[0:64, 0:64], s.a)
    with role("math"):
        x = load_fragment(ring.slot(index(i)).a, mma.m16n8k16.acc(warps=(4, 1)))
        ring.free(index(i))  # error: slots of this ring are released here, and never taken


@bad("i = ring.take(), and ring.free(i) after its last read")
@tile_kernel(arch="sm_90a")
def slots_taken_for_ever(A: Global[bf16, M, K]):
    grid(1)
    ring = Ring(2, a=tile_of())
    with role("load", threads=1):
        with ring.fill() as s:
            tma_load(A[0:64, 0:64], s.a)
    with role("math"):
        i = ring.take()  # error: slots of this ring are taken here, and never released
        x = load_fragment(ring.slot(i).a, mma.m16n8k16.acc(warps=(4, 1)))


@bad("instances use one for each tile along k, by ring.use()")
@tile_kernel(arch="sm_90a")
def slots_taken_by_instances(A: Global[bf16, M, K]):
    grid(1)
    ring = Ring(2, a=tile_of())
    with role("load", threads=1):
        with ring.fill() as s:
            tma_load(A[0:64, 0:64], s.a)
    with role("pair", instances=2):
        i = ring.take()  # error: ring.take() in the role pair, which has 2 instances
        x = load_fragment(ring.slot(i).a, mma.m16n8k16.acc(warps=(4, 1)))
        ring.free(i)


@bad("use the tiles of its slots, s.a; or give the ring a tile of its own")
@tile_kernel(arch="sm_90a")
def tile_of_a_ring_used_besides(A: Global[bf16, M, K]):
    grid(1)
    S = shared((64, 64), bf16, layout=swizzle_128b)
    ring = Ring(2, a=S)
    with role("load", threads=1):
        with ring.fill() as s:
            tma_load(A[0:64, 0:64], s.a)
    with role("math"):
        with ring.use() as s:
            store(load_fragment(s.a, mma.m16n8k16.acc(warps=(4, 1))), A[0:64, 0:64])
        S[0, 0] = 0  # error: S was given to a ring, which has it in stages


@bad("registers that a product reads stay as they are until it ends: in_flight=0")
@tile_kernel(arch="sm_90a")
def registers_in_flight(A: Global[bf16, M, K]):
    grid(1)
    ring = Ring(2, a=shared((64, 64), bf16, layout=swizzle_128b))
    with role("load", threads=1):
        with ring.fill() as s:
            tma_load(A[0:64, 0:64], s.a)
    with role("math"):
        acc = wgmma.accumulator((64, 64), f32)
        with ring.use(in_flight=1) as s:
            acc = wgmma(load_fragment(s.a, acc.a), s.a.T, acc)  # error: with a in registers, in ring.use(in_flight=1)


# -- clusters and schedules ------------------------------------------------------------------------


@bad("blocks along n share what depends on m alone: multicast='n'")
@tile_kernel(arch="sm_90a")
def shared_by_the_wrong_blocks(A: Global[bf16, M, K], B: Global[bf16, N, K]):
    work = persistent(tile_schedule(M, N, K, tile=(64, 24, 64)), cluster=Cluster(m=2, n=2))
    a, b = shared((64, 64), bf16, layout=swizzle_128b), shared((24, 64), bf16, layout=swizzle_128b)
    ring = Ring(2, a=a, b=b)
    with role("load", threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a, multicast="m")  # error: of a part of A that differs along m
                    tma_load(B[t.n, k], s.b, multicast="m")  # error: tma_load(): 24 rows, of which each of 2 blocks


@bad("cluster=Cluster(m=2)")
@tile_kernel(arch="sm_90a")
def arguments_of_schedules(A: Global[bf16, M, K], B: Global[bf16, N, K], n: u32):
    tile_schedule(M, N, K, tile=(64, 64))  # error: tile_schedule(): tile= is 3 positive compile-time ints, got (64, 64)
    tile_schedule(M, N, K, tile=(64, 64, 0))  # error: tile_schedule(): tile= is 3 positive compile-time ints, got
    tile_schedule(M, N, K, tile=(64, 64, 64), group=0)  # error: group is a compile-time int from 1
    tile_schedule(M, N, K, tile=(64, 64, 64), along="k")  # error: tile_schedule() has no along 'k'
    tile_schedule(M, N, K, tile=(64, 64, 64), splits=0)  # error: tile_schedule(): splits=0
    work = tile_schedule(M, N, K, tile=(64, 64, 64))
    persistent(work, cluster=2)  # error: persistent(): cluster= is the compile-time value 2
    persistent(M)  # error: persistent() takes what tile_schedule() gives, got index
    persistent(work, cluster=Cluster(m=4, n=4))  # error: a cluster of 4 x 4 = 16 blocks; at most 8 are portable
    x = work + 1  # error: + is not defined for a schedule
    if n > 0:
        late = tile_schedule(M, N, K, tile=(64, 64, 64))  # error: tile_schedule() under a run-time condition
    for t in work:
        y = t.x  # error: a work item has no attribute x
    threads(128)


@bad("leave grid(...) out")
@tile_kernel(arch="sm_90a")
def schedule_in_a_grid(A: Global[bf16, M, K], B: Global[bf16, N, K]):
    b = grid(8)
    threads(128)
    work = tile_schedule(M, N, K, tile=(64, 64, 64))
    for t in work:  # error: a schedule in a kernel with a grid of its own
        A[0, 0] = 0
    persistent(work)  # error: persistent() in a kernel with a grid


@bad("round the grid up: cdiv(9, 2) * 2")
@tile_kernel(arch="sm_90a")
def clusters_that_do_not_divide(A: Global[f32, M]):
    grid(9, 4, cluster=(2, 2))  # error: clusters of 2 blocks along x in a grid of 9, which that does not divide
    threads(32)


@bad("use a smaller one")
@tile_kernel(arch="sm_90a")
def clusters_too_large(A: Global[f32, M]):
    grid(16, 4, cluster=(8, 2))  # error: a cluster of 16 blocks; at most 8 are portable
    threads(32)


@bad("in the kernel, grid_size() is how many blocks there are")
@tile_kernel
def processors_in_the_kernel(A: Global[f32, M]):
    b = grid(min(M, processors))
    threads(32)
    for i in range(b, M, processors):  # error: processors is known to the host alone, in the extents of grid()
        A[i] = 0


@bad("an instance skips as many slots as the other one's item has tiles along k: one use for each")
@tile_kernel(arch="sm_90a")
def instances(A: Global[bf16, M, K], B: Global[bf16, N, K], C: Global[f32, M, N]):
    work = persistent(tile_schedule(M, N, K, tile=(64, 64, 64)))
    ring = Ring(2, a=shared((64, 64), bf16, layout=swizzle_128b))
    other = Ring(2, a=shared((64, 64), bf16, layout=swizzle_128b))
    with role("load", threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a)
    with role("math", instances=2) as math:
        with ring.use() as s:  # error: ring.use() in the role math, which has 2 instances, outside of `for k in t.k`
            pass
        for t in work:  # error: a loop over work items that the role math, which has instances, may leave
            break
        for t in work:
            with math.turn("multiply"):
                for k in t.k:
                    with ring.use() as s:
                        pass
                    with ring.use() as s:  # error: a second ring.use() for one tile along k
                        pass
            with math.turn("store"):
                pass
            with math.turn("store"):  # error: a second turn 'store'
                pass


@bad("each role takes one for each instance, and each of its turns as many")
@tile_kernel(arch="sm_90a")
def more_barriers_than_there_are(A: Global[bf16, M, K], B: Global[bf16, N, K]):
    """What a ring needs is known when all its uses are."""
    work = persistent(tile_schedule(M, N, K, tile=(128, 64, 64)))
    ring = Ring(2, a=shared((128, 64), bf16, layout=swizzle_128b))
    with role("load", threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a)
    with role("math", warpgroups=2, instances=2) as math:
        for t in work:
            with math.turn("1"):
                pass
            with math.turn("2"):
                pass
            with math.turn("3"):
                pass
            with math.turn("4"):
                pass
            acc = wgmma.accumulator((128, 64), f32)
            with math.turn("5"):
                for _ in t.k:
                    with ring.use() as s:  # error: a role of several warpgroups needs 4 more named barriers, and 13 of
                        acc = wgmma(load_matrix(s.a, acc.a), s.a[0:64, :].T, acc)
            total = acc.wait()


# -- stores ----------------------------------------------------------------------------------------


@bad("via=shared((2, 64, 32), bf16, layout=swizzle_64b)")
@tile_kernel(arch="sm_90a")
def stores(C: Global[bf16, M, N], D: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = wgmma.accumulator((64, 96), f32)
    x = acc.wait().to(bf16)
    S, T = shared((64, 96), bf16), shared((2, 32, 96), bf16, layout=swizzle_64b)
    F, W = shared((64, 96), f32, layout=swizzle_128b), shared((64, 64), bf16, layout=swizzle_128b)
    store_tma(x, C[0:64, 0:96])  # error: store_tma() of a fragment without via=: it goes through a shared tile
    store_tma(x, C[0:64, 0:64], via=W)  # error: store_tma() between different shapes: 64 x 96 and 64 x 64
    store_tma(x, D[0:64, 0:96], via=W)  # error: store_tma() of bf16 elements to D of f32
    store_tma(x, S, via=W)  # error: store_tma() takes a Global as dst, got the tile S (shared<bf16, [64, 96]>)
    store_tma(x, C[0:64, 0:96], via=F)  # error: of 64 x 96 bf16 elements by way of a view of 64 x
    store_tma(x, C[0:64, 0:96], via=T)  # error: of 64 x 96 bf16 elements by way of a view of 2 x 32 x 96 elements
    store_tma(x, C[0:64, 0:96], via=W)  # error: store_tma() of 96 columns in chunks of 64
    store_tma(x, C[0:64, 0:96], via=S)  # error: store_tma(): S has no layout of its own
    store_tma(S, C[0:64, 0:96], via=W)  # error: store_tma() of a tile goes without via=


@bad("as a whole, via=shared((64, 128), bf16, layout=swizzle_128b)")
@tile_kernel(arch="sm_90a")
def stores_of_warps_along_n(C: Global[bf16, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 128), bf16, mma.m16n8k16.acc(warps=(2, 2)))
    W = shared((2, 64, 64), bf16, layout=swizzle_128b)
    store_tma(acc, C[0:64, 0:128], via=W)  # error: a fragment held as mma.m16n8k16.acc(2, 2) in chunks of 64 columns


@bad("in a role(..., threads=1), or under an if that is true for one thread")
@tile_kernel(arch="sm_90a")
def loads_of_many_threads(A: Global[bf16, M, K]):
    grid(1)
    S, bars = shared((64, 64), bf16, layout=swizzle_128b), shared((1,), u64)
    with role("math"):
        if warp_id() == 0:
            tma_load(A[0:64, 0:64], S, mbarrier=(bars, 0))  # error: for each thread that executes it, and 32 threads do
        tma_load(A[0:64, 0:64], S, mbarrier=(bars, 0))  # error: for each thread that executes it, and 128 threads do


# -- targets and tensors ---------------------------------------------------------------------------


@bad('write @tile_kernel(arch="sm_90a"); for other GPUs, copy_async() and mma() do the same work')
@tile_kernel
def on_another_gpu(A: Global[bf16, M, K]):
    grid(1)
    threads(128)
    ptx.fence_proxy_async()  # error: ptx.fence_proxy_async() needs one of sm_90, sm_90a, sm_100a, sm_120a, and


@pytest.mark.parametrize(("kernel", "fix"), bad.cases, ids=bad.names)
def test_refused(kernel: Any, fix: str) -> None:
    check(kernel, fix, arch="sm_80" if kernel.__name__ == "on_another_gpu" else "sm_90a")


@tile_kernel(arch="sm_90a")
def loads_any_tensor(A: Global[bf16, M, K], *, T: const = 64):
    grid(1)
    threads(128)
    S, bars = shared((T, T), bf16, layout=swizzle_128b), shared((1,), u64)
    tma_load(A[tile(0, T), tile(0, T)], S, mbarrier=(bars, 0))


@pytest.mark.parametrize(
    ("unit", "align", "message"),
    [
        (1, 8, "those of A are known to be multiples of 8, or one is negative, in this call"),
        (1, 4, "multiples of 16 bytes; those of A are known to be multiples of 4 in this call"),
        (1, 1, "those of A need not even be aligned in this call"),
        (0, 16, "the axis of stride 1, axis 0 of A; along the rows of the tile lies axis 1"),
        (-1, 16, "the axis of stride 1, no axis of A in this call; along the rows of the tile lies axis 1"),
    ],
)
def test_tensors_that_tma_does_not_reach(unit: int, align: int, message: str) -> None:
    signature = loads_any_tensor.signature
    spec = assumed(signature, {}, check_consts(signature, {}))
    ((name, tensor),) = spec.tensors
    assert tensor is not None
    spec = replace(spec, tensors=((name, replace(tensor, unit=unit, align=align)),))
    with pytest.raises(Exception, match="tma_load") as caught:
        build(signature, spec, "sm_90a")
    assert message in str(caught.value)


@tile_kernel(arch="sm_90a")
def stores_any_tensor(C: Global[bf16, M, N]):
    grid(1)
    threads(128)
    S = shared((64, 64), bf16, layout=swizzle_128b)
    ptx.fence_proxy_async()
    if C.whole:
        barrier()
    if warp_id() == 0 and lane_id() == 0:
        store_tma(S, C[tile(0, 64), tile(0, 64)])
        tma_commit()
        tma_wait(0)


@pytest.mark.parametrize("shape", [(64, 68), (1, 70)])
def test_rows_that_end_within_16_bytes(shape: tuple[int, int]) -> None:
    """TMA would write past their end: into what stands beside a slice, or behind the array."""
    C = np.zeros((64, 72), ml_dtypes.bfloat16)[: shape[0], : shape[1]]
    with pytest.raises(CompileErrors, match="the rows of C end within some in this call") as caught:
        stores_any_tensor(C, device="emulator")
    assert "choose another way to store, by C.whole" in str(caught.value)
