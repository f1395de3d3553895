"""Fits the constants of tiledsl/gemm/choice.py to measured times (`benchmarks.choice_times`). Needs no GPU.

    python -m benchmarks.choice_fit                    # how good the choice is on what was measured
    python -m benchmarks.choice_fit --seeds 151        # the same of these shapes: against a full search
    python -m benchmarks.choice_fit --rounds 4000      # fit, and print the constants
    python -m benchmarks.choice_fit --rounds 4000 --prefer 3 --write
    python -m benchmarks.choice_fit --rounds 1000 --check family

The model is `choice.estimate` itself, asked for all variants at once, with other constants each time. What is made
small is how much slower than the fastest measured variant of a shape the one is that the model would choose, if its
times were a little off; then the model's error. A fit is a random search from the present constants, which it leaves
reluctantly. --prefer: shapes measured with these kernels count three times. --check: of each family (or seed, or
kernel) in turn, what a fit to the others chooses there. Where `gemm` would choose a variant that was not timed, which
the report counts, the best by the model of those that were counts instead.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import random
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.choice_times import PROCESSORS, as_row, of_row
from benchmarks.report import RESULTS, table
from tiledsl.gemm import choice
from tiledsl.gemm.choice import Variant, estimate, table_of

__all__ = ["Measured", "Times", "constants", "fit", "load", "main", "put", "rewritten"]

FITTED = (
    *("SM_INTAKE", "TPC_INTAKE", "MISSING", "READ", "WRITE", "UNALIGNED_LOAD", "UNALIGNED_STORE", "WITHIN_LINE"),
    *("ACROSS", "PIECE", "FIRST", "TILE", "CLUSTERED", "IN_STEP", "LAUNCH", "PARTS", "DOUBLED", "REDUCED"),
    *("GROUPS", "GATHERED"),
)
"""Names of constants; all elements of a dict but those that are 1. MACS was measured."""
Constants = dict[tuple[str, Any], float]
"""By name, and key in a dict or None."""
NOISE, CLOSE = 0.02, 8.0
"""By how much the model's times may be off, as a logarithm; how fast its error counts less for slower variants."""
PREFERRED = 3
SPREAD, ERROR, MOVED = 0.5, 0.2, 0.0003
"""Weights, relative to the mean loss: of its root mean square, the model's error, and what constants move."""


class Measured(NamedTuple):
    """A shape. kernel: digest of the one that was timed. times: microseconds and variant. cublas: microseconds, or
    None."""

    kernel: str
    family: str
    seed: Any
    layout: str
    shape: tuple[int, int, int, int]
    times: list[tuple[float, Variant]]
    cublas: float | None


def load(file: Path) -> list[Measured]:
    """What `choice_times` wrote, without the variants that the choice has no longer."""
    found: list[Measured] = []
    for text in file.read_text().splitlines():
        line = json.loads(text)
        times = [of_row(row, line["layout"]) for row in line["times"]]
        times = [(us, v) for us, v in times if v.tile in (choice.PARTED if v.parts else choice.WHOLE)]
        if len(times) > 1:
            batch, m, n, k = line["shape"]
            shape = (max(batch, 1), m, n, k)
            found.append(
                Measured(line["kernel"], line["family"], line["seed"], line["layout"], shape, times, line["cublas"])
            )
    return found


class Times:
    """All measured variants, a shape a row, padded to the same number; and their times by the model. preferred:
    kernels whose shapes count `PREFERRED` times."""

    def __init__(self, shapes: Sequence[Measured], preferred: Sequence[str] = ()) -> None:
        self.shapes = shapes
        self._counts = np.array([PREFERRED if shape.kernel in preferred else 1 for shape in shapes])
        flat = [(*shape.shape, shape.layout == "NT", us) for shape in shapes for us, _ in shape.times]
        batch, m, n, k, along, us = np.array(flat, float).T
        self._product = batch, m, n, k, (np.ones(len(along), bool), along > 0)
        self._table = table_of([v for shape in shapes for _, v in shape.times])
        counts = np.array([len(shape.times) for shape in shapes])
        column = np.arange(counts.max())
        self._there = column < counts[:, None]
        self._index = np.where(self._there, (np.cumsum(counts) - counts)[:, None] + column, 0)
        measured = np.log(1e3 * us)[self._index]
        best = np.where(self._there, measured, np.inf).min(1, keepdims=True)
        self.loss = np.where(self._there, measured - best, 0)
        weight = np.where(self._there, np.exp(-CLOSE * self.loss), 0)
        self._weight, self.measured = weight / weight.sum(1, keepdims=True), measured

    def by_model(self) -> Any:
        """Logarithms of the times, with the constants as they are; infinite where there is none."""
        found = np.log(estimate(self._table, *self._product, PROCESSORS).total)[self._index]
        return np.where(self._there, found, np.inf)

    def score(self, rows: Any = slice(None)) -> float:
        """What a fit makes small."""
        times = self.by_model()[rows]
        chance = np.exp(-(times - times.min(1, keepdims=True)) / NOISE)
        each = (chance / chance.sum(1, keepdims=True) * self.loss[rows]).sum(1)
        off = np.where(self._there[rows], times, 0) - np.where(self._there[rows], self.measured[rows], 0)
        error, counts = (self._weight[rows] * off**2).sum(1), self._counts[rows]
        mean, square, off_square = (np.average(of, weights=counts) for of in (each, each**2, error))
        return float(mean + SPREAD * square**0.5 + ERROR * off_square**0.5)

    def chosen(self) -> Any:
        """By how much, as a logarithm, the variant that the model chooses is slower than the fastest, by shape."""
        return self.loss[np.arange(len(self.shapes)), self.by_model().argmin(1)]


# -- constants -------------------------------------------------------------------------------------------


def constants() -> Constants:
    """The present ones."""
    found: Constants = {}
    for name in FITTED:
        value = getattr(choice, name)
        if isinstance(value, dict):
            found |= {(name, key): float(x) for key, x in value.items() if x != 1}
        else:
            found[name, None] = float(value)
    return found


def put(values: Mapping[tuple[str, Any], float]) -> None:
    """Let the model use these."""
    for (name, key), value in values.items():
        if key is None:
            setattr(choice, name, value)
        else:
            getattr(choice, name)[key] = value
    for found in vars(choice).values():
        if hasattr(found, "cache_clear"):  # what follows from them
            found.cache_clear()


def fit(times: Times, rounds: int, rows: Any = slice(None), seed: int = 0) -> Constants:
    """The best constants found, which the model uses from now on. rows: the shapes that count."""
    drawn, best = random.Random(seed), constants()
    start, width = dict(best), dict.fromkeys(best, 0.2)

    def value(tried: Constants) -> float:
        put(tried)
        moved = sum(math.log(tried[name] / start[name]) ** 2 for name in tried)
        return times.score(rows) + MOVED * moved

    least = value(best)
    for number in range(rounds):
        names = drawn.sample(list(best), drawn.choice((1, 1, 2, 3)))
        tried = best | {name: best[name] * math.exp(drawn.gauss(0, width[name])) for name in names}
        found = value(tried)
        for name in names:
            width[name] = min(0.4, width[name] * 1.5) if found < least else max(0.01, width[name] * 0.97)
        if found < least:
            least, best = found, tried
        if number % 500 == 499:
            width = {name: max(each, 0.06) for name, each in width.items()}
    best = {name: digits(each) for name, each in best.items()}
    put(best)
    return best


def digits(value: float) -> float:
    """What a constant is worth writing down of."""
    short = float(f"{value:.3g}")
    return float(round(value)) if value >= 1000 else short


def rewritten(text: str, values: Constants) -> str:
    """The source of choice.py with these constants. What is beside them in an assignment stays."""
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], node.value
        pairs = list(zip(target.elts, value.elts, strict=True)) if _both_tuples(target, value) else [(target, value)]
        for name, part in reversed(pairs):
            if isinstance(name, ast.Name) and name.id in FITTED:
                new = _written(name.id, ast.literal_eval(part), values)
                assert part.lineno == part.end_lineno, f"{name.id} is on one line"
                line = lines[part.lineno - 1].encode()
                lines[part.lineno - 1] = (line[: part.col_offset] + new.encode() + line[part.end_col_offset :]).decode()
    return "".join(lines)


def _both_tuples(target: ast.expr, value: ast.expr) -> bool:
    return isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)


def _written(name: str, value: Any, values: Constants) -> str:
    if isinstance(value, dict):
        return repr({key: _plain(values.get((name, key), old)) for key, old in value.items()})
    return repr(_plain(values.get((name, None), value)))


def _plain(value: float) -> float:
    return int(value) if value == int(value) else value


# -- reports ---------------------------------------------------------------------------------------------


def report(times: Times, rows: Iterable[int] | None = None) -> str:
    """By family and layout: how fast what the model chooses is, relative to the fastest measured and to cuBLAS."""
    slower, families = times.chosen(), defaultdict[Any, list[int]](list)
    for number in range(len(times.shapes)) if rows is None else rows:
        families[times.shapes[number].family, times.shapes[number].layout].append(number)
    untimed = [_chosen(shape) not in {v._replace(band=0) for _, v in shape.times} for shape in times.shapes]
    lines: list[tuple[str, ...]] = []
    for (family, layout), numbers in sorted(families.items()):
        shares = [math.exp(-slower[i]) for i in numbers]
        known = [i for i in numbers if times.shapes[i].cublas]
        ratios = [times.shapes[i].cublas / min(times.shapes[i].times)[0] * math.exp(-slower[i]) for i in known]
        against = (f"{_mean(ratios):.3f}", f"{min(ratios):.3f}") if ratios else ("", "")
        counts = str(len(numbers)), str(sum(untimed[i] for i in numbers))
        lines.append((family, layout, *counts, f"{_mean(shares):.3f}", f"{min(shares):.3f}", *against))
    header = ("family", "stored", "shapes", "untimed", "of the fastest", "worst", "speed / cuBLAS", "worst")
    mean = float(np.mean(slower if rows is None else slower[list(rows)]))
    return f"{table(header, lines)}\n\nchosen is slower than the fastest measured by {mean:.4f} in the mean"


def _chosen(shape: Measured) -> Variant:
    """What `gemm` would do, but for the order of the tiles."""
    chosen = choice.best(*shape.shape, (True, shape.layout == "NT"))
    return of_row(as_row(0.0, chosen), shape.layout)[1]._replace(band=0)


_mean = statistics.geometric_mean


def worst(times: Times, count: int) -> str:
    """The shapes of which the model chooses worst."""
    slower, found = times.chosen(), times.by_model()
    lines: list[str] = []
    for number in np.argsort(-slower)[:count]:
        shape = times.shapes[int(number)]
        named = {
            "chosen": int(found[number].argmin()),
            "fastest": min(range(len(shape.times)), key=shape.times.__getitem__),
        }
        each = (
            f"{name} {shape.times[i][1]} {shape.times[i][0]:g} us, by the model {math.exp(found[number][i]) / 1e3:.4g}"
            for name, i in named.items()
        )
        lines.append(f"{shape.family} {shape.layout} {shape.shape}: {'; '.join(each)}")
    return "\n".join(lines)


def checked(times: Times, by: str, rounds: int) -> str:
    """What fits without a family, or a seed, choose there."""
    before, lines, all_left = constants(), list[tuple[str, ...]](), list[float]()
    groups = [getattr(shape, by) for shape in times.shapes]
    for out in dict.fromkeys(groups):
        inside = np.array([group == out for group in groups])
        put(before)
        fit(times, rounds, ~inside)
        slower = times.chosen()
        all_left += list(slower[inside])
        lines.append((str(out), f"{slower[~inside].mean():.4f}", f"{slower[inside].mean():.4f}"))
    put(before)
    return f"{table((f'without {by}', 'slower: others', 'it'), lines)}\n\nnot seen: {np.mean(all_left):.4f} in the mean"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=RESULTS / "choice_times.jsonl")
    parser.add_argument("--rounds", type=int, default=0, help="of the random search; 0: only report")
    parser.add_argument("--seeds", nargs="+", default=[], metavar="SEED", help="only shapes of these")
    parser.add_argument("--check", choices=("family", "seed", "kernel"), help="leave out one after the other")
    parser.add_argument("--prefer", nargs="+", default=[], metavar="KERNEL", help="count three times")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="show the N worst choices")
    parser.add_argument("--write", action="store_true", help="write the constants into tiledsl/gemm/choice.py")
    args = parser.parse_args(argv)
    shapes = load(args.file)
    if args.seeds:
        shapes = [shape for shape in shapes if str(shape.seed) in args.seeds]
        if not shapes:
            parser.error(f"--seeds: {args.file} has no shapes of {', '.join(args.seeds)}")
    kernels = {shape.kernel for shape in shapes}
    if unknown := set(args.prefer) - kernels:
        parser.error(f"--prefer: {args.file} has no {', '.join(unknown)}; it has {', '.join(sorted(kernels))}")
    times = Times(shapes, args.prefer)
    print(f"{len(times.shapes)} shapes, {sum(len(shape.times) for shape in times.shapes)} variants\n\n{report(times)}")
    if args.check:
        print(f"\n{checked(times, args.check, args.rounds or 500)}")
    elif args.rounds:
        found = fit(times, args.rounds)
        print(f"\nfitted:\n\n{report(times)}\n")
        source = Path(choice.__file__)
        new = rewritten(source.read_text(), found)
        if args.write:
            source.write_text(new)
            print(f"written to {source}")
        names = re.compile(rf"^(?:[A-Z_0-9]+, )*(?:{'|'.join(FITTED)})\b.* = ")
        print("\n".join(line for line in new.splitlines() if names.match(line)))
    if args.worst:
        print(f"\n{worst(times, args.worst)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
