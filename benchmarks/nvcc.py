"""The CUDA C++ references of benchmarks/reference: built by nvcc, launched through cuda.bindings."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["CudaKernel", "PackedArguments", "build", "check", "nvcc_path", "nvcc_version"]

REFERENCE = Path(__file__).parent / "reference"


def nvcc_path() -> str:
    """The machine's own nvcc. Raises SystemExit if there is none."""
    found = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if found is None:
        raise SystemExit("this benchmark needs nvcc, on the PATH or in /usr/local/cuda/bin")
    return found


def nvcc_version() -> str:
    """Such as "13.0.88"."""
    text = subprocess.run([nvcc_path(), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"V(\d+\.\d+\.\d+)", text)
    return found[1] if found else "unknown"


def build(name: str, tile: int, arch: str = "sm_90a") -> bytes:
    """The cubin of reference/`name`.cu with tiles of `tile`, as ``nvcc -O3`` makes it."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / f"{name}.cubin"
        source = REFERENCE / f"{name}.cu"
        command = [nvcc_path(), "-O3", f"-arch={arch}", f"-DTILE={tile}", "-cubin", "-o", str(cubin), str(source)]
        subprocess.run(command, check=True)
        return cubin.read_bytes()


def check(result: tuple[Any, ...]) -> Any:
    """The values that a call of cuda.bindings returns after its status; raises on a failure."""
    from cuda.bindings import driver

    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA driver: {status.name}")
    return values[0] if len(values) == 1 else tuple(values)


class PackedArguments:
    """Kernel arguments in the cheapest form for a launch: an array of pointers to the values."""

    def __init__(self, *values: ctypes.c_void_p | ctypes.c_int | ctypes.c_longlong) -> None:
        self._values = values  # keeps what the pointers point to alive
        self._array = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        self.address = ctypes.addressof(self._array)


@dataclass(frozen=True)
class CudaKernel:
    """A loaded kernel ``(A, B, C, M, N, K)`` of T x T threads, one for an element of C."""

    function: Any
    tile: int

    @classmethod
    def load(cls, name: str, tile: int) -> CudaKernel:
        """Build and load into the current context."""
        from cuda.bindings import driver

        module = check(driver.cuModuleLoadData(build(name, tile)))
        return cls(check(driver.cuModuleGetFunction(module, name.encode())), tile)

    def arguments(self, a: int, b: int, c: int, m: int, n: int, k: int) -> PackedArguments:
        return PackedArguments(*map(ctypes.c_void_p, (a, b, c)), *map(ctypes.c_int, (m, n, k)))

    def launcher(self, arguments: PackedArguments, m: int, n: int, stream: int) -> Callable[[], None]:
        """A launch with nothing left to compute: the floor of what any launch from Python costs."""
        from cuda.bindings import driver

        launch, function, tile, success = driver.cuLaunchKernel, self.function, self.tile, driver.CUresult.CUDA_SUCCESS
        columns, rows = -(-n // tile), -(-m // tile)

        def run() -> None:
            (status,) = launch(function, columns, rows, 1, tile, tile, 1, 0, stream, arguments.address, 0)
            if status != success:
                raise RuntimeError(f"CUDA driver: {status.name}")

        return run
