"""What a launch is given: the shape of its grid, and the buffer of its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

__all__ = ["Frame", "Shape"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Blocks of the grid and of a cluster and threads of a block along x, y, z; bytes of shared memory.

    dependent: the kernel waits by itself for the grid before it in its stream, and may be launched before that ends.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    cluster: tuple[int, int, int] = (1, 1, 1)
    dependent: bool = False

    @property
    def plain(self) -> bool:
        """True if cuLaunchKernel can launch it."""
        return self.cluster == (1, 1, 1) and not self.dependent


@dataclass(slots=True)
class Frame:
    """One argument buffer. `address`: of the array of pointers to the slots, which the driver reads.

    pack: ``pack(*addresses)`` writes the addresses of the tensors. maps_at: offset of the tensor maps. packed:
    addresses of the tensors, in the buffer and in those; () at first. That their memory may be used so together was
    checked.
    """

    buffer: Any
    pointers: Any
    address: int
    pack: Callable[..., None]
    maps_at: int = 0
    packed: tuple[int, ...] = ()
