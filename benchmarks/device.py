"""The GPU side of the harness: arrays, cuBLAS and events, through torch or CuPy, whichever is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from benchmarks.gallery import reference

__all__ = ["Cupy", "Device", "Torch", "open_device"]


class Device(Protocol):
    """What the harness needs of a framework. Arrays are row-major unless stated, of the dtypes of `format`, one of
    `reference.FORMATS`."""

    name: str
    format: str
    itemsizes: tuple[int, int]
    """Bytes of an element of an operand, and of the result."""
    blank: float
    """What a result holds that nobody has written."""

    def normal(self, rows: int, columns: int, seed: int) -> Any:
        """An operand: random normal, integers of all values."""
        ...

    def transposed(self, array: Any) -> Any:
        """A view."""
        ...

    def empty(self, rows: int, columns: int) -> Any:
        """A result that nobody has written."""
        ...

    def matmul(self, a: Any, b: Any, out: Any) -> None:
        """cuBLAS in `format`; in "f32" TF32 is off."""
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


def _bound_share(
    format: str, out: Any, a: Any, b: Any, double: Callable[[Any], Any], absolute: Callable[[Any], Any]
) -> Any:
    """|out - ref| over the bound of `reference.error_bound`; any error of an integer is too much."""
    kind = reference().FORMATS[format]
    exact = double(a) @ double(b)
    terms = absolute(double(a)) @ absolute(double(b))
    bound = kind.roundoff * absolute(exact) + kind.chain(a.shape[1]) * terms + 2.0**-149
    return absolute(double(out) - exact) / bound


class Torch:
    """PyTorch's allocator, its current stream, and cuBLAS behind torch.mm."""

    name = "torch"

    def __init__(self, format: str = "f32") -> None:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no CUDA device")
        self._torch, self.format = torch, format
        torch.backends.cuda.matmul.allow_tf32 = format == "tf32"
        names = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16"}
        names |= {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "i8": "int8", "u8": "uint8", "i32": "int32"}
        kind = reference().FORMATS[format]
        self._operand, self._result = (getattr(torch, names[d]) for d in (kind.operand, kind.result))
        self._one = torch.ones((), device="cuda")
        self.itemsizes = (self._operand.itemsize, self._result.itemsize)
        self.blank = -1 if self._result == torch.int32 else float("nan")

    def normal(self, rows: int, columns: int, seed: int) -> Any:
        torch = self._torch
        generator = torch.Generator("cuda").manual_seed(seed)
        if self.format in ("i8", "u8"):
            info = torch.iinfo(self._operand)
            shape = (rows, columns)
            return torch.randint(info.min, info.max + 1, shape, dtype=self._operand, device="cuda", generator=generator)
        drawn = torch.float64 if self.format == "f64" else torch.float32
        return torch.randn(rows, columns, device="cuda", dtype=drawn, generator=generator).to(self._operand)

    def transposed(self, array: Any) -> Any:
        return array.t()

    def empty(self, rows: int, columns: int) -> Any:
        return self._torch.full((rows, columns), self.blank, device="cuda", dtype=self._result)

    def matmul(self, a: Any, b: Any, out: Any) -> None:
        if self.format in ("e4m3", "e5m2"):
            self._torch._scaled_mm(a, b, self._one, self._one, out_dtype=out.dtype, use_fast_accum=True, out=out)
        elif self.format in ("i8", "u8"):
            self._torch._int_mm(a, b, out=out)
        else:
            self._torch.mm(a, b, out=out)

    def worst_share(self, out: Any, a: Any, b: Any) -> float:
        share = _bound_share(self.format, out, a, b, lambda x: x.to(self._torch.float64), self._torch.abs)
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

    def __init__(self, format: str = "f32") -> None:
        import cupy

        if not cupy.cuda.is_available():
            raise RuntimeError("CuPy sees no CUDA device")
        if format not in ("f32", "f64"):
            raise RuntimeError(f"CuPy multiplies f32 and f64 here, not {format}")
        self._cupy, self.format = cupy, format
        self._dtype = {"f32": "float32", "f64": "float64"}[format]
        self.itemsizes = (4, 4) if format == "f32" else (8, 8)
        self.blank = float("nan")

    def normal(self, rows: int, columns: int, seed: int) -> Any:
        return self._cupy.random.default_rng(seed).standard_normal((rows, columns), dtype=self._dtype)

    def transposed(self, array: Any) -> Any:
        return array.T

    def empty(self, rows: int, columns: int) -> Any:
        return self._cupy.full((rows, columns), self.blank, self._dtype)

    def matmul(self, a: Any, b: Any, out: Any) -> None:
        self._cupy.matmul(a, b, out=out)

    def worst_share(self, out: Any, a: Any, b: Any) -> float:
        share = _bound_share(self.format, out, a, b, lambda x: x.astype("float64"), self._cupy.abs)
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


def open_device(format: str = "f32") -> Device:
    """torch if it is installed and sees a GPU, else CuPy. Raises SystemExit that says what is missing."""
    reasons: list[str] = []
    for kind in (Torch, Cupy):
        try:
            return kind(format)
        except (ImportError, RuntimeError) as error:
            reasons.append(f"{kind.name}: {error}")
    raise SystemExit("this benchmark needs an NVIDIA GPU, and torch or CuPy for cuBLAS:\n  " + "\n  ".join(reasons))
