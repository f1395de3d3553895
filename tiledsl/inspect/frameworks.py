"""What a benchmark needs of torch or CuPy, whichever is there: arrays, cuBLAS and events."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

from tiledsl.errors import DeviceError, TileError
from tiledsl.measure import PRODUCTS, Product

__all__ = ["Cupy", "Device", "Torch", "open_device"]

DTYPES = {
    "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2", "i8": "int8", "u8": "uint8", "i32": "int32",
}  # fmt: skip


class Device(Protocol):
    """Arrays are row-major unless stated, of the dtypes of `format`, one of `measure.PRODUCTS`."""

    name: str
    format: str
    itemsizes: tuple[int, int]
    """Bytes of an element of an operand, and of the result."""
    blank: float
    """What a result holds that nobody has written."""

    def normal(self, rows: int, columns: int, seed: int, batch: int = 0) -> Any:
        """An operand: random normal, integers of all values. `batch`: that many of them, along a first axis."""
        ...

    def transposed(self, array: Any) -> Any:
        """A view with the last two axes exchanged."""
        ...

    def restored(self, array: Any) -> Any:
        """The same elements, stored with the last two axes in the other order."""
        ...

    def empty(self, rows: int, columns: int, batch: int = 0) -> Any:
        """A result that nobody has written."""
        ...

    def matmul(self, a: Any, b: Any, out: Any) -> None:
        """cuBLAS in `format`; in "f32" TF32 is off."""
        ...

    def graphed(self, launch: Callable[[int], None], count: int) -> Callable[[int], None]:
        """``replay(number)``: `count` launches, numbered from 0 on, by one CUDA graph: none waits for the host."""
        ...

    def worst_share(self, out: Any, a: Any, b: Any) -> float:
        """The largest share of its error bound that any element of `out` uses against float64 (<= 1: right)."""
        ...

    def copy_rate(self) -> float:
        """Bytes a second that a copy from device memory to device memory reads and writes, together."""
        ...

    def pointer(self, array: Any) -> int: ...
    def stream(self) -> int: ...
    def synchronize(self) -> None: ...
    def event(self) -> Any: ...
    def record(self, event: Any) -> None: ...
    def milliseconds(self, start: Any, end: Any) -> float: ...


def _bound_share(
    product: Product, out: Any, a: Any, b: Any, double: Callable[[Any], Any], absolute: Callable[[Any], Any]
) -> Any:
    """|out - ref| over its bound, that of `Product`; any error of an integer is too much."""
    exact = double(a) @ double(b)
    terms = absolute(double(a)) @ absolute(double(b))
    bound = product.roundoff * absolute(exact) + product.chain(a.shape[-1]) * terms + 2.0**-149
    return absolute(double(out) - exact) / bound


def _copy_rate(device: Device, copy: Callable[[], None], size: int) -> float:
    """The best of a few copies of `size` bytes."""
    taken: list[float] = []
    for _ in range(8):
        start, end = device.event(), device.event()
        device.record(start)
        copy()
        device.record(end)
        device.synchronize()
        taken.append(device.milliseconds(start, end) / 1e3)
    return 2 * size / min(taken)


COPIED = 1 << 30
"""Bytes of the copy that measures the memory: far more than L2 holds."""


class Torch:
    """PyTorch's allocator, its current stream, and cuBLAS behind torch.mm."""

    name = "torch"

    def __init__(self, format: str = "f32") -> None:
        # Not an import statement: torch is no dependency.
        torch: Any = importlib.import_module("torch")
        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no CUDA device")
        self._torch, self.format = torch, format
        torch.backends.cuda.matmul.allow_tf32 = format == "tf32"
        # Parts of a sum stay in f32, as a kernel's do: else cuBLAS at 777 x 1003 x 519 in bf16 is 22 bounds off.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        kind = PRODUCTS[format]
        self._operand, self._result = (getattr(torch, DTYPES[d]) for d in (kind.operand, kind.result))
        self._one = torch.ones((), device="cuda")
        self.itemsizes = (self._operand.itemsize, self._result.itemsize)
        self.blank = -1 if self._result == torch.int32 else float("nan")

    def normal(self, rows: int, columns: int, seed: int, batch: int = 0) -> Any:
        torch = self._torch
        shape = (batch, rows, columns) if batch else (rows, columns)
        generator = torch.Generator("cuda").manual_seed(seed)
        if self.format in ("i8", "u8"):
            info = torch.iinfo(self._operand)
            return torch.randint(info.min, info.max + 1, shape, dtype=self._operand, device="cuda", generator=generator)
        drawn = torch.float64 if self.format == "f64" else torch.float32
        return torch.randn(shape, device="cuda", dtype=drawn, generator=generator).to(self._operand)

    def transposed(self, array: Any) -> Any:
        return array.mT

    def restored(self, array: Any) -> Any:
        return array.mT.contiguous().mT

    def empty(self, rows: int, columns: int, batch: int = 0) -> Any:
        shape = (batch, rows, columns) if batch else (rows, columns)
        return self._torch.full(shape, self.blank, device="cuda", dtype=self._result)

    def matmul(self, a: Any, b: Any, out: Any) -> None:
        if self.format in ("e4m3", "e5m2"):
            self._torch._scaled_mm(a, b, self._one, self._one, out_dtype=out.dtype, use_fast_accum=True, out=out)
        elif self.format in ("i8", "u8"):
            self._torch._int_mm(a, b, out=out)
        elif a.dim() == 3:
            self._torch.bmm(a, b, out=out)
        else:
            self._torch.mm(a, b, out=out)

    def worst_share(self, out: Any, a: Any, b: Any) -> float:
        share = _bound_share(PRODUCTS[self.format], out, a, b, lambda x: x.to(self._torch.float64), self._torch.abs)
        return float(self._torch.nan_to_num(share, nan=float("inf")).max())

    def copy_rate(self) -> float:
        source, target = (self._torch.zeros(COPIED, device="cuda", dtype=self._torch.uint8) for _ in range(2))
        return _copy_rate(self, lambda: target.copy_(source), COPIED)

    def graphed(self, launch: Callable[[int], None], count: int) -> Callable[[int], None]:
        graph = self._torch.cuda.CUDAGraph()
        self._torch.cuda.synchronize()
        with self._torch.cuda.graph(graph):
            for number in range(count):
                launch(number)
        return lambda number: graph.replay()

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
        cupy: Any = importlib.import_module("cupy")
        if not cupy.cuda.is_available():
            raise RuntimeError("CuPy sees no CUDA device")
        if format not in ("f32", "f64", "f16"):
            raise RuntimeError(f"CuPy multiplies f32, f64 and f16 here, not {format}")
        self._cupy, self.format = cupy, format
        self._dtype = DTYPES[format]
        size = int(cupy.dtype(self._dtype).itemsize)
        self.itemsizes = (size, size)
        self.blank = float("nan")

    def normal(self, rows: int, columns: int, seed: int, batch: int = 0) -> Any:
        shape = (batch, rows, columns) if batch else (rows, columns)
        drawn = "float64" if self.format == "f64" else "float32"
        return self._cupy.random.default_rng(seed).standard_normal(shape, dtype=drawn).astype(self._dtype, copy=False)

    def transposed(self, array: Any) -> Any:
        return array.swapaxes(-1, -2)

    def restored(self, array: Any) -> Any:
        return self._cupy.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)

    def empty(self, rows: int, columns: int, batch: int = 0) -> Any:
        return self._cupy.full((batch, rows, columns) if batch else (rows, columns), self.blank, self._dtype)

    def matmul(self, a: Any, b: Any, out: Any) -> None:
        self._cupy.matmul(a, b, out=out)

    def worst_share(self, out: Any, a: Any, b: Any) -> float:
        share = _bound_share(PRODUCTS[self.format], out, a, b, lambda x: x.astype("float64"), self._cupy.abs)
        return float(self._cupy.nan_to_num(share, nan=float("inf")).max())

    def copy_rate(self) -> float:
        source, target = (self._cupy.zeros(COPIED, "uint8") for _ in range(2))
        return _copy_rate(self, lambda: self._cupy.copyto(target, source), COPIED)

    def pointer(self, array: Any) -> int:
        return array.data.ptr

    def stream(self) -> int:
        return self._cupy.cuda.get_current_stream().ptr

    def graphed(self, launch: Callable[[int], None], count: int) -> Callable[[int], None]:
        raise TileError("bench: --graph needs torch\n  fix: install torch, or leave --graph out")

    def synchronize(self) -> None:
        self._cupy.cuda.runtime.deviceSynchronize()

    def event(self) -> Any:
        return self._cupy.cuda.Event()

    def record(self, event: Any) -> None:
        event.record()

    def milliseconds(self, start: Any, end: Any) -> float:
        return self._cupy.cuda.get_elapsed_time(start, end)


def open_device(format: str = "f32") -> Device:
    """torch if it is installed and sees a GPU, else CuPy. Raises DeviceError that says what is missing."""
    reasons: list[str] = []
    for kind in (Torch, Cupy):
        try:
            return kind(format)
        except (ImportError, RuntimeError) as error:
            reasons.append(f"{kind.name}: {error}")
    text = "\n  ".join(reasons)
    raise DeviceError(f"a benchmark needs an NVIDIA GPU, and torch or CuPy for arrays and cuBLAS:\n  {text}")
