"""What the GPU tests of the tuner do: each function runs in a process of its own.

``python tests/gpu/tune_programs.py NAME`` runs one by hand.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import choice_times
from benchmarks.choice_fit import Times, load
from tiledsl.__main__ import main

ROOT = Path(__file__).parents[2]
FAULTS = """\
from tiledsl import Const, Global, grid, threads, f32, tile_kernel
from tiledsl.dims import K, M, N

SPACE = {"faulty": {"HOW": ("right", "wrong", "outside", "endless", "again")}}


@tile_kernel
def faulty(A: Global[f32, M, K], B: Global[f32, K, N], C: Global[f32, M, N], *, HOW: Const[str] = "right"):
    m, n = grid(M, N)
    threads(1)
    acc = f32(0)
    for k in range(K):
        acc += A[m, k] * B[k, n]
    if HOW == "endless":
        for again in range(1 << 30):
            for more in range(1 << 30):
                C.atomic_add(m, n, f32(1))
    C[m + (1 << 22 if HOW == "outside" else 0), n] = acc if HOW != "wrong" else acc + 1
"""


def _records(folder: Path, name: str) -> dict[str, str]:
    lines = (folder / name).read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return {" ".join(f"{n}={v}" for n, v in each["consts"].items()): each["result"]["outcome"] for each in found}


def the_command() -> None:
    """A kernel of the gallery: all is timed, and again nothing."""
    folder = Path(tempfile.mkdtemp())
    kernel = f"{ROOT}/examples/gemm/shared_tiled.py"
    given = ["tune", kernel, "T=8,16,32,33", "--sizes", "512", "300x200x100", "--records", str(folder / "r.jsonl")]
    assert main(given) == 0
    outcomes = _records(folder, "r.jsonl")
    assert outcomes == {"T=8": "timed", "T=16": "timed", "T=32": "timed", "T=33": "refused"}, outcomes
    size = (folder / "r.jsonl").stat().st_size
    assert main(given) == 0 and (folder / "r.jsonl").stat().st_size == size


def faults() -> None:
    """What hangs, crashes or is wrong is a record, and what comes after it is timed."""
    folder = Path(tempfile.mkdtemp())
    (folder / "faulty.py").write_text(FAULTS)
    given = ["tune", str(folder / "faulty.py"), "--sizes", "256", "--limit", "20", "--processes", "1", "--no-graph"]
    assert main([*given, "--records", str(folder / "r.jsonl"), "--finalists", "2"]) == 0
    outcomes = _records(folder, "r.jsonl")
    expected = {"right": "timed", "wrong": "wrong", "outside": "failed", "endless": "hung", "again": "timed"}
    assert outcomes == {f"HOW={how}": outcome for how, outcome in expected.items()}, outcomes


def the_fastest_kernel_from_carried_builds() -> None:
    """Built into a folder, then timed by a process that cannot compile."""
    folder = Path(tempfile.mkdtemp())
    kernel = f"{ROOT}/tiledsl/gemm/hopper.py:hopper_fastest"
    given = ["tune", kernel, "BM=128", "BN=128,192", "STAGES=4", "--kernels", str(folder / "k"), "--format", "bf16"]
    given += ["--stored", "NT", "--sizes", "2048", "--records", str(folder / "r.jsonl")]
    assert main([*given, "--build", "sm_90a"]) == 0
    os.environ |= {"TILEDSL_CACHE": "0", "TILEDSL_PTXAS": "/missing"}
    assert main(given) == 0
    assert set(_records(folder, "r.jsonl").values()) == {"timed"}


def times_for_the_fit() -> None:
    """`benchmarks.choice_times` writes what `benchmarks.choice_fit` reads."""
    folder = Path(tempfile.mkdtemp())
    given = ["--seed", "3", "--families", "small", "deep", "--count", "1", "--variants", "4", "--out", str(folder)]
    assert choice_times.main(given) == 0
    times = Times(load(folder / "choice_times.jsonl"))
    assert len(times.shapes) == 4 and all(shape.cublas for shape in times.shapes)
    # Tests may share the GPU: a wrong unit would be off by 1000, and the deep shape takes five times as long.
    off = times.by_model() - times.measured
    assert (abs(off[np.isfinite(off)]) < math.log(10)).all(), off
    small, deep = (min(us for us, _ in shape.times) for shape in times.shapes[::2])
    assert deep > small, (small, deep)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("done")
