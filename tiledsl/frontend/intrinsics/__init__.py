"""What each function of `tiledsl.lang` does, one file a family. Importing registers the handlers."""

from tiledsl.frontend.intrinsics import (
    async_copies,
    atomics,
    barriers,
    debug,
    instructions,
    launch,
    matrices,
    memory,
    rings,
    roles,
    scalars,
    schedules,
    stores,
    tiles,
    tma,
    warpgroups,
)

__all__ = [
    "async_copies",
    "atomics",
    "barriers",
    "debug",
    "instructions",
    "launch",
    "matrices",
    "memory",
    "rings",
    "roles",
    "scalars",
    "schedules",
    "stores",
    "tiles",
    "tma",
    "warpgroups",
]
