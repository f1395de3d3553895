"""Times block-scaled e4m3 on an H200: ours in several variants, ours plain and promoted, cuBLAS and cuBLASLt by torch.

    python -m benchmarks.block_scales            # on an H200, with torch; 4 to 6 minutes
    python -m benchmarks.block_scales --build    # anywhere: only plans and compiles

Each output is checked against a dequantised f32 reference first. Rested: bursts of 3 ms after pauses of 6 ms;
sustained: 60 ms each without pauses. Both interleaved in random order; ratios are medians of those of a round. By CUDA
graphs, operands not in L2. "in one piece": by the fastest tile whose columns are not multiplied in two halves.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple

os.environ.setdefault("TILEDSL_CACHE_DIR", tempfile.mkdtemp(prefix="tiledsl_"))

from tiledsl.compilation.parallel import build_all
from tiledsl.gemm import gemm
from tiledsl.gemm.choice import Variant, ranked
from tiledsl.gemm.operands import described
from tiledsl.gemm.plan import by_variant, choice_of, plan
from tiledsl.gemm.prepared import SOMEWHERE, Prepared
from tiledsl.gemm.steps import problem_of, steps_of
from tiledsl.gemm.warm_up import operands_of
from tiledsl.inspect.frameworks import open_device
from tiledsl.inspect.timing import Clocks, buffer_sets, interleave
from tiledsl.ir.types import BF16, E4M3

__all__ = ["main"]

SHAPES = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (4096, 7168, 16384),
    (4096, 7168, 2048),
    (4096, 2112, 7168),
    (2048, 2048, 2048),
    (64, 7168, 16384),
    (64, 7168, 2048),
    (16, 4096, 7168),
)
ARCH, PROCESSORS, LIMIT = "sm_90a", 132, 330
STEP = 34 * 2.0**-13
"""Error of the tensor cores for each 32 of k, as a share of the sum of all |a b|."""


class Candidate(NamedTuple):
    variant: Variant
    stages: int = 0
    """0: as many as fit."""
    shallow: bool = False
    """Steps of 128 where the library takes 256."""

    def __str__(self) -> str:
        v = self.variant
        rows, columns, instances = v.tile
        parts = f" k/{v.parts}x{v.groups}" if v.parts else ""
        cluster = f" c{v.along_m}x{v.along_n}" if v.along_m * v.along_n > 1 else ""
        pingpong = " pp" if instances == 2 else ""
        stages, depth = f" s{self.stages}" if self.stages else "", " bk128" if self.shallow else ""
        return f"{rows}x{columns}{pingpong}{cluster}{parts} b{v.band}{stages}{depth}"

    def plan(self, problem: Any) -> Any:
        made = by_variant(problem, self.variant)
        if self.shallow and made.consts["BK"] == 256:
            made = made._replace(consts={**made.consts, "BK": 128, "STAGES": min(16, 2 * made.consts["STAGES"])})
        return made._replace(consts={**made.consts, "STAGES": self.stages}) if self.stages else made


def candidates(problem: Any) -> list[Candidate]:
    """What the model finds fastest, and tiles, clusters, bands and stages around that."""
    found = [Candidate(v) for v, _ in ranked(5, choice_of(problem))]
    if problem.m <= 64:
        fixed = [Variant((64, c, 2), along_n=n, band=8) for c in (16, 32, 48, 64, 128) for n in (1, 2)]
        fixed = [v for v in fixed if v not in [c.variant for c in found]]
        deep = [c for c in found if c.plan(problem).consts["BK"] == 256]
        return found + [Candidate(v) for v in fixed] + [c._replace(shallow=True) for c in deep[:3]]
    fixed = [Variant((128, columns, 1), band=band) for columns in (256, 128) for band in (4, 8, 16)]
    found += [Candidate(v) for v in fixed]
    if problem.m * problem.n <= 2048 * 2048:
        found += [Candidate(Variant((128, columns, 1), band=8)) for columns in (96, 112, 144)]
    return list(dict.fromkeys(found))


def in_one_piece(problem: Any) -> Any:
    """The plan by the fastest variant whose columns are not multiplied in halves, or None where that is chosen."""
    found = [v for v, _ in ranked(100, choice_of(problem))]
    return by_variant(problem, next(v for v in found if not v.in_halves)) if found[0].in_halves else None


def steps(of: Any, made: Any) -> Any:
    return steps_of(of, problem_of(of, 0.0, False, ARCH, PROCESSORS), made, None)


def jobs(of: Any, made: Any) -> list[Any]:
    """What is compiled for a plan."""
    found: list[Any] = []
    for step in steps(of, made).launches:
        values = step.values((*of.addresses, *SOMEWHERE), 0)
        found.append((step.kernel, *step.kernel.dispatcher.build_of(values, ARCH)))
    return found


def build(all_jobs: list[Any]) -> None:
    start = time.perf_counter()
    unique = list({(kernel.name, repr(spec)): (kernel, spec, arch) for kernel, spec, arch in all_jobs}.values())
    build_all(unique)
    spilled: list[str] = []
    for kernel, spec, arch in unique:
        bytes_, consts = kernel.builds.compiled(spec, arch).resources.spill_stores, dict(spec.consts)
        if bytes_:
            names = ("BM", "BN", "GROUP", "CLUSTER", "SPLIT", "GATHER", "EARLY", "SCALED", "STAGES")
            spilled.append(" ".join(f"{n}={consts.get(n)}" for n in names) + f": {bytes_} bytes")
    print(
        f"{len(unique)} kernels built in {time.perf_counter() - start:.1f} s; with spills: {spilled or 'none'}",
        flush=True,
    )


def described_by(kind: str, size: tuple[int, int, int]) -> Any:
    """Arrays that do not exist, of a kind: plain, promoted, scaled (scale_a by columns) or rows (by rows)."""
    of = operands_of(size, (E4M3, E4M3, BF16), "NT", False, False, 0, scaled=kind in ("scaled", "rows"))
    of = of._replace(promoted=kind != "plain")
    if kind == "scaled" and of.scales is not None:
        a, b = of.scales
        of = of._replace(scales=(replace(a, strides=(0, 1, size[0])), b))
    return of


def jobs_of(sizes: Sequence[tuple[int, int, int]]) -> list[Any]:
    found: list[Any] = []
    for size in sizes:
        for kind in ("plain", "promoted", "scaled", "rows"):
            of = described_by(kind, size)
            problem = problem_of(of, 0.0, False, ARCH, PROCESSORS)
            found += jobs(of, plan(problem))
            if kind != "plain" and (whole := in_one_piece(problem)):
                found += jobs(of, whole)
            if kind == "scaled":
                for candidate in candidates(problem):
                    found += jobs(of, candidate.plan(problem))
    return found


# -- on a GPU ----------------------------------------------------------------------------------------------


class Sets:
    """So many sets of operands, which do not fit into L2 together."""

    def __init__(self, torch: Any, size: tuple[int, int, int]) -> None:
        m, n, k = size
        count = buffer_sets(m * k + n * k + 2 * m * n, cold=True)
        torch.manual_seed(m + n + k)

        def quantised(rows: int) -> Any:
            return torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn)

        def scales(rows: int, columns: int) -> Any:
            return torch.rand(rows, columns, device="cuda") + 0.5

        self.a = [quantised(m) for _ in range(count)]
        self.b = [quantised(n).T for _ in range(count)]
        self.c = [torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
        self.by_rows = [scales(m, -(-k // 128)) for _ in range(count)]
        self.by_columns = [x.T.contiguous().T for x in self.by_rows]
        self.of_b = [scales(-(-n // 128), -(-k // 128)).T for _ in range(count)]
        self.count = count

    def reference(self, torch: Any, scaled: bool) -> tuple[Any, Any]:
        """Of set 0: the product in f32, and the sum of the terms' sizes."""
        a, b = self.a[0].float(), self.b[0].float()
        if scaled:
            k, n = b.shape
            a = a * self.by_rows[0].repeat_interleave(128, 1)[:, :k]
            b = b * self.of_b[0].repeat_interleave(128, 0).repeat_interleave(128, 1)[:k, :n]
        return a @ b, a.abs() @ b.abs()


def prepared(of: list[Any], made: Any, launches: int | None = None) -> Callable[[int], Any]:
    """Launches a plan on one set of operands after the other. launches: the first so many of it; negative: all but the
    last ones."""
    torch: Any = import_module("torch")
    whole = steps(of[0], made)
    ready, count = Prepared(0, whole._replace(launches=whole.launches[:launches]), of[0]), len(of)
    ready.prepare_graphs(torch.cuda.current_stream().cuda_stream)

    def launch(number: int) -> Any:
        each = of[number % count]
        captured = each.result if torch.cuda.is_current_stream_capturing() else None
        ready.run(torch.cuda.current_stream().cuda_stream, each.addresses, 1.0, 0.0, captured)
        return each.result

    return launch


def of_torch(torch: Any, sets: Sets) -> dict[str, Callable[[int], Any]]:
    """cuBLAS with and without fast accumulation, and cuBLASLt with scales of blocks, where torch has it."""
    F, one, count = torch.nn.functional, torch.ones((), device="cuda"), sets.count
    bf16 = torch.bfloat16

    def per_tensor(fast: bool) -> Callable[[int], Any]:
        def launch(number: int) -> Any:
            i = number % count
            return torch._scaled_mm(sets.a[i], sets.b[i], one, one, out_dtype=bf16, use_fast_accum=fast, out=sets.c[i])

        return launch

    def by_function(number: int) -> Any:
        i, recipes = number % count, F.ScalingType
        return F.scaled_mm(
            sets.a[i], sets.b[i], sets.by_columns[i], recipes.BlockWise1x128, sets.of_b[i], recipes.BlockWise128x128,
            output_dtype=bf16, use_fast_accum=False,
        )  # fmt: skip

    def by_operator(number: int) -> Any:
        i = number % count
        return torch._scaled_mm(sets.a[i], sets.b[i], sets.by_columns[i], sets.of_b[i], out_dtype=bf16)

    found = {"cuBLAS fast": per_tensor(True), "cuBLAS not fast": per_tensor(False)}
    for launch in (by_function, by_operator):
        try:
            launch(0)
            torch.cuda.synchronize()
        except Exception as error:  # absent, or refused: whatever it raises says so
            print(f"  torch's scales of blocks, {launch.__name__}: {str(error)[:300]}", flush=True)
            continue
        found["cuBLASLt blocks"] = launch
        break
    return found


def right(torch: Any, name: str, out: Any, reference: tuple[Any, Any], fast: bool) -> bool:
    """Within the error of the tensor cores (for 128 of k; with fast accumulation for all), and of rounding to bf16."""
    exact, terms = reference
    off = (out.float() - exact).abs()
    bound = STEP * terms + 2.0**-8 * exact.abs() + 1e-30
    share = float((off / bound).max())
    norm = float(off.norm() / exact.norm())
    fine = share <= (8 if fast else 1)
    if not fine:
        print(f"  WRONG: {name}: {share:.3g} of the bound, relative norm of the error {norm:.2e}", flush=True)
    return fine


def timed(torch: Any, size: tuple[int, int, int], sets: Sets, of: dict[str, list[Any]], device: Any) -> dict[str, Any]:
    m, n, k = size
    problem = problem_of(of["scaled"][0], 0.0, False, ARCH, PROCESSORS)
    ours = {f"var {c}": prepared(of["scaled"], c.plan(problem)) for c in candidates(problem)}
    without = [each._replace(scales=None) for each in of["scaled"]]
    whole = {"scaled": of["scaled"], "promoted": without}
    plans = {name: in_one_piece(problem_of(x[0], 0.0, False, ARCH, PROCESSORS)) for name, x in whole.items()}
    whole = {f"{name} in one piece": prepared(whole[name], made) for name, made in plans.items() if made}
    count = sets.count

    def called(**given: list[Any] | str) -> Callable[[int], Any]:
        def launch(number: int) -> Any:
            i = number % count
            more: dict[str, Any] = {name: x[i] if isinstance(x, list) else x for name, x in given.items()}
            return gemm(sets.a[i], sets.b[i], sets.c[i], **more)

        return launch

    library = {
        "gemm scaled": called(scale_a=sets.by_columns, scale_b=sets.of_b),
        "gemm scaled, rows": called(scale_a=sets.by_rows, scale_b=sets.of_b),
        "gemm promoted": called(precision="promoted"),
        "gemm plain": called(),
    }
    theirs = of_torch(torch, sets)
    references = {scaled: sets.reference(torch, scaled) for scaled in (False, True)}
    bits: Any = None
    everything = {**library, **whole, **theirs, **ours}
    for name, launch in list(everything.items()):
        scaled = name.startswith(("var", "gemm scaled", "scaled", "cuBLASLt"))
        sets.c[0].fill_(float("nan"))
        out = launch(0)
        torch.cuda.synchronize()
        if not right(torch, name, out, references[scaled], name in ("gemm plain", "cuBLAS fast")):
            del everything[name]
            continue
        if name.startswith("var") and " k/" not in name:
            bits = out.clone() if bits is None else bits
            if not torch.equal(out, bits):
                print(f"  WRONG: {name} has other bits than another tile", flush=True)
    del references
    work = 2.0 * m * n * k
    graphed = max(2, min(40, int(2e12 / work * 1.2)))
    print(f"{m} x {n} x {k}: {len(everything)} contenders, {count} sets, graphs of {graphed}", flush=True)

    def measure(names: list[str], rounds: int, seconds: float, rest: float) -> Any:
        chosen = {name: everything[name] for name in names}
        return interleave(device, chosen, rounds=rounds, seconds=seconds, rest=rest, graphed=graphed)

    screened = measure(list(everything), 3, 0.002, 0.004)
    by_time = sorted((n for n in everything if n.startswith("var")), key=screened.median)
    for name in by_time:
        print(
            f"  {name:32} {screened.median(name) * 1e3:9.2f} us {work / screened.median(name) / 1e9:7.0f} TFLOP/s",
            flush=True,
        )
    finalists = [name for name in everything if not name.startswith("var")] + by_time[:3]
    with Clocks() as clocks:
        rested = measure(finalists, 15, 0.003, 0.006)
        begun = time.perf_counter()
        sustained = measure(finalists, 5, 0.06, 0.0)
        print(f"  while sustained: {clocks.since(begun)}", flush=True)
    return {"size": size, "work": work, "rested": rested, "sustained": sustained, "names": finalists}


def table(results: list[dict[str, Any]]) -> None:
    print("\nTFLOP/s rested | sustained, and in brackets the speed relative to cuBLASLt's blocks,")
    print("of promoted sums to cuBLAS not fast")
    for each in results:
        print(" x ".join(map(str, each["size"])))
        for name in each["names"]:
            blocks = "cuBLASLt blocks" in each["names"] and "promoted" not in name
            base = "cuBLASLt blocks" if blocks else "cuBLAS not fast"
            cells: list[str] = []
            for kind in ("rested", "sustained"):
                times = each[kind]
                ratio = statistics.median(times.speed_ratios(name, base)) if base in each["names"] else float("nan")
                cells.append(f"{each['work'] / times.median(name) / 1e9:6.0f} ({ratio:.3f})")
            print(f"  {name:32} {' | '.join(cells)}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--shapes", type=int, nargs="*", help="numbers of SHAPES; all unless given")
    args = parser.parse_args()
    chosen = [SHAPES[i] for i in args.shapes or range(len(SHAPES))]
    start = time.perf_counter()
    build(jobs_of(chosen))
    if args.build:
        return 0
    torch: Any = import_module("torch")
    device = open_device("bf16")
    print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name(), flush=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    results: list[dict[str, Any]] = []
    for size in chosen:
        if time.perf_counter() - start > LIMIT - 50:
            print(f"{size}: no time left", flush=True)
            continue
        sets = Sets(torch, size)
        scaled = [
            described(a, b, c, None, None, None, None, x, y)
            for a, b, c, x, y in zip(sets.a, sets.b, sets.c, sets.by_columns, sets.of_b, strict=True)
        ]
        results.append(timed(torch, size, sets, {"scaled": scaled}, device))
        del sets, scaled
        torch.cuda.empty_cache()
        print(f"  {time.perf_counter() - start:.0f} s", flush=True)
    table(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
