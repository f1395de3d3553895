"""Fits the constants of tiledsl/gemm/choice.py, ffma_choice.py or int4_call.py to measured times. Needs no GPU.

    python -m benchmarks.choice_fit                    # how good the choice is on what was measured
    python -m benchmarks.choice_fit --seeds 151        # the same of these shapes: against a full search
    python -m benchmarks.choice_fit --rounds 4000      # fit, and print the constants
    python -m benchmarks.choice_fit --rounds 4000 --prefer 3 --write
    python -m benchmarks.choice_fit --rounds 1000 --check family
    python -m benchmarks.choice_fit --rounds 400 --only BY_THREADS ORDER --seeds 8981
    python -m benchmarks.choice_fit --model f32        # the same of fp32; int4: of weights of 4 bits

The model is that of the choice itself, asked for all variants at once, with other constants each time. What is made
small is how much slower than the fastest measured variant of a shape the one is that the model would choose, if its
times were a little off; then the model's error. A fit is a random search from the present constants, which it leaves
reluctantly. --prefer: shapes measured with these kernels count `PREFERRED` times. --check: of each family (or seed, or
kernel, or quarter of all products) in turn, what a fit to the others chooses there. Where `gemm` would choose a variant
that was not timed, which the report counts, the best by the model of those that were counts instead.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from benchmarks.choice_times import PROCESSORS, as_row, choice_f32, of_row, request_of
from benchmarks.report import RESULTS, table
from tiledsl.gemm import choice, ffma_choice, int4_call
from tiledsl.gemm.formats import FORMATS
from tiledsl.inspect.contenders import Size

__all__ = [
    "F32",
    "HOPPER",
    "INT4",
    "MODELS",
    "Measured",
    "Model",
    "Times",
    "bytes_of",
    "constants",
    "fit",
    "load",
    "main",
    "put",
    "rewritten",
]

Constants = dict[tuple[str, Any], float]
"""By name, and key in a dict or None."""
NOISE, CLOSE = 0.02, 8.0
"""By how much the model's times may be off, as a logarithm; how fast its error counts less for slower variants."""
PREFERRED = 4
"""So often a shape of a preferred kernel counts."""
SPREAD, ERROR, MOVED = 0.5, 0.2, 0.0003
"""Weights, relative to the mean loss: of its root mean square, the model's error, and what constants move."""


class Measured(NamedTuple):
    """A shape. kernel: digest of the one that was timed. format: a name of `FORMATS`. times: microseconds and variant,
    as the model has it. cublas: microseconds, or None."""

    kernel: str
    format: str
    family: str
    seed: Any
    layout: str
    shape: tuple[int, int, int, int]
    times: list[tuple[float, Any]]
    cublas: float | None


class Model(NamedTuple):
    """What is fitted.

    fitted: names of constants of `module`; all elements of a dict but those that are 1. files: of times. variant: of a
    row of times and the line that it is of; None if the choice has it no longer. times: nanoseconds of all variants of
    shapes, one after the other, with the constants as they are whenever that function is called. timed: whether what
    `gemm` would do was timed.
    """

    module: ModuleType
    fitted: tuple[str, ...]
    files: tuple[Path, ...]
    variant: Callable[[Sequence[Any], Mapping[str, Any]], Any]
    times: Callable[[Sequence[Measured]], Callable[[], Any]]
    timed: Callable[[Measured], bool]


def _hopper_variant(row: Sequence[Any], line: Mapping[str, Any]) -> Any:
    _, v = of_row(row, line["layout"])
    _, m, n, _ = line["shape"]
    ctas = max(v.parts, 1) * v.along_m * v.along_n
    at_once = v.groups == 1 or v.tiles(m, n) * v.parts * v.groups <= choice.TOGETHER[ctas]
    return v if at_once and v.tile in (choice.PARTED if v.parts else choice.WHOLE) else None


def _hopper_times(shapes: Sequence[Measured]) -> Callable[[], Any]:
    batch, m, n, k, along = _columns(shapes)
    sizes = [bytes_of(shape) for shape in shapes for _ in shape.times]
    k = np.array([choice.halves(int(extent), size) for extent, (size, _) in zip(k, sizes, strict=True)], float)
    operands, results = np.array(sizes).T
    of = choice.table_of([v for shape in shapes for _, v in shape.times], results)
    rest = (np.ones(len(along), bool), along > 0), PROCESSORS
    more = [found for shape in shapes for found in [_ragged(shape)] * len(shape.times)]
    unaligned_a, unaligned_b, by_threads = np.array(more, float).T
    given = {"size": operands, "result": results, "unaligned": (unaligned_a, unaligned_b), "by_threads": by_threads}
    return lambda: choice.estimate(of, batch, m, n, k, *rest, **given).total


def _asked(shape: Measured) -> choice.Request:
    batch, m, n, k = shape.shape
    return request_of(Size(m, n, k, batch if batch > 1 else 0), shape.layout, shape.format)


def _ragged(shape: Measured) -> tuple[float, ...]:
    asked = _asked(shape)
    return *asked.unaligned, asked.by_threads


def bytes_of(shape: Measured) -> tuple[int, int]:
    """Of an element of A and B, and of C."""
    of = FORMATS[shape.format, shape.format]
    return of.bytes, of.results[0].bytes


def _hopper_timed(shape: Measured) -> bool:
    """Whatever the order of the tiles."""
    chosen = of_row(as_row(0.0, choice.best(_asked(shape))), shape.layout)[1]._replace(band=0)
    return chosen in (v._replace(band=0) for _, v in shape.times)


def _f32_variant(row: Sequence[Any], _: Any) -> Any:
    candidate = next((c for c in ffma_choice.CANDIDATES if c.name == row[1]), None)
    return (candidate, *row[2:]) if candidate else None


def _f32_times(shapes: Sequence[Measured]) -> Callable[[], Any]:
    (batch, m, n, k, along), of = _columns(shapes), ffma_choice.table_of([v for s in shapes for _, v in s.times])
    unaligned = (k % 4 > 0) + 1.0 * (np.where(along, k, n) % 4 > 0)
    product = ffma_choice.Product(batch, m, n, k, along > 0, unaligned, PROCESSORS)
    return lambda: 1e3 * ffma_choice.estimate(product, of).total


def _f32_timed(shape: Measured) -> bool:
    batch, m, n, k = shape.shape
    product = choice_f32(Size(m, n, k, batch), shape.layout)
    return ffma_choice.ranked_f32(1, product)[0][:3] in [v for _, v in shape.times]


def _int4_variant(row: Sequence[Any], _: Any) -> Any:
    tile = int4_call.Tile(*row[1:])
    return tile if tile.columns in int4_call.WIDTHS[tile.rounded] and tile.fits else None


def _int4_times(shapes: Sequence[Measured]) -> Callable[[], Any]:
    tiles = [(tile, shape.shape[1:]) for shape in shapes for _, tile in shape.times]
    return lambda: np.array([1e3 * tile.microseconds(*shape) for tile, shape in tiles])


def _int4_timed(shape: Measured) -> bool:
    _, m, n, k = shape.shape
    return min(int4_call.tiles_for(m, k), key=lambda t: t.microseconds(m, n, k)) in [tile for _, tile in shape.times]


def _columns(shapes: Sequence[Measured]) -> Any:
    """Batch, m, n, k, and whether B is contiguous along k, of all variants."""
    return np.array([(*shape.shape, shape.layout == "NT") for shape in shapes for _ in shape.times], float).T


HOPPER = Model(
    choice,
    (
        *("SM_INTAKE", "TPC_INTAKE", "MISSING", "IN_STEP", "APART", "DRAM", "UNALIGNED_LOAD"),
        *("STALLED", "OUTSIDE", "UNALIGNED_STORE", "NARROW_STORE", "PIECE", "FIRST", "TILE", "CLUSTERED", "SLOWED"),
        *("LAUNCH", "PARTS", "DOUBLED", "REDUCED", "GROUPS", "GATHERED", "CROWDED"),
        *("BY_THREADS", "ORDER", "COPYING", "COPY"),
    ),
    (RESULTS / "choice_times.jsonl", RESULTS / "format_times.jsonl"),
    _hopper_variant,
    _hopper_times,
    _hopper_timed,
)
"""Of wgmma; `benchmarks.choice_times` wrote the files. MACS was measured."""
F32 = Model(
    ffma_choice,
    (
        *("STALL", "ROUND", "EACH", "STEP", "FRESH", "ACROSS", "ALONG", "TRANSPOSED", "RATES"),
        *("START", "L2", "PARTS", "ADDED", "EXCHANGED"),
    ),
    (RESULTS / "ffma_times.jsonl",),
    _f32_variant,
    _f32_times,
    _f32_timed,
)
"""Of FFMA."""
INT4 = Model(
    int4_call,
    ("UNPACKED", "COLUMN", "SYNCED", "TILE", "SPLIT", "STARTED"),
    (RESULTS / "int4_times.jsonl",),
    _int4_variant,
    _int4_times,
    _int4_timed,
)
"""Of weights of 4 bits; `benchmarks.int4 --variants` adds to the file."""
MODELS = {"hopper": HOPPER, "f32": F32, "int4": INT4}


def load(*files: Path, model: Model = HOPPER) -> list[Measured]:
    """The shapes of files, without the variants that the choice has no longer."""
    found: list[Measured] = []
    for text in chain.from_iterable(file.read_text().splitlines() for file in files):
        line = json.loads(text)
        times = [(row[0], v) for row in line["times"] if (v := model.variant(row, line)) is not None]
        if len(times) > 1:
            batch, m, n, k = line["shape"]
            shape = (max(batch, 1), m, n, k)
            named = (line[name] for name in ("kernel", "format", "family", "seed", "layout"))
            found.append(Measured(*named, shape, times, line["cublas"]))
    return found


class Times:
    """All measured variants, a shape a row, padded to the same number; and their times by the model. preferred:
    kernels whose shapes count `PREFERRED` times."""

    def __init__(self, shapes: Sequence[Measured], preferred: Sequence[str] = (), model: Model = HOPPER) -> None:
        self.shapes, self.model = shapes, model
        self._counts = np.array([PREFERRED if shape.kernel in preferred else 1 for shape in shapes])
        us = np.array([us for shape in shapes for us, _ in shape.times])
        self._times = model.times(shapes)
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
        found = np.log(self._times())[self._index]
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


def constants(model: Model = HOPPER) -> Constants:
    """The present ones."""
    found: Constants = {}
    for name in model.fitted:
        value = getattr(model.module, name)
        if isinstance(value, dict):
            found |= {(name, key): float(x) for key, x in value.items() if x != 1}
        else:
            found[name, None] = float(value)
    return found


def put(values: Mapping[tuple[str, Any], float], model: Model = HOPPER) -> None:
    """Let the model use these."""
    for (name, key), value in values.items():
        if key is None:
            setattr(model.module, name, value)
        else:
            getattr(model.module, name)[key] = value
    for found in vars(model.module).values():
        if hasattr(found, "cache_clear"):  # what follows from them
            found.cache_clear()


def fit(times: Times, rounds: int, rows: Any = slice(None), seed: int = 0) -> Constants:
    """The best constants found, which the model uses from now on. rows: the shapes that count."""
    drawn, best = random.Random(seed), constants(times.model)
    start, width = dict(best), dict.fromkeys(best, 0.2)

    def value(tried: Constants) -> float:
        put(tried, times.model)
        moved = sum(math.log(tried[name] / start[name]) ** 2 for name in tried)
        return times.score(rows) + MOVED * moved

    least = value(best)
    for number in range(rounds):
        names = drawn.sample(list(best), min(drawn.choice((1, 1, 2, 3)), len(best)))
        tried = best | {name: best[name] * math.exp(drawn.gauss(0, width[name])) for name in names}
        found = value(tried)
        for name in names:
            width[name] = min(0.4, width[name] * 1.5) if found < least else max(0.01, width[name] * 0.97)
        if found < least:
            least, best = found, tried
        if number % 500 == 499:
            width = {name: max(each, 0.06) for name, each in width.items()}
    best = {name: digits(each) for name, each in best.items()}
    put(best, times.model)
    return best


def digits(value: float) -> float:
    """What a constant is worth writing down of; not 1, which would not be fitted again."""
    short = float(f"{value:.3g}")
    return float(round(value)) if value >= 1000 else 1.01 if short == 1 else short


def rewritten(text: str, values: Constants) -> str:
    """The source of a model with these constants, in the places of the old ones."""
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    for name, part in reversed(list(_assigned(text, values))):
        pairs = zip(part.keys, part.values, strict=True) if isinstance(part, ast.Dict) else [(None, part)]
        for key, old in reversed(list(pairs)):
            new = values.get((name, ast.literal_eval(key) if key else None))
            if new is not None:
                line = lines[old.lineno - 1]
                lines[old.lineno - 1] = line[: old.col_offset] + repr(_plain(new)).encode() + line[old.end_col_offset :]
    return b"".join(lines).decode()


def _assigned(text: str, values: Constants) -> Iterator[tuple[str, ast.expr]]:
    """The names of constants, and what is assigned to each."""
    names = {name for name, _ in values}
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], node.value
        together = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        for name, part in zip(target.elts, value.elts, strict=True) if together else [(target, value)]:
            if isinstance(name, ast.Name) and name.id in names:
                yield name.id, part


def _plain(value: float) -> float:
    return int(value) if value == int(value) else value


# -- reports ---------------------------------------------------------------------------------------------


def report(times: Times, rows: Iterable[int] | None = None) -> str:
    """By format, family and layout: how fast what the model chooses is, of the fastest measured and of cuBLAS."""
    slower, families = times.chosen(), defaultdict[Any, list[int]](list)
    for number in range(len(times.shapes)) if rows is None else rows:
        shape = times.shapes[number]
        families[shape.format, shape.family, shape.layout].append(number)
    untimed = [not times.model.timed(shape) for shape in times.shapes]
    lines: list[tuple[str, ...]] = []
    for named, numbers in sorted(families.items()):
        shares = [math.exp(-slower[i]) for i in numbers]
        known = [i for i in numbers if times.shapes[i].cublas]
        ratios = [times.shapes[i].cublas / min(times.shapes[i].times)[0] * math.exp(-slower[i]) for i in known]
        against = (f"{_mean(ratios):.3f}", f"{min(ratios):.3f}") if ratios else ("", "")
        counts = str(len(numbers)), str(sum(untimed[i] for i in numbers))
        lines.append((*named, *counts, f"{_mean(shares):.3f}", f"{min(shares):.3f}", *against))
    header = ("format", "family", "stored", "shapes", "untimed", "of the fastest", "worst", "speed / cuBLAS", "worst")
    mean = float(np.mean(slower if rows is None else slower[list(rows)]))
    return f"{table(header, lines)}\n\nchosen is slower than the fastest measured by {mean:.4f} in the mean"


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
        lines.append(f"{shape.format} {shape.family} {shape.layout} {shape.shape}: {'; '.join(each)}")
    return "\n".join(lines)


def checked(times: Times, by: str, rounds: int) -> str:
    """What fits without a family, or a seed or so, choose there."""
    before, lines, all_left = constants(times.model), list[tuple[str, ...]](), list[float]()
    groups = [_quarter(shape.shape) if by == "quarter" else getattr(shape, by) for shape in times.shapes]
    for out in dict.fromkeys(groups):
        inside = np.array([group == out for group in groups])
        put(before, times.model)
        fit(times, rounds, ~inside)
        slower = times.chosen()
        all_left += list(slower[inside])
        lines.append((str(out), f"{slower[~inside].mean():.4f}", f"{slower[inside].mean():.4f}"))
    put(before, times.model)
    return f"{table((f'without {by}', 'slower: others', 'it'), lines)}\n\nnot seen: {np.mean(all_left):.4f} in the mean"


def _quarter(shape: tuple[int, ...]) -> int:
    """Of all products; those with B in row order and along k are in the same one."""
    return random.Random(str(shape)).randrange(4)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="of times; the committed ones unless given")
    parser.add_argument("--model", choices=tuple(MODELS), default="hopper")
    parser.add_argument("--rounds", type=int, default=0, help="of the random search; 0: only report")
    parser.add_argument("--seeds", nargs="+", default=[], metavar="SEED", help="only shapes of these")
    parser.add_argument(
        "--check", choices=("quarter", "format", "family", "seed", "kernel"), help="leave out one after the other"
    )
    parser.add_argument("--prefer", nargs="+", default=[], metavar="KERNEL", help=f"count {PREFERRED} times")
    parser.add_argument("--only", nargs="+", default=[], metavar="CONSTANT", help="fit these alone")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="show the N worst choices")
    parser.add_argument("--write", action="store_true", help="write the constants into the source")
    args = parser.parse_args(argv)
    model = MODELS[args.model]
    if unknown := set(args.only) - set(model.fitted):
        parser.error(f"--only: no constants {', '.join(sorted(unknown))}; there are {', '.join(model.fitted)}")
    model = model._replace(fitted=tuple(args.only) or model.fitted)
    files = args.files or model.files
    shapes = load(*files, model=model)
    named = " and ".join(map(str, files))
    if args.seeds:
        shapes = [shape for shape in shapes if str(shape.seed) in args.seeds]
        if not shapes:
            parser.error(f"--seeds: {named} has no shapes of {', '.join(args.seeds)}")
    kernels = {shape.kernel for shape in shapes}
    if unknown := set(args.prefer) - kernels:
        parser.error(f"--prefer: {named} has no {', '.join(unknown)}; it has {', '.join(sorted(kernels))}")
    times = Times(shapes, args.prefer, model)
    print(f"{len(times.shapes)} shapes, {sum(len(shape.times) for shape in times.shapes)} variants\n\n{report(times)}")
    if args.check:
        print(f"\n{checked(times, args.check, args.rounds or 500)}")
    elif args.rounds:
        found = fit(times, args.rounds)
        print(f"\nfitted:\n\n{report(times)}\n")
        source = Path(str(model.module.__file__))
        new = rewritten(source.read_text(), found)
        if args.write:
            source.write_text(new)
            print(f"written to {source}")
        print("\n".join(f"{name} = {ast.unparse(part)}" for name, part in _assigned(new, found)))
    if args.worst:
        print(f"\n{worst(times, args.worst)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
