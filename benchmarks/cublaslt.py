"""cuBLASLt by the algorithms that its heuristics propose, as a contender of benchmarks: reference/cublaslt.cpp, which
nvcc builds.

cuBLAS, which torch calls, takes the first that the heuristics propose for the layout it is given. The fastest of many,
each timed, in the fastest layout is the most that a user of the library gets without kernels of one's own.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.nvcc import REFERENCE, nvcc_path
from tiledsl.inspect.contenders import LAYOUTS, Launch, Operands
from tiledsl.inspect.timing import interleave

__all__ = ["CUBLASLT", "CublasLt"]

CUBLASLT = "cuBLASLt"
ASKED, WORKSPACE = 64, 64 << 20
"""Algorithms of a layout, and bytes that they may use."""
FINALISTS = 6
"""The fastest at first sight are timed again, by turns, after rests."""


class CublasLt:
    """The library that torch has loaded, with a workspace."""

    def __init__(self) -> None:
        import torch  # pyright: ignore[reportMissingImports] - no dependency

        self._torch: Any = torch
        one = torch.ones(16, 16, device="cuda", dtype=torch.bfloat16)
        torch.mm(one, one)
        ctypes.CDLL(_loaded("libcublasLt.so"), ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(str(_build()))
        self._library.lt_open.restype = ctypes.c_void_p
        self._workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda")

    def fastest(self, operands: Operands, graphed: int) -> tuple[str, Launch]:
        """Layout and number of the fastest algorithm, and its launcher, whose result is right. graphed: see
        `interleave`."""
        device, found = operands.device, dict[str, tuple[float, Launch]]()
        for layout in LAYOUTS:
            for number, launch in enumerate(self._launches(operands, layout)):
                timing = interleave(device, {"": launch}, rounds=1, seconds=0, graphed=graphed)
                found[f"{layout} {number}"] = timing.median(""), launch
        if not found:
            raise SystemExit(f"cuBLASLt takes no product of {operands.size} in {device.format}")
        names = sorted(found, key=lambda name: found[name][0])[:FINALISTS]
        finalists = {name: found[name][1] for name in names}
        timing = interleave(device, finalists, rounds=3, seconds=0.004, rest=0.006, graphed=graphed)
        best = min(names, key=timing.median)
        operands.check(f"cuBLASLt {best}", finalists[best])
        return f"{best} of {len(found)}", finalists[best]

    def _launches(self, operands: Operands, layout: str) -> Iterator[Launch]:
        """One launcher for each algorithm that the heuristics propose; none if they know none."""
        size, count = operands.size, ctypes.c_int()
        sizes = (ctypes.c_int64(x) for x in (size.m, size.n, size.k))
        format, flags = operands.device.format.encode(), (int(order == "T") for order in layout)
        workspace = ctypes.c_size_t(WORKSPACE)
        made = self._library.lt_open(
            format, *sizes, max(size.batch, 1), *flags, workspace, ASKED, ctypes.byref(count)
        )  # fmt: skip
        if not made:
            return
        product = _Product(self._library, made)
        arrays = zip(*operands.stored(layout), operands.results, strict=True)
        sets = [tuple(ctypes.c_void_p(x.data_ptr()) for x in each) for each in arrays]
        for number in range(count.value):
            launch = self._launcher(product, number, sets)
            try:
                launch(0)  # some are proposed, and then refused
            except RuntimeError:
                continue
            yield launch

    def _launcher(self, product: _Product, number: int, sets: list[tuple[ctypes.c_void_p, ...]]) -> Launch:
        torch, run, count = self._torch, self._library.lt_run, len(sets)
        workspace, stream_of = ctypes.c_void_p(self._workspace.data_ptr()), torch.cuda.current_stream

        def launch(which: int) -> None:
            stream = ctypes.c_void_p(stream_of().cuda_stream)
            status = run(product.pointer, number, *sets[which % count], workspace, stream)
            if status:
                raise RuntimeError(f"cublasLtMatmul: status {status}")

        return launch


class _Product:
    """What `lt_open` made, for as long as a launcher needs it."""

    def __init__(self, library: ctypes.CDLL, made: int) -> None:
        self.pointer, self._close = ctypes.c_void_p(made), library.lt_close

    def __del__(self) -> None:
        self._close(self.pointer)


def _build() -> Path:
    """The program as a library. What it calls is that of torch, which is there already."""
    folder = Path(tempfile.mkdtemp())
    made, source = folder / "cublaslt.so", REFERENCE / "cublaslt.cpp"
    command = [nvcc_path(), "-O2", "-shared", "-Xcompiler", "-fPIC", *_headers(), "-o", str(made), str(source)]
    subprocess.run(command, check=True)
    return made


def _headers() -> list[str]:
    """Beside nvcc, or of the package of cuBLAS that torch uses."""
    beside = Path(nvcc_path()).resolve().parents[1] / "include"
    if (beside / "cublasLt.h").is_file():
        return []
    package = Path(_loaded("libcublasLt.so")).parents[1] / "include"
    if not (package / "cublasLt.h").is_file():
        raise SystemExit(f"cublasLt.h is neither in {beside} nor in {package}")
    return ["-I", str(package)]


def _loaded(name: str) -> str:
    """The path of a library of this process. Raises SystemExit."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if name in path:
            return f"/{path}"
    raise SystemExit(f"torch has not loaded {name}")
