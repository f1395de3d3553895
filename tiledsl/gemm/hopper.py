"""The Hopper kernel: TMA loads, wgmma, a persistent grid, and tile sizes that fit the product.

One thread loads and two warpgroups multiply: the two halves of one tile, or, with INSTANCES = 2 (pingpong), a tile
each, so that one stores its result while the other uses the tensor cores. The persistent CTAs walk the tiles in bands
of GROUP rows of tiles, so that operands stay in the L2 cache. The result is stored piece by piece (`hopper_stores.py`);
where TMA cannot store C, warps store it.

With SPLIT, so many CTAs of a cluster share a tile's k; with GATHER, P clusters do (`split_k.py`). Then `sums` and
`done` are the workspace: R is 1 or SPLIT for each tile, J the elements of a slice of it. `done` is zero before and
after. Sums of GATHER clusters are loaded at once; best of all P.

With SHIFT, A and C are two matrices each, of every other row, and tiles of the second begin so many columns before C
(`every_other.py`).

EXCHANGED says that A, B and C are the transposes of what the caller multiplies, so that few rows are a narrow tile;
the bias and the epilogue then go by rows.

The operands' dtypes decide the product: bf16 or f16 in either order; tf32, e4m3 and e5m2 (also mixed), i8 and u8 (also
mixed), whose operands wgmma reads along k only. Integers add up in i32, all others in f32. A step of BK elements has
128 bytes of each row, or a multiple. PROMOTED: the tensor cores add up the products of a step only, and threads add
these sums in f32; of 8-bit floats tensor cores keep 14 bits. With SCALED as well, they are scaled before, by `scale_a`
and `scale_b`: `promoted.py`. With HALVES a step's columns are multiplied in two halves, by which a tile of 128 x 256
fits into the registers. SCALED alone multiplies the whole sums by rows and by columns, in f32; results of i8 and
u8 are rounded to nearest even. With PLANES, A and B are that many planes of f32, as many elements of each in a step of
BK, and `scale_a` and `scale_b` are those of rows and columns, or None: `planes.py`. With MODULI the epilogue gets row 0
of each matrix of `scale_a` in place of the bias: `residues.py`.

A, B and C are batches of matrices. An operand whose lines TMA cannot load as they are, since their stride is no
multiple of 16 bytes, is loaded in parts of every 2nd, 4th or 8th line, each of which TMA can describe, through APART
stages; a role of one warpgroup then puts the lines in order. That needs registers and shared memory, which large tiles
do not leave. `tiledsl.gemm.gemm` also takes operands that TMA cannot read at all.

With RANKS, that many ranks (GPUs) multiply together (`peers.py`), and the batches are their shards. With `own_rows`,
rows of A are gathered: A has those of the other ranks, which `arrived` tells of. Else sums are scattered: `own_sums` is
the shard of this rank, and of C the shape alone counts; `sent` and `signals` are in the memory of the others or, with
`counts`, in that of this rank as `received` and `arrived` are, [ranks, slots, elements of a tile] and [ranks, parts].
of_call: the rank, the number of the call, and how often a flag is asked for. (`sharded.py` says where.)
"""

from typing import Any, Literal, TypeVar

from tiledsl import (
    Cluster,
    Const,
    Global,
    Ring,
    Scalar,
    Schedule,
    const,
    f32,
    i32,
    index,
    lane_id,
    persistent,
    ptx,
    role,
    shared,
    tile,
    tile_kernel,
    tma_load,
    tma_prefetch,
    u32,
    warp_id,
    wgmma,
)
from tiledsl.dims import J, K, L, M, N, P, Q, R
from tiledsl.gemm.choice import choose
from tiledsl.gemm.epilogue import Epilogue, add_bias
from tiledsl.gemm.every_other import shifted
from tiledsl.gemm.hopper_apart import in_order, load_apart, parts_of, staging_apart
from tiledsl.gemm.hopper_stores import rooms, store_columns, store_share
from tiledsl.gemm.hopper_tiles import SUMS, as_stored, matrix, staged_width, staging
from tiledsl.gemm.parts import leave
from tiledsl.gemm.peers import (
    add_sums,
    in_first_matrix,
    load_gathered,
    of_ranks,
    send_sums,
    shard_count,
    shard_item,
)
from tiledsl.gemm.promoted import KBlocks, NBlocks, of_planes, promoted, room_of_scales
from tiledsl.gemm.split_k import (
    bring_slice,
    meeting,
    part_count,
    part_item,
    reduce_parts,
    slice_width,
    thread_of,
)

__all__ = ["choose", "hopper_fastest"]

D = TypeVar("D", bound=Scalar)
F = TypeVar("F", bound=Scalar)
E = TypeVar("E", bound=Scalar)


@tile_kernel(arch="sm_90a")
def hopper_fastest(
    A: Global[D, L, M, K],
    B: Global[F, L, K, N],
    C: Global[E, L, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
    bias: Global[f32, Q] | None = None,
    sums: Global[f32, P, R, J] | None = None,
    done: Global[u32, R] | None = None,
    scale_a: Global[f32, L, M, KBlocks] | None = None,
    scale_b: Global[f32, L, KBlocks, NBlocks] | None = None,
    own_rows: Global[D, M, K] | None = None,
    own_sums: Global[E, Literal[1], M, N] | None = None,
    sent: Global[E, L, R, J] | None = None,
    received: Global[E, L, R, J] | None = None,
    signals: Global[u32, L, P] | None = None,
    counts: Global[u32, L, P] | None = None,
    arrived: Global[u32, L, P] | None = None,
    of_call: Global[u32, Literal[3]] | None = None,
    *,
    BM: const = 128,
    BN: const = 256,
    BK: const = 64,
    STAGES: const = 4,
    APART: const = 4,
    GROUP: const = 8,
    CLUSTER: Const[tuple[int, int]] = (1, 1),
    INSTANCES: const = 1,
    SPLIT: const = 0,
    GATHER: const = 0,
    SHIFT: const = 0,
    EXCHANGED: Const[bool] = False,
    EARLY: Const[bool] = False,
    ADD_C: Const[bool] = False,
    PROMOTED: Const[bool] = False,
    SCALED: Const[bool] = False,
    HALVES: Const[bool] = False,
    PLANES: const = 0,
    MODULI: Const[bool] = False,
    RANKS: const = 0,
    EPILOGUE: Const[Epilogue] = add_bias,
):
    assert not SPLIT or CLUSTER[1] == 1, f"SPLIT={SPLIT} takes the place of CLUSTER[1]={CLUSTER[1]}: make that 1"
    along_k = (A.unit, B.unit, A.align, B.align) == (2, 1, 16, 16)
    assert A.dtype.bytes == 2 or along_k, (
        "wgmma reads other than 16-bit operands along k only, in aligned rows: copy them"
    )
    assert not HALVES or (PROMOTED and CLUSTER == (1, 1) and not SPLIT and not GATHER), (
        "HALVES is for PROMOTED sums without clusters, whose k is not split: leave it out"
    )
    assert not SHIFT or not (SPLIT or GATHER or RANKS or EXCHANGED or ADD_C or bias is not None), (
        "SHIFT is for a product whose k is not split, not exchanged, and to which nothing is added: leave it out"
    )
    groups: Any = sums.shape[0] if GATHER and sums is not None else None
    items = Schedule(part_count, part_item, M, N + SHIFT, K, (BM, BN, BK), GROUP, L, SPLIT, groups)
    gathers, scatters = RANKS > 0 and own_rows is not None, RANKS > 0 and sent is not None
    call = of_ranks(of_call, RANKS)
    into: Any = own_sums if scatters else C
    if RANKS:
        order = call[0] + (1 if scatters else 0)
        items = Schedule(shard_count, shard_item, M, N, K, (BM, BN, BK), GROUP, L, SPLIT, groups, order)
    work = persistent(items, Cluster(CLUSTER[0], SPLIT or CLUSTER[1]))
    met: Any = meeting(SPLIT, BM, BN, 256 // INSTANCES) if SPLIT else None
    found: Any = shared((INSTANCES, 2), u32) if GATHER else None
    factors: Any = (scale_a, scale_b) if SCALED and not PROMOTED else None
    ending: Any = (alpha, beta, scale_a if MODULI else bias, factors, EXCHANGED, ADD_C, EPILOGUE)
    scales: Any = (scale_a, scale_b, room_of_scales()) if SCALED and PROMOTED else None
    stored: int = slice_width(SPLIT, BN) if SPLIT else BN
    accumulators: int = BM * BN * INSTANCES // 256
    room: Any = None if GATHER else rooms(C, (1 if SPLIT else 2) * INSTANCES, INSTANCES, BM, stored, accumulators)
    width, parts_a, parts_b = BN // 2 if HALVES else staged_width(BN, B.unit == 1), parts_of(A), parts_of(B)
    apart = parts_a > 1 or parts_b > 1
    ring: Any = None if apart else Ring(STAGES, a=staging(A, BM, BK), b=staging(B, BK, width))
    behind: Any = Ring(STAGES, b=staging(B, BK, width)) if HALVES else None
    left: Any = Ring(STAGES if parts_a > 1 else APART, a=staging(A, BM, BK)) if apart else None
    right: Any = Ring(STAGES if parts_b > 1 else APART, b=staging(B, BK, BN)) if apart else None
    of_a: Any = Ring(APART, a=staging_apart(A, BM, BK)) if parts_a > 1 else left
    of_b: Any = Ring(APART, b=staging_apart(B, BK, BN)) if parts_b > 1 else right
    if warp_id() == 0 and lane_id() == 0:
        tma_prefetch(A)
        tma_prefetch(B)
    busy = SPLIT or GATHER or PLANES or RANKS
    loading, multiplying = (24, 192) if apart else (40, 232) if busy else (24, 240)
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
    with role("load", registers=loading, threads=1):
        place: Any = i32(-1) if gathers else None
        for t in work:
            if SHIFT:
                t = shifted(t, SHIFT)
            if gathers:
                place = load_gathered(ring, t, (A, own_rows, B), width, arrived, call, place)
            for k in t.k if not gathers else ():
                if apart:
                    with of_a.fill() as s:
                        load_apart(A, t.batch, t.m, k, s.a)
                    with of_b.fill() as s:
                        load_apart(B, t.batch, k, t.n, s.b)
                else:
                    with ring.fill() as s:
                        tma_load(as_stored(A[t.batch, t.m, k]), s.a, multicast="" if SPLIT else "n")
                        tma_load(as_stored(B[t.batch, k, tile(0, width) + t.n.start]), s.b, multicast="m")
                    if HALVES:
                        with behind.fill() as s:
                            tma_load(as_stored(B[t.batch, k, tile(1, width) + t.n.start]), s.b)
    if apart:
        with role("order", registers=104):
            for t in work:
                for _ in t.k:
                    if parts_a > 1:
                        with of_a.use() as s, left.fill() as to:
                            in_order(s.a, to.a, A)
                    if parts_b > 1:
                        with of_b.use() as s, right.fill() as to:
                            in_order(s.b, to.b, B)
    with role("math", warpgroups=2 // INSTANCES, registers=multiplying, instances=INSTANCES) as r:
        turn = u32(r.index)
        for t in work:
            if SHIFT:
                t = shifted(t, SHIFT)
            acc: Any = None if PROMOTED or PLANES else wgmma.accumulator((BM, BN), SUMS.get(A.dtype, f32))
            with r.turn("multiply"):
                if PLANES:
                    acc = of_planes(ring, t, A, B, (BM, BN), PLANES, EXCHANGED, (scale_a, scale_b))
                elif PROMOTED:
                    acc = promoted(ring, t, A, B, (BM, BN), scales, t.batch, behind)
                else:
                    for _ in t.k:
                        if apart:
                            with left.use(in_flight=1) as s, right.use(in_flight=1) as to:
                                acc = wgmma(matrix(s.a, A), matrix(to.b, B), acc)
                        else:
                            with ring.use(in_flight=1) as s:
                                acc = wgmma(matrix(s.a, A), matrix(s.b, B)[:, :BN], acc)
            with r.turn("store"):
                x, first, mine = acc if PROMOTED or PLANES else acc.wait(), index(0), True
                if SPLIT:
                    x, mine = reduce_parts(x, t, SPLIT, met, turn)
                    turn = turn + u32(INSTANCES)
                    first = t.part * x.shape[1]
                if GATHER:
                    if mine:
                        bring_slice(x, t, groups, sums, done, found[r.index, :])
                        store_share(x, first, C, t, groups, GATHER, sums, found[r.index, :], ending)
                        leave(done, t.number, found[r.index, :], thread_of(x))
                elif scatters and t.batch != call[0]:
                    send_sums(x, t, sent, signals, counts, call)
                elif mine:
                    if scatters:
                        x, t = add_sums(x, received, arrived, t, call), in_first_matrix(t)
                    store_columns(x, first, into, t, room, r.index, INSTANCES, ending, SHIFT)
