"""All ops, one file a family. Importing this package registers every op in `ir.core.OPS`."""

from tiledsl.ir.ops import (
    arith,
    async_copy,
    barriers,
    control,
    debug,
    gpu,
    matrix,
    mem,
    ptx,
    rings,
    roles,
    tile,
    tma,
    warp,
    wgmma,
)

__all__ = [
    "arith",
    "async_copy",
    "barriers",
    "control",
    "debug",
    "gpu",
    "matrix",
    "mem",
    "ptx",
    "rings",
    "roles",
    "tile",
    "tma",
    "warp",
    "wgmma",
]
