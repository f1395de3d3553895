"""Grouped and masked products on a Hopper GPU: each public function runs in a process of its own.

``PYTHONPATH=. python tests/gpu/grouped_programs.py NAME`` runs one by hand.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from programs import parity

from tiledsl.gemm import gemm, grouped_gemm, masked_gemm
from tiledsl.gemm.epilogue import add_bias
from tiledsl.gemm.grouped import hopper_grouped
from tiledsl.gemm.grouped_call import SCALED_TILES, TILES

SIZES = [3, 0, 0, 150, 64, 1, 128, 0]


def _normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([*shape, seed]).standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)


def every_tile() -> None:
    """Grouped and masked, in both orders of B, of both kinds of offsets: the bits of the emulator, all over C."""
    groups, k, n = len(SIZES), 136, 264
    rows = np.cumsum([2, *SIZES])
    by_rows, along_k = _normal(groups, k, n), _normal(groups, n, k).swapaxes(1, 2)
    for tile in TILES:
        for B, bounds in ((by_rows, np.int32), (along_k, np.int64)):
            A, C = _normal(1, rows[-1] + 3, k), np.full((1, rows[-1] + 3, n), 7, ml_dtypes.bfloat16)
            parity(hopper_grouped, A, B, C, rows.astype(bounds), **tile.consts(groups))
            A, C = _normal(groups, 153, k), np.full((groups, 153, n), 7, ml_dtypes.bfloat16)
            parity(hopper_grouped, A, B, C, np.array(SIZES, bounds), MASKED=True, **tile.consts(groups))


def scales_of_blocks() -> None:
    """8-bit floats in every tile: the bits of the emulator. By torch: those of `gemm` for each group by itself."""
    import torch

    groups, k, n = len(SIZES), 400, 264
    draw, rows = np.random.default_rng(1), np.cumsum([2, *SIZES])
    B = _normal(groups, n, k).astype(ml_dtypes.float8_e4m3fn).swapaxes(1, 2)
    scale_b = draw.uniform(0.5, 2, (groups, 4, 3)).astype(np.float32)
    for tile in SCALED_TILES:
        for shape, bounds in (((1, rows[-1] + 3), rows), ((groups, 153), np.array(SIZES))):
            A = _normal(*shape, k).astype(ml_dtypes.float8_e5m2)
            scale_a, C = (
                draw.uniform(0.5, 2, (*shape, 4)).astype(np.float32),
                np.full((*shape, n), 7, ml_dtypes.bfloat16),
            )
            consts = {**tile.consts(groups, size=1, scaled=True), "MASKED": shape[0] > 1}
            parity(hopper_grouped, A, B, C, bounds.astype(np.int32), 1.0, None, scale_a, scale_b, **consts)
    e4m3, offsets = torch.float8_e4m3fn, torch.tensor([3, 40, 40, 300, 511], device="cuda")
    a, b = torch.randn(513, 640, device="cuda").to(e4m3), torch.randn(4, 512, 640, device="cuda").to(e4m3).mT
    of_a, of_b = torch.rand(5, 513, device="cuda").mT, torch.rand(4, 5, 4, device="cuda")
    for _ in range(2):
        c = grouped_gemm(a, b, offsets, scale_a=of_a, scale_b=of_b)
        for g, (i, j) in enumerate(pairwise(offsets.tolist())):
            if i < j:
                alone = gemm(a[i:j], b[g], scale_a=of_a[i:j], scale_b=of_b[g])
                assert torch.equal(c[i:j], alone)


def any_strides() -> None:
    """Operands that TMA cannot read, a C that it cannot store; twice, since a second call is looked up."""
    import torch

    A, B = torch.randn(200, 67, device="cuda").bfloat16(), torch.randn(5, 67, 301, device="cuda").bfloat16()
    offsets = torch.tensor([1, 40, 40, 41, 190, 199], device="cuda")
    by_columns = torch.full((301, 200), 7.0, device="cuda", dtype=torch.bfloat16).T
    for b, c in ((B, torch.full_like(by_columns, 7)), (B.transpose(1, 2).contiguous().transpose(1, 2), by_columns)):
        for _ in range(2):
            assert grouped_gemm(A, b, offsets, c) is c
            for g, (first, last) in enumerate(pairwise(offsets.tolist())):
                exact = A[first:last].double() @ B[g].double()
                assert torch.allclose(c[first:last].double(), exact, rtol=2**-8, atol=2**-10)
            assert bool((c[:1] == 7).all()) and bool((c[199:] == 7).all())
            made = grouped_gemm(A, b, offsets)
            assert torch.equal(made[1:199], c[1:199])
            c.fill_(7)


def in_a_graph() -> None:
    """Captured once; replays read the sizes anew. Rows behind the counts stay, and NaN there does not matter."""
    import torch

    groups, most, n, k = 24, 200, 512, 256
    A = torch.randn(groups, most, k, device="cuda").bfloat16()
    B = torch.randn(groups, n, k, device="cuda").bfloat16().transpose(1, 2)
    bias = torch.randn(groups, n, device="cuda")
    counts = torch.zeros(groups, dtype=torch.int64, device="cuda")
    C = torch.full((groups, most, n), 7.0, device="cuda", dtype=torch.bfloat16)
    options: dict[str, Any] = {"bias": bias, "epilogue": add_bias}
    masked_gemm(A, B, counts, C, **options)
    torch.cuda.synchronize()
    assert bool((C == 7).all())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        masked_gemm(A, B, counts, C, **options)
    for seed in range(3):
        sizes = np.random.default_rng(seed).integers(0, most + 1, groups)
        sizes[seed] = 0
        counts.copy_(torch.from_numpy(sizes))
        C.fill_(7)
        clean = A.clone()
        for g, size in enumerate(sizes):
            A[g, size:] = float("nan")
        graph.replay()
        for g, size in enumerate(sizes):
            exact = clean[g, :size].double() @ B[g].double() + bias[g].double()
            assert torch.allclose(C[g, :size].double(), exact, rtol=2**-8, atol=2**-10)
            assert bool((C[g, size:] == 7).all())
        A.copy_(clean)


def wrong_offsets_touch_nothing_else() -> None:
    """What is around C stays as it was, and the context is alive."""
    import torch

    A, B = torch.randn(300, 64, device="cuda").half(), torch.randn(3, 64, 128, device="cuda").half()
    room = torch.full((900, 128), 7.0, device="cuda").half()
    for wrong in ([0, 200, 100, 300], [-(2**40), 5, 9, 300], [0, 2**31 + 3, -(2**33), 2**62], [9, 8, 7, 6]):
        for size in (300, 3):  # by tiles of few rows, and of many
            C = room[300 : 300 + size]
            grouped_gemm(A[:size], B, torch.tensor(wrong, device="cuda"), C)
    torch.cuda.synchronize()
    assert bool((room[:300] == 7).all()) and bool((room[600:] == 7).all())


def offsets_beyond_32_bits() -> None:
    """Matrices of more than 2^31 elements."""
    import torch

    groups, n, k = 80, 8192, 4096
    B = torch.empty(groups, n, k, device="cuda", dtype=torch.bfloat16)
    for g in range(groups):
        B[g] = torch.randn(n, k, device="cuda")
    sizes = [(5 * g) % 7 for g in range(groups)]
    ends = np.cumsum([0, *sizes])
    A = torch.randn(int(ends[-1]), k, device="cuda").bfloat16()
    C = grouped_gemm(A, B.transpose(1, 2), torch.from_numpy(ends.astype(np.int32)).cuda())
    for g, (first, last) in enumerate(pairwise(ends)):
        exact = A[first:last].double() @ B[g].double().T
        assert torch.allclose(C[first:last].double(), exact, rtol=2**-8, atol=2**-9 * k**0.5)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("done")
