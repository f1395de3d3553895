"""Building and timing the candidates of a kernel that multiplies two matrices, in processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tiledsl.errors import CompileErrors, DeviceError, LocatedError, TileError
from tiledsl.inspect.bench import GRAPHED
from tiledsl.inspect.contenders import CUBLAS, Contender, Operands, Size, WrongResult, cublas, format_of, read_roles
from tiledsl.inspect.frameworks import Device, open_device
from tiledsl.inspect.loading import load_kernel
from tiledsl.inspect.timing import buffer_sets, interleave
from tiledsl.ir.types import DTYPES, DType
from tiledsl.kernel import TileKernel
from tiledsl.measure import PRODUCTS
from tiledsl.outside import is_time
from tiledsl.runtime.driver import driver
from tiledsl.signatures.signature import Specialization
from tiledsl.signatures.specialize import ArrayInfo
from tiledsl.tune.carried import Carried, code_of
from tiledsl.tune.search import BUILT, Result
from tiledsl.tune.space import Space, space_of

Gpu = Callable[[str], tuple[str, str, Device]]
"""Opens a GPU for products of a format: its name, its target, and what times on it."""
APART = 1 << 50
"""Between the addresses of arrays that do not exist."""
MOST_SETS = 512
"""Of operands: as many as small ones need to be out of L2 would take longer to make than to time."""


@dataclass(frozen=True)
class Task:
    """What is tuned, as texts and numbers: other processes read the file themselves.

    settings: of the space, from the command line. stored: as in `contenders.LAYOUTS`. code: digest of the kernel, which
    must be that of the file still; "" if it is not known yet. kernels: a folder of builds that is carried from the
    machine that builds to the one that times, or "". cold, graph, rounds, seconds: of the timing.
    """

    file: str
    kernel: str
    settings: tuple[str, ...]
    format: str
    stored: str
    arch: str
    code: str = ""
    kernels: str = ""
    cold: bool = True
    graph: bool = True
    rounds: int = 5
    seconds: float = 0.01

    def opened(self) -> Tuned:
        """Raises TileError for what cannot be tuned, and for a file that has changed."""
        kernel = load_kernel(Path(self.file), self.kernel)
        contender = Contender(kernel.name, kernel, {}, read_roles(kernel))
        task = replace(self, kernel=kernel.name, format=format_of([contender], self.format))
        tuned = Tuned(replace(task, stored=self.stored or contender.roles.layout), kernel, contender)
        if self.code not in ("", tuned.code):
            raise TileError(f"tune: {kernel.name} has changed meanwhile\n  fix: run the same command again")
        return tuned


@dataclass(frozen=True)
class Tuned:
    """A kernel with its space, in one process."""

    task: Task
    kernel: TileKernel
    contender: Contender

    @cached_property
    def space(self) -> Space:
        return space_of(self.kernel, self.task.settings)

    @cached_property
    def candidates(self) -> list[dict[str, Any]]:
        return self.space.candidates()

    @cached_property
    def code(self) -> str:
        return code_of(self.kernel)

    def contender_of(self, consts: dict[str, Any]) -> Contender:
        label = " ".join(f"{name}={value}" for name, value in consts.items())
        return replace(self.contender, label=label, consts=consts)

    def build_of(self, size: Size, consts: dict[str, Any], arch: str) -> tuple[Specialization, str]:
        """The build that a launch on contiguous, aligned arrays uses. Raises TileError if there can be none."""
        roles, product = self.contender.roles, PRODUCTS[self.task.format]
        given: dict[str, Any] = {p.name: None for p in self.kernel.signature.tensors if p.optional}
        operand, result = DTYPES[product.operand], DTYPES[product.result]
        extents = (
            (roles.a, operand, size.m, size.k),
            (roles.b, operand, size.k, size.n),
            (roles.c, result, size.m, size.n),
        )
        orders = zip((*self.task.stored, "N"), (*roles.layout, "N"), strict=True)
        for number, ((name, dtype, rows, columns), (stored, declared)) in enumerate(zip(extents, orders, strict=True)):
            batch = size.batch or int(roles.batched)
            given[name] = _array(dtype, batch, rows, columns, stored, declared, APART * (number + 1))
        values = self.kernel.dispatcher.launcher.bind((), {**given, **consts})
        return self.kernel.dispatcher.build_of(values, arch)

    @cached_property
    def carried(self) -> Carried:
        return Carried(self.task.kernels)


def _array(dtype: DType, batch: int, rows: int, columns: int, stored: str, declared: str, pointer: int) -> ArrayInfo:
    """An array that does not exist, as `Contender.launcher` passes it."""
    shape, strides = (rows, columns), (columns, 1) if stored == "N" else (1, rows)
    if declared == "T":
        shape, strides = shape[::-1], strides[::-1]
    if batch:
        shape, strides = (batch, *shape), (rows * columns, *strides)
    return ArrayInfo(dtype, shape, strides, pointer, 0, True, None)


def size_of(numbers: tuple[int, ...]) -> Size:
    return Size(*numbers[-3:], batch=numbers[0] if len(numbers) == 4 else 0)


# -- building ------------------------------------------------------------------------------------------


def open_builder(task: Task) -> tuple[Any, Callable[[Any], Result]]:
    """A process that builds: a job is the numbers of a product, and the number of a candidate."""
    tuned = task.opened()

    def build(job: tuple[tuple[int, ...], int]) -> Result:
        numbers, number = job
        try:
            build = tuned.build_of(size_of(numbers), tuned.candidates[number], task.arch)
            used = tuned.carried.build(tuned.kernel, *build).resources
        except TileError as error:
            return {"outcome": "refused", "reason": reason_of(error)}
        spilled = used.spill_stores + used.spill_loads
        if spilled:
            return {"outcome": "refused", "reason": f"ptxas spills {spilled} bytes of registers"}
        return {"outcome": BUILT, "registers": used.registers, "shared": used.shared}

    return None, build


def reason_of(error: TileError) -> str:
    """The first line of an error, without its place."""
    if isinstance(error, CompileErrors):
        error = error.errors[0]
    return error.message if isinstance(error, LocatedError) else str(error).partition("\n")[0]


# -- timing --------------------------------------------------------------------------------------------


def open_gpu(format: str) -> tuple[str, str, Device]:
    try:
        device = open_device(format)
    except DeviceError as error:
        fix = "run it on a machine with one; --build ARCH --kernels DIR, which builds for it, needs none"
        raise DeviceError(f"tune: {error}\n  fix: {fix}") from None
    gpu = driver()
    used = gpu.current_device()
    return gpu.devices[used].name, gpu.target_of(used), device


def open_timer(task: Task, gpu: Gpu = open_gpu) -> tuple[Any, Callable[[Any], Result]]:
    """A process that times: a job is the numbers of a product, and the number of a candidate, or several numbers of
    finalists, which are timed by turns with cuBLAS."""
    tuned = task.opened()
    name, arch, device = gpu(task.format)
    held: list[Operands] = []

    def operands_of(numbers: tuple[int, ...]) -> Operands:
        size = size_of(numbers)
        if not held or held[0].size != size:
            held.clear()  # before others are allocated
            sets = min(MOST_SETS, buffer_sets(size.bytes(device.itemsizes), cold=task.cold))
            held.append(Operands(device, size, sets))
        return held[0]

    def launcher_of(operands: Operands, number: int) -> Callable[[int], None]:
        consts = tuned.candidates[number]
        tuned.carried.adopt(tuned.kernel, *tuned.build_of(operands.size, consts, arch))
        return tuned.contender_of(consts).launcher(operands, task.stored)

    def time(job: tuple[tuple[int, ...], int | tuple[int, ...]]) -> Result:
        numbers, chosen = job
        operands = operands_of(numbers)
        graphed = max(GRAPHED, operands.sets) if task.graph else 1
        if isinstance(chosen, tuple):
            launches = {str(number): launcher_of(operands, number) for number in chosen}
            launches[CUBLAS] = cublas(operands, graphed)[1]
            taken = interleave(device, launches, rounds=11, seconds=2 * task.seconds, graphed=graphed)
            return {"outcome": "timed", "us": {label: _us(taken.median(label)) for label in launches}}
        launch = launcher_of(operands, chosen)
        try:
            operands.check(tuned.contender_of(tuned.candidates[chosen]).label, launch)
        except WrongResult as error:
            return {"outcome": "wrong", "reason": reason_of(error)}
        except DeviceError:
            raise  # this process is of no more use
        except TileError as error:
            return {"outcome": "refused", "reason": reason_of(error)}
        taken = interleave(device, {"": launch}, rounds=task.rounds, seconds=task.seconds, graphed=graphed)
        us = _us(taken.median(""))
        return {"outcome": "timed", "us": us} if is_time(us) else {"outcome": "failed", "reason": f"it took {us:g} us"}

    return {"device": name, "arch": arch}, time


def _us(milliseconds: float) -> float:
    """What is worth writing down of a time."""
    return float(f"{1e3 * milliseconds:.5g}")
