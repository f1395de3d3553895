"""Cases of `texts`: a mutated text of IR is read, verified, printed and read again, lowered, and run."""

from __future__ import annotations

from random import Random

from tests.fuzz.corpus import draw, texts
from tests.fuzz.levels import compare, run_alone
from tests.fuzz.mutate_text import mutate_text
from tests.fuzz.outcome import BUG, Outcome, judge, limit
from tiledsl.backends import ptx
from tiledsl.errors import AssemblerError, CompileError, CompileErrors, VerifyError
from tiledsl.ir.core import Kernel
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.verifier import verify
from tiledsl.passes.pipeline import run_pipeline

__all__ = ["SUFFIX", "generate", "run"]

SUFFIX = "tir"
SECONDS = 20.0
PTX_EVERY = 20
TARGET = "sm_90a"


def generate(seed: int, case: int) -> str:
    key = f"texts {seed} {case}"
    return mutate_text(draw(texts(), key).text, draw(texts(), f"{key} donor").text, Random(key))


def run(text: str, seed: int, case: int) -> Outcome:
    random = Random(f"run {seed} {case}")
    try:
        with limit(SECONDS):
            kernel = parse_kernel(text)
            verify(kernel)
    except (CompileError, VerifyError) as error:
        return _refused(error)
    except BaseException as error:
        return judge(error)
    try:
        with limit(SECONDS):
            printed = print_kernel(kernel)
            if print_kernel(parse_kernel(printed)) != printed:
                return Outcome("round trip", "printed otherwise")
    except Exception as error:
        return Outcome("round trip", type(error).__name__, str(error))
    if kernel.level == "thread":
        outcome = run_alone(kernel, random)
        return outcome if outcome.is_finding or case % PTX_EVERY else _assembled(kernel)
    return _lowered(kernel, random, case)


def _lowered(kernel: Kernel, random: Random, case: int) -> Outcome:
    written = kernel.clone()
    limit_bytes = ptx.TARGETS[TARGET].shared_per_block
    try:
        with limit(SECONDS):
            run_pipeline(kernel, shared_limit=limit_bytes, target=TARGET, verify_each=True, bounds=True)
    except CompileError as error:
        return _refused(error)
    except BaseException as error:
        return judge(error)
    outcome = compare(written, kernel, random)
    return outcome if outcome.is_finding or case % PTX_EVERY else _assembled(kernel)


def _assembled(kernel: Kernel) -> Outcome:
    try:
        with limit(SECONDS):
            ptx.build(kernel, ptx.TARGETS[TARGET])
    except AssemblerError as error:
        return Outcome("stopped", detail=str(error))  # IR may say what no frontend does
    except CompileError as error:
        return _refused(error)
    except BaseException as error:
        return judge(error)
    return Outcome("ok")


def _refused(error: CompileError | VerifyError) -> Outcome:
    """A text needs no advice, but a line."""
    errors = error.errors if isinstance(error, CompileErrors) else (error,)
    for found in errors:
        if BUG.search(str(found)):
            return judge(found)
        if found.loc.line < 1:
            return Outcome("no line", found.message[:80], str(found))
    return Outcome("refused", type(error).__name__, str(error))
