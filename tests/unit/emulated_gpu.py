"""A GPU whose memory is the host's and whose launches run on the emulator, and arrays of each library in its memory."""

from __future__ import annotations

import ctypes
import struct
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tiledsl import meaning
from tiledsl.gemm import call, grouped_call, workspace
from tiledsl.ir.abi import AbiArg
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.kernel import TileKernel
from tiledsl.runtime import driver
from tiledsl.runtime.arrays import NUMPY_NAMES
from tiledsl.runtime.dispatch import Arguments, Dispatcher
from tiledsl.runtime.driver import Device, Driver
from tiledsl.runtime.launch import FORMATS, ArgumentBuffer, LaunchPlan, Shape, overlap_windows

__all__ = ["EmulatedDriver", "FakeCupy", "FakeExporter", "FakeTorch", "aligned", "clear_caches", "install"]

NAMES: dict[str, Any] = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in NUMPY_NAMES}
"""NumPy's dtypes by their names in torch."""


def aligned(array: Any, shift: int = 0) -> Any:
    """A copy with the same strides that starts `shift` bytes after a multiple of 256."""
    size = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)) + array.itemsize
    memory = np.zeros(size + 512, np.uint8)
    start = -memory.ctypes.data % 256 + shift
    copy = np.ndarray(array.shape, array.dtype, memory, start, array.strides)
    copy[...] = array
    return copy


class EmulatedDriver(Driver):
    """launched: kernel, stream and addresses of each launch. loaded: names of kernels. streams: those that capture a
    graph now."""

    def __init__(self, capability: tuple[int, int] = (9, 0), processors: int = 132) -> None:
        self.lost = self.last_kernel = ""
        self.devices = (Device(0, 0, "a GPU", capability, processors), Device(1, 1, "another", capability, processors))
        self.launched: list[tuple[str, int, tuple[int, ...]]] = []
        self.memory: dict[int, Any] = {}
        self.streams: set[int] = set()
        self.capture = 1
        self.waits: list[tuple[int, int]] = []
        self.loaded: set[str] = set()

    def active(self, ordinal: int) -> Any:  # type: ignore[override]
        return nullcontext(1)

    def beside_captures(self) -> Any:  # type: ignore[override]
        return nullcontext()

    def current_device(self) -> int:
        return 0

    def pointer_device(self, pointer: int) -> int:
        return 0

    def capturing(self, stream: int) -> bool:
        return stream in self.streams

    def allocate(self, size: int, what: str) -> int:
        memory = np.full(size + 256, 255, np.uint8)
        address = memory.ctypes.data + -memory.ctypes.data % 256
        self.memory[address] = memory
        return address

    def clear(self, pointer: int, size: int, stream: int) -> None:
        start = pointer - self.memory[pointer].ctypes.data
        self.memory[pointer][start : start + size] = 0

    def free(self, pointer: int) -> None:
        del self.memory[pointer]

    def finish(self, what: str) -> None:
        pass

    def synchronize(self, stream: int, what: str) -> None:
        pass

    def capture_id(self, stream: int) -> int:
        return self.capture

    def launch(self, emulate: Any, *given: int) -> tuple[int]:
        """Launch as cuLaunchKernel does, whose last arguments are the stream, the parameters, and 0."""
        emulate(*given[-3:-1])
        return (0,)

    def wait_for(self, stream: int, other: int) -> None:
        self.waits.append((stream, other))


WRITTEN = {"pad": ("Y",), "pad_both": ("Y", "W"), "split_both": ("Y", "W"), "scales_of_both": ("S", "R")}
WRITTEN["residues_of_both"] = "Y", "W", "moduli"
"""What kernels write that are launched before a product."""


class EmulatedPlan(LaunchPlan):
    """A launch plan whose kernel runs on the emulator, on the arrays at the addresses and with the scalars that the
    launch has packed for the driver."""

    def __init__(self, dispatcher: Dispatcher, arguments: Arguments) -> None:
        signature, self._dispatcher, self._of = dispatcher.signature, dispatcher, arguments
        self._abi = [AbiArg("pointer", name, info.dtype) for name, info in arguments.present.items()]
        self._abi += [AbiArg("scalar", param.name, param.dtype) for param in signature.scalars]
        written = WRITTEN.get(signature.name, ("C",))
        buffer = ArgumentBuffer(self._abi, {}, {})
        windows = overlap_windows(buffer.pointers, arguments.present, written)
        shape = Shape((1, 1, 1), (1, 1, 1), 0)
        super().__init__(driver.driver(), signature.name, 0, self._emulate, shape, buffer, windows, None, written)

    def _emulate(self, stream: int, params: int) -> None:
        slots = (ctypes.c_void_p * len(self._abi)).from_address(params)
        given = {of.name: _unpacked(of, at) for of, at in zip(self._abi, slots, strict=True)}
        pointers = tuple(given[name] for name in self.arguments.pointers)
        infos = {
            name: replace(info, pointer=given[name], device=-1, owner=(self,))
            for name, info in self._of.present.items()
        }
        gpu: Any = self.driver
        gpu.launched.append((self.kernel, stream, pointers))
        self._dispatcher.run({**self._of.given, **given, **infos}, "emulator")


def _unpacked(of: AbiArg, at: Any) -> Any:
    """Return the argument in the slot at this address, as the kernel sees it."""
    code = "Q" if of.kind == "pointer" else FORMATS[of.dtype.name]
    (value,) = struct.unpack("<" + code, ctypes.string_at(at, 8))
    return float(np.uint16(value).view(numpy_dtype(of.dtype))) if of.dtype.name == "bf16" and code != "Q" else value


# -- arrays ------------------------------------------------------------------------------------------------


class FakeTorch:
    """A torch tensor on GPU 0, as far as it is asked."""

    __module__ = "torch"
    layout, is_nested, is_cuda, requires_grad = "strided", False, True, False
    __torch_dispatch__ = None

    def __init__(self, array: Any, ordinal: int = 0) -> None:
        self.array, self.shape, self.version = array, array.shape, 0
        self.dtype = f"torch.{array.dtype.name}"
        self.device = SimpleNamespace(type="cuda", index=ordinal)

    def is_neg(self) -> bool:
        return False

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def get_device(self) -> int:
        return self.device.index

    def __getitem__(self, index: Any) -> FakeTorch:
        return FakeTorch(self.array[index], self.device.index)

    def swapaxes(self, one: int, other: int) -> FakeTorch:
        return FakeTorch(self.array.swapaxes(one, other), self.device.index)

    def untyped_storage(self) -> Any:
        return SimpleNamespace(resize_=lambda size: None)


def _torch_full(shape: Any, dtype: str, device: Any = None, value: int = 255) -> FakeTorch:
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    array = aligned(np.empty(shape, NAMES[dtype.removeprefix("torch.")]))
    array.reshape(-1).view(np.uint8)[:] = value
    return FakeTorch(array)


class FakeDevice(nullcontext[None]):
    id = 0


class FakeCupy:
    __module__ = "cupy"

    def __init__(self, array: Any) -> None:
        self.array, self.shape, self.strides, self.dtype = array, array.shape, array.strides, array.dtype
        self.data = SimpleNamespace(ptr=array.ctypes.data)
        self.device: Any = FakeDevice()


class FakeExporter:
    """By DLPack, from CUDA memory."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, **_: Any) -> Any:
        return self.array.__dlpack__()


WITH_CACHES = "tiledsl.gemm.", "tests.fuzz.sequence_kernels"
"""The prefixes of the names of modules whose kernels and functions remember calls."""


def clear_caches() -> None:
    """Forget all calls: what `gemm` and its kind have planned, the launch plans of their kernels, and all choices. Code
    that was compiled is kept."""
    for module in (call, grouped_call, meaning):
        module._KNOWN.clear()
    for name, module in list(sys.modules.items()):
        for value in list(vars(module).values()) if name.startswith(WITH_CACHES) else ():
            if isinstance(value, TileKernel):
                value.dispatcher.launcher.plans.clear()
            elif hasattr(value, "cache_clear"):
                value.cache_clear()


def install(patch: pytest.MonkeyPatch, gpu: EmulatedDriver) -> Any:
    """Make `gpu` the driver, with stand-ins for torch, whose current stream is 7, and CuPy, whose stream is 9. Returns
    torch's."""
    patch.setattr(driver, "_open", lambda: gpu)

    def launch_plan(self: Dispatcher, arguments: Arguments) -> EmulatedPlan:
        gpu.loaded.add(self.signature.name)
        return EmulatedPlan(self, arguments)

    patch.setattr(Dispatcher, "_launch_plan", launch_plan)
    patch.setattr(Dispatcher, "is_loaded", lambda self, values: self.signature.name in gpu.loaded)
    for module in (call, grouped_call):
        patch.setattr(module, "_KNOWN", {})
    clear_caches()
    patch.setattr(workspace, "_ALL", {})
    patch.setattr(workspace, "_GRAPHS", {})

    def increment(tensors: Any) -> None:
        for tensor in tensors:
            tensor.version += 1

    torch: Any = SimpleNamespace(
        Tensor=FakeTorch, strided="strided", is_grad_enabled=lambda: True, empty=_torch_full, capturing=False,
        empty_like=lambda tensor: _torch_full(tensor.shape, tensor.dtype),
        zeros=lambda *size, **more: _torch_full(*size, value=0, **more), **{n: f"torch.{n}" for n in NAMES},
    )  # fmt: skip
    torch._C = SimpleNamespace(
        _cuda_getCurrentRawStream=lambda device: 7, _increment_version=increment,
        _cuda_isCurrentStreamCapturing=lambda: torch.capturing,
    )  # fmt: skip
    torch.autograd = SimpleNamespace(graph=SimpleNamespace(increment_version=increment))
    torch.cuda = SimpleNamespace(is_initialized=lambda: True)
    empty = lambda shape, dtype: FakeCupy(aligned(np.empty(shape, dtype)))  # noqa: E731
    cupy = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=9)), empty=empty)
    patch.setitem(sys.modules, "torch", torch)
    patch.setitem(sys.modules, "cupy", cupy)
    return torch
