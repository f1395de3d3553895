"""Fits the costs of the tiles of `int4_gemm`, in tiledsl/gemm/int4_call.py, to measured times. Needs no GPU.

    python -m benchmarks.int4 --variants --seed 7  # on an H200: adds to int4_times.jsonl, a product a line
    python -m benchmarks.int4_fit                  # how good the choice is on what was measured
    python -m benchmarks.int4_fit --rounds 2000    # fits, which takes a minute, and prints the constants

The model is that of the choice, `Tile.microseconds`. A fit is a random search from the present constants. It makes
small how much slower than the fastest measured tile the one is that is chosen, and the model's error for fast tiles.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report import RESULTS
from tiledsl.gemm import int4_call
from tiledsl.gemm.int4_call import Costs, Tile, tiles_for

__all__ = ["FILE", "Measured", "chosen", "fit", "load", "main"]

FILE = RESULTS / "int4_times.jsonl"
NEAR = 1.5
"""Times over that of the fastest tile up to which the model's error counts."""
ERROR, MEAN = 0.4, 2.0
"""Weights, relative to the root mean square of what is lost: of the model's error, and of the mean loss."""
STEP = 0.2
"""By how much a constant moves, as a logarithm."""


class Measured(NamedTuple):
    """A product of `shape` m, n, k: microseconds of tiles."""

    shape: tuple[int, int, int]
    times: list[tuple[float, Tile]]


def load(file: Path = FILE) -> list[Measured]:
    """The products of a file, without the tiles that the choice has no longer."""
    found: list[Measured] = []
    for line in map(json.loads, file.read_text().splitlines()):
        (m, n, k), possible = line["shape"], set(tiles_for(line["shape"][0], line["shape"][2]))
        times = [(us, tile) for us, *of in line["times"] if (tile := Tile(*of)) in possible]
        if len(times) > 1:
            found.append(Measured((m, n, k), times))
    return found


def chosen(of: Sequence[Measured]) -> list[float]:
    """The time of what the model chooses, over that of the fastest tile, for each product."""
    found: list[float] = []
    for shape, times in of:
        us, _ = min(times, key=lambda each: each[1].microseconds(*shape))
        found.append(us / min(us for us, _ in times))
    return found


def _score(of: Sequence[Measured]) -> float:
    lost = [ratio - 1 for ratio in chosen(of)]
    errors: list[float] = []
    for shape, times in of:
        near = NEAR * min(us for us, _ in times)
        errors += [abs(math.log(tile.microseconds(*shape) / us)) for us, tile in times if us < near]
    square = math.sqrt(statistics.fmean(each * each for each in lost))
    return ERROR * statistics.fmean(errors) + MEAN * statistics.fmean(lost) + square


def _constants(rounded: bool) -> list[tuple[dict[Any, Any], Any, int | None]]:
    """Where each stands: a dict, its key, and its place in the value, or None."""
    of_tiles = int4_call.COSTS[rounded]
    found: list[tuple[dict[Any, Any], Any, int | None]] = [(of_tiles, rows, i) for rows in of_tiles for i in range(3)]
    return [*found, (int4_call.TILE, rounded, None), (int4_call.SPLIT, rounded, None)]


def _moved(where: tuple[dict[Any, Any], Any, int | None], by: float) -> Callable[[], None]:
    """Multiplies a constant, and gives what undoes that."""
    values, key, place = where
    before = values[key]
    values[key] = before * by if place is None else Costs(*(x * by if i == place else x for i, x in enumerate(before)))
    return lambda: values.__setitem__(key, before)


def fit(of: Sequence[Measured], rounded: bool, rounds: int, seed: int = 0) -> float:
    """Moves the constants of such tiles; gives the score that is left."""
    draw, places, best = random.Random(seed), _constants(rounded), _score(of)
    for _ in range(rounds):
        undo = [_moved(where, math.exp(draw.gauss(0, STEP))) for where in draw.sample(places, draw.randint(1, 3))]
        score = _score(of)
        if score < best:
            best = score
        else:
            for each in reversed(undo):
                each()
    return best


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=FILE)
    parser.add_argument("--rounds", type=int, default=0)
    args = parser.parse_args(argv)
    products = load(args.file)
    for rounded in (False, True):
        some = [each for each in products if (each.shape[0] > int4_call.FEW) == rounded]
        if args.rounds:
            fit(some, rounded, args.rounds)
            values = [values[key] if i is None else values[key][i] for values, key, i in _constants(rounded)]
            print(f"rounded: {rounded}; COSTS by rows, TILE and SPLIT:", *(f"{value:.3g}" for value in values))
        ratios = chosen(some)
        print(
            f"{len(some)} products of {'many' if rounded else 'few'} rows: the chosen tile takes "
            f"{statistics.fmean(ratios):.3f} of the time of the fastest in the mean, at most {max(ratios):.3f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
