"""The three products, on tensors: checks, the choice between the overlapped kernels and NCCL, and the launch."""

from __future__ import annotations

from typing import Any

from tiledsl.distributed import by_nccl
from tiledsl.distributed.memory import Ranks, dist, ranks_of, torch
from tiledsl.errors import DeviceError, short_traceback
from tiledsl.gemm import gemm
from tiledsl.gemm.pad import padded
from tiledsl.gemm.plan import ALIGNED
from tiledsl.gemm.prepared import Launch, launch_of, run_launch
from tiledsl.gemm.sharded import SMALL, SOMEWHERE, Copy, Sharded, consts_of, gathered, reduced, room_of, scattered
from tiledsl.ir.types import BF16, F16, DType
from tiledsl.signatures.specialize import Called, argument_error, const_identity

DTYPES: dict[Any, DType] = {torch.bfloat16: BF16, torch.float16: F16}
"""What the overlapped kernels multiply."""
FEW = 64
"""Rows of a shard, columns, and k, under which NCCL sends."""
LIMIT = 4096
"""Kinds of calls that are kept."""
GATHER, SCATTER, REDUCE = Called("all_gather_gemm"), Called("gemm_reduce_scatter"), Called("gemm_all_reduce")
_CONTIGUOUS = torch.contiguous_format
_capturing, _raw_stream = torch._C._cuda_isCurrentStreamCapturing, torch._C._cuda_getCurrentRawStream


@short_traceback
def all_gather_gemm(A: Any, B: Any, bias: Any, epilogue: Any, group: Any, rows_to: Any = None) -> Any:
    """As of `operators`. rows_to: [ranks * m, K], becomes the A of all ranks; or None."""
    ranks = ranks_of(group)
    known = _known(GATHER, ranks, A, B, bias, epilogue)
    C = A.new_empty(ranks.count * A.shape[0], B.shape[1])
    if known is None:
        by_nccl.gathered(ranks, A, B, C, bias, epilogue, rows_to)
    else:
        known.run(A, B, C, bias, rows_to)
    return C


@short_traceback
def gemm_reduce_scatter(A: Any, B: Any, bias: Any, epilogue: Any, group: Any) -> Any:
    """As of `operators`."""
    ranks = ranks_of(group)
    known = _known(SCATTER, ranks, A, B, bias, epilogue)
    C = A.new_empty(A.shape[0] // ranks.count, B.shape[1])
    if known is None:
        by_nccl.scattered(ranks, A, B, C, bias, epilogue)
    else:
        known.run(A, B, C, bias)
    return C


@short_traceback
def gemm_all_reduce(A: Any, B: Any, group: Any) -> Any:
    """As of `operators`."""
    ranks = ranks_of(group)
    known = _known(REDUCE, ranks, A, B, None, None)
    if isinstance(known, Overlapped):
        C = A.new_empty(A.shape[0], B.shape[1])
        dist.all_gather_into_tensor(C, gemm_reduce_scatter(A, B, None, None, group), group=ranks.group)
        return C
    sums = gemm(A, B)
    if known is not None:
        assert ranks.segments is not None
        base, stream = ranks.segments.base, _raw_stream(ranks.device.index)
        if _capturing():
            ranks.captured = True
        else:
            ranks.put_behind(stream)
        run_launch(known, stream, (0, 0, sums.data_ptr(), 0, ranks.told.data_ptr(), base, base, base))
    elif ranks.count > 1:
        dist.all_reduce(sums, group=ranks.group)
    return sums


def _known(call: Called, ranks: Ranks, A: Any, B: Any, bias: Any, epilogue: Any) -> Any:
    """What computes the product of tensors like these: `Overlapped`, or the launch of `all_reduce`; None: NCCL sends.
    Everything is checked where they are new."""
    key: Any = None
    try:
        key = (
            call.name,
            A.dtype, A.shape, A.stride(), A.data_ptr() % ALIGNED, A.get_device(),
            B.dtype, B.shape, B.stride(), B.data_ptr() % ALIGNED, B.get_device(),
            None if bias is None else (bias.dtype, bias.shape, bias.stride(), bias.get_device()),
            const_identity(epilogue),
        )  # fmt: skip
        return ranks.known[key]
    except (KeyError, AttributeError):
        pass
    _check(call, ranks, A, B, bias, epilogue)
    made, m = None, A.shape[0] if call is GATHER else A.shape[0] // ranks.count
    overlaps = ranks.count > 1 and not ranks.apart and A.dtype in DTYPES
    size = A.shape[0] * B.shape[1] * A.element_size()
    if call is REDUCE and overlaps and size <= SMALL and size % ALIGNED == 0:
        step = reduced(size // A.element_size(), DTYPES[A.dtype], ranks.rank, ranks.require(1).layout)
        made = launch_of(step, SOMEWHERE, ranks.device.index)
    elif overlaps and min(m, *B.shape) >= FEW and (call is not REDUCE or A.shape[0] % ranks.count == 0):
        made = Overlapped(call, ranks, A, B, bias, epilogue, m)
    if len(ranks.known) == LIMIT:
        ranks.known.clear()
    ranks.known[key] = made
    return made


class Overlapped:
    """A product by one launch, of tensors like these. For each half: what is sent, the launch, and where the half is in
    a segment."""

    def __init__(self, call: Called, ranks: Ranks, A: Any, B: Any, bias: Any, epilogue: Any, m: int) -> None:
        right, dtype, (k, n) = _readable(B), DTYPES[A.dtype], B.shape
        self.call, self.ranks, self.copied = call, ranks, (A is not _in_rows(A), B is not right)
        of = Sharded(
            ranks.rank, ranks.count, m, n, k, dtype, right.stride(), bias is not None, epilogue, ranks.processors
        )
        consts, plan = consts_of(of, call is not GATHER), gathered if call is GATHER else scattered
        layout = ranks.require(room_of(of, consts, call is not GATHER)).layout
        self.halves: list[tuple[list[Copy], Launch, int]] = []
        for half in range(2):
            sends, step = plan(of, consts, layout, half)
            copies = [copy for send in sends for copy in send.copies]
            self.halves.append((copies, launch_of(step, SOMEWHERE, ranks.device.index), layout.slots(half)))

    def run(self, A: Any, B: Any, C: Any, bias: Any, rows_to: Any = None) -> None:
        ranks = self.ranks
        if _capturing():
            message = f"{self.call.name}() sends to memory that calls use in turn, and its stream captures a graph"
            fix = "call it outside of graphs; only gemm_all_reduce() of at most 1 MiB can be captured"
            raise DeviceError(f"{message}\n  fix: {fix}")
        left, right = _in_rows(A) if self.copied[0] else A, _readable(B) if self.copied[1] else B
        stream, segments = _raw_stream(ranks.device.index), ranks.segments
        assert segments is not None
        half, told = ranks.begin_call(stream)
        copies, launch, start = self.halves[half]
        base, at = segments.base, left.data_ptr()
        gathers = self.call is GATHER
        if gathers:
            ranks.begin_to_send(stream)
            ranks.send(at, copies)
        added = bias if bias is None else _aligned(bias)
        at_bias = 0 if added is None else added.data_ptr()
        run_launch(launch, stream, (at, right.data_ptr(), C.data_ptr(), at_bias, told, base, base, base))
        if gathers:
            ranks.join(stream)
        else:
            ranks.send(base, copies)
        if rows_to is not None and segments.own is not None:
            self._take_rows(left, rows_to, segments.own[start:])

    def _take_rows(self, A: Any, to: Any, half: Any) -> None:
        """Copies the rows of all ranks, behind the product that waited for them."""
        (m, k), ranks = A.shape, self.ranks
        rows = half.view(A.dtype)[: ranks.count * m * A.stride(0)].view(ranks.count, m, A.stride(0))
        every = to.view(ranks.count, m, k)
        for rank in range(ranks.count):
            every[rank].copy_(A if rank == ranks.rank else rows[rank, :, :k])


def _in_rows(A: Any) -> Any:
    """A, or a copy, in rows as the segments have them."""
    m, k = A.shape
    wide = padded(k, A.element_size())
    return A if A.stride() == (wide, 1) and A.data_ptr() % ALIGNED == 0 else A.new_empty(m, wide)[:, :k].copy_(A)


def _aligned(bias: Any) -> Any:
    """Return the bias, or a copy, contiguous and aligned as the launch was planned."""
    return bias if bias.stride() == (1,) and bias.data_ptr() % ALIGNED == 0 else bias.clone(memory_format=_CONTIGUOUS)


def _readable(B: Any) -> Any:
    """B, or a copy along k, as TMA can read it."""
    (k, n), read = B.shape, _by_tma(B)
    return B if read else B.new_empty(n, padded(k, B.element_size()))[:, :k].copy_(B.T).T


def _by_tma(B: Any) -> bool:
    size, (down, across) = B.element_size(), B.stride()
    return min(down, across) == 1 and max(down, across) * size % ALIGNED == 0 and B.data_ptr() % ALIGNED == 0


def _check(call: Called, ranks: Ranks, A: Any, B: Any, bias: Any, epilogue: Any) -> None:
    """Raises KernelArgumentError."""
    for name, X in (("A", A), ("B", B)):
        if not isinstance(X, torch.Tensor) or X.dim() != 2 or X.device != ranks.device:
            found = (
                f"of shape {tuple(X.shape)} on {X.device}" if isinstance(X, torch.Tensor) else f"a {type(X).__name__}"
            )
            message = f"{name} is {found}; expected a tensor of two axes on {ranks.device}"
            fix = f"reshape or move it; or call torch.cuda.set_device before the first product of rank {ranks.rank}"
            raise argument_error(call, message, fix, code="C804")
    if A.shape[1] != B.shape[0] or A.dtype != B.dtype:
        message = f"A is {A.dtype} of shape {tuple(A.shape)}, and B {B.dtype} of shape {tuple(B.shape)}"
        raise argument_error(call, message, "pass [M, K] and [K, N] of one dtype", code="C803")
    if bias is not None:
        expected = torch.float32, B.shape[1:], ranks.device
        if (bias.dtype, bias.shape, bias.device) != expected:
            message = f"bias is {bias.dtype} of shape {tuple(bias.shape)} on {bias.device}"
            message += f"; expected f32 of shape {tuple(B.shape[1:])} on {ranks.device}"
            raise argument_error(call, message, "convert it", code="C803")
    if call is SCATTER and A.shape[0] % ranks.count:
        message = f"A has {A.shape[0]} rows, and the group {ranks.count} ranks"
        raise argument_error(call, message, "pass as many rows for each rank: pad A", code="C803")
    # The order of B is one of the things that decide the tile, which all ranks must have.
    order = "B by columns" if not _by_tma(B) or B.stride(0) == 1 else "B by rows"
    ending = "no bias" if bias is None else "bias", getattr(epilogue, "__name__", str(epilogue))
    ranks.agree(call, (A.dtype, A.shape[0], *B.shape, order, *ending))
