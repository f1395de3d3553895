"""Running a kernel: arguments to registers, the grid, shared memory at tile level, checkers."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from math import prod
from pkgutil import iter_modules
from typing import Any, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import MOST_SHARED
from tiledsl.backends.emulator import rules
from tiledsl.backends.emulator.boundary import raise_internal
from tiledsl.backends.emulator.chances import GROUPS, Chances
from tiledsl.backends.emulator.chunk import Launch
from tiledsl.backends.emulator.coverage import Regions, not_run, regions, watched
from tiledsl.backends.emulator.hooks import Hook, LaunchInfo, OpHook, TensorInfo
from tiledsl.backends.emulator.machine import Part, run_blocks
from tiledsl.backends.emulator.options import Options, RunResult
from tiledsl.backends.emulator.positions import Positions
from tiledsl.backends.emulator.program import Program, flatten, roles_of
from tiledsl.backends.emulator.residency import FEW_PROCESSORS, residency
from tiledsl.backends.emulator.residues import copied, held, is_float, of_floats, residue_rule, taken
from tiledsl.backends.emulator.sanitizer.hazards import Checks, OfLaunch, checks_of
from tiledsl.backends.emulator.sanitizer.reports import Reports
from tiledsl.backends.emulator.schedule import Turns
from tiledsl.backends.emulator.spans import SharedTile, Span, tensor_span
from tiledsl.backends.emulator.trace import told, traced
from tiledsl.backends.emulator.undefined import may_be_undefined, with_shadows
from tiledsl.backends.emulator.waiters import role_of
from tiledsl.errors import EmulatorError, HazardError, KernelArgumentError, Loc
from tiledsl.ir.abi import AbiArg, abi_of
from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.expr import PROCESSORS
from tiledsl.ir.grid import checked_grid
from tiledsl.ir.ops import mem, ptx
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import DType, PtrType, TileType
from tiledsl.layout.shared import ALIGNMENT, MAX_SHARED
from tiledsl.passes.cooperation.lower_roles import COOPERATION
from tiledsl.passes.manager import run_passes
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
        self.kernel = run_passes(kernel.clone(), COOPERATION) if cooperates else kernel

    @cached_property
    def program(self) -> Program:
        return flatten(self.kernel)

    @cached_property
    def on_residues(self) -> Program:
        """The same for residues in place of floats. Its instructions have the same places."""
        return flatten(self.kernel, residue_rule, _constant)

    @cached_property
    def regions(self) -> Regions:
        return regions(self.program)

    @cached_property
    def lines(self) -> frozenset[tuple[str, int]]:
        """Those that ops are of, calls of functions included."""
        return frozenset(line for loc in {op.loc for op in self.kernel.walk()} for line in loc.lines)

    @cached_property
    def models(self) -> tuple[Loc, ...]:
        """Return where functions that were given as ``emulate=`` run in place of PTX."""
        return tuple(op.loc for op in self.kernel.walk() if isinstance(op, ptx.Inline) and op.emulate)

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
    def checks(self) -> Checks:
        return Checks(self.kernel)

    def run(self, arguments: Mapping[str, object], *, options: Options | None = None) -> RunResult:
        """On NumPy arrays (by parameter name; written in place) and scalars.

        Run-time extents come from the arrays' shapes; at thread level an extent that no pointer of the abi
        names may be given as an argument of its own. Raises KernelArgumentError for arguments that do not
        fit, EmulatorError or HazardError for what the kernel does wrong; never anything else, but what the caller's
        own code raises that the run calls.
        """
        return run_together([OneLaunch(self, arguments)], options=options)


@dataclass(frozen=True, eq=False)
class OneLaunch:
    """A launch of a run: its kernel and arguments (`Prepared.run`), on the GPU of this rank; None if the run has no
    other."""

    prepared: Prepared
    arguments: Mapping[str, object]
    rank: int | None = None

    @property
    def kernel(self) -> Kernel:
        return self.prepared.kernel


@deep_recursion()
def run_together(launches: Sequence[OneLaunch], *, options: Options | None = None) -> RunResult:
    """Launches that run at the same time, also those of one rank: nothing orders them but atomic operations. Memory is
    shared where arrays are. Otherwise as `Prepared.run`; traces and residues are of one launch alone."""
    options = options or Options()
    assert len(launches) == 1 or not (options.trace or options.residues)
    try:
        try:
            return _run(launches, options)
        except Exception as failure:
            raise_internal(failure, launches[0].kernel.name, launches[0].kernel.loc)
            raise
    except EmulatorError as error:
        _complete(launches, error, options)
        raise


def _complete(launches: Sequence[OneLaunch], error: EmulatorError, options: Options) -> None:
    """Adds to its finding what is known of the run."""
    found = error.finding
    sides = tuple(
        replace(side, role=role_of(roles_of(_kernel_at(launches, side.loc)), side.warps)) for side in found.sides
    )
    name = _kernel_at(launches, found.loc).name
    error.finding = replace(found, sides=sides, kernel=name, seed=options.seed or None)


def _kernel_at(launches: Sequence[OneLaunch], loc: Loc) -> Kernel:
    """The kernel that has ops there, or the first one."""
    kernels = [launch.kernel for launch in launches]
    if len(kernels) == 1:
        return kernels[0]
    return next((k for k in kernels if loc == k.loc or any(op.loc == loc for op in k.walk())), kernels[0])


def _constant(value: Any, dtype: DType) -> Any:
    """A float of a kernel's, as a residue."""
    return value if dtype.bits == 8 else held(of_floats(value), dtype)


def run(kernel: Kernel, arguments: Mapping[str, object], *, options: Options | None = None) -> RunResult:
    """Run a kernel once (`Prepared.run`)."""
    return Prepared(kernel).run(arguments, options=options)


def _run(launches: Sequence[OneLaunch], options: Options) -> RunResult:
    begun, blocks, result = list[_Begun](), 0, RunResult()
    for each in launches:
        launch = _Begun.of(each, options, blocks, _named(each, launches))
        if 0 in launch.info.grid:
            result.not_run.append(each.kernel.loc)
            continue
        begun.append(launch)
        blocks += prod(launch.info.grid)
    chances, steps = None, options.max_steps
    if options.seed:
        chances = Chances(options.seed)
        steps *= sum(GROUPS * prod(e.info.cluster) * e.positions.warps for e in begun)  # that many move on their own
    turns = Turns(steps, chances)
    ran = {each.prepared: set[int]() for each in begun}
    hooks = [tuple(hook.of_launch(each.info) for hook in options.hooks) for each in begun]
    reports: Reports | None = None
    checks = list[OfLaunch]()
    if options.checks:

        def take(error: HazardError) -> None:
            _complete(launches, error, options)
            options.report(error)

        reports = Reports(options.selection, take)
        checks = checks_of([(each.prepared.checks, each.info) for each in begun], reports, options.unwritten)
        hooks = [(check, *others) for check, others in zip(checks, hooks, strict=True)] if checks else hooks
    programs = {each.prepared: _program(each, options, ran[each.prepared], result, turns, reports) for each in begun}
    parts = [each.part(programs[each.prepared], its, options) for each, its in zip(begun, hooks, strict=True)]
    with np.errstate(all="ignore"):
        run_blocks(parts, options, turns, reports)
        for check in checks:
            check.end_launch()
    if _covers(options):
        result.not_run += not_run((prepared.regions, entered) for prepared, entered in ran.items())
    for each in begun:
        for name, (array, dtype) in each.bound.copies.items():
            result.tensors[name] = taken(array, dtype) if is_float(dtype) else array
    return result


def _covers(options: Options) -> bool:
    return options.checks and "coverage" in options.selection


def _program(
    launch: _Begun, options: Options, ran: set[int], result: RunResult, turns: Turns, reports: Reports | None
) -> Program:
    """What it runs. ran: gets the blocks of the kernel that cohorts enter, if they are asked for."""
    program = launch.prepared.on_residues if options.residues else launch.prepared.program
    if reports is not None and "T205" in reports.selection and may_be_undefined(launch.kernel):
        program = with_shadows(program, reports.tell)
    if _covers(options):
        program = watched(program, ran)
    if options.trace is not None:
        program = traced(program, launch.info, options.trace, result, turns.spend)
    for hook in options.hooks:
        if isinstance(hook, OpHook):
            program = told(program, hook)
    return program


def _named(launch: OneLaunch, launches: Sequence[OneLaunch]) -> str:
    """Of which rank its blocks are, and of which kernel if there are several."""
    if launch.rank is None:
        return ""
    several = len({each.kernel.name for each in launches}) > 1
    return f" of rank {launch.rank}" + f" ({launch.kernel.name})" * several


@dataclass(frozen=True, eq=False)
class _Begun:
    """A launch with its checked arguments."""

    prepared: Prepared
    bound: _Arguments
    info: LaunchInfo

    @property
    def kernel(self) -> Kernel:
        return self.prepared.kernel

    @classmethod
    def of(cls, launch: OneLaunch, options: Options, first: int, name: str) -> _Begun:
        prepared, kernel = launch.prepared, launch.kernel
        bound = _Arguments(kernel, launch.arguments, options.residues)
        names = {PROCESSORS: options.processors or FEW_PROCESSORS, **bound.extents}
        grid = checked_grid(kernel.name, kernel.grid, names, kernel.cluster)
        tiles, tile_bytes = prepared.tiles
        shared_bytes = max(kernel.shared_bytes, tile_bytes)
        if 0 not in grid:
            _require_little(kernel, tiles, shared_bytes)
        x, y, z = (*kernel.threads, 1, 1)[:3]
        tensors = tuple(map(_described, bound.tensors.values()))
        info = LaunchInfo(
            kernel.name, grid, (x, y, z), shared_bytes, prepared.granule, kernel.cluster, tensors,
            launch.rank, first, name,
        )  # fmt: skip
        return cls(prepared, bound, info)

    @cached_property
    def positions(self) -> Positions:
        return Positions(self.info)

    def part(self, program: Program, hooks: tuple[Hook, ...], options: Options) -> Part:
        registers = list(program.initial)
        for register, value in zip(program.arguments, self.bound.values, strict=True):
            registers[register] = value
        run = Launch(
            self.prepared.kernel, self.info, hooks, options.stdout or sys.stdout, self.positions, self.bound.tensors,
            self.prepared.tiles[0], program.fills, program.roles,
        )  # fmt: skip
        return Part(run, program, registers, residency(self.kernel, self.info, options.processors))


def _described(span: Span) -> TensorInfo:
    host, size = span.elements.__array_interface__["data"][0], span.elements.itemsize
    return TensorInfo(span.label, span.low, span.high - span.low, host, span.base, size, span.dims, span.strides)


def _require_little(kernel: Kernel, tiles: Mapping[Op, SharedTile], shared_bytes: int) -> None:
    if shared_bytes > MAX_SHARED:
        largest = max(tiles, key=lambda op: tiles[op].bytes, default=None)
        raise EmulatorError(
            f"a block of {kernel.name} has {shared_bytes} bytes of shared memory; the emulator gives it {MAX_SHARED}",
            kernel.loc if largest is None else largest.loc,
            f"use smaller tiles; no GPU gives a block more than {MOST_SHARED >> 10} KiB",
            code="T509",
        )


class _Arguments:
    """Checked arguments. `extents`: what grid expressions may name. `values`: what the body's arguments start with.
    `copies`: with `residues`, the tensors that the kernel runs on, with their dtypes."""

    def __init__(self, kernel: Kernel, given: Mapping[str, object], residues: bool) -> None:
        self.kernel, self.given, self.residues = kernel, given, residues
        self.copies: dict[str, tuple[NDArray[Any], DType]] = {}
        self.extents: dict[str, int] = {}
        args = kernel.body.args
        abi = kernel.abi if kernel.level == "thread" else abi_of([(a.name, a.type) for a in args], 64)
        self.tensors = {a.name: self.tensor(a, number) for number, a in enumerate(abi) if a.kind == "pointer"}
        values = {arg: self.value(arg) for arg in abi}
        named = {**self.tensors, **{arg.name: value for arg, value in values.items() if arg.kind == "scalar"}}
        self.values = [named[a.name] for a in args] if kernel.level == "tile" else [*values.values()]
        known = {**named, **self.extents}
        unknown = [name for name, value in given.items() if name not in known and value is not None]
        if unknown:
            raise KernelArgumentError(f"{kernel.name} has no parameter {', '.join(unknown)}; it has {', '.join(known)}")

    def take(self, name: str) -> Any:
        if name not in self.given:
            raise KernelArgumentError(f"{self.kernel.name}: argument {name} is missing; got {', '.join(self.given)}")
        return self.given[name]

    def tensor(self, arg: AbiArg, number: int) -> Span:
        array = self.take(arg.name)
        wanted = numpy_dtype(arg.dtype)
        if not issubclass(type(array), np.ndarray) or array.dtype != wanted:
            found = getattr(array, "dtype", type(array).__name__)
            raise KernelArgumentError(f"{arg.name}: expected a NumPy array of {wanted} ({arg.dtype}), got {found}")
        if arg.dims and array.ndim != len(arg.dims):
            raise KernelArgumentError(f"{arg.name}: expected {len(arg.dims)} dimensions, got {array.ndim}")
        for axis, (dim, extent) in enumerate(zip(arg.dims, array.shape, strict=False)):
            expected = dim if isinstance(dim, int) else self.extents.setdefault(dim, extent)
            if extent != expected:
                raise KernelArgumentError(f"{arg.name}: axis {axis} ({dim}) has extent {extent}, expected {expected}")
        if self.residues:
            array = copied(array, arg.dtype)
            self.copies[arg.name] = array, arg.dtype
        return tensor_span(arg.name, array, number)

    def value(self, arg: AbiArg) -> Any:
        """What the register of a thread-level argument starts with."""
        match arg.kind:
            case "pointer":
                return np.array(self.tensors[arg.name].base, np.int64)
            case "stride":
                return np.array(self.tensors[arg.name].strides[arg.axis], numpy_dtype(arg.dtype))
            case "extent" if arg.name in self.extents:
                return np.array(self.extents[arg.name], numpy_dtype(arg.dtype))
            case _:
                value = self.scalar(arg)
                if arg.dtype.is_integer:
                    self.extents[arg.name] = int(value)
                return value

    def scalar(self, arg: AbiArg) -> Any:
        value = self.take(arg.name)
        try:
            found = np.asarray(value).astype(numpy_dtype(arg.dtype)).reshape(())
        except (TypeError, ValueError):
            raise KernelArgumentError(f"{arg.name}: expected a {arg.dtype}, got {value!r}") from None
        return held(of_floats(found), arg.dtype) if self.residues and is_float(arg.dtype) else found
