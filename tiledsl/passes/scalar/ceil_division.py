"""Write ceiling divisions as ``(a + b - 1) // b`` where that does not wrap: it takes fewer instructions.

For extents and positions it does not wrap, and for most divisors only a shift is left.
"""

from __future__ import annotations

from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Kernel
from tiledsl.ir.ops import arith
from tiledsl.passes.analysis.intervals import Intervals
from tiledsl.passes.analysis.structure import replace_op


def lower_ceil_divisions(kernel: Kernel) -> None:
    """Replace each `ceildiv` whose operands are known to be in range; the others are the backend's."""
    divisions = [op for op in kernel.walk() if isinstance(op, arith.Scalar) and op.fn.name == "ceildiv"]
    intervals = Intervals(kernel)
    for op in divisions:
        a, b = op.operands
        least, most = intervals.of(b)
        if least < 0 or intervals.of(a)[1] + most - 1 > a.dtype.limits[1]:
            continue  # a divisor of 0 makes both forms 0
        build = Builder(op.block, op.loc, before=op)
        rounded = build.scalar("add", a, build.scalar("sub", b, 1))
        quotient = build.scalar("floordiv", rounded, b)
        op.block.ops.remove(op)
        replace_op(op, [quotient])
