"""Find the fastest consts of a kernel for a product, out of a space that it declares.

    tiledsl tune kernels.py:k --sizes 4096 1000x3000x512 --format bf16
    tiledsl tune kernels.py:k BM=64,128 BN=64,128,256 --sizes 4096
    tiledsl tune kernels.py:k --sizes 4096 --build sm_90a --kernels DIR

The file declares SPACE = {"k": {"BM": (64, 128), ...}}; CONST=VALUE,... adds to it. All combinations are built by
several processes; what the kernel's asserts, the compiler, or a limit refuse is counted, and so is what spills. The
others are checked against float64 and timed by a process of its own while more are built. One that hangs or crashes is
a record; the tuner goes on. Each result is on disk when it is shown: after an interruption the same command goes on.

--build builds only, into the folder --kernels, which is then carried to a machine with the GPU: the same command there
with --kernels, and without --build, compiles nothing that is in it.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tiledsl.arch import target_named
from tiledsl.compilation.cache import disk_cache
from tiledsl.errors import TileError, UsageError
from tiledsl.inspect.arguments import checked_arch
from tiledsl.inspect.bench import parse_size
from tiledsl.inspect.contenders import CUBLAS, LAYOUTS
from tiledsl.outside import is_time
from tiledsl.tables import table
from tiledsl.tune.interruptions import held, interruptible
from tiledsl.tune.products import Gpu, Task, Tuned, open_builder, open_gpu, open_timer, size_of
from tiledsl.tune.records import Records
from tiledsl.tune.search import Result, search
from tiledsl.tune.space import shown
from tiledsl.tune.workers import Worker, answered

Numbers = tuple[int, ...]
MOST_REASONS, WIDTH = 8, 110
"""Kinds of reasons that are listed, and characters of one."""
OTHER_VALUES = "  fix: give other values of consts"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `run`."""
    parser.add_argument("kernel", metavar="FILE:KERNEL")
    parser.add_argument("space", nargs="*", metavar="CONST=VALUE,VALUE", help="more of the space than the file has")
    parser.add_argument("--sizes", nargs="+", type=parse_size, metavar="[BATCHx]MxNxK", default=[(4096, 4096, 4096)])
    parser.add_argument("--format", default="", help="f32, f16, bf16, tf32, e4m3, e5m2, i8, u8 or f64")
    parser.add_argument("--stored", choices=LAYOUTS, help="A and B: N in rows, T transposed; default: as it declares")
    parser.add_argument("--cache", choices=("cold", "hot"), default="cold", help="whether operands are in L2")
    parser.add_argument("--no-graph", action="store_true", help="launch each by itself, and not by CUDA graphs")
    parser.add_argument("--records", type=Path, metavar="FILE", help="results; KERNEL.tune.jsonl unless given")
    parser.add_argument("--build", metavar="ARCH", help="build for this target, and time nothing: no GPU is needed")
    parser.add_argument("--kernels", metavar="DIR", default="", help="builds that are carried to another machine")
    parser.add_argument("--processes", type=int, default=0, help="that build; one for each core unless given")
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS", help="of a build, and of a timing")
    parser.add_argument("--finalists", type=int, default=4, help="timed by turns with cuBLAS at the end; 0: none")


def run(arguments: argparse.Namespace, gpu: Gpu = open_gpu) -> int:
    """Tune and print. gpu: what opens the GPU, in another process: it is pickled by its name."""
    with interruptible():
        tuned = _asked(arguments)
        return _build(tuned, arguments) if arguments.build else _tune(tuned, arguments, gpu)


def _tune(tuned: Tuned, arguments: argparse.Namespace, gpu: Gpu) -> int:
    timer = Worker(partial(open_timer, tuned.task, gpu), arguments.limit)
    try:
        found = timer.start()
        setting = {
            "kernel": tuned.kernel.name,
            "code": tuned.code,
            "device": found["device"],
            "toolchain": tuned.carried.toolchain,
        }
        records = Records(arguments.records or Path(f"{tuned.kernel.name}.tune.jsonl"), setting)
        shown = records.skipped.most_common(MOST_REASONS)
        for reason, count in shown:
            print(f"{records.file}: {count} records are ignored: {reason}", flush=True)
        if rest := records.skipped.total() - sum(count for _, count in shown):
            print(f"{records.file}: {rest} records are ignored: of other settings", flush=True)
        progress = Progress(tuned, records)
        task = replace(tuned.task, arch=found["arch"])
        _search(progress, task, timer, arguments)
        for numbers in arguments.sizes:
            progress.require_some(numbers)
            print(_report(progress, numbers, _finals(progress, numbers, timer, arguments)), flush=True)
    finally:
        with held():
            timer.stop()
    return 0


def _asked(arguments: argparse.Namespace) -> Tuned:
    """Raises UsageError for what cannot be tuned."""
    file, _, name = arguments.kernel.partition(":")
    if not is_time(arguments.limit) or arguments.processes < 0 or arguments.finalists < 0:
        what = "tune: --limit is a time above 0, --processes and --finalists are not below"
        got = f"{arguments.limit:g}, {arguments.processes}, {arguments.finalists}"
        raise UsageError(f"{what}; got {got}\n  fix: leave them out")
    if arguments.build:
        checked_arch(arguments.build)
    task = Task(
        file, name, tuple(arguments.space), arguments.format, arguments.stored or "", arguments.build or "",
        kernels=arguments.kernels, cold=arguments.cache == "cold", graph=not arguments.no_graph,
    )  # fmt: skip
    if disk_cache() is None and not (arguments.kernels or arguments.build):
        fix = "name a folder with --kernels, or leave TILEDSL_CACHE unset"
        raise TileError(f"tune: without a disk cache, no build reaches the process that times\n  fix: {fix}")
    tuned = task.opened()
    len(tuned.space)  # raises for what is none
    for numbers in arguments.sizes:
        if not tuned.contender.takes(size_of(numbers)):
            raise UsageError(f"tune: {tuned.kernel.name} takes no batch\n  fix: give MxNxK")
    return replace(tuned, task=replace(tuned.task, code=tuned.code, settings=tuple(arguments.space)))


def _jobs(tuned: Tuned, sizes: Sequence[Numbers]) -> list[tuple[Numbers, int]]:
    return [(numbers, number) for numbers in dict.fromkeys(sizes) for number in range(len(tuned.candidates))]


def _build(tuned: Tuned, arguments: argparse.Namespace) -> int:
    """All candidates for a target, and no timing."""
    target_named(arguments.build)
    if not arguments.kernels:
        raise UsageError("tune: --build builds into a folder that is carried\n  fix: name it with --kernels DIR")
    tuned.carried.begin()
    jobs, start = _jobs(tuned, arguments.sizes), time.perf_counter()
    reasons, built = Counter[str](), 0
    opened = partial(open_builder, tuned.task)
    with held():
        for number, result in search(jobs, opened, None, processes=arguments.processes, limit=arguments.limit):
            built += result["outcome"] == "built"
            if result["outcome"] != "built":
                reasons[_kind(result)] += 1
            numbers, candidate = jobs[number]
            print(f"  {_x(numbers)} {_label(tuned.candidates[candidate])}: {_outcome(result)}", flush=True)
    print(f"{built} of {len(jobs)} built in {time.perf_counter() - start:.1f} s, in {arguments.kernels}")
    if not built:
        raise TileError(f"tune: no candidate of {tuned.kernel.name} is left\n{_listed(reasons)}{OTHER_VALUES}")
    print(_listed(reasons), end="")
    return 0


# -- the search ------------------------------------------------------------------------------------------


@dataclass
class Progress:
    """What is known so far, and printed."""

    tuned: Tuned
    records: Records
    start: float = field(default_factory=time.perf_counter)
    best: dict[Numbers, tuple[float, str]] = field(default_factory=dict[Numbers, tuple[float, str]])

    def consts(self, number: int) -> dict[str, Any]:
        """Of a candidate, as records have them."""
        return {name: shown(value) for name, value in self.tuned.candidates[number].items()}

    def product(self, numbers: Numbers) -> str:
        """What besides the consts a result is of."""
        task = self.tuned.task
        launched = "" if task.graph else ", launched each by itself"
        return f"{_x(numbers)} {task.format} {task.stored}, {'cold' if task.cold else 'hot'}{launched}"

    def results(self, numbers: Numbers) -> list[Result | None]:
        """Of the candidates, in their order."""
        product = self.product(numbers)
        return [self.records.find(product, self.consts(n)) for n in range(len(self.tuned.candidates))]

    def note(self, numbers: Numbers, number: int, result: Result) -> None:
        """See the best so far."""
        if result["outcome"] == "timed" and result["us"] < self.best.get(numbers, (float("inf"), ""))[0]:
            self.best[numbers] = result["us"], _label(self.tuned.candidates[number])

    def show(self, done: int, count: int, numbers: Numbers, number: int, result: Result) -> None:
        self.note(numbers, number, result)
        seconds = time.perf_counter() - self.start
        best = "; best {:g} us, {}".format(*self.best[numbers]) if numbers in self.best else ""
        label = _label(self.tuned.candidates[number])
        print(f"[{done}/{count}, {seconds:.0f} s] {_x(numbers)} {label}: {_outcome(result)}{best}", flush=True)

    def require_some(self, numbers: Numbers) -> None:
        """Raises TileError, with the reasons, if no candidate could be timed."""
        results = [result for result in self.results(numbers) if result is not None]
        if not any(result["outcome"] == "timed" for result in results):
            reasons = Counter(_kind(result) for result in results)
            message = f"tune: of {len(results)} candidates of {self.tuned.kernel.name} for {_x(numbers)} none is left"
            raise TileError(f"{message}\n{_listed(reasons)}{OTHER_VALUES}")


def _search(progress: Progress, task: Task, timer: Worker, arguments: argparse.Namespace) -> None:
    tuned, records = progress.tuned, progress.records
    jobs = _jobs(tuned, arguments.sizes)
    known = {job: records.find(progress.product(job[0]), progress.consts(job[1])) for job in jobs}
    for job, result in known.items():
        if result is not None:
            progress.note(*job, result)
    todo = [job for job in jobs if known[job] is None]
    if len(todo) < len(jobs):
        print(f"{records.file}: {len(jobs) - len(todo)} of {len(jobs)} results are known", flush=True)
    builder = partial(open_builder, task)
    done = len(jobs) - len(todo)
    try:
        with held():
            for number, result in search(todo, builder, timer, processes=arguments.processes, limit=arguments.limit):
                numbers, candidate = todo[number]
                records.add(progress.product(numbers), progress.consts(candidate), result)
                done += 1
                progress.show(done, len(jobs), numbers, candidate, result)
    except KeyboardInterrupt:
        print(f"{done} of {len(jobs)} results are in {records.file}; the same command goes on from there", flush=True)
        raise


def _finals(progress: Progress, numbers: Numbers, timer: Worker, arguments: argparse.Namespace) -> dict[str, float]:
    """Microseconds of the fastest and of cuBLAS, timed by turns, by the numbers of the candidates."""
    timed = [(r["us"], i) for i, r in enumerate(progress.results(numbers)) if r is not None and r["outcome"] == "timed"]
    chosen = tuple(number for _, number in sorted(timed)[: arguments.finalists])
    if not chosen:
        return {}
    timer.give((numbers, chosen))
    ((_, _, answer),) = answered([timer])
    if answer.kind != "done":
        print(f"the finalists could not be timed together: {answer.value}", flush=True)
        return {}
    return answer.value["us"]


# -- printing --------------------------------------------------------------------------------------------


def _report(progress: Progress, numbers: Numbers, finals: dict[str, float]) -> str:
    results, candidates = progress.results(numbers), progress.tuned.candidates
    timed = sorted((r["us"], i) for i, r in enumerate(results) if r is not None and r["outcome"] == "timed")
    others = Counter(_kind(r) for r in results if r is not None and r["outcome"] != "timed")
    rows = [(_label(candidates[i]), f"{us:g}") for us, i in timed[:MOST_REASONS]]
    header: tuple[str, ...] = ("consts", "us")
    if finals:
        base = finals[CUBLAS]
        order = sorted((us, int(number)) for number, us in finals.items() if number != CUBLAS)
        rows = [(_label(candidates[i]), f"{us:g}", f"{base / us:.3f}") for us, i in order]
        header = ("consts", "us by turns", f"speed / {CUBLAS}")
    title = f"\n{progress.product(numbers)}: {len(timed)} of {len(candidates)} candidates timed"
    return f"{title}\n{table(header, rows, {0})}\n{_listed(others)}"


def _outcome(result: Result) -> str:
    match result["outcome"]:
        case "timed":
            return f"{result['us']:g} us"
        case "built":
            return f"{result['registers']} registers, {result['shared']} bytes shared"
        case what:
            return f"{what}: {_short(result['reason'])}"


def _kind(result: Result) -> str:
    """Reasons that differ in numbers alone are of one kind."""
    reason = re.sub(r"\b[0-9]+(?:[.][0-9]+)?\b", "N", result["reason"])
    return f"{result['outcome']}: {_short(reason)}"


def _short(reason: str) -> str:
    return reason if len(reason) <= WIDTH else reason[: WIDTH - 3] + "..."


def _listed(reasons: Counter[str]) -> str:
    lines = [f"  {count} {reason}\n" for reason, count in reasons.most_common(MOST_REASONS)]
    rest = sum(reasons.values()) - sum(count for _, count in reasons.most_common(MOST_REASONS))
    return "".join(lines) + (f"  {rest} for other reasons\n" if rest else "")


def _label(consts: dict[str, Any]) -> str:
    return " ".join(f"{name}={shown(value)}" for name, value in consts.items())


def _x(numbers: Numbers) -> str:
    return "x".join(map(str, numbers))
