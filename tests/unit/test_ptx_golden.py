"""The PTX of a few small kernels, whole: a change of a lowering rule or of LLVM shows up as a diff."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ptx_kernels import naive, shared_tiled

from tiledsl.backends.ptx import TARGETS
from tiledsl.backends.ptx.codegen import emit_ptx
from tiledsl.ir.core import Kernel
from tiledsl.ir.parser import parse_kernel
from tiledsl.passes.pipeline import run_pipeline

Golden = Callable[[str, str], None]

MMA = """
kernel mma_step(%A: global<f16, [M, 16], unit=1, align=16>, %B: global<f16, [16, N], unit=1, align=16>, %C: global<f32, [M, N], unit=1, align=8>)
  grid(1) threads(32) level(tile) index_bits(32) {
  %0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %As = tile.shared_alloc {layout = "swizzled(unit=8, span=2, every=4)"} : shared<f16, [16, 16]>
  %Bs = tile.shared_alloc {layout = "padded(24)"} : shared<f16, [16, 16]>
  %ta = async.copy %A, %0, %0, %As, %0, %0 {shape = (16, 16), src_axes = (0, 1), dst_axes = (0, 1), vec = 16} : token
  %tb = async.copy %B, %0, %0, %Bs, %0, %0 {shape = (16, 16), src_axes = (0, 1), dst_axes = (0, 1), vec = 16} : token
  async.wait %ta, %tb
  gpu.barrier
  %a = matrix.load %As, %0, %0 {type = fragment<f16, [16, 16], mma.m16n8k16.a(1, 1)>, axes = (0, 1)} : fragment<f16, [16, 16], mma.m16n8k16.a(1, 1)>
  %b = matrix.load %Bs, %0, %0 {type = fragment<f16, [16, 16], mma.m16n8k16.b(1, 1)>, axes = (0, 1)} : fragment<f16, [16, 16], mma.m16n8k16.b(1, 1)>
  %c = tile.pack %zero : fragment<f32, [16, 16], mma.m16n8k16.acc(1, 1)>
  %d = matrix.mma %a, %b, %c : fragment<f32, [16, 16], mma.m16n8k16.acc(1, 1)>
  matrix.store %d, %C, %0, %0 {axes = (0, 1), vec = 4}
  control.return
}
"""  # noqa: E501
"""Asynchronous copies, of A whole rows, matrices plain and transposed, two products, single elements of the result."""


@pytest.mark.parametrize(
    ("name", "make"), [("naive", naive), ("shared_tiled_16", lambda: shared_tiled(16))], ids=lambda v: str(v)[:20]
)
def test_ptx(name: str, make: Callable[[], Kernel], golden: Golden) -> None:
    _, ptx = emit_ptx(make(), TARGETS["sm_90a"])
    golden(f"{name}.sm_90a.ptx", ptx)


def test_ptx_of_a_product(golden: Golden) -> None:
    _, ptx = emit_ptx(run_pipeline(parse_kernel(MMA)), TARGETS["sm_90a"])
    golden("mma_step.sm_90a.ptx", ptx)
