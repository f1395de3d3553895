"""f32 and f64 as integers modulo small numbers, whose residues tensor cores multiply in 8 bits, exactly.

(Ozaki, Uchino and Imamura, "Ozaki Scheme II", 2025.) Each row of A and each column of B is scaled by a power of two
and rounded to integers of `bits` bits and a sign. Moduli without common factors, each at most 256, have a product P. An
element of the product of these integers is less than P / 2 in size, so its residues say what it is (Chinese remainder
theorem). The residues of A, modulo each number, times those of B are products of i8 into i32: batches of one launch,
whose results are reduced to residues again. The last launch makes floats of them.
"""

from __future__ import annotations

from math import gcd, prod
from typing import Any, TypeVar

from tiledsl import (
    Const,
    Fragment,
    Global,
    Memory,
    Scalar,
    SharedTile,
    cdiv,
    const,
    f32,
    f64,
    fragment,
    grid,
    i8,
    i32,
    i64,
    index,
    lane_id,
    ptx,
    rint,
    shared,
    threads,
    tile_function,
    tile_kernel,
    unroll,
    warp_id,
)
from tiledsl.dims import J, K, L, M, N, P, Q
from tiledsl.gemm.epilogue import Epilogue, add_bias, applied
from tiledsl.gemm.formats import Residues
from tiledsl.gemm.pad import J2, K2, M2
from tiledsl.gemm.planes import ROWS, STEP, VEC, WARPS, blocks, by_columns, inverse, lines_of, places_of
from tiledsl.ir.types import F32, F64

__all__ = ["CONSTANTS", "MODULI", "bits_for", "combined", "reduced", "residues_of_both", "residues_width"]

D = TypeVar("D", bound=Scalar)

WIDE = 16
"""Bytes of aligned rows."""
LARGEST_K = (1 << 17) - 1
"""Sums of so many products of residues are below 2^31."""
PART = 42
"""Bits of a part of a number: sums of 16 products of parts and residues are exact in f64."""
HIGH = 20
"""A sum is taken apart at this bit: what is above counts 2^HIGH modulo the number."""
AT_ONCE = 4
"""Elements of a row that a thread combines."""


def _moduli(count: int) -> tuple[int, ...]:
    """256, and the largest ones below 255 without common factors: the product is larger than with 255."""
    found = [256]
    for p in range(253, 1, -1):
        if len(found) < count and all(gcd(p, q) == 1 for q in found):
            found.append(p)
    return tuple(found)


MODULI = _moduli(15)
MOST_BITS = {F32: 25, F64: 53}
"""Of integers of this dtype whose residues fit 8 bits: the quotient x (1 / p), rounded, is at most so far off."""


def bits_for(k: int, scheme: Residues) -> int:
    """Of integers whose sums of k products are known by their residues: 2 k 4^bits is less than P, by a little."""
    whole = prod(MODULI[: scheme.moduli])
    known = (((whole - (whole >> 20)) // (2 * max(k, 1))).bit_length() - 1) // 2
    return min(known, MOST_BITS[scheme.dtype])


def residues_width(k: int) -> int:
    """Columns that residues of k elements have."""
    return cdiv(k, WIDE) * WIDE


def _centred(value: int, modulus: int) -> int:
    """The residue nearest to 0."""
    return (value + modulus // 2) % modulus - modulus // 2


CONSTANTS = tuple((float(p), 1 / p, float(_centred(1 << HIGH, p))) for p in MODULI)
"""What `reduced` needs of each modulus."""


def factors(count: int) -> list[list[float]]:
    """What to multiply the residues by: 1 modulo its own number, 0 modulo the others; and last, P. Each is the sum of
    parts, the highest one first."""
    whole = prod(MODULI[:count])
    found = [whole // p * pow(whole // p, -1, p) for p in MODULI[:count]]
    ends = range((whole.bit_length() - 1) // PART * PART, -1, -PART)
    return [[float((each >> end) % (1 << PART) << end) for end in ends] for each in (*found, whole)]


# -- residues of the operands --------------------------------------------------------------------------------


@tile_function
def residue(x: Any, low: Any, factor: Any, modulus: Any) -> Any:
    """Of an integer x, from -modulus / 2 to modulus / 2, by a factor of 1 / modulus. low: the low bits of x. Adding a
    number whose last bit is worth 1 rounds, and of the sum the low bits are those of the quotient: no conversion."""
    kind, word, one = (f32, i32, 1.5 * 2**23) if x.dtype is f32 else (f64, i64, 1.5 * 2**52)
    shifted = x * kind(factor) + kind(one)
    return (low - shifted.bitcast(word).to(i32) * modulus).to(i8)


@tile_function
def residues_part(
    X: Global[D, Any, Any, Any],
    Y: Global[i8, Any, Any, Any],
    scale: Global[D, Any, Any],
    room: SharedTile[D] | None,
    number: index,
    count: int,
):
    """What block `number` makes of X, through `room` if the columns of X are contiguous."""
    batch, rows, columns = places_of(X, number)
    lines: Any = lines_of(X, room, number)
    for i in unroll(len(lines)):
        if rows[i] < Y.shape[1] and columns[i] < Y.shape[2]:
            whole = rint(lines[i] * inverse(scale.get(batch, rows[i], other=1)))
            low, found = whole.to(i64).to(i32), fragment((VEC,), i8)
            for p in unroll(count):
                for j in unroll(VEC):
                    found[j] = residue(whole[j], low[j], 1 / MODULI[p], MODULI[p])
                Y.store(p * X.shape[0] + batch, rows[i], columns[i], found)


@tile_kernel(arch="sm_90a")
def residues_of_both(
    X: Global[D, L, M, K],
    Y: Global[i8, P, M, J],
    Z: Global[D, L, M2, K2],
    W: Global[i8, P, N, J2],
    scale_x: Global[D, L, M],
    scale_z: Global[D, L, M2],
    moduli: Global[f32, P, Q],
    *,
    COUNT: const = 15,
    EARLY: Const[bool] = False,
):
    """Residues of X to Y, and of Z to W, 0 behind the last column; of modulus p for all matrices of X, then of the
    next. moduli: gets the `CONSTANTS` of each matrix of Y. scale_x, scale_z: of `scales_of_both`."""
    first = blocks(X) * L
    number = grid(first + blocks(Z) * L)
    threads(32, WARPS)
    room = shared((STEP, ROWS), X.dtype) if by_columns(X) or by_columns(Z) else None
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
    if number == 0:
        for matrix in range(warp_id() * 32 + lane_id(), P, 32 * WARPS):
            for p in unroll(COUNT):
                if matrix // L == p:
                    for i in unroll(len(CONSTANTS[p])):
                        moduli[matrix, i] = f32(CONSTANTS[p][i])
    if number < first:
        residues_part(X, Y, scale_x, room if by_columns(X) else None, number, COUNT)
    else:
        residues_part(Z, W, scale_z, room if by_columns(Z) else None, number - first, COUNT)


# -- residues of the sums ------------------------------------------------------------------------------------


@tile_function
def reduced(x: Fragment[i32], constants: Memory[f32], column: Fragment[index]) -> Fragment[i8]:
    """An epilogue: residues of sums, by `CONSTANTS`."""
    less = (x >> HIGH) * constants[2].to(i32) + (x & (1 << HIGH) - 1)
    as_float = (less + 0x4B400000).bitcast(f32) - 1.5 * 2**23  # no conversion: less than 2^22 in size
    return residue(as_float, less, constants[1], constants[0].to(i32))


# -- floats of the residues ----------------------------------------------------------------------------------


@tile_function
def sum_of(planes: Global[i8, Any, Any, Any], of: index, row: index, column: index, count: int) -> Any:
    """The integers that have these residues, in f64. All is exact but the last sums, of which the first one cannot
    cancel what the next one adds."""
    numbers = factors(count)
    whole = numbers[count]
    sums = [fragment((AT_ONCE,), f64, init=0) for _ in whole]
    for p in unroll(count):
        found = planes.load(planes.shape[0] // count * p + of, row, column, vec=AT_ONCE).to(f64)
        for i in unroll(len(whole)):
            sums[i] = found * f64(numbers[p][i]) + sums[i]
    times = rint(sums[0] * f64(1 / sum(whole)))
    total = sums[0] - times * f64(whole[0])
    for i in unroll(1, len(whole)):
        total = total + (sums[i] - times * f64(whole[i]))
    return total


@tile_function
def times_both(x: f64, one: f64, other: f64) -> f64:
    """x times two powers of two, rounded once, though their product or that of one and x may have no f64. x: 0, or 1 or
    more in size. NaN if one of them is."""
    exponent = (one.bitcast(i64) >> 52) + (other.bitcast(i64) >> 52) - 2 * 1023
    half = exponent >> 1
    first, second = ((half + 1023) << 52).bitcast(f64), ((exponent - half + 1023) << 52).bitcast(f64)
    return x * first * (second if one == one and other == other else one + other)


@tile_kernel(arch="sm_90a")
def combined(
    C: Global[D, L, M, N],
    alpha: f64 | float = 1.0,
    beta: f64 | float = 0.0,
    bias: Global[f32, Q] | None = None,
    planes: Global[i8, P, M, J] | None = None,
    scale_a: Global[D, L, M] | None = None,
    scale_b: Global[D, L, N] | None = None,
    *,
    COUNT: const = 15,
    ADD_C: Const[bool] = False,
    EPILOGUE: Const[Epilogue] = add_bias,
    EARLY: Const[bool] = False,
):
    """C = EPILOGUE(alpha times the numbers that have these residues, times both scales, + beta C). Without planes
    these numbers are 0."""
    width = cdiv(N, 32 * AT_ONCE)
    number = grid(width * cdiv(M, WARPS) * L)
    threads(32, WARPS)
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
    of, part = number // (width * cdiv(M, WARPS)), number % (width * cdiv(M, WARPS))
    row, column = part // width * WARPS + warp_id(), (part % width * 32 + lane_id()) * AT_ONCE
    if row < M and column < N:
        total = fragment((AT_ONCE,), f64, init=0)
        if planes is not None and scale_a is not None and scale_b is not None:
            total = sum_of(planes, of, row, column, COUNT)
            for j in unroll(AT_ONCE):
                total[j] = times_both(total[j], f64(scale_a[of, row]), f64(scale_b.get(of, column + j, other=1)))
        columns = fragment((AT_ONCE,), i32)
        for j in unroll(AT_ONCE):
            columns[j] = i32(column + j)
            total[j] = alpha * total[j]
        vec: int = 16 // C.dtype.bytes if C.unit == 2 and C.align == 16 else 1
        if ADD_C:
            for j in unroll(0, AT_ONCE, vec):
                old = C.get(of, row, column + j, vec=vec * C.dtype.bytes)
                for i in unroll(vec):
                    total[j + i] = beta * old[i].to(f64) + total[j + i]
        y = applied(EPILOGUE, total.to(C.dtype), bias, columns.to(index))
        for j in unroll(0, AT_ONCE, vec):
            C.put(of, row, column + j, y[j : j + vec] if vec > 1 else y[j])
