"""`pack_int4` and `int4_gemm`: products with weights of 4 bits."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from itertools import product, starmap
from typing import Any, NamedTuple

import numpy as np

from tiledsl.errors import KernelArgumentError, short_traceback
from tiledsl.gemm.arguments import check_given, described_bias, epilogue_of, factor, integer
from tiledsl.gemm.choice import TOGETHER
from tiledsl.gemm.grouped_call import aligned_copy
from tiledsl.gemm.hopper_stores import room_bytes
from tiledsl.gemm.int4 import DEEP, HALF, ROWS, hopper_int4
from tiledsl.gemm.operands import new_array
from tiledsl.gemm.split_k import slice_width
from tiledsl.lang import cdiv
from tiledsl.runtime.arrays import describe, is_ndarray, is_torch
from tiledsl.runtime.dispatch import place_of
from tiledsl.signatures.specialize import ArrayInfo, Called, argument_error

__all__ = ["Int4Weights", "choose_int4", "int4_gemm", "pack_int4"]

GROUPS = (32, 64, 128)
"""Elements of k that may have one scale."""
FLOATS = ("bf16", "f16", "f32")


PACK, GEMM = Called("pack_int4"), Called("int4_gemm")
"""What errors name."""


@dataclass(frozen=True)
class Int4Weights:
    """Weights [k, n] as the kernel reads them: (q - zero point) * scale, q and the zero point from 0 to 15.

    words: u32 [n / 64, k / 32, 256], 8 weights each. scales: [k / group, n]. zeros: u8 [k / group, n], or None where
    all are 8. Extents are rounded up; n to whole multiples of 64.
    """

    words: Any
    scales: Any
    zeros: Any
    k: int
    n: int
    group: int

    def __repr__(self) -> str:
        return f"Int4Weights(k={self.k}, n={self.n}, group={self.group}{', zeros' if self.zeros is not None else ''})"


@short_traceback
def pack_int4(q: Any, scales: Any, zeros: Any = None, *, group: int = 128) -> Int4Weights:
    """Weights of 4 bits in the order in which `int4_gemm` reads them, on the host: once for each matrix.

    q: [K, N], integers from 0 to 15. scales: [K / group rounded up, N], of bf16, f16 or f32. zeros: integers from 0 to
    15 of the same shape; 8 if there are none, which makes weights from -8 to 7. group: 32, 64 or 128 elements of k that
    have one scale. All of NumPy or of torch; the result is where `scales` is. Raises KernelArgumentError.
    """
    info, group = _described("scales", scales), integer(PACK, "group", group)
    if group not in GROUPS:
        raise argument_error(
            PACK, f"group is {group!r}; expected one of {GROUPS}", "repeat or split the scales", code="C805"
        )
    numbers: Any = _numbers("q", q)
    if numbers.ndim != 2:
        raise argument_error(PACK, f"q has the shape {numbers.shape}; expected [K, N]", "pass one matrix", code="C803")
    k, n = map(int, numbers.shape)
    shape, known = (cdiv(k, group), n), info.dtype.name in FLOATS
    if info.shape != shape or not known:
        message = f"scales are {info.dtype} of shape {info.shape}; expected bf16, f16 or f32 of shape {shape}"
        raise argument_error(PACK, message, f"pass one for each {group} of k and each column", code="C803")
    points = None
    if zeros is not None:
        points = _numbers("zeros", zeros)
        if points.shape != shape:
            message = f"zeros have the shape {points.shape}; expected {shape}"
            raise argument_error(PACK, message, "pass one for each scale", code="C803")
        points = _like(scales, _padded(points.astype(np.uint8), shape[0], _whole(n), 8))
    columns = new_array(PACK, scales, (shape[0], _whole(n)))
    columns[...] = 0
    columns[:, :n] = scales
    return Int4Weights(_like(scales, _words(numbers.astype(np.uint32))), columns, points, k, n, group)


def _words(q: Any) -> Any:
    """8 weights a word, in the order of the registers of the left operand of wgmma. (PTX ISA: wgmma.mma_async,
    register fragments.)"""
    k, n = map(int, q.shape)
    deep, wide = cdiv(k, DEEP), _whole(n) // ROWS
    # By k: block, product, half, lane of four, pair; by n: block, warp, half, lane of eight.
    whole = _padded(q, deep * DEEP, wide * ROWS, 8).reshape(deep, 4, 2, 4, 2, wide, 4, 2, 8)
    found = np.zeros((wide, deep, 4, 8, 4, 4), np.uint32)
    for half in range(2):
        for lower in range(2):
            for pair in range(2):
                some = whole[:, :, half, :, pair, :, :, lower].transpose(3, 0, 4, 5, 2, 1)
                found |= some << np.uint32(4 * (lower + 2 * half) + 16 * pair)
    return found.reshape(wide, 2 * deep, HALF)


def _whole(n: int) -> int:
    return cdiv(n, ROWS) * ROWS


def _padded(x: Any, rows: int, columns: int, filled: int) -> Any:
    found = np.full((rows, columns), filled, x.dtype)
    found[: x.shape[0], : x.shape[1]] = x
    return found


def _described(name: str, x: Any) -> ArrayInfo:
    """Describe an argument of `pack_int4`. Raises KernelArgumentError."""
    info = describe(PACK, name, x)
    if not (is_ndarray(x) or is_torch(x)):
        message = f"{name} is a {type(x).__module__}.{type(x).__name__}; expected an array of NumPy or torch"
        raise argument_error(PACK, message, "convert it", code="C804")
    return info


def _numbers(name: str, x: Any) -> Any:
    """As an array of NumPy; checked."""
    info = _described(name, x)
    found: Any = x if type(x) is np.ndarray else x.cpu().numpy()
    whole = found.dtype.kind in "iu"
    if not whole or (found.size and not 0 <= found.min() <= found.max() <= 15):
        of = f"from {found.min()} to {found.max()}" if whole else f"{info.dtype}"
        raise argument_error(
            PACK, f"{name} is {of}; expected integers from 0 to 15", "add 8 to signed weights", code="C805"
        )
    return found


def _like(other: Any, x: Any) -> Any:
    """An array of NumPy, in the library and the memory of `other`."""
    return x if isinstance(other, np.ndarray) else sys.modules["torch"].from_numpy(x).to(other.device)


@short_traceback
def int4_gemm(
    X: Any,
    W: Int4Weights,
    C: Any = None,
    alpha: float = 1.0,
    bias: Any = None,
    epilogue: Any = None,
    device: str | None = None,
) -> Any:
    """C = epilogue(alpha X W); returns C.

    X: [M, K] of bf16 or f16, any strides; what TMA cannot read is copied first. W: of `pack_int4`. C: [M, N] of bf16,
    f16 or f32, a new array of X's dtype if it is None. bias: [N] of f32, added to each row. epilogue: as of `gemm`;
    it has to add the bias itself. alpha 0: X and W are not read.

    Up to 64 rows, the tensor cores add up (q - zero point) x over a group of k, from zero, and threads add these sums,
    each times its scale: sum = fma(partial, scale, sum), in f32. With more rows, weights are (q - zero point) * scale,
    the scale and the weight rounded to X's dtype, and the tensor cores add up all of k. Where k is cut, each part is
    added up so, and then the parts.
    """
    if not isinstance(W, Int4Weights):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller may pass anything
        raise argument_error(GEMM, f"W is a {type(W).__name__}; expected Int4Weights", "pass what pack_int4 returns")
    alpha, ending = factor(GEMM, "alpha", alpha), epilogue_of(GEMM, epilogue)
    x = describe(GEMM, "X", X)
    if len(x.shape) != 2 or x.shape[1] != W.k:
        message = f"X has the shape {x.shape}; expected [M, {W.k}], as the weights are [{W.k}, {W.n}]"
        raise argument_error(GEMM, message, "pass rows of K elements", code="C803")
    if x.dtype.name not in ("bf16", "f16"):
        raise argument_error(GEMM, f"X is {x.dtype}; expected bf16 or f16", "convert it", code="C802")
    m = x.shape[0]
    result = new_array(GEMM, X, (m, W.n)) if C is None else C
    c = describe(GEMM, "C", result)
    if c.shape != (m, W.n) or c.dtype.name not in FLOATS:
        message = f"C is {c.dtype} of shape {c.shape}; expected bf16, f16 or f32 of shape {(m, W.n)}"
        raise argument_error(GEMM, message, "pass C so, or leave it out", code="C803")
    if bias is not None:
        described_bias(GEMM, bias, (W.n,))
    place_of(GEMM, device, "X", x.device)
    if 0 in (m, W.n):
        return result
    read = X
    if alpha == 0:  # nothing of it, nor of W
        read = X[:, :0]
        x = describe(GEMM, "X", read)
    operand = read[None] if _read_by_tma(x) else aligned_copy(GEMM, read[None], -1, device)
    consts = choose_int4(m, W.n, x.shape[1], c.dtype.bytes)
    if ending is not None:
        consts = {**consts, "EPILOGUE": ending}
    try:
        hopper_int4(
            W.words, operand.swapaxes(1, 2), result[None].swapaxes(1, 2), W.scales, W.zeros, alpha, bias,
            device=device, GROUP=W.group, **consts,
        )  # fmt: skip
    except KernelArgumentError:
        _check_memory(X, W, result, bias)
        raise
    return result


def _check_memory(X: Any, W: Int4Weights, C: Any, bias: Any) -> None:
    """Raise KernelArgumentError, which names `int4_gemm`, for what its kernel refused: where arrays are in memory."""
    given = {"X": X, "W.words": W.words, "W.scales": W.scales, "W.zeros": W.zeros, "C": C, "bias": bias}
    check_given(GEMM, given)


def _read_by_tma(x: ArrayInfo) -> bool:
    return x.unit_axis() == 1 and x.alignment(1) == 16


# -- the choice ------------------------------------------------------------------------------------

SHARED_BYTES = 225 << 10
FEW = 64
"""Rows of X up to which weights are not rounded: instructions decide, or the memory."""
WIDTHS = {False: (16, 32, 48, 64), True: (*range(16, 193, 16), 256)}
"""Rows of X of a tile, by whether weights are rounded."""
PANEL = 64
"""The elements in a row of 128 bytes of a staged tile."""
DEPTHS = {False: (128, 256, 512), True: (64, 128)}
"""Elements of k of a step, likewise."""
SPLITS = (0, *range(2, 9))


UNPACKED = {(False, 64): 0.105, (False, 128): 0.197, (False, 256): 0.3694, (True, 64): 0.0452, (True, 128): 0.21}
COLUMN = {(False, 64): 0.0016, (False, 128): 0.0035, (False, 256): 0.0068, (True, 64): 0.00283, (True, 128): 0.00405}
SYNCED = {(False, 64): 0.134, (False, 128): 0.155, (False, 256): 0.1325, (True, 64): 0.064, (True, 128): 0.0425}
"""Microseconds of 128 of k of a tile, by whether weights are rounded, and how many of their columns it has: to load and
unpack them, for each row of X, and, once a step, for waiting for each other."""
TILE, SPLIT = {False: 0.47, True: 0.921}, {False: 1.39, True: 2.56}
STARTED = 1.9
"""Microseconds of each tile that an SM has, of parts of k, and of a launch. All were fitted to times of some 20 tiles
for each of 111 random products (`python -m benchmarks.choice_fit --model int4`)."""
EARLY = 50.0
"""Microseconds; products that are shorter gain from an early launch."""


class Tile(NamedTuple):
    """rows: columns of the weights. columns: rows of X. depth: of a step. split: parts of k, 0 for none. rounded: are
    weights?"""

    rows: int
    columns: int
    depth: int
    split: int
    rounded: bool = False

    def consts(self, result: int = 2) -> dict[str, Any]:
        """Of `hopper_int4`, with as many stages as there is room for. result: bytes of an element of C."""
        rows, columns, depth, split, rounded = self
        instances, width = max(1, 128 // rows), slice_width(split, columns) if split else columns
        staged = room_bytes(rows, width, result, columns // 2, instances, 1 if split else 2)
        received = max(split - 1, 0) * rows * width * 4
        stage = depth * (rows // 2 + columns * 2) + rows * 5 * depth // min(GROUPS)
        stages = min(16, (SHARED_BYTES - staged - received) // stage)
        sizes = {"BM": rows, "BN": columns, "BK": depth, "INSTANCES": instances}
        return {**sizes, "SPLIT": split, "STAGES": stages, "ROUNDED": rounded}

    def microseconds(self, m: int, n: int, k: int) -> float:
        """What a product of m x n x k takes, about."""
        parts, kind = max(self.split, 1), (self.rounded, self.rows)
        waves = cdiv(cdiv(n, self.rows) * cdiv(m, self.columns) * parts, TOGETHER[parts])
        steps = cdiv(cdiv(k, self.depth), parts) * self.depth / 128
        step = UNPACKED[kind] + COLUMN[kind] * self.columns + SYNCED[kind] * 128 / self.depth
        return waves * (steps * step + TILE[self.rounded]) + STARTED + (SPLIT[self.rounded] if self.split else 0)

    @property
    def fits(self) -> bool:
        """Whether there are registers enough for weights, and for sums of groups if they are not rounded."""
        if self.rounded:
            return True
        of_k = self.depth * self.columns
        return of_k <= 512 * 32 and (self.rows < 256 or (of_k <= 256 * 32 and self.columns < 64))


def tiles_for(m: int, k: int, result: int = 2) -> list[Tile]:
    """Return the tiles that a product with m rows of X may have. Without k, X counts as contiguous along its columns,
    which are staged in panels of 64."""
    rounded = m > FEW
    rows = [rows for of_rounded, rows in UNPACKED if of_rounded == rounded]
    every = starmap(Tile, product(rows, WIDTHS[rounded], DEPTHS[rounded], SPLITS, (rounded,)))
    some = (tile for tile in every if tile.columns < m + 64 and tile.split * tile.depth <= k and tile.fits)
    return [tile for tile in some if tile.consts(result)["STAGES"] > 2 and (k or tile.columns % PANEL == 0)]


@cache
def choose_int4(m: int, n: int, k: int, result: int = 2) -> dict[str, Any]:
    """The consts of `hopper_int4` for a product of m x n x k."""
    best = min(tiles_for(m, k, result), key=lambda tile: tile.microseconds(m, n, k))
    return {**best.consts(result), "EARLY": best.microseconds(m, n, k) < EARLY}
