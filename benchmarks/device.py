"""The GPU side of the harness: arrays, cuBLAS and events, through torch or CuPy, whichever is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Cupy", "Device", "Torch", "open_device"]


class Device(Protocol):
    """What the harness needs of a framework. Arrays are fp32 and row-major unless stated."""

    name: str

    def normal(self, rows: int, columns: int, seed: int) -> Any: ...
    def empty(self, rows: int, columns: int) -> Any: ...
    def matmul(self, a: Any, b: Any, out: Any) -> None:
        """cuBLAS in true fp32: TF32 is off."""
        ...

    def worst_share(self, out: Any, a: Any, b: Any) -> float:
        """The largest share of its error bound that any element of `out` uses against float64 (<= 1: right)."""
        ...

    def pointer(self, array: Any) -> int: ...
    def stream(self) -> int: ...
    def synchronize(self) -> None: ...
    def event(self) -> Any: ...
    def record(self, event: Any) -> None: ...
    def milliseconds(self, start: Any, end: Any) -> float: ...


def _bound_share(out: Any, a: Any, b: Any, double: Callable[[Any], Any], absolute: Callable[[Any], Any]) -> Any:
    """|out - ref| over u |ref| + E(K) |a||b|, for a chain of K fp32 multiply-adds in any order."""
    depth, unit = a.shape[1], 2.0**-24
    exact = double(a) @ double(b)
    terms = absolute(double(a)) @ absolute(double(b))
    bound = unit * absolute(exact) + depth * unit / (1 - depth * unit) * terms + 2.0**-149
    return absolute(double(out) - exact) / bound


class Torch:
    """PyTorch's allocator, its current stream, and cuBLAS behind torch.mm."""

    name = "torch"

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no CUDA device")
        self._torch = torch
        torch.backends.cuda.matmul.allow_tf32 = False

    def normal(self, rows: int, columns: int, seed: int) -> Any:
        generator = self._torch.Generator("cuda").manual_seed(seed)
        return self._torch.randn(rows, columns, device="cuda", generator=generator)

    def empty(self, rows: int, columns: int) -> Any:
        return self._torch.full((rows, columns), float("nan"), device="cuda")

    def matmul(self, a: Any, b: Any, out: Any) -> None:
        self._torch.mm(a, b, out=out)

    def worst_share(self, out: Any, a: Any, b: Any) -> float:
        share = _bound_share(out, a, b, lambda x: x.double(), self._torch.abs)
        return float(self._torch.nan_to_num(share, nan=float("inf")).max())

    def pointer(self, array: Any) -> int:
        return array.data_ptr()

    def stream(self) -> int:
        return self._torch.cuda.current_stream().cuda_stream

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()

    def event(self) -> Any:
        return self._torch.cuda.Event(enable_timing=True)

    def record(self, event: Any) -> None:
        event.record()

    def milliseconds(self, start: Any, end: Any) -> float:
        return start.elapsed_time(end)


class Cupy:
    """CuPy's allocator, its current stream, and cuBLAS behind cupy.matmul."""

    name = "cupy"

    def __init__(self) -> None:
        import cupy

        if not cupy.cuda.is_available():
            raise RuntimeError("CuPy sees no CUDA device")
        self._cupy = cupy

    def normal(self, rows: int, columns: int, seed: int) -> Any:
        return self._cupy.random.default_rng(seed).standard_normal((rows, columns), dtype="float32")

    def empty(self, rows: int, columns: int) -> Any:
        return self._cupy.full((rows, columns), float("nan"), "float32")

    def matmul(self, a: Any, b: Any, out: Any) -> None:
        self._cupy.matmul(a, b, out=out)

    def worst_share(self, out: Any, a: Any, b: Any) -> float:
        share = _bound_share(out, a, b, lambda x: x.astype("float64"), self._cupy.abs)
        return float(self._cupy.nan_to_num(share, nan=float("inf")).max())

    def pointer(self, array: Any) -> int:
        return array.data.ptr

    def stream(self) -> int:
        return self._cupy.cuda.get_current_stream().ptr

    def synchronize(self) -> None:
        self._cupy.cuda.runtime.deviceSynchronize()

    def event(self) -> Any:
        return self._cupy.cuda.Event()

    def record(self, event: Any) -> None:
        event.record()

    def milliseconds(self, start: Any, end: Any) -> float:
        return self._cupy.cuda.get_elapsed_time(start, end)


def open_device() -> Device:
    """torch if it is installed and sees a GPU, else CuPy. Raises SystemExit that says what is missing."""
    reasons: list[str] = []
    for kind in (Torch, Cupy):
        try:
            return kind()
        except (ImportError, RuntimeError) as error:
            reasons.append(f"{kind.name}: {error}")
    raise SystemExit("this benchmark needs an NVIDIA GPU, and torch or CuPy for cuBLAS:\n  " + "\n  ".join(reasons))
