"""What became of a case, and whether it is a finding.

A case may succeed, or be refused: an error of tiledsl that names the line in the user's file and says what to write
instead. Whatever else comes out is a finding. Findings are told apart by their class and their innermost place.
"""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tiledsl.errors import AssemblerError, CompileError, CompileErrors, Loc, TileError, VerifyError

__all__ = ["BUG", "FINDINGS", "ROOT", "OutOfTime", "Outcome", "in_program", "judge", "limit", "place_of", "raised_in"]

ROOT = Path(__file__).parent.parent.parent
INSIDE = (f"{ROOT}/tiledsl/", f"{ROOT}/backends/")

FINDINGS = {
    "internal": "an exception that is no error of tiledsl, or an error that calls itself a bug of the compiler",
    "verify": "a pass, or the frontend, made IR that is not well formed",
    "assembler": "ptxas refused what the compiler wrote",
    "no line": "an error without a line of the user's file",
    "no fix": "an error that does not say what to write instead",
    "hang": "no end within the limit",
    "died": "the process ended",
    "levels": "the tile level and the thread level compute different results",
    "round trip": "the text that is printed of a kernel is not read back as the same kernel",
    "wrong": "a call gave a wrong result",
    "stale": "a call gave other bits, or another error, than it gives alone",
}
"""Classes of findings. All other outcomes are as they should be."""

PROGRAMS = ("case.py", "calls.py")
"""Files of what the compiler is given."""

BUG = re.compile(r"compiler bug|bug (in|of) (the compiler|tiledsl)|internal error", re.IGNORECASE)
"""In the text of an error that the compiler makes of its own failures."""
ADDRESS = re.compile(r"0x[0-9a-f]{6,}|\d+")


@dataclass(frozen=True)
class Outcome:
    """`kind`: a key of FINDINGS, or another word. `place`: what tells findings of one kind apart."""

    kind: str
    place: str = ""
    detail: str = ""

    @property
    def is_finding(self) -> bool:
        return self.kind in FINDINGS


class OutOfTime(BaseException):
    """The time of `limit` is over. No Exception, so that no boundary around the user's code takes it for the user's."""


@contextmanager
def limit(seconds: float) -> Generator[None]:
    """Raise OutOfTime in the block after so many seconds of this process's time, and again if it was caught there."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def raised_in(error: BaseException, folder: str) -> bool:
    """True if it was raised in this folder of tiledsl."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(f"{ROOT}/tiledsl/{folder}/")


def judge(error: BaseException, file: str = "") -> Outcome:
    """What an exception means. `file`: the user's; errors must stand in it, or at a call from it. "" for calls, whose
    errors need no line."""
    detail = _text(error)
    if isinstance(error, OutOfTime):
        return Outcome("python" if in_program(error) else "hang", place_of(error), detail)
    if not isinstance(error, TileError):
        place = "" if in_program(error) else place_of(error)
        return Outcome("internal", place, detail) if place else Outcome("python", type(error).__name__, detail)
    if isinstance(error, VerifyError):
        return Outcome("verify", _shape(error.message), detail)
    if isinstance(error, AssemblerError) and "correct the inline PTX" not in error.fix:
        return Outcome("assembler", _shape(error.message), detail)
    errors: tuple[TileError, ...] = error.errors if isinstance(error, CompileErrors) else (error,)
    for found in errors:
        outcome = _judge_one(found, file)
        if outcome.is_finding:
            return outcome
    return Outcome("refused", type(error).__name__, detail)


def _judge_one(error: TileError, file: str) -> Outcome:
    text = str(error)
    if BUG.search(text):
        cause = error.__cause__ or error.__context__
        return Outcome("internal", place_of(cause or error) or _shape(text.splitlines()[0]), _text(error))
    if "fix:" not in text:
        return Outcome("no fix", _shape(_message(error)), text)
    if file and isinstance(error, CompileError) and not _stands_in(error.loc, file):
        return Outcome("no line", _shape(_message(error)), text)
    return Outcome("refused")


def _stands_in(loc: Loc | None, file: str) -> bool:
    """True for a line of `file`, and of a file of the gallery, which kernels import from."""
    while loc is not None:
        if loc.line > 0 and (loc.file == file or "/examples/" in loc.file):
            return True
        loc = loc.caller
    return False


def place_of(error: BaseException) -> str:
    """The innermost place in tiledsl that an exception came through, with its type; "" if it came through none."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(INSIDE)]
    if not frames:
        return ""
    last = frames[-1]
    return f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno} {last.name}"


def in_program(error: BaseException) -> bool:
    """True if the Python of a program, or of an argument, raised it, or what that called outside of tiledsl."""
    names = (f.filename for f in reversed(traceback.extract_tb(error.__traceback__)))
    last = next((n for n in names if n.startswith(INSIDE) or Path(n).name in PROGRAMS), "")
    return bool(last) and not last.startswith(INSIDE)


def _message(error: TileError) -> str:
    return error.message if isinstance(error, CompileError) else str(error).splitlines()[0]


def _shape(message: str) -> str:
    """A message without its numbers and quoted names, so that equal ones are counted as one."""
    return re.sub(r"'[^']*'|%\w+", "_", ADDRESS.sub("#", message))[:100]


def _text(error: BaseException) -> str:
    lines = traceback.format_exception(error)
    return "".join(lines[:2] + lines[-12:] if len(lines) > 14 else lines)[-6000:]
