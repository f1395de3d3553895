"""The products of `tiledsl.distributed` without GPUs: all ranks in one process, on the emulator.

`EmulatedRanks` gives what every rank does, on NumPy arrays that stand for the memory of all ranks. So `run_ranks`
computes what the GPUs would, and `check_ranks` finds what nothing orders. A launch of `send_rows` stands for the copy
engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tiledsl import Global, Scalar, barrier, cdiv, grid, minimum, threads, tile_kernel, u32
from tiledsl.dims import K, M, R
from tiledsl.gemm.arguments import epilogue_of
from tiledsl.gemm.operands import dtype_named
from tiledsl.gemm.sharded import (
    OF_SEGMENTS,
    WORDS,
    Layout,
    Sharded,
    consts_of,
    gathered,
    reduced,
    room_of,
    scattered,
)
from tiledsl.gemm.steps import Place, Step
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ranks import OnRank
from tiledsl.signatures.specialize import Called, argument_error

__all__ = ["Call", "EmulatedRanks", "send_rows"]

D = TypeVar("D", bound=Scalar)
PATIENCE = 1000
"""How often a flag is asked for."""
THREADS = 64


@tile_kernel
def send_rows(
    X: Global[D, M, K],
    to: Global[D, M, K],
    flags: Global[u32, R],
    of_call: Global[u32, Literal[3]],
    ready: Global[u32, R] | None = None,
):
    """Copies X to the memory of another rank, part by part, and sets the flag of each to the number of the call. ready:
    flags of parts that may be copied."""
    t = threads(THREADS)
    grid(1)
    each = cdiv(M, R)
    for part in range(R):
        if ready is not None:
            while ready.atomic_load(part, order="acquire", scope="sys") != of_call[1]:
                pass
        for row in range(part * each, minimum(part * each + each, M)):
            for k in range(t, K, THREADS):
                to[row, k] = X[row, k]
        barrier()
        if t == 0:
            flags.atomic_store(part, of_call[1], order="release", scope="sys")


RANKS = Called("EmulatedRanks")
"""What errors name."""


def _require_shapes(ranks: int, As: Sequence[Any], Bs: Sequence[Any], scatters: bool) -> None:
    """Raises KernelArgumentError."""
    rows = f"ranks * m, of {ranks} ranks" if scatters else "m"
    fix = f"pass an A [{rows}, K] and a B [K, N] of one shape and dtype for each rank, K a multiple of 8"
    if len(As) != ranks or len(Bs) != ranks:
        raise argument_error(RANKS, f"there are {len(As)} A and {len(Bs)} B for {ranks} ranks", fix)
    for X, first, name in [(A, As[0], "A") for A in As] + [(B, Bs[0], "B") for B in Bs]:
        if X.ndim != 2 or X.shape != first.shape or X.dtype != As[0].dtype:
            message = f"{name} of a rank is {X.dtype} {X.shape}, and of rank 0 {As[0].dtype} {first.shape}"
            raise argument_error(RANKS, message, fix, code="C803")
    (m, k), (depth, _) = As[0].shape, Bs[0].shape
    if k != depth or k % 8 or (scatters and m % ranks):
        raise argument_error(RANKS, f"A is {As[0].shape} and B {Bs[0].shape}", fix, code="C803")


class Call(NamedTuple):
    """`launches` of all ranks, for `run_ranks` or `check_ranks`, and the result of each, which these write."""

    launches: list[OnRank]
    results: list[NDArray[Any]]


class EmulatedRanks:
    """The memory of so many ranks, for calls whose launches run one after the other. room: bytes of a half."""

    def __init__(self, ranks: int, room: int = 1 << 20) -> None:
        self.layout = Layout(ranks, room, Layout(ranks, room).bytes)
        self.segments = np.zeros(ranks * self.layout.pitch, np.uint8)
        self.calls = 0

    def all_gather_gemm(
        self, As: Sequence[Any], Bs: Sequence[Any], epilogue: Any = None, *, biases: Any = None, **consts: Any
    ) -> Call:
        """Run that of `tiledsl.distributed` with A [m, K], B [K, N], and a bias of each rank, or None for no biases.

        K is a multiple of 8. consts: of `hopper_fastest`, in place of those that are chosen. Raises
        KernelArgumentError.
        """
        return self._product(As, Bs, biases, epilogue, consts, scatters=False)

    def gemm_reduce_scatter(
        self, As: Sequence[Any], Bs: Sequence[Any], epilogue: Any = None, *, biases: Any = None, **consts: Any
    ) -> Call:
        """Run that of `tiledsl.distributed` with A [ranks * m, K] of each rank; else as `all_gather_gemm`."""
        return self._product(As, Bs, biases, epilogue, consts, scatters=True)

    def all_reduce(self, Xs: Sequence[Any], words: int = WORDS, **consts: Any) -> Call:
        """Each X becomes the sum of all; vectors of whole 16 bytes, by words up to so many bytes. It counts its calls
        itself."""
        launches: list[OnRank] = []
        for rank, X in enumerate(Xs):
            step = reduced(X.size, dtype_named(X.dtype), rank, self.layout, words)
            launches.append(self._on_rank(rank, step, {"X": X, **consts}))
        return Call(launches, [*Xs])

    def _product(
        self, As: Sequence[Any], Bs: Sequence[Any], biases: Any, epilogue: Any, consts: Mapping[str, Any], *,
        scatters: bool,
    ) -> Call:  # fmt: skip
        _require_shapes(self.layout.ranks, As, Bs, scatters)
        self.calls += 1
        ranks, launches, results = self.layout.ranks, list[OnRank](), list[NDArray[Any]]()
        m = As[0].shape[0] // (ranks if scatters else 1)
        for rank, (A, B) in enumerate(zip(As, Bs, strict=True)):
            k, n = B.shape
            dtype, strides = dtype_named(A.dtype), (B.strides[0] // B.itemsize, B.strides[1] // B.itemsize)
            of = Sharded(rank, ranks, m, n, k, dtype, strides, biases is not None, epilogue_of(RANKS, epilogue))
            chosen = {**consts_of(of, scatters), **consts}
            if room_of(of, chosen, scatters) > self.layout.room:
                message = f"the product needs {room_of(of, chosen, scatters)} bytes of a half of {self.layout.room}"
                raise argument_error(RANKS, message, "pass as many as room")
            sends, step = (scattered if scatters else gathered)(of, chosen, self.layout, self.calls % 2)
            C = np.zeros((m if scatters else ranks * m, n), A.dtype)
            given = {"B": np.broadcast_to(B, (ranks, k, n))}
            if biases is not None:
                given["bias"] = biases[rank]
            if scatters:
                given |= {"A": A.reshape(ranks, m, k), "C": np.broadcast_to(C, (ranks, m, n)), "own_sums": C[None]}
            else:
                given |= {"own_rows": A, "C": C.reshape(ranks, m, n)}
            launches.append(self._on_rank(rank, step, given))
            for send in sends:
                arrays = {"to": self._array(send.to), "flags": self._array(send.flags), "of_call": self._told(rank)}
                if send.ready is not None:
                    arrays["ready"] = self._array(send.ready)
                X = A if send.held is None else self._array(send.held)
                launches.append(OnRank(rank, send_rows, (), {"X": X, **arrays}))
            results.append(C)
        return Call(launches, results)

    def _on_rank(self, rank: int, step: Step, arrays: Mapping[str, Any]) -> OnRank:
        others = {name: self._array(place) for name, place in step.arrays.items() if place.memory in OF_SEGMENTS}
        return OnRank(rank, step.kernel, (), {**step.consts, **others, **arrays, "of_call": self._told(rank)})

    def _told(self, rank: int) -> NDArray[Any]:
        return np.array([rank, self.calls, PATIENCE], np.uint32)

    def _array(self, place: Place) -> NDArray[Any]:
        dtype = numpy_dtype(place.dtype)
        return np.ndarray(
            place.shape, dtype, self.segments, place.offset, tuple(dtype.itemsize * s for s in place.strides)
        )
