"""The products as operators of torch: with gradients, and as one node of a compiled graph each.

- `all_gather_gemm` is ``torch.ops.tiledsl.all_gather_gemm(A, B, bias, group_name, rows)``, which also gives the A of
  all ranks if `rows` is true, else an empty tensor.
- `gemm_reduce_scatter` and `gemm_all_reduce` are operators of the same names.

As `tiledsl.torch`, the functions here do without an operator where nobody is to see one. Gradients of A are products of
the other kind: of gathered rows a reduce-scatter, of scattered rows a gather.
"""

from __future__ import annotations

import importlib
from typing import Any

from tiledsl.distributed import calls
from tiledsl.distributed.memory import dist, torch
from tiledsl.gemm.arguments import epilogue_of
from tiledsl.signatures.specialize import argument_error
from tiledsl.torch import gemm, is_direct

__all__ = ["all_gather_gemm", "gemm_all_reduce", "gemm_reduce_scatter"]


def all_gather_gemm(A: Any, B: Any, bias: Any = None, epilogue: Any = None, *, group: Any = None) -> Any:
    """Return epilogue(A' B), where A' is the A of all ranks, one below the other.

    A: [m, K], B: [K, N], of bf16 or f16 (of other dtypes, and fewer than 64 rows, by NCCL); result: [ranks * m, N] of
    their dtype. B, the bias (f32 [N]), and the epilogue, which adds the bias and by default nothing else, are those of
    this rank. group: None is the default one. The bits are those of one GPU by the same tile. A result of an epilogue
    function has no gradient.

    Raises KernelArgumentError, DeviceError.
    """
    epilogue = epilogue_of(calls.GATHER, epilogue)
    if _without_operator(calls.GATHER, A, B, bias, epilogue):
        return calls.all_gather_gemm(A, B, bias, epilogue, group)
    return _OPS.all_gather_gemm(A, B, bias, _name(group), False)[0]


def gemm_reduce_scatter(A: Any, B: Any, bias: Any = None, epilogue: Any = None, *, group: Any = None) -> Any:
    """Return this rank's rows of epilogue(sum of A B over all ranks).

    A: [ranks * m, K], B: [K, N], the K of this rank; result: [m, N] of their dtype. The sums of the other ranks are
    rounded to it once, and added to those of this rank in f32, from the next rank on in turn. bias, epilogue and group
    as of `all_gather_gemm`.

    Raises KernelArgumentError, DeviceError.
    """
    epilogue = epilogue_of(calls.SCATTER, epilogue)
    if _without_operator(calls.SCATTER, A, B, bias, epilogue):
        return calls.gemm_reduce_scatter(A, B, bias, epilogue, group)
    return _OPS.gemm_reduce_scatter(A, B, bias, _name(group))


def gemm_all_reduce(A: Any, B: Any, *, group: Any = None) -> Any:
    """The sum of A B over all ranks, in each of them, with the same bits.

    A: [m, K], B: [K, N], the K of this rank; result: [m, N] of their dtype. Results of up to 1 MiB are sent to all
    ranks at once: products are rounded, and added in f32 in the order of the ranks; such calls may be captured in a
    graph. Larger ones go by `gemm_reduce_scatter` and NCCL.

    Raises KernelArgumentError, DeviceError.
    """
    if is_direct(A, B, None):
        return calls.gemm_all_reduce(A, B, group)
    return _OPS.gemm_all_reduce(A, B, _name(group))


def _without_operator(call: Any, A: Any, B: Any, bias: Any, epilogue: Any) -> bool:
    """Operators have no epilogue function, and this no gradient: an error where one is required."""
    if epilogue is None:
        return is_direct(A, B, bias)
    if torch.is_grad_enabled() and any(X is not None and X.requires_grad for X in (A, B, bias)):
        fix = "apply the function to the result, or call it under torch.no_grad()"
        raise argument_error(call, "an epilogue function has no gradient, and a tensor requires one", fix)
    return True


def _name(group: Any) -> str:
    return (group or dist.group.WORLD).group_name


def _group(name: str) -> Any:
    return importlib.import_module("torch.distributed.distributed_c10d")._resolve_process_group(name)


# -- on a device, and without data ---------------------------------------------------------------------------

_LIBRARY = torch.library.Library("tiledsl", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
_LIBRARY.define(
    "all_gather_gemm(Tensor A, Tensor B, Tensor? bias, str group, bool rows) -> (Tensor, Tensor)", tags=_TAGS
)
_LIBRARY.define("gemm_reduce_scatter(Tensor A, Tensor B, Tensor? bias, str group) -> Tensor", tags=_TAGS)
_LIBRARY.define("gemm_all_reduce(Tensor A, Tensor B, str group) -> Tensor", tags=_TAGS)
_OPS = torch.ops.tiledsl


def _run_gather(A: Any, B: Any, bias: Any, group: str, rows: bool) -> tuple[Any, Any]:
    known = _group(group)
    to = A.new_empty((known.size() * A.shape[0] if rows else 0, A.shape[1]))
    return calls.all_gather_gemm(A, B, bias, None, known, to if rows else None), to


def _run_scatter(A: Any, B: Any, bias: Any, group: str) -> Any:
    return calls.gemm_reduce_scatter(A, B, bias, None, _group(group))


def _run_reduce(A: Any, B: Any, group: str) -> Any:
    return calls.gemm_all_reduce(A, B, _group(group))


def _fake_gather(A: Any, B: Any, bias: Any, group: str, rows: bool) -> tuple[Any, Any]:
    every = _group(group).size() * A.shape[0]
    return A.new_empty((every, B.shape[1])), A.new_empty((every if rows else 0, A.shape[1]))


def _fake_scatter(A: Any, B: Any, bias: Any, group: str) -> Any:
    return A.new_empty((A.shape[0] // _group(group).size(), B.shape[1]))


def _fake_reduce(A: Any, B: Any, group: str) -> Any:
    return A.new_empty((A.shape[0], B.shape[1]))


# -- gradients -----------------------------------------------------------------------------------------------


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    A, B, *rest = inputs
    of_a, of_b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(A if of_b else None, B if of_a else None)
    ctx.group = next(each for each in rest if isinstance(each, str))


def _of_gather(ctx: Any, grad: Any, _: Any) -> tuple[Any, ...]:
    (A, B), a, b, every = ctx.saved_tensors, None, None, None
    if A is not None:  # NCCL sends it while the next product runs
        collectives = importlib.import_module("torch.distributed._functional_collectives")
        every = collectives.all_gather_tensor(A, 0, _group(ctx.group))
    if B is not None:
        a = _OPS.gemm_reduce_scatter(grad.contiguous(), B.mT, None, ctx.group)
    if every is not None:
        b = gemm(every.mT, grad)
    return a, b, _of_bias(ctx, grad), None, None


def _of_scatter(ctx: Any, grad: Any) -> tuple[Any, ...]:
    (A, B), a, b = ctx.saved_tensors, None, None
    X = B.mT if B is not None else grad.new_empty((grad.shape[1], 0))
    rows = A is not None or ctx.needs_input_grad[2]
    product, every = _OPS.all_gather_gemm(grad.contiguous(), X, None, ctx.group, rows)
    if B is not None:
        a = product
    if A is not None:
        b = gemm(A.mT, every)
    return a, b, _of_bias(ctx, every), None


def _of_reduce(ctx: Any, grad: Any) -> tuple[Any, ...]:
    A, B = ctx.saved_tensors
    return None if B is None else gemm(grad, B.mT), None if A is None else gemm(A.mT, grad), None


def _of_bias(ctx: Any, grad: Any) -> Any:
    """Summed over the rows of all ranks."""
    return grad.sum(0, dtype=torch.float32) if ctx.needs_input_grad[2] else None


_FUNCTIONS = (
    ("all_gather_gemm", _run_gather, _fake_gather, _of_gather),
    ("gemm_reduce_scatter", _run_scatter, _fake_scatter, _of_scatter),
    ("gemm_all_reduce", _run_reduce, _fake_reduce, _of_reduce),
)
for _operator, _run, _fake, _backward in _FUNCTIONS:
    _LIBRARY.impl(_operator, _run, "CUDA")
    torch.library.register_fake(f"tiledsl::{_operator}", _fake, lib=_LIBRARY)
    torch.library.register_autograd(f"tiledsl::{_operator}", _backward, setup_context=_keep, lib=_LIBRARY)
