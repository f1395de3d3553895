"""The pipeline as a whole: stages, observers, verification, options, speed, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.property.random_kernels import random_case
from tiledsl.errors import CompileError, VerifyError
from tiledsl.ir.core import Kernel
from tiledsl.ir.ops import control
from tiledsl.ir.parser import parse_kernel
from tiledsl.passes.manager import Pass, run_passes
from tiledsl.passes.pipeline import pipeline, run_pipeline, stages
from tiledsl.passes.scalar.dce import drop_dead_code

TILED = """
kernel tiled(%A: global<f32, [M, K], unit=1, align=16>, %B: global<f32, [K, N], unit=1, align=16>, %C: global<f32, [M, N], unit=1, align=16>)
  grid(floordiv(add(N, 15), 16), floordiv(add(M, 15), 16)) threads(16, 16) {
  %bx = gpu.block_id {axis = 0} : index
  %by = gpu.block_id {axis = 1} : index
  %tx = gpu.thread_id {axis = 0} : index
  %ty = gpu.thread_id {axis = 1} : index
  %T = arith.constant 16 : index
  %r0 = arith.mul %by, %T : index
  %row = arith.add %r0, %ty : index
  %c0 = arith.mul %bx, %T : index
  %col = arith.add %c0, %tx : index
  %As = tile.shared_alloc : shared<f32, [16, 16]>
  %Bs = tile.shared_alloc : shared<f32, [16, 16]>
  %zero = arith.constant 0.0 : f32
  %start = arith.constant 0 : index
  %one = arith.constant 1 : index
  %K = tile.dim %A {axis = 1} : index
  %result = control.for %start, %K, %T, %zero : f32 (%k0: index, %acc: f32) {
    %kc = arith.add %k0, %tx : index
    %a = tile.get %A, %row, %kc, %zero : f32
    tile.store %As, %ty, %tx, %a
    %kr = arith.add %k0, %ty : index
    %b = tile.get %B, %kr, %col, %zero : f32
    tile.store %Bs, %ty, %tx, %b
    gpu.barrier
    %limit = arith.constant STEPS : index
    %sum = control.for %start, %limit, %one, %acc {unroll = 0} : f32 (%step: index, %s: f32) {
      %k = arith.mod %step, %T : index
      %x = tile.load %As, %ty, %k : f32
      %y = tile.load %Bs, %k, %tx : f32
      %t = arith.fma %x, %y, %s : f32
      control.yield %t
    }
    gpu.barrier
    control.yield %sum
  }
  tile.put %C, %row, %col, %result
  control.return
}
"""  # noqa: E501


def tiled(steps: int = 16) -> Kernel:
    return parse_kernel(TILED.replace("STEPS", str(steps)))


def test_stages_are_observed_in_order() -> None:
    seen: list[str] = []
    kernel = tiled()
    assert run_pipeline(kernel, shared_limit=65536, observe=lambda stage, k: seen.append(stage)) is kernel
    assert seen == stages()
    assert len(set(seen)) == len(seen)
    assert {"canonicalize", "expand", "cse", "cse.2", "dce"} <= set(seen)
    assert (kernel.level, kernel.shared_bytes, len(kernel.abi)) == ("thread", 2048, 9)


def test_unrolled_accesses_share_a_base() -> None:
    """As[ty, k], four a load, and Bs[k, tx] for 16 values of k: one variable offset each, the rest immediates."""
    kernel = run_pipeline(tiled(), verify_each=True)
    loop = next(op for op in kernel.walk() if isinstance(op, control.For))
    names = [op.name for op in loop.body.walk()]
    assert names.count("mem.load") == 16 // 4 + 16 + 2
    assert names.count("arith.mul") == 1  # k * the row length of B
    constants = [op for op in loop.body.ops if op.name == "mem.offset" and op.operands[1].op is not None]
    shared = [op for op in constants if op.operands[1].op is not None and op.operands[1].op.name == "arith.constant"]
    assert len(shared) == 3 + 15


def test_verification_names_the_pass() -> None:
    def breaks(kernel: Kernel) -> None:
        kernel.body.ops.pop()

    passes = [Pass("dce", drop_dead_code), Pass("breaks", breaks)]
    with pytest.raises(VerifyError) as caught:
        run_passes(tiled(), passes, verify_each=True)
    assert caught.value.message.startswith("after breaks: a block does not end in a terminator")


def test_shared_limit_is_an_option() -> None:
    with pytest.raises(CompileError) as caught:
        run_pipeline(tiled(), shared_limit=2000, target="sm_90a")
    assert "need 2048 bytes, 2000 are possible on sm_90a: As 1024 bytes (16 x 16 f32), Bs" in caught.value.message
    assert "make them 48 bytes smaller, " in caught.value.fix
    run_pipeline(tiled(), shared_limit=2048)


def test_pipeline_lists_every_pass_once_configured() -> None:
    assert "check-shared-memory" in [p.name for p in pipeline(shared_limit=1)]
    assert "check-shared-memory" not in [p.name for p in pipeline()]


def test_passes_are_deterministic() -> None:
    """The same kernel twice gives the same text, whatever ids and hashes objects have."""
    from tiledsl.ir.printer import print_kernel

    texts = [print_kernel(run_pipeline(random_case(7, 40).kernel)) for _ in range(2)]
    assert texts[0] == texts[1]


def test_importing_the_pipeline_is_light() -> None:
    code = (
        "import sys, tiledsl.passes.pipeline, tiledsl.ir.parser, tiledsl.ir.verifier\n"
        "print([m for m in ('numpy', 'llvmlite', 'cuda', 'rich') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
