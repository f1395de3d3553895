"""Random programs give the same bits on the GPU as on the emulator.

``PYTHONPATH=. python tests/gpu/random_program.py 0 100``: the first seed and how many. A program runs on the GPU
only after the emulator's checks passed it.
"""

from __future__ import annotations

import sys

import numpy as np
import raw_launch

from tests.property.random_kernels import random_case, same_bits
from tiledsl.backends import emulator
from tiledsl.errors import CompileErrors
from tiledsl.ir.printer import print_kernel
from tiledsl.passes.pipeline import run_pipeline


def main(first: int, count: int) -> int:
    wrong = 0
    for seed in range(first, first + count):
        case = random_case(seed, 10 + seed % 30)
        tile_level = print_kernel(case.kernel)
        try:
            kernel = run_pipeline(case.kernel)
        except CompileErrors as refused:
            if "the loop waits for another thread" not in str(refused):
                raise
            continue  # by chance, a loop that polls
        expected, got = case.arguments(), case.arguments()
        emulator.run(kernel.clone(), expected, options=emulator.Options(checks=True))
        raw_launch.run(kernel, got)
        bad = [n for n, a in got.items() if isinstance(a, np.ndarray) and not same_bits(a, expected[n])]
        if bad:
            wrong += 1
            print(f"seed {seed}: {', '.join(bad)} differ\n{tile_level}")
            print(*(f"{n}:\n{expected[n]}\n{got[n]}" for n in bad), sep="\n")
    print("done")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(int(sys.argv[1]), int(sys.argv[2])), 100))
