"""The slow path of a call: checks and describes the arguments, makes a plan, and runs it on the emulator or a GPU.

Host arrays run on the emulator, or are copied to the GPU if there is one. CUDA arrays are used in place, on the current
stream of their library. What a plan holds (the specialisation, the compiled code, the grid, tensor maps) is reused for
later calls with similar arguments; the launcher keeps all plans.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable, Generator, Iterator, Mapping, TypeVar

from tiledsl.ir.abi import launch_parameters
from tiledsl.ir.expr import PROCESSORS, parse_expr
from tiledsl.ir.grid import checked_grid
from tiledsl.runtime.arrays import describe, host_array, movable, same_bytes, self_overlapping
from tiledsl.runtime.driver import available, driver
from tiledsl.runtime.launch import (
    ArgumentBuffer,
    LaunchPlan,
    Shape,
    count_versions,
    overlap_windows,
    processors_for,
)
from tiledsl.runtime.launcher import Launcher
from tiledsl.runtime.tensor_maps import MapImages, check_maps
from tiledsl.signatures.signature import REQUIRED, Signature
from tiledsl.signatures.specialize import (
    ArrayInfo,
    absent,
    argument_error,
    check_consts,
    check_scalar,
    is_numpy_scalar,
    specialize,
)

if TYPE_CHECKING:
    from tiledsl.compilation.compiler import Builds, Lowered

P = TypeVar("P")
EMULATED_ARCH = "sm_90a"
"""The target whose limits the emulator applies to a kernel that names none."""
EMULATED, COPIED = object(), object()
"""Values of `device` in the keys of plans for the emulator and for copies of host arrays; no call can pass them."""


@dataclass(frozen=True)
class Arguments:
    """The checked arguments of one call, by name. `given`: all of them as they were passed, and `device`. An optional
    array that is absent is None."""

    given: Mapping[str, Any]
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


class CheckedLaunch:
    """A launch whose `arguments` and memory were checked. It can run many times. `tensors`: torch tensors that are
    written."""

    def __init__(self, plan: LaunchPlan, stream: int, arguments: Arguments, tensors: tuple[Any, ...]) -> None:
        self.plan, self.stream, self._tensors = plan, stream, tensors
        self._pointers = tuple(arguments.present[name].pointer for name in plan.arguments.pointers)
        self._scalars = tuple(arguments.scalars[name] for name in plan.arguments.scalars)

    def run(self) -> None:
        launched = self.plan.run(self.stream, self._pointers, self._scalars, self._tensors)
        assert launched, f"a scalar of {self.plan.kernel}() does not fit: {self._scalars}"


class Dispatcher:
    """Runs the calls of one kernel. `launcher` is the fast path for torch tensors, and keeps all plans."""

    def __init__(self, builds: Builds) -> None:
        self.builds = builds
        self.signature: Signature = builds.signature
        self.launcher = Launcher(self.signature, self.run)

    # -- checking ----------------------------------------------------------------------------------------

    def arguments(self, values: Mapping[str, Any], device: Any = None) -> Arguments:
        """Check and describe all arguments, given by name. Raises KernelArgumentError."""
        signature = self.signature
        for param in signature.params:
            if values[param.name] is REQUIRED:
                fix = f"call it as {signature.usage}"
                raise argument_error(signature, f"the argument {param.name} is missing", fix)
        consts = check_consts(signature, {c.name: values[c.name] for c in signature.consts})
        scalars = {p.name: check_scalar(signature, p, values[p.name]) for p in signature.scalars}
        arrays = {
            p.name: absent(signature, p) if values[p.name] is None else describe(signature, p.name, values[p.name])
            for p in signature.tensors
        }
        places = [(name, info.device) for name, info in arrays.items() if info is not None]
        for name, place in places:
            if place != places[0][1]:
                message = f"{places[0][0]} is in {_place(places[0][1])}, but {name} in {_place(place)}"
                raise argument_error(signature, message, "move all arrays to one device")
        return Arguments({**values, "device": device}, arrays, scalars, consts)

    # -- running -----------------------------------------------------------------------------------------

    def run(self, values: Mapping[str, Any], device: Any = None) -> tuple[str, ...]:
        """Check the arguments of a call, run it and keep its plan. Returns the names of the tensors that the kernel may
        write."""
        arguments = self.arguments(values, device)
        if self.place(arguments) == "emulator":
            return self.emulate(arguments)[0]
        with self.on_gpu(arguments) as prepared:
            gpu = prepared.plan.driver
            streams = {info.stream for info in arguments.present.values() if info.stream is not None}
            others = streams - {prepared.stream}
            for other in others:
                gpu.wait_for(prepared.stream, other)
            prepared.run()
            for other in others:
                gpu.wait_for(other, prepared.stream)
        return prepared.plan.written

    def place(self, arguments: Arguments) -> str:
        """ "emulator" or "gpu": where a call runs. Raises KernelArgumentError or DeviceError."""
        device = arguments.given["device"]
        if not (device is None or (isinstance(device, str) and device in ("emulator", "gpu"))):
            fix = 'pass "emulator", "gpu", or leave it out'
            raise argument_error(self.signature, f"device is {device!r}", fix)
        if device == "emulator" and arguments.device >= 0:
            name = next(iter(arguments.present))
            message = f"{name} is in {_place(arguments.device)}, and the emulator runs on host memory"
            raise argument_error(self.signature, message, "pass NumPy arrays")
        if device == "emulator" or (device is None and arguments.device < 0 and available() is None):
            return "emulator"
        driver().refuse_if_lost()
        return "gpu"

    def emulate(self, arguments: Arguments, options: Any = None) -> tuple[tuple[str, ...], Any]:
        """Run on the emulator, with its Options. Returns the names of the tensors that the kernel may have written, and
        the emulator's RunResult."""
        plan = self._plan(arguments, EMULATED, self._emulation, arguments.present)
        arrays = arguments.present
        count_versions(_of_torch(arrays, plan.written))
        inputs = {**{name: host_array(info) for name, info in arrays.items()}, **arguments.scalars}
        return plan.written, plan.prepared.run(inputs, options=options)

    @contextmanager
    def on_gpu(self, arguments: Arguments) -> Generator[CheckedLaunch, None, None]:
        """A launch on CUDA arrays in place, or on copies of host arrays on the GPU, which live as long as the block.
        Arrays that the kernel writes are copied back at the end of the block."""
        arrays = arguments.present
        if arguments.device >= 0:
            if all(map(_is_torch, arrays.values())):
                torch = sys.modules["torch"]
                self.launcher.take_torch(torch._C._cuda_getCurrentRawStream, torch.is_grad_enabled)
            plan = self._plan(arguments, arguments.given["device"], self._launch_plan, arrays)
            yield CheckedLaunch(plan, _launch_stream(arrays), arguments, _of_torch(arrays, plan.written))
            return
        gpu = driver()
        device = gpu.current_device()
        copies: dict[str, tuple[Any, ArrayInfo]] = {}
        with gpu.active(device):
            try:
                for name, info in arrays.items():
                    array = movable(info)
                    copy = _copied(info, array, device)
                    pointer = gpu.allocate(copy.span()[1], f"{self.signature.name}(): {name}")
                    copies[name] = array, replace(copy, pointer=pointer)
                infos = {name: copy for name, (_, copy) in copies.items()}
                on_device = replace(arguments, arrays={n: infos.get(n) for n in arguments.arrays})
                plan = self._plan(on_device, COPIED, self._launch_plan, arrays)
                for name, (array, copy) in copies.items():
                    gpu.upload(copy.pointer, array.ctypes.data, copy.span()[1], name)
                yield CheckedLaunch(plan, 0, on_device, _of_torch(arrays, plan.written))
                gpu.synchronize(0, f"{self.signature.name}()")
                for name in plan.written:
                    (array, copy), target = copies[name], host_array(arrays[name])
                    gpu.download(array.ctypes.data, copy.pointer, copy.span()[1], name)
                    if array is not target:
                        target[...] = array
            finally:
                for _, copy in copies.values():
                    gpu.free(copy.pointer)

    # -- plans -------------------------------------------------------------------------------------------

    def _plan(
        self, arguments: Arguments, where: Any, make: Callable[[Arguments], P], memory: Mapping[str, ArrayInfo]
    ) -> P:
        """The known plan for arguments like these, or else the one that `make` returns. It is kept only after `memory`,
        the caller's own arrays, was checked, as the launcher does not check it again. `where`: the key's `device`."""
        meaning = self.builds.meaning()
        given = arguments.given
        # Consts as they were checked: an object with __index__ may give another number next time. NumPy's numbers stay,
        # so that the launcher, which sees those, finds the plan.
        consts = {n: given[n] if is_numpy_scalar(given[n]) else value for n, value in arguments.consts.items()}
        keyed = {**given, **consts, **_keyed_arrays(arguments), "device": where}
        with self.builds.lock:
            known: Any = self.launcher.plan(self.launcher.key(keyed), meaning)
            plan: Any = make(arguments) if known is None else known
        for name in plan.written:
            for problem, fix in _memory_problems(name, memory):
                raise argument_error(self.signature, f"{name} is written by the kernel, {problem}", fix)
        if known is None and meaning.holds():  # else it was compiled for another meaning
            with self.builds.lock:
                self.launcher.add(self.launcher.key(keyed), plan, meaning)
        return plan

    def _emulation(self, arguments: Arguments) -> Lowered:
        problem = specialize(self.signature, arguments.arrays, arguments.consts)
        lowered = self.builds.lowered(problem.spec, self.signature.arch or EMULATED_ARCH)
        check_maps(self.signature.name, lowered.kernel.tensor_maps, arguments.present)
        return lowered

    def _launch_plan(self, arguments: Arguments) -> LaunchPlan:
        gpu, device = driver(), max(arguments.device, 0)
        arch = gpu.target_of(device, self.signature.name, self.signature.arch)
        problem = specialize(self.signature, arguments.arrays, arguments.consts)
        image = self.builds.compiled(problem.spec, arch)
        used = set(re.findall(r"\w+", " ".join(image.grid)))
        self.launcher.key_by_value(frozenset(p.name for p in self.signature.scalars if p.name in used))
        arrays = arguments.present
        check_maps(image.name, image.tensor_maps, arrays)
        integers = {name: int(value) for name, value in arguments.scalars.items() if isinstance(value, int)}
        parameters = launch_parameters(image.abi, image.tensor_maps)
        buffer = ArgumentBuffer(parameters, problem.extents, {name: info.strides for name, info in arrays.items()})
        with gpu.active(device) as context:
            function = gpu.function(context, image.cubin, image.name, image.arch, image.shared_bytes, device)
            shape = Shape(image.cluster, image.block, image.shared_bytes, image.cluster, image.dependent)
            processors = gpu.devices[device].processors
            if PROCESSORS in used and image.cluster != (1, 1, 1):
                processors = min(processors, processors_for(gpu, function, shape))
        names = {PROCESSORS: processors, **problem.extents, **integers}
        grid = checked_grid(image.name, tuple(map(parse_expr, image.grid)), names, image.cluster)
        maps = None
        if image.tensor_maps:
            maps = MapImages(gpu, device, image.name, image.tensor_maps, buffer.pointers, arrays, image.written)
        windows = overlap_windows(buffer.pointers, arrays, image.written)
        shape = replace(shape, grid=grid)
        return LaunchPlan(gpu, image.name, device, function, shape, buffer, windows, maps, image.written)


def _memory_problems(name: str, arrays: Mapping[str, ArrayInfo]) -> Iterator[tuple[str, str]]:
    """(why the tensor `name` must not be written, how to fix it): it is read-only, shares bytes with another argument
    or with itself, or requires a gradient."""
    info = arrays[name]
    if not info.writable:
        yield "but read-only", "pass a writable array"
    if not info.empty and self_overlapping(info):
        yield f"but several of its elements are one (strides {info.strides})", "pass a copy, not a broadcast view"
    for other in arrays:
        if other != name and same_bytes(info, arrays[other]):
            yield f"and shares memory with {other}", f"pass a copy as {other}"
    if _is_torch(info) and info.owner.requires_grad and sys.modules["torch"].is_grad_enabled():
        fix = f"pass {name}.detach(), call it under torch.no_grad(), or from a torch.autograd.Function"
        yield "and requires a gradient, which a kernel does not have", fix


def _place(device: int) -> str:
    return "host memory" if device < 0 else f"the memory of GPU {device}"


def _keyed_arrays(arguments: Arguments) -> Mapping[str, Any]:
    """The arrays for the key: the torch tensors themselves if all are, since the launcher builds the key from those.

    A key does not show that a tensor is a lazily negated view, which is refused. Such a view is the imaginary part of a
    conjugate, which has no stride of 1, so tensors without one are excluded.
    """
    arrays = arguments.present.values()
    plain = arguments.device >= 0 and all(_is_torch(a) and (a.empty or 1 in a.strides) for a in arrays)
    return {n: a and a.owner for n, a in arguments.arrays.items()} if plain else arguments.arrays


def _is_torch(info: ArrayInfo) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(info.owner, torch.Tensor)


def _of_torch(arrays: Mapping[str, ArrayInfo], names: tuple[str, ...]) -> tuple[Any, ...]:
    """The torch tensors of these names."""
    return tuple(arrays[name].owner for name in names if _is_torch(arrays[name]))


def _copied(info: ArrayInfo, array: Any, device: int) -> ArrayInfo:
    """`info` after its elements, now in `array`, are copied to `device`; the address is not known yet."""
    strides = tuple(s // array.itemsize for s in array.strides)
    return replace(info, strides=strides, pointer=0, device=device, writable=True, owner=None, stream=None)


def _launch_stream(arrays: Mapping[str, ArrayInfo]) -> int:
    """The stream to launch on: torch's or CuPy's current one, else one that an array names, else the default stream."""
    current = [a.stream for a in arrays.values() if type(a.owner).__module__.split(".")[0] in ("torch", "cupy")]
    named = [a.stream for a in arrays.values()]
    return next((stream for stream in [*current, *named] if stream is not None), 0)
