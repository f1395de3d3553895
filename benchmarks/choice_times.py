"""Times variants of `hopper_fastest` on random shapes: what `benchmarks.choice_fit` fits the model of `gemm` to.
With --format f32 those of `fastest`; tf32, e4m3 and i8, whose operands are along k, are of `hopper_fastest`, too.

    python -m benchmarks.choice_times --seed 141 --build --kernels DIR        # anywhere, needs no GPU
    python -m benchmarks.choice_times --seed 141 --kernels DIR --out DIR      # on an H200, with torch
    python -m benchmarks.choice_times --seed 151 --count 5 --variants 0 --out DIR  # a full search
    python -m benchmarks.choice_times --seed 1031 --format f32 --variants 12

Shapes are those of benchmarks.random_shapes. Of each, the variants that the model finds fastest are timed, one of each
other kind, and some at random; also cuBLAS, in the fastest of its layouts. --variants 0 times all that the model finds
at most 1.3 times as slow as the fastest; `benchmarks.choice_fit --seeds 151` says what the choice is worth then. Each
result is checked. Operands are not in L2, launches go by CUDA graphs, and the GPU rests before each batch; the chosen
variant and the fastest then take turns, so that none is the fastest by luck. A process of its own times: one that hangs
or crashes costs its shape. Results are added to a file (`FILES`), a shape a line, as they come, each with a digest of
the kernel; shapes that it has of the present kernel are not timed again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.random_shapes import FAMILIES, LAYOUTS, multiple_for, shapes
from benchmarks.report import RESULTS
from tiledsl.errors import TileError
from tiledsl.gemm import (
    ffma,
    ffma_parts,
    ffma_staged,
    ffma_tiles,
    hopper,
    hopper_apart,
    hopper_stores,
    hopper_tiles,
    int4,
    parts,
    split_k,
)
from tiledsl.gemm.choice import Request, Variant, ranked
from tiledsl.gemm.ffma_choice import CANDIDATES, Product, plan_of, ranked_f32
from tiledsl.gemm.formats import FORMATS
from tiledsl.gemm.operands import Operands as Described
from tiledsl.gemm.operands import described
from tiledsl.gemm.plan import Problem, by_variant, choice_of, choice_of_f32, of_plan_f32
from tiledsl.gemm.prepared import SOMEWHERE, Prepared
from tiledsl.gemm.steps import Steps, problem_of, steps_of
from tiledsl.gemm.warm_up import operands_of
from tiledsl.inspect.contenders import Operands, Size, cublas
from tiledsl.inspect.frameworks import Device, open_device
from tiledsl.inspect.timing import buffer_sets, interleave
from tiledsl.tune.carried import Carried
from tiledsl.tune.search import Result, search
from tiledsl.tune.workers import Worker, answered

__all__ = ["COLUMNS", "Job", "as_row", "choice_f32", "digest", "jobs_of", "main", "of_row", "request_of", "sampled"]

ARCH, PROCESSORS = "sm_90a", 132
COLUMNS = ("rows", "columns", "instances", "exchanged", "parts", "along_m", "groups", "along_n", "band", "apart")
"""Of a variant in the file, behind its microseconds; older lines lack the last."""
LARGE = 2e10
"""Multiplications from which a product takes so long that fewer variants of it are timed."""
FAST, KIND, ANY = 0.5, 0.75, 1.0
"""Shares of a shape's variants: the fastest by the model; with those of other kinds; with those at random."""
FINALISTS = 3
WORSE, HOPELESS = 1.3, 1.5
"""Variants that the model finds slower than the fastest by more are not timed; those that a first launch does, once."""


Way = Variant | tuple[str, int, int]
"""How a product is computed: by wgmma; or in fp32, by a candidate's name, parts of k, and tiles before those."""
ALONG_K = ("tf32", "e4m3", "i8")
"""Formats whose operands wgmma reads along k only: layout NT."""
FILES = {"bf16": "choice_times.jsonl", "f32": "ffma_times.jsonl", **dict.fromkeys(ALONG_K, "format_times.jsonl")}


class Job(NamedTuple):
    """A shape and the variants that are timed of it."""

    family: str
    seed: int
    layout: str
    size: Size
    variants: tuple[Way, ...]
    format: str

    @property
    def key(self) -> tuple[Any, ...]:
        return self.format, self.seed, self.layout, *self.size.numbers


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument(
        "--families", nargs="+", choices=tuple(FAMILIES), default=[f for f in FAMILIES if f != "ragged"]
    )
    parser.add_argument("--format", choices=FILES, default="bf16")
    parser.add_argument("--count", type=int, default=8, help="shapes of a family")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS), help="of bf16 and f32")
    parser.add_argument("--variants", type=int, default=24, help="of a shape; 0: all that may be fast")
    parser.add_argument("--build", action="store_true", help="build what would be timed, into --kernels; no GPU")
    parser.add_argument("--kernels", default="", metavar="DIR", help="builds that are carried to another machine")
    parser.add_argument("--processes", type=int, default=0, help="that build; one for each core unless given")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of a shape")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no shape after so many")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    start = time.perf_counter()
    layouts = ["NT"] if args.format in ALONG_K else args.layouts
    jobs = list(jobs_of(args.families, args.seed, args.count, layouts, args.variants, args.format))
    print(f"{len(jobs)} shapes, {sum(len(job.variants) for job in jobs)} variants", flush=True)
    try:
        if args.build or (args.kernels and not Path(args.kernels).exists()):
            Carried(args.kernels).begin()
        failed = _build(jobs, args.kernels, args.processes)
        print(f"built after {time.perf_counter() - start:.1f} s; {failed} variants failed", flush=True)
        if not args.build:
            _time(jobs, args, start)
    except TileError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


# -- what is timed ---------------------------------------------------------------------------------------


def jobs_of(
    families: Sequence[str], seed: int, count: int, layouts: Sequence[str], variants: int, format: str = "bf16"
) -> Iterator[Job]:
    """Shapes of all families by turns, so that an early end leaves some of each."""
    drawn, multiple = random.Random(seed), multiple_for(format)
    for number in range(count):
        for family in families:
            size = shapes(family, seed, count, multiple)[number]
            for layout in layouts:
                yield Job(family, seed, layout, size, tuple(sampled(size, layout, variants, drawn, format)), format)


def sampled(size: Size, layout: str, count: int, drawn: random.Random, format: str = "bf16") -> list[Way]:
    """Ways that are worth timing: the chosen one, the next fastest by the model, the fastest of other kinds, others at
    random. count: 0 for all."""
    large = max(size.batch, 1) * size.m * size.n * size.k > LARGE
    found: list[tuple[Way, float]]
    if format == "f32":
        ranking = ranked_f32(1 << 20, choice_f32(size, layout))
        found = [((of.name, parts, whole), t.total) for of, parts, whole, t in ranking]
    else:
        found = [(v, times.total) for v, times in ranked(1 << 20, request_of(size, layout, format))]
    near = [v for v, total in found if total <= WORSE * found[0][1]]
    if not count:
        return near
    count = min(count, 16) if large else count
    chosen = near[: round(FAST * count)]
    kinds = {_kind(v) for v in chosen}
    for v in near:
        if _kind(v) not in kinds and len(chosen) < round(KIND * count):
            kinds.add(_kind(v))
            chosen.append(v)
    rest = [v for v in near if v not in chosen]
    return chosen + drawn.sample(rest, min(len(rest), round(ANY * count) - len(chosen)))


def _kind(v: Way) -> tuple[Any, ...]:
    if not isinstance(v, Variant):
        return v[0], v[1] > 1, v[2] > 0
    rows, _, instances = v.tile
    return rows, instances, v.along_m, v.along_n, min(v.parts, 2), v.groups > 1, v.exchanged, v.apart


def request_of(size: Size, layout: str, format: str) -> Request:
    """What `ranked` is asked for."""
    return choice_of(_problem(_operands(size, layout, format)))


def choice_f32(size: Size, layout: str) -> Product:
    """What `ranked_f32` is asked for."""
    return choice_of_f32(_problem(_operands(size, layout, "f32")))[0]


def _operands(size: Size, layout: str, format: str) -> Described:
    """Of arrays that do not exist."""
    of = FORMATS[format, format]
    return operands_of(size.numbers, (of.a, of.b, of.results[0]), layout, False, False, 0)


def _problem(of: Described) -> Problem:
    return problem_of(of, 0.0, False, ARCH, PROCESSORS)


def as_row(us: float, v: Way) -> list[Any]:
    """A line of `COLUMNS`, or what a `Way` has in fp32."""
    if not isinstance(v, Variant):
        return [us, *v]
    return [us, *v.tile, int(v.exchanged), v.parts, v.along_m, v.groups, v.along_n, v.band, int(v.apart)]


def of_row(row: Sequence[float], layout: str) -> tuple[float, Variant]:
    us, rows, columns, instances, exchanged, *rest = row
    parts, along_m, groups, along_n, band, *apart = map(int, rest)
    tile, by_rows = (int(rows), int(columns), int(instances)), layout == "NN" and not exchanged
    return us, Variant(tile, bool(exchanged), parts, along_m, groups, along_n, by_rows, band, any(apart))


def _steps(of: Described, size: Size, layout: str, v: Way) -> Steps:
    problem = _problem(of)
    if isinstance(v, Variant):
        return steps_of(of, problem, by_variant(problem, v), None)
    name, *more = v
    option = next(c for c in CANDIDATES if c.name == name), *more
    product, _ = choice_of_f32(problem)
    return steps_of(of, problem, of_plan_f32(plan_of(option, product, early=True)), None)


# -- building --------------------------------------------------------------------------------------------


def _builds(size: Size, layout: str, format: str, v: Way) -> Iterator[tuple[Any, Any, str]]:
    """The kernels of a variant."""
    of = _operands(size, layout, format)
    for step in _steps(of, size, layout, v).launches:
        values = step.values((*of.addresses, *SOMEWHERE), 0)
        yield step.kernel, *step.kernel.dispatcher.build_of(values, ARCH)


def open_builder(kernels: str) -> tuple[Any, Callable[[Any], Result]]:
    """A process that builds: a job is size, layout, format and variant."""
    carried = Carried(kernels)

    def build(job: tuple[Size, str, str, Way]) -> Result:
        for each in _builds(*job):
            carried.build(*each)
        return {"outcome": "built"}

    return None, build


def _build(jobs: Sequence[Job], kernels: str, processes: int) -> int:
    """Build all kernels, each once. Returns how many could not be built."""
    wanted: dict[Any, Any] = {}
    for job in jobs:
        for v in job.variants:
            for kernel, spec, _ in _builds(job.size, job.layout, job.format, v):
                wanted.setdefault((kernel.name, repr(spec)), (job.size, job.layout, job.format, v))
    failed = 0
    todo = list(dict.fromkeys(wanted.values()))
    for number, result in search(todo, partial(open_builder, kernels), None, processes=processes):
        if result["outcome"] != "built":
            failed += 1
            print(f"  {todo[number]}: {result['outcome']}: {result['reason'][:200]}", flush=True)
    return failed


# -- timing ----------------------------------------------------------------------------------------------


def open_timer(kernels: str, format: str = "bf16") -> tuple[Any, Callable[[Any], Any]]:
    """A process that times: a job is a `Job`, the answer a line of the file."""
    device, carried = open_device(format), Carried(kernels)
    return True, lambda job: _timed(device, carried, job)


def _time(jobs: Sequence[Job], args: argparse.Namespace, start: float) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / FILES[args.format]
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    kernel = digest(args.format)
    known = {key_of(line) for line in lines if line["kernel"] == kernel}
    timer = Worker(partial(open_timer, args.kernels, args.format), args.limit)
    done = 0
    try:
        timer.start()
        for job in jobs:
            if job.key in known or time.perf_counter() - start > args.seconds:
                continue
            timer.give(job)
            ((_, _, answer),) = answered([timer])
            if answer.kind != "done":
                print(f"  {job.family} {job.size} {job.layout}: {answer.kind}: {answer.value}", flush=True)
                continue
            with file.open("a") as out:
                out.write(json.dumps({"kernel": kernel, **answer.value}, separators=(",", ":")) + "\n")
            done += 1
            times = sorted(answer.value["times"])
            best = ", ".join(f"{us:g} {row}" for us, *row in times[:3])
            print(f"  {job.family} {job.size} {job.layout}: cuBLAS {answer.value['cublas']:g} us; {best}", flush=True)
    finally:
        timer.stop()
    print(f"{done} of {len(jobs)} shapes in {time.perf_counter() - start:.1f} s, in {file}", flush=True)


def digest(format: str = "bf16") -> str:
    """Of the files of the kernel: what it compiles to without a change of the compiler. (Its `meaning` leaves out what
    belongs to tiledsl.)"""
    by_wgmma = hopper, hopper_apart, hopper_stores, hopper_tiles, split_k
    modules = {
        "bf16": by_wgmma,
        **dict.fromkeys(ALONG_K, by_wgmma),
        "f32": (ffma, ffma_parts, ffma_staged, ffma_tiles),
        "int4": (int4, hopper_stores, hopper_tiles, split_k),
    }
    files = (Path(module.__file__ or "").read_bytes() for module in (*modules[format], parts))
    return hashlib.sha256(b"".join(files)).hexdigest()[:8]


def key_of(line: dict[str, Any]) -> tuple[Any, ...]:
    """As `Job.key`."""
    batch, *rest = line["shape"]
    return line["format"], line["seed"], line["layout"], *([batch] if batch else []), *rest


def _timed(device: Device, carried: Carried, job: Job) -> dict[str, Any]:
    size = job.size
    sets = min(500, buffer_sets(size.bytes(device.itemsizes), cold=True))
    operands = Operands(device, size, sets)
    work = max(size.batch, 1) * size.m * size.n * size.k
    graphed = max(12, sets) if work < LARGE else max(2, min(12, sets, int(6e11 / work)))
    a, b = operands.stored(job.layout)
    more = (None, None, None, job.format if job.format == "tf32" else None)
    given = [described(*arrays, *more) for arrays in zip(a, b, operands.results, strict=True)]
    expected = device.expected(a[0], b[0])
    base = interleave(device, {"": cublas(operands, graphed)[1]}, rounds=3, seconds=0.004, rest=0.006, graphed=graphed)
    times = dict[Way, float]()
    launches = dict[Way, Callable[[int], None]]()
    for v in job.variants:
        try:
            for each in _builds(size, job.layout, job.format, v):
                carried.adopt(*each)
            launch = _launcher(given, size, job.layout, v)
            given[0].result[...] = device.blank
            launch(0)
            share = device.share(given[0].result, *expected)
        except TileError as error:
            print(f"{v}: {error}", flush=True)
            continue
        if not share <= 1:
            raise RuntimeError(f"{v} is wrong at {size} {job.layout}: {share:.3g} times its error bound")
        times[v] = _microseconds(device, {v: launch}, graphed, min(times.values(), default=math.inf))[v]
        launches[v] = launch
    if not times:
        raise RuntimeError(f"no variant of {size} {job.layout} could be launched")
    finalists = {*sorted(times, key=times.__getitem__)[:FINALISTS], *job.variants[:1]} & times.keys()
    times |= _microseconds(device, {v: launches[v] for v in finalists}, graphed)
    line = {"format": job.format, "seed": job.seed, "family": job.family, "layout": job.layout}
    line["shape"] = [size.batch, size.m, size.n, size.k]
    rows = [as_row(float(f"{us:.5g}"), v) for v, us in times.items()]
    return {**line, "cublas": float(f"{1e3 * base.median(''):.5g}"), "times": rows}


def _launcher(given: Sequence[Described], size: Size, layout: str, v: Way) -> Callable[[int], None]:
    """Launches of a variant on one set of operands after the other, also into a graph."""
    import torch  # pyright: ignore[reportMissingImports] - no dependency

    steps = _steps(given[0], size, layout, v)
    prepared, count = Prepared(given[0].a.device, steps, given[0]), len(given)

    def launch(number: int) -> None:
        of = given[number % count]
        captured = of.result if torch.cuda.is_current_stream_capturing() else None
        prepared.run(torch.cuda.current_stream().cuda_stream, of.addresses, 1.0, 0.0, captured)

    prepared.prepare_graphs(torch.cuda.current_stream().cuda_stream)
    return launch


def _microseconds(
    device: Device, launches: dict[Way, Callable[[int], None]], graphed: int, best: float = math.inf
) -> dict[Way, float]:
    """Of a launch: the median of three batches, after rests; several take turns. Of one that is far slower than the
    best, the first."""
    replays = {str(number): device.graphed(launch, graphed) for number, launch in enumerate(launches.values())}
    found = interleave(device, replays, rounds=1, seconds=0.0)
    first = [1e3 * found.median(name) / graphed for name in replays]
    if min(first) <= HOPELESS * best:
        seconds, rest = (0.0025, 0.004) if first[0] < 100 else (0.007, 0.012)
        found = interleave(device, replays, rounds=3, seconds=seconds, rest=rest)
    return {v: 1e3 * found.median(name) / graphed for v, name in zip(launches, replays, strict=True)}


if __name__ == "__main__":
    from benchmarks import choice_times  # whose functions other processes find by its name

    sys.exit(choice_times.main())
