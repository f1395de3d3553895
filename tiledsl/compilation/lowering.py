"""From a signature and a specialisation to the thread-level kernel: frontend and passes."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Callable

from tiledsl.arch import target_named
from tiledsl.boundary import stage
from tiledsl.forks import WhileBusy, whole
from tiledsl.ir.types import GlobalType
from tiledsl.recursion import deep_recursion
from tiledsl.signatures.signature import Signature, Specialization

if TYPE_CHECKING:
    from tiledsl.ir.core import Kernel

__all__ = ["WITHOUT_COLLECTOR", "Observer", "lower", "written_tensors"]

Observer = Callable[[str, "Kernel"], None]


def _stop_collecting() -> bool:
    was_on = gc.isenabled()
    gc.disable()
    return was_on


def _collect_again(was_on: int) -> None:
    if was_on:
        gc.enable()


WITHOUT_COLLECTOR = WhileBusy(_stop_collecting, _collect_again)
"""Disables Python's garbage collector while anything is compiled. The IR is live objects in cycles: scanning them
repeatedly finds no garbage, and takes as long as the passes do."""


def lower(
    signature: Signature,
    spec: Specialization,
    arch: str,
    *,
    observe: Observer | None = None,
    bounds: bool = False,
    timings: dict[str, float] | None = None,
) -> tuple[Kernel, frozenset[str]]:
    """The thread-level kernel, and the tensors that it writes. `observe` is called with each stage's name and IR.
    `bounds`: with checks of bounds, for the emulator. `timings`: a dict for the seconds of each stage."""
    from tiledsl import frontend
    from tiledsl.passes.pipeline import run_pipeline

    def after(name: str, kernel: Kernel) -> None:
        if observe is not None:
            observe(f"after:{name}", kernel)

    with whole(), WITHOUT_COLLECTOR.inside(), deep_recursion():
        started = time.perf_counter()
        limit = target_named(arch).shared_per_block
        with stage("the frontend", signature.name, signature.loc):
            kernel = frontend.build(signature, spec, arch)
        built = time.perf_counter()
        written = written_tensors(kernel)
        if observe is not None:
            observe("tile", kernel)
        kernel = run_pipeline(kernel, shared_limit=limit, target=arch, bounds=bounds, observe=after)
        if observe is not None:
            observe("thread", kernel)
        if timings is not None:
            timings |= {"frontend": built - started, "passes": time.perf_counter() - built}
    return kernel, written


def written_tensors(kernel: Kernel) -> frozenset[str]:
    """Names of the tensors that a tile-level kernel may write. What a copy reads is not written."""
    from tiledsl.passes.pipelining.body import memories

    tensors = {arg: arg.name for arg in kernel.body.args if isinstance(arg.type, GlobalType)}
    return frozenset(
        tensors[memory] for op in kernel.walk() for memory, writes in memories(op) if writes and memory in tensors
    )
