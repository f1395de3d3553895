"""Compiled stand-ins for the slowest NumPy code: float arithmetic with true fma, gathers and scatters.

Each variant is compiled on first use (llvmlite, some milliseconds) for the host's CPU. The definitions stay
`ir.semantics` and `memory`; tests hold both equal. A function here that cannot handle its operands says so and
the caller falls back on NumPy.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.backends.emulator.native.ir import elementwise_ir, gather_ir, scatter_ir
from tiledsl.backends.emulator.spans import Span
from tiledsl.ir.types import F32, F64, DType

__all__ = ["SMALL", "compiled", "elementwise", "gather", "scatter"]

Mask = NDArray[np.bool_] | None

_ROWS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3}
SMALL = 256
"""Fewer elements than this are left to NumPy."""


@cache
def compiled(source: str, arguments: int) -> Callable[..., int]:
    """The function `run` of an LLVM IR module; all its parameters are pointers or i64."""
    import llvmlite.binding

    llvm: Any = llvmlite.binding  # untyped
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3)
    module = llvm.parse_assembly(source)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * arguments)(engine.get_function_address("run"))
    _ENGINES.append(engine)
    return function


_ENGINES: list[Any] = []
"""Keeps compiled code alive."""


def _operand(array: NDArray[Any]) -> tuple[str, int, int, int]:
    """Mode, address, and the strides in elements along groups and warps."""
    address = array.__array_interface__["data"][0]
    if array.ndim == 0:
        return "s", address, 0, 0
    groups, warps, lanes = array.shape
    size = array.itemsize
    along_groups, along_warps, along_lanes = array.strides
    if lanes > 1 and along_lanes != size:
        return "", 0, 0, 0
    return (
        "s" if lanes == 1 else "v",
        address,
        along_groups // size if groups > 1 else 0,
        along_warps // size if warps > 1 else 0,
    )


# -- arithmetic ------------------------------------------------------------------------------------


def elementwise(fn: str, dtype: DType, plain: Callable[..., Any]) -> Callable[..., Any] | None:
    """Row `fn` of the scalar table, compiled; `plain` handles small operands. None if there is no such loop."""
    if fn not in _ROWS or dtype not in (F32, F64):
        return None
    numpy = np.dtype(np.float32 if dtype == F32 else np.float64)
    count = 3 + 3 * _ROWS[fn]

    def evaluate(*operands: Any) -> Any:
        arrays = [np.asarray(x) for x in operands]
        shape = np.broadcast_shapes(*[a.shape for a in arrays])
        if len(shape) != 3 or shape[2] != WARP or shape[0] * shape[1] * WARP < SMALL:
            return plain(*operands)
        modes = ""
        parameters: list[int] = []
        for array in arrays:
            mode, *where = _operand(array)
            if not mode:
                return plain(*operands)
            modes += mode
            parameters += where
        out = np.empty(shape, numpy)
        run = _elementwise(fn, dtype.name, modes, count)
        run(out.__array_interface__["data"][0], shape[0], shape[1], *parameters)
        return out

    return evaluate


@cache
def _elementwise(fn: str, dtype: str, modes: str, count: int) -> Callable[..., int]:
    return compiled(elementwise_ir(fn, dtype, modes), count)


# -- memory ----------------------------------------------------------------------------------------


@cache
def _gather(bits: int, mode: str, mask: str) -> Callable[..., int]:
    return compiled(gather_ir(bits, mode, mask), 14)


@cache
def _scatter(bits: int, mode: str, mask: str, value: str) -> Callable[..., int]:
    return compiled(scatter_ir(bits, mode, mask, value), 16)


def _bounds(span: Span, vec: int) -> tuple[int, int, int] | None:
    """low, room, misaligned of `gather_ir`; None if the span has no place for an access."""
    width = vec * span.elements.itemsize
    room = span.high - width - span.low
    return (span.low, room, width - 1) if room >= 0 else None


def gather(span: Span, address: NDArray[np.int64], vec: int, mask: Mask) -> tuple[NDArray[Any], ...] | None:
    """What `memory.load` returns, or None for small accesses and if an active lane is outside."""
    if address.ndim != 3 or address.shape[2] != WARP or (bounds := _bounds(span, vec)) is None:
        return None
    shape = address.shape if span.rows is None else np.broadcast_shapes(address.shape, span.rows.shape)
    if shape[0] * shape[1] * WARP < SMALL:
        return None
    found = _gather_all(span, address, vec, None, shape, bounds)
    if found is not None or mask is None:
        return found
    return _gather_all(span, address, vec, mask, np.broadcast_shapes(shape, mask.shape), bounds)


def _gather_all(
    span: Span, address: NDArray[np.int64], vec: int, mask: Mask, shape: tuple[int, ...], bounds: tuple[int, int, int]
) -> tuple[NDArray[Any], ...] | None:
    mode, *where = _operand(address)
    masked, *mask_where = ("n", 0, 0, 0) if mask is None else _operand(mask)
    if not mode or not masked:
        return None
    size = span.elements.itemsize
    rows = _rows(span, shape[0])
    run = _gather(size * 8, mode, masked)
    memory = span.elements.__array_interface__["data"][0] - span.origin
    results: list[NDArray[Any]] = []
    for e in range(vec):
        out = np.empty(shape, span.elements.dtype)
        bad = run(
            out.__array_interface__["data"][0],
            shape[0],
            shape[1],
            memory + e * size,
            rows.__array_interface__["data"][0],
            *where,
            *mask_where,
            *bounds,
        )
        if bad:
            return None
        results.append(out)
    return tuple(results)


def _rows(span: Span, groups: int) -> NDArray[np.int64]:
    return np.zeros(groups, np.int64) if span.rows is None else span.rows


def scatter(span: Span, address: NDArray[np.int64], values: tuple[Any, ...], mask: Mask) -> bool:
    """Do what `memory.store` does; False for small accesses and if an active lane is outside."""
    bounds = _bounds(span, len(values))
    arrays = [np.asarray(v) for v in values]
    shapes = [a.shape for a in arrays] + [address.shape]
    shapes += [m.shape for m in (mask, span.rows) if m is not None]
    shape = np.broadcast_shapes(*shapes)
    if bounds is None or len(shape) != 3 or shape[2] != WARP or shape[0] * shape[1] * WARP < SMALL:
        return False
    mode, *where = _operand(address)
    masked, *mask_where = ("n", 0, 0, 0) if mask is None else _operand(mask)
    rows = _rows(span, shape[0])
    size = span.elements.itemsize
    memory = span.elements.__array_interface__["data"][0] - span.origin
    for e, array in enumerate(arrays):
        value, *value_where = _operand(array)
        if not (mode and masked and value) or array.dtype != span.elements.dtype:
            return False
        bad = _scatter(size * 8, mode, masked, value)(
            *value_where,
            shape[0],
            shape[1],
            memory + e * size,
            rows.__array_interface__["data"][0],
            *where,
            *mask_where,
            *bounds,
        )
        if bad:
            return False
    return True
