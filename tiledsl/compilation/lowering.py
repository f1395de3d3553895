"""From a signature and a specialisation to the thread-level kernel: frontend and passes."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Callable

from tiledsl.arch import target_named
from tiledsl.boundary import stage
from tiledsl.forks import WhileBusy, whole
from tiledsl.ir.types import GlobalType
from tiledsl.recursion import deep_recursion
from tiledsl.signatures.signature import Signature, Specialization

if TYPE_CHECKING:
    from tiledsl.ir.core import Kernel

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


def ignore(stage: str, kernel: Kernel) -> None:
    """An observer that does nothing."""


def lower(
    signature: Signature,
    spec: Specialization,
    arch: str,
    *,
    observe: Observer = ignore,
    bounds: bool = False,
    stamps: bool = False,
    until: str | None = None,
) -> tuple[Kernel, tuple[str, ...]]:
    """The thread-level kernel, and the tensors that it writes. `observe` is called with each stage's name and IR.
    `bounds`: with checks of bounds, for the emulator. `stamps`: with stamps of the clock, for a run that is measured.
    `until`: the name of the last pass that is wanted, for those who look at what it leaves."""
    from tiledsl import frontend
    from tiledsl.passes.pipeline import run_pipeline

    with whole(), WITHOUT_COLLECTOR.inside(), deep_recursion():
        limit = target_named(arch).shared_per_block
        with stage("the frontend", signature.name, signature.loc):
            kernel = frontend.build(signature, spec, arch)
        written = written_tensors(kernel)
        observe("tile", kernel)
        kernel = run_pipeline(
            kernel,
            shared_limit=limit,
            target=arch,
            bounds=bounds,
            stamps=stamps,
            until=until,
            observe=lambda name, k: observe(f"after:{name}", k),
        )
        observe("thread", kernel)
    return kernel, written


def written_tensors(kernel: Kernel) -> tuple[str, ...]:
    """Names of the tensors that a tile-level kernel may write, in the order of its parameters. What a copy reads is
    not written."""
    from tiledsl.passes.pipelining.body import memories

    written = {memory for op in kernel.walk() for memory, writes in memories(op) if writes}
    return tuple(arg.name for arg in kernel.body.args if arg in written and isinstance(arg.type, GlobalType))
