"""Cases of `sources`: a mutated program is imported, compiled for a target, and run at both levels."""

from __future__ import annotations

import linecache
import sys
import tempfile
import types
from pathlib import Path
from random import Random

from tests.fuzz.corpus import draw, programs
from tests.fuzz.levels import compare
from tests.fuzz.mutate_source import mutate_source
from tests.fuzz.outcome import ROOT, Outcome, OutOfTime, judge, limit, raised_in
from tiledsl.backends import ptx
from tiledsl.compilation.lowering import lower
from tiledsl.errors import AssemblerError, CompileError, TileError
from tiledsl.ir.core import Kernel
from tiledsl.ir.types import DTYPES
from tiledsl.ir.verifier import verify
from tiledsl.kernel import TileKernel
from tiledsl.signatures.specialize import assumed, check_consts

__all__ = ["SUFFIX", "generate", "run"]

SUFFIX = "py"
SECONDS = 20.0
PTX_EVERY = 20
MOST_OPS = 1200
"""Of a kernel that is run each time; larger ones are run every fourth time."""
REMARKS = ("ptxas made a remark", "has a stack frame")
"""AssemblerErrors that say that a kernel is slow."""


def generate(seed: int, case: int) -> str:
    key = f"sources {seed} {case}"
    return mutate_source(draw(programs(), key).text, draw(programs(), f"{key} donor").text, Random(key))


def run(text: str, seed: int, case: int) -> Outcome:
    """The worst of what becomes of the program's kernels."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder, "case.py")
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        try:
            return _outcome(text, path, Random(f"run {seed} {case}"), case)
        finally:
            linecache.cache.pop(str(path), None)
            sys.modules.pop("fuzz_case", None)


def _outcome(text: str, path: Path, random: Random, case: int) -> Outcome:
    try:
        with limit(SECONDS):
            module = _load(text, path)
            kernels = [v for v in vars(module).values() if isinstance(v, TileKernel)]
            kernels = [k for k in kernels if k.signature.loc.file == str(path)]
    except BaseException as error:
        if _innermost(error) == "_load":  # Python itself refuses it
            return Outcome("no program", type(error).__name__)
        if isinstance(error, OutOfTime) and not raised_in(error, ""):  # it never ends by itself
            return Outcome("python", "no end")
        plain = isinstance(error, CompileError) and not error.loc.line and bool(error.fix)
        if plain or (isinstance(error, (TypeError, ValueError, AttributeError)) and raised_in(error, "lang")):
            return Outcome("python", type(error).__name__)  # outside of kernels, the language is plain Python
        return judge(error, str(path))
    if not kernels:
        return Outcome("no kernel")
    outcomes = [_compiled(kernel, path, random, case) for kernel in kernels]
    return next((o for o in outcomes if o.is_finding), outcomes[-1])


def _innermost(error: BaseException) -> str:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at.tb_frame.f_code.co_name if at is not None else ""


def _load(text: str, path: Path) -> types.ModuleType:
    gallery = str(ROOT / "examples" / "gemm")
    if gallery not in sys.path:
        sys.path.insert(0, gallery)
    module = types.ModuleType("fuzz_case")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compile(text, str(path), "exec", dont_inherit=True), module.__dict__)
    return module


def _compiled(kernel: TileKernel, path: Path, random: Random, case: int) -> Outcome:
    signature = kernel.signature
    tile_level: list[Kernel] = []

    def observe(stage: str, now: Kernel) -> None:
        if stage == "tile":
            tile_level.append(now.clone())

    arch = signature.arch or "sm_90a"
    try:
        with limit(SECONDS):
            dtype = DTYPES["bf16"] if arch == "sm_90a" or "mma" in signature.name else DTYPES["f32"]
            spec = assumed(signature, dict.fromkeys(signature.dtype_variables, dtype), check_consts(signature, {}))
            lowered, _ = lower(signature, spec, arch, observe=observe, bounds=True)
            verify(tile_level[0])  # only now: checks on the way refuse what exceeds limits, and say how to fix it
            verify(lowered)
    except BaseException as error:
        return judge(error, str(path))
    if case % PTX_EVERY == 0:
        try:
            with limit(SECONDS):
                ptx.build(lower(signature, spec, arch)[0], ptx.TARGETS[arch])
        except AssemblerError as error:
            if not any(remark in error.message for remark in REMARKS):
                return judge(error, str(path))
        except BaseException as error:
            return judge(error, str(path))
    size = sum(1 for _ in lowered.walk())
    if size > MOST_OPS and random.random() < 0.75:
        return Outcome("ok", detail="not run")
    try:
        return compare(tile_level[0], lowered, random)
    except TileError as error:
        return judge(error, str(path))
