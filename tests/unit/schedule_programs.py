"""Products of matrices under schedules that are written here, in the language, and that the compiler knows nothing of.

C = A B^T of f16 with an f32 result, or what the docstring says; any extents.
"""

from __future__ import annotations

from typing import Any

from tiledsl import (
    Cluster,
    Global,
    Place,
    Ring,
    Schedule,
    WorkItem,
    bf16,
    cdiv,
    const,
    coordinates,
    f16,
    f32,
    grid_size,
    i32,
    index,
    minimum,
    persistent,
    role,
    shared,
    store,
    store_tma,
    swizzle_128b,
    threads,
    tile,
    tile_function,
    tile_kernel,
    tile_schedule,
    tiles,
    tma_load,
    wgmma,
    where,
)
from tiledsl.dims import K, L, M, N, P

__all__ = [
    "by_columns",
    "grouped",
    "grouped_along_k",
    "grouped_in_turns",
    "split",
    "split_unequally",
    "stream_k",
    "sums_of_rows",
    "triangle",
    "two_schedules",
]

# -- what the products below have in common --------------------------------------------------------


@tile_function
def load_operands(work: Any, ring: Any, A: Any, B: Any) -> None:
    for t in work:
        for k in t.k:
            with ring.fill() as s:
                tma_load(A[t.m, k], s.a)
                tma_load(B[t.n, k], s.b)


@tile_function
def multiply(t: Any, ring: Any, bm: int, bn: int) -> Any:
    """The sum over the tiles along k of a work item."""
    acc = wgmma.accumulator((bm, bn), f32)
    for _ in t.k:
        with ring.use(in_flight=1) as s:
            acc = wgmma(s.a, s.b.T, acc)
    return acc.wait()


@tile_function
def add(x: Any, t: Any, C: Any) -> None:
    """Add a part of a sum to what is in C; past the edge, zero to what is there."""
    rows, columns = coordinates(x)
    i, j = t.m.start + rows, t.n.start + columns
    m, n = C.shape
    C.atomic_add(minimum(i, m - 1), minimum(j, n - 1), where((i < m) & (j < n), x, 0))


# -- groups whose sizes the device alone knows -----------------------------------------------------


@tile_function
def tiles_of_groups(place: Place, sizes: Any, n: Any, k: Any, bm: int, bn: int, bk: int) -> Any:
    """How many tiles all groups have together, each along m by itself."""
    rows = index(0)
    for group in range(sizes.shape[0]):
        rows += cdiv(index(sizes[group]), bm)
    return rows * cdiv(n, bn)


@tile_function
def tile_of_group(i: Any, place: Place, sizes: Any, n: Any, k: Any, bm: int, bn: int, bk: int) -> Any:
    """Tile number `i`: the group that it is of is searched for. end: the first row behind the group."""
    columns = cdiv(n, bn)
    row, group, first = i // columns, index(0), index(0)
    while row >= cdiv(index(sizes[group]), bm):
        row -= cdiv(index(sizes[group]), bm)
        first += index(sizes[group])
        group += 1
    end = first + index(sizes[group])
    return WorkItem(m=tile(row, bm) + first, n=tile(i % columns, bn), k=tiles(k, bk), group=group, end=end)


@tile_function
def store_of_group(x: Any, t: Any, C: Any) -> None:
    rows, columns = coordinates(x)
    i = t.m.start + rows
    C.put(where(i < t.end, i, C.shape[0]), t.n.start + columns, x)


@tile_kernel(arch="sm_90a")
def grouped(
    A: Global[f16, M, K],
    B: Global[f16, L, N, K],
    C: Global[f32, M, N],
    Sizes: Global[i32, L],
    *,
    BM: const = 128,
    BN: const = 64,
    BK: const = 64,
) -> None:
    """A grouped GEMM: so many rows of A, one group after the other, each with a matrix B of its own."""
    work = persistent(Schedule(tiles_of_groups, tile_of_group, Sizes, N, K, BM, BN, BK))
    ring = Ring(3, a=shared((BM, BK), f16, layout=swizzle_128b), b=shared((BN, BK), f16, layout=swizzle_128b))
    with role("load", registers=40, threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a)
                    tma_load(B[t.group, t.n, k], s.b)
    with role("math", warpgroups=2, registers=232):
        for t in work:
            store_of_group(multiply(t, ring, BM, BN), t, C)


@tile_kernel(arch="sm_90a")
def grouped_in_turns(
    A: Global[f16, M, K],
    B: Global[f16, L, N, K],
    C: Global[f32, M, N],
    Sizes: Global[i32, L],
    *,
    BM: const = 64,
    BN: const = 64,
    BK: const = 64,
) -> None:
    """The same with two instances. Past the last tile there is no group: `tile_of_group` is not asked for one."""
    work = persistent(Schedule(tiles_of_groups, tile_of_group, Sizes, N, K, BM, BN, BK))
    ring = Ring(3, a=shared((BM, BK), f16, layout=swizzle_128b), b=shared((BN, BK), f16, layout=swizzle_128b))
    with role("load", threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a)
                    tma_load(B[t.group, t.n, k], s.b)
    with role("math", instances=2) as math:
        for t in work:
            with math.turn("multiply"):
                x = multiply(t, ring, BM, BN)
            store_of_group(x, t, C)


# -- stream-K --------------------------------------------------------------------------------------


@tile_function
def share_of_block(m: Any, n: Any, k: Any, sizes: Any) -> Any:
    """How many tiles there are, how many steps along k each has, at least one, and how many steps a block does."""
    bm, bn, bk = sizes
    count, steps = cdiv(m, bm) * cdiv(n, bn), max(1, cdiv(k, bk))
    return count, steps, cdiv(count * steps, grid_size())


@tile_function
def parts_of_blocks(place: Place, m: Any, n: Any, k: Any, sizes: Any) -> Any:
    """Each block has as many items as one share can touch tiles."""
    _, steps, share = share_of_block(m, n, k, sizes)
    return grid_size() * (cdiv(share, steps) + 1)


@tile_function
def part_of_block(i: Any, place: Place, m: Any, n: Any, k: Any, sizes: Any) -> Any:
    """Part number ``i // blocks`` of what block ``i % blocks`` does; the last ones may be empty."""
    bm, bn, bk = sizes
    count, steps, share = share_of_block(m, n, k, sizes)
    begin = i % grid_size() * share
    number = begin // steps + i // grid_size()
    first = max(begin - number * steps, 0)
    last = max(first, min(steps, min(begin + share, count * steps) - number * steps))
    rows = cdiv(m, bm)
    along_k = tiles(min(k, last * bk), bk, start=first * bk)
    return WorkItem(m=tile(number % rows, bm), n=tile(number // rows, bn), k=along_k, steps=last - first)


@tile_kernel(arch="sm_90a")
def stream_k(
    A: Global[f16, M, K],
    B: Global[f16, N, K],
    C: Global[f32, M, N],
    *,
    BM: const = 64,
    BN: const = 64,
    BK: const = 64,
    INSTANCES: const = 1,
) -> None:
    """C += A B^T: every block does as many steps of the product as every other one, wherever tiles begin and end."""
    work = persistent(Schedule(parts_of_blocks, part_of_block, M, N, K, (BM, BN, BK)))
    ring = Ring(3, a=shared((BM, BK), f16, layout=swizzle_128b), b=shared((BN, BK), f16, layout=swizzle_128b))
    with role("load", threads=1):
        load_operands(work, ring, A, B)
    with role("math", instances=INSTANCES) as math:
        for t in work:
            with math.turn("multiply"):
                x = multiply(t, ring, BM, BN)
            if t.steps > 0:
                add(x, t, C)


# -- parts of k of different lengths ---------------------------------------------------------------


@tile_function
def unequal_count(place: Place, m: Any, n: Any, k: Any, sizes: Any, parts: int) -> Any:
    return cdiv(m, sizes[0]) * cdiv(n, sizes[1]) * parts


@tile_function
def unequal_item(i: Any, place: Place, m: Any, n: Any, k: Any, sizes: Any, parts: int) -> Any:
    """Parts of 1, 2, 3 tiles and so on, the last one of what is left. Some may begin past k, and have none."""
    bm, bn, bk = sizes
    part, rest, rows = i % parts, i // parts, cdiv(m, bm)
    first, behind = part * (part + 1) // 2 * bk, (part + 1) * (part + 2) // 2 * bk
    along_k = tiles(k if part == parts - 1 else min(k, behind), bk, start=first)
    return WorkItem(m=tile(rest % rows, bm), n=tile(rest // rows, bn), k=along_k)


@tile_kernel(arch="sm_90a")
def split_unequally(
    A: Global[f16, M, K],
    B: Global[f16, N, K],
    C: Global[f32, M, N],
    *,
    BM: const = 64,
    BN: const = 64,
    BK: const = 64,
    PARTS: const = 3,
    INSTANCES: const = 2,
) -> None:
    """C += A B^T. An instance goes past as many slots as the item of the other one has steps."""
    work = persistent(Schedule(unequal_count, unequal_item, M, N, K, (BM, BN, BK), PARTS))
    ring = Ring(2, a=shared((BM, BK), f16, layout=swizzle_128b), b=shared((BN, BK), f16, layout=swizzle_128b))
    with role("load", threads=1):
        load_operands(work, ring, A, B)
    with role("math", instances=INSTANCES) as math:
        for t in work:
            with math.turn("multiply"):
                x = multiply(t, ring, BM, BN)
            add(x, t, C)


@tile_kernel(arch="sm_90a")
def split(
    A: Global[f16, M, K],
    B: Global[f16, N, K],
    C: Global[f32, M, N],
    *,
    BM: const = 64,
    BN: const = 64,
    BK: const = 64,
    SPLITS: const = 3,
    INSTANCES: const = 2,
) -> None:
    """The same with the parts of `tile_schedule`, of which the last ones are shorter, or empty."""
    work = persistent(tile_schedule(M, N, K, tile=(BM, BN, BK), splits=SPLITS))
    ring = Ring(3, a=shared((BM, BK), f16, layout=swizzle_128b), b=shared((BN, BK), f16, layout=swizzle_128b))
    with role("load", threads=1):
        load_operands(work, ring, A, B)
    with role("math", instances=INSTANCES) as math:
        for t in work:
            with math.turn("multiply"):
                x = multiply(t, ring, BM, BN)
            add(x, t, C)


# -- lengths along k that are in memory ------------------------------------------------------------


@tile_function
def sums_count(place: Place, ends: Any, m: Any, n: Any, sizes: Any) -> Any:
    return (ends.shape[0] - 1) * cdiv(m, sizes[0]) * cdiv(n, sizes[1])


@tile_function
def sums_item(i: Any, place: Place, ends: Any, m: Any, n: Any, sizes: Any) -> Any:
    """Sum number s goes from tile ``ends[s]`` along k to tile ``ends[s + 1]``: past the last sum there is none."""
    bm, bn, bk = sizes
    rows, columns = cdiv(m, bm), cdiv(n, bn)
    number, rest = i // (rows * columns), i % (rows * columns)
    along_k = tiles(index(ends[number + 1]) * bk, bk, start=index(ends[number]) * bk)
    return WorkItem(m=tile(rest % rows, bm), n=tile(rest // rows, bn), k=along_k, number=number)


@tile_kernel(arch="sm_90a")
def grouped_along_k(
    A: Global[f16, M, K],
    B: Global[f16, N, K],
    C: Global[f32, P, M, N],
    Ends: Global[i32, L],
    *,
    BM: const = 64,
    BN: const = 64,
    BK: const = 64,
    INSTANCES: const = 2,
) -> None:
    """C[s] is the product of so many columns of A and B, which follow each other."""
    work = persistent(Schedule(sums_count, sums_item, Ends, M, N, (BM, BN, BK)))
    ring = Ring(3, a=shared((BM, BK), f16, layout=swizzle_128b), b=shared((BN, BK), f16, layout=swizzle_128b))
    with role("load", threads=1):
        load_operands(work, ring, A, B)
    with role("math", instances=INSTANCES) as math:
        for t in work:
            with math.turn("multiply"):
                x = multiply(t, ring, BM, BN)
            store(x, C[t.number, t.m, t.n])


# -- clusters --------------------------------------------------------------------------------------


@tile_function
def columns_count(place: Place, m: Any, n: Any, k: Any, sizes: Any) -> Any:
    return cdiv(m, sizes[0] * place.m) * cdiv(n, sizes[1] * place.n)


@tile_function
def columns_item(i: Any, place: Place, m: Any, n: Any, k: Any, sizes: Any) -> Any:
    """Tiles of a cluster one under the other, column after column; each block has its place in them."""
    rows = cdiv(m, sizes[0] * place.m)
    row, column = i % rows * place.m + place.at_m, i // rows * place.n + place.at_n
    return WorkItem(m=tile(row, sizes[0]), n=tile(column, sizes[1]), k=tiles(k, sizes[2]))


@tile_kernel(arch="sm_90a")
def by_columns(
    A: Global[bf16, M, K],
    B: Global[bf16, N, K],
    C: Global[bf16, M, N],
    *,
    BM: const = 64,
    BN: const = 64,
    BK: const = 64,
    CM: const = 2,
    CN: const = 1,
) -> None:
    """Blocks of a cluster share what they load."""
    work = persistent(Schedule(columns_count, columns_item, M, N, K, (BM, BN, BK)), cluster=Cluster(m=CM, n=CN))
    ring = Ring(3, a=shared((BM, BK), bf16, layout=swizzle_128b), b=shared((BN, BK), bf16, layout=swizzle_128b))
    out = shared((BM, BN), bf16, layout=swizzle_128b)
    with role("load", threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a, multicast="n")
                    tma_load(B[t.n, k], s.b, multicast="m")
    with role("math"):
        for t in work:
            store_tma(multiply(t, ring, BM, BN).to(bf16), C[t.m, t.n], via=out)


# -- one item a block ------------------------------------------------------------------------------


@tile_function
def triangle_count(place: Place, m: Any, k: Any, size: int, bk: int) -> Any:
    rows = cdiv(m, size)
    return rows * (rows + 1) // 2


@tile_function
def triangle_item(i: Any, place: Place, m: Any, k: Any, size: int, bk: int) -> Any:
    """Row r of the tiles begins at r (r + 1) / 2."""
    row = index(0)
    while i >= (row + 1) * (row + 2) // 2:
        row += 1
    column = i - row * (row + 1) // 2
    return WorkItem(m=tile(row, size), n=tile(column, size), k=tiles(k, bk), diagonal=row == column)


@tile_kernel(arch="sm_90a")
def triangle(A: Global[f16, M, K], C: Global[f32, M, M], *, SIZE: const = 64, BK: const = 64) -> None:
    """The lower triangle of C = A A^T: only its tiles are computed, one a block, and above the diagonal is nothing."""
    work = Schedule(triangle_count, triangle_item, M, K, SIZE, BK)
    ring = Ring(3, a=shared((SIZE, BK), f16, layout=swizzle_128b), b=shared((SIZE, BK), f16, layout=swizzle_128b))
    with role("load", threads=1):
        load_operands(work, ring, A, A)
    with role("math"):
        for t in work:
            x = multiply(t, ring, SIZE, SIZE)
            rows, columns = coordinates(x)
            i, j = t.m.start + rows, t.n.start + columns
            if t.diagonal:
                C.put(where(i >= j, i, M), j, x)
            else:
                C.put(i, j, x)


@tile_kernel(arch="sm_90a")
def two_schedules(A: Global[f16, M, K], B: Global[f16, N, K], C: Global[f32, M, N]) -> None:
    """Roles whose schedules are two objects; they agree, and so do the grids that they declare."""
    work, same = (tile_schedule(M, N, K, tile=(64, 64, 64)) for _ in range(2))
    ring = Ring(3, a=shared((64, 64), f16, layout=swizzle_128b), b=shared((64, 64), f16, layout=swizzle_128b))
    out = shared((64, 32), f32, layout=swizzle_128b)
    with role("load", threads=1):
        load_operands(work, ring, A, B)
    with role("math"):
        for t in same:
            store_tma(multiply(t, ring, 64, 64), C[t.m, t.n], via=out)


# -- parts of other names --------------------------------------------------------------------------


@tile_function
def rows_count(place: Place, rows: Any, each: int) -> Any:
    return cdiv(rows, each)


@tile_function
def rows_item(i: Any, place: Place, rows: Any, each: int) -> Any:
    return WorkItem(first=i * each, last=min(rows, (i + 1) * each), even=i % 2 == 0)


@tile_kernel
def sums_of_rows(X: Global[f32, M, N], Y: Global[f32, M], *, EACH: const = 3) -> None:
    """Nothing of a product, and no roles: bands of rows, of which every second one is negated."""
    work = persistent(Schedule(rows_count, rows_item, M, EACH))
    tid = threads(32)
    for t in work:
        for row in range(t.first, t.last):
            total = f32(0)
            for column in range(N):
                total += X[row, column]
            if tid == 0:
                Y[row] = total if t.even else -total
