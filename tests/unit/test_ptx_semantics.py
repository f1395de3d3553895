"""The lowered rows compute what the scalar table says: their LLVM IR, before NVPTX, runs on the host.

That checks the selects around divisions, shifts and comparisons without a GPU. Left out is what only
PTX has (approximate functions, conversions by NVPTX intrinsics, 16-bit floats), and the bits of a NaN,
which x86 makes differently.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from llvmlite import binding
from ptx_kernels import at, kernel, load, store

from tiledsl.arch import TARGETS
from tiledsl.backends.ptx.lower import lower_kernel
from tiledsl.ir import semantics
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Value
from tiledsl.ir.ops import control
from tiledsl.ir.scalar import SCALAR
from tiledsl.ir.types import BOOL, DTYPES, F32, F64, I32, DType, PtrType

INTEGERS = [d for d in DTYPES.values() if d.kind in ("int", "uint")]
HOST_ROWS = [row for row in SCALAR.values() if row.ulp is None]
Compute = Callable[[Builder, Sequence[Value]], Value]


def edges(dtype: DType) -> np.ndarray[Any, Any]:
    """Values around everything that a rule treats specially."""
    np_dtype = semantics.numpy_dtype(dtype)
    if dtype.is_float:
        tiny = np.nextafter(np_dtype.type(0), np_dtype.type(1))
        values = [0.0, -0.0, 1.0, -1.5, 2.5, np.inf, -np.inf, np.nan, 1e30, -3e-30, float(tiny), 0.5, 16777217.0]
        return np.array(values, np_dtype)
    low = 0 if dtype.kind == "uint" else -(1 << (dtype.bits - 1))
    high = low + (1 << dtype.bits) - 1
    around = {0, 1, 2, 3, 7, 8, dtype.bits - 1, dtype.bits, 100, low, low + 1, high - 1, high, -1, -2, -3, -8, -100}
    return np.array(sorted(v for v in around if low <= v <= high), np_dtype)


def operands_of(dtype: DType, arity: int) -> list[np.ndarray[Any, Any]]:
    table = list(itertools.product(edges(dtype), repeat=arity))
    return [np.array(column, semantics.numpy_dtype(dtype)) for column in zip(*table, strict=True)]


def elementwise(src: DType, arity: int, outputs: Sequence[tuple[DType, Compute]]) -> Kernel:
    """for i in range(n): out_k[i] = compute_k(in_0[i], in_1[i], ...)."""
    params = [(f"in{i}", PtrType("global", src)) for i in range(arity)]
    params += [(f"out{i}", PtrType("global", d)) for i, (d, _) in enumerate(outputs)]
    made, b = kernel("elementwise", [*params, ("n", I32)])
    *pointers, n = made.body.args
    body = Block([I32], ["i"])
    inner = Builder(body, at(3))
    values = [load(inner, pointer, body.args[0]) for pointer in pointers[:arity]]
    for pointer, (_, compute) in zip(pointers[arity:], outputs, strict=True):
        store(inner, pointer, body.args[0], compute(inner, values))
    inner.op(control.Yield)
    b.op(control.For, b.constant(0, I32), n, b.constant(1, I32), blocks=[body])
    b.op(control.Return)
    return made


def run_on_host(made: Kernel, inputs: Sequence[np.ndarray[Any, Any]], outputs: Sequence[np.ndarray[Any, Any]]) -> None:
    """Compile the kernel's LLVM IR for this machine and call it as one thread."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten()
    )
    lowered, _ = lower_kernel(made, TARGETS["sm_90a"], "")
    module = binding.parse_assembly(str(lowered).replace("ptx_kernel ", "").replace(lowered.triple, machine.triple))
    module.verify()
    with binding.create_mcjit_compiler(module, machine) as engine:
        engine.finalize_object()
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*inputs, *outputs)]
        types = [ctypes.c_void_p] * len(pointers)
        function = ctypes.CFUNCTYPE(None, *types, ctypes.c_int32)(engine.get_function_address(made.name))
        function(*pointers, len(inputs[0]))


def equal(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Bit by bit, but a NaN equals a NaN."""
    if got.dtype.kind != "f":
        return got == expected
    unsigned = np.dtype(f"u{got.itemsize}")
    return (got.view(unsigned) == expected.view(unsigned)) | (np.isnan(got) & np.isnan(expected))


def check(src: DType, inputs: Sequence[np.ndarray[Any, Any]], outputs: dict[str, tuple[DType, Compute, Any]]) -> None:
    """Run every output on the host and compare with its expected array."""
    made = elementwise(src, len(inputs), [(dtype, compute) for dtype, compute, _ in outputs.values()])
    results = [np.zeros(len(inputs[0]), semantics.numpy_dtype(dtype)) for dtype, _, _ in outputs.values()]
    run_on_host(made, inputs, results)
    for (name, (_, _, expected)), got in zip(outputs.items(), results, strict=True):
        wrong = np.flatnonzero(~equal(got, expected))
        cases = [(*(column[i] for column in inputs), "gave", got[i], "not", expected[i]) for i in wrong[:5]]
        assert not cases, f"{name} on {src}: {cases}"


@pytest.mark.parametrize("dtype", [*INTEGERS, F32, F64], ids=str)
@pytest.mark.parametrize("arity", [1, 2, 3])
def test_rows(dtype: DType, arity: int) -> None:
    rows = [row for row in HOST_ROWS if row.accepts(dtype) and row.arity == arity]
    if not rows:
        return
    inputs = operands_of(dtype, arity)

    def compute(name: str) -> Compute:
        return lambda b, values: b.scalar(name, *values)

    check(
        dtype,
        inputs,
        {
            row.name: (
                BOOL if row.to_bool else dtype,
                compute(row.name),
                semantics.apply(row.name, dtype, *inputs),
            )
            for row in rows
        },
    )


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("row", ["floordiv", "ceildiv", "mod", "shl", "shr"])
def test_literal_second_operands(dtype: DType, row: str) -> None:
    """Literals take cheaper paths through the rules than run-time values."""
    (inputs,) = operands_of(dtype, 1)
    literals = [int(v) for v in edges(dtype)]

    def compute(literal: int) -> Compute:
        return lambda b, values: b.scalar(row, values[0], b.constant(literal, dtype))

    check(
        dtype,
        [inputs],
        {
            f"{row} {literal}": (
                dtype,
                compute(literal),
                semantics.apply(row, dtype, inputs, np.array(literal, inputs.dtype)),
            )
            for literal in literals
        },
    )


@pytest.mark.parametrize("src", [*INTEGERS, BOOL, F32, F64], ids=str)
def test_casts(src: DType) -> None:
    inputs = np.array([False, True]) if src == BOOL else edges(src)
    targets = [F32, F64, BOOL] if src.is_float else [*INTEGERS, F32, F64, BOOL]

    def compute(to: DType) -> Compute:
        return lambda b, values: b.cast(values[0], to)

    check(src, [inputs], {f"to {to}": (to, compute(to), semantics.cast(inputs, src, to)) for to in targets})
