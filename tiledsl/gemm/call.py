"""Any product by `hopper_fastest`: operands that TMA cannot read are padded first, small results with deep k are split
along k.

TMA needs addresses and strides that are multiples of 16 bytes. An operand without them is copied once into a padded
workspace, by `pad`, or both operands by `pad_both`: a few percent of the product's time. Where a result has few
tiles, k is split: the parts are a batch of views, and `add_up` reduces their f32 partial sums in an
order that depends on the shape alone, so the bits are the same each time.

Small products use programmatic dependent launch (EARLY): a kernel starts while the one before it in the stream still
runs. That is safe whatever the kernels before and after it are:

- Each thread of such a kernel waits (griddepcontrol.wait) before it touches global memory, until the grid before it has
  completed and its writes are visible. By induction all earlier grids have completed then. So a workspace may be reused
  by the next call as soon as this call has returned.
- A kernel that does not wait is launched normally: it starts when the whole grid before it has ended.
- Waiting blocks cannot starve the grid that they wait for: dependents start only when every block of that grid has
  started.
"""

from __future__ import annotations

import importlib
from typing import Any

from tiledsl.errors import KernelArgumentError
from tiledsl.gemm.epilogue import plain
from tiledsl.gemm.hopper import hopper_fastest
from tiledsl.gemm.pad import VEC, pad, pad_both
from tiledsl.gemm.plan import Problem, plan
from tiledsl.gemm.split_k import QUAD, add_up, split

__all__ = ["gemm"]

ALIGNED = 16
"""TMA needs an address, and strides other than 1, that are multiples of this many bytes."""


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
    behind = epilogue is not plain
    dtypes = (str(X.dtype).removeprefix("torch.").replace("float", "f") for X in (a, c))
    facts = (*dtypes, *map(_unit, (a, b, c)), *map(_by_tma, (a, b, c)), beta != 0, bias is not None, behind)
    made = plan(Problem._make((batch, m, n, k, *facts, "sm_90a", 132)))
    parts, early, consts = made.parts, made.early, made.consts
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


def _strides(X: Any) -> tuple[int, ...]:
    """In bytes."""
    return X.strides if hasattr(X, "__array_interface__") else tuple(s * X.element_size() for s in X.stride())


def _unit(X: Any) -> int:
    """The axis along which elements are neighbours."""
    strides = _strides(X)
    return min((1, 2), key=lambda axis: (strides[axis], -axis))


def _by_tma(X: Any) -> bool:
    """Whether TMA can read it, stored by rows or by columns."""
    unit, strides = _unit(X), _strides(X)
    address = X.ctypes.data if hasattr(X, "__array_interface__") else X.data_ptr()
    others = [s for axis, s in enumerate(strides) if axis != unit and X.shape[axis] > 1]
    return strides[unit] == X.itemsize and not any(s % ALIGNED or s <= 0 for s in (*others, address or ALIGNED))


def _aligned(X: Any, copies: list[Any]) -> Any:
    """X if TMA can read it; else an uninitialised padded copy, and source and destination are appended to `copies`."""
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
