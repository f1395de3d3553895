"""The arithmetic of addresses at its edges: what is peeled off an index, what carries into the next panel or unit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from tiledsl.backends.emulator import run
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import BF16
from tiledsl.passes.pipeline import run_pipeline

Ints = NDArray[np.int64]

LAYOUTS = [
    "row",
    "padded(136)",
    "swizzle_32b",
    "swizzle_64b",
    "swizzle_128b",
    "swizzled(unit=8, span=8, every=1)",
    "swizzled(unit=8, span=4, every=2)",
]

KERNEL = """
kernel edges(%At: global<i32, [N], unit=0, align=4>, %Y: global<bf16, [16, 128], unit=1, align=16>, %one: i32)
  grid(1) threads(32) {{
  %t = gpu.thread_id {{axis = 0}} : index
  %l = gpu.lane_id : index
  %S = tile.shared_alloc {{layout = "{layout}"}} : shared<bf16, [16, 128]>
  %0 = arith.constant 0 : index
  %1 = arith.constant 1 : index
  %4 = arith.constant 4 : index
  %16 = arith.constant 16 : index
  %32 = arith.constant 32 : index
  %128 = arith.constant 128 : index
  %none = arith.constant 0.0 : bf16
  control.for %0, %16, %1 (%r: index) {{
    control.for %t, %128, %32 (%c: index) {{
      tile.store %S, %r, %c, %none
      control.yield
    }}
    control.yield
  }}
  gpu.barrier
  control.for %0, %16, %1 (%row: index) {{
    {index}
    %name = arith.cast %t : i32
    %next = arith.add %name, %one : i32
    %value = arith.cast %next : bf16
    tile.store %S, %row, %col, %value
    control.yield
  }}
  gpu.barrier
  control.for %0, %16, %1 (%r: index) {{
    control.for %t, %128, %32 (%i: index) {{
      %loaded = tile.load %At, %i : i32
      %c = arith.cast %loaded : index
      %v = tile.load %S, %r, %c : bf16
      tile.store %Y, %r, %c, %v
      control.yield
    }}
    control.yield
  }}
  control.return
}}
"""
"""Each thread writes where `index` says; all is read by columns of which nothing is known."""

INDICES: dict[str, Callable[[Ints], Ints]] = {
    # A lane is at most 31: 62 + 2 is one more than the last column of a panel of 128 bytes.
    "%two = arith.mul %l, %2 : index\n%col = arith.add %two, %2 : index": lambda t: 2 * t + 2,
    "%two = arith.mul %l, %2 : index\n%col = arith.add %two, %1 : index": lambda t: 2 * t + 1,
    "%col = arith.add %l, %66 : index": lambda t: t + 66,
    "%col = arith.add %l, %32 : index": lambda t: t + 32,
    "%col = arith.add %l, %33 : index": lambda t: t + 33,
    "%col = arith.sub %66, %l : index": lambda t: 66 - t,
    "%m = arith.sub %l, %66 : index\n%col = arith.add %m, %128 : index": lambda t: t + 62,
    "%p = arith.add %l, %1 : index\n%q = arith.mul %p, %2 : index\n%col = arith.add %q, %1 : index": lambda t: (
        2 * t + 3
    ),
    "%p = arith.mul %l, %3 : index\n%q = arith.add %p, %20 : index\n%r2 = arith.mul %l, %2 : index\n"
    "%s = arith.add %r2, %3 : index\n%col = arith.sub %q, %s : index": lambda t: t + 17,
    "%e = arith.mul %l, %8 : index\n%f = arith.and %e, %127 : index\n%g = arith.floordiv %l, %16 : index\n"
    "%h = arith.add %f, %g : index\n%col = arith.add %h, %2 : index": lambda t: (8 * t & 127) + t // 16 + 2,
}
NUMBERS = "".join(f"%{n} = arith.constant {n} : index\n" for n in (2, 3, 8, 20, 33, 66, 127))


@pytest.mark.parametrize("index", INDICES, ids=lambda text: text.replace("\n", "; "))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_column_lies_where_every_other_way_to_it_leads(layout: str, index: str) -> None:
    """Also where a sum reaches the first column of the next panel, and where constants come off a difference."""
    kernel = parse_kernel(KERNEL.format(layout=layout, index=NUMBERS + index))
    t = np.arange(32)
    expected = np.zeros((16, 128), np.float32)
    expected[:, INDICES[index](t)] = t + 1
    at = np.random.default_rng(1).permutation(128).astype(np.int32)
    for made in (kernel, run_pipeline(kernel.clone(), bounds=True)):
        Y = np.zeros((16, 128), numpy_dtype(BF16))
        run(made, {"At": at, "Y": Y, "one": np.int32(1)})
        np.testing.assert_array_equal(Y.astype(np.float32), expected)
