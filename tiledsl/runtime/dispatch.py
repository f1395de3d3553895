"""One call of a kernel: its arguments checked and described, then run on the emulator, or on a GPU.

Host arrays go to the emulator, or through GPU memory where there is a GPU. CUDA arrays are used in
place, on the current stream of the library they come from.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generator, Mapping

from tiledsl.forks import in_child, whole
from tiledsl.ir.abi import launch_parameters
from tiledsl.ir.expr import PROCESSORS, Expr
from tiledsl.runtime.arrays import describe, host_array, movable, same_bytes, self_overlapping
from tiledsl.runtime.driver import Driver, available, driver
from tiledsl.runtime.launch import (
    ArgumentBuffer,
    LaunchPlan,
    Shape,
    check_cluster,
    checked_grid,
    overlap_windows,
    packed_scalar,
    uses_names,
)
from tiledsl.runtime.launcher import MISSING, Launcher
from tiledsl.runtime.tensor_maps import MapImages, check_maps
from tiledsl.signature import REQUIRED, Signature, Specialization
from tiledsl.specialize import ArrayInfo, argument_error, check_consts, check_scalar, const_identity, specialize

if TYPE_CHECKING:
    from tiledsl.compiler import Program
    from tiledsl.meaning import Meaning

__all__ = ["EMULATED_ARCH", "Arguments", "Dispatcher", "Prepared"]

EMULATED_ARCH = "sm_90a"
"""The target whose limits hold on the emulator for a kernel that names none."""


@dataclass(frozen=True)
class Arguments:
    """One call, checked. `arrays` by name (None: absent), `scalars` and `consts` by name."""

    arrays: dict[str, ArrayInfo | None]
    scalars: dict[str, Any]
    consts: dict[str, Any]

    @property
    def present(self) -> dict[str, ArrayInfo]:
        return {name: info for name, info in self.arrays.items() if info is not None}

    @property
    def device(self) -> int:
        """The CUDA device of the arrays, or -1 if they are on the host or there are none."""
        return next((info.device for info in self.present.values()), -1)


@dataclass(frozen=True)
class Prepared:
    """A call ready to be launched, again and again. meaning: of the kernel that `plan` launches."""

    plan: LaunchPlan
    stream: int
    pointers: tuple[int, ...]
    scalars: tuple[Any, ...]
    meaning: Meaning

    def run(self) -> None:
        self.plan.run(self.stream, self.pointers, self.scalars)


class Dispatcher:
    """Runs the calls of one kernel. `launcher` is its short cut for torch tensors seen before."""

    LIMIT = Launcher.LIMIT

    def __init__(self, program: Program) -> None:
        self.program = program
        self.signature: Signature = program.signature
        self.launcher = Launcher(self.signature, self._slow)
        self._plans: dict[Any, tuple[LaunchPlan, frozenset[str]]] = {}
        self._lock = threading.Lock()
        in_child(self)

    def renew(self) -> None:
        self._lock = threading.Lock()

    # -- checking ----------------------------------------------------------------------------------------

    def arguments(self, values: Mapping[str, Any]) -> Arguments:
        """Check and describe all arguments, given by name. Raises KernelArgumentError."""
        signature = self.signature
        for param in signature.params:
            if values[param.name] is MISSING:
                fix = f"call it as {signature.usage}"
                raise argument_error(signature, f"the argument {param.name} is missing", fix)
        given = {c.name: REQUIRED if values[c.name] is MISSING else values[c.name] for c in signature.consts}
        consts = check_consts(signature, given)
        scalars = {p.name: check_scalar(signature, p, values[p.name]) for p in signature.scalars}
        arrays = {
            p.name: None if values[p.name] is None else describe(signature, p.name, values[p.name])
            for p in signature.tensors
        }
        self._check_devices({n: a for n, a in arrays.items() if a is not None})
        return Arguments(arrays, scalars, consts)

    def _check_devices(self, arrays: Mapping[str, ArrayInfo]) -> None:
        places = {name: info.device for name, info in arrays.items()}
        first = next(iter(places.items()), None)
        for name, device in places.items():
            if first is not None and device != first[1]:
                message = f"{first[0]} is in {_place(first[1])}, but {name} in {_place(device)}"
                raise argument_error(self.signature, message, "move all arrays to one device")

    def _check_memory(self, arrays: Mapping[str, ArrayInfo], written: frozenset[str]) -> None:
        """Written tensors must be writable, and share no byte with another argument or with themselves.

        Those of torch may need no gradient, and count a version more: what autograd saved of them holds no longer.
        """
        signature = self.signature
        for name in (n for n in arrays if n in written):
            info = arrays[name]
            if not info.writable:
                raise argument_error(
                    signature, f"{name} is written by the kernel, but read-only", "pass a writable array"
                )
            if not info.empty and self_overlapping(info):
                message = (
                    f"{name} is written by the kernel, but several of its elements are one (strides {info.strides})"
                )
                raise argument_error(signature, message, "pass a copy, not a broadcast view")
            for other in arrays:
                if other != name and same_bytes(info, arrays[other]):
                    message = f"{name} is written by the kernel, and shares memory with {other}"
                    raise argument_error(signature, message, f"pass a copy as {other}")
        self._tell_torch({name: info.owner for name, info in arrays.items() if name in written})

    def _tell_torch(self, owners: Mapping[str, Any]) -> None:
        torch = sys.modules.get("torch")
        tensors = {n: owner for n, owner in owners.items() if torch is not None and isinstance(owner, torch.Tensor)}
        if torch is None or not tensors:
            return
        for name, tensor in tensors.items():
            if tensor.requires_grad and torch.is_grad_enabled():
                message = f"{name} is written by the kernel, and requires a gradient, which a kernel does not have"
                fix = f"pass {name}.detach(), call it under torch.no_grad(), or from a torch.autograd.Function"
                raise argument_error(self.signature, message, fix)
        torch.autograd.graph.increment_version(tensors.values())

    # -- running -----------------------------------------------------------------------------------------

    def _slow(self, device: str | None, /, **values: Any) -> None:
        self.run(values, device)

    def run(self, values: Mapping[str, Any], device: str | None = None) -> None:
        """A call that the launcher did not know: all checks, and a plan for the next one like it."""
        arguments = self.arguments(values)
        if self.place(arguments, device) == "emulator":
            self.emulate(arguments)
            return
        if arguments.device < 0:
            with self.on_gpu(arguments) as prepared:
                prepared.run()
            return
        prepared = self.prepare(arguments)
        others = _other_streams(arguments.present, prepared.stream)
        gpu = prepared.plan.driver
        for other in others:
            gpu.wait_for(prepared.stream, other)
        prepared.run()
        for other in others:
            gpu.wait_for(other, prepared.stream)
        self._remember(values, arguments, prepared, device)

    def place(self, arguments: Arguments, device: Any) -> str:
        """ "emulator" or "gpu": where a call with `device=` runs. Raises KernelArgumentError or DeviceError."""
        if not (device is None or (isinstance(device, str) and device in ("emulator", "gpu"))):
            fix = 'pass "emulator", "gpu", or leave it out'
            raise argument_error(self.signature, f"device is {device!r}", fix)
        if device == "emulator" and arguments.device >= 0:
            name = next(iter(arguments.present))
            message = f"{name} is in {_place(arguments.device)}, and the emulator runs on host memory"
            raise argument_error(self.signature, message, "pass NumPy arrays")
        if device == "gpu" or arguments.device >= 0:
            driver()
            return "gpu"
        return "gpu" if device is None and available() is not None else "emulator"

    def written(self, arguments: Arguments, device: str | None) -> frozenset[str]:
        """Names of the tensors that a call may write."""
        spec = specialize(self.signature, arguments.arrays, arguments.consts).spec
        if self.place(arguments, device) == "emulator":
            return self.program.lowered(spec, self.signature.arch or EMULATED_ARCH)[1]
        target = self.signature.arch or driver().target_of(max(arguments.device, 0))
        return self.program.compiled(spec, target).written

    def emulate(self, arguments: Arguments, options: Any = None) -> Any:
        """Run on the emulator; `options`: its Options. Gives its RunResult."""
        with whole():
            from tiledsl.backends import emulator

        arrays = arguments.present
        problem = specialize(self.signature, arguments.arrays, arguments.consts)
        kernel, written = self.program.lowered(problem.spec, self.signature.arch or EMULATED_ARCH)
        self._check_memory(arrays, written)
        check_maps(self.signature.name, kernel.tensor_maps, arrays)
        asked = options or emulator.Options()
        grid = self._grid(kernel.grid, kernel.cluster, asked.processors, problem.extents, arguments)
        if 0 in grid:
            return emulator.RunResult()
        inputs = {**{name: host_array(info) for name, info in arrays.items()}, **arguments.scalars}
        return self.program.prepared(kernel).run(inputs, options=asked)

    @contextmanager
    def on_gpu(self, arguments: Arguments) -> Generator[Prepared, None, None]:
        """Copy host arrays to the GPU for the time of the block, and what the kernel writes back at its end."""
        gpu = driver()
        device = gpu.current_device()
        staged = {name: movable(info) for name, info in arguments.present.items()}
        moved = {name: _moved(info, staged[name], device) for name, info in arguments.present.items()}
        sizes = {name: info.span()[1] for name, info in moved.items()}
        pointers: dict[str, int] = {}
        with gpu.active(device):
            try:
                for name, size in sizes.items():
                    pointers[name] = gpu.allocate(size, f"{self.signature.name}(): {name}")
                infos = {name: replace(info, pointer=pointers[name]) for name, info in moved.items()}
                on_device = replace(arguments, arrays={n: infos.get(n) for n in arguments.arrays})
                plan, written, meaning = self._plan(on_device)
                self._check_memory(arguments.present, written)
                for name, array in staged.items():
                    gpu.upload(pointers[name], array.ctypes.data, sizes[name], name)
                order = plan.arguments.pointers
                yield Prepared(plan, 0, tuple(pointers[n] for n in order), self._packed(arguments, plan), meaning)
                gpu.synchronize(0, f"{self.signature.name}()")
                for name in written & staged.keys():
                    array, target = staged[name], host_array(arguments.present[name])
                    gpu.download(array.ctypes.data, pointers[name], sizes[name], name)
                    if array is not target:
                        target[...] = array
            finally:
                for pointer in pointers.values():
                    gpu.free(pointer)

    def prepare(self, arguments: Arguments) -> Prepared:
        """A launch on CUDA arrays in place, with every check of them."""
        plan, written, meaning = self._plan(arguments)
        arrays = arguments.present
        self._check_memory(arrays, written)
        pointers = tuple(arrays[n].pointer for n in plan.arguments.pointers)
        return Prepared(plan, _launch_stream(arrays), pointers, self._packed(arguments, plan), meaning)

    def _packed(self, arguments: Arguments, plan: LaunchPlan) -> tuple[Any, ...]:
        dtypes = {p.name: p.dtype for p in self.signature.scalars}
        return tuple(packed_scalar(dtypes[n], arguments.scalars[n]) for n in plan.arguments.scalars)

    # -- plans -------------------------------------------------------------------------------------------

    def _plan(self, arguments: Arguments) -> tuple[LaunchPlan, frozenset[str], Meaning]:
        arrays = arguments.arrays
        meaning = self.program.meaning()
        key = (
            meaning.digest,
            *(a and (a.dtype, a.shape, a.strides, a.pointer & 15, a.device) for a in arrays.values()),
            *map(const_identity, arguments.consts.values()),
            *(v for n, v in arguments.scalars.items() if n in self.launcher.keyed),
        )
        gpu = driver()
        gpu.refuse_if_lost()
        with self._lock:
            found = self._plans.get(key)
            if found is None:
                found = self._make_plan(gpu, arguments)
                if len(self._plans) >= self.LIMIT:
                    self._plans.clear()
                if meaning.holds():  # otherwise it was compiled for what the names mean by now
                    self._plans[key] = found
            return *found, meaning

    def _make_plan(self, gpu: Driver, arguments: Arguments) -> tuple[LaunchPlan, frozenset[str]]:
        device = max(arguments.device, 0)
        if self.signature.arch:
            gpu.require_target(self.signature.name, self.signature.arch, device)
        problem = specialize(self.signature, arguments.arrays, arguments.consts)
        image = self.program.compiled(problem.spec, self.signature.arch or gpu.target_of(device)).image
        self._key_grid_scalars(image.grid)
        arrays = arguments.present
        check_maps(image.name, image.tensor_maps, arrays)
        grid = self._grid(image.grid, image.cluster, gpu.devices[device].processors, problem.extents, arguments)
        shape = Shape(grid, image.block, image.shared_bytes, image.cluster, image.dependent)
        parameters = launch_parameters(image.abi, image.tensor_maps)
        buffer = ArgumentBuffer(parameters, problem.extents, _passed_strides(arrays, problem.spec))
        maps = None
        with gpu.active(device) as context:
            function = gpu.function(context, image.cubin, image.name, image.arch, image.shared_bytes, device)
            if image.tensor_maps:
                order, written = buffer.pointers, image.written
                maps = MapImages(gpu, device, context, image.name, image.tensor_maps, order, arrays, written)
        windows = overlap_windows(buffer.pointers, arrays, image.written)
        positions = [i for i, p in enumerate(self.signature.tensors) if p.name in image.written and p.name in arrays]
        plan = LaunchPlan.make(gpu, image.name, device, context, function, shape, buffer, windows, maps, positions)
        return plan, image.written

    def _grid(
        self,
        exprs: tuple[Expr, ...],
        cluster: tuple[int, int, int],
        processors: int,
        extents: Mapping[str, int],
        arguments: Arguments,
    ) -> tuple[int, int, int]:
        """Blocks along x, y, z on a GPU of so many SMs. Raises KernelArgumentError for a grid that cannot be."""
        names = {PROCESSORS: processors, **extents, **_integers(arguments.scalars)}
        grid = checked_grid(self.signature.name, exprs, names)
        check_cluster(self.signature.name, cluster, grid)
        return grid

    def _key_grid_scalars(self, grid: tuple[Any, ...]) -> None:
        used = frozenset(p.name for p in self.signature.scalars if uses_names(grid, {p.name}))
        if not used <= self.launcher.keyed:
            self.launcher.key_by_value(used)
            self._plans.clear()

    def _remember(
        self, values: Mapping[str, Any], arguments: Arguments, prepared: Prepared, device: str | None
    ) -> None:
        """Give the plan to the launcher if all arrays are torch tensors that it can tell apart cheaply."""
        torch = sys.modules.get("torch")
        arrays = arguments.present.values()
        if torch is None or not all(isinstance(a.owner, torch.Tensor) for a in arrays):
            return
        if any(a.unit_axis() < 0 for a in arrays):
            return  # may be a lazily negated view next time (torch.imag of a conjugate): it needs the full check
        raw_stream, bump_versions = torch._C._cuda_getCurrentRawStream, torch._C._increment_version
        given = {**values, "device": device}
        current = prepared.meaning.guards.check
        self.launcher.add(given, prepared.plan, raw_stream, current, torch.is_grad_enabled, bump_versions)


def _place(device: int) -> str:
    return "host memory" if device < 0 else f"the memory of GPU {device}"


def _integers(scalars: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(value) for name, value in scalars.items() if isinstance(value, int)}


def _moved(info: ArrayInfo, array: Any, device: int) -> ArrayInfo:
    """`info` once the movable `array` of its elements is on `device`, at an address that is yet to be found."""
    strides = tuple(s // array.itemsize for s in array.strides)
    return replace(info, strides=strides, pointer=0, device=device, writable=True, owner=None, stream=None)


def _passed_strides(arrays: Mapping[str, ArrayInfo], spec: Specialization) -> dict[str, tuple[int, ...]]:
    """Strides as the kernel gets them. One along an axis of extent 1 is never used and may not fit: it becomes 0."""
    if spec.index_bits == 64:
        return {name: info.strides for name, info in arrays.items()}
    return {name: tuple(s if abs(s) < 2**31 else 0 for s in info.strides) for name, info in arrays.items()}


def _launch_stream(arrays: Mapping[str, ArrayInfo]) -> int:
    """The stream to launch on: the current one of torch or CuPy, else the one that an array names, else the default."""
    current = [a.stream for a in arrays.values() if type(a.owner).__module__.split(".")[0] in ("torch", "cupy")]
    named = [a.stream for a in arrays.values() if a.stream is not None]
    return _handle(next((s for s in [*current, *named] if s is not None), 0))


def _other_streams(arrays: Mapping[str, ArrayInfo], stream: int) -> set[int]:
    return {_handle(a.stream) for a in arrays.values() if a.stream is not None} - {stream}


def _handle(stream: int) -> int:
    return 0 if stream == 1 else stream  # 1 names the legacy default stream (CUDA array interface), whose handle is 0
