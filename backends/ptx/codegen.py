"""LLVM IR to PTX: parse, optimise with the target machine in the pass builder, emit.

What llvmlite owns is freed with its last reference, and never by `with` or `close`: Ctrl-C right behind those leaves an
object that is freed once more with its last reference, or a module whose context is gone, and the process ends.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from tiledsl.arch import Target
from tiledsl.backends.ptx.debuginfo import list_places, restore_locations
from tiledsl.backends.ptx.llvm import binding, options, pass_manager
from tiledsl.backends.ptx.lower import TRIPLE, lower_kernel
from tiledsl.backends.ptx.nan_bits import canonicalize_nans
from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import arith, mem, ptx, tma
from tiledsl.ir.types import E4M3, E5M2

INLINED_AT = 72
"""PTX 7.2 brought ``.loc ... inlined_at``, which every kernel may use."""

EIGHT_BIT = {E4M3, E5M2}

CALL_NUMBER = re.compile(r" // callseq \d+(?:, \d+)?")
"""A comment with a count over the life of the process: the same kernel must give the same text."""


def _needed_ptx(op: Op) -> int:
    """What `op` needs beyond the target's own version; 0 for most."""
    match op:
        case arith.Cast() if {op.src.type, op.to} & EIGHT_BIT:
            return 81  # for sm_90, LLVM asks for 8.1 where 7.8 has them (PTX ISA: cvt)
        case ptx.MmaSync() if {op.a, op.b} & EIGHT_BIT:
            return 84
        case tma.MapLoad() if op.hint:
            return 74  # createpolicy
        case mem.Send():
            return 81  # st.async
        case _:
            return 0


# In the order in which they are given; `llvm.options` takes each back afterwards.
OPTIONS = (
    # Shared addresses fit 32 bits: half the registers, and constant offsets that cannot overflow.
    "nvptx-short-ptr",
    # It takes vector loads apart; the last element is then merged with the guarded path's scalar load of it,
    # and a vector access is two instructions.
    "disable-vector-combine",
    # The pass merge-accesses has merged what belongs together, and bank conflicts were counted for what it left.
    "disable-nvptx-load-store-vectorizer",
)


OF_PTXAS = (
    (re.compile(r"\b(?:neg\.s16\s+(%\w+),|sub\.s16\s+(%\w+), 0,) (%\w+);"), r"mul.lo.s16 \t\1\2, \3, -1;"),
    (
        re.compile(r"\babs\.s16\s+(%\w+), (%\w+);"),
        r"{.reg .b16 sign; shr.s16 sign, \2, 15; xor.b16 \1, \2, sign; sub.s16 \1, \1, sign;}",
    ),
)
"""Replacements for instructions that ptxas gets wrong: 13.0 takes -32768, negated, for 32768."""


@cache
def _machine(target: Target, ptx_version: int) -> Any:
    """A target machine. It keeps the options that are set now."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    features = f"+ptx{ptx_version}"
    # At 3 LLVM numbers all values once more, for a fifth of the time of emission. No kernel of the gallery gains by it:
    # SASS is the same without, or shorter.
    return binding.Target.from_triple(TRIPLE).create_target_machine(cpu=target.name, features=features, opt=2)


def emit_ptx(kernel: Kernel, target: Target) -> tuple[str, str]:
    """(LLVM IR before optimisation, PTX) of a thread-level kernel.

    In the LLVM IR the lines of locations are numbers, see `debuginfo`; comments say what they stand for.
    """
    version = max(target.ptx, INLINED_AT, *map(_needed_ptx, kernel.walk()))
    with options(OPTIONS):
        machine = _machine(target, version)
    lowered, places = lower_kernel(canonicalize_nans(kernel), target, str(machine.target_data))
    text = str(lowered)
    # Types, constants and metadata belong to the context, and would stay in LLVM's global one for ever.
    module = binding.parse_assembly(text, binding.create_context())
    with options(OPTIONS):
        module.verify()
        _optimize(module, machine)
        ptx = CALL_NUMBER.sub("", machine.emit_assembly(module))
    for pattern, replacement in OF_PTXAS:
        ptx = pattern.sub(replacement, ptx)
    return text + list_places(places), restore_locations(ptx, places)


def _optimize(module: Any, machine: Any) -> None:
    """O3 without the vectorizers, which would regroup scalar arithmetic whose order is deliberate.

    Loop unrolling stays on: LLVM's limits for NVPTX are those of nvcc, which unrolls small loops by four
    (a run-time loop with a barrier inside never). Each load and store stays what it is.
    """
    tuning = binding.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = tuning.slp_vectorization = False
    builder = binding.create_pass_builder(machine, tuning)
    with pass_manager(builder) as passes:
        passes.run(module, builder)
