"""One gallery kernel in one format gives the same bits on the GPU as on the emulator, at sizes with edges.

``PYTHONPATH=. python tests/gpu/gallery_program.py mma_fastest bf16``
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from programs import parity

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "gemm"))
from gallery import GALLERY, chosen, load  # type: ignore[import-not-found]
from reference import random_problem  # type: ignore[import-not-found]

SIZES = ((33, 17, 45), (64, 96, 32), (1, 1, 1), (5, 3, 0), (133, 260, 52))


def main(name: str, format: str) -> None:
    entry = next(entry for entry in GALLERY if entry.kernel == name)
    kernel = load(entry)
    first = format == entry.formats[0]
    for consts in entry.variants if first else (chosen(entry, {}, 64, 64, 64, format),):
        for size in SIZES:
            parity(kernel, *random_problem(*size, format=format), **consts)
            if entry.scaled:
                A, B, C = random_problem(*size, format=format)
                scale = (3.0, -2.0) if format in ("i8", "u8") else (0.3, -1.7)
                parity(kernel, A, B, np.ones_like(C), *scale, **consts)
        if name == "mma_fastest":
            A, B, C = random_problem(80, 144, 96, format=format)
            for turned in ((A.T.copy().T, B, C), (A, B.T.copy().T, C), (A.T.copy().T, B.T.copy().T, C.T.copy().T)):
                parity(kernel, *turned, **consts)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
