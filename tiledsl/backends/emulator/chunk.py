"""What blocks that are emulated together own: shared memory, barriers, copies in flight.

A chunk is a range of neighbouring blocks, whole clusters; it shares nothing with other chunks but global memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TextIO

import numpy as np

from tiledsl.backends.emulator.async_copies import Changes, Copies
from tiledsl.backends.emulator.hooks import Hook, Ints, LaunchInfo, Several
from tiledsl.backends.emulator.mbarriers import ClusterBarriers, Mbarriers, NamedBarriers
from tiledsl.backends.emulator.positions import Clusters, Positions
from tiledsl.backends.emulator.spans import SharedMemory, SharedTile, Span
from tiledsl.errors import HazardError, Loc
from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops.barriers import registers_at_launch

Roles = dict[tuple[int, int], Loc]
"""The roles of a kernel: first warp and number of warps; where they are declared."""


@dataclass(frozen=True, eq=False)
class Launch:
    """What all blocks of a launch share. `tensors`: by name; `tiles`: tile-level shared allocations; `fills`: see
    `cohort.merge`; `roles`: for messages."""

    kernel: Kernel
    launch: LaunchInfo
    hooks: tuple[Hook, ...]
    stdout: TextIO
    positions: Positions
    tensors: dict[str, Span]
    tiles: dict[Op, SharedTile]
    fills: dict[int, bool]
    roles: Roles


class Chunk:
    """Blocks `first` ... `first + count - 1`. `copies`: what is in flight to their shared `memory`. `ended`:
    how many warps of each block have. `arrived`, `rounds`: at barriers of the block, [blocks]: warps that have arrived
    at the current one, and how many have ended. `registers` [blocks, warps]: of a thread of each warp; `spare`
    [blocks]: those that warps have released, for one thread of each. `changes`: of the whole run.
    """

    def __init__(self, run: Launch, first: int, count: int, changes: Changes) -> None:
        self.run, self.first, self.count, self.changes = run, first, count, changes
        self.warps = run.positions.warps
        hooks = [hook.of_blocks(run.launch, first, count) for hook in run.hooks]
        self.watched = bool(hooks)
        self.hook = hook = hooks[0] if len(hooks) == 1 else Several(hooks)
        self.ended, self.arrived, self.rounds = (np.zeros(count, np.int64) for _ in range(3))
        self.registers = np.full((count, self.warps), registers_at_launch(run.kernel), np.int64)
        self.spare = np.zeros(count, np.int64)
        self.memory = SharedMemory(first, count, run.launch.shared_bytes)
        self.clusters = Clusters(run.launch, first, count)
        self.mbarriers = Mbarriers(first, count, self.memory.pitch, hook)
        self.named_barriers = NamedBarriers(first, count, hook)
        self.cluster_barriers = ClusterBarriers(first, self.clusters.number, self.warps, hook)
        self.copies = Copies(self.memory, self.warps, self.mbarriers, hook, changes)

    @property
    def blocks_ended(self) -> int:
        """Return how many blocks have ended."""
        return int(np.count_nonzero(self.ended == self.warps))

    def end(self, rows: Ints) -> None:
        """A warp of each of these blocks has ended."""
        np.add.at(self.ended, rows, 1)
        self.cluster_barriers.end(rows)

    def require_running(self, op: Op, owners: Ints, rows: Ints) -> None:
        """Raise HazardError if the shared memory of a block is reached, from another one, that has ended."""
        gone = (owners != rows) & (self.ended[rows] == self.warps)
        if gone.any():
            at, launch = int(np.argmax(gone)), self.run.launch
            raise HazardError(
                f"{op.name} in {launch.block_name(int(owners[at]) + self.first)} reaches shared memory of block "
                f"{launch.block_index(int(rows[at]) + self.first)} of its cluster, which has ended",
                op.loc,
                "end the kernel with a barrier of the cluster (cluster_arrive, cluster_wait)",
                code="T416",
                missing="cluster-barrier",
            )
