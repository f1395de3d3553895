"""Every benchmark of one GPU in one command, the tables last; about fifteen minutes.

python -m benchmarks.all            all
python -m benchmarks.all --quick    fewer rounds and smaller sizes
python -m benchmarks.all --cpu      those that need no GPU

`benchmarks.distributed` needs several GPUs: torchrun starts it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.report import RESULTS

__all__ = ["main"]

ROOT = Path(__file__).parent.parent

Job = tuple[str, list[str], list[str]]
"""A module, its arguments, and those of a quick run."""

CPU: list[Job] = [
    ("compile_time", ["--repeats", "7"], ["--repeats", "3"]),
    ("emulator_speed", ["--repeats", "3"], ["--repeats", "1"]),
    ("mma_sass", [], []),
    ("static_report", [], ["--targets", "sm_90a"]),
]
SMALL = ["--rounds", "5", "--sizes", "1024", "777x1003x519"]
GPU: list[Job] = [
    ("against_nvcc", ["--rounds", "15"], ["--rounds", "5", "--size", "2048"]),
    ("launch_overhead", ["--rounds", "40"], ["--rounds", "10"]),
    ("ffma_orders", ["--time"], ["--time", "--only", "shared 16x8", "--rounds", "5"]),
    ("tensor_core_probe", [], []),
    ("wgmma_wait", [], ["--launches", "50"]),
    ("mma_limits", [], ["--rounds", "3"]),
    ("gemm", ["--rounds", "7"], SMALL),
    ("hopper", [], ["--only", "square", "ladder", "--rounds", "3"]),
    ("hopper_limits", [], ["--sizes", "4096"]),
    ("torch_linear", ["--seed", "11"], ["--seed", "11", "--count", "1", "--rounds", "3"]),
    ("grouped_scales", [], ["--rounds", "3"]),
    ("grouped", ["--seed", "1", "--count", "4"], ["--seed", "1", "--count", "1", "--rounds", "3"]),
    *(("gemm", ["--format", f], ["--format", f, *SMALL]) for f in ("bf16", "f16", "tf32", "e4m3", "i8", "f64")),
]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cpu", action="store_true", help="only the benchmarks that need no GPU")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    outputs: list[str] = []
    failed: list[str] = []
    for module, full, quick in CPU if args.cpu else GPU + CPU:
        start = time.perf_counter()
        given = quick if args.quick else full
        name = " ".join([module, *given])
        command = [sys.executable, "-m", f"benchmarks.{module}", *given, "--out", str(args.out)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        print(f"{name}: {'failed' if done.returncode else 'done'} in {time.perf_counter() - start:.0f} s", flush=True)
        outputs.append(done.stdout + (done.stderr if done.returncode else ""))
        if done.returncode:
            failed.append(name)
    print("\n" + "\n".join(outputs))
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
