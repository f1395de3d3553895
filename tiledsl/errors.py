"""Source locations, the error tree, and how an error is shown: message, the user's line, a caret.

    TileError                   every error that tiledsl raises on purpose
      LocatedError              at a line of the user's source
        CompileError            a kernel that cannot be compiled: CompileErrors (all of them), AssemblerError
        VerifyError             IR that breaks an invariant
        EmulatorError           a kernel that did something illegal on the emulator: HazardError (by its checks)
      KernelArgumentError, DeviceError, ToolNotFoundError, CacheError, UsageError

What the emulator says of a kernel is data as well: a `Finding`, with a code that `tiledsl.findings` explains. A message
says what was asked, what was expected, what was got, and how to fix it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from types import MappingProxyType
from typing import Any, Callable, ClassVar, ParamSpec, TypeVar

from tiledsl.outside import source_line

__all__ = [
    "UNKNOWN_LOC",
    "Accessed",
    "AssemblerError",
    "CacheError",
    "CompileError",
    "CompileErrors",
    "DeviceError",
    "EmulatorError",
    "Finding",
    "HazardError",
    "InternalError",
    "KernelArgumentError",
    "Loc",
    "LocatedError",
    "Side",
    "TileError",
    "ToolNotFoundError",
    "UsageError",
    "VerifyError",
    "from_outside",
    "render_at",
    "short_traceback",
]

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Loc:
    """A span of the user's source. Lines and columns count from 1; `end_col` is exclusive.

    `caller` is the call site when the op came out of an inlined `@tile_function`.
    """

    file: str
    line: int
    col: int = 1
    end_col: int = 0
    function: str = ""
    caller: Loc | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col}"

    @property
    def lines(self) -> tuple[tuple[str, int], ...]:
        """File and line, of it and of its callers."""
        return ((self.file, self.line), *(self.caller.lines if self.caller is not None else ()))


UNKNOWN_LOC = Loc("<unknown>", 0)


def render_at(loc: Loc, message: str) -> str:
    """Format `message` with the source line of `loc`, a caret below it, and the chain of callers."""
    lines = [f"{loc}: {message}" if loc.line else message]
    source = source_line(loc.file, loc.line)
    if source:
        width = max(1, min(loc.end_col, len(source) + 1) - loc.col)
        gutter = f"{loc.line:5d} | "
        lines += [gutter + source, " " * (len(gutter) - 2) + "| " + " " * (loc.col - 1) + "^" * width]
    if loc.caller is not None:
        lines.append(render_at(loc.caller, f"in {loc.function}(), called here"))
    return "\n".join(lines)


class TileError(Exception):
    """Base of every error that tiledsl raises on purpose. All of them can be copied and pickled, fields included.

    `code`: what kind of error it is, for ``python -m tiledsl error CODE``; "" for one that says it all.
    """

    code: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are unpickled by calling the class with `args`, but `__init__` may take other arguments, and a
        # process pool hangs if an error cannot be unpickled.
        return Exception.__new__, (type(self), *self.args), self.__dict__


class LocatedError(TileError):
    """An error at a line of the user's source. `fix` says what to write instead."""

    KIND: ClassVar[str] = "error"
    """The word before the message."""

    def __init__(self, message: str, loc: Loc = UNKNOWN_LOC, fix: str = "") -> None:
        self.message, self.loc, self.fix = message, loc, fix
        super().__init__(message)

    def __str__(self) -> str:
        return self._shown(self.message)

    def _shown(self, message: str) -> str:
        text = render_at(self.loc, f"{self.KIND}: {message}")
        return f"{text}\n  fix: {self.fix}" if self.fix else text


class CompileError(LocatedError):
    """One error in a kernel's source. `code`: a row of `tiledsl.refusals`."""

    def __init__(self, message: str, loc: Loc = UNKNOWN_LOC, fix: str = "", *, code: str) -> None:
        super().__init__(message, loc, fix)
        self.code = code

    def __str__(self) -> str:
        return self._shown(f"{self.message} [{self.code}]")


class CompileErrors(CompileError):  # noqa: N818 - it is several errors
    """All errors of one compilation, in source order, the first `MOST` of them. `errors` holds each one."""

    MOST: ClassVar[int] = 20

    def __init__(self, errors: Iterable[CompileError]) -> None:
        self.errors = tuple(errors)[: self.MOST]
        first = self.errors[0]
        super().__init__(first.message, first.loc, first.fix, code=first.code)

    def __str__(self) -> str:
        shown = "\n\n".join(str(e) for e in self.errors)
        return shown if len(self.errors) == 1 else f"{shown}\n\n{len(self.errors)} errors"


class InternalError(CompileError):
    """A bug of tiledsl: the compiler itself failed on a kernel. The exception is its ``__cause__``."""


class VerifyError(LocatedError):
    """The IR broke one of its invariants: a compiler bug, or hand-written IR that is wrong."""

    KIND, code = "invalid IR", "C903"


class AssemblerError(CompileError):
    """ptxas refused the PTX, or made a remark that the design treats as an error.

    `stages`: the texts of the stages before, "llvm" and "ptx". The message names a file with the PTX.
    """

    stages: Mapping[str, str] = MappingProxyType({})


class KernelArgumentError(TileError):
    """A launch argument has the wrong dtype, rank, size, device, or is missing or unknown."""

    def __init__(self, message: str, *, code: str = "C801") -> None:
        super().__init__(message)
        self.code = code


class DeviceError(TileError):
    """The CUDA driver or the device failed: no driver, out of memory, illegal address, ..."""


class ToolNotFoundError(TileError):
    """ptxas or nvdisasm was not found; the message says which wheel brings it."""


class CacheError(TileError):
    """The on-disk cache cannot be used, or its settings are invalid. A compilation only warns if it cannot be used."""


class UsageError(TileError):
    """The command line asks for what is not there, or lacks something."""


# -- where tiledsl is called ------------------------------------------------------------------------


def from_outside(error: TileError) -> TileError:
    """`error` without the frames of tiledsl, which only its authors read; ``TILEDSL_TRACEBACK=1`` keeps them, and so
    does a bug of tiledsl."""
    if os.environ.get("TILEDSL_TRACEBACK") == "1" or isinstance(error, InternalError):
        return error
    single = error.errors[0] if isinstance(error, CompileErrors) else error
    error.__suppress_context__ = not isinstance(single, InternalError)
    return error.with_traceback(None)


def short_traceback(function: Callable[P, T]) -> Callable[P, T]:
    """A function whose errors come without the frames of what it calls."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TileError as error:
            __tracebackhide__ = True  # for pytest and IPython
            raise from_outside(error)  # noqa: B904 - the error itself

    return call


# -- findings of the emulator ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Side:
    """One of the threads, warps or copies that a finding is about, and what it does where.

    who, does: in words, "" where they are not known. `block`, `thread`: coordinates (x, y, z). `role`: where the role
    is declared that its warps belong to. `rank`: of the GPU, in a run of several launches.
    """

    loc: Loc
    op: str = ""
    who: str = ""
    does: str = ""
    block: tuple[int, ...] | None = None
    thread: tuple[int, ...] | None = None
    warps: tuple[int, ...] = ()
    role: Loc | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Accessed:
    """What is accessed: the tile or tensor `name`, there the element at these indices, or from this byte on.

    `bytes`: how many are accessed at once, 0 if that is not known. A byte of a tile is counted in its layout.
    """

    name: str
    space: str
    element: tuple[int, ...] | None = None
    byte: int | None = None
    bytes: int = 0

    def __str__(self) -> str:
        return f"byte {self.byte} of {self.name}" if self.element is None else f"{self.name}{[*self.element]}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a kernel, as data. `code` is stable: `tiledsl.findings.KINDS` explains it.

    `sides`: first the one at which the emulator stopped. `missing`: the edge that would order two accesses, one of
    `tiledsl.findings.EDGES`. `kernel`, `seed`: of the run; the seed replays it.
    """

    code: str
    message: str
    loc: Loc
    fix: str
    sides: tuple[Side, ...] = ()
    memory: Accessed | None = None
    missing: str = ""
    kernel: str = ""
    seed: int | None = None

    @property
    def key(self) -> tuple[str, str, frozenset[tuple[str, int]]]:
        """Equal for findings that are one: of one code, at the same lines, in the same tile or tensor."""
        name = "" if self.memory is None else self.memory.name
        return self.code, name, frozenset((side.loc.file, side.loc.line) for side in self.sides)


class EmulatorError(LocatedError):
    """A kernel did something illegal on the emulator: out of bounds, a failed assertion, ... `finding`: as data."""

    def __init__(
        self,
        message: str,
        loc: Loc = UNKNOWN_LOC,
        fix: str = "",
        *,
        code: str,
        sides: tuple[Side, ...] = (),
        memory: Accessed | None = None,
        missing: str = "",
    ) -> None:
        super().__init__(message, loc, fix)
        self.code = code
        self.finding = Finding(code, message, loc, fix, sides or (Side(loc),), memory, missing)

    def __str__(self) -> str:
        code, seed = self.finding.code, self.finding.seed
        replay = f" (under seed={seed}, which replays it)" if seed else ""
        return f"{super().__str__()}\n  code: {code}{replay}; python -m tiledsl error {code} explains it"


class HazardError(EmulatorError):
    """The emulator's checker found a race, an uninitialised read or a deadlock."""
