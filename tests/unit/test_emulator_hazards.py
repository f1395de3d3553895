"""The hazards of asynchronous copies that `checks` finds, and that correct kernels are free of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from async_kernels import CHECKED, COMMIT, COPY, READ, THREADS, Ring, result, wait

from tiledsl.backends.emulator import Options, run
from tiledsl.errors import HazardError

# -- rings of tiles --------------------------------------------------------------------------------


def ring(kernel: Ring, trips: int, options: Options = CHECKED) -> None:
    x = np.random.default_rng(trips).standard_normal(trips * THREADS).astype(np.float32)
    y = np.zeros(THREADS, np.float32)
    run(kernel.kernel(), {"X": x, "Y": y}, options=options)
    expected = np.zeros(THREADS, np.float32)
    for tile in x.reshape(trips, THREADS):
        expected += tile[np.arange(THREADS) ^ 32]
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("trips", range(7))
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_correct_ring_is_right_and_silent(stages: int, trips: int) -> None:
    ring(Ring(stages), trips)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"wait": False},
            r"race: .* reads byte .* of S at kernel.py:15:5, which the copy .* at kernel.py:11:5",
        ),
        (
            {"commit": False},
            r"race: .* reads byte .* of S at kernel.py:15:5, which the copy .* kernel.py:11:5",
        ),
        ({"barrier": False}, r"race: .* reads byte .* of S at kernel.py:15:5, which .* wrote at kernel.py:11:5"),
        ({"copy_first": True}, r"race: .* copies to byte .* of S at kernel.py:11:5, which .* read at kernel.py:15:5"),
        ({"overrun": True}, r"block \(0, 0, 0\) ends, and a copy that thread \(0, 0, 0\) began has not arrived"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_wrong_with_a_ring(stages: int, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(HazardError, match=message):
        ring(Ring(stages, **changes), 5)


def test_a_ring_with_too_few_tiles() -> None:
    copies = r"race: .* copies to byte .* at kernel.py:11:5, which the copy of .* at kernel.py:11:5"
    with pytest.raises(HazardError, match=copies):
        ring(Ring(3, slots=1), 5)
    for stages in (2, 3):
        with pytest.raises(HazardError, match=r"race: .* reads byte .* at kernel.py:15:5"):
            ring(Ring(stages, slots=stages - 1), 5)


# -- single hazards --------------------------------------------------------------------------------


def hazard(body: str, message: str, threads: int = 64) -> None:
    with pytest.raises(HazardError, match=message):
        result(body, threads=threads)


def test_the_copying_thread_may_not_write_either() -> None:
    store = "%z = arith.constant 0.0 : f32\nmem.store %p, %z\n"
    hazard(COPY + COMMIT + store + wait(), r"race: .* writes byte 0 of S .* has not delivered")
    result(store + COPY + COMMIT + wait() + READ)


OTHER = """
%c = arith.constant {} : i32
%u = arith.xor %t, %c : i32
%q = mem.offset %s, %u : ptr<shared, f32>
%w = mem.load %q : f32
"""


def test_other_threads_need_a_barrier_after_the_wait() -> None:
    copied = r"race: .* reads byte 128 of S .*, which thread \(32, 0, 0\) wrote at .* nothing orders the two"
    hazard(COPY + COMMIT + wait() + OTHER.format(32), copied)
    hazard(COPY + COMMIT + "gpu.barrier\n" + wait() + OTHER.format(32), copied)
    result(COPY + COMMIT + wait() + "gpu.barrier\n" + OTHER.format(32), threads=64)


def test_the_same_warp_needs_a_sync_warp() -> None:
    hazard(COPY + COMMIT + wait() + OTHER.format(1), r"race: .* reads byte 4 of S")
    result(COPY + COMMIT + wait() + "gpu.sync_warp\n" + OTHER.format(1), threads=64)


def test_a_copy_may_not_begin_while_others_read() -> None:
    start = "%z = arith.constant 0.0 : f32\nmem.store %p, %z\ngpu.barrier\n"
    end = COPY + COMMIT + wait()
    hazard(
        start + OTHER.format(32) + end,
        r"race: .* copies to byte .* of S .*, which thread .* read at .* nothing orders the two",
    )
    result(start + OTHER.format(32) + "gpu.barrier\n" + end, threads=64)


def test_lanes_of_one_copy_may_not_meet() -> None:
    hazard("mem.cp_async %s, %x {bytes = 4}\n" + COMMIT + wait(), r"race: .* copies to byte 0 of S")


def test_a_delivered_byte_counts_as_written() -> None:
    hazard(OTHER.format(1), "uninitialised read: .* reads byte 4 of S", threads=32)
    result(COPY + COMMIT + wait() + READ)
