"""Cases of `integers`: random programs of integers near the ends of their dtypes (tests/property/random_integers.py).

A case is a pack of programs. Its results at tile level, where no pass has run, at thread level, with and without checks
of bounds, and with constants for all inputs are those that `ir.semantics` gives. A program that reads outside a table
is refused at both levels, and no other one is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.fuzz.outcome import Outcome, judge, limit
from tests.property.random_integers import THREADS, Pack, random_pack
from tiledsl.backends import emulator
from tiledsl.errors import CompileErrors, EmulatorError
from tiledsl.ir.core import Kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.passes.pipeline import run_pipeline

__all__ = ["COUNT", "SUFFIX", "generate", "run"]

SUFFIX = "tir"
SECONDS = 60.0
COUNT = 10
"""Programs of a case."""
LEVELS = ("tile level", "thread level", "without checks", "folded")
"""The ways to run the programs of a case. folded: with the inputs of one thread as constants."""
CONSTANT_INDEX = "C303"
OUTSIDE = ("T501", CONSTANT_INDEX)
"""The errors of an access that leaves its memory: when it runs, or when it is compiled."""


def _pack(seed: int, case: int) -> Pack:
    return random_pack(seed * 1_000_000 + case, COUNT)


def generate(seed: int, case: int) -> str:
    return print_kernel(_pack(seed, case).kernel(range(COUNT)))


def run(text: str, seed: int, case: int) -> Outcome:
    try:
        with limit(SECONDS):
            return _outcome(_pack(seed, case), case)
    except BaseException as error:
        return judge(error)


def _outcome(pack: Pack, case: int) -> Outcome:
    inside = [n for n, outside in enumerate(pack.outside) if not outside]
    bits = 64 if case % 4 == 3 else 32
    for level in LEVELS if inside else ():
        lane = case % THREADS if level == "folded" else -1
        wrong = _wrong(pack, inside, level, lane, bits)
        if wrong:
            return Outcome("levels", level, _shown(pack, wrong, f"{level}, {bits} bits"))
    for number, outside in enumerate(pack.outside):
        for level in LEVELS[:2] if outside else ():
            code = _refused(pack, number, level, bits)
            if code not in OUTSIDE:
                return Outcome("levels", f"{level}: reads outside a table", _shown(pack, [number], code or "no error"))
    return Outcome("ok")


def _wrong(pack: Pack, chosen: Sequence[int], level: str, lane: int, bits: int) -> list[int]:
    """Return which of these programs have other results than they should have."""
    try:
        kernel = _lowered(pack.kernel(chosen, lane=lane, index_bits=bits), level)
    except CompileErrors as error:
        if error.code != CONSTANT_INDEX:
            raise
        if len(chosen) == 1:
            return []  # in a branch that this program does not take
        return [n for each in chosen for n in _wrong(pack, [each], level, lane, bits)]
    arguments = pack.arguments(len(chosen))
    emulator.run(kernel, arguments)
    same = arguments["OUT"] == pack.expected[list(chosen)]
    return [chosen[n] for n in np.flatnonzero(~(same[:, lane] if lane >= 0 else same.all(1)))]


def _lowered(kernel: Kernel, level: str) -> Kernel:
    return kernel if level == "tile level" else run_pipeline(kernel, bounds=level != "without checks")


def _refused(pack: Pack, number: int, level: str, bits: int) -> str | None:
    """Return the code of the error that one program ends with, when it is compiled or run."""
    try:
        emulator.run(_lowered(pack.kernel([number], index_bits=bits), level), pack.arguments(1))
    except (CompileErrors, EmulatorError) as error:
        return error.code
    return None


def _shown(pack: Pack, numbers: Sequence[int], what: Any) -> str:
    """Return the programs of these numbers as IR, and their results."""
    parts = [f"{what}: programs {', '.join(map(str, numbers))}"]
    for number in numbers:
        parts += [print_kernel(pack.kernel([number])), f"expected {pack.expected[number].tolist()}"]
    return "\n".join(parts)
