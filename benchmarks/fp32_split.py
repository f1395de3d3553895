"""Times f32 on tensor cores, as planes of 16 bits, on an H200: against cuBLAS in fp32 and our FFMA, with their errors.

    python -m benchmarks.fp32_split            # on an H200, with torch; some 6 minutes
    python -m benchmarks.fp32_split --build    # anywhere: only plans and compiles

Each output is checked against f64 first, and errors of four kinds of inputs are shown. Timed are calls, what they
launch before the product, and other tiles. Rested: bursts of 3 ms after pauses of 6 ms; sustained: 60 ms each without
pauses. Both interleaved in random order; ratios are medians of those of a round. By CUDA graphs, operands not in L2.
cuBLAS: the faster one of B in row order (NN) and along k (NT).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks.block_scales import ARCH, PROCESSORS, Candidate, build, jobs, prepared
from tiledsl.gemm import gemm
from tiledsl.gemm.choice import Variant, ranked
from tiledsl.gemm.formats import SPLITS, Split
from tiledsl.gemm.operands import described
from tiledsl.gemm.plan import choice_of_planes, plan, planes_by_variant
from tiledsl.gemm.steps import problem_of
from tiledsl.gemm.warm_up import operands_of
from tiledsl.inspect.frameworks import open_device
from tiledsl.inspect.timing import Clocks, buffer_sets, interleave
from tiledsl.ir.types import F32

__all__ = ["main"]

SHAPES = (
    (4096, 4096, 4096),
    (2048, 2048, 2048),
    (8192, 8192, 8192),
    (4096, 7168, 2048),
    (4096, 2112, 7168),
    (4096, 4096, 7168),
    (4096, 576, 7168),
    (4096, 24576, 1536),
    (4096, 32768, 512),
    (4096, 7168, 16384),
    (16384, 16384, 16384),
)
"""Of `square` from 2048 on and `llm`: m, n and k, those first that say most."""
CHECKED = 64
"""Rows of each contender's result that are compared."""
LARGE = 1 << 40
"""Products for which other tiles are not tried: each graph has a workspace."""
Launch = Callable[[int], Any]


def described_by(size: tuple[int, int, int], split: Split | None, layout: str = "NT") -> Any:
    """Arrays that do not exist."""
    return operands_of(size, (F32, F32, F32), layout, False, False, 0)._replace(split=split)


def variants(problem: Any, split: Split) -> list[Variant]:
    """What the model finds fastest, and tiles and clusters around that."""
    found = [v for v, _ in ranked(3, choice_of_planes(problem, split))]
    for columns in (192, 176, 160, 128, 112):
        for m, n in ((1, 1), (2, 1), (1, 2)):
            found.append(Variant((128, columns, 1), along_m=m, along_n=n))
    return list(dict.fromkeys(found))


def plans(size: tuple[int, int, int], split: Split) -> dict[str, Any]:
    """By the name of a variant."""
    of = described_by(size, split)
    problem = problem_of(of, 0.0, False, ARCH, PROCESSORS)
    return {f"{split.name} {Candidate(v)}": planes_by_variant(problem, split, v) for v in variants(problem, split)}


def all_jobs(sizes: list[tuple[int, int, int]]) -> list[Any]:
    found: list[Any] = []
    for size in sizes:
        for split in (*SPLITS.values(), None):
            for layout in ("NN", "NT"):
                of = described_by(size, split, layout)
                found += jobs(of, plan(problem_of(of, 0.0, False, ARCH, PROCESSORS)))
        for split in SPLITS.values():
            for made in plans(size, split).values():
                found += jobs(described_by(size, split), made)
    return found


# -- errors ------------------------------------------------------------------------------------------------


def inputs(torch: Any, kind: str, rows: int, k: int, seed: int) -> Any:
    """Well-conditioned ones, and those whose sums cancel or whose elements differ much in size."""
    torch.manual_seed(seed)
    x = torch.rand(rows, k, device="cuda") if kind == "uniform" else torch.randn(rows, k, device="cuda")
    if kind == "cancelling":  # what follows takes away what was added, up to the last bits
        half, sign = k // 2, -1.0 if seed else 1.0
        x[:, half : 2 * half] = sign * x[:, :half] * (1 + (0 if seed else 1e-6) * torch.randn_like(x[:, :half]))
    if kind == "of all sizes":
        x *= torch.randint(-10, 11, x.shape, device="cuda").float().exp2()
    return x


def errors(torch: Any, size: tuple[int, int, int]) -> None:
    """Prints the largest and the mean error, relative to |A| |B|, in units of 2^-24."""
    m, n, k = size
    for kind in ("normal", "uniform", "cancelling", "of all sizes"):
        A, B = inputs(torch, kind, m, k, 0), inputs(torch, kind, n, k, 1).T
        exact, terms = A.double() @ B.double(), A.double().abs() @ B.double().abs()
        found = {"FFMA": gemm(A, B), "cuBLAS": A @ B}
        found |= {name: gemm(A, B, precision=name) for name in SPLITS}
        cells: list[str] = []
        for name, C in found.items():
            each = (C.double() - exact).abs() / terms * 2.0**24
            cells.append(f"{name} {float(each.max()):.2f} (mean {float(each.square().mean().sqrt()):.3f})")
        print(f"  errors, {kind:13} {'; '.join(cells)}", flush=True)


# -- times -------------------------------------------------------------------------------------------------


class Sets:
    """So many sets of operands, which do not fit into L2 together. B is along k, and `rows` has it in row order."""

    def __init__(self, torch: Any, size: tuple[int, int, int]) -> None:
        m, n, k = size
        self.count = buffer_sets(4 * (m * k + n * k + m * n), cold=True)
        torch.manual_seed(m + n + k)
        self.a = [torch.randn(m, k, device="cuda") for _ in range(self.count)]
        self.b = [torch.randn(n, k, device="cuda").T for _ in range(self.count)]
        self.rows = [x.contiguous() for x in self.b]
        self.c = [torch.empty(m, n, device="cuda") for _ in range(self.count)]


def contenders(torch: Any, size: tuple[int, int, int], sets: Sets) -> dict[str, Launch]:
    def called(b: list[Any], precision: str | None) -> Launch:
        def launch(number: int) -> Any:
            i = number % sets.count
            return gemm(sets.a[i], b[i], sets.c[i], precision=precision)

        return launch

    def cublas(b: list[Any]) -> Launch:
        def launch(number: int) -> Any:
            i = number % sets.count
            return torch.mm(sets.a[i], b[i], out=sets.c[i])

        return launch

    found = {"cuBLAS NN": cublas(sets.rows), "cuBLAS NT": cublas(sets.b), "gemm FFMA": called(sets.b, None)}
    for split in SPLITS.values():
        found[f"gemm {split.name}"] = called(sets.b, split.name)
        found[f"gemm {split.name} NN"] = called(sets.rows, split.name)
        arrays = zip(sets.a, sets.b, sets.c, strict=True)
        of = [described(a, b, c, None, None, None, split.name) for a, b, c in arrays]
        made = plan(problem_of(of[0], 0.0, False, ARCH, PROCESSORS))
        found[f"all but the product, {split.name}"] = prepared(of, made, -1)
        found |= (
            {}
            if size[0] * size[1] * size[2] > LARGE
            else {f"var {name}": prepared(of, each) for name, each in plans(size, split).items()}
        )
    return found


def timed(torch: Any, size: tuple[int, int, int], sets: Sets, device: Any) -> dict[str, Any]:
    m, n, k = size
    everything, work = contenders(torch, size, sets), 2.0 * m * n * k
    a, b = sets.a[0][:CHECKED], sets.b[0]
    exact, terms = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    for name, launch in list(everything.items()):
        sets.c[0].fill_(float("nan"))
        launch(0)
        torch.cuda.synchronize()
        if name.startswith("all but"):
            continue
        worst = float(((sets.c[0][:CHECKED].double() - exact).abs() / terms).max()) * 2.0**24
        if not worst <= 64 or not bool(sets.c[0].isfinite().all()):
            print(f"  WRONG: {name}: error {worst:.3g}", flush=True)
            del everything[name]
    graphed = max(2, min(40, int(1.2e11 / work * 1.2)))
    print(f"{m} x {n} x {k}: {len(everything)} contenders, {sets.count} sets, graphs of {graphed}", flush=True)

    def measure(names: list[str], rounds: int, seconds: float, rest: float) -> Any:
        chosen = {name: everything[name] for name in names}
        return interleave(device, chosen, rounds=rounds, seconds=seconds, rest=rest, graphed=graphed)

    others = [name for name in everything if name.startswith("var")]
    screened = measure(others, 3, 0.002, 0.004)
    finalists = [name for name in everything if not name.startswith("var")]
    for split in SPLITS:
        by_time = sorted((name for name in others if split in name), key=screened.median)
        shown = [f"{name.split(maxsplit=2)[2]} {screened.median(name) * 1e3:.0f}" for name in by_time]
        print(f"  us, {split}:", flush=True)
        for first in range(0, len(shown), 5):
            print(f"    {', '.join(shown[first : first + 5])}", flush=True)
        finalists += by_time[:2]
    with Clocks() as clocks:
        rested = measure(finalists, 15, 0.003, 0.006)
        begun = time.perf_counter()
        sustained = measure(finalists, 5, 0.06, 0.0)
        print(f"  while sustained: {clocks.since(begun)}", flush=True)
    return {"size": size, "work": work, "rested": rested, "sustained": sustained, "names": finalists}


def table(results: list[dict[str, Any]]) -> None:
    print("\nus and TFLOP/s rested | sustained, and in brackets the speed relative to the faster cuBLAS")
    for each in results:
        print(" x ".join(map(str, each["size"])))
        for name in each["names"]:
            cells: list[str] = []
            for kind in ("rested", "sustained"):
                times = each[kind]
                base = min(("cuBLAS NN", "cuBLAS NT"), key=times.median)
                took = times.median(name)
                ratio = statistics.median(times.speed_ratios(name, base))
                cells.append(f"{took * 1e3:9.1f} us {each['work'] / took / 1e9:6.1f} ({ratio:.3f})")
            print(f"  {name:36} {' | '.join(cells)}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--shapes", type=int, nargs="*", help="numbers of SHAPES; the first 4 unless given")
    parser.add_argument("--limit", type=int, default=330, help="seconds, after which no further shape is begun")
    args = parser.parse_args()
    numbers: list[int] = args.shapes or list(range(4))
    sizes = [SHAPES[i] for i in numbers]
    if args.build:
        build(all_jobs(sizes))
        return 0
    torch: Any = import_module("torch")
    start, device = time.perf_counter(), open_device("f32")
    print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name(), flush=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    build(all_jobs(sizes))
    results: list[dict[str, Any]] = []
    for size in sizes:
        if time.perf_counter() - start > args.limit - 50:
            print(f"{size}: no time left", flush=True)
            continue
        sets = Sets(torch, size)
        results.append(timed(torch, size, sets, device))
        del sets
        errors(torch, size)
        torch.cuda.empty_cache()
        print(f"  {time.perf_counter() - start:.0f} s", flush=True)
    table(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
