"""Gallery kernels against cuBLAS: interleaved, checked, cold or hot.

    python -m benchmarks.gemm
    python -m benchmarks.gemm --format bf16
    python -m benchmarks.gemm --sizes 2048 4096 777x1003x519 --rounds 15

Ratios are of speed: 1.05 means 5% faster than cuBLAS. `cold` rotates more operands than fit in L2, `hot` reuses the
same ones. --format: of the operands, by the names of examples/gemm/reference.py; --transposed b: B is a view of a
transposed array, as for 8-bit operands, where cuBLAS requires it. "registers only" is a loop of mma.sync with as much
arithmetic and nothing else: the ceiling of that instruction. `python -m tiledsl tune` times a kernel with many consts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

from benchmarks.device import Device, open_device
from benchmarks.gallery import chosen_consts, gallery_kernels
from benchmarks.mma_loop import REGISTERS_ONLY, register_loop
from benchmarks.report import RESULTS, write
from tiledsl.inspect import bench
from tiledsl.inspect.bench import as_table, summarize
from tiledsl.inspect.timing import Clocks, buffer_sets, interleave

__all__ = ["as_table", "main", "parse_size", "summarize"]

Size = tuple[int, int, int]
Kernels = dict[str, tuple[Any, dict[str, Any]]]

SIZES: list[Size] = [(n, n, n) for n in (1000, 2048, 4095, 4096, 8192)] + [(4096, 2112, 7168)]
LLM: list[Size] = [
    *((4096, 2112, 7168), (4096, 576, 7168), (4096, 24576, 1536), (4096, 32768, 512)),
    *((4096, 7168, 16384), (4096, 4096, 7168), (4096, 7168, 2048)),
]
"""Products of language models."""
MATRIX_SIZES: list[Size] = [(n, n, n) for n in (2048, 4096, 8192)]
"""The sizes at which the tensor-core kernels are timed, before `LLM`."""


def parse_size(text: str) -> Size:
    """``4096`` or ``777x1003x519`` (M x N x K)."""
    parts = bench.parse_size(text)
    if len(parts) != 3:
        raise argparse.ArgumentTypeError(f"expected N or MxNxK, got {text!r}")
    return parts[0], parts[1], parts[2]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=parse_size, metavar="MxNxK")
    parser.add_argument("--format", default="f32", help="f32 (default), f16, bf16, tf32, e4m3, e5m2, i8, f64")
    parser.add_argument(
        "--transposed", nargs="*", choices=("a", "b"), help="operands that are views of a transposed array"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.05, help="per contender and round")
    parser.add_argument("--hot", action="store_true", help="reuse the same operands")
    parser.add_argument("--only", nargs="+", help="labels of kernels, such as naive or 'shared_tiled T=32'")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)

    format = args.format
    kernels = gallery_kernels(format)
    sizes = args.sizes or (SIZES if format == "f32" else MATRIX_SIZES + LLM)
    eight_bits = format in ("e4m3", "e5m2", "i8", "u8")
    transposed = set(args.transposed if args.transposed is not None else ["b"] if eight_bits else [])
    kernels = {k: v for k, v in kernels.items() if args.only is None or k in args.only}
    device = open_device(format)
    cases: list[dict[str, Any]] = []
    chosen: dict[str, dict[str, Any]] = {}
    with Clocks() as clocks:
        for size in sizes:
            along_k = transposed == {"b"}
            consts = {
                label: chosen_consts(each.name, given, size, format, along_k=along_k)
                for label, (each, given) in kernels.items()
            }
            chosen["x".join(map(str, size))] = {k: v for k, v in consts.items() if v != kernels[k][1]}
            contenders, sets = prepare(device, kernels, size, cold=not args.hot, transposed=transposed)
            start = time.perf_counter()
            timing = interleave(device, contenders, rounds=args.rounds, seconds=args.seconds)
            cases += summarize(timing, size, "cuBLAS", {"sets": sets, **clocks.since(start)})
            print(f"  {'x'.join(map(str, size))} timed in {time.perf_counter() - start:.1f} s", flush=True)
    kind = "hot" if args.hot else "cold"
    data = {"format": format, "transposed": sorted(transposed), "cache": kind}
    data |= {"rounds": args.rounds, "chosen": chosen, "cases": cases}
    suffix = kind if format == "f32" else f"{format}_{kind}"
    name, title = f"gemm_{suffix}", f"{format} GEMM against cuBLAS, {kind}"
    write(name, title, as_table(cases), data, args.out)
    return 0


def prepare(
    device: Device, kernels: Kernels, size: Size, *, cold: bool, transposed: Set[str] = frozenset()
) -> tuple[dict[str, Callable[[int], None]], int]:
    """Operands, and a launcher for cuBLAS and each kernel, whose results have been checked."""
    m, n, k = size

    def operand(name: str, rows: int, columns: int, seed: int) -> Any:
        if name in transposed:
            return device.transposed(device.normal(columns, rows, seed))
        return device.normal(rows, columns, seed)

    operand_bytes, result_bytes = device.itemsizes
    sets = buffer_sets(operand_bytes * (m * k + k * n) + result_bytes * m * n, cold=cold)
    a = [operand("a", m, k, seed) for seed in range(sets)]
    b = [operand("b", k, n, 1000 + seed) for seed in range(sets)]
    c = [device.empty(m, n) for _ in range(sets)]

    def cublas(number: int) -> None:
        i = number % sets
        device.matmul(a[i], b[i], c[i])

    def of(kernel: Any, consts: dict[str, Any]) -> Callable[[int], None]:
        def launch(number: int) -> None:
            i = number % sets
            kernel(a[i], b[i], c[i], **consts)

        return launch

    contenders: dict[str, Callable[[int], None]] = {"cuBLAS": cublas}
    for label, (kernel, consts) in kernels.items():
        along_k = transposed == {"b"}
        contenders[label] = of(kernel, chosen_consts(kernel.name, consts, size, device.format, along_k=along_k))
    for label, launch in contenders.items():
        c[0][...] = device.blank
        launch(0)
        share = device.worst_share(c[0], a[0], b[0])
        if not share <= 1:
            raise SystemExit(f"{label} at {m}x{n}x{k} is wrong: {share:.3g} times its error bound")
    if device.format != "f32":
        contenders[REGISTERS_ONLY] = register_loop(device, m * n * k)
    return contenders, sets


if __name__ == "__main__":
    sys.exit(main())
