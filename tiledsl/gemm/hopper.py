"""The Hopper kernel: TMA loads, wgmma, a persistent grid, and tile sizes that fit the product.

One thread loads and two warpgroups multiply: the two halves of one tile, or, with INSTANCES = 2 (pingpong), a tile
each, so that one stores its result while the other uses the tensor cores. The persistent CTAs walk the tiles in bands
of GROUP rows of tiles, so that operands stay in the L2 cache. The result is stored in pieces as wide as `room`, each
scaled and passed through the epilogue by itself, since registers do not suffice for more. Where TMA cannot store C,
warps store it.

With SPLIT, so many CTAs of a cluster share a tile's k, and `groups` clusters more: `split_k.py`. `sums` and `done` are
the workspace: P is SPLIT * groups for each tile, H x J the elements of a tile, R is SPLIT for each tile. `done` is zero
before and after.

EXCHANGED says that A, B and C are the transposes of what the caller multiplies, so that few rows are a narrow tile;
the bias and the epilogue then go by rows.

A, B and C are batches of matrices. `tiledsl.gemm.gemm` also takes operands that TMA cannot read.
"""

from typing import Any, TypeVar

from tiledsl import (
    Cluster,
    Const,
    Float,
    Fragment,
    Global,
    Ring,
    Schedule,
    View,
    barrier,
    const,
    coordinates,
    f32,
    i32,
    index,
    lane_id,
    load_fragment,
    persistent,
    ptx,
    role,
    store,
    store_tma,
    tile,
    tile_function,
    tile_kernel,
    tma_load,
    u32,
    unroll,
    warp_id,
    wgmma,
)
from tiledsl.dims import H, J, K, L, M, N, P, Q, R
from tiledsl.gemm.choice import choose
from tiledsl.gemm.epilogue import Epilogue, plain
from tiledsl.gemm.hopper_tiles import as_stored, chunks, matrix, staged_width, staging
from tiledsl.gemm.split_k import meeting, part_count, part_item, reduce_parts, slice_width

__all__ = ["choose", "hopper_fastest"]

D = TypeVar("D", bound=Float)
E = TypeVar("E", bound=Float)


@tile_function
def store_lines(x: Fragment[E], to: View[E], via: View[E], warps: int):
    """Stores x where TMA cannot: through shared memory, so that the stores are coalesced."""
    rows, columns = via.shape
    barrier()
    store(x, via)
    barrier()
    for i in unroll(rows * columns // (32 * warps)):
        at = (i * warps + warp_id() % warps) * 32 + lane_id()
        m, n = (at % rows, at // rows) if to.unit == 0 else (at // columns, at % columns)
        to.put(m, n, via[m, n])


@tile_kernel(arch="sm_90a")
def hopper_fastest(
    A: Global[D, L, M, K],
    B: Global[D, L, K, N],
    C: Global[E, L, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
    bias: Global[f32, Q] | None = None,
    sums: Global[f32, P, H, J] | None = None,
    done: Global[u32, R] | None = None,
    groups: i32 | int = 1,
    *,
    BM: const = 128,
    BN: const = 256,
    BK: const = 64,
    STAGES: const = 4,
    GROUP: const = 8,
    CLUSTER: Const[tuple[int, int]] = (1, 1),
    INSTANCES: const = 1,
    SPLIT: const = 0,
    EXCHANGED: Const[bool] = False,
    EARLY: Const[bool] = False,
    ADD_C: Const[bool] = False,
    EPILOGUE: Const[Epilogue] = plain,
):
    assert not SPLIT or CLUSTER[1] == 1, f"SPLIT={SPLIT} takes the place of CLUSTER[1]={CLUSTER[1]}: make that 1"
    items = Schedule(
        part_count, part_item, M, N, K, (BM, BN, BK), GROUP, L, SPLIT, index(groups) if SPLIT else index(1)
    )
    work = persistent(items, Cluster(CLUSTER[0], SPLIT or CLUSTER[1]))
    met: Any = meeting(SPLIT, INSTANCES) if SPLIT else None
    buffers = 1 if SPLIT else 2
    room = chunks(C, buffers * INSTANCES, BM, slice_width(SPLIT, BN) if SPLIT else BN, BM * BN * INSTANCES // 256)
    width = staged_width(BN, B.unit == 1)
    ring = Ring(STAGES, a=staging(A, BM, BK), b=staging(B, BK, width))
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
    with role("load", registers=24, threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(as_stored(A[t.batch, t.m, k]), s.a, multicast="" if SPLIT else "n")
                    tma_load(as_stored(B[t.batch, k, tile(0, width) + t.n.start]), s.b, multicast="m")
    with role("math", warpgroups=2 // INSTANCES, registers=240, instances=INSTANCES) as r:
        parity = u32(0)
        for t in work:
            acc = wgmma.accumulator((BM, BN), f32)
            with r.turn("multiply"):
                for _ in t.k:
                    with ring.use(in_flight=1) as s:
                        acc = wgmma(matrix(s.a, A), matrix(s.b, B)[:, :BN], acc)
            with r.turn("store"):
                x, first, mine = acc.wait(), index(0), True
                if SPLIT:
                    x, mine = reduce_parts(x, t, SPLIT, index(groups), sums, done, met, r.index, parity)
                    parity = parity ^ 1
                    first = t.part * x.shape[1]
                wide: int = room.shape[1 if C.unit == 1 else 2]
                if mine:
                    for i in unroll(x.shape[1] // wide):
                        n = tile((t.n.start + first) // wide + i, wide)
                        to, y = C[t.batch, t.m, n], alpha * x.columns(i * wide, wide)
                        if ADD_C:
                            y = beta * load_fragment(to, y.layout).to(f32) + y
                        at, across = coordinates(y)
                        y = EPILOGUE(y, bias, t.m.start + at if EXCHANGED else n.start + across).to(C.dtype)
                        via: Any = matrix(room[r.index * buffers + i % buffers, :, :], C)
                        if C.unit > 0 and C.align == 16:
                            store_tma(y, to, via=via, in_flight=min(i, buffers - 1))
                        else:
                            store_lines(y, to, via, 8 // INSTANCES)
