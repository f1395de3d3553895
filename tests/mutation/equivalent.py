"""Proofs that a mutant is no fault. Each says so of a mutant that was not found, by a rule that a machine can check."""

from __future__ import annotations

import re

from tests.mutation.operators import Change
from tiledsl.arch import TARGETS
from tiledsl.backends.ptx.codegen import emit_ptx
from tiledsl.ir.core import Kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.passes.manager import run_passes
from tiledsl.passes.pipeline import named_passes
from tiledsl.recursion import deep_recursion

__all__ = ["why_equivalent"]

_CLEANING = "canonicalize", "cse", "licm", "cse", "dce", "order-chains"


def why_equivalent(original: Kernel, mutant: Kernel, change: Change, arch: str) -> str:
    """The class of equivalents that the mutant of a thread-level kernel belongs to, or ""."""
    if change.stronger:
        return "a stronger wait"
    if _text(original) == _text(mutant):
        return "the same IR"
    if _ptx(original, arch) == _ptx(mutant, arch):
        return "the same PTX"
    return ""


def _text(kernel: Kernel) -> str:
    """The IR without locations, after the passes that follow `expand`."""
    passes = named_passes(shared_limit=0, target="")
    cleaned = run_passes(kernel.clone(), [passes[name] for name in _CLEANING])
    return print_kernel(cleaned, locs=False)


@deep_recursion()
def _ptx(kernel: Kernel, arch: str) -> str:
    text = emit_ptx(kernel.clone(), TARGETS[arch])[1]
    return re.sub(r"(?m)^\s*(\.loc|\.file|//).*\n|\$L__\w+", "", text)
