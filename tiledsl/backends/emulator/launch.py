"""Running a kernel: arguments to registers, the grid, shared memory at tile level, checkers."""

from __future__ import annotations

import sys
from functools import cached_property
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Mapping, TypeGuard

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import MOST_SHARED
from tiledsl.backends.emulator import rules
from tiledsl.backends.emulator.boundary import raise_internal
from tiledsl.backends.emulator.chunk import Launch
from tiledsl.backends.emulator.hooks import LaunchInfo
from tiledsl.backends.emulator.machine import run_blocks
from tiledsl.backends.emulator.options import Options, RunResult
from tiledsl.backends.emulator.positions import Positions
from tiledsl.backends.emulator.program import Program, flatten
from tiledsl.backends.emulator.sanitizer.checks_registers import check_registers
from tiledsl.backends.emulator.sanitizer.hazards import Checks, Ordering
from tiledsl.backends.emulator.schedule import Turns
from tiledsl.backends.emulator.spans import SharedTile, Span, tensor_span
from tiledsl.backends.emulator.trace import traced
from tiledsl.errors import EmulatorError, KernelArgumentError
from tiledsl.ir.abi import AbiArg, abi_of
from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.expr import PROCESSORS, evaluate
from tiledsl.ir.ops import mem
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import DType, PtrType, TileType
from tiledsl.layout.shared import ALIGNMENT, MAX_SHARED
from tiledsl.passes.cooperation.lower_roles import COOPERATION
from tiledsl.passes.manager import PassManager
from tiledsl.recursion import deep_recursion

for _family in iter_modules(rules.__path__, rules.__name__ + "."):
    import_module(_family.name)  # registers its rules


class Prepared:
    """A kernel of either level, which the verifier has passed and nobody changes any more, ready to be run often.

    The first run reads it into linear code (`program`) and looks at its registers; later ones find both done. What it
    runs of roles and rings is what passes make of them: these ops have no rules. Raises CompileError where they cannot.
    """

    def __init__(self, kernel: Kernel) -> None:
        cooperates = kernel.level == "tile" and any(op.name.startswith(("ring.", "role.")) for op in kernel.walk())
        self.kernel = PassManager(COOPERATION).run(kernel.clone()) if cooperates else kernel

    @cached_property
    def program(self) -> Program:
        return flatten(self.kernel)

    @cached_property
    def tiles(self) -> tuple[dict[Op, SharedTile], int]:
        """At tile level each allocation has bytes of its own, also one that is `over` another or in another memory."""
        tiles: dict[Op, SharedTile] = {}
        used = 0
        for value in (result for op in self.kernel.walk() for result in op.results):
            if isinstance(value.type, TileType) and value.op is not None:
                label = value.name or f"shared tile {len(tiles)}"
                tiles[value.op] = SharedTile(label, value.type.dtype, used, value.type.bytes, value.type.dims)
                used += -(-value.type.bytes // ALIGNMENT) * ALIGNMENT
        return tiles, used

    @cached_property
    def granule(self) -> int:
        """Bytes of the narrowest element that is accessed in shared memory."""
        ops = list(self.kernel.walk())
        types = [v.type for op in ops if {"read", "write"} & op.effects for v in op.operands]
        shared = [t for t in types if isinstance(t, TileType) or (isinstance(t, PtrType) and t.space == "shared")]
        return min([t.dtype.bytes for t in shared] + [op.bytes for op in ops if isinstance(op, mem.CpAsync)], default=1)

    @cached_property
    def ordering(self) -> Ordering:
        """What the checks know without a run. Raises HazardError for registers that are used too early."""
        check_registers(self.kernel)
        return Ordering.of(self.kernel)

    @deep_recursion()
    def run(self, arguments: Mapping[str, object], *, options: Options | None = None) -> RunResult:
        """On NumPy arrays (by parameter name; written in place) and scalars.

        Run-time extents come from the arrays' shapes; at thread level an extent that no pointer of the abi
        names may be given as an argument of its own. Raises KernelArgumentError for arguments that do not
        fit, EmulatorError or HazardError for what the kernel does wrong; never anything else, but what the caller's
        own code raises that the run calls.
        """
        try:
            return _run(self, arguments, options or Options())
        except Exception as failure:
            raise_internal(failure, self.kernel.name, self.kernel.loc)
            raise


def run(kernel: Kernel, arguments: Mapping[str, object], *, options: Options | None = None) -> RunResult:
    """Run a kernel once (`Prepared.run`)."""
    return Prepared(kernel).run(arguments, options=options)


def _run(prepared: Prepared, arguments: Mapping[str, object], options: Options) -> RunResult:
    kernel = prepared.kernel
    bound = _Arguments(kernel, arguments)
    grid = [evaluate(extent, {PROCESSORS: options.processors, **bound.extents}) for extent in kernel.grid]
    if any(extent <= 0 for extent in grid):
        return RunResult()
    tiles, tile_bytes = prepared.tiles
    shared_bytes = max(kernel.shared_bytes, tile_bytes)
    _require_little(kernel, tiles, shared_bytes)
    blocks, threads = _three(grid), _three(kernel.threads)
    launch = LaunchInfo(kernel.name, blocks, threads, shared_bytes, prepared.granule, kernel.cluster)
    if any(n % size for n, size in zip(blocks, kernel.cluster, strict=True)):
        raise KernelArgumentError(f"{kernel.name}: a grid of {blocks} blocks is no whole clusters of {kernel.cluster}")
    result, program = RunResult(), prepared.program
    turns = Turns(options.max_steps, program.fills, program.roles)
    registers = list(program.initial)
    for register, value in zip(program.arguments, bound.values(), strict=True):
        registers[register] = value
    if options.trace is not None:
        program = traced(program, launch, options.trace, result, turns.spend)
    hooks = (Checks(prepared.ordering), *options.hooks) if options.checks else options.hooks
    stdout = options.stdout or sys.stdout
    shared = Launch(kernel, launch, hooks, stdout, Positions(launch), bound.tensors, tiles)
    with np.errstate(all="ignore"):
        run_blocks(shared, program, registers, options, turns)
    return result


def _three(extents: list[int] | tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = [*extents, 1, 1][:3]
    return x, y, z


def _require_little(kernel: Kernel, tiles: Mapping[Op, SharedTile], shared_bytes: int) -> None:
    if shared_bytes > MAX_SHARED:
        largest = max(tiles, key=lambda op: tiles[op].bytes, default=None)
        raise EmulatorError(
            f"a block of {kernel.name} has {shared_bytes} bytes of shared memory; the emulator gives it {MAX_SHARED}",
            kernel.loc if largest is None else largest.loc,
            f"use smaller tiles; no GPU gives a block more than {MOST_SHARED >> 10} KiB",
        )


def _is_ndarray(value: Any) -> TypeGuard[NDArray[Any]]:
    return isinstance(value, np.ndarray)


class _Arguments:
    """Checked arguments. `extents`: what grid expressions may name."""

    def __init__(self, kernel: Kernel, arguments: Mapping[str, object]) -> None:
        self.kernel, self.given = kernel, arguments
        self.extents: dict[str, int] = {}
        self.scalars: dict[str, Any] = {}
        args = kernel.body.args
        self.abi = kernel.abi if kernel.level == "thread" else abi_of([(a.name, a.type) for a in args], 64)
        self.tensors = {a.name: self.tensor(a, number) for number, a in enumerate(self.abi) if a.kind == "pointer"}
        for arg in self.abi:
            if arg.kind == "scalar":
                self.scalars[arg.name] = self.scalar(arg.name, arg.dtype)
                if arg.dtype.is_integer:
                    self.extents[arg.name] = int(self.scalars[arg.name])
            elif arg.kind == "extent" and arg.name not in self.extents:
                self.extents[arg.name] = int(self.scalar(arg.name, arg.dtype))
        known = {*self.tensors, *self.scalars, *self.extents}
        unknown = [name for name, value in arguments.items() if name not in known and value is not None]
        if unknown:
            raise KernelArgumentError(f"{kernel.name} has no parameter {', '.join(unknown)}; it has {', '.join(known)}")

    def take(self, name: str) -> object:
        if name not in self.given:
            raise KernelArgumentError(f"{self.kernel.name}: argument {name} is missing; got {', '.join(self.given)}")
        return self.given[name]

    def tensor(self, arg: AbiArg, number: int) -> Span:
        array: Any = self.take(arg.name)
        wanted = numpy_dtype(arg.dtype)
        if not _is_ndarray(array):
            raise KernelArgumentError(f"{arg.name}: expected a NumPy array of {arg.dtype}, got {type(array).__name__}")
        if array.dtype != wanted:
            raise KernelArgumentError(f"{arg.name}: expected dtype {wanted} ({arg.dtype}), got {array.dtype}")
        if arg.dims and array.ndim != len(arg.dims):
            raise KernelArgumentError(f"{arg.name}: expected {len(arg.dims)} dimensions, got {array.ndim}")
        for axis, extent in enumerate(arg.dims):
            wanted_extent = extent if isinstance(extent, int) else self.extents.setdefault(extent, array.shape[axis])
            if array.shape[axis] != wanted_extent:
                raise KernelArgumentError(
                    f"{arg.name}: axis {axis} ({extent}) has extent {array.shape[axis]}, expected {wanted_extent}"
                )
        return tensor_span(arg.name, array, number)

    def scalar(self, name: str, dtype: DType) -> Any:
        value: Any = self.take(name)
        try:
            return np.asarray(value).astype(numpy_dtype(dtype)).reshape(())
        except (TypeError, ValueError):
            raise KernelArgumentError(f"{name}: expected a {dtype}, got {value!r}") from None

    def values(self) -> list[Any]:
        """What the registers of the body's arguments start with."""
        if self.kernel.level == "tile":
            known = {**self.scalars, **self.tensors}
            return [known[a.name] for a in self.kernel.body.args]
        return [self.thread_value(arg) for arg in self.abi]

    def thread_value(self, arg: AbiArg) -> Any:
        match arg.kind:
            case "pointer":
                return np.array(self.tensors[arg.name].base, np.int64)
            case "extent":
                return np.array(self.extents[arg.name], numpy_dtype(arg.dtype))
            case "stride":
                return np.array(self.tensors[arg.name].strides[arg.axis], numpy_dtype(arg.dtype))
            case "scalar":
                return self.scalars[arg.name]
            case "tensor_map":
                raise AssertionError("tensor maps are no arguments of a body")
