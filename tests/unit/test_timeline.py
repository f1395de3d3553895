"""The timeline of a run: logical clocks of warps, and who waited for whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulator_rings import CLUSTER, RING, kernel_of, run_ring

from tiledsl.backends.emulator import Options, run
from tiledsl.backends.emulator.timeline import Timeline
from tiledsl.errors import HazardError
from tiledsl.ir.parser import parse_kernel

HEAD = "kernel k(%X: global<f32, [N], unit=0, align=16>) grid({grid}) threads({threads}) level(tile) index_bits(32) {{"

WARPS = """
  %t = gpu.thread_id {axis = 0} : index
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  %first = arith.lt %t, %c32 : bool
"""
BEGUN = 2  # ops of it that count: a constant is none


def timeline(body: str, threads: int = 64, grid: str = "1", **options: Any) -> Timeline:
    made = parse_kernel(f"{HEAD.format(grid=grid, threads=threads)}\n{WARPS}{body}\n  control.return\n}}\n")
    found = Timeline(**options)
    run(made, {"X": np.zeros(64, np.float32)}, options=Options(checks=True, hooks=(found,)))
    return found


def told(found: Timeline) -> list[tuple[int, int, int, str, int]]:
    return sorted((w.warp, w.start, w.end, found.barriers[w.barrier], w.by) for w in found.waits)


WORK = """
  control.if %first {
    %a = arith.add %t, %t : index
    %b = arith.add %a, %t : index
    %c = arith.add %b, %t : index
    control.yield
  } else { control.yield }"""


def test_a_warp_waits_at_a_barrier_for_the_one_that_has_more_to_do() -> None:
    found = timeline(WORK + "\n  gpu.barrier")
    assert told(found) == [(1, BEGUN, BEGUN + 3, "barrier()", 0)]
    assert found.now.tolist() == [BEGUN + 3] * 2 and found.ended.all()
    assert [(found.barriers[p.barrier], p.end, p.by) for p in found.phases] == [("barrier()", BEGUN + 3, 0)]


def test_who_comes_last_waits_for_nobody_and_a_block_of_one_warp_never() -> None:
    assert told(timeline("\n  gpu.barrier")) == []
    found = timeline(WORK + "\n  gpu.barrier", threads=32)
    assert found.waits == found.phases == [] and found.now.tolist() == [BEGUN + 3]


def test_a_named_barrier_is_called_by_its_number() -> None:
    found = timeline(WORK + "\n  gpu.named_barrier {number = 3, threads = 64}")
    assert told(found) == [(1, BEGUN + 1, BEGUN + 4, "barrier 3", 0)]  # the arrival is an op


def test_an_op_counts_for_warps_with_an_active_lane_once_a_round_of_its_loop() -> None:
    body = """
  %c1 = arith.constant 1 : index
  %z = arith.constant 1.0 : f32
  %few = arith.lt %t, %c8 : bool
  control.if %few {
    control.for %c0, %c8, %c1 (%i: index) {
      tile.store %X, %t, %z
      control.yield
    }
    control.yield
  } else { control.yield }"""
    assert timeline(body).now.tolist() == [BEGUN + 1 + 8, BEGUN + 1]


def test_only_the_first_cluster_is_recorded() -> None:
    found = timeline(WORK + "\n  gpu.barrier", grid="3")
    assert found.blocks == [0] and len(found.waits) == 1 and len(found.now) == 2


def test_what_does_not_fit_is_said() -> None:
    twice = (
        WORK
        + "\n  gpu.barrier"
        + WORK.replace("%a", "%d").replace("%b", "%e").replace("%c ", "%f ")
        + "\n  gpu.barrier"
    )
    whole, cut = timeline(twice), timeline(twice, most=2)
    assert whole.full_at is None and len(whole.waits) == len(whole.phases) == 2
    assert cut.full_at == BEGUN + 3 and len(cut.waits) + len(cut.phases) == 2
    assert cut.now.tolist() == whole.now.tolist()


def of_ring(text: str, seed: int | None = None, k: int = 300) -> Timeline:
    found = Timeline()
    run_ring(kernel_of(text), m=128, n=32, k=k, options=Options(checks=True, hooks=(found,), seed=seed))
    return found


@pytest.mark.parametrize("text", [RING, CLUSTER])
def test_the_clocks_do_not_depend_on_the_order_of_the_warps(text: str) -> None:
    usual = of_ring(text)
    assert usual.waits
    for seed in range(1, 6):
        other = of_ring(text, seed)
        assert told(other) == told(usual) and other.now.tolist() == usual.now.tolist()


def test_a_consumer_waits_for_the_copy_and_the_producer_for_a_slot() -> None:
    found = of_ring(RING)
    waits = told(found)
    # Warps 4 to 7 come to the first slot before warp 0 has issued its copies.
    first = [w for w in waits if w[3] == "full[0]"]
    assert {w[4] for w in first} == {0} and {w[0] for w in first} <= {4, 5, 6, 7}
    assert {w[4] for w in waits if w[3].startswith("empty")} <= {4, 5, 6, 7}
    ends: dict[str, list[int]] = {}
    for phase in found.phases:
        ends.setdefault(found.barriers[phase.barrier], []).append(phase.end)
    assert len(ends["full[0]"]) == 3 and len(ends["full[1]"]) == 2  # five steps of 64
    for name, times in ends.items():
        assert times == sorted(times), name
    for slot in (0, 1):  # a slot is full, then empty, and so on
        both = [t for pair in zip(ends[f"full[{slot}]"], ends[f"empty[{slot}]"], strict=False) for t in pair]
        assert both == sorted(both)
    assert all(w.start < w.end for w in found.waits)


def test_blocks_of_a_cluster_are_told_apart() -> None:
    found = of_ring(CLUSTER)
    assert len(found.blocks) == 2 and len(found.now) == 2 * found.warps
    assert {"full[0] of block 0", "full[0] of block 1", "the cluster's barrier"} <= {*found.barriers}


def test_a_deadlock_leaves_what_came_before() -> None:
    found = Timeline()
    body = """
  control.if %first {
    gpu.named_barrier {number = 1, threads = 64}
    control.yield
  } else { control.yield }"""
    made = parse_kernel(
        f"{HEAD.format(grid='1', threads=64)}\n{WARPS}{WORK}\n  gpu.barrier{body}\n  control.return\n}}\n"
    )
    with pytest.raises(HazardError, match="deadlock"):
        run(made, {"X": np.zeros(64, np.float32)}, options=Options(hooks=(found,)))
    assert len(found.waits) == 1 and found.ended.tolist() == [False, True]
