"""Random products of matrices on tensor cores: every product of mma.sync and wgmma, any numbers, ragged sizes.

`random_matrices(seed)` gives a kernel, consts and arrays for it. Odd seeds multiply with mma.sync, whose operands come
through ldmatrix or plain loads; even ones with wgmma, whose operands come by TMA, the left one also through registers.
Results leave as the accumulator's dtype or converted to another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from types import FunctionType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tiledsl import (
    Const,
    FragmentLayout,
    Global,
    Layout,
    Scalar,
    barrier,
    cdiv,
    const,
    copy,
    f16,
    f32,
    grid,
    i8,
    i32,
    load_fragment,
    load_matrix,
    mma,
    ptx,
    shared,
    store,
    swizzle_32b,
    swizzle_64b,
    swizzle_128b,
    tf32,
    threads,
    tile,
    tile_kernel,
    tiles,
    tma_load,
    u8,
    u32,
    u64,
    unroll,
    wgmma,
)
from tiledsl.dims import K, M, N
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import DTYPES, DType
from tiledsl.layout.mma import TABLE, MmaRow
from tiledsl.layout.wgmma import WGMMA, WgmmaRow

__all__ = ["MatrixCase", "by_mma", "by_wgmma", "random_matrices"]

Array = NDArray[Any]
A_ = TypeVar("A_", bound=Scalar)
B_ = TypeVar("B_", bound=Scalar)
S_ = TypeVar("S_", bound=Scalar)
O_ = TypeVar("O_", bound=Scalar)


@tile_kernel
def by_mma(
    A: Global[A_, M, K],
    B: Global[B_, K, N],
    C: Global[S_, M, N],
    OUT: Global[O_, M, N],
    *,
    LAYOUT: Const[FragmentLayout],
    BM: const = 32,
    BN: const = 32,
    BK: const = 32,
    STEP: const = 16,
    VEC: Const[tuple[int, int]] = (2, 2),
    MATRICES: Const[bool] = True,
    TALL: Const[bool] = False,
):
    """OUT = A B + C. MATRICES: operands by ldmatrix, else by plain loads. TALL: B's tile has k along its rows."""
    bx, by = grid(cdiv(N, BN), cdiv(M, BM))
    threads(LAYOUT.threads)
    m, n = tile(by, BM), tile(bx, BN)
    As = shared((BM, BK), A.dtype)
    Bs = shared((BN, BK) if TALL else (BK, BN), B.dtype)
    acc = load_fragment(C[m, n], LAYOUT)
    for k in tiles(K, BK):
        copy(A[m, k], As, vec=VEC[0])
        copy(B[k, n].T if TALL else B[k, n], Bs, vec=VEC[1])
        barrier()
        right = Bs.T if TALL else Bs
        for kk in unroll(tiles(BK, STEP)):
            if MATRICES:
                a, b = load_matrix(As[:, kk], acc.a), load_matrix(right[kk, :], acc.b)
            else:
                a, b = load_fragment(As[:, kk], acc.a), load_fragment(right[kk, :], acc.b)
            acc = mma(a.bitcast(tf32), b.bitcast(tf32), acc) if a.dtype is f32 else mma(a, b, acc)
        barrier()
    store(acc.to(OUT.dtype), OUT[m, n])


def _wgmma_product(
    A: Global[A_, M, K],
    B: Global[B_, N, K],
    OUT: Global[O_, M, N],
    *,
    HALF: Const[bool] = False,
    BM: const = 64,
    BN: const = 64,
    BK: const = 64,
    BYTES: const = 2,
    ACROSS: Const[tuple[bool, bool]] = (False, False),
    REGISTERS: Const[bool] = False,
    LEFT: Const[Layout] = swizzle_128b,
    RIGHT: Const[Layout] = swizzle_128b,
):
    """OUT = A B^T. ACROSS: are the tiles of A and of B contiguous along m and n, as the arrays are? REGISTERS: A comes
    from registers."""
    bx, by = grid(cdiv(N, BN), cdiv(M, BM))
    thread = threads(2 * BM)
    m, n = tile(by, BM), tile(bx, BN)
    As = shared((BK, BM) if ACROSS[0] else (BM, BK), A.dtype, layout=LEFT)
    Bs = shared((BK, BN) if ACROSS[1] else (BN, BK), B.dtype, layout=RIGHT)
    arrived = shared((1,), u64)
    if thread == 0:
        ptx.mbarrier_init(arrived, 0, count=1)
        ptx.fence_mbarrier_init()
    barrier()
    acc, phase = wgmma.accumulator((BM, BN), f16 if HALF else i32 if A.dtype in (i8, u8) else f32), u32(0)
    for k in tiles(K, BK):
        if thread == 0:
            ptx.mbarrier_expect_tx(arrived, 0, bytes=(BM + BN) * BK * BYTES)
            tma_load(A[m, k].T if ACROSS[0] else A[m, k], As, mbarrier=(arrived, 0))
            tma_load(B[n, k].T if ACROSS[1] else B[n, k], Bs, mbarrier=(arrived, 0))
        ptx.mbarrier_wait(arrived, 0, parity=phase)
        phase = phase ^ 1
        left = As.T if ACROSS[0] else As
        right = Bs if ACROSS[1] else Bs.T
        if REGISTERS:
            held = load_matrix(left, acc.a)
            ptx.wgmma_fence()
            acc = wgmma(held, right, acc)
        else:
            ptx.wgmma_fence()
            acc = wgmma(left, right, acc)
        ptx.wgmma_commit()
        ptx.wgmma_wait(0)
        ptx.fence_proxy_async()
        barrier()
    store(acc.wait().to(OUT.dtype), OUT[m, n])


def _of_tf32(function: Any) -> Any:
    """The same function of operands of tf32: arrays of f32 would be bound as f32."""
    same = FunctionType(function.__code__, function.__globals__, "by_wgmma_tf32")
    same.__kwdefaults__ = function.__kwdefaults__
    same.__annotations__ = {**function.__annotations__, "A": "Global[tf32, M, K]", "B": "Global[tf32, N, K]"}
    return same


by_wgmma = tile_kernel(arch="sm_90a")(_wgmma_product)
by_wgmma_tf32 = tile_kernel(arch="sm_90a")(_of_tf32(_wgmma_product))


@dataclass(frozen=True)
class MatrixCase:
    """A kernel with consts, and arrays for it: A, B (as the kernel takes it), C if it has one, and the result."""

    kernel: Any
    row: MmaRow | WgmmaRow
    consts: dict[str, Any]
    arrays: tuple[Array, ...]

    def __str__(self) -> str:
        (m, k), (_, n) = self.arrays[0].shape, self.arrays[-1].shape
        return f"{self.kernel.name}, {self.row}, {m}x{n}x{k}, {self.consts}"


def random_matrices(seed: int) -> MatrixCase:
    random, rng = Random(seed), np.random.default_rng(seed)
    return _mma_case(random, rng) if seed % 2 else _wgmma_case(random, rng)


def _mma_case(random: Random, rng: np.random.Generator) -> MatrixCase:
    row: MmaRow = random.choice(TABLE)
    shape, bits = row.shape, DTYPES[row.a].bits
    warps = random.choice([(1, 1), (2, 1), (1, 2), (2, 2)])
    bm, bn = shape.m * warps[0] * random.choice([1, 2]), shape.n * warps[1] * random.choice([2, 4])
    bk = shape.k * random.choice([1, 2, 4] if shape.m > 8 else [2, 4])  # each thread copies an element at least
    tall = bits != 16 or random.random() < 0.5
    matrices = bits <= 32 and shape.m == 16 and random.random() < 0.6
    m, n, k = (random.randint(1, 2 * size) for size in (bm, bn, 2 * bk))
    a = _strided(random, _numbers(random, rng, DTYPES[row.a], (m, k)))
    b = _strided(random, _numbers(random, rng, DTYPES[row.b], (k, n)))
    c = _strided(random, _numbers(random, rng, DTYPES[row.acc], (m, n)))
    layout = getattr(mma, str(shape)).acc(warps=warps)
    consts = {
        "LAYOUT": layout, "BM": bm, "BN": bn, "BK": bk, "STEP": shape.k, "VEC": (a.itemsize, b.itemsize),
        "MATRICES": matrices, "TALL": tall,
    }  # fmt: skip
    return MatrixCase(by_mma, row, consts, (a, b, c, _result(random, row.acc, m, n)))


def _wgmma_case(random: Random, rng: np.random.Generator) -> MatrixCase:
    row: WgmmaRow = random.choice(WGMMA)
    size = row.bits // 8
    across = tuple(size == 2 and random.random() < 0.4 for _ in range(2))
    registers = not across[0] and random.random() < 0.4
    spans = {32: swizzle_32b, 64: swizzle_64b, 128: swizzle_128b}
    depth = random.choice([32, 64, 128])  # bytes of k in a tile, and the span where the tile is contiguous along k
    if registers and size == 4:
        depth = max(depth, 64)  # fragments have multiples of 16 columns
    bm, bk = random.choice([64, 128]), depth // size
    width = random.choice([w for w in row.widths() if w <= 128])
    if across[1]:
        width = random.choice([16, 32, 64, 128])
    left = min(128, bm * size) if across[0] else depth
    right = max(s for s in spans if width * size % s == 0) if across[1] else depth
    m, n, k = random.randint(1, 2 * bm), random.randint(1, 2 * width), random.randint(1, 3 * bk)
    a = _for_tma(_numbers(random, rng, DTYPES[row.a], (m, k)), across[0])
    b = _for_tma(_numbers(random, rng, DTYPES[row.b], (n, k)), across[1])
    consts = {
        "HALF": row.acc == "f16", "BM": bm, "BN": width, "BK": bk, "BYTES": size, "ACROSS": across,
        "REGISTERS": registers, "LEFT": spans[left], "RIGHT": spans[right],
    }  # fmt: skip
    kernel = by_wgmma_tf32 if row.a == "tf32" else by_wgmma
    return MatrixCase(kernel, row, consts, (a, b, _result(random, row.acc, m, n)))


NARROWER = {"f32": ("f16", "bf16", "e4m3", "e5m2"), "f16": ("f32",), "f64": ("f32",), "i32": ("i8", "f32")}


def _result(random: Random, acc: str, m: int, n: int) -> Array:
    name = acc if random.random() < 0.6 else random.choice(NARROWER[acc])
    return np.zeros((m, n), numpy_dtype(DTYPES[name]))


def _numbers(random: Random, rng: np.random.Generator, dtype: DType, shape: tuple[int, int]) -> Array:
    """Any bits; ordinary numbers; exponents far apart; or subnormal or special numbers among ordinary ones."""
    stored = numpy_dtype(dtype)
    width = np.dtype(f"u{stored.itemsize}")
    bits = rng.integers(0, np.iinfo(width).max, shape, width, endpoint=True)
    kind = random.choice(["any", "ordinary", "apart", "subnormal", "special"])
    if dtype.is_integer or kind == "any":
        return bits.view(stored)
    numbers = rng.standard_normal(shape)
    if kind == "apart":
        numbers *= np.exp2(rng.integers(-30, 30, shape))
    with np.errstate(over="ignore"):
        made = numbers.astype(np.float64 if dtype.bits == 64 else np.float32).astype(stored)
    few = rng.random(shape) < random.choice([0.005, 0.05])
    if kind == "subnormal":
        small = (bits & width.type((1 << (stored.itemsize * 8 - 6)) - 1)).view(stored)  # the exponents near zero
        return np.where(rng.random(shape) < 0.7, small, made)
    return np.where(few, bits.view(stored), made) if kind == "special" else made


def _strided(random: Random, array: Array) -> Array:
    """Row-major, column-major or with a gap behind each row."""
    match random.randrange(3):
        case 0:
            return array
        case 1:
            return np.asfortranarray(array)
        case _:
            wide = np.zeros((array.shape[0], array.shape[1] + 3), array.dtype)
            wide[:, :-3] = array
            return wide[:, :-3]


def _for_tma(array: Array, across: bool) -> Array:
    """The same with rows (`across`: columns) that begin at multiples of 16 bytes."""
    rows = array.T if across else array
    each = 16 // array.itemsize
    wide = np.zeros((rows.shape[0], -(-rows.shape[1] // each) * each), array.dtype)
    wide[:, : rows.shape[1]] = rows
    found = wide[:, : rows.shape[1]]
    return found.T if across else found
