"""The slow path of a call: checks and describes the arguments, makes a plan, and runs it on the emulator or a GPU.

Host arrays run on the emulator, or are copied to the GPU if there is one. CUDA arrays are used in place, on the current
stream of their library. What a plan holds (the specialisation, the compiled code, the grid, tensor maps) is reused for
later calls with similar arguments; the launcher keeps all plans.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable, Generator, Iterable, Iterator, Mapping, TypeVar

from tiledsl.arch import EMULATED_ARCH
from tiledsl.ir.abi import launch_parameters
from tiledsl.ir.expr import PROCESSORS, names_of, parse_expr
from tiledsl.ir.grid import checked_grid
from tiledsl.outside import plain
from tiledsl.runtime.arrays import describe, host_array, is_torch, movable, same_bytes, self_overlapping
from tiledsl.runtime.driver import Driver, available, driver
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
from tiledsl.signatures.signature import REQUIRED, Signature, Specialization
from tiledsl.signatures.specialize import (
    ArrayInfo,
    Named,
    absent,
    argument_error,
    check_consts,
    check_scalar,
    specialize,
)

if TYPE_CHECKING:
    from tiledsl.compilation.compiled import Image
    from tiledsl.compilation.compiler import Builds, Lowered

P = TypeVar("P")
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
                message = f"{places[0][0]} is in {place_name(places[0][1])}, but {name} in {place_name(place)}"
                raise argument_error(signature, message, "move all arrays to one device", code="C804")
        return Arguments({**values, "device": device}, arrays, scalars, consts)

    # -- running -----------------------------------------------------------------------------------------

    def run(self, values: Mapping[str, Any], device: Any = None) -> tuple[str, ...]:
        """Check the arguments of a call, run it and keep its plan. Returns the names of the tensors that the kernel may
        write."""
        arguments = self.arguments(values, device)
        if self.place(arguments) == "emulator":
            return self.emulate(arguments)[0]
        with (
            self.on_gpu(arguments) as prepared,
            in_order(prepared.plan.driver, prepared.stream, arguments.present.values()),
        ):
            prepared.run()
        return prepared.plan.written

    def place(self, arguments: Arguments) -> str:
        """ "emulator" or "gpu": where a call runs. Raises KernelArgumentError or DeviceError."""
        name = next(iter(arguments.present), "")
        return place_of(self.signature, arguments.given["device"], name, arguments.device)

    def emulated(self, arguments: Arguments) -> Lowered:
        """What a call runs on the emulator."""
        return self._plan(arguments, EMULATED, self._emulation, arguments.present)

    def emulate(self, arguments: Arguments, options: Any = None) -> tuple[tuple[str, ...], Any]:
        """Run on the emulator, with its Options. Returns the names of the tensors that the kernel may have written, and
        the emulator's RunResult."""
        plan, inputs = self.emulation(arguments)
        return plan.written, plan.prepared.run(inputs, options=options)

    def emulation(self, arguments: Arguments, *, shared: bool = False) -> tuple[Lowered, dict[str, Any]]:
        """What a call runs on the emulator, now, and its arguments there. shared: they may have elements in common, as
        far as no element that is written is another one's."""
        plan, arrays = self._emulation(arguments) if shared else self.emulated(arguments), arguments.present
        count_versions(_of_torch(arrays, plan.written))
        return plan, {**{name: host_array(info) for name, info in arrays.items()}, **arguments.scalars}

    @contextmanager
    def on_gpu(self, arguments: Arguments) -> Generator[CheckedLaunch, None, None]:
        """A launch on CUDA arrays in place, or on copies of host arrays on the GPU, which live as long as the block.
        Arrays that the kernel writes are copied back at the end of the block."""
        arrays = arguments.present
        if arguments.device >= 0:
            if all(is_torch(info.owner) for info in arrays.values()):
                torch = sys.modules["torch"]
                self.launcher.take_torch(torch._C._cuda_getCurrentRawStream, torch.is_grad_enabled)
            plan = self._plan(arguments, arguments.given["device"], self._launch_plan, arrays)
            yield CheckedLaunch(plan, launch_stream(arrays.values()), arguments, _of_torch(arrays, plan.written))
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

    # -- launches of other code --------------------------------------------------------------------------

    def prepared(self, values: Mapping[str, Any]) -> LaunchPlan:
        """The plan of a launch on CUDA arrays, for a caller that runs it itself, on other addresses, too: of the same
        alignment to 16 bytes. `values`: all arguments and consts by name; arrays may be given as `ArrayInfo`."""
        arguments = self.arguments(values)
        return self._plan(arguments, None, self._launch_plan, arguments.present)

    def build_of(self, values: Mapping[str, Any], arch: str = "") -> tuple[Specialization, str]:
        """The build that a launch with these `values` uses: the specialisation and the target, by default that of the
        device."""
        arguments = self.arguments(values)
        target = arch or driver().target_of(max(arguments.device, 0), self.signature.name, self.signature.arch)
        return specialize(self.signature, arguments.arrays, arguments.consts).spec, target

    def is_loaded(self, values: Mapping[str, Any]) -> bool:
        """Can `prepared` do without compiling, and without loading code to the GPU?"""
        arguments, gpu = self.arguments(values), driver()
        image = self.builds.known(*self.build_of(values))
        with gpu.active(arguments.device) as context:
            return image is not None and gpu.is_loaded(*_code(context, image, arguments.device))

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
        consts = {n: given[n] if plain(given[n]) is not given[n] else value for n, value in arguments.consts.items()}
        keyed = {**given, **consts, **_keyed_arrays(arguments), "device": where}
        with self.builds.lock:
            known: Any = self.launcher.plan(self.launcher.key(keyed), meaning)
            plan: Any = make(arguments) if known is None else known
        for name in plan.written:
            for problem, fix in memory_problems(name, memory):
                raise argument_error(self.signature, f"{name} is written by the kernel, {problem}", fix, code="C804")
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
        extents = tuple(map(parse_expr, image.grid))
        used = {name for extent in extents for name in names_of(extent)}
        self.launcher.key_by_value(frozenset(p.name for p in self.signature.scalars if p.name in used))
        arrays = arguments.present
        check_maps(image.name, image.tensor_maps, arrays)
        integers = {name: int(value) for name, value in arguments.scalars.items() if isinstance(value, int)}
        parameters = launch_parameters(image.abi, image.tensor_maps)
        buffer = ArgumentBuffer(parameters, problem.extents, {name: info.strides for name, info in arrays.items()})
        with gpu.active(device) as context:
            function = gpu.function(*_code(context, image, device))
            shape = Shape(image.cluster, image.block, image.shared_bytes, image.cluster, image.dependent)
            processors = gpu.devices[device].processors
            if PROCESSORS in used and image.cluster != (1, 1, 1):
                processors = min(processors, processors_for(gpu, function, shape))
            if image.tensor_maps:
                gpu.blank(context, False)  # now, as nothing can be allocated while a graph is captured
        names = {PROCESSORS: processors, **problem.extents, **integers}
        grid = checked_grid(image.name, extents, names, image.cluster)
        maps = None
        if image.tensor_maps:
            maps = MapImages(gpu, device, image.name, image.tensor_maps, buffer.pointers, arrays, image.written)
        windows = overlap_windows(buffer.pointers, arrays, image.written)
        shape = replace(shape, grid=grid)
        return LaunchPlan(gpu, image.name, device, function, shape, buffer, windows, maps, image.written)


def _code(context: int, image: Image, device: int) -> tuple[Any, ...]:
    """The arguments of `Driver.function`."""
    return context, image.cubin, image.name, image.arch, image.shared_bytes, device


def memory_problems(name: str, arrays: Mapping[str, ArrayInfo]) -> Iterator[tuple[str, str]]:
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
    if is_torch(info.owner) and info.owner.requires_grad and sys.modules["torch"].is_grad_enabled():
        fix = f"pass {name}.detach(), call it under torch.no_grad(), or from a torch.autograd.Function"
        yield "and requires a gradient, which a kernel does not have", fix


def place_of(called: Named, device: Any, name: str, memory: int) -> str:
    """ "emulator" or "gpu": where a call with this `device` runs, whose array `name` is in the `memory` of that number.
    Raises KernelArgumentError or DeviceError."""
    if not (device is None or (isinstance(device, str) and device in ("emulator", "gpu"))):
        raise argument_error(called, f"device is {device!r}", 'pass "emulator", "gpu", or leave it out')
    if device == "emulator" and memory >= 0:
        message = f"{name} is in {place_name(memory)}, and the emulator runs on host memory"
        raise argument_error(called, message, "pass NumPy arrays", code="C804")
    if device == "emulator" or (device is None and memory < 0 and available() is None):
        return "emulator"
    driver().refuse_if_lost()
    return "gpu"


def place_name(device: int) -> str:
    return "host memory" if device < 0 else f"the memory of GPU {device}"


def _keyed_arrays(arguments: Arguments) -> Mapping[str, Any]:
    """The arrays for the key: the torch tensors themselves if all are, since the launcher builds the key from those.

    A key does not show that a tensor is a lazily negated view, which is refused. Such a view is the imaginary part of a
    conjugate, which has no stride of 1, so tensors without one are excluded.
    """
    arrays = arguments.present.values()
    plain = arguments.device >= 0 and all(is_torch(a.owner) and (a.empty or 1 in a.strides) for a in arrays)
    return {n: a and a.owner for n, a in arguments.arrays.items()} if plain else arguments.arrays


def _of_torch(arrays: Mapping[str, ArrayInfo], names: tuple[str, ...]) -> tuple[Any, ...]:
    """The torch tensors of these names."""
    return tuple(arrays[name].owner for name in names if is_torch(arrays[name].owner))


def _copied(info: ArrayInfo, array: Any, device: int) -> ArrayInfo:
    """`info` after its elements, now in `array`, are copied to `device`; the address is not known yet."""
    strides = tuple(s // array.itemsize for s in array.strides)
    return replace(info, strides=strides, pointer=0, device=device, writable=True, owner=None, stream=None)


@contextmanager
def in_order(gpu: Driver, stream: int, arrays: Iterable[ArrayInfo]) -> Generator[None]:
    """Work that the block launches on `stream` comes after what other streams have done to `arrays`, and before what
    they do next."""
    others = {info.stream for info in arrays if info.stream is not None} - {stream}
    for other in others:
        gpu.wait_for(stream, other)
    yield
    for other in others:
        gpu.wait_for(other, stream)


def launch_stream(arrays: Iterable[ArrayInfo]) -> int:
    """The stream to launch on: torch's or CuPy's current one, else one that an array names, else the default stream."""
    described = list(arrays)
    current = [a.stream for a in described if type(a.owner).__module__.split(".")[0] in ("torch", "cupy")]
    named = [a.stream for a in described]
    return next((stream for stream in [*current, *named] if stream is not None), 0)
