"""Where threads are: block and thread indices as the smallest arrays that hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.backends.emulator.hooks import Bools, Ints, LaunchInfo


class Positions:
    """Tables over the threads of a block. `warps`: how many; `exists`: None, or which lanes there are."""

    def __init__(self, launch: LaunchInfo) -> None:
        self.launch = launch
        x, y, z = launch.threads
        count = x * y * z
        self.warps = -(-count // WARP)
        linear = np.arange(self.warps * WARP).reshape(self.warps, WARP)
        self.exists: Bools | None = (linear < count)[None] if count % WARP else None
        self.tables = [_smallest(linear % x), _smallest(linear // x % y), _smallest(linear // (x * y) % z)]

    def thread(self, warps: Ints, axis: int, dtype: np.dtype[Any]) -> Any:
        """The thread index along an axis, of a cohort of these warps."""
        table = self.tables[axis]
        if table.shape[0] > 1:
            return table[warps].astype(dtype)
        return table[None].astype(dtype) if table.size > 1 else table[0, 0].astype(dtype)

    def block(self, blocks: Ints, axis: int, dtype: np.dtype[Any]) -> Any:
        """The block index along an axis, of a cohort of these blocks."""
        x, y, z = self.launch.grid
        extent = (x, y, z)[axis]
        if extent == 1:
            return np.zeros((), dtype)
        below = (1, x, x * y)[axis]
        return (blocks // below % extent).astype(dtype)[:, None, None]


def _smallest(table: NDArray[Any]) -> NDArray[Any]:
    """Drop the axes, [warps, lanes], along which the table does not vary."""
    if (table == table[:1]).all():
        table = table[:1]
    if (table == table[:, :1]).all():
        table = table[:, :1]
    return table


# -- clusters ---------------------------------------------------------------------------------------


def whole_clusters(launch: LaunchInfo) -> int:
    """The least number of neighbouring blocks, by linear index, that are whole clusters wherever that many begin."""
    (x, y, _), (along_x, along_y, along_z) = launch.grid, launch.cluster
    if along_z > 1:
        return x * y * along_z
    return x * along_y if along_y > 1 else along_x


class Clusters:
    """Those of the blocks `first` ... `first + count - 1`, which are whole clusters.

    Arrays over these blocks: `rank`, in its cluster; `number`, of its cluster; `in_run`: a number that no other cluster
    of the run has; `members` [blocks, size]: the rows of all blocks of its cluster by rank.
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
        self.in_run: Ints = self.number + (launch.first + first // self.size)
        order = np.lexsort((self.rank, self.number))
        self.members: Ints = order.reshape(-1, self.size)[self.number]
