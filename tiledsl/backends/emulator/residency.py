"""Bound the blocks of a launch that a GPU holds at once: others start when one of those has ended.

It is an upper bound, from the threads and the shared memory of a block: registers, of which the emulator knows nothing,
may allow fewer. The GPU is the one that the emulator reproduces.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tiledsl.arch import EMULATED_ARCH, EMULATED_GPU, TARGETS
from tiledsl.backends.emulator.hooks import LaunchInfo
from tiledsl.backends.emulator.positions import whole_clusters
from tiledsl.ir.core import Kernel
from tiledsl.ir.expr import PROCESSORS, names_of

FEW_PROCESSORS = 8
"""The SM count for which a grid that depends on it is launched (default of `Options.processors`)."""


@dataclass(frozen=True, slots=True)
class Residency:
    """The most blocks that a GPU holds at once: `per_sm` on each of `processors` SMs, and `blocks` in all, in whole
    clusters."""

    processors: int
    per_sm: int
    blocks: int

    def __str__(self) -> str:
        return f"{self.per_sm} on each of {self.processors} SMs"


class NotStarted:
    """The blocks of a launch that have not started: `left` of them, from number `first` on.

    `fits`: how many blocks the GPU holds at once.
    """

    def __init__(self, launch: LaunchInfo, fits: Residency) -> None:
        self.launch, self.fits = launch, fits
        self.first, self.left = 0, prod(launch.grid)


def residency(kernel: Kernel, launch: LaunchInfo, processors: int | None) -> Residency:
    """Return how many blocks of a launch the GPU holds at once.

    Args:
        kernel: The kernel, for its shared memory.
        launch: The shape of the launch.
        processors: The SM count (default: few if the grid depends on it, else that of an H200).
    """
    if processors is None:
        processors = FEW_PROCESSORS if depends_on_processors(kernel) else EMULATED_GPU.processors
    shared = kernel.shared_bytes if kernel.level == "thread" else 0  # tile level: not laid out yet
    limits = TARGETS[EMULATED_ARCH].block_limits(registers=1, shared=shared, threads=prod(launch.threads))
    per_sm = max(1, min(limits.values()))
    unit, cluster = whole_clusters(launch), prod(launch.cluster)
    return Residency(processors, per_sm, max(unit, processors * per_sm // cluster * cluster))


def depends_on_processors(kernel: Kernel) -> bool:
    """Return whether the grid is computed from the SM count."""
    return any(PROCESSORS in names_of(extent) for extent in kernel.grid)
