"""Any product by `hopper_fastest`: what TMA cannot take is padded first, a deep and small one is split along k.

TMA wants addresses and strides that are multiples of 16 bytes. An operand without is copied once, by `pad`, into a
workspace whose rows are: that is a few percent of the product's time. And where a result has few tiles, parts of k
are products of their own, as a batch of views; `add_up` makes the result of their f32 sums.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, TypeVar

from hopper_fastest import Epilogue, choose, finished, hopper_fastest, plain

from tiledsl import (
    Const,
    Float,
    Global,
    Scalar,
    cdiv,
    f32,
    fragment,
    grid,
    load_fragment,
    mma,
    store,
    threads,
    tile,
    tile_kernel,
    unroll,
)
from tiledsl.dims import J, K, L, M, N
from tiledsl.errors import KernelArgumentError

__all__ = ["add_up", "gemm", "pad"]

D = TypeVar("D", bound=Scalar)
E = TypeVar("E", bound=Float)

ALIGNED = 16
"""Bytes that divide the address and every stride but that of 1 of what TMA can take."""
VEC = 8
PROCESSORS = 132


@tile_kernel
def pad(X: Global[D, L, M, K], Y: Global[D, L, M, J]):
    """Y[:, :, :K] = X; Y has rows that are aligned, and whole vectors long."""
    rows, part, batch = grid(M, cdiv(J, 256 * VEC), L)
    k = (part * 256 + threads(256)) * VEC
    line = fragment((VEC,), X.dtype)
    for i in unroll(VEC):
        line[i] = X.get(batch, rows, k + i, other=0)
    if k < J:
        Y.store(batch, rows, k, line)


@tile_kernel
def add_up(
    P: Global[f32, L, M, N],
    C: Global[E, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
    bias: Global[f32, N] | None = None,
    *,
    ADD_C: Const[bool] = False,
    EPILOGUE: Const[Epilogue] = plain,
):
    """C = epilogue(alpha * (the sum of P along its first axis) + beta * C)."""
    by, bx = grid(cdiv(M, 64), cdiv(N, 8))
    threads(128)
    m, n = tile(by, 64), tile(bx, 8)
    x = fragment((64, 8), f32, mma.m16n8k16.acc(warps=(4, 1)))
    for i in unroll(range(L), by=16):
        x = x + load_fragment(P[i, m, n], x.layout, vec=8)
    store(finished(x, C[m, n], bias, n, alpha, beta, ADD_C, EPILOGUE).to(C.dtype), C[m, n])


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
    a, b = _aligned(a, device), _aligned(b, device)
    along_k = _unit(b) == 1
    parts = _parts(batch, m, n, k)
    if parts == 1:
        bare = epilogue is plain and bias is None and beta == 0
        consts = choose(batch * m, n, k, along_k=along_k, plain=bare)
        hopper_fastest(a, b, c, alpha, beta, bias, ADD_C=beta != 0, EPILOGUE=epilogue, device=device, **consts)
        return
    sums = _empty(c, (parts, m, n), "float32")
    a, b = a[0].reshape(m, parts, k // parts).swapaxes(0, 1), b[0].reshape(parts, k // parts, n)
    hopper_fastest(a, b, sums, device=device, **choose(parts * m, n, k // parts, along_k=along_k))
    add_up(sums, c[0], alpha, beta, bias, ADD_C=beta != 0, EPILOGUE=epilogue, device=device)


@cache
def _parts(batch: int, m: int, n: int, k: int) -> int:
    """Into how many parts k is cut: enough for all processors, none shallower than 512, all alike."""
    tiles = cdiv(m, 128) * cdiv(n, 128)
    if batch > 1 or tiles > PROCESSORS // 4 or k < 2048:
        return 1
    most = min(PROCESSORS // tiles, k // 1024)
    return next(p for p in range(most, 0, -1) if k % (p * 64) == 0 or p == 1)


def _strides(X: Any) -> tuple[int, ...]:
    """In bytes."""
    return X.strides if hasattr(X, "__array_interface__") else tuple(s * X.element_size() for s in X.stride())


def _unit(X: Any) -> int:
    """The axis along which elements are neighbours."""
    strides = _strides(X)
    return min((1, 2), key=lambda axis: (strides[axis], -axis))


def _aligned(X: Any, device: str | None) -> Any:
    """X, or a copy of it that TMA can take."""
    unit, strides = _unit(X), _strides(X)
    address = X.ctypes.data if hasattr(X, "__array_interface__") else X.data_ptr()
    others = [s for axis, s in enumerate(strides) if axis != unit and X.shape[axis] > 1]
    if strides[unit] == X.itemsize and not any(s % ALIGNED or s <= 0 for s in (*others, address or ALIGNED)):
        return X
    if unit == 1:
        return _aligned(X.swapaxes(1, 2), device).swapaxes(1, 2)
    padded = _empty(X, (*X.shape[:2], -(-X.shape[2] // VEC) * VEC), X.dtype)
    pad(X, padded, device=device)
    return padded[:, :, : X.shape[2]]


def _empty(like: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array of the same library, on the same device."""
    library: Any = importlib.import_module("numpy" if hasattr(like, "__array_interface__") else "torch")
    where = {"device": like.device} if library.__name__ == "torch" else {}
    return library.empty(shape, dtype=getattr(library, dtype) if isinstance(dtype, str) else dtype, **where)
