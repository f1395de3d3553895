"""Check the block's shape against what every CUDA device takes. (CUDA programming guide, compute capabilities.)"""

from __future__ import annotations

from tiledsl.arch import MOST_THREADS, MOST_THREADS_ALONG
from tiledsl.errors import CompileError
from tiledsl.ir.core import Kernel

__all__ = ["check_launch"]


def check_launch(kernel: Kernel) -> None:
    shape = " x ".join(map(str, kernel.threads))
    if kernel.thread_count > MOST_THREADS:
        raise CompileError(
            f"a block of {shape} = {kernel.thread_count} threads; at most {MOST_THREADS} are possible",
            kernel.loc,
            fix="use fewer threads and give each more elements, or a larger grid",
        )
    for axis, (extent, limit) in enumerate(zip(kernel.threads, MOST_THREADS_ALONG, strict=False)):
        if not 1 <= extent <= limit:
            raise CompileError(
                f"a block of {shape} threads; along {'xyz'[axis]} 1 to {limit} are possible",
                kernel.loc,
                fix="put the largest extent first",
            )
