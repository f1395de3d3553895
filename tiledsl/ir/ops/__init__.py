"""All ops, one file a family. Importing this package registers every op in `ir.core.OPS`."""

from tiledsl.ir.ops import arith, async_copy, control, debug, gpu, matrix, mem, ptx, tile, warp

__all__ = ["arith", "async_copy", "control", "debug", "gpu", "matrix", "mem", "ptx", "tile", "warp"]
