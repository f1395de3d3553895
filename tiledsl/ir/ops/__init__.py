"""All ops, one file a family. Importing this package registers every op in `ir.core.OPS`."""

from tiledsl.ir.ops import arith, control, debug, gpu, mem, ptx, tile, warp

__all__ = ["arith", "control", "debug", "gpu", "mem", "ptx", "tile", "warp"]
