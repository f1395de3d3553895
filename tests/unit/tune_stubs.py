"""Stand-ins for a GPU in the tuner's processes, which find them by their names."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tiledsl.errors import DeviceError


class StubDevice:
    """NumPy arrays, on which kernels run by the emulator, and a clock that the launches move by themselves."""

    format, itemsizes, blank = "f32", (4, 4), float("nan")

    def normal(self, rows: int, columns: int, seed: int, batch: int = 0) -> Any:
        shape = (batch, rows, columns) if batch else (rows, columns)
        return np.random.default_rng(seed).standard_normal(shape, np.float32)

    def transposed(self, array: Any) -> Any:
        return array.swapaxes(-1, -2)

    def restored(self, array: Any) -> Any:
        return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)

    def empty(self, rows: int, columns: int, batch: int = 0) -> Any:
        return np.full((batch, rows, columns) if batch else (rows, columns), self.blank, np.float32)

    def matmul(self, a: Any, b: Any, out: Any) -> None:
        np.matmul(a, b, out=out)

    def worst_share(self, out: Any, a: Any, b: Any) -> float:
        share = np.abs(out - a.astype(np.float64) @ b) / 1e-4
        return float(np.nan_to_num(share, nan=np.inf).max())

    def graphed(self, launch: Callable[[int], None], count: int) -> Callable[[int], None]:
        return lambda number: [launch(i) for i in range(count)] and None

    def synchronize(self) -> None: ...

    def event(self) -> list[float]:
        return [0.0]

    def record(self, event: list[float]) -> None:
        event[0] = time.perf_counter()

    def milliseconds(self, start: list[float], end: list[float]) -> float:
        return 1e3 * (end[0] - start[0])


def open_stub(format: str, name: str = "stub GPU") -> Any:
    """Instead of `products.open_gpu`."""
    return name, "sm_90a", StubDevice()


def no_gpu(format: str) -> Any:
    raise DeviceError("there is no GPU")


def open_fake_builder() -> Any:
    """A job is what becomes of a candidate."""

    def build(job: Any) -> Any:
        how, value = job
        if how == "refuse":
            return {"outcome": "refused", "reason": value}
        if how == "crash in the compiler":
            os.abort()
        return {"outcome": "built", "registers": 32}

    return None, build


def open_fake_timer(log: str = "") -> Any:
    if log:
        with open(log, "a") as out:
            out.write(f"{os.getpid()}\n")

    def timed(job: Any) -> Any:
        how, value = job
        if how == "hang":
            time.sleep(600)
        if how == "crash":
            print("some last words", flush=True)
            os.abort()
        if how == "raise":
            raise ValueError(value)
        return {"outcome": "timed", "us": value}

    return {"device": "fake"}, timed


def open_never() -> Any:
    os._exit(7)
