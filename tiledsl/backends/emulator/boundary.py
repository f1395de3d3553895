"""The boundary of a run: what goes wrong inside the emulator is an EmulatorError at the op that it was executing.

Errors that tiledsl raises on purpose pass, and so do those of the user's own code that a run calls: functions given as
``emulate=``, hooks, a debugger, a stream that cannot be written.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from traceback import walk_tb

from tiledsl.boundary import is_ours, is_standard
from tiledsl.errors import EmulatorError, Loc, TileError

_LIBRARIES = ("numpy", "ml_dtypes", "llvmlite")
"""What the emulator computes with."""


def raise_internal(failure: Exception, what: str, loc: Loc) -> None:
    """Raises EmulatorError in place of `failure`, which came out of `what` at `loc`, unless that is right itself."""
    if isinstance(failure, (TileError, OSError)) or _is_foreign(failure):
        return
    code, message = "T902", f"the emulator fails in {what}: {type(failure).__name__}: {failure}"
    fix = "report this with the kernel; IR that is written by hand may break a rule of the op"
    if isinstance(failure, MemoryError):
        code, message = "T903", f"{what} needs more memory than there is to be emulated: {failure}"
        fix = "emulate a smaller problem, or fewer threads at once: Options(chunk_threads=...)"
    elif isinstance(failure, RecursionError):
        code, message, fix = "T903", f"{what} is nested too deeply for the emulator", "nest fewer regions"
    raise EmulatorError(message, loc, fix, code=code) from failure


def _is_foreign(failure: Exception) -> bool:
    """Does the failure come through code that is not the emulator's?"""
    imported = [sys.modules[name] for name in _LIBRARIES if sys.modules.get(name)]
    libraries = tuple(f"{Path(str(library.__file__)).parent}{os.sep}" for library in imported)
    for frame, _ in walk_tb(failure.__traceback__):
        file = frame.f_code.co_filename
        if file.startswith(("<", *libraries)) or is_ours(frame):
            continue
        if not is_standard(file) or Path(file).name == "bdb.py":
            return True
    return False
