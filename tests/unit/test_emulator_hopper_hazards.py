"""What the emulator says of roles, rings, TMA and wgmma that are not ordered: each removed barrier, fence, arrive and
wait of a ring is found, at both levels, and the ring itself is not."""

from __future__ import annotations

import re

import numpy as np
import pytest
from emulator_rings import CHECKED, CLUSTER, RING, kernel_of, operands, pieces_of, run_ring

from tiledsl import Const, Global, const, f32, grid, ptx, threads, tile_kernel, warp_id
from tiledsl.backends.emulator import Options, run
from tiledsl.dims import N
from tiledsl.errors import EmulatorError, HazardError
from tiledsl.ir.core import Kernel
from tiledsl.ir.parser import parse_kernel
from tiledsl.passes.pipeline import run_pipeline

UNFENCED = "was initialised without a fence"
UNKNOWN = "does not know that warp 0 of block .* has initialised it"
DEADLOCK = "deadlock: these warps wait for ever"
EXPECTED: dict[str, str] = {
    "init_fence": UNFENCED,
    "init_barrier": UNKNOWN,
    "empty_wait": r"2 arrivals at full\[0\], a phase of which waits for 1",
    "expect": DEADLOCK + r"(?s:.*)has got 12288 bytes which nobody expected",
    "full_wait": "race: .* lets TMA or wgmma read byte 0 of a .* has not delivered",
    "wgmma_fence": "uses registers that no wgmma.fence has made ready",
    "commit": r"copies to byte 0 of a at .* may still read",
    "wait_one": r"copies to byte 0 of a at .* may still read",
    "release": DEADLOCK + r"(?s:.*)empty\[0\], which lacks",
    "release_other": DEADLOCK,
    "proxy_fence": "byte 0 of out .* with no proxy fence since",
    "store_barrier": "byte 1024 of out .* which thread .160, 0, 0. wrote .* nothing orders the two",
    "store_commit": r"writes byte 0 of out at .* may still read",
    "read_wait": r"writes byte 0 of out at .* may still read",
    "reuse_barrier": r"writes byte \d+ of out at .* which work of warp 4 read at .* nothing orders the two",
    "last_wait": r"warp 4 of block .* ends, and has not waited for .*store, which may still read out",
    "last_arrive": DEADLOCK + "(?s:.*)for its cluster, of which 0 of 16 warps have arrived",
    "last_cluster": "may end before warp 4 of block 1 of its cluster arrives",
}


def prepared(text: str, level: str, without: str = "") -> Kernel:
    kernel = kernel_of(text, without)
    return run_pipeline(kernel, verify_each=True) if level == "thread" else kernel


@pytest.mark.parametrize("level", ["tile", "thread"])
@pytest.mark.parametrize("text", [RING, CLUSTER], ids=["ring", "cluster"])
def test_a_ring_as_it_should_be_is_silent(text: str, level: str) -> None:
    run_ring(prepared(text, level), 128, 40, 200)


@pytest.mark.parametrize("level", ["tile", "thread"])
@pytest.mark.parametrize("piece", pieces_of(RING))
def test_what_is_left_out_of_a_ring_is_found(piece: str, level: str) -> None:
    with pytest.raises(HazardError, match=EXPECTED[piece]):
        run_ring(prepared(RING, level, without=piece))


@pytest.mark.parametrize("piece", pieces_of(CLUSTER))
def test_what_is_left_out_of_a_cluster_is_found(piece: str) -> None:
    with pytest.raises(HazardError, match=EXPECTED[piece]):
        run_ring(prepared(CLUSTER, "thread", without=piece), 128)


def test_a_deadlock_says_who_waits_for_whom() -> None:
    with pytest.raises(HazardError) as caught:
        run_ring(kernel_of(RING, "release"), options=Options())
    lines = str(caught.value).splitlines()
    loader, consumers = (next(line for line in lines if f"block (0, 0, 0): warp{who}" in line) for who in (" 0", "s 4"))
    assert re.search(r"warp 0 waits \(the role at line \d+\) at .* for phase 0 \(parity 0\) of empty\[0\]", loader)
    assert loader.endswith("which lacks 1 of 1 arrivals; nobody arrives")
    assert re.search(
        r"warps 4, 5, 6, 7 wait .* full\[0\], which lacks 1 of 1 arrivals; arriving at .*: warp 0", consumers
    )


@pytest.mark.parametrize(
    ("bytes_", "message"),
    [
        (12288 - 128, r"deadlock(?s:.*)full\[0\], which has got 128 bytes which nobody expected"),
        (12288 + 128, r"deadlock(?s:.*)full\[0\], which lacks 128 bytes"),
    ],
)
def test_bytes_are_counted(bytes_: int, message: str) -> None:
    kernel = kernel_of(RING, replaced=[("bytes = 12288", f"bytes = {bytes_}")])
    with pytest.raises(HazardError, match=message):
        run_ring(kernel, options=Options())


# -- mbarriers -------------------------------------------------------------------------------------


def test_what_two_stores_read_is_read_until_both_were_waited_for() -> None:
    """The first has read it, the second may still do so."""
    store = "      tma.store %out, %c0, %c0, %C, %m0, %n0 {box = (64, 16), axes = (0, 1)}\n      tma.commit_group"
    wait = "      tma.wait_group {pending = 0, read = true} #read_wait"
    outside = store.replace("%m0, %n0", "%c128, %n0")  # C has 64 rows: nothing is written twice
    again = [(f"{store} #store_commit\n{wait}", f"{store}\n{outside}\n{wait}")]
    run_ring(kernel_of(RING, replaced=again))
    with pytest.raises(
        HazardError, match=r"writes byte 0 of out at .*, which tma.store of warp 4 at .* may still read"
    ):
        run_ring(kernel_of(RING, replaced=[*again, (wait, wait.replace("pending = 0", "pending = 1"))]))


def small(body: str, threads: int = 64, level: str = "tile") -> Kernel:
    """An mbarrier %bar of one arrival, initialised, and an f32 tile S of 64, whose element of the thread is X's."""
    return parse_kernel(f"""kernel small(%X: global<f32, [64], unit=0, align=4>) grid(1) threads({threads})
  level({level}) index_bits(32) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %even = arith.constant 0 : u32
  %odd = arith.constant 1 : u32
  %t = gpu.thread_id {{axis = 0}} : index
  %w = gpu.warp_id : i32
  %no = arith.constant 0 : i32
  %bars = tile.shared_alloc : shared<u64, [2]>
  %S = tile.shared_alloc : shared<f32, [64]>
  %first = arith.eq %t, %c0 : bool
  %early = arith.eq %w, %no : bool
  control.if %first {{ mbarrier.init %bars, %c0 {{count = 1}} control.yield }} else {{ control.yield }}
  gpu.barrier
  {body}
  control.return
}}""")


def check(body: str, threads: int = 64, options: Options = CHECKED) -> None:
    run(small(body, threads), {"X": np.zeros(64, np.float32)}, options=options)


ARRIVE = "control.if %first { mbarrier.arrive %bars, %c0 control.yield } else { control.yield }\n"
SEVERAL = [
    ("mbarrier.arrive %bars, %c1", "mbarrier.arrive at byte 8 of bars, where block .* has no mbarrier"),
    ("mbarrier.arrive %bars, %c0", r"64 arrivals at bars\[0\], a phase of which waits for 1"),
    ("mbarrier.init %bars, %c1 {count = 1}", "an mbarrier is initialised twice"),
    ("mbarrier.wait %bars, %c0, %even", r"(?s)deadlock.*warps 0, 1 wait .* bars\[0\], which lacks 1 of 1 arrivals"),
    ("%v = tile.load %bars, %c0 : u64", "race: .* reads byte 0 of bars .* where a live mbarrier is"),
]


@pytest.mark.parametrize(("body", "message"), SEVERAL)
def test_wrong_uses_of_an_mbarrier(body: str, message: str) -> None:
    with pytest.raises(HazardError, match=message):
        check(body)


def test_waiting_orders_what_came_before_the_arrival() -> None:
    """The other warp's element may be read behind the wait, and not without it."""
    write = "%v = tile.load %X, %t : f32\ncontrol.if %early { tile.store %S, %t, %v gpu.sync_warp control.yield } else "
    body = write + "{ control.yield }\n" + ARRIVE
    read = "%r = tile.load %S, %c1 : f32"
    check(body + "mbarrier.wait %bars, %c0, %even\n" + read)
    with pytest.raises(
        HazardError,
        match=r"thread \(32, 0, 0\) .* reads byte 4 of S .* which thread .* wrote .* nothing orders",
    ):
        check(body + read)


def test_a_phase_must_be_seen_before_the_next_one_ends() -> None:
    """Warp 1 ends two phases while warp 0 waits for the first."""
    twice = """%c32 = arith.constant 32 : index
  %other = arith.eq %t, %c32 : bool
  control.if %early { mbarrier.wait %bars, %c0, %even control.yield } else {
    control.if %other { mbarrier.arrive %bars, %c0 {AGAIN} control.yield } else { control.yield }
    control.yield
  }"""
    check(twice.replace("{AGAIN}", ""))
    with pytest.raises(HazardError, match=r"waits for phase 0 of bars\[0\], and the next one has ended, too"):
        check(twice.replace("{AGAIN}", "mbarrier.arrive %bars, %c0"))


# -- barriers of some warps ------------------------------------------------------------------------


def test_named_barriers_count_threads() -> None:
    both = "gpu.named_barrier {number = 3, threads = 64}"
    check(both)
    with pytest.raises(HazardError, match=r"(?s)deadlock.*barrier 3, at which 64 of 96 threads have arrived"):
        check(both.replace("64", "96"))
    with pytest.raises(HazardError, match="64 threads arrive at barrier 3, which waits for 32"):
        check(both.replace("64", "32"))
    other = "gpu.named_barrier {number = 3, threads = 128, wait = false}\n"
    with pytest.raises(HazardError, match="barrier 3 waits for 128 threads, and here for 64"):
        check(other + both)


def test_somebody_waits_at_a_named_barrier_when_all_arrive() -> None:
    """Who comes later would wait for the next round. What is left when the block ends nobody misses."""
    arrive = "gpu.named_barrier {number = 3, threads = 64, wait = false}"
    with pytest.raises(HazardError, match="all 64 threads arrive at barrier 3, and none of them waits"):
        check(arrive)
    check(f"control.if %early {{ {arrive} control.yield }} else {{ control.yield }}")


def test_who_arrives_at_a_named_barrier_does_not_wait() -> None:
    """Warp 0 only arrives; warp 1 waits for both, and may then read what warp 0 wrote."""
    body = """%v = tile.load %X, %t : f32
  control.if %early {
    tile.store %S, %t, %v
    gpu.named_barrier {number = 1, threads = 64, wait = false}
    control.yield
  } else {
    gpu.named_barrier {number = 1, threads = 64}
    %r = tile.load %S, %c1 : f32
    control.yield
  }"""
    check(body)
    with pytest.raises(HazardError, match=r"which thread \(1, 0, 0\) wrote"):
        check(body.replace("gpu.named_barrier {number = 1, threads = 64}\n", ""))


# -- wgmma and setmaxnreg --------------------------------------------------------------------------


def test_an_accumulator_is_nobodys_before_its_wait() -> None:
    kernel = prepared(RING, "thread")
    waits = [op for op in kernel.walk() if op.name == "ptx.wgmma_wait" and op.results]
    for wait in waits:
        for result, operand in zip(wait.results, wait.operands, strict=True):
            result.replace_all_uses_with(operand)
    with pytest.raises(HazardError, match=r"uses a register of the product at .*, which is in flight"):
        run_ring(kernel)


def test_a_first_product_that_adds_is_wrong() -> None:
    """It adds to registers that nobody has written."""
    always = [
        ("wgmma.mma %sum, %some", "wgmma.mma %sum, %yes"),
        ("  %t = ", "  %yes = arith.constant true : bool\n  %t = "),
    ]
    with pytest.raises(AssertionError, match="nan"):
        run_ring(kernel_of(RING, replaced=always))


def test_wgmma_takes_whole_warpgroups() -> None:
    changes = [("arith.constant 4 : i32", "arith.constant 5 : i32"), ("role = (4, 4)", "role = (5, 3)")]
    with pytest.raises(HazardError, match=r"(?s)warps 5, 6, 7 wait .* for the other warps of the warpgroup"):
        run_ring(kernel_of(RING, replaced=changes), options=Options())


@pytest.mark.parametrize("op", ["fence", "commit_group", "wait {pending = 0, finish = true}"])
@pytest.mark.parametrize("seed", [0, 1])
def test_all_warps_of_a_warpgroup_order_and_commit_its_products(op: str, seed: int) -> None:
    """Three of four are a deadlock that names them, and four are none, also beside a warpgroup that does without."""
    body = """
    %warp = gpu.warp_id : index
    %few = arith.constant {few} : index
    %some = arith.lt %warp, %few : bool
    control.if %some {{ wgmma.{op} control.yield }} else {{ control.yield }}
    """
    options = Options(checks=True, seed=seed)
    with pytest.raises(HazardError, match=r"warps 0, 1, 2 wait .* for the other warps of the warpgroup") as caught:
        check(body.format(few=3, op=op), threads=256, options=options)
    assert caught.value.finding.code == "T401"
    check(body.format(few=4, op=op), threads=256, options=options)


@pytest.mark.parametrize("op", ["fence", "commit_group", "wait {pending = 0, finish = true}"])
@pytest.mark.parametrize("some", ["arith.eq %parity, %c0", "arith.lt %lane, %half"])
def test_all_lanes_of_its_warps_do(some: str, op: str) -> None:
    body = f"""
    %lane = gpu.lane_id : index
    %mask = arith.constant 1 : index
    %half = arith.constant 16 : index
    %parity = arith.and %lane, %mask : index
    %some = {some} : bool
    control.if %some {{ wgmma.{op} control.yield }} else {{ control.yield }}
    """
    with pytest.raises(HazardError) as caught:
        check(body, threads=128)
    assert caught.value.finding.code == "T415"


@pytest.mark.parametrize(("registers", "increase"), [(40, "true"), (240, "false")])
def test_registers_are_taken_in_the_right_direction(registers: int, increase: str) -> None:
    with pytest.raises(EmulatorError, match="but the launch gives them 168"):
        check(f"gpu.setmaxnreg {{registers = {registers}, increase = {increase}}}", threads=384)


@tile_kernel(arch="sm_90a")
def taken(X: Global[f32, N], *, RELEASED: const = 24):
    """Two warpgroups take what the first one has released."""
    b = grid(2)
    t = threads(384)
    if warp_id() >= 4:
        ptx.setmaxnreg(240, increase=True)
    elif RELEASED < 168:
        ptx.setmaxnreg(RELEASED, increase=False)
    X.put(b * 384 + t, f32(1))


def test_registers_come_from_other_warps() -> None:
    taken.check(np.zeros(768, np.float32), seeds=3)


@pytest.mark.parametrize(("first", "warps"), [(3, "warps 0, 1, 2 wait"), (5, "warp 4 waits")])
def test_setmaxnreg_takes_whole_warpgroups(first: int, warps: str) -> None:
    body = f"""
    %warp = gpu.warp_id : index
    %few = arith.constant {first} : index
    %some = arith.lt %warp, %few : bool
    control.if %some {{ gpu.setmaxnreg {{registers = 40, increase = false}} control.yield }} else {{ control.yield }}
    """
    for seed in range(3):
        with pytest.raises(HazardError, match=f"(?s)deadlock.*{warps} .* for the other warps of the warpgroup"):
            check(body, threads=256, options=Options(checks=True, seed=seed))


@pytest.mark.parametrize(("released", "spare"), [(168, 0), (32, 544)])
def test_registers_that_nobody_releases(released: int, spare: int) -> None:
    message = f"(?s)deadlock.*240 registers a thread: 8 warps need 576 more, .* have released {spare}\n"
    with pytest.raises(HazardError, match=message):
        taken.check(np.zeros(768, np.float32), RELEASED=released)


# -- TMA -------------------------------------------------------------------------------------------


def test_a_box_must_lie_in_its_tile() -> None:
    kernel = kernel_of(RING, replaced=[("%b, %slot, %c0, %c0, %B, %n0", "%b, %slot, %c16, %c0, %B, %n0")])
    with pytest.raises(EmulatorError, match=r"out of bounds: tma.load of 32 x 64 elements at b\[0, 16, 0\]"):
        run_ring(kernel)


def test_a_load_that_nobody_waits_for() -> None:
    more = "      tma.load %a, %slot, %c0, %c0, %A, %m0, %k, %full, %slot {box = (64, 64), axes = (0, 1)}\n"
    kernel = kernel_of(
        RING,
        replaced=[
            (more, more.replace("%a, %slot", "%extra, %c0") + more),
            ("  %out = ", "  %extra = tile.shared_alloc : shared<bf16, [1, 64, 64]>\n  %out = "),
        ],
    )
    with pytest.raises(HazardError, match=r"which the copy of thread .* has not delivered"):
        run_ring(kernel)


def test_results_do_not_need_the_checks() -> None:
    """The same kernel without checks: the emulator gives what the hardware may give."""
    kernel = kernel_of(RING, "full_wait")
    arrays = operands(64, 32, 64)
    run(kernel, arrays)
    assert not np.array_equal(arrays["C"], arrays["A"].astype(np.float32) @ arrays["B"].astype(np.float32).T)


@tile_kernel(arch="sm_90a")
def arrives_again(Y: Global[f32, N], *, SAFE: Const[bool] = False):
    """Where one warp arrives twice, the barrier of the cluster opens without the other one."""
    b = grid(2, cluster=(2,))
    t = threads(64)
    if SAFE or warp_id() == 0:
        ptx.cluster_arrive()
        if SAFE:
            ptx.cluster_wait()
        ptx.cluster_arrive()
    ptx.cluster_wait()
    Y[b * 64 + t] = f32(1)


def test_a_second_arrival_at_the_barrier_of_a_cluster() -> None:
    assert arrives_again.check(np.zeros(128, np.float32), SAFE=True)
    result = arrives_again.check(np.zeros(128, np.float32), raises=False)
    assert [finding.code for finding in result.findings] == ["T422"]
    assert "warp 0 arrives at its cluster's barrier, and has not waited there" in str(result)
