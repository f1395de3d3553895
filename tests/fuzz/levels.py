"""One kernel at both levels on the emulator: the same results, bit for bit, or the same fate."""

from __future__ import annotations

import io
from random import Random
from typing import Any

import numpy as np

from tests.filetest import random_values, strided
from tests.fuzz.outcome import Outcome, OutOfTime, in_program, judge, limit
from tiledsl.backends import emulator
from tiledsl.errors import HazardError, KernelArgumentError, TileError
from tiledsl.ir.abi import abi_of
from tiledsl.ir.core import Kernel
from tiledsl.ir.ops import debug
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import DType, GlobalType

__all__ = ["compare", "run_alone"]

SECONDS = 3.0
"""Of one run; a kernel that takes longer is not compared."""
EXTENTS = (16, 32, 48, 64)
"""Multiples of the 16 bytes that a specialisation promises, of any dtype."""
MOST_ELEMENTS = 1 << 20


class _NotRun(Exception):  # noqa: N818 - it is an outcome
    """The kernel is too large, too long, or needs what a run here cannot have."""


def compare(tile_level: Kernel, thread_level: Kernel, random: Random) -> Outcome:
    """Run both on equal arguments. Kernels that race are left out: levels may order accesses as they like."""
    try:
        seed = random.getrandbits(32)
        runs = [_run(kernel, _arguments(tile_level, seed)) for kernel in (tile_level, thread_level)]
        outcome = next((r for r in runs if isinstance(r, Outcome)), None)
        if outcome is not None:
            return outcome
        if not runs[1][0] and _is_dropped(runs[0][0], thread_level):
            return Outcome("stopped", detail=runs[0][0])
        (error, printed, arrays), (error_below, printed_below, arrays_below) = runs
        if error and error_below:
            return Outcome("stopped", detail=error)
        if (error, printed, arrays) == (error_below, printed_below, arrays_below):
            return Outcome("ok")
        if "emulate= of" in error + error_below:
            return Outcome("stopped", detail=error or error_below)  # the user's function, whose result may be unused
        if _races(tile_level, seed) or _races(thread_level, seed, tile_level):
            return Outcome("race")
        return _difference(tile_level, runs)
    except _NotRun as reason:
        return Outcome("not run", detail=str(reason))


def _is_dropped(error: str, thread_level: Kernel) -> bool:
    """Is it about what nobody uses, so that thread level does not read it?"""
    places = {f"{op.loc}: error: " for op in thread_level.walk() if op.effects}
    return ": error: " in error and not any(place in error for place in places)


def run_alone(kernel: Kernel, random: Random) -> Outcome:
    """Run a kernel of any level for what the emulator makes of it."""
    try:
        outcome = _run(kernel, _arguments(kernel, random.getrandbits(32)))
    except _NotRun as reason:
        return Outcome("not run", detail=str(reason))
    if isinstance(outcome, Outcome):
        return outcome
    return Outcome("stopped", detail=outcome[0]) if outcome[0] else Outcome("ok")


def _difference(kernel: Kernel, runs: list[Any]) -> Outcome:
    (error, printed, arrays), (error_below, printed_below, arrays_below) = runs
    if error or error_below:
        level = "tile level" if error else "thread level"
        text = error or error_below
        return Outcome("levels", f"an error at {level} only: {_kind(text)}", text)
    if printed != printed_below:
        return Outcome("levels", "printed lines", f"{printed}\n{printed_below}")
    names = [name for name in arrays if arrays[name] != arrays_below[name]]
    used = sorted({op.name for op in kernel.walk() if op.effects} - {"tile.store", "tile.put", "tile.load", "tile.get"})
    return Outcome("levels", "bits", f"{', '.join(names)} differ; the kernel has {', '.join(used)}")


def _kind(error: str) -> str:
    """The message of an EmulatorError without its names and numbers."""
    message = error.split("error: ", 1)[-1].split("\n")[0]
    return "".join(c for c in message if not c.isdigit())[:60]


def _run(kernel: Kernel, arguments: dict[str, Any], **options: Any) -> Any:
    """(error, printed lines, bits of the arrays by name), or a finding."""
    printed = io.StringIO()
    asked = emulator.Options(stdout=printed, max_steps=2000, chunk_threads=8192, processors=2, **options)
    error = ""
    try:
        with limit(SECONDS):
            emulator.run(kernel.clone(), arguments, options=asked)
    except OutOfTime:
        raise _NotRun("too long") from None
    except MemoryError:
        raise _NotRun("too large") from None
    except KernelArgumentError as refused:
        raise _NotRun(str(refused)) from None
    except TileError as stopped:
        if "cannot run the PTX" in str(stopped):
            raise _NotRun(str(stopped)) from None
        error = f"{type(stopped).__name__}: {stopped}"
    except Exception as broken:
        if in_program(broken):
            return Outcome("stopped", detail=str(broken))
        return judge(broken)
    arrays = {name: a.tobytes() for name, a in arguments.items() if isinstance(a, np.ndarray) and a.ndim}
    return error, sorted(printed.getvalue().splitlines()), arrays


def _arguments(kernel: Kernel, seed: int) -> dict[str, Any]:
    """Random ones. Tensors are laid out as the types of a tile-level kernel promise."""
    if any(isinstance(op, debug.Breakpoint) for op in kernel.walk()):
        raise _NotRun("a breakpoint")
    random = Random(seed)
    params = [(a.name, a.type) for a in kernel.body.args]
    types = dict(params) if kernel.level == "tile" else {}
    extents: dict[str, int] = {}
    given: dict[str, Any] = {}
    for arg in abi_of(params, 64) if kernel.level == "tile" else kernel.abi:
        if arg.kind == "pointer":
            dims = arg.dims or ("_flat",)
            shape = [d if isinstance(d, int) else extents.setdefault(d, random.choice(EXTENTS)) for d in dims]
            if any(n < 0 for n in shape) or np.prod(shape, dtype=float) > MOST_ELEMENTS:
                raise _NotRun("a tensor is too large")
            array = random_values(random.getrandbits(32), arg.dtype, int(np.prod(shape))).reshape(shape)
            type_ = types.get(arg.name)
            given[arg.name] = strided(array, type_ if isinstance(type_, GlobalType) else None)
        elif arg.kind == "scalar":
            given[arg.name] = _scalar(arg.dtype, random)
        elif arg.kind == "extent" and kernel.level == "thread" and arg.name not in extents:
            given[arg.name] = random.choice(EXTENTS)
    return given


def _scalar(dtype: DType, random: Random) -> Any:
    value = random.choice((0, 1, 2, 3, 5)) if dtype.python is int else random.choice((0.0, 1.0, -0.5, 3.0))
    return np.array(value, numpy_dtype(dtype))[()]


# -- races -----------------------------------------------------------------------------------------


class _Sharing(emulator.Hook):
    """Finds bytes of global memory that one thread writes and another one accesses, whatever is between them."""

    def __init__(self) -> None:
        self.owners: dict[int, int] = {}
        self.written: dict[int, bool] = {}
        self.shared = False

    def on_access(self, access: emulator.Access) -> None:
        if self.shared or access.space != "global":
            return
        writes = access.kind != "read" and access.kind != "fetch"
        threads = access.blocks * 4096 + access.threads
        for address, thread in zip(access.addresses.tolist(), threads.tolist(), strict=True):
            for byte in range(address, address + access.width):
                owner = self.owners.setdefault(byte, thread)
                written = self.written.get(byte, False) or writes
                self.written[byte] = written
                if owner != thread:
                    self.owners[byte] = -1
                    self.shared = self.shared or written


def _races(kernel: Kernel, seed: int, like: Kernel | None = None) -> bool:
    """True if the order in which threads run may decide what this kernel computes."""
    if any(".atomic_" in op.name for op in kernel.walk()):
        return True
    sharing = _Sharing()
    outcome = _run(kernel, _arguments(like or kernel, seed), checks=True, hooks=(sharing,))
    hazard = not isinstance(outcome, Outcome) and outcome[0].startswith(HazardError.__name__)
    return hazard or sharing.shared
