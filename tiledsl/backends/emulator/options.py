"""What a caller may ask of one run, and what comes back."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TextIO

from numpy.typing import NDArray

from tiledsl.backends.emulator.hooks import Hook
from tiledsl.errors import HazardError, KernelArgumentError, Loc
from tiledsl.findings import EVERYTHING, Selection
from tiledsl.outside import count_of


def _default_steps() -> int:
    text = os.environ.get("TILEDSL_MAX_STEPS", "2000000")
    if (steps := count_of(text, least=1)) is None:
        raise KernelArgumentError(
            f"TILEDSL_MAX_STEPS is {text!r}; expected a number of iterations, 1 or more\n  fix: set it so, or unset it"
        )
    return steps


def _raise(error: HazardError) -> None:
    raise error


@dataclass(frozen=True)
class Options:
    """How to run.

    checks: report races on shared and global memory, reads of shared bytes that nobody wrote, asynchronous copies that
        nobody waited for, and what TMA and wgmma must not meet.
    selection: which of these.
    unwritten: names of tensors that hold nothing, so that what the kernel has not written is not to be read.
    report: is called with each finding that the run can go on behind, and does if this returns; else it is raised.
    hooks: clients that hear of every access, and of all that orders accesses.
    stdout: where `print` writes; None is `sys.stdout`.
    trace: (block, thread), each a linear index or coordinates, whose every result is recorded.
    max_steps: iterations of loops, of whatever kind, that the run may have in all; a cohort's iteration is one, a
        chunk and a row of a trace are some. A run that has more is said not to end. TILEDSL_MAX_STEPS sets the default.
    chunk_threads: how many threads are emulated at once (it sets the size of the arrays).
    processors: SMs of the GPU that is emulated. None: 8 for a kernel whose grid depends on them; for others those of an
        H200, which only limit how many blocks can wait for each other.
    residues: compute on integers modulo a prime in place of floats (`residues`), on copies of the arrays.
    seed: of the order of turns (`chances`), in which it may then have more steps; None and 0 are the usual order.
    """

    checks: bool = False
    selection: Selection = EVERYTHING
    unwritten: frozenset[str] = frozenset()
    report: Callable[[HazardError], None] = _raise
    hooks: tuple[Hook, ...] = ()
    stdout: TextIO | None = None
    trace: tuple[int | tuple[int, ...], int | tuple[int, ...]] | None = None
    max_steps: int = field(default_factory=_default_steps)
    chunk_threads: int = 65536
    processors: int | None = None
    residues: bool = False
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One op as one thread executed it: `values` are its results, NumPy scalars. `str` gives line, op, results."""

    loc: Loc
    name: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"line {self.loc.line}: {self.name} {', '.join(map(str, self.values))}".rstrip()


@dataclass
class RunResult:
    """`trace`: the rows of the thread that `Options.trace` names, in program order. `not_run`: with checks, a location
    in each line that no thread executed. `tensors`: with residues, what each holds behind the run, as residues in i64
    or integers."""

    trace: list[TraceRow] = field(default_factory=list[TraceRow])
    not_run: list[Loc] = field(default_factory=list[Loc])
    tensors: dict[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
