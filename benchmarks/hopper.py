"""The Hopper kernels against cuBLAS in its fastest layout, by families of shapes. Needs an H200 or H100, and torch.

    python -m benchmarks.hopper
    python -m benchmarks.hopper --only square ladder

Each family is one ``python -m tiledsl bench``: interleaved, checked, operands rotated past L2. Ours are stored along k
(NT), or as STORED says; cuBLAS always has the layout in which it is fastest.
Launches go by CUDA graphs, so that products of a few microseconds are those of the GPU and not of the host.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, write
from tiledsl.inspect.bench import as_table, share_of

__all__ = ["FAMILIES", "main"]

ROOT = Path(__file__).parent.parent
GEMM = "examples/gemm"
ANY = [f"{GEMM}/hopper_gemm.py:gemm"]
LADDER = [
    f"{GEMM}/hopper_tma.py:hopper_tma",
    f"{GEMM}/hopper_ring.py:hopper_ring",
    f"{GEMM}/hopper_roles.py:hopper_roles:BN=128,CONSUMERS=1",
    f"{GEMM}/hopper_roles.py:hopper_roles:BN=256,CONSUMERS=2",
    f"{GEMM}/hopper_persistent.py:hopper_persistent",
    f"{GEMM}/hopper_store.py:hopper_store",
    f"{GEMM}/hopper_pingpong.py:hopper_pingpong",
    *ANY,
]
LLM = "4096x2112x7168 4096x576x7168 4096x24576x1536 4096x32768x512 4096x7168x16384 4096x4096x7168 4096x7168x2048"
RAGGED = "4096x4095x4096 4095 2048x2047x2048 4096x4096x4095 1000 777x1003x519"

FAMILIES: dict[str, tuple[list[str], str, str]] = {
    "square": (ANY, "bf16", "2048 4096 8192 16384"),
    "llm": (ANY, "bf16", LLM),
    "square f16": (ANY, "f16", "2048 4096 8192 16384"),
    "llm f16": (ANY, "f16", LLM),
    "k_sweep": (ANY, "bf16", "8192x8192x128 8192x8192x256 8192x8192x512 8192x8192x1024 8192x8192x4096"),
    "deep_k": (ANY, "bf16", "2048x2048x8192 512x512x16384 128x128x65536"),
    "ragged": (ANY, "bf16", RAGGED),
    "ragged stored": (ANY, "bf16", RAGGED),
    "batched": (ANY, "bf16", "256x128x128x128 64x512x512x512 16x1024x1024x64 16x1024x64x1024"),
    "ladder": (LADDER, "bf16", "2048 4096 8192 8192x8192x512"),
}
"""The kernel, the format, the sizes."""

STORED = {"ragged": "NN", "ragged stored": "best", "batched": "NN"}
"""How our operands are stored, if not NT: NN: in row order; best: in the fastest of the four layouts, found as
cuBLAS's is. For 4096 x 4096 x 4095, for example, operands contiguous along m and n need no copy."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.02, help="per contender and round")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    found: dict[str, Any] = {}
    parts: list[str] = []
    for name in args.only:
        cases = _run(name, args.rounds, args.seconds)
        found[name] = cases
        kernels = dict.fromkeys(c["kernel"] for c in cases if c["kernel"] != c["base"])
        shares = {kernel: share_of(cases, kernel) for kernel in kernels}
        means = "; ".join(f"{kernel} {mean:.3f} (worst {worst:.3f})" for kernel, (mean, worst) in shares.items())
        kept = f"Operands: {STORED.get(name, 'NT')}."
        parts.append(f"### {name} ({FAMILIES[name][1]})\n\n{kept} Of cuBLAS: {means}.\n\n{as_table(cases)}")
        print(f"{name}: {means}", flush=True)
    write("hopper", "Hopper kernels against cuBLAS", "\n\n".join(parts), {"families": found}, args.out)
    return 0


def _run(name: str, rounds: int, seconds: float) -> list[dict[str, Any]]:
    contenders, format, sizes = FAMILIES[name]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cases.json"
        options = ["--format", format, "--graph", "--rounds", str(rounds), "--seconds", str(seconds)]
        options += ["--stored", STORED.get(name, "NT"), "--json", str(file), "--sizes", *sizes.split()]
        command = [sys.executable, "-m", "tiledsl", "bench", *contenders, *options]
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return json.loads(file.read_text())["cases"]


if __name__ == "__main__":
    sys.exit(main())
