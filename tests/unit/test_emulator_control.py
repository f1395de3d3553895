"""Control flow on the emulator: divergence, loops, barriers that split and merge, spinning, deadlock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulator_kernels import naive_tile, shared_tiled_thread, shared_tiled_tile
from numpy.typing import NDArray

from tiledsl.backends.emulator import Options, run
from tiledsl.errors import HazardError, KernelArgumentError
from tiledsl.ir import semantics
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.types import F32


def run_text(body: str, grid: str = "1", threads: str = "64", options: Options = Options(), **arrays: Any) -> None:  # noqa: B008
    """Run a tile-level kernel over i32 vectors of one run-time extent each."""
    params = ", ".join(f"%{name}: global<i32, [{name}_n], unit=0, align=4>" for name in arrays)
    text = f"kernel k({params}) grid({grid}) threads({threads}) {{\n{body}\ncontrol.return\n}}"
    run(parse_kernel(text), arrays, options=options)


def vector(n: int, value: int = 0) -> NDArray[np.int32]:
    return np.full(n, value, np.int32)


def fma_product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    acc = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        acc = semantics.apply("fma", F32, a[:, k : k + 1], b[k : k + 1], acc)
    return acc


@pytest.mark.parametrize("make", [naive_tile, shared_tiled_tile, shared_tiled_thread])
@pytest.mark.parametrize("size", [(1, 1, 1), (16, 16, 16), (33, 21, 12), (40, 70, 35)])
@pytest.mark.parametrize("chunk", [256, 65536])
def test_products_are_exact(make: Any, size: tuple[int, int, int], chunk: int) -> None:
    m, n, k = size
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    c = np.full((m, n), np.nan, np.float32)
    run(make(), {"A": a, "B": b, "C": c}, options=Options(chunk_threads=chunk))
    np.testing.assert_array_equal(c, fma_product(a, b))


@pytest.mark.parametrize("make", [naive_tile, shared_tiled_thread])
def test_empty_grid_runs_nothing_and_an_empty_sum_is_zero(make: Any) -> None:
    empty = np.zeros((0, 5), np.float32)
    run(make(), {"A": np.zeros((0, 3), np.float32), "B": np.zeros((3, 5), np.float32), "C": empty})
    c = np.ones((4, 5), np.float32)
    run(make(), {"A": np.zeros((4, 0), np.float32), "B": np.zeros((0, 5), np.float32), "C": c})
    assert not c.any()


# -- divergence ------------------------------------------------------------------------------------

IDS = """
%t = gpu.thread_id {axis = 0} : index
%ti = arith.cast %t {to = i32} : i32
%i0 = arith.constant 0 : index
%i1 = arith.constant 1 : index
%c0 = arith.constant 0 : i32
%c1 = arith.constant 1 : i32
%c3 = arith.constant 3 : i32
"""


def test_lanes_of_an_if_go_their_own_ways_and_meet_again() -> None:
    x = vector(64)
    run_text(
        IDS
        + """
        %m = arith.mod %ti, %c3 : i32
        %is = arith.eq %m, %c1 : bool
        %r = control.if %is : i32 {
          %big = arith.constant 100 : i32
          %deep = arith.lt %ti, %big : bool
          %inner = control.if %deep : i32 { control.yield %big } else { control.yield %c0 }
          %v = arith.add %inner, %ti : i32
          control.yield %v
        } else { control.yield %m }
        tile.store %x, %t, %r
        """,
        x=x,
    )
    t = np.arange(64)
    np.testing.assert_array_equal(x, np.where(t % 3 == 1, 100 + t, t % 3))


def test_loops_with_a_trip_count_of_their_own_in_every_lane() -> None:
    x, y = vector(96), vector(96)
    run_text(
        IDS
        + """
        %sum = control.for %c0, %ti, %c3, %c0 : i32 (%k: i32, %acc: i32) {
          %next = arith.add %acc, %k : i32
          control.yield %next
        }
        tile.store %x, %t, %sum
        %n, %steps = control.while %ti, %c0 : i32, i32 (%v: i32, %s: i32) {
          %go = arith.gt %v, %c0 : bool
          control.condition %go, %v, %s
        } (%v2: i32, %s2: i32) {
          %down = arith.sub %v2, %c3 : i32
          %up = arith.add %s2, %c1 : i32
          control.yield %down, %up
        }
        tile.store %y, %t, %steps
        """,
        threads="96",
        x=x,
        y=y,
    )
    np.testing.assert_array_equal(x, [sum(range(0, t, 3)) for t in range(96)])
    np.testing.assert_array_equal(y, [-(-t // 3) for t in range(96)])


def test_a_loop_to_the_largest_integer_ends() -> None:
    x = vector(1)
    run_text(
        """
        %i0 = arith.constant 0 : index
        %lo = arith.constant 2147483645 : i32
        %hi = arith.constant 2147483647 : i32
        %two = arith.constant 2 : i32
        %zero = arith.constant 0 : i32
        %n = control.for %lo, %hi, %two, %zero : i32 (%k: i32, %acc: i32) { control.yield %k }
        tile.store %x, %i0, %n
        """,
        threads="1",
        x=x,
    )
    assert x[0] == 2147483645


# -- barriers --------------------------------------------------------------------------------------

EXCHANGE = """
%s = tile.shared_alloc {type = shared<i32, [128]>} : shared<i32, [128]>
%w = gpu.warp_id : index
%half = arith.constant 2 : index
%last = arith.constant 127 : index
%b = gpu.block_id {axis = 0} : index
%bi = arith.cast %b {to = i32} : i32
"""


def test_warps_that_took_different_paths_to_a_barrier_meet_there() -> None:
    """Each side of the if has its own barrier; on the hardware too it is one barrier for all."""
    x = vector(128 * 5)
    run_text(
        IDS
        + EXCHANGE
        + """
        %low = arith.lt %w, %half : bool
        %k = control.if %low : i32 {
          %a = arith.add %ti, %bi : i32
          tile.store %s, %t, %a
          gpu.barrier
          control.yield %c0
        } else {
          %a = arith.sub %bi, %ti : i32
          tile.store %s, %t, %a
          gpu.barrier
          control.yield %c1
        }
        %from = arith.sub %last, %t : index
        %v = tile.load %s, %from : i32
        %v2 = arith.mul %v, %c3 : i32
        %v3 = arith.add %v2, %k : i32
        %n = arith.constant 128 : index
        %base = arith.mul %b, %n : index
        %at = arith.add %base, %t : index
        tile.store %x, %at, %v3
        """,
        grid="5",
        threads="128",
        options=Options(checks=True, chunk_threads=256),
        x=x,
    )
    t, b = np.arange(128), np.arange(5)[:, None]
    stored = np.where(t < 64, t + b, b - t)
    np.testing.assert_array_equal(x.reshape(5, 128), stored[:, ::-1] * 3 + (t >= 64))


def test_warps_leave_a_loop_with_barriers_one_by_one_and_the_rest_deadlocks() -> None:
    with pytest.raises(HazardError, match=r"(?s)deadlock.*warp 1.* waits at .*warp 0 has ended"):
        run_text(
            IDS
            + """
            %w = gpu.warp_id : index
            %r = control.for %i0, %w, %i1, %c0 : i32 (%k: index, %acc: i32) {
              gpu.barrier
              control.yield %acc
            }
            """
        )


def test_a_barrier_in_part_of_a_warp_is_an_error() -> None:
    with pytest.raises(HazardError, match=r"all 32 lanes of a warp, but only some reach it: thread \(0, 0, 0\)"):
        run_text(
            IDS + "%is = arith.lt %ti, %c3 : bool\ncontrol.if %is { gpu.barrier control.yield } else { control.yield }"
        )


SPIN = """
control.while (){
  %got = tile.load %flag, %i0 : i32
  %wait = arith.ne %got, %target : bool
  control.condition %wait
} () { control.yield }
"""


@pytest.mark.parametrize("waiting", ["lt", "ge"])
def test_a_warp_spins_on_a_flag_that_another_warp_sets(waiting: str) -> None:
    flag, x = vector(1), vector(2)
    run_text(
        IDS
        + f"""
        %target = arith.constant 7 : i32
        %w = gpu.warp_id : index
        %is = arith.{waiting} %w, %i1 : bool
        control.if %is {{
          {SPIN}
          tile.store %x, %w, %target
          control.yield
        }} else {{
          tile.store %flag, %i0, %target
          control.yield
        }}
        gpu.barrier
        """,
        flag=flag,
        x=x,
    )
    np.testing.assert_array_equal(x, [7, 0] if waiting == "lt" else [0, 7])


def test_a_block_spins_on_a_later_block_of_another_chunk() -> None:
    flag, x = vector(1), vector(4)
    run_text(
        IDS
        + f"""
        %target = arith.constant 9 : i32
        %b = gpu.block_id {{axis = 0}} : index
        %last = arith.constant 3 : index
        %is = arith.eq %b, %last : bool
        control.if %is {{ tile.store %flag, %i0, %target control.yield }} else {{ control.yield }}
        {SPIN}
        tile.store %x, %b, %target
        """,
        grid="4",
        threads="32",
        options=Options(chunk_threads=32),
        flag=flag,
        x=x,
    )
    assert x.tolist() == [9] * 4


def test_spinning_for_ever_is_reported() -> None:
    with pytest.raises(HazardError) as caught:
        run_text(IDS + "%target = arith.constant 7 : i32" + SPIN, options=Options(max_steps=500), flag=vector(1))
    assert (caught.value.code, caught.value.finding.sides[0].warps) == ("T403", (0, 1))


# -- arguments -------------------------------------------------------------------------------------


def test_arguments_are_checked() -> None:
    good = {name: np.zeros((4, 4), np.float32) for name in "ABC"}
    for wrong, message in (
        ({"A": np.zeros((4, 4))}, r"A: expected a NumPy array of float32 \(f32\), got float64"),
        ({"A": np.zeros(4, np.float32)}, "A: expected 2 dimensions, got 1"),
        ({"B": np.zeros((5, 4), np.float32)}, r"B: axis 0 \(K\) has extent 5, expected 4"),
        ({"A": 3}, r"A: expected a NumPy array of float32 \(f32\), got int"),
        ({"D": 3}, "has no parameter D"),
    ):
        with pytest.raises(KernelArgumentError, match=message):
            run(naive_tile(), {**good, **wrong})
    with pytest.raises(KernelArgumentError, match="argument C is missing"):
        run(naive_tile(), {k: good[k] for k in "AB"})


def test_a_step_of_zero_makes_no_iterations() -> None:
    c = vector(1)
    run_text(IDS + "control.for %i0, %i1, %i0 (%k: index) { tile.store %C, %i0, %c1\n control.yield }", C=c)
    assert c[0] == 0


@pytest.mark.parametrize("chunk", [128, 65536])
def test_warps_take_turns_through_a_spin_a_divergent_path_and_a_barrier(chunk: int) -> None:
    """In each round warp (round + block + w) mod 4 is the w-th to pass; cohorts split and merge all the way."""
    blocks, rounds = 6, 3
    turn, log = vector(blocks), vector(blocks * rounds * 4, -1)
    run_text(
        IDS
        + """
        %w = gpu.warp_id : index
        %l = gpu.lane_id : index
        %b = gpu.block_id {axis = 0} : index
        %n3 = arith.constant 3 : index
        %n4 = arith.constant 4 : index
        %s = control.for %i0, %n3, %i1, %ti : i32 (%round: index, %sum: i32) {
          %wb = arith.add %w, %b : index
          %wr = arith.add %wb, %round : index
          %place = arith.mod %wr, %n4 : index
          %r4 = arith.mul %round, %n4 : index
          %mine = arith.add %r4, %place : index
          %mi = arith.cast %mine {to = i32} : i32
          %spun = control.while %c0 : i32 (%n: i32) {
            %got = tile.load %turn, %b : i32
            %wait = arith.lt %got, %mi : bool
            control.condition %wait, %n
          } (%m: i32) {
            %more = arith.add %m, %c1 : i32
            control.yield %more
          }
          %first = arith.eq %l, %i0 : bool
          control.if %first {
            %n12 = arith.constant 12 : index
            %b12 = arith.mul %b, %n12 : index
            %at = arith.add %b12, %mine : index
            %wi = arith.cast %w {to = i32} : i32
            tile.store %log, %at, %wi
            %old = tile.atomic_add %turn, %b, %c1 : i32
            control.yield
          } else { control.yield }
          gpu.barrier
          %next = arith.add %sum, %mi : i32
          control.yield %next
        }
        %n128 = arith.constant 128 : index
        %bt = arith.mul %b, %n128 : index
        %out = arith.add %bt, %t : index
        tile.store %x, %out, %s
        """,
        grid=str(blocks),
        threads="128",
        options=Options(chunk_threads=chunk),
        turn=turn,
        log=log,
        x=(x := vector(blocks * 128)),
    )
    assert turn.tolist() == [12] * blocks
    b, r, place = np.ogrid[:blocks, :rounds, :4]
    np.testing.assert_array_equal(log.reshape(blocks, rounds, 4), (place - b - r) % 4)
    w, t = np.arange(128) // 32, np.arange(128)
    places = sum(4 * q + (w + np.arange(blocks)[:, None] + q) % 4 for q in range(rounds))
    np.testing.assert_array_equal(x.reshape(blocks, 128), t + places)
