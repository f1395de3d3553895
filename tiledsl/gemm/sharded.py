"""Products over several ranks: who stores what where, and the launches of each rank.

Every rank has a *segment* of memory, all of one size, which the others can write to; they follow each other in the
address space of each rank, so that a tensor may reach over all of them. A segment has flags, which are zero at first,
and two halves, which calls use in turn:

- A rank sends for call e + 2 when its call e + 1 has ended. That waited for all others in their call e + 1, which they
  began when their call e had ended. So nobody still reads what was sent for call e, and all that this rank held for
  copies of call e has been sent.
- A flag is set to the number of the call, so that no one resets it, and one of an older call is not taken for it.

(What a kernel does with this: `peers.py`; `all_reduce.py` counts its calls itself, in memory of its own.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tiledsl.gemm.all_reduce import BLOCKS, all_reduce, all_reduce_words
from tiledsl.gemm.choice import best, ranked
from tiledsl.gemm.hopper import hopper_fastest
from tiledsl.gemm.pad import padded
from tiledsl.gemm.peers import BYTES
from tiledsl.gemm.plan import Problem, by_variant, choice_of
from tiledsl.gemm.steps import Place, Step
from tiledsl.ir.types import F32, U32, U64, DType
from tiledsl.lang import cdiv
from tiledsl.layout.shared import row_major

A, B, C, BIAS, CALL, SEGMENTS, SENT, SIGNALS = range(8)
"""Numbers of memories. CALL: three words, `of_call` of the kernels. SEGMENTS: of all ranks. SENT, SIGNALS: the same,
for a view that reaches over all segments, so that others lie within its span."""
OF_SEGMENTS = SEGMENTS, SENT, SIGNALS
SOMEWHERE = tuple((1 << 60) + (i << 50) for i in range(8))
"""Addresses of the memories while launches are planned: as aligned as they should be, and away from each other."""
FLAGS = 1 << 13
"""Most parts that are sent in a call."""
SMALL = 1 << 20
"""Most bytes that `all_reduce` takes."""
WORDS = 1 << 16
"""Most bytes that `all_reduce_words` takes: each thread has one of them, and half of what links carry is numbers."""
ROWS_SENT, SUMS_SENT = (16 << 20, 8), (8 << 20, 4)
"""Bytes of a part of rows, or of sums, about, since a copy and its flag take 5 us more, and about 12 where it waits for
sums; and most parts of a shard."""
MOST_BY_THREADS = 128 * 128
"""Up to so many sums for each SM and each other rank, threads send them: copies would come too late."""
SHORT, FEW_SUMS = 6144, 4 * 128 * 128
"""Up to so much k, or so many sums for each SM, the smaller tiles of two instances are faster. (Of k = 5504 and 7168
both took the same time.) Shards of few tiles are complete one after the other only if tiles are small."""
GRAIN = 1 << 10
ROWS, MANY = 128, 1000
"""Of a tile; more than there are variants."""


@dataclass(frozen=True)
class Layout:
    """Where parts of a segment begin, in bytes. Its two halves have `room` bytes each. pitch: from one to the next, at
    least `bytes`."""

    ranks: int
    room: int
    pitch: int = 0

    def arrived(self, half: int) -> int:
        return half * FLAGS * U32.bytes

    def ready(self, half: int) -> int:
        return self.arrived(2 + half)

    @property
    def counts(self) -> int:
        """Of all calls: one after the other, they leave zeros."""
        return self.arrived(4)

    @property
    def small_flags(self) -> int:
        return self.arrived(5)

    @property
    def epochs(self) -> int:
        return self.small_flags + 2 * self.ranks * BLOCKS * U32.bytes

    @property
    def words(self) -> int:
        return cdiv(self.epochs + BLOCKS * U32.bytes, GRAIN) * GRAIN

    @property
    def small(self) -> int:
        return self.words + 2 * self.ranks * 2 * WORDS

    def slots(self, half: int) -> int:
        return self.small + 2 * self.ranks * SMALL + half * cdiv(self.room, GRAIN) * GRAIN

    @property
    def zeros(self) -> int:
        """Bytes at the start that are zero at first."""
        return self.small

    @property
    def bytes(self) -> int:
        return self.slots(2)


@dataclass(frozen=True)
class Sharded:
    """A product of `ranks` shards of m rows each, of which this is number `rank`: m x k times k x n, k of each rank.

    dtype: of A, B and C. b: strides of B, in elements. bias, epilogue: as of `gemm`.
    """

    rank: int
    ranks: int
    m: int
    n: int
    k: int
    dtype: DType
    b: tuple[int, int]
    bias: bool = False
    epilogue: Any = None
    processors: int = 132


class Copy(NamedTuple):
    """`bytes` from `source` on, of A or of the segments, go to `to` of the segments; then the flag there becomes the
    number of the call. First the flag `ready` becomes that, unless it is None."""

    source: int
    to: int
    bytes: int
    flag: int
    ready: int | None


@dataclass(frozen=True)
class Send:
    """Rows of `to.shape` go to another rank, in as many parts as `flags` has words: of A, or of `held`, of which a part
    may be copied when its word of `ready` says so."""

    to: Place
    flags: Place
    held: Place | None = None
    ready: Place | None = None

    @property
    def copies(self) -> list[Copy]:
        """In their order."""
        (rows, _), (parts,), pitch = self.to.shape, self.flags.shape, self.to.strides[0] * self.to.dtype.bytes
        each, source = cdiv(rows, parts), 0 if self.held is None else self.held.offset
        return [
            Copy(
                source + part * each * pitch,
                self.to.offset + part * each * pitch,
                min(each, rows - part * each) * pitch,
                self.flags.offset + part * U32.bytes,
                None if self.ready is None else self.ready.offset + part * U32.bytes,
            )
            for part in range(parts)
        ]


class Product(NamedTuple):
    """What a rank does: it sends, one after the other, on a stream of their own, and launches a kernel."""

    sends: tuple[Send, ...]
    step: Step


def parts_of(rows: int, bytes: int, size: tuple[int, int]) -> int:
    """In how many parts so many rows are sent, none of them empty. bytes: of all. size: of a part, and most parts."""
    each, most = size
    return cdiv(rows, cdiv(rows, min(most, max(1, bytes // each))))


def row_bytes(of: Sharded) -> int:
    """Between rows of A, which TMA loads."""
    return padded(of.k, of.dtype.bytes) * of.dtype.bytes


def room_of(of: Sharded, consts: dict[str, Any], scatters: bool) -> int:
    """Bytes of a half that the product needs."""
    if not scatters:
        return of.ranks * of.m * row_bytes(of)
    slots, elements = _slots(of, consts)
    return (1 if by_threads(of, slots, elements) else 2) * of.ranks * slots * elements * of.dtype.bytes


def by_threads(of: Sharded, slots: int, elements: int) -> bool:
    """Whether threads store the sums of so many tiles of a shard, of so many elements, in the memory of other ranks."""
    tiles = of.ranks * slots
    return tiles <= FLAGS and tiles * elements <= MOST_BY_THREADS * of.processors * (of.ranks - 1)


def consts_of(of: Sharded, scatters: bool) -> dict[str, Any]:
    """The consts of `hopper_fastest`: what suits one product of all rows, whose k is not split. Where sums of few
    steps, or few sums, are scattered, two instances take turns, so that one stores, or adds up, while the other
    multiplies, without clusters, whose CTAs would wait for each other's stores."""
    whole = of.m % ROWS == 0
    problem = Problem(
        1 if whole else of.ranks, of.ranks * of.m if whole else of.m, of.n, of.k, of.dtype.name, of.dtype.name,
        unit_b=1 if of.b[0] == 1 else 2, tma_c=of.n * of.dtype.bytes % 16 == 0,
        epilogue=of.bias or of.epilogue is not None or scatters, processors=of.processors, batch_invariant=True,
    )  # fmt: skip
    request = choice_of(problem)._replace(exchange=False)
    if scatters and (of.k <= SHORT or of.ranks * of.m * of.n <= FEW_SUMS * of.processors):
        variants = (v for v, _ in ranked(MANY, request))
        variant = next(v for v in variants if v.tile[2] == 2 and v.along_m * v.along_n == 1)
    else:
        variant = best(request)
    plan = by_variant(problem, variant)
    finish = {} if of.epilogue is None else {"EPILOGUE": of.epilogue}
    return {**plan.consts, **finish, "RANKS": of.ranks}


def gathered(of: Sharded, consts: dict[str, Any], layout: Layout, half: int) -> Product:
    """C = A B, [ranks, m, n], of the A of all ranks and the B of this one."""
    pitch, size = row_bytes(of), of.dtype.bytes
    parts = parts_of(of.m, of.m * pitch, ROWS_SENT)
    start, arrived = layout.slots(half), layout.arrived(half)
    sends: list[Send] = []
    for distance in range(1, of.ranks):  # who comes to this shard first is served first
        peer = (of.rank - distance) % of.ranks * layout.pitch
        to = peer + start + of.rank * of.m * pitch
        flags = peer + arrived + of.rank * parts * U32.bytes
        rows_there = Place(SEGMENTS, of.dtype, (of.m, of.k), (pitch // size, 1), to)
        sends.append(Send(rows_there, Place(SEGMENTS, U32, (parts,), (1,), flags)))
    own, strides = of.rank * layout.pitch, (of.m * pitch // size, pitch // size, 1)
    arrays = {
        "A": Place(SEGMENTS, of.dtype, (of.ranks, of.m, of.k), strides, own + start),
        "C": Place(C, of.dtype, (of.ranks, of.m, of.n), row_major((of.ranks, of.m, of.n))),
        "own_rows": Place(A, of.dtype, (of.m, of.k), strides[1:]),
        "arrived": Place(SEGMENTS, U32, (of.ranks, parts), (parts, 1), own + arrived),
    }
    return Product(tuple(sends), _step(of, arrays, consts))


def scattered(of: Sharded, consts: dict[str, Any], layout: Layout, half: int) -> Product:
    """C = the shard of this rank, [m, n], of the sum of A B over all ranks, each with its A [ranks, m, k] and B."""
    slots, elements = _slots(of, consts)
    pitch, each, size = row_bytes(of) // of.dtype.bytes, slots * elements, of.dtype.bytes
    start, arrived, between = layout.slots(half), layout.arrived(half), layout.pitch
    own, shard = of.rank * between, (slots, elements)
    threads_send = by_threads(of, slots, elements)
    parts = slots if threads_send else parts_of(slots, each * size, SUMS_SENT)
    sums, flags, strides = (of.ranks, *shard), (of.ranks, parts), (each, elements, 1)
    arrays = {
        "A": Place(A, of.dtype, (of.ranks, of.m, of.k), (of.m * pitch, pitch, 1)),
        "C": Place(A, of.dtype, (of.ranks, of.m, of.n), (0, of.n, 1)),  # its shape alone counts; C is own_sums
        "own_sums": Place(C, of.dtype, (1, of.m, of.n), row_major((1, of.m, of.n))),
        "received": Place(SEGMENTS, of.dtype, sums, strides, own + start),
        "arrived": Place(SEGMENTS, U32, flags, (parts, 1), own + arrived),
    }
    # Of this rank, in the segment of another one.
    to, told = start + of.rank * each * size, arrived + of.rank * parts * U32.bytes
    sends: list[Send] = []
    if threads_send:
        arrays["sent"] = Place(SENT, of.dtype, sums, (between // size, elements, 1), to)
        arrays["signals"] = Place(SIGNALS, U32, flags, (between // U32.bytes, 1), told)
    else:
        held, ready = own + start + of.ranks * each * size, own + layout.ready(half)
        arrays["sent"] = Place(SEGMENTS, of.dtype, sums, strides, held)
        arrays["signals"] = Place(SEGMENTS, U32, flags, (parts, 1), ready)
        arrays["counts"] = Place(SEGMENTS, U32, flags, (parts, 1), own + layout.counts)
        for distance in range(1, of.ranks):  # in the order in which they are computed
            rank = (of.rank + distance) % of.ranks
            sends.append(
                Send(
                    Place(SEGMENTS, of.dtype, shard, (elements, 1), rank * between + to),
                    Place(SEGMENTS, U32, (parts,), (1,), rank * between + told),
                    Place(SEGMENTS, of.dtype, shard, (elements, 1), held + rank * each * size),
                    Place(SEGMENTS, U32, (parts,), (1,), ready + rank * parts * U32.bytes),
                )
            )
    return Product(tuple(sends), _step(of, arrays, consts))


def _step(of: Sharded, arrays: dict[str, Place], consts: dict[str, Any]) -> Step:
    arrays["B"] = Place(B, of.dtype, (of.ranks, of.k, of.n), (0, *of.b))
    arrays["of_call"] = Place(CALL, U32, (3,), (1,))
    if of.bias:
        arrays["bias"] = Place(BIAS, F32, (of.n,), (1,))
    return Step(hopper_fastest, arrays, consts, True)


def _slots(of: Sharded, consts: Mapping[str, Any]) -> tuple[int, int]:
    """How many tiles a shard has, and how many elements each."""
    height: int = consts["BM"] * consts["CLUSTER"][0]
    width: int = consts["BN"] * consts["CLUSTER"][1]
    tiles = cdiv(of.m, height) * consts["CLUSTER"][0] * cdiv(of.n, width) * consts["CLUSTER"][1]
    return tiles, consts["BM"] * consts["BN"]


def reduced(count: int, dtype: DType, rank: int, layout: Layout, words: int = WORDS) -> Step:
    """The C of all ranks, of `count` elements, becomes their sum in all of them. SMALL bytes at most, whole vectors; by
    words up to so many bytes."""
    assert count * dtype.bytes <= SMALL and count * dtype.bytes % BYTES == 0, f"{count} elements of {dtype}"
    ranks, between, own, size = layout.ranks, layout.pitch, rank * layout.pitch, dtype.bytes
    by_words = count * size <= words
    kernel, sent, start, place, of = (
        (all_reduce_words, U64, layout.words, 2 * WORDS // U64.bytes, count * size // U32.bytes)
        if by_words
        else (all_reduce, dtype, layout.small, SMALL // size, count)
    )
    of_half = ranks * place
    arrays = {
        "X": Place(C, dtype, (count,), (1,)),
        "sent": Place(
            SENT, sent, (ranks, 2, of), (between // sent.bytes, of_half, 1), start + rank * place * sent.bytes
        ),
        "received": Place(SEGMENTS, sent, (2, ranks, of), (of_half, place, 1), own + start),
        "epochs": Place(SEGMENTS, U32, (BLOCKS,), (1,), own + layout.epochs),
        "of_call": Place(CALL, U32, (3,), (1,)),
    }
    if not by_words:
        flags, words = layout.small_flags, ranks * BLOCKS
        at = flags + rank * BLOCKS * U32.bytes
        arrays["signals"] = Place(SIGNALS, U32, (ranks, 2, BLOCKS), (between // U32.bytes, words, 1), at)
        arrays["arrived"] = Place(SEGMENTS, U32, (2, ranks, BLOCKS), (words, BLOCKS, 1), own + flags)
    return Step(kernel, arrays, {"RANKS": ranks, "EARLY": True})
