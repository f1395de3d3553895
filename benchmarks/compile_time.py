"""How long a user waits: `import tiledsl`, a cold compile, and one from the disk cache. Needs no GPU.

    python -m benchmarks.compile_time --repeats 7

Compile times are from the call of `compile` to the cubin, in a process that has compiled another kernel
before, so that the libraries are imported; each repeat is a new process with a cache folder of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.report import RESULTS, table, write

__all__ = ["main"]

ROOT = Path(__file__).parent.parent

IMPORT = "import time; t = time.perf_counter(); import tiledsl; print(time.perf_counter() - t)"

COMPILE = """
import json, time
from benchmarks.gallery import chosen_consts, dtype_settings, gallery_kernels, gallery_module
kernels = {format: gallery_kernels(format) for format in ("f32", "bf16")}
mma, _ = kernels["bf16"]["mma_fastest"]
chosen = chosen_consts("mma_fastest", {}, (4096, 4096, 4096), "bf16", arch="sm_90a")
kernels["bf16"] = {
    "mma_fastest bf16": (mma, chosen),
    "without TMA, mma_fastest bf16": (mma, chosen | {"TMA": False}),
    "hopper_fastest bf16": (gallery_module().load(gallery_module().HOPPER[-1]), {}),
}
def seconds(label, format="f32"):
    kernel, consts = kernels[format][label]
    settings = dtype_settings(kernel, format)
    start = time.perf_counter()
    size = len(kernel.compile(arch="sm_90a", **settings, **consts).cubin)
    return time.perf_counter() - start
found = {"first compile of a process (naive)": seconds("naive")}
found |= {label: seconds(label) for label in ("shared_tiled T=16", "shared_tiled T=32", "fastest")}
found |= {label: seconds(label, "bf16") for label in kernels["bf16"]}
print(json.dumps(found))
"""
GOALS = {"cold compile": {"shared_tiled": 250, "mma_fastest": 400, "hopper_fastest": 500}, "from disk cache": {"": 10}}
"""Milliseconds, by state and prefix of the label."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)

    figures: dict[str, list[float]] = {"import tiledsl": [], "import numpy, for comparison": []}
    for _ in range(args.repeats):
        figures["import tiledsl"].append(float(_python(IMPORT)))
        figures["import numpy, for comparison"].append(float(_python(IMPORT.replace("tiledsl", "numpy"))))
    for _ in range(args.repeats):
        with tempfile.TemporaryDirectory() as cache:
            for state in ("cold compile", "from disk cache"):
                for kernel, seconds in json.loads(_python(COMPILE, cache)).items():
                    figures.setdefault(f"{kernel}, {state}", []).append(seconds)

    rows: list[tuple[str, str, str, str, str]] = []
    for label, seconds in figures.items():
        goal = _goal(label)
        ms = [1e3 * s for s in seconds]
        rows.append((label, f"{statistics.median(ms):.1f}", f"{min(ms):.1f}", f"{max(ms):.1f}", goal))
    text = table(("ms", "median", "least", "most", "goal"), rows)
    data = {"seconds": {label: [round(s, 6) for s in values] for label, values in figures.items()}}
    write("compile_time", "Import and compile times", text, data, args.out)
    return 0


def _goal(label: str) -> str:
    if label == "import tiledsl":
        return "<= 200"
    goals = GOALS.get(label.rpartition(", ")[2], {})
    return next((f"<= {ms}" for kernel, ms in goals.items() if label.startswith(kernel) and "first" not in label), "")


def _python(script: str, cache: str = "") -> str:
    """The last line that a new interpreter prints for `script`."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if cache:
        env["TILEDSL_CACHE_DIR"] = cache
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout.strip().splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main())
