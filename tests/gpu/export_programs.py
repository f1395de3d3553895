"""What the GPU tests of ``python -m tiledsl export`` do: each function runs in a process of its own.

``python tests/gpu/export_programs.py NAME`` runs one by hand. They need gcc, and cuda.h of a toolkit or of the wheel.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from tiledsl.__main__ import main

ROOT = Path(__file__).parents[2]
EXPORTS = {
    "large tiles": ["--gemm", "4096x4096x4096", "--stored", "NT"],
    "in row order": ["--gemm", "8192x8192x512"],
    "a result of f32": ["--gemm", "2048x4096x512", "--stored", "NT", "--out", "f32"],
    "two axes": [f"{ROOT}/examples/gemm/hopper_tma.py", "--dtype", "D=bf16"],
}
SIZES = ((1000, 768, 520), (64, 128, 64), (1, 8, 8), (333, 1000, 2048))
"""Not those for which kernels are chosen, which do not split k: one binary serves all sizes."""


def _headers() -> Path:
    """The folder of cuda.h."""
    toolkit = Path("/usr/local/cuda/include")
    if (toolkit / "cuda.h").exists():
        return toolkit
    files = metadata.files("nvidia-cuda-runtime") or []
    return next(Path(str(file.locate())).parent for file in files if file.name == "cuda.h")


def _driver() -> str:
    """The driver's library, which this process loads to find it."""
    ctypes.CDLL("libcuda.so.1")
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in lines if "libcuda.so" in line)


def a_program_in_c() -> None:
    """The example is built and run for each export and size; its results are exact."""
    for name, arguments in EXPORTS.items():
        with tempfile.TemporaryDirectory() as folder:
            assert main(["export", *arguments, "-o", folder]) == 0
            program, source = f"{folder}/program", f"{ROOT}/examples/exported_gemm.c"
            flags = ["-std=c11", "-O3", "-Wall", "-Wextra", "-Werror", f"-I{folder}", "-isystem", str(_headers())]
            subprocess.run(["gcc", *flags, source, "-o", program, _driver()], check=True)
            for size in SIZES:
                command = [program, folder, *map(str, size)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                assert done.returncode == 0 and ": 0 of " in done.stdout, f"{name} {size}: {done.stdout}{done.stderr}"
            done = subprocess.run([program, folder, "64", "65", "64"], capture_output=True, text=True, check=False)
            assert done.returncode == 1 and "rows must be multiples of 16 bytes" in done.stderr, (name, done)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("done")
