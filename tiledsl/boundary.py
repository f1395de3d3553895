"""Turns any other exception that is raised while a kernel is compiled into an error at the kernel's line.

`as_compile_error` tells errors of the user's own Python that runs at compile time (a helper, an ``__eq__``, a
generator) from our own, which become `InternalError`. It is a safety net only: errors that a user can make are
detected where they occur, with their own messages.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import FrameType

from tiledsl.errors import CompileError, InternalError, Loc, TileError, VerifyError
from tiledsl.ir.core import Op
from tiledsl.outside import source_line

_PACKAGE = Path(__file__).resolve().parent
_OURS = (f"{_PACKAGE}{os.sep}", f"{_PACKAGE.parent / 'backends'}{os.sep}")
_STANDARD = ("<frozen ", *(f"{Path(sysconfig.get_path(name)).resolve()}{os.sep}" for name in ("stdlib", "platstdlib")))
_KERNELS = f"{_PACKAGE / 'gemm'}{os.sep}"
"""Written in the language, as the user's kernels are: what goes wrong in them is no fault of the compiler."""
_INSTALLED = frozenset({"site-packages", "dist-packages"})

Place = tuple[FrameType, int]
"""A frame, and the line that it was at."""


def as_compile_error(error: Exception, loc: Loc, doing: str = "") -> CompileError:
    """`error` as a CompileError at `loc`, with the exception as its `__cause__`.

    doing: the stage of the compiler, unless the frontend is reading a statement of the kernel.
    """
    if isinstance(error, CompileError):
        return error
    last = _innermost(error)
    if doing or last is None or is_ours(last[0]):
        found = _of_ours(error, last, loc, doing)
    else:
        found = _of_user(error, last, loc)
    found.__cause__ = error
    return found


def python_error(error: Exception, loc: Loc) -> CompileError:
    """The CompileError for what Python raised in an operation on compile-time values or in a function of the user's."""
    last = _innermost(error)
    if last is not None and not is_ours(last[0]):
        return _of_user(error, last, loc)
    fix = "use values for which Python can compute it"
    return CompileError(f"{type(error).__name__} at compile time: {error}", loc, fix, code="C111")


def _of_user(error: Exception, last: Place, loc: Loc) -> CompileError:
    frame, line = last
    file, function = frame.f_code.co_filename, frame.f_code.co_name
    text = f": {error}" if str(error) else ""
    message = f"{function}() raised {type(error).__name__}{text} at {file}:{line} while the kernel was compiled"
    source = source_line(file, line).strip()
    shown = f" (it reads: {source})" if source else ""
    return CompileError(
        message, loc, f"correct {function}() in that line{shown}, or call it with other arguments", code="C111"
    )


def _of_ours(error: Exception, last: Place | None, loc: Loc, doing: str) -> CompileError:
    at_stage = f", in {doing}" if doing else ""
    if isinstance(error, (RecursionError, MemoryError)):
        needed = "stack" if isinstance(error, RecursionError) else "memory"
        fix = "take it apart: assign parts to names, move them to a @tile_function, or unroll less"
        return CompileError(f"this needs more {needed} than the compiler has{at_stage}", loc, fix, code="C110")
    file = last[0].f_code.co_filename.removeprefix(f"{_PACKAGE.parent}/") if last is not None else ""
    at = f" at {file}:{last[1]}" if last is not None else ""
    text = error.message if isinstance(error, VerifyError) else str(error)
    message = f"the compiler failed here{at_stage}: {type(error).__name__}: {text}{at}"
    return InternalError(
        message, loc, "this is a bug of tiledsl: please report it, with the kernel and this message", code="C901"
    )


def _innermost(error: Exception) -> Place | None:
    """The innermost place that is not in Python's own library, which may stand between two functions of ours."""
    places = [
        (frame, line)
        for frame, line in walk_tb(error.__traceback__)
        if is_ours(frame) or not is_standard(frame.f_code.co_filename)
    ]
    return places[-1] if places else None


def is_ours(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    generated = file.startswith("<") and str(frame.f_globals.get("__name__")).split(".")[0] == "tiledsl"
    return (file.startswith(_OURS) and not file.startswith(_KERNELS)) or generated


def is_standard(file: str) -> bool:
    return file.startswith(_STANDARD) and _INSTALLED.isdisjoint(Path(file).parts)


# -- stages ------------------------------------------------------------------------------------------


@contextmanager
def stage(name: str, kernel: str, loc: Loc) -> Generator[None]:
    """Attributes exceptions in the block to this stage of compiling `kernel`, whose header is at `loc`.

    A TileError is passed on. Any other exception becomes a CompileError that names the stage, at the line of the op
    that was being processed, if there is one.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, TileError) and not isinstance(error, VerifyError):
            raise
        at = error.loc if isinstance(error, VerifyError) else _op_line(error)
        raise as_compile_error(error, at if at is not None and at.line else loc, f"{name} of {kernel}") from error


def _op_line(error: Exception) -> Loc | None:
    """The line of the op in the innermost frame that has one."""
    found: Loc | None = None
    for frame, _ in walk_tb(error.__traceback__):
        names = frame.f_locals
        ops = [value for value in (names.get("op"), *names.values()) if isinstance(value, Op) and value.loc.line]
        found = ops[0].loc if ops else found
    return found
