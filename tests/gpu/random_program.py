"""Random programs give the same bits on the GPU as on the emulator.

``PYTHONPATH=. python tests/gpu/random_program.py statements 0 100``: what kind, the first seed and how many. A program
runs on the GPU only after the emulator's checks passed it. A seed of `integers` is a kernel of several programs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import raw_launch

from tests.property.random_integers import THREADS, Pack, random_pack
from tiledsl.backends import emulator
from tiledsl.errors import CompileErrors
from tiledsl.ir.core import Kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.passes.pipeline import run_pipeline

PACK = 20
"""Programs of a kernel of `integers`."""


def statements(seed: int) -> str | None:
    """What differs, or None where the program is not compiled: by chance, it has a loop that polls."""
    from tests.property.random_kernels import random_case, same_bits

    case = random_case(seed, 10 + seed % 30)
    tile_level = print_kernel(case.kernel)
    try:
        kernel = run_pipeline(case.kernel)
    except CompileErrors as refused:
        if "the loop waits for another thread" not in str(refused):
            raise
        return None
    expected, got = case.arguments(), case.arguments()
    emulator.run(kernel.clone(), expected, options=emulator.Options(checks=True))
    raw_launch.run(kernel, got)
    bad = [n for n, a in got.items() if isinstance(a, np.ndarray) and not same_bits(a, expected[n])]
    return "".join(f"{n}:\n{expected[n]}\n{got[n]}\n" for n in bad) and f"{tile_level}\n{bad} differ"


def products(seed: int) -> str:
    from tests.property.random_kernels import same_bits
    from tests.property.random_matrices import random_matrices

    case = random_matrices(seed)
    *operands, result = case.arrays
    expected = np.zeros_like(result)
    case.kernel.check(*operands, expected, **case.consts)
    case.kernel(*operands, result, **case.consts, device="gpu")
    if same_bits(result, expected):
        return ""
    places = np.argwhere(result.view(f"u{result.itemsize}") != expected.view(f"u{result.itemsize}"))
    i, j = places[0]
    return f"{case}\n{len(places)} elements differ; at {i}, {j} {result[i, j]!r}, expected {expected[i, j]!r}"


def integers(seed: int) -> str:
    """Return which programs of a kernel have other results than the semantics give: on the emulator, on the GPU, or
    folded, with the inputs of one thread as constants.

    Programs that read outside a table get guards, so that they do not.
    """
    pack, lane = random_pack(seed, PACK), seed % THREADS
    runs: dict[str, Callable[[Kernel, dict[str, Any]], Any]] = {"emulator": emulator.run, "GPU": raw_launch.run}
    wrong: list[str] = []
    for where, run in (*runs.items(), ("folded", emulator.run)):
        threads = slice(lane, lane + 1) if where == "folded" else slice(None)
        arguments = pack.arguments(PACK)
        run(_lowered(pack, seed, lane if where == "folded" else -1), arguments)
        for number in range(PACK):
            got, expected = arguments["OUT"][number, threads], pack.expected[number, threads]
            if not np.array_equal(got, expected):
                text = print_kernel(pack.kernel([number], safe=[pack.outside[number]]))
                wrong.append(f"{where}, program {number}:\n{text}\n{expected.tolist()}\n{got.tolist()}")
    return "\n".join(wrong)


def _lowered(pack: Pack, seed: int, lane: int) -> Kernel:
    bits, numbers = 64 if seed % 4 == 3 else 32, range(PACK)
    try:
        return run_pipeline(pack.kernel(numbers, safe=pack.outside, lane=lane, index_bits=bits))
    except CompileErrors as refused:
        if refused.code != "C303":  # a constant index, in a branch that is not taken
            raise
        return run_pipeline(pack.kernel(numbers, safe=[True] * PACK, lane=lane, index_bits=bits))


KINDS: dict[str, Callable[[int], str | None]] = {"statements": statements, "products": products, "integers": integers}


def main(kind: str, first: int, count: int) -> int:
    wrong = refused = 0
    for seed in range(first, first + count):
        found = KINDS[kind](seed)
        refused += found is None
        if found:
            wrong += 1
            print(f"seed {seed}: {found}")
    print(f"{count - refused} ran, {wrong} differ")
    print("done")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), 100))
