"""Kernels without some of the ops that order accesses: each is to be stopped by the checks of the emulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tiledsl.errors import HazardError
from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import barriers, gpu, tma, wgmma

__all__ = ["is_stopped", "not_found", "not_found_of_text", "ordering"]

ORDERING = (
    gpu.Barrier,
    gpu.SyncWarp,
    barriers.NamedBarrier,
    barriers.Arrive,
    barriers.ExpectTx,
    barriers.Wait,
    barriers.FenceInit,
    barriers.FenceProxy,
    barriers.ClusterArrive,
    barriers.ClusterWait,
    wgmma.Fence,
    wgmma.Commit,
    wgmma.WaitGroup,
    tma.BulkCommit,
    tma.BulkWait,
)

IsFound = Callable[[tuple[int, ...]], bool]
"""Is the kernel stopped without these of its `ordering`? Most ops of a text become one: keep the answers."""


def ordering(kernel: Kernel) -> list[Op]:
    return [op for op in kernel.walk() if isinstance(op, ORDERING)]


def is_stopped(kernel: Kernel, numbers: Sequence[int], run: Callable[[Kernel], None]) -> bool:
    """Does `run` find a hazard in the kernel without these of the ops that order?"""
    without = kernel.clone()
    found = ordering(without)
    for op in (found[number] for number in numbers):
        for result, operand in zip(op.results, op.operands, strict=False):
            result.replace_all_uses_with(operand)
        op.erase()
    try:
        run(without)
    except HazardError:
        return True
    return False


def not_found(lowered: Kernel, is_found: IsFound) -> list[str]:
    """Names of the ops without which the kernel is not stopped, each taken out alone."""
    return sorted(op.name for number, op in enumerate(ordering(lowered)) if not is_found((number,)))


def not_found_of_text(written: Kernel, lowered: Kernel, is_found: IsFound) -> list[str]:
    """The same of ops of the text, which have lines of their own, each with all that became of it."""
    lines: dict[int, tuple[int, ...]] = {}
    for number, op in enumerate(ordering(lowered)):
        lines[op.loc.line] = (*lines.get(op.loc.line, ()), number)
    names = {op.loc.line: op.name for op in written.walk()}
    return sorted(names[line] for line, numbers in lines.items() if not is_found(numbers))
