"""What each function of `tiledsl.lang` does, one file a family. Importing registers the handlers."""

from tiledsl.frontend.intrinsics import debug, launch, memory, scalars, sync, tiles

__all__ = ["debug", "launch", "memory", "scalars", "sync", "tiles"]
