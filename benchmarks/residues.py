"""Times f32 and f64 by residues on an H200: against cuBLAS in the same dtype, and the other ways of `gemm`.

    python -m benchmarks.residues                  # some 5 minutes; needs torch
    python -m benchmarks.residues --shapes 0 1 --dtypes f64

Each result is checked against sums in f64 (of f64: in f64 of twice the bits, on a few elements), and its error is shown
beside cuBLAS's, in units of the last place times |A| |B|. Rested: bursts of 4 ms after pauses of 8 ms; sustained: 60 ms
each without pauses; both interleaved. By CUDA graphs, operands not in L2. cuBLAS: the faster one of B in row order (NN)
and along k (NT). "first n" are the first n launches of a call: scales, residues, product.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.block_scales import ARCH, PROCESSORS, prepared
from benchmarks.fp32_split import SHAPES
from benchmarks.report import RESULTS, table, write
from tiledsl.gemm import gemm, warmup
from tiledsl.gemm.formats import RESIDUES, SPLITS
from tiledsl.gemm.operands import described
from tiledsl.gemm.plan import plan
from tiledsl.gemm.steps import problem_of
from tiledsl.inspect.frameworks import open_device
from tiledsl.inspect.timing import buffer_sets, interleave

__all__ = ["main"]

Launch = Callable[[int], Any]
UNIT = {"f32": 2.0**-24, "f64": 2.0**-53}
CHECKED = 16
"""Rows and columns of a result that are compared."""
KINDS = ("normal", "uniform", "of all sizes")


def ways(dtype: str) -> list[str | None]:
    """Values of `precision`."""
    more = [None, *SPLITS] if dtype == "f32" else []
    return [*(name for name, scheme in RESIDUES.items() if scheme.dtype.name == dtype), *more]


def operands(torch: Any, kind: str, shape: tuple[int, int], dtype: Any) -> Any:
    x = (torch.rand if kind == "uniform" else torch.randn)(shape, device="cuda", dtype=dtype)
    return x * torch.randint(-10, 11, shape, device="cuda").to(dtype).exp2() if kind == "of all sizes" else x


def error(A: Any, B: Any, C: Any, unit: float) -> float:
    """The largest one of some elements: sums of 64-bit integers' worth, by NumPy's widest float."""
    left, right = A[:CHECKED].cpu().numpy(), B[:, :CHECKED].cpu().numpy()
    wide = [x.astype(np.longdouble) for x in (left, right)]
    off = np.abs(C[:CHECKED, :CHECKED].cpu().numpy() - wide[0] @ wide[1])
    return float((off / (np.abs(wide[0]) @ np.abs(wide[1]))).max() / unit)


def timed(torch: Any, device: Any, size: tuple[int, int, int], name: str) -> list[dict[str, Any]]:
    (m, n, k), dtype = size, {"f32": torch.float32, "f64": torch.float64}[name]
    count = buffer_sets(dtype.itemsize * (m * k + n * k + m * n), cold=True)
    torch.manual_seed(m + n + k)
    a = [torch.randn(m, k, device="cuda", dtype=dtype) for _ in range(count)]
    along_k = [torch.randn(n, k, device="cuda", dtype=dtype).T for _ in range(count)]
    by_rows = [x.contiguous() for x in along_k]
    c = [torch.empty(m, n, device="cuda", dtype=dtype) for _ in range(count)]
    found: dict[str, Launch] = {}
    for layout, b in (("NN", by_rows), ("NT", along_k)):
        found[f"cuBLAS {layout}"] = lambda i, b=b: torch.mm(a[i % count], b[i % count], out=c[i % count])
        for way in ways(name):
            label = f"{way or 'FFMA'} {layout}"
            found[label] = lambda i, b=b, way=way: gemm(a[i % count], b[i % count], c[i % count], precision=way)
    errors: dict[str, dict[str, float]] = {label: {} for label in found}
    for label, launch in list(found.items()):
        c[0].fill_(float("nan"))
        launch(0)
        errors[label]["normal"] = error(a[0], along_k[0], c[0], UNIT[name])
        if not errors[label]["normal"] <= k or not bool(c[0].isfinite().all()):
            raise SystemExit(f"{label} is wrong at {size}: {errors[label]['normal']:.3g}")
    for kind in KINDS[1:]:
        x, y = operands(torch, kind, (m, k), dtype), operands(torch, kind, (k, n), dtype)
        for label in found:
            if label.endswith("NN"):
                C = x @ y if label == "cuBLAS NN" else gemm(x, y, precision=None if "FFMA" in label else label[:-3])
                errors[label][kind] = error(x, y, C, UNIT[name])
    way = ways(name)[0]
    of = [described(x, y, z, None, None, None, way) for x, y, z in zip(a, along_k, c, strict=True)]
    made = plan(problem_of(of[0], 0.0, False, ARCH, PROCESSORS))
    found |= {f"{way} NT, first {i}": prepared(of, made, i) for i in (1, 2, 3)}
    graphed = max(2, min(40, int(6e10 / (m * n * k))))
    rested = interleave(device, found, rounds=9, seconds=0.004, rest=0.008, graphed=graphed)
    sustained = interleave(device, found, rounds=4, seconds=0.06, graphed=graphed)
    rows: list[dict[str, Any]] = []
    for label in found:
        row: dict[str, Any] = {"size": size, "dtype": name, "way": label, "errors": errors.get(label, {})}
        for kind, times in (("rested", rested), ("sustained", sustained)):
            base = min(("cuBLAS NN", "cuBLAS NT"), key=times.median)
            row[kind] = {"ms": times.median(label), "ratio": statistics.median(times.speed_ratios(label, base))}
        rows.append(row)
    return rows


def as_table(rows: list[dict[str, Any]]) -> str:
    header = ("M x N x K", "dtype", "way", "us rested", "/ cuBLAS", "us sustained", "/ cuBLAS", *KINDS)
    lines: list[tuple[str, ...]] = []
    for row in rows:
        cells: list[str] = []
        for kind in ("rested", "sustained"):
            cells += [f"{1e3 * row[kind]['ms']:.1f}", f"{row[kind]['ratio']:.3f}"]
        cells += [f"{row['errors'][kind]:.2f}" if kind in row["errors"] else "" for kind in KINDS]
        lines.append(("x".join(map(str, row["size"])), row["dtype"], row["way"], *cells))
    return table(header, lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shapes", type=int, nargs="*", help="numbers of SHAPES of fp32_split; the first 4 unless given"
    )
    parser.add_argument("--dtypes", nargs="*", choices=("f32", "f64"), default=["f64", "f32"])
    parser.add_argument("--limit", type=int, default=280, help="seconds, after which no further shape is begun")
    parser.add_argument("--build", action="store_true", help="only compile, without a GPU")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    sizes = [SHAPES[i] for i in args.shapes or range(4)]
    for name in args.dtypes:
        for way in ways(name):
            warmup(sizes, name, precision=way, layouts=("NN", "NT"), arch="sm_90a")
    if args.build:
        return 0
    torch: Any = import_module("torch")
    torch.backends.cuda.matmul.allow_tf32 = False
    begun, device, rows = time.perf_counter(), open_device("f32"), list[dict[str, Any]]()
    for size in sizes:
        for name in args.dtypes:
            if time.perf_counter() - begun < args.limit:
                rows += timed(torch, device, size, name)
                torch.cuda.empty_cache()
                print(f"{size} {name}: {time.perf_counter() - begun:.0f} s", flush=True)
    write("residues", "f32 and f64 by residues against cuBLAS", as_table(rows), {"rows": rows}, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
