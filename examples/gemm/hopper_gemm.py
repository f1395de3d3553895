"""Any product by `hopper_fastest`: what TMA cannot take is padded first, a deep and small one is split along k.

TMA wants addresses and strides that are multiples of 16 bytes. Operands without are copied once, by `pad` or both by
`pad_both`, into a workspace whose rows are: that is a few percent of the product's time. And where a result has few
tiles, parts of k are products of their own, as a batch of views; `add_up` makes the result of their f32 sums, in an
order that the shape alone decides: the bits are the same each time.

Small products are launched early (EARLY): a kernel is set up while the one before it in the stream still runs. That
is sound whatever that one is, and whatever comes behind:

- Each thread of a kernel launched early waits before it touches global memory. So its grid ends after the one before
  it has, of which the same is true: who has waited sees the writes of all grids before it, and overwrites nothing that
  one of them still reads. A workspace may so be given to the next call as soon as this one has returned.
- A kernel that does not wait is launched as ever, whole grid after whole grid, behind one of these too.
- Of grids that tell their dependents to begin, a block that waits takes no place that another needs to get on: the
  dependents begin when every block of the grid has begun.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, NamedTuple, TypeVar

from hopper_fastest import HALF, QUARTER, SHALLOW, Epilogue, choose, hopper_fastest, plain

from tiledsl import (
    Const,
    Dim,
    Float,
    Global,
    Memory,
    Scalar,
    SharedTile,
    assert_,
    barrier,
    cdiv,
    const,
    f32,
    fragment,
    grid,
    i32,
    index,
    lane_id,
    minimum,
    ptx,
    shared,
    syncwarp,
    threads,
    tile_function,
    tile_kernel,
    unroll,
    warp_id,
    where,
)
from tiledsl.dims import J, K, L, M, N
from tiledsl.errors import KernelArgumentError

__all__ = ["add_up", "gemm", "pad", "pad_both", "plan", "split"]

D = TypeVar("D", bound=Scalar)
E = TypeVar("E", bound=Float)

ALIGNED = 16
"""Bytes that divide the address and every stride but that of 1 of what TMA can take."""
VEC = 8
QUAD = 4
PROCESSORS = 132
EARLY = 1 << 34
"""Multiplications, under which a product is small enough to gain from early launches."""


class M2(Dim):
    """Rows of a second operand."""


class K2(Dim):
    """Columns of a second operand."""


class J2(Dim):
    """Columns of a second operand's copy."""


@tile_function
def pad_rows(X: Memory[D], Y: Global[D, Any, Any, Any], lines: SharedTile[D], batch: index, m: index, k: index):
    """Y[batch, m, k : k + 256] = X there, by one warp and its row of `lines`: neighbouring lanes read neighbours."""
    lane, warp = lane_id(), warp_id()
    found = [X.get(batch, m, k + i * 32 + lane, other=0) for i in range(VEC)]
    for i in unroll(VEC):
        lines[warp, i * 32 + lane] = found[i]
    syncwarp()
    if m < Y.shape[1] and k + lane * VEC < Y.shape[2]:
        Y.store(batch, m, k + lane * VEC, lines.load(warp, lane * VEC))


@tile_kernel(arch="sm_90a")
def pad(X: Global[D, L, M, K], Y: Global[D, L, M, J], *, EARLY: Const[bool] = False):
    """Y[:, :, :K] = X; Y has rows that are aligned, and whole vectors long."""
    row, part = grid(cdiv(M, 8) * L, cdiv(J, 32 * VEC))
    warp = threads(32, 8)[1]
    lines = shared((8, 32 * VEC), X.dtype)
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
    pad_rows(X, Y, lines, row // cdiv(M, 8), row % cdiv(M, 8) * 8 + warp, part * 32 * VEC)


@tile_kernel(arch="sm_90a")
def pad_both(
    X: Global[D, L, M, K],
    Y: Global[D, L, M, J],
    Z: Global[D, L, M2, K2],
    W: Global[D, L, M2, J2],
    *,
    EARLY: Const[bool] = False,
):
    """`pad` of two operands in one launch: X to Y and Z to W."""
    row, part = grid(cdiv(max(M, M2), 8) * 2 * L, cdiv(max(J, J2), 32 * VEC))
    z, m = row // cdiv(max(M, M2), 8), row % cdiv(max(M, M2), 8) * 8
    warp = threads(32, 8)[1]
    lines = shared((8, 32 * VEC), X.dtype)
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
    if z < L:
        pad_rows(X, Y, lines, z, m + warp, part * 32 * VEC)
    else:
        pad_rows(Z, W, lines, z - L, m + warp, part * 32 * VEC)


@tile_kernel(arch="sm_90a")
def add_up(
    P: Global[f32, L, M, J],
    C: Global[E, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
    bias: Global[f32, N] | None = None,
    *,
    WARPS: const = 8,
    DEEP: const = 8,
    PIECES: const = 1,
    ADD_C: Const[bool] = False,
    EPILOGUE: Const[Epilogue] = plain,
):
    """C = epilogue(alpha * (the sum of P along its first axis) + beta * C); P has rows of whole vectors, aligned.

    A lane has 4 columns. Each of WARPS warps adds up to DEEP parts, all of which it loads at once, and one of them what
    the others found: an order that depends on the shape alone. A block has PIECES such groups.
    """
    assert WARPS > 0 and DEEP > 0 and PIECES > 0, "WARPS, DEEP and PIECES are counts: 1 or more"
    block = grid(cdiv(M * J, PIECES * 32 * QUAD))
    # At its highest level, the assembler moves sums in between the loads, whose times then add up, too.
    lane, warp, piece = threads(32, WARPS, PIECES, assembler_level=1)
    assert_(L <= WARPS * DEEP, "each of WARPS warps adds up DEEP parts, and there are more: take more of either")
    sums = shared((PIECES, WARPS, 32 * QUAD), f32)
    at = (block * PIECES + piece) * 32 + lane
    row, column = at // (J // QUAD), at % (J // QUAD) * QUAD
    parts = [P.load(minimum(warp + i * WARPS, L - 1), minimum(row, M - 1), column) for i in range(DEEP)]
    x = fragment((QUAD,), f32)
    for i in unroll(DEEP):
        x = x + where(warp + i * WARPS < L, parts[i], 0)
    sums.store(piece, warp, lane * QUAD, x)
    barrier()
    if warp == 0:
        for i in unroll(1, WARPS):
            x = x + sums.load(piece, i, lane * QUAD)
        x = alpha * x
        columns = fragment((QUAD,), i32)
        for i in unroll(QUAD):
            columns[i] = i
        columns = columns.to(index) + column
        if ADD_C:
            x = beta * C.get(row, columns).to(f32) + x
        x = EPILOGUE(x, bias, columns).to(C.dtype)
        if C.unit == 1 and C.align >= QUAD * C.dtype.bytes:
            C.put(row, column, x)
        else:
            C.put(row, columns, x)


def gemm(
    A: Any,
    B: Any,
    C: Any,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: Any = None,
    epilogue: Any = plain,
    device: str | None = None,
) -> None:
    """C = epilogue(alpha A B + beta C) for bf16 or f16 arrays of NumPy or torch.

    A: [M, K] or [batch, M, K], B: [K, N], C: [M, N] likewise, of any strides, those of C positive; bias: [N] of f32 or
    None.
    """
    ranks = tuple(len(X.shape) for X in (A, B, C))
    if ranks not in ((2, 2, 2), (3, 3, 3)):
        message = f"gemm(): A, B and C have {ranks} axes; expected 2 each, or 3 with a batch"
        raise KernelArgumentError(f"{message}\n  fix: pass them as [M, K], [K, N], [M, N]")
    if not str(A.dtype).endswith("float16"):  # bfloat16 too
        raise KernelArgumentError(f"gemm(): A is {A.dtype}; expected bf16 or f16\n  fix: convert A and B")
    a, b, c = (A, B, C) if A.ndim == 3 else (A[None], B[None], C[None])
    batch, m, k = a.shape
    n = b.shape[2]
    behind = (beta != 0) + (epilogue is not plain or bias is not None)
    parts, early, consts = plan(batch, m, n, k, _unit(b) == 1, behind, _unit(c) == 2 and _by_tma(c))
    copies: list[Any] = []
    a, b = _aligned(a, copies), _aligned(b, copies)
    if copies:
        (pad if len(copies) == 2 else pad_both)(*copies, device=device, EARLY=early)
    if parts == 1:
        finish: dict[str, Any] = {"ADD_C": beta != 0, "EPILOGUE": epilogue, "EARLY": early}
        hopper_fastest(a, b, c, alpha, beta, bias, device=device, **finish, **consts)
        return
    sums = _empty(c, (parts, m, -(-n // QUAD) * QUAD), "float32")
    a, b = a[0].reshape(m, parts, k // parts).swapaxes(0, 1), b[0].reshape(parts, k // parts, n)
    hopper_fastest(a, b, sums[:, :, :n], device=device, **consts)
    add_up(sums, c[0], alpha, beta, bias, ADD_C=beta != 0, EPILOGUE=epilogue, device=device, **split(parts))


class Plan(NamedTuple):
    """How `gemm` computes a product. parts: of k. early: whether its kernels are. consts: of `hopper_fastest`."""

    parts: int
    early: bool
    consts: dict[str, Any]


@cache
def plan(batch: int, m: int, n: int, k: int, along_k: bool = False, behind: int = 0, by_tma: bool = True) -> Plan:
    """Where the tiles of one product are for a quarter of the processors at most, and k is deep, k is cut: into equal
    parts, none shallower than 512, as many as there are processors for.

    The processors then have half a tile each, or, where that would make more than 32 parts to add up, a quarter.
    Launches of small products are early. Those of large ones and of parts are not: that was slower, or no faster.
    """
    early = batch * m * n * k < EARLY
    consts = choose(m, n, k, along_k=along_k, behind=behind, batch=batch, by_tma=by_tma)
    tiles, halves = cdiv(m, 128) * cdiv(n, 128), cdiv(m, 128) * cdiv(n, 64)
    if batch != 1 or not 0 < 4 * tiles <= PROCESSORS or k < SHALLOW:
        return Plan(1, early, consts)
    cut, most = HALF, PROCESSORS // halves
    if most > 32:
        cut, most = QUARTER, PROCESSORS // (cdiv(m, 64) * cdiv(n, 64))
    parts = next(p for p in range(min(most, k // 512), 0, -1) if k % (p * 64) == 0 or p == 1)
    return Plan(parts, False, cut) if parts > 1 else Plan(1, early, consts)


def split(parts: int) -> dict[str, int]:
    """The consts of `add_up` for so many parts: 8 for a warp, 256 threads in a block, where that is possible."""
    warps = next(w for w in (1, 2, 4, 8, 16) if 8 * w >= parts or w == 16)
    return {"WARPS": warps, "DEEP": cdiv(parts, warps), "PIECES": max(8 // warps, 1)}


def _strides(X: Any) -> tuple[int, ...]:
    """In bytes."""
    return X.strides if hasattr(X, "__array_interface__") else tuple(s * X.element_size() for s in X.stride())


def _unit(X: Any) -> int:
    """The axis along which elements are neighbours."""
    strides = _strides(X)
    return min((1, 2), key=lambda axis: (strides[axis], -axis))


def _by_tma(X: Any) -> bool:
    """Whether TMA can take it, be it along rows or columns."""
    unit, strides = _unit(X), _strides(X)
    address = X.ctypes.data if hasattr(X, "__array_interface__") else X.data_ptr()
    others = [s for axis, s in enumerate(strides) if axis != unit and X.shape[axis] > 1]
    return strides[unit] == X.itemsize and not any(s % ALIGNED or s <= 0 for s in (*others, address or ALIGNED))


def _aligned(X: Any, copies: list[Any]) -> Any:
    """X, or room for a copy of it that TMA can take; then what to copy and where is noted in `copies`."""
    if _by_tma(X):
        return X
    if _unit(X) == 1:
        return _aligned(X.swapaxes(1, 2), copies).swapaxes(1, 2)
    padded = _empty(X, (*X.shape[:2], -(-X.shape[2] // VEC) * VEC), X.dtype)
    copies += [X, padded]
    return padded[:, :, : X.shape[2]]


def _empty(like: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array of the same library, on the same device."""
    library: Any = importlib.import_module("numpy" if hasattr(like, "__array_interface__") else "torch")
    where = {"device": like.device} if library.__name__ == "torch" else {}
    return library.empty(shape, dtype=getattr(library, dtype) if isinstance(dtype, str) else dtype, **where)
