"""How the Hopper kernels store a result: piece by piece, since registers and shared memory do not suffice for more.

A piece is scaled and passed through the epilogue, goes to shared memory, and from there, in the background, by TMA;
where that cannot store C, by the threads.
"""

from __future__ import annotations

from math import gcd
from typing import Any, TypeVar

from tiledsl import (
    Fragment,
    Global,
    Memory,
    Scalar,
    SharedTile,
    View,
    barrier,
    cdiv,
    coordinates,
    f32,
    i8,
    index,
    load_fragment,
    rint,
    store,
    store_matrix,
    store_tma,
    tile,
    tile_function,
    u8,
    u32,
    unroll,
)
from tiledsl.dims import J, L, M, N, P, R
from tiledsl.gemm.epilogue import applied
from tiledsl.gemm.hopper_tiles import matrix, panels, piece_width, stored_by_tma
from tiledsl.gemm.parts import is_own, shares
from tiledsl.gemm.split_k import NARROW, add_up, gathered_width, thread_of

__all__ = ["pieces", "room_bytes", "rooms", "store_columns", "store_share"]

D = TypeVar("D", bound=Scalar)
E = TypeVar("E", bound=Scalar)

FULL, ROOMY = 176, 128
"""Accumulators of a thread, and rows, up to which results are stored in wide pieces."""
AT_ONCE = 16
"""Elements or vectors that a thread loads before it stores them: its accumulators leave registers for so many."""


def pieces(rows: int, columns: int, size: int, accumulators: int, by_tma: bool = True) -> tuple[int, int]:
    """Columns of the pieces in which a result is stored, whose elements have `size` bytes: at most 64 columns and 128
    bytes; and of those into which goes what these leave, or 0. For TMA they are spans of a swizzle: the narrowest if a
    thread's accumulators leave few registers, and divisors of `columns` if the instances have more than ROOMY rows,
    whose wide pieces would cost a stage. Threads store what is left as one piece, by way of the same memory."""
    wide = min(128 // size, 64, 1 << columns.bit_length() - 1)
    if not by_tma:
        return wide, columns % wide
    if accumulators > FULL:
        return 32 // size, 0
    wide = piece_width(columns, size) if rows > ROOMY else wide
    return wide, gcd(columns % wide, wide) % wide


def room_bytes(
    rows: int, columns: int, size: int, accumulators: int, instances: int, buffers: int, by_tma: bool = True
) -> int:
    """Of `rooms`, if the result is stored in row order, which takes most. buffers: of each instance, for TMA."""
    wide, rest = pieces(rows * instances, columns, size, accumulators, by_tma)
    return instances * rows * (size * (buffers * wide + rest) if by_tma else max(size * wide, 32))


@tile_function
def rooms(X: Memory[D], buffers: int, instances: int, rows: int, columns: int, accumulators: int) -> Any:
    """For the `pieces` of a result of rows x columns, of which a thread has so many accumulators: buffers of the wide
    ones, for all instances; and one for the narrow ones of each, or None if there are none, or X is in order of columns
    and what is left is stored at once, as fewer lines. Threads need one buffer for each instance."""
    wide, rest = pieces(rows * instances, columns, X.dtype.bytes, accumulators, stored_by_tma(X))
    if not stored_by_tma(X):
        return panels(X, instances, rows, max(wide, 32 // X.dtype.bytes)), None
    return panels(X, buffers, rows, wide), panels(X, instances, rows, rest) if rest and X.unit == X.rank - 1 else None


@tile_function
def store_lines(x: Fragment[E], to: View[E], via: View[E], most: int):
    """Stores x where TMA cannot: through shared memory, so that the stores are coalesced. most: elements of a vector of
    a row; or half as many and so on, where threads would not share a piece in whole rounds."""
    size, threads, thread = x.shape[0] * x.shape[1], x.layout.threads, thread_of(x)
    barrier()
    if to.dtype.bytes == 2:
        store_matrix(x, via)
    else:
        store(x, via)
    barrier()
    to, via = (to.T, via.T) if to.unit == 0 else (to, via)
    wide = max(n for n in (1, 2, 4, 8, 16) if n <= most and size % (n * threads) == 0)
    count, columns = size // (wide * threads), via.shape[1]
    each = max(n for n in range(1, AT_ONCE + 1) if count % n == 0)
    for first in range(0, count, each):
        at = [((first + i) * threads + thread) * wide for i in range(each)]
        places = [(i // columns, i % columns) for i in at]
        found = [via.load(m, n, vec=wide * to.dtype.bytes) if wide > 1 else via[m, n] for m, n in places]
        for i in unroll(each):
            to.put(places[i][0], places[i][1], found[i])


@tile_function
def finished(
    x: Fragment[Any],
    to: View[E],
    batch: index,
    row: index,
    column: index,
    ending: tuple[Any, ...],
) -> Fragment[E]:
    """A part x of the product as it is stored in `to`, which begins at this row and column of this matrix of C.

    ending: alpha, beta, bias, the scales of rows and columns or None, EXCHANGED, ADD_C and EPILOGUE of the kernel.
    """
    alpha, beta, bias, scales, exchanged, add_c, epilogue = ending
    if scales is not None:
        at, across = coordinates(x)
        x = x.to(f32) * (scales[0].get(batch, row + at, 0) * scales[1].get(batch, 0, column + across))
    kind = x.dtype
    y = kind(alpha) * x
    if add_c:
        y = kind(beta) * load_fragment(to, y.layout).to(kind) + y
    at, across = coordinates(y)
    added: Any = bias[batch, 0, :] if bias is not None and bias.rank == 3 else bias
    y = applied(epilogue, y, added, row + at if exchanged else column + across)
    return (rint(y) if to.dtype in (i8, u8) and y.dtype is f32 else y).to(to.dtype)


@tile_function
def store_columns(
    x: Fragment[Any],
    first: index,
    C: Global[E, L, M, N],
    t: Any,
    through: tuple[SharedTile[E], SharedTile[E] | None],
    instance: index,
    instances: int,
    ending: tuple[Any, ...],
    shift: int = 0,
):
    """Stores columns of the tile of item t, from its column `first` on, piece by piece. through: `rooms`. shift: tiles
    may begin so many columns before C, which is stored by TMA."""
    room, narrow = through
    by_tma, buffers = stored_by_tma(C), room.shape[0] // instances
    wide: int = min(x.shape[1], room.shape[1 if C.unit == 1 else 2])
    count, left = x.shape[1] // wide, x.shape[1] % wide
    rest: int = left if narrow is None else narrow.shape[2]
    for i in unroll(count + (left // rest if left else 0)):
        width, at = (wide, i * wide) if i < count else (rest, count * wide + (i - count) * rest)
        n: Any = tile(0, width) + (t.n.start + first + at)
        to: Any = C[t.batch, t.m, n]
        y = finished(x.columns(at, width), to, t.batch, t.m.start, n.start, ending)
        via: Any = room[instance * buffers + i % buffers, :, :]
        all_over = shift > 0 and i == 1  # if TMA stored no first piece, that of an earlier tile may have this room
        if shift and i == 0 and n.start < 0:
            store(y.columns(shift, width - shift), C[t.batch, t.m, tile(0, width - shift)], vec=2 * C.dtype.bytes)
        elif not by_tma:
            store_lines(y, to, matrix(via, C)[:, :width], max(1, C.align // C.dtype.bytes) if C.unit > 0 else 1)
        elif i < count or narrow is None:
            store_tma(y, to, via=matrix(via, C)[:, :width], in_flight=0 if all_over else min(i, buffers - 1))
        else:
            store_tma(y, to, via=narrow[instance, :, :], in_flight=0 if all_over or i > count else i)


@tile_function
def store_share(
    x: Fragment[Any],
    first: index,
    C: Global[E, L, M, N],
    t: Any,
    groups: index,
    gather: int,
    sums: Global[f32, P, R, J] | None,
    found: View[u32],
    ending: tuple[Any, ...],
):
    """Adds up and stores what is this CTA's of a slice x, which begins at column `first` of the tile of item t."""
    wide, count = gathered_width(x.shape[1], gather), shares(groups, x.shape[1] // NARROW)
    for share in range(count):
        if is_own(share, found):
            for i in range(cdiv(x.shape[1] // wide - share, count)):
                piece = share + i * count
                n = tile((t.n.start + first) // wide + piece, wide)
                y, to = add_up(x, t, gather, sums, piece), C[t.batch, t.m, n]
                y = finished(y, to, t.batch, t.m.start, n.start, ending)
                store(y, to, vec=min(2 * C.dtype.bytes, C.align) if C.unit == 2 else C.dtype.bytes)
