"""Asynchronous copies on the emulator: when bytes arrive and what a copy reads."""

from __future__ import annotations

import numpy as np
import pytest
from async_kernels import CHECKED, COMMIT, COPY, HALF, READ, result, thread_kernel, wait

from tiledsl.backends.emulator import Access, Hook, Options, run
from tiledsl.errors import EmulatorError, HazardError
from tiledsl.ir.parser import parse_kernel

# -- when bytes arrive -----------------------------------------------------------------------------


def test_bytes_arrive_at_the_wait() -> None:
    assert result(COPY + COMMIT + wait() + READ)[:32].tolist() == list(range(1, 33))


@pytest.mark.parametrize(
    "before",
    ["", COMMIT, wait(), COMMIT + wait(1), COMMIT + "gpu.barrier\n"],
    ids=["nothing", "commit", "wait before the commit", "one group may be left", "a barrier is no wait"],
)
def test_bytes_never_arrive_earlier(before: str) -> None:
    kernel = COPY + before + READ
    assert not result(kernel, Options()).any()
    message = r"race: thread \(0, 0, 0\) .* reads byte 0 of S at .*, which the copy of thread \(0, 0, 0\) at"
    with pytest.raises(HazardError, match=message + r" .*:7:1 has not delivered") as caught:
        result(kernel)
    assert caught.value.loc.line > 7


def test_groups_arrive_in_order() -> None:
    """Three groups of one copy each; the wait leaves the last two."""
    copies = """
    %c = arith.constant 32 : i32
    %x1 = mem.offset %x, %c : ptr<global, f32>
    %x2 = mem.offset %x1, %c : ptr<global, f32>
    %p1 = mem.offset %p, %c : ptr<shared, f32>
    %p2 = mem.offset %p1, %c : ptr<shared, f32>
    %y1 = mem.offset %y, %c : ptr<global, f32>
    %y2 = mem.offset %y1, %c : ptr<global, f32>
    mem.cp_async %p, %x {bytes = 4}
    async.commit_group
    mem.cp_async %p1, %x1 {bytes = 4}
    async.commit_group
    mem.cp_async %p2, %x2 {bytes = 4}
    async.commit_group
    """
    reads = """
    %v = mem.load %p : f32
    %v1 = mem.load %p1 : f32
    %v2 = mem.load %p2 : f32
    mem.store %y, %v
    mem.store %y1, %v1
    mem.store %y2, %v2
    """
    for pending, arrived in ((3, 0), (2, 32), (1, 64), (0, 96)):
        y = result(copies + wait(pending) + reads, Options())
        assert y[:96].tolist() == [i + 1 if i < arrived else 0 for i in range(96)]


def test_a_group_may_be_empty() -> None:
    assert not result(COPY + COMMIT + COMMIT + wait(2) + READ, Options()).any()
    assert result(COPY + COMMIT + COMMIT + wait(1) + READ)[:32].all()


def test_each_thread_waits_for_its_own_copies() -> None:
    y = result(COPY + COMMIT + HALF.format(wait(), "") + READ, Options())
    assert y[:16].all() and not y[16:32].any()


def test_each_thread_counts_its_own_groups() -> None:
    """The upper half has committed another group since: waiting for all but one covers its copy alone."""
    y = result(COPY + COMMIT + HALF.format("", COMMIT) + wait(1) + READ, Options())
    assert not y[:16].any() and y[16:32].all()


def test_copies_survive_divergence_and_barriers() -> None:
    """Two warps copy in different branches with a barrier in each, and meet before they wait."""
    branch = """
    %half = arith.constant 32 : i32
    %low = arith.lt %t, %half : bool
    control.if %low {
      mem.cp_async %p, %x {bytes = 4}
      async.commit_group
      gpu.barrier
      control.yield
    } else {
      gpu.barrier
      mem.cp_async %p, %x {bytes = 4}
      async.commit_group
      control.yield
    }
    """
    y = result(branch + wait() + READ, threads=64)
    assert y[:64].tolist() == list(range(1, 65))


def test_the_source_is_read_when_the_copy_begins() -> None:
    overwrite = "%z = arith.constant 0.0 : f32\nmem.store %x, %z\n"
    assert result(COPY + COMMIT + overwrite + wait() + READ, Options())[:32].tolist() == list(range(1, 33))


# -- what a copy reads -----------------------------------------------------------------------------

WIDE = """
%four = arith.constant 4 : i32
%at = arith.mul %t, %four : i32
%x4 = mem.offset %X, %at : ptr<global, f32>
%y4 = mem.offset %Y, %at : ptr<global, f32>
%p4 = mem.offset %s, %at : ptr<shared, f32>
{}
async.commit_group
async.wait_group {{pending = 0}}
%a, %b, %c, %d = mem.load %p4 {{vec = 4}} : f32, f32, f32, f32
mem.store %y4, %a, %b, %c, %d {{vec = 4}}
"""


@pytest.mark.parametrize("width", [4, 8, 16])
def test_widths(width: int) -> None:
    zero = "%z = arith.constant 0.0 : f32\nmem.store %p4, %z, %z, %z, %z {vec = 4}\n"
    y = result(WIDE.format(zero + f"mem.cp_async %p4, %x4 {{bytes = {width}}}"))[:128].reshape(32, 4)
    expected = np.arange(1, 129).reshape(32, 4) * (np.arange(4) < width // 4)
    np.testing.assert_array_equal(y, expected)


def test_bytes_past_the_source_size_are_zeros() -> None:
    """Lane t reads t % 17 of 16 bytes: also parts of an element."""
    size = "%n = arith.constant 17 : i32\n%size = arith.mod %t, %n : i32\n"
    y = result(WIDE.format(size + "mem.cp_async %p4, %x4, %size {bytes = 16}"))[:128]
    expected = np.arange(1, 129, dtype=np.float32).view(np.uint8).reshape(32, 16).copy()
    expected[np.arange(16) >= (np.arange(32) % 17)[:, None]] = 0
    np.testing.assert_array_equal(y.view(np.uint8).reshape(32, 16), expected)


def test_what_is_not_read_may_lie_outside_the_tensor() -> None:
    size = """
    %n = arith.constant 24 : i32
    %left = arith.sub %n, %at : i32
    %z = arith.constant 0 : i32
    %inside = arith.max %left, %z : i32
    %elements = arith.min %inside, %four : i32
    %size = arith.mul %elements, %four : i32
    """
    guarded = thread_kernel(WIDE.format(size + "mem.cp_async %p4, %x4, %size {bytes = 16}"), elements=(24, 128))
    x, y = np.arange(1, 25, dtype=np.float32), np.zeros(128, np.float32)
    run(guarded, {"X": x, "Y": y}, options=CHECKED)
    assert y.tolist() == [*range(1, 25)] + [0] * 104
    plain = thread_kernel(WIDE.format("mem.cp_async %p4, %x4 {bytes = 16}"), elements=(24, 128))
    with pytest.raises(EmulatorError, match=r"out of bounds: mem.cp_async of 16 bytes at byte 96 of X"):
        run(plain, {"X": x, "Y": y})


PREDICATE = """
%z = arith.constant 0.0 : f32
mem.store %p4, %z, %z, %z, %z {vec = 4}
%six = arith.constant 6 : i32
%on = arith.lt %t, %six : bool
"""


def test_where_its_predicate_is_false_a_copy_does_nothing() -> None:
    """It reads nothing, not even past the end of the tensor, and what lay there stays."""
    guarded = thread_kernel(WIDE.format(PREDICATE + "mem.cp_async %p4, %x4, %on {bytes = 16}"), elements=(24, 128))
    x, y = np.arange(1, 25, dtype=np.float32), np.zeros(128, np.float32)
    run(guarded, {"X": x, "Y": y}, options=CHECKED)
    assert y.tolist() == [*range(1, 25)] + [0] * 104


def test_a_predicate_and_a_number_of_bytes() -> None:
    sized = PREDICATE + "%eight = arith.constant 8 : i32\nmem.cp_async %p4, %x4, %eight, %on {bytes = 16}"
    y = result(WIDE.format(sized))[:128].reshape(32, 4)
    expected = np.arange(1, 129).reshape(32, 4) * (np.arange(4) < 2) * (np.arange(32) < 6)[:, None]
    np.testing.assert_array_equal(y, expected)


def test_a_copy_that_is_off_needs_no_wait_and_races_with_nobody() -> None:
    off = "%none = arith.constant false : bool\nmem.store %p, %one\nmem.cp_async %p, %x, %none {bytes = 4}\n"
    assert result("%one = arith.constant 1.0 : f32\n" + off + READ)[:32].tolist() == [1.0] * 32


@pytest.mark.parametrize(
    ("copy", "message"),
    [
        ("mem.cp_async %p4, %x1 {bytes = 16}", r"misaligned access: mem.cp_async .* byte 4 of X"),
        ("mem.cp_async %p1, %x4 {bytes = 16}", r"misaligned access: mem.cp_async .* byte 4 of S"),
        ("mem.cp_async %p4, %x1 {bytes = 8}", r"misaligned access: mem.cp_async .* past a multiple of 8"),
        ("mem.cp_async %far, %x4 {bytes = 16}", r"out of bounds: mem.cp_async of 16 bytes at byte 2048 of S"),
        ("mem.cp_async %p4, %x4, %big {bytes = 16}", r"mem.cp_async of 16 bytes reads 20; thread \(0, 0, 0\)"),
        ("mem.cp_async %p4, %x4, %less {bytes = 16}", r"mem.cp_async of 16 bytes reads -1; thread \(0, 0, 0\)"),
    ],
)
def test_what_a_copy_may_not_do(copy: str, message: str) -> None:
    addresses = """
    %one = arith.constant 1 : i32
    %x1 = mem.offset %x4, %one : ptr<global, f32>
    %p1 = mem.offset %p4, %one : ptr<shared, f32>
    %end = arith.constant 512 : i32
    %far = mem.offset %p4, %end : ptr<shared, f32>
    %big = arith.constant 20 : i32
    %less = arith.constant -1 : i32
    """
    with pytest.raises(EmulatorError, match=message):
        result(WIDE.format(addresses + copy))


def test_hooks_see_copies_begin_and_arrive() -> None:
    class Seen(Hook):
        def __init__(self) -> None:
            self.events: list[tuple[str, str, str, int]] = []

        def on_access(self, access: Access) -> None:
            self.events.append(("access", access.kind, access.space, len(access.threads)))

        def on_delivery(self, access: Access) -> None:
            self.events.append(("delivery", access.kind, access.space, len(access.threads)))
            assert (access.addresses == 4 * access.threads).all()

    seen = Seen()
    result(COPY + COMMIT + HALF.format(wait(), "") + wait(), Options(hooks=(seen,)))
    assert seen.events == [
        ("access", "read", "global", 32),
        ("access", "async", "shared", 32),
        ("delivery", "async", "shared", 16),
        ("delivery", "async", "shared", 16),
    ]


# -- tile level ------------------------------------------------------------------------------------


def test_at_tile_level_copies_are_complete_at_once() -> None:
    kernel = parse_kernel("""
kernel k(%X: global<f32, [4, 32], unit=1, align=16>, %Y: global<f32, [4, 32], unit=1, align=16>)
  grid(1) threads(32) level(tile) {
  %z = arith.constant 0 : index
  %one = arith.constant 1 : index
  %t = gpu.thread_id {axis = 0} : index
  %s = tile.shared_alloc {type = shared<f32, [4, 32]>} : shared<f32, [4, 32]>
  %a = async.copy %X, %z, %z, %s, %z, %z {shape = (4, 32), src_axes = (0, 1), dst_axes = (0, 1), vec = 16} : token
  tile.copy %s, %z, %z, %Y, %z, %z {shape = (4, 32), src_axes = (0, 1), dst_axes = (0, 1), vec = 16}
  async.cp %s, %z, %t, %X, %one, %t {guard = false}
  async.commit_group
  %v = tile.load %s, %z, %t : f32
  tile.store %Y, %z, %t, %v
  async.wait_group {pending = 0}
  async.wait %a
  control.return
}""")
    x, y = np.arange(128, dtype=np.float32).reshape(4, 32), np.zeros((4, 32), np.float32)
    run(kernel, {"X": x, "Y": y})
    np.testing.assert_array_equal(y, x[[1, 1, 2, 3]])


def test_at_tile_level_copies_without_guard_stay_inside() -> None:
    kernel = parse_kernel("""
kernel k(%X: global<f32, [4, 32], unit=1, align=16>)
  grid(1) threads(32) level(tile) {
  %z = arith.constant 0 : index
  %four = arith.constant 4 : index
  %t = gpu.thread_id {axis = 0} : index
  %s = tile.shared_alloc {type = shared<f32, [4, 32]>} : shared<f32, [4, 32]>
  async.cp %s, %z, %t, %X, %four, %t {guard = false}
  async.commit_group
  async.wait_group {pending = 0}
  control.return
}""")
    with pytest.raises(EmulatorError, match=r"async.cp at X\[4, 0\]"):
        run(kernel, {"X": np.zeros((4, 32), np.float32)})


STAGED = """
kernel k(%X: global<f32, [N, 64], unit=1, align=16>, %Y: global<f32, [64], unit=0, align=16>)
  grid(1) threads(64) level(tile) {{
  %z = arith.constant 0 : index
  %one = arith.constant 1 : index
  %n = tile.dim %X {{axis = 0}} : index
  %f = arith.constant 0.0 : f32
  %t = gpu.thread_id {{axis = 0}} : index
  %c = arith.constant 32 : index
  %u = arith.xor %t, %c : index
  %s = tile.shared_alloc {{type = shared<f32, [1, 64]>}} : shared<f32, [1, 64]>
  %sum = control.for %z, %n, %one, %f {{stages = {stages}}} : f32 (%i: index, %acc: f32) {{
    {copy}
    %j = control.for %z, %t, %one, %f : f32 (%k: index, %x: f32) {{
      %w = arith.add %x, %f : f32
      control.yield %w
    }}
    %v = tile.load %s, %z, %u : f32
    %next = arith.add %acc, %v : f32
    control.yield %next
  }}
  tile.store %Y, %t, %sum
  control.return
}}"""
COPIES = {
    "tile.copy": "tile.copy %X, %i, %z, %s, %z, %z {shape = (1, 64), src_axes = (0, 1), dst_axes = (0, 1), vec = 4}",
    "async.copy": "%token = async.copy %X, %i, %z, %s, %z, %z "
    "{shape = (1, 64), src_axes = (0, 1), dst_axes = (0, 1), vec = 4} : token",
}


@pytest.mark.parametrize("copy", COPIES)
def test_the_warps_of_a_pipelined_loop_meet_at_its_copies(copy: str) -> None:
    """Its author writes no barriers; in any other loop the same is a race."""
    x = np.random.default_rng(0).integers(0, 9, (5, 64)).astype(np.float32)
    y = np.zeros(64, np.float32)
    run(parse_kernel(STAGED.format(stages=3, copy=COPIES[copy])), {"X": x, "Y": y}, options=CHECKED)
    np.testing.assert_array_equal(y, x.sum(axis=0)[np.arange(64) ^ 32])
    with pytest.raises(HazardError, match="race"):
        run(parse_kernel(STAGED.format(stages=0, copy=COPIES[copy])), {"X": x, "Y": y}, options=CHECKED)
