"""Runs any thread-level kernel on the GPU, as the emulator's `run` does: for tests of IR without a front end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tiledsl.arch import target_named
from tiledsl.backends import ptx
from tiledsl.ir.abi import launch_parameters
from tiledsl.ir.core import Kernel
from tiledsl.ir.expr import PROCESSORS
from tiledsl.ir.grid import checked_grid
from tiledsl.ir.types import DType
from tiledsl.runtime.driver import Driver, driver
from tiledsl.runtime.launch import ArgumentBuffer, LaunchPlan, Shape
from tiledsl.runtime.tensor_maps import MapImages, check_maps
from tiledsl.signatures.specialize import ArrayInfo

__all__ = ["run"]

Array = Any


class _Copy:
    """The bytes that an array spans, strides and gaps included, in GPU memory."""

    def __init__(self, gpu: Driver, name: str, array: Array) -> None:
        self.gpu, self.name, self.array = gpu, name, array
        self.low, self.high = np.lib.array_utils.byte_bounds(array) if array.size else (0, 0)
        self.base = gpu.allocate(self.high - self.low, name)
        gpu.upload(self.base, self.low, self.high - self.low, name)

    @property
    def pointer(self) -> int:
        return self.base + self.array.ctypes.data - self.low if self.array.size else self.base

    def info(self, dtype: DType) -> ArrayInfo:
        strides = tuple(s // self.array.itemsize for s in self.array.strides)
        return ArrayInfo(dtype, self.array.shape, strides, self.pointer, 0, True, None)

    def bring_back(self) -> None:
        self.gpu.download(self.low, self.base, self.high - self.low, self.name)
        self.gpu.free(self.base)


def run(kernel: Kernel, arguments: Mapping[str, Any]) -> None:
    """Build `kernel` for the GPU here and launch it on `arguments` (arrays and scalars by name), in place."""
    assert kernel.level == "thread"
    gpu = driver()
    arch = gpu.target_of(0)
    binary = ptx.build(kernel, target_named(arch))
    with gpu.active(0) as context:
        function = gpu.function(context, binary.cubin, kernel.name, arch, kernel.shared_bytes, 0)
        extents, strides, scalars = _parameters(kernel, arguments)
        buffer = ArgumentBuffer(launch_parameters(kernel.abi, kernel.tensor_maps), extents, strides)
        names = {PROCESSORS: gpu.devices[0].processors, **extents, **scalars}
        grid = checked_grid(kernel.name, kernel.grid, names, kernel.cluster)
        block = (*kernel.threads, 1, 1)[:3]
        shape = Shape(grid, block, kernel.shared_bytes, kernel.cluster)
        copies = {name: _Copy(gpu, name, arguments[name]) for name in buffer.pointers}
        maps = _maps(gpu, kernel, buffer, copies)
        plan = LaunchPlan(gpu, kernel.name, 0, function, shape, buffer, (), maps)
        pointers = tuple(copies[name].pointer for name in buffer.pointers)
        plan.run(0, pointers, tuple(arguments[name] for name in buffer.scalars))
        gpu.synchronize(0, kernel.name)
        for copy in copies.values():
            copy.bring_back()


def _maps(gpu: Driver, kernel: Kernel, buffer: ArgumentBuffer, copies: Mapping[str, _Copy]) -> MapImages | None:
    """The tensor maps of the arrays where they are in GPU memory."""
    if not kernel.tensor_maps:
        return None
    dtypes = {a.name: a.dtype for a in kernel.abi if a.kind == "pointer"}
    infos = {name: copy.info(dtypes[name]) for name, copy in copies.items()}
    check_maps(kernel.name, kernel.tensor_maps, infos)
    order = buffer.pointers
    return MapImages(gpu, 0, kernel.name, kernel.tensor_maps, order, infos, frozenset(order))


def _parameters(
    kernel: Kernel, arguments: Mapping[str, Any]
) -> tuple[dict[str, int], dict[str, tuple[int, ...]], dict[str, int]]:
    extents: dict[str, int] = {}
    strides: dict[str, tuple[int, ...]] = {}
    scalars: dict[str, int] = {}
    for arg in kernel.abi:
        if arg.kind == "pointer":
            array = arguments[arg.name]
            strides[arg.name] = tuple(s // array.itemsize for s in array.strides)
            extents |= {d: n for d, n in zip(arg.dims, array.shape, strict=True) if isinstance(d, str)}
        elif arg.kind == "scalar" and arg.dtype.is_integer:
            scalars[arg.name] = int(arguments[arg.name])
    for arg in kernel.abi:
        if arg.kind == "extent" and arg.name not in extents:
            extents[arg.name] = int(arguments[arg.name])
    return extents, strides, scalars
