"""The fastest: what the steps before it found, with tiles that fit the product.

A thread loads, two warpgroups multiply: both halves of one tile, or, with INSTANCES = 2, a tile each in turns, so
that one stores its result while the other has the tensor cores. Blocks take tiles until none is left, in bands of
GROUP rows of tiles, whose operands stay in the L2 cache. The result leaves in pieces as wide as `out`, each scaled
and finished by itself: there are no registers for more.

A, B and C are batches of matrices; `hopper_gemm.gemm` takes whatever TMA cannot.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

from hopper_tiles import as_stored, chunks, matrix, staging

from tiledsl import (
    Cluster,
    Const,
    Float,
    Fragment,
    Global,
    Memory,
    Ring,
    View,
    cdiv,
    const,
    coordinates,
    f32,
    index,
    load_fragment,
    persistent,
    role,
    store,
    store_tma,
    tile,
    tile_function,
    tile_kernel,
    tile_schedule,
    tma_load,
    unroll,
    wgmma,
)
from tiledsl.dims import K, L, M, N
from tiledsl.lang.ranges import Range

__all__ = ["Epilogue", "add_bias", "choose", "finished", "hopper_fastest", "plain"]

D = TypeVar("D", bound=Float)
E = TypeVar("E", bound=Float)
Epilogue = Callable[[Fragment[f32], Any, Fragment[index]], Fragment[f32]]


@tile_function
def plain(x: Fragment[f32], bias: Memory[f32] | None, column: Fragment[index]) -> Fragment[f32]:
    """The result as it is."""
    return x


@tile_function
def add_bias(x: Fragment[f32], bias: Memory[f32] | None, column: Fragment[index]) -> Fragment[f32]:
    """The result plus one number for each column."""
    return x + bias.get(column) if bias is not None else x


@tile_function
def finished(
    x: Fragment[f32],
    part: View[E],
    bias: Memory[f32] | None,
    columns: Range,
    alpha: f32 | float,
    beta: f32 | float,
    add: bool,
    epilogue: Epilogue,
) -> Fragment[f32]:
    """The epilogue of alpha x + beta C, `part` being that part of C; without `add` it is not read."""
    x = alpha * x
    if add:
        x = beta * load_fragment(part, x.layout).to(f32) + x
    return epilogue(x, bias, columns.start + coordinates(x)[1])


@tile_kernel(arch="sm_90a")
def hopper_fastest(
    A: Global[D, L, M, K],
    B: Global[D, L, K, N],
    C: Global[E, L, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
    bias: Global[f32, N] | None = None,
    *,
    BM: const = 128,
    BN: const = 256,
    BK: const = 64,
    STAGES: const = 4,
    OUT: const = 2,
    GROUP: const = 8,
    CLUSTER: Const[tuple[int, int]] = (1, 1),
    INSTANCES: const = 1,
    ADD_C: Const[bool] = False,
    EPILOGUE: Const[Epilogue] = plain,
):
    along_m, along_n = CLUSTER
    work = persistent(tile_schedule(M, N, K, (BM, BN, BK), GROUP, batches=L), Cluster(along_m, along_n))
    ring = Ring(STAGES, a=staging(A, BM, BK), b=staging(B, BK, BN))
    out = chunks(C, OUT * INSTANCES, BM, BN)
    wide = out.shape[2]
    with role("load", registers=24, threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(as_stored(A[t.batch, t.m, k]), s.a, multicast="n" if along_n > 1 else "")
                    tma_load(as_stored(B[t.batch, k, t.n]), s.b, multicast="m" if along_m > 1 else "")
    with role("math", warpgroups=2 // INSTANCES, registers=240, instances=INSTANCES) as r:
        for t in work:
            acc = wgmma.accumulator((BM, BN), f32)
            with r.turn("multiply"):
                for _ in t.k:
                    with ring.use(in_flight=1) as s:
                        acc = wgmma(matrix(s.a, A), matrix(s.b, B), acc)
            with r.turn("store"):
                sums = acc.wait()
                for i in unroll(BN // wide):
                    n = tile(t.n.start // wide + i, wide)
                    to = C[t.batch, t.m, n]
                    x = finished(sums.columns(i * wide, wide), to, bias, n, alpha, beta, ADD_C, EPILOGUE).to(C.dtype)
                    if C.unit == 2 and C.align == 16:
                        store_tma(x, to, via=out[r.index * OUT + i % OUT, :, :], in_flight=min(i, OUT - 1))
                    else:
                        store(x, to)


class Choice(NamedTuple):
    """Consts, and what they are good for.

    speed: of the main loop, relative to others. exposed: elements of k that take as long as the epilogue, where no
    other tile's products hide it. least: elements of k under which a tile takes no less time, since it must be stored.
    """

    consts: dict[str, Any]
    speed: float
    exposed: int
    least: int


CHOICES = (
    Choice({"BN": 176, "INSTANCES": 2}, 0.985, 0, 280),
    Choice({"BN": 160, "INSTANCES": 2}, 0.975, 0, 208),
    Choice({"BN": 128, "INSTANCES": 2}, 0.95, 0, 224),
    Choice({"BN": 256}, 0.97, 300, 0),
    Choice({"BN": 144, "STAGES": 5}, 0.96, 300, 0),
    Choice({"BN": 128, "STAGES": 6}, 0.95, 300, 0),
)
"""Measured at 4096 and 8192 cubed, and at 8192 x 8192 with k from 128 to 512."""

LARGE = 1 << 28
"""Elements of a result, from which on blocks that run at the same time do not find what they share in L2: there the
widest tile, which loads least, is ahead."""


@cache
def choose(
    m: int, n: int, k: int, format: str = "bf16", processors: int = 132, along_k: bool = False, plain: bool = True
) -> dict[str, Any]:
    """The consts for a product of m x n x k: those under which the busiest SM of `processors` is done first.

    along_k: B lies along k, so that any multiple of 16 can be the width of a tile; else 64 divides it. plain: without
    an epilogue function, for which the widest tiles of pingpong have no registers left.
    """

    def clocks(choice: Choice) -> float:
        width: int = choice.consts["BN"]
        waves = cdiv(cdiv(m, 128) * cdiv(n, width), processors)
        alone = 1.4 if waves == 1 and not choice.exposed else 1  # of a pair that takes turns, one has nothing to do
        return waves * width * (max(k, choice.least) / choice.speed * alone + choice.exposed)

    if m * n >= LARGE:
        return {"BN": 256, "GROUP": 16}
    fitting = [c for c in CHOICES if (along_k or c.consts["BN"] % 64 == 0)]
    return min((c for c in fitting if plain or c.exposed or c.consts["BN"] <= 128), key=clocks).consts


if __name__ == "__main__":
    from gallery import main

    main(hopper_fastest)
