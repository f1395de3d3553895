"""One checkout's `gemm`, which benchmarks/compare_library.py runs as a process of its own.

It imports tiledsl from the folder in its first argument, which may be an old commit, and else only torch: so it uses
nothing of the project but `gemm`, and `warmup` where that exists. Requests and answers are lines of JSON on the
standard input and output.
"""

from __future__ import annotations

import json
import sys
import traceback
import zlib
from pathlib import Path
from typing import Any

GRAPHED = 24
"""Launches of a graph, at least."""
MOST_REPLAYS = 200


class Worker:
    def __init__(self, folder: Path) -> None:
        import torch

        import tiledsl
        from tiledsl.gemm import gemm

        found = Path(tiledsl.__file__).resolve()
        if folder.resolve() not in found.parents:
            raise RuntimeError(f"tiledsl was imported from {found}, not from {folder}")
        self.torch, self.gemm = torch, gemm
        self.graph: Any = None
        self.each = 0.0

    def warm(self, shapes: list[list[int]], format: str, stored: str) -> dict[str, Any]:
        """Compile for all shapes, in several processes where the commit can."""
        try:
            from tiledsl.gemm import warmup
        except ImportError:
            return {"warm": False}
        warmup(shapes, format, layouts=(stored,))
        return {"warm": True}

    def prepare(self, shape: list[int], format: str, stored: str, sets: int, seed: int) -> dict[str, Any]:
        """Make operands, check a product, and capture a graph of launches that go round all operands."""
        torch, dtype = self.torch, {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[format]
        *batch, m, n, k = shape
        generator = torch.Generator("cuda").manual_seed(seed)

        def made(rows: int, columns: int, order: str) -> Any:
            stored_as = (*batch, rows, columns) if order == "N" else (*batch, columns, rows)
            drawn = torch.randn(stored_as, device="cuda", generator=generator).to(getattr(torch, dtype))
            return drawn if order == "N" else drawn.mT

        self.graph = None
        self.operands = [(made(m, k, stored[0]), made(k, n, stored[1])) for _ in range(sets)]
        A, B = self.operands[0]
        C = self.result = torch.full((*batch, m, n), float("nan"), device="cuda", dtype=A.dtype)
        self.gemm(A, B, C)
        torch.backends.cuda.matmul.allow_tf32 = False
        reference = (A @ B).float()
        # Both round sums in f32: they differ by an ulp of the result, and by what sums of k terms are off.
        bound = (2.0**-7 if C.dtype == torch.bfloat16 else 2.0**-10) * reference.abs() + 2e-3 * k**0.5
        wrong = int((~((C.float() - reference).abs() <= bound)).sum())
        bits = zlib.crc32(C.contiguous().view(torch.uint8).cpu().numpy().tobytes())
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        self.count = max(GRAPHED, sets)
        with torch.cuda.graph(graph):
            for number in range(self.count):
                self.gemm(*self.operands[number % sets], C)
        self.graph = graph
        self._replayed(2)
        self.each = self._replayed(3)
        return {"wrong": wrong, "bits": bits, "milliseconds": self.each}

    def time(self, seconds: float) -> dict[str, Any]:
        """Milliseconds of a launch, over about so many seconds."""
        self._replayed(1)  # the first launch after a rest finds everything asleep
        replays = round(seconds * 1e3 / (self.each * self.count))
        return {"milliseconds": self._replayed(max(1, min(MOST_REPLAYS, replays)))}

    def _replayed(self, times: int) -> float:
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            self.graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / times / self.count


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # what others print does not come between the answers
    worker: Worker | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            worker = worker or Worker(Path(sys.argv[1]))
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
