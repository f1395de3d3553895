"""Gallery kernels against cuBLAS in fp32: interleaved, checked, cold or hot.

    python -m benchmarks.gemm
    python -m benchmarks.gemm --sizes 2048 4096 777x1003x519 --rounds 15
    python -m benchmarks.gemm --sizes 4096 --variants fastest BM=64,128 BN=128,256 ORDER=rows,serpentine

Ratios are of speed: 1.05 means 5% faster than cuBLAS. `cold` goes round more operands than fit in L2,
`hot` uses the same ones again. --variants times one kernel under every combination of the consts given, the
fastest first.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.device import Device, open_device
from benchmarks.gallery import chosen_consts, gallery_kernels, kernel_label
from benchmarks.interleave import Timing, buffer_sets, interleave, quartiles
from benchmarks.machine import Clocks
from benchmarks.report import RESULTS, table, write

__all__ = ["main"]

Size = tuple[int, int, int]
Kernels = dict[str, tuple[Any, dict[str, Any]]]

SIZES: list[Size] = [(n, n, n) for n in (1000, 2048, 4095, 4096, 8192)] + [(4096, 2112, 7168)]


def parse_size(text: str) -> Size:
    """``4096`` or ``777x1003x519`` (M x N x K)."""
    parts = [int(p) for p in text.split("x")]
    if len(parts) not in (1, 3):
        raise argparse.ArgumentTypeError(f"expected N or MxNxK, got {text!r}")
    return (parts[0],) * 3 if len(parts) == 1 else (parts[0], parts[1], parts[2])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=SIZES, metavar="MxNxK")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.05, help="of one contender in one round")
    parser.add_argument("--hot", action="store_true", help="the same operands again and again")
    parser.add_argument("--only", nargs="+", help="labels of kernels, such as naive or 'shared_tiled T=32'")
    parser.add_argument("--variants", nargs="+", metavar=("KERNEL", "CONST=VALUE,..."), help="of one kernel; see above")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)

    kernels = gallery_kernels()
    if args.variants:
        kernels = variants(kernels, args.variants[0], args.variants[1:])
    kernels = {k: v for k, v in kernels.items() if args.only is None or k in args.only}
    device = open_device()
    cases: list[dict[str, Any]] = []
    chosen: dict[str, dict[str, Any]] = {}
    with Clocks() as clocks:
        for size in args.sizes:
            consts = {label: chosen_consts(kernel.name, given, size) for label, (kernel, given) in kernels.items()}
            chosen["x".join(map(str, size))] = {k: v for k, v in consts.items() if v != kernels[k][1]}
            contenders, sets = prepare(device, kernels, size, cold=not args.hot)
            start = time.perf_counter()
            timing = interleave(device, contenders, rounds=args.rounds, seconds=args.seconds)
            cases += summarize(timing, size, "cuBLAS", {"sets": sets, **clocks.since(start)})
            print(f"  {'x'.join(map(str, size))} timed in {time.perf_counter() - start:.1f} s", flush=True)
    kind = "hot" if args.hot else "cold"
    data = {"cublas_through": device.name, "cache": kind, "rounds": args.rounds, "chosen": chosen, "cases": cases}
    if args.variants:
        cases.sort(key=lambda case: (case["size"], -case["ratio"]))
        name, title = f"variants_{args.variants[0]}_{kind}", f"variants of {args.variants[0]} against cuBLAS, {kind}"
    else:
        name, title = f"gemm_{kind}", f"fp32 GEMM against cuBLAS, {kind}"
    write(name, title, as_table(cases), data, args.out)
    return 0


def variants(kernels: Kernels, name: str, settings: Sequence[str]) -> Kernels:
    """The kernel called `name` under every combination of ``BM=64,128`` and the like. Those that ptxas or the
    compiler refuses are reported and left out."""
    from tiledsl.errors import CompileError, CompileErrors
    from tiledsl.inspect.loading import parse_consts

    known = {kernel.name: kernel for kernel, _ in kernels.values()}
    if name not in known:
        raise SystemExit(f"no kernel {name!r} in the gallery; there are {', '.join(known)}")
    choices = [[f"{const}={value}" for value in values.split(",")] for const, _, values in map(_split, settings)]
    found: Kernels = {}
    for combination in itertools.product(*choices):
        consts = parse_consts(known[name], list(combination))
        try:
            used = known[name].compile(**consts).resources
        except (AssertionError, CompileError, CompileErrors) as error:
            print(f"  {' '.join(combination)}: left out: {str(error).splitlines()[0]}", flush=True)
            continue
        found[kernel_label(name, consts)] = (known[name], consts)
        spilled = used.spill_stores + used.spill_loads
        print(f"  {' '.join(combination)}: {used.registers} registers, {spilled} bytes spilled", flush=True)
    return found


def _split(setting: str) -> tuple[str, str, str]:
    const, equals, values = setting.partition("=")
    if not equals:
        raise SystemExit(f"--variants: {setting!r} is no CONST=VALUE,...")
    return const, equals, values


def prepare(
    device: Device, kernels: Kernels, size: Size, *, cold: bool
) -> tuple[dict[str, Callable[[int], None]], int]:
    """Operands, and a launcher for cuBLAS and each kernel, whose results have been checked."""
    m, n, k = size
    sets = buffer_sets(4 * (m * k + k * n + m * n), cold=cold)
    a = [device.normal(m, k, seed) for seed in range(sets)]
    b = [device.normal(k, n, 1000 + seed) for seed in range(sets)]
    c = [device.empty(m, n) for _ in range(sets)]

    def cublas(number: int) -> None:
        i = number % sets
        device.matmul(a[i], b[i], c[i])

    def of(kernel: Any, consts: dict[str, Any]) -> Callable[[int], None]:
        def launch(number: int) -> None:
            i = number % sets
            kernel(a[i], b[i], c[i], **consts)

        return launch

    contenders = {"cuBLAS": cublas}
    for label, (kernel, consts) in kernels.items():
        contenders[label] = of(kernel, chosen_consts(kernel.name, consts, size))
    for label, launch in contenders.items():
        c[0][...] = float("nan")
        launch(0)
        share = device.worst_share(c[0], a[0], b[0])
        if not share <= 1:
            raise SystemExit(f"{label} at {m}x{n}x{k} is wrong: {share:.3g} times its error bound")
    return contenders, sets


def summarize(timing: Timing, size: Size, base: str, noted: dict[str, Any]) -> list[dict[str, Any]]:
    """One record for each contender: median time, TFLOP/s, and quartiles of its speed over `base`'s."""
    m, n, k = size
    records: list[dict[str, Any]] = []
    for name in timing.rounds:
        low, middle, high = quartiles(timing.speed_ratios(name, base))
        ms = timing.median(name)
        records.append(
            {
                "kernel": name,
                "size": list(size),
                "ms": round(ms, 6),
                "tflops": round(2e-9 * m * n * k / ms, 3),
                "base": base,
                "ratio": round(middle, 4),
                "ratio_quartiles": [round(low, 4), round(high, 4)],
                **noted,
            }
        )
    return records


def as_table(cases: list[dict[str, Any]]) -> str:
    base = cases[0]["base"]
    rows = [
        (
            case["kernel"],
            "x".join(map(str, case["size"])),
            f"{case['ms']:.4g}",
            f"{case['tflops']:.2f}",
            f"{case['ratio']:.3f}",
            "{:.3f}-{:.3f}".format(*case["ratio_quartiles"]),
            f"{case.get('sm_mhz', 0):.0f}",
            f"{case.get('watts', 0):.0f}",
        )
        for case in cases
    ]
    header = ("kernel", "M x N x K", "ms", "TFLOP/s", f"speed / {base}", "quartiles", "SM MHz", "W")
    return table(header, rows)


if __name__ == "__main__":
    sys.exit(main())
