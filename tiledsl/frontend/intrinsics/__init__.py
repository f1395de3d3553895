"""What each function of `tiledsl.lang` does, one file a family. Importing registers the handlers."""

from tiledsl.frontend.intrinsics import (
    async_copies,
    debug,
    instructions,
    launch,
    matrices,
    memory,
    scalars,
    sync,
    tiles,
)

__all__ = ["async_copies", "debug", "instructions", "launch", "matrices", "memory", "scalars", "sync", "tiles"]
