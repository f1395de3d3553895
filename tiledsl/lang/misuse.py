"""The error of a kernel construct that plain Python executes."""

from __future__ import annotations

from tiledsl.errors import TileError

__all__ = ["only_in_kernel"]


def only_in_kernel(what: str) -> TileError:
    """The error to raise where `what` (such as ``"barrier()"``) runs outside a kernel."""
    return TileError(
        f"{what} works only inside a @tile_kernel or @tile_function, whose body is compiled; "
        "it was executed as plain Python.\n"
        "  fix: move it into a function decorated with @tile_kernel or @tile_function, and call the kernel"
    )
