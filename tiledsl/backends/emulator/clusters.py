"""Which blocks are a cluster. (PTX ISA: cluster of CTAs; %cluster_ctarank counts x first.)"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.hooks import LaunchInfo

__all__ = ["Clusters", "whole_clusters"]

Ints = NDArray[np.int64]


def whole_clusters(launch: LaunchInfo) -> int:
    """The least number of neighbouring blocks, by linear index, that are whole clusters wherever that many begin."""
    (x, y, _), (along_x, along_y, along_z) = launch.grid, launch.cluster
    if along_z > 1:
        return x * y * along_z
    return x * along_y if along_y > 1 else along_x


class Clusters:
    """Those of the blocks `first` ... `first + count - 1`, which are whole clusters.

    Arrays over these blocks: `rank`, in its cluster; `number`, of its cluster; `members` [blocks, size]: the rows of
    all blocks of its cluster by rank.
    """

    def __init__(self, launch: LaunchInfo, first: int, count: int) -> None:
        x, y, _ = launch.grid
        cx, cy, cz = launch.cluster
        self.size = cx * cy * cz
        blocks = np.arange(first, first + count)
        bx, by, bz = blocks % x, blocks // x % y, blocks // (x * y)
        self.rank: Ints = bx % cx + cx * (by % cy + cy * (bz % cz))
        cluster = bx // cx + x * (by // cy + y * (bz // cz))
        self.number: Ints = np.unique(cluster, return_inverse=True)[1].reshape(-1)
        order = np.lexsort((self.rank, self.number))
        self.members: Ints = order.reshape(-1, self.size)[self.number]
