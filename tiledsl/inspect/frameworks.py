"""What a benchmark needs of torch: arrays, cuBLAS, events and graphs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from tiledsl.errors import DeviceError
from tiledsl.measure import PRODUCTS
from tiledsl.runtime.arrays import NUMPY_NAMES

DTYPES = {ours: theirs for theirs, ours in NUMPY_NAMES.items()}


class Device:
    """PyTorch's allocator, its current stream, and cuBLAS behind torch.mm, for products of `format` (see
    `measure.PRODUCTS`). Arrays are row-major unless stated.

    itemsizes: bytes of an element of an operand, and of the result. blank: what a result holds that nobody has written.
    """

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
        """An operand: random normal, integers of all values. `batch`: that many of them, along a first axis."""
        torch = self._torch
        shape = (batch, rows, columns) if batch else (rows, columns)
        generator = torch.Generator("cuda").manual_seed(seed)
        if self.format in ("i8", "u8"):
            info = torch.iinfo(self._operand)
            return torch.randint(info.min, info.max + 1, shape, dtype=self._operand, device="cuda", generator=generator)
        drawn = torch.float64 if self.format == "f64" else torch.float32
        return torch.randn(shape, device="cuda", dtype=drawn, generator=generator).to(self._operand)

    def transposed(self, array: Any) -> Any:
        """A view with the last two axes exchanged."""
        return array.swapaxes(-1, -2)

    def restored(self, array: Any) -> Any:
        """The same elements, stored with the last two axes in the other order."""
        return self.transposed(self.transposed(array).contiguous())

    def empty(self, rows: int, columns: int, batch: int = 0) -> Any:
        """A result that nobody has written."""
        shape = (batch, rows, columns) if batch else (rows, columns)
        return self._torch.full(shape, self.blank, device="cuda", dtype=self._result)

    def matmul(self, a: Any, b: Any, out: Any) -> None:
        """cuBLAS in `format`; in "f32" TF32 is off."""
        if self.format in ("e4m3", "e5m2"):
            self._torch._scaled_mm(a, b, self._one, self._one, out_dtype=out.dtype, use_fast_accum=True, out=out)
        elif self.format in ("i8", "u8"):
            self._torch._int_mm(a, b, out=out)
        elif a.dim() == 3:
            self._torch.bmm(a, b, out=out)
        else:
            self._torch.mm(a, b, out=out)

    def worst_share(self, out: Any, a: Any, b: Any) -> float:
        """The largest share of its error bound that any element of `out` uses against float64 (<= 1: right); any error
        of an integer is too much."""
        return self.share(out, *self.expected(a, b))

    def expected(self, a: Any, b: Any) -> tuple[Any, Any]:
        """The product in float64, and the error bound of each element."""
        a, b = (x.to(self._torch.float64) for x in (a, b))
        exact, product = a @ b, PRODUCTS[self.format]
        bound = product.roundoff * abs(exact) + product.chain(a.shape[-1]) * (abs(a) @ abs(b)) + 2.0**-149
        return exact, bound

    def share(self, out: Any, exact: Any, bound: Any) -> float:
        """As `worst_share`, of what `expected` gives."""
        share = abs(out.to(self._torch.float64) - exact) / bound
        return float("inf") if bool((share != share).any()) else float(share.max())

    def graphed(self, launch: Callable[[int], None], count: int) -> Callable[[int], None]:
        """``replay(number)``: `count` launches, numbered from 0 on, by one CUDA graph: none waits for the host."""
        graph = self._torch.cuda.CUDAGraph()
        self._torch.cuda.synchronize()
        with self._torch.cuda.graph(graph):
            for number in range(count):
                launch(number)
        return lambda number: graph.replay()

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()

    def event(self) -> Any:
        return self._torch.cuda.Event(enable_timing=True)

    def record(self, event: Any) -> None:
        event.record()

    def milliseconds(self, start: Any, end: Any) -> float:
        return start.elapsed_time(end)


def open_device(format: str = "f32") -> Device:
    """The GPU that torch sees. Raises DeviceError that says what is missing."""
    try:
        return Device(format)
    except (ImportError, RuntimeError) as error:
        fix = "pip install torch, where there is a GPU; tiledsl doctor says what else is missing"
        message = f"a benchmark needs an NVIDIA GPU, and torch for arrays and cuBLAS: {error}"
        raise DeviceError(f"{message}\n  fix: {fix}") from None
