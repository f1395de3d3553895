"""One gallery kernel in one format gives the same bits on the GPU as on the emulator, at sizes with edges.

``PYTHONPATH=. python tests/gpu/gallery_program.py mma_fastest bf16``
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from programs import parity

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "gemm"))
from gallery import GALLERY, HOPPER, as_given, chosen, load  # type: ignore[import-not-found]
from reference import random_problem  # type: ignore[import-not-found]

SIZES = ((33, 17, 45), (64, 96, 32), (1, 1, 1), (5, 3, 0), (133, 260, 52))


def main(name: str, format: str) -> None:
    entry = next(entry for entry in (*GALLERY, *HOPPER) if entry.kernel == name)
    kernel = load(entry)
    first = format == entry.formats[0]
    for consts in entry.variants if first else (chosen(entry, {}, 64, 64, 64, format),):
        for size in SIZES:
            parity(kernel, *as_given(kernel, *random_problem(*entry.sized(*size), format=format)), **consts)
            if entry in GALLERY and entry.scaled:
                A, B, C = random_problem(*size, format=format)
                scale = (3.0, -2.0) if format in ("i8", "u8") else (0.3, -1.7)
                parity(kernel, *as_given(kernel, A, B, np.ones_like(C)), *scale, **consts)
        if name in ("mma_fastest", "hopper_fastest"):
            A, B, C = random_problem(80, 144, 96, format=format)
            for turned in ((A.T.copy().T, B, C), (A, B.T.copy().T, C), (A.T.copy().T, B.T.copy().T, C.T.copy().T)):
                parity(kernel, *as_given(kernel, *turned), **consts)
    if name == "hopper_fastest":
        tuned(kernel, format)
    if name == "mma_fastest" and format in ("bf16", "f16"):
        by_tma(kernel, format)
    print("done")


def by_tma(kernel: Any, format: str) -> None:
    """Every choice of consts with TMA, several tiles a block; scaled, added to, and with an epilogue function."""
    from tiledsl.gemm.epilogue import add_bias
    from tiledsl.gemm.mma import HALVES

    A, B, C = random_problem(264, 4104, 328, format=format)
    bias = np.linspace(-2, 2, 4104, dtype=np.float32)
    for _, consts in HALVES:
        parity(kernel, A, B, C.copy(), **consts)
        parity(kernel, A, B, np.ones_like(C), 0.3, -1.7, bias, EPILOGUE=add_bias, **consts)


def tuned(kernel: Any, format: str) -> None:
    """Every choice of `choose`, results that TMA cannot store, early launches, clusters, batches, an epilogue function;
    sums scaled and added to."""
    from tiledsl.gemm.choice import WHOLE, Variant
    from tiledsl.gemm.epilogue import add_bias

    A, B, C = (
        np.stack(x) for x in zip(*(random_problem(264, 376, 328, seed, format) for seed in range(2)), strict=True)
    )
    along_k = B.swapaxes(1, 2).copy().swapaxes(1, 2)
    for tile in WHOLE:
        parity(kernel, A, along_k, C.copy(), **Variant(tile).consts())
        parity(kernel, A, B, C.copy(), **Variant(tile, by_rows=True).consts())
    small = (Variant((64, 64, 2)), Variant((64, 48, 2)), Variant((128, 128, 2), along_m=2))
    for consts in ({}, {"BN": 176, "INSTANCES": 2}, *(variant.consts(by_tma=False) for variant in small)):
        for odd in (np.empty((2, 263, 375), C.dtype), np.empty((2, 375, 263), C.dtype).swapaxes(1, 2)):
            odd[...] = np.nan
            parity(kernel, A[:, :263], along_k[:, :, :375], odd, **consts, EARLY=True)
    for cluster in ((2, 1), (1, 2), (2, 2)):
        parity(kernel, A, B, C.copy(), CLUSTER=cluster)
    bias = np.linspace(-2, 2, 376, dtype=np.float32)
    parity(kernel, A, B, np.ones_like(C), 0.3, -1.7, bias, ADD_C=True, EPILOGUE=add_bias)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
