"""The PTX backend: thread-level IR to LLVM IR to PTX to a cubin. llvmlite is imported by `build` only."""

from __future__ import annotations

from dataclasses import asdict
from typing import Callable

from tiledsl.arch import TARGETS, Target
from tiledsl.backends.protocol import Binary, Resources
from tiledsl.errors import AssemblerError
from tiledsl.ir.core import Kernel
from tiledsl.recursion import deep_recursion

__all__ = ["TARGETS", "Target", "build"]


@deep_recursion()
def build(kernel: Kernel, target: Target, *, meanwhile: Callable[[], None] = lambda: None) -> Binary:
    """Compile a thread-level kernel for `target`. No GPU is needed.

    meanwhile: called once while ptxas runs, which takes about as long as all that comes before it.
    Raises AssemblerError, at the Python line, if ptxas refuses the code or makes a remark on its
    performance, or if the kernel has a stack frame; ToolNotFoundError without ptxas.
    """
    from tiledsl.backends.ptx.assemble import assemble
    from tiledsl.backends.ptx.codegen import emit_ptx

    llvm, ptx = emit_ptx(kernel, target)
    level, threads, shared = kernel.assembler_level, kernel.thread_count, kernel.shared_bytes
    try:
        assembled = assemble(ptx, target, name=kernel.name, level=level, meanwhile=meanwhile)
    except AssemblerError as error:
        error.stages = {"llvm": llvm, "ptx": ptx}
        raise
    held = target.occupancy(registers=assembled.usage["registers"], shared=shared, threads=threads)
    resources = Resources(**assembled.usage, **asdict(held), shared=shared, threads=threads, assembler_level=level)
    return Binary(kernel.name, target.name, llvm, assembled.ptx, assembled.cubin, resources)
