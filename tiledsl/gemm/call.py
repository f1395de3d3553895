"""`gemm`: any product of matrices by the kernel that suits it.

A call like an earlier one on torch tensors only looks up its launches, by all that these depend on, and gives them the
addresses. Every other call goes through `_call`, which describes and checks the arrays.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from tiledsl.arch import EMULATED_ARCH, EMULATED_GPU
from tiledsl.errors import short_traceback
from tiledsl.gemm.arguments import epilogue_of, flag
from tiledsl.gemm.formats import WHOLE, check_factors, checked_factors, factors
from tiledsl.gemm.operands import GEMM, Operands, described, stream_handle
from tiledsl.gemm.prepared import Prepared, planned, prepare
from tiledsl.gemm.steps import GRAIN
from tiledsl.ir.types import BF16, I32
from tiledsl.layout.shared import row_major
from tiledsl.runtime.arrays import is_torch
from tiledsl.runtime.dispatch import in_order, launch_stream, place_of
from tiledsl.runtime.driver import driver
from tiledsl.runtime.launch import count_versions
from tiledsl.signatures.specialize import argument_error, const_identity

__all__ = ["gemm"]

_KNOWN: dict[Any, Prepared] = {}
LIMIT = 4096
"""Most products that are kept, so that shapes that keep changing do not fill the memory."""
LOW, HIGH = -(2.0**-126), 2.0**-126
"""The bounds between which factors may round to 0. Of all others a key needs only that they are not 0."""
EMULATED = EMULATED_ARCH, EMULATED_GPU.processors
"""The target and the SM count for which products on the emulator are planned."""
_raw_stream: Any = None
_grad_enabled: Any = None
_empty_like: Any = None
_capturing: Any = None
_count: Any = None
"""Functions of torch, set when the first product of its tensors is kept."""


def gemm(
    A: Any,
    B: Any,
    C: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: Any = None,
    epilogue: Any = None,
    *,
    out_dtype: Any = None,
    precision: str | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
    batch_invariant: bool = False,
    stream: Any = None,
    device: str | None = None,
) -> Any:
    """C = epilogue(alpha A B + beta C). Returns C.

    A: [M, K], B: [K, N], C: [M, N], each with a batch in front or without; a batch of 1, and none, is repeated. Arrays
    of NumPy, torch, CuPy, DLPack or `__cuda_array_interface__`, of any strides (those of C positive). A and B of bf16,
    f16, f32, e4m3 and e5m2 (also mixed), i8 and u8 (also mixed); docs/gemm.md says which C they have. Without C, it is
    allocated by the library of A, of `out_dtype` or: bf16 for 8-bit floats, i32 for integers, else as A. precision:
    "tf32" multiplies f32 by tensor cores, which ignore the low 13 bits of A and B; "promoted" adds up 8-bit floats in
    f32 every 128 of k, where tensor cores keep 14 bits.

    precision "bf16x6" and "f16x3", for f32 on sm_90a: by tensor cores, as three planes of bf16 or two of f16, whose
    sums are added in f32 every 32 or 64 of k. The error of an element is at most 24 + k / 32 units of 2^-24 |A| |B|
    (that of FFMA's: k), of f16x3 51 + k / 64, and besides 2^-39 of the largest element of its row of A, or column of B,
    in each element of these. Rows of A and columns of B with an infinity or a NaN give NaN.

    precision "i8x15", for f64, and "i8x8", for f32, on sm_90a: rows of A and columns of B are rounded to integers of 49
    to 53 bits, or 22 to 25, whose product is exact (residues.py); k up to 131071. Not finite as above.

    scale_a, scale_b: for 8-bit floats, f32 factors of blocks, of any strides: of each row of A and 128 of k, [M, K /
    128], and of 128 of k and 128 columns of B, [K / 128, N / 128], both rounded up, with the batches of A and B. The
    tensor cores' sum p of each 128 of k is added by sum = fma(p, scale_a * scale_b, sum), from 0, one after the other,
    or so in each part of k: both operations round to nearest in f32. For integers: of the rows of A [M, 1] and the
    columns of B [1, N], by which sums are multiplied in f32; C may then be bf16, f16, f32, i8 or u8.

    alpha 0: A and B are not read; beta 0: C is not read; any other beta needs C. bias: f32 [N], added to each row.
    epilogue: a tile function as in tiledsl.gemm.epilogue, which has to add the bias itself. batch_invariant: the bits
    of a row of C depend on this row of A and on B alone, not on m or the other rows; this may take longer. stream: a
    CUDA stream (its handle, or one of torch or CuPy) instead of the library's current one. device: as for kernels.

    Raises KernelArgumentError, DeviceError. docs/gemm.md has the rest: errors, streams, captured graphs.
    """
    key = known = None
    try:
        at_a, at_b, at_c = A.data_ptr(), B.data_ptr(), 0 if C is None else C.data_ptr()
        at_bias = 0 if bias is None else bias.data_ptr()
        at_scales = (0, 0) if scale_a is None else (scale_a.data_ptr(), scale_b.data_ptr())
        scale, add = alpha, beta
        if (alpha < HIGH and alpha > LOW) or (beta and beta < HIGH and beta > LOW):
            scale, add = factors(alpha, beta, precision)
        key = (
            A.dtype, A.shape, A.stride(), at_a & 15, A.get_device(),
            B.dtype, B.shape, B.stride(), at_b & 15, B.get_device(),
            out_dtype if C is None else (C.dtype, C.shape, C.stride(), at_c & 15, C.get_device(), out_dtype),
            None if bias is None else (bias.dtype, bias.shape, bias.stride(), at_bias & 15, bias.get_device()),
            alpha.__class__, not scale, beta.__class__, not add,
            None if epilogue is None else const_identity(epilogue),
            batch_invariant.__class__, batch_invariant, device, precision,
            None if scale_a is None and scale_b is None else (_layout(scale_a), _layout(scale_b)),
        )  # fmt: skip
        known = _KNOWN.get(key)
    except Exception:  # not of torch, or wrong: `_call` says what
        at_a = at_b = at_c = at_bias = 0
        at_scales, scale, add = (0, 0), alpha, beta
    if (
        known is not None
        and (C is None or not C.requires_grad or not _grad_enabled())
        and (not known.whole or (scale % 1 == 0 and add % 1 == 0 and max(abs(scale), abs(add)) <= WHOLE))
    ):
        on = _raw_stream(known.device) if stream is None else stream_handle(stream)
        result, written = C, (C,)
        if C is None:
            result, written = _empty_like(known.like), ()
            at_c = result.data_ptr()
        single, pick = known.single, known.pick
        if single is not None:
            pointers = (at_a, at_b, at_c) if pick is None else pick((at_a, at_b, at_c, at_bias, *at_scales))
            if single.run_apart(on, pointers, (scale, add) + known.rest, written):  # noqa: RUF005 - it is faster
                return result
        else:
            captured = result if stream is None and _capturing() else None
            if known.run(on, (at_a, at_b, at_c, at_bias, *at_scales), scale, add, captured, apart=True):
                _count(written)
                return result
    return _call(
        A, B, C, alpha, beta, bias, epilogue,
        out_dtype, precision, scale_a, scale_b, batch_invariant, stream, device, key,
    )  # fmt: skip


def _layout(x: Any) -> tuple[Any, ...]:
    """What a launch depends on, of a torch tensor."""
    return x.dtype, x.shape, x.stride(), x.data_ptr() & 15, x.get_device()


@short_traceback
def _call(
    A: Any, B: Any, C: Any, alpha: Any, beta: Any, bias: Any, epilogue: Any,
    out_dtype: Any, precision: Any, scale_a: Any, scale_b: Any,
    batch_invariant: bool, stream: Any, device: Any, key: Any,
) -> Any:  # fmt: skip
    """`gemm`, with every check. key: under which a call on torch tensors like this one would look it up, or None."""
    alpha, beta = checked_factors(GEMM, alpha, beta, precision)
    if beta and C is None:
        message = f"beta is {beta:g}, and C, which it scales, is left out"
        raise argument_error(GEMM, message, "pass C, or leave out beta", code="C805")
    batch_invariant, ending = flag(GEMM, "batch_invariant", batch_invariant), epilogue_of(GEMM, epilogue)
    of = described(A, B, C, bias, out_dtype, ending, precision, scale_a, scale_b)
    of = of._replace(batch_invariant=batch_invariant)
    if of.scales is None:
        check_factors(GEMM, of.format, of.c.dtype, alpha, beta)
    place = place_of(GEMM, device, "A", of.a.device)
    if stream is not None and of.a.device < 0:
        raise argument_error(GEMM, "stream is given, and the arrays are in host memory", "leave it out", code="C804")
    if of.c.empty:
        return of.result
    of = _without_k(of) if alpha == 0 or (of.scales and of.a.empty) else of
    if of.a.device < 0:
        _on_host(of, alpha, beta, ending, place, device)
    else:
        _on_gpu(of, alpha, beta, ending, stream, key, C is None)
    if is_torch(of.result):
        count_versions((of.result,))
    return of.result


def _on_gpu(of: Operands, alpha: float, beta: float, ending: Any, stream: Any, key: Any, new: bool) -> None:
    gpu, torch = driver(), all(is_torch(info.owner) for info in of.given)
    on = stream_handle(stream) if stream is not None else launch_stream(of.given)
    facts = [(x.dtype, x.shape, x.strides, x.pointer & 15, x.device) for x in of.given]
    more = ending and const_identity(ending), of.batch_invariant, of.a.dtype, of.promoted, of.split
    same = ("described", *facts, alpha != 0, beta != 0, *more)
    known = _KNOWN.get(same)
    if known is None:
        capturing = gpu.capturing(on)
        known = prepare(gpu, of, beta, ending, capturing)
        if not capturing:
            known.prepare_graphs(on)
        _keep(same, known)
    captured = torch and stream is None and sys.modules["torch"]._C._cuda_isCurrentStreamCapturing()
    with nullcontext() if stream is not None else in_order(gpu, on, of.given):
        launched = known.run(on, of.addresses, alpha, beta, of.result if captured else None)
    assert launched, f"alpha and beta were checked: {alpha}, {beta}"
    # A lazily negated view has no stride of 1: see runtime/dispatch.py.
    if key is not None and torch and all(info.empty or 1 in info.strides for info in of.given):
        _take_torch(sys.modules["torch"])
        if new:
            known.like = _empty_like(of.result)
            known.like.untyped_storage().resize_(0)
        _keep(key, known)


def _keep(key: Any, known: Prepared) -> None:
    if len(_KNOWN) >= LIMIT:
        _KNOWN.clear()
    _KNOWN[key] = known


def _take_torch(torch: Any) -> None:
    global _raw_stream, _grad_enabled, _empty_like, _capturing, _count
    _raw_stream, _grad_enabled = torch._C._cuda_getCurrentRawStream, torch.is_grad_enabled
    _empty_like, _count = torch.empty_like, torch._C._increment_version
    _capturing = torch._C._cuda_isCurrentStreamCapturing


def _on_host(of: Operands, alpha: float, beta: float, ending: Any, place: str, device: Any) -> None:
    """On the emulator, or launch by launch on copies on the GPU."""
    import numpy as np

    target = EMULATED
    if place == "gpu":
        gpu = driver()
        at = gpu.current_device()
        target = gpu.target_of(at), gpu.devices[at].processors
    steps = planned(of, beta, ending, *target)
    room, zeros = np.empty(steps.room + GRAIN, np.uint8), np.zeros(steps.zeros + GRAIN, np.uint8)
    addresses = (*of.addresses, *(x.ctypes.data + -x.ctypes.data % GRAIN for x in (room, zeros)))
    for step in steps.launches:
        step.kernel.dispatcher.run(step.values(addresses, -1, alpha, beta, (of.given, room, zeros)), device)


def _without_k(of: Operands) -> Operands:
    """The same product of operands with k = 0, which are not read."""
    shapes = (*of.a.shape[:2], 0), (of.b.shape[0], 0, of.b.shape[2])
    a, b = (replace(x, shape=s, strides=row_major(s)) for x, s in zip((of.a, of.b), shapes, strict=True))
    if of.scales is not None and of.format.sums == I32:  # nothing, of a dtype whose sums are f32
        a, b = replace(a, dtype=BF16), replace(b, dtype=BF16)
    return of._replace(a=a, b=b, scales=None)
