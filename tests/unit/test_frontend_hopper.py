"""What the frontend makes of TMA, rings, roles, clusters and schedules: the ops and their attributes, and that the
programs compute what they should with every check of the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hopper_programs as programs
import ml_dtypes
import numpy as np
import pytest
from hopper_ir import ir, ops, written
from numpy.typing import NDArray

from tiledsl import (
    Const,
    Global,
    bf16,
    const,
    coordinates,
    f32,
    fragment,
    grid,
    grid_size,
    i32,
    lane_id,
    persistent,
    processors,
    ptx,
    role,
    shared,
    store,
    swizzle_128b,
    threads,
    tile_kernel,
    tile_schedule,
    tma_load,
    tma_wait,
    u32,
    u64,
    unroll,
    warp_id,
    wgmma,
)
from tiledsl.dims import K, M, N, P, Q
from tiledsl.ir.core import Block, Kernel, Op
from tiledsl.ir.expr import evaluate
from tiledsl.ir.ops import arith, barriers, control, gpu, matrix, tile, tma
from tiledsl.ir.ops import roles as roles_ops
from tiledsl.ir.ops import wgmma as wgmma_ops

Array = NDArray[Any]


def names(within: Op | Block) -> list[str]:
    """Names of the ops that wait, move or multiply, in order."""
    families = ("mbarrier", "tma", "wgmma", "fence", "gpu.named", "gpu.setmaxnreg", "matrix", "cluster")
    return [op.name for op in within.walk() if op.name.startswith(families)]


def roles(kernel: Kernel) -> dict[tuple[int, ...], control.If]:
    return {op.role: op for op in ops(kernel, control.If) if op.role}


def constant(value: Any) -> Any:
    return value.op.value if isinstance(value.op, arith.Constant) else None


# -- tiles and products ----------------------------------------------------------------------------


def test_raw_barriers_loads_and_products_are_one_op_each() -> None:
    kernel = ir(programs.one_tile)
    (loop,) = ops(kernel, control.For)
    assert names(loop) == [
        "mbarrier.expect_tx",
        "tma.load",
        "tma.load",
        "mbarrier.wait",
        "wgmma.fence",
        "wgmma.mma",
        "wgmma.commit_group",
        "wgmma.wait",
    ]
    first, second = ops(kernel, tma.Load)
    assert (first.box, first.axes, first.hint, first.multicast) == ((64, 64), (0, 1), "", "")
    assert (second.hint, second.mbarrier[0].name) == ("evict_last", "arrived")
    assert ops(kernel, barriers.ExpectTx)[0].bytes == first.bytes + second.bytes == 16384
    assert ops(kernel, tma.Prefetch)[0].tensor.name == "A"


def test_the_first_product_does_not_add_and_a_sum_of_none_is_zero() -> None:
    kernel = ir(programs.one_tile)
    (loop,) = ops(kernel, control.For)
    (begin,), (product,) = ops(kernel, wgmma_ops.Begin), ops(kernel, wgmma_ops.Mma)
    assert str(begin.type) == "pending<fragment<f32, [64, 64], wgmma.acc(1)>>"
    position = loop.inits.index(begin.result)
    assert constant(loop.inits[position + 1]) is False  # before the loop nothing has been added
    assert product.operands[:2] == loop.body.args[1 + position : 3 + position]
    assert constant(loop.body.terminator.operands[position + 1]) is True
    waits = ops(kernel, wgmma_ops.Wait)
    assert [(w.pending, w.finish, len(w.operands)) for w in waits] == [(0, False, 0), (0, True, 1)]
    (choice,) = [op for op in ops(kernel, control.If) if op.results]
    assert choice.condition is loop.results[position + 1]
    assert isinstance(choice.orelse.ops[1], tile.Pack)


def test_views_say_which_axes_are_rows_and_columns() -> None:
    (product,) = ops(ir(programs.one_tile), wgmma_ops.Mma)
    assert (product.k, product.a_axes, product.b_axes) == (64, (0, 1), (1, 0))
    kernel = ir(programs.from_registers)
    (product,) = ops(kernel, wgmma_ops.Mma)
    assert (product.a_axes, product.b_axes, str(product.a.type)) == (
        (),
        (1, 2),
        "fragment<f16, [64, 64], wgmma.a(1, 4)>",
    )
    a, b = ops(kernel, tma.Load)
    assert (a.box, a.axes, b.box, b.axes) == ((1, 64, 64), (1, 2), (1, 64, 64), (1, 2))


@tile_kernel(arch="sm_90a")
def turned_load(A: Global[bf16, K, M]) -> None:
    grid(1)
    tid = threads(128)
    S, bars = shared((32, 64), bf16, layout=swizzle_128b), shared((2,), u64)
    if tid == 0:
        tma_load(A[0:32, 0:64].T, S.T, mbarrier=(bars, 1))


def test_a_tile_that_is_turned_with_its_tensor_is_loaded_as_it_is() -> None:
    (load,) = ops(ir(turned_load), tma.Load)
    assert (load.box, load.axes) == ((32, 64), (0, 1))


# -- raw instructions ------------------------------------------------------------------------------


@tile_kernel(arch="sm_90a")
def raw_instructions(A: Global[f32, M]) -> None:
    b = grid(64, cluster=(2,))
    tid = threads(256)
    bars = shared((2,), u64)
    ptx.griddepcontrol_wait()
    if ptx.elect():
        ptx.mbarrier_init(bars, 0, count=256)
    ptx.fence_mbarrier_init()
    ptx.cluster_arrive()
    ptx.cluster_wait()
    ptx.mbarrier_arrive(bars, 0)
    ptx.mbarrier_arrive(bars, 1, rank=ptx.cluster_rank() ^ 1)
    ptx.mbarrier_wait(bars, 0, parity=0)
    ptx.mbarrier_wait(bars, 0, parity=u32(b % 2))
    ptx.fence_proxy_async()
    ptx.fence_proxy_async("global")
    ptx.setmaxnreg(40, increase=False)
    ptx.named_barrier(3, threads=256, wait=False)
    tma_wait(1, read=True)
    ptx.griddepcontrol_launch()
    A.put(tid, f32(grid_size()))


def test_raw_instructions_are_one_op_each() -> None:
    kernel = ir(raw_instructions)
    assert kernel.cluster == (2, 1, 1)
    families = ("mbarrier", "fence", "cluster", "gpu.grid_", "gpu.setmaxnreg", "gpu.named", "warp.elect", "tma")
    found = [op for op in kernel.walk() if op.name.startswith(families)]
    assert [op.name for op in found] == [
        "gpu.grid_dependency",
        "warp.elect",
        "mbarrier.init",
        "fence.mbarrier_init",
        "cluster.arrive",
        "cluster.wait",
        "mbarrier.arrive",
        "cluster.rank",
        "mbarrier.arrive",
        "mbarrier.wait",
        "mbarrier.wait",
        "fence.proxy_async",
        "fence.proxy_async",
        "gpu.setmaxnreg",
        "gpu.named_barrier",
        "tma.wait_group",
        "gpu.grid_dependency",
        "gpu.grid_size",
    ]
    assert [(op.wait) for op in ops(kernel, barriers.GridDependency)] == [True, False]
    assert [len(op.more) for op in ops(kernel, barriers.Arrive)] == [0, 1]
    assert [op.space for op in ops(kernel, barriers.FenceProxy)] == ["shared", "global"]
    (init,), (named,) = ops(kernel, barriers.Init), ops(kernel, barriers.NamedBarrier)
    assert (init.count, named.number, named.threads, named.wait) == (256, 3, 256, False)


# -- roles -----------------------------------------------------------------------------------------


def test_roles_take_warps_in_order_and_say_who_gives_registers() -> None:
    kernel = ir(programs.producer_consumers)
    assert kernel.threads == (384,)
    assert list(roles(kernel)) == [(0, 4), (0, 0), (4, 8)]
    registers = [(op.registers, op.increase) for op in ops(kernel, barriers.SetMaxNReg)]
    assert registers == [(40, False), (232, True)]  # 168 at launch: 65536 / 384, a multiple of 8
    for place, found in (((0, 4), 40), ((4, 8), 232)):
        assert roles(kernel)[place].then.ops[0].attrs["registers"] == found


@tile_kernel(arch="sm_90a")
def registers_as_launched(A: Global[f32, M]) -> None:
    grid(1)
    with role("a", registers=128):
        A.put(0, 1)
    with role("b", warpgroups=3, registers=128):
        A.put(1, 1)


def test_a_role_that_keeps_its_registers_takes_none() -> None:
    assert not ops(ir(registers_as_launched), barriers.SetMaxNReg)


@tile_kernel(arch="sm_90a")
def registers_of_two_blocks(A: Global[f32, M], *, MANY: const = 216, BLOCKS: const = 2) -> None:
    t = grid(2) * 256 + threads(256, blocks=BLOCKS)
    with role("few", registers=40):
        A.put(t, 1)
    with role("many", registers=MANY):
        A.put(t, 2)


@pytest.mark.parametrize(("blocks", "many"), [(2, 216), (0, 240), (3, 120)])
def test_the_emulator_counts_registers_as_the_compiler_does(blocks: int, many: int) -> None:
    """128 a thread where two blocks share an SM, 256 where one has it, 80 of three."""
    A = np.zeros(512, np.float32)
    registers_of_two_blocks.check(A, BLOCKS=blocks, MANY=many)
    assert A.tolist() == 2 * ([1.0] * 128 + [2.0] * 128)
    registers = [op.increase for op in ops(ir(registers_of_two_blocks, BLOCKS=blocks, MANY=many), barriers.SetMaxNReg)]
    assert registers == [False, blocks != 0]


def test_a_barrier_in_a_role_is_that_of_its_threads() -> None:
    found = ops(ir(programs.producer_consumers), barriers.NamedBarrier)
    assert {(op.number, op.threads, len(op.operands)) for op in found} == {(2, 256, 0)}
    found = ops(ir(programs.in_turns), barriers.NamedBarrier)
    # Of two instances, each of 128 threads: 2 and 3; the turns, which both take part in, 4 and 5, 6 and 7.
    assert {(op.number, op.threads, len(op.operands)) for op in found} == {(2, 128, 1), (4, 256, 1), (6, 256, 1)}


# -- rings -----------------------------------------------------------------------------------------


def test_a_ring_has_stages_of_its_tiles_and_two_barriers_a_slot() -> None:
    kernel = ir(programs.producer_consumers)
    found = {op.result.name: (str(op.type), op.layout) for op in ops(kernel, tile.SharedAlloc)}
    assert found == {
        "a": ("shared<bf16, [4, 128, 64]>", "swizzle_128b"),
        "b": ("shared<bf16, [4, 64, 64]>", "swizzle_128b"),
        "full": ("shared<u64, [4]>", "row"),
        "empty": ("shared<u64, [4]>", "row"),
        "out": ("shared<bf16, [2, 128, 64]>", "swizzle_128b"),
    }
    counts = {(op.place[0].name, constant(op.place[1])): op.count for op in ops(kernel, barriers.Init)}
    assert counts == {(name, slot): {"full": 1, "empty": 2}[name] for name in ("full", "empty") for slot in range(4)}


def test_a_fill_waits_for_the_slot_and_expects_what_it_loads() -> None:
    load = roles(ir(programs.producer_consumers))[0, 0]
    assert names(load) == ["mbarrier.wait", "mbarrier.expect_tx", "tma.load", "tma.load"]
    assert ops(load, barriers.ExpectTx)[0].bytes == (128 + 64) * 64 * 2
    (inner,) = [op for op in ops(load, control.For) if not ops(op.body, control.For)]
    wait, expect = ops(inner, barriers.Wait)[0], ops(inner, barriers.ExpectTx)[0]
    slot, phase = inner.body.args[1:3]
    assert (wait.place[0].name, wait.place[1], expect.place[0].name, expect.place[1]) == ("empty", slot, "full", slot)
    assert wait.operands[-1].op.operands[0] is phase  # its opposite: a new slot is free


def test_a_use_releases_the_slot_of_the_group_that_has_ended() -> None:
    math = roles(ir(programs.producer_consumers))[4, 8]
    assert names(math)[1:7] == [
        "wgmma.begin",
        "mbarrier.wait",
        "wgmma.fence",
        "wgmma.mma",
        "wgmma.commit_group",
        "wgmma.wait",
    ]
    assert names(math)[7:10] == ["mbarrier.arrive", "wgmma.wait", "mbarrier.arrive"]
    assert [(w.pending, w.finish) for w in ops(math, wgmma_ops.Wait)] == [(1, False), (0, True)]
    at_once = roles(ir(programs.producer_consumers, IN_FLIGHT=0))[4, 8]
    assert names(at_once)[6:9] == ["wgmma.wait", "mbarrier.arrive", "wgmma.wait"]
    assert len(ops(at_once, barriers.Arrive)) == 1


def test_loops_of_a_role_carry_its_cursors_which_are_three_values() -> None:
    kernel = ir(programs.producer_consumers)
    carried = {place: [v.name for v in ops(op, control.For)[0].results] for place, op in roles(kernel).items()}
    assert carried == {place: ["cursor0_slot", "cursor0_phase", "cursor0_held"] for place in roles(kernel)}
    assert [len(op.results) for op in ops(written(programs.producer_consumers), roles_ops.Work)] == [1, 1]


def test_threads_that_read_a_slot_themselves_meet_before_it_is_released() -> None:
    math = roles(ir(programs.from_registers))[4, 4]
    inner = ops(math, control.For)[-1]
    assert names(inner) == [
        "mbarrier.wait",
        "matrix.load",
        "wgmma.fence",
        "wgmma.mma",
        "wgmma.commit_group",
        "wgmma.wait",
        "fence.proxy_async",
        "gpu.named_barrier",
        "mbarrier.arrive",
    ]


# -- clusters and schedules ------------------------------------------------------------------------


def test_a_cluster_shares_loads_and_slots_wait_for_its_users() -> None:
    kernel = ir(programs.producer_consumers, CM=2)
    assert kernel.cluster == (2, 1, 1)
    a, b = ops(kernel, tma.Load)
    assert (a.multicast, a.box, b.multicast, b.box) == ("", (128, 64), "m", (32, 64))
    assert ops(kernel, barriers.ExpectTx)[0].bytes == (128 + 64) * 64 * 2  # both halves arrive here
    assert {op.count for op in ops(kernel, barriers.Init)} == {1, 2 * 2}
    assert [len(op.more) for op in ops(kernel, barriers.Arrive)] == [1] * 4
    before, behind = (
        [op.name for op in ops(kernel, barriers.ClusterArrive, barriers.ClusterWait, gpu.Barrier)][:2],
        ([op.name for op in kernel.body.ops[-4:]]),
    )
    assert before == ["cluster.arrive", "cluster.wait"]
    assert behind == ["gpu.sync_warp", "cluster.arrive", "cluster.wait", "control.return"]


@pytest.mark.parametrize(("m", "n", "arrivals"), [(1, 1, 1), (2, 1, 2), (1, 2, 2), (2, 2, 3), (2, 4, 5)])
def test_a_slot_is_released_in_every_block_that_writes_to_it(m: int, n: int, arrivals: int) -> None:
    kernel = ir(programs.producer_consumers, CM=m, CN=n, BM=256)
    assert {op.count for op in ops(kernel, barriers.Init)} == {1, 2 * arrivals}
    # One of the row and one of the column are the same block, where a condition leaves the second one out.
    assert len(ops(kernel, barriers.Arrive)) == 2 * (arrivals + (m > 1 and n > 1))


@pytest.mark.parametrize(
    ("sizes", "processors_", "blocks"),
    [((1, 1), 132, 2), ((256, 128), 132, 4), ((4096, 4096), 132, 132), ((4096, 4096), 131, 130)],
)
def test_a_persistent_grid_is_a_multiple_of_the_cluster(sizes: tuple[int, int], processors_: int, blocks: int) -> None:
    kernel = ir(programs.producer_consumers, CM=2)
    (extent,) = kernel.grid
    assert evaluate(extent, {"M": sizes[0], "N": sizes[1], "K": 64, "processors": processors_}) == blocks


def test_without_persistent_a_schedule_is_a_grid_of_its_tiles() -> None:
    (extent,) = ir(programs.from_registers).grid
    assert evaluate(extent, {"M": 65, "N": 129, "K": 64, "B": 3}) == 2 * 3 * 3


@tile_kernel(arch="sm_90a")
def order_of_tiles(
    A: Global[f32, M, K], B: Global[f32, K, N], C: Global[f32, M], *, GROUP: const, ALONG: Const[Any]
) -> None:
    """C[i] is the tile, m * 100 + n, that is computed as number i."""
    work = persistent(tile_schedule(M, N, K, tile=(2, 4, 1), group=GROUP, along=ALONG))
    threads(32)
    for t in work:
        C.put(t.index, f32(t.m.start // 2 * 100 + t.n.start // 4))


def expected_order(rows: int, columns: int, group: int, along: str) -> Iterator[int]:
    """Bands of `group` tiles along one axis, one after the other; in a band, that axis runs fastest."""
    banded, across = (rows, columns) if along == "m" else (columns, rows)
    for first in range(0, banded, group):
        for j in range(across):
            for i in range(first, min(first + group, banded)):
                yield i * 100 + j if along == "m" else j * 100 + i


@pytest.mark.parametrize("along", ["m", "n"])
@pytest.mark.parametrize("group", [1, 2, 3, 8])
def test_tiles_come_in_bands(group: int, along: str) -> None:
    rows, columns = 5, 3
    A, B = np.zeros((rows * 2 - 1, 1), np.float32), np.zeros((1, columns * 4 - 1), np.float32)
    C = np.zeros(rows * 2 - 1, np.float32)
    order_of_tiles(A, B, C, GROUP=group, ALONG=along, device="emulator")
    assert C.tolist() == list(expected_order(rows, columns, group, along))[: C.size]


@tile_kernel(arch="sm_90a")
def by_processors(A: Global[f32, M]) -> None:
    b = grid(min(M, processors))
    threads(32)
    for i in range(b, M, grid_size()):
        A[i] = f32(b)


def test_processors_is_a_name_that_the_host_knows() -> None:
    kernel = ir(by_processors)
    assert str(kernel.grid[0]) == "min(M, processors)"
    assert not [op for op in kernel.walk() if not op.name]  # nothing is left of it in the kernel


# -- registers -------------------------------------------------------------------------------------


@tile_kernel(arch="sm_90a")
def places_of_registers(rows: Global[i32, M, N], columns: Global[i32, M, N], C: Global[f32, P, Q]):
    grid(1)
    threads(128)
    x = wgmma.accumulator((64, 16), f32).wait()
    row, column = coordinates(x)
    for i in unroll(8):
        rows.put(warp_id() * 32 + lane_id(), i, i32(row.registers()[i]))
        columns.put(warp_id() * 32 + lane_id(), i, i32(column.registers()[i]))
    store(fragment((64, 16), f32, x.layout, init=2 * row.to(f32).registers()), C[0:64, 0:16])


def test_registers_of_an_accumulator_and_back() -> None:
    rows, columns = np.zeros((128, 8), np.int32), np.zeros((128, 8), np.int32)
    C = np.zeros((64, 16), np.float32)
    places_of_registers(rows, columns, C, device="emulator")
    thread = np.arange(128)[:, None]
    assert (rows == thread // 32 * 16 + thread % 32 // 4 + np.array([0, 0, 8, 8] * 2)).all()
    assert (columns == thread % 4 * 2 + np.array([0, 1, 0, 1, 8, 9, 8, 9])).all()
    assert (2 * np.arange(64)[:, None] == C).all()


# -- stores ----------------------------------------------------------------------------------------


def test_a_fragment_leaves_in_chunks_through_buffers() -> None:
    math = roles(ir(programs.producer_consumers, BN=256, BUFFERS=3, STAGES=3))[4, 8]
    slices, waits = ops(math, matrix.Slice), ops(math, tma.BulkWait)
    assert [op.columns for op in slices] == [(0, 64), (64, 64), (128, 64), (192, 64)]
    # As many groups may be reading as there are other buffers; at first, none of an earlier tile. At last, none at all.
    assert [(op.pending, op.read) for op in waits] == [(0, True), (1, True), (2, True), (2, True), (0, True)]
    stores = ops(math, matrix.Store)
    assert [constant(op.side.origin[0]) for op in stores] == [0, 1, 2, 0]
    start = names(math).index("matrix.slice") - 2
    assert names(math)[start : start + 7] == [
        "tma.wait_group",
        "gpu.named_barrier",
        "matrix.slice",
        "matrix.store",
        "fence.proxy_async",
        "gpu.named_barrier",
        "tma.store",
    ]


def test_a_fragment_as_wide_as_its_buffer_is_not_cut() -> None:
    kernel = ir(programs.one_tile)
    assert not ops(kernel, matrix.Slice)
    (store,) = ops(kernel, tma.Store)
    assert (store.box, store.axes) == ((64, 64), (0, 1))
    assert [op.pending for op in ops(kernel, tma.BulkWait)] == [0, 0]


# -- instances -------------------------------------------------------------------------------------


def test_instances_take_every_second_item_and_turns() -> None:
    kernel = ir(programs.in_turns)
    assert kernel.threads == (384,)
    math = roles(kernel)[4, 8]
    named = [(op.number, op.wait) for op in ops(math, barriers.NamedBarrier) if op.threads == 256]
    before, in_loop = named[:2], named[2:]
    assert before == [(4, False), (6, False)]
    assert in_loop == [(4, True), (4, False), (6, True), (6, False)]
    assert not [op for op in ops(ir(programs.in_turns, INSTANCES=1), barriers.NamedBarrier) if op.threads == 256]


# -- what they compute -----------------------------------------------------------------------------


def product(kernel: Any, m: int, n: int, k: int, dtype: Any, *, processors: int = 0, **consts: Any) -> None:
    """Run on the emulator with its checks, on small integers, whose sums are exact in any order."""
    rng = np.random.default_rng(m + n + k)
    A, B = (rng.integers(-2, 3, (rows, k)).astype(dtype) for rows in (m, n))
    C = np.full((m, n), 7, dtype)
    options = {"processors": processors} if processors else {}
    kernel._emulated((A, B, C), consts, checks=True, **options)
    expected = (A.astype(np.float32) @ B.astype(np.float32).T).astype(dtype)
    np.testing.assert_array_equal(C.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 64), (72, 80, 136), (64, 64, 0)])
def test_one_tile_a_block(m: int, n: int, k: int) -> None:
    product(programs.one_tile, m, n, k, ml_dtypes.bfloat16)


@pytest.mark.parametrize(("m", "n", "k"), [(136, 72, 200), (64, 32, 8)])
def test_stages_by_hand(m: int, n: int, k: int) -> None:
    product(programs.stages_by_hand, m, n, k, np.float16, processors=2)


@pytest.mark.parametrize("consts", [{}, {"CM": 2}, {"CN": 2, "BN": 128}, {"CM": 2, "CN": 2, "GROUP": 1, "ALONG": "n"}])
def test_producer_and_consumers(consts: dict[str, Any]) -> None:
    product(programs.producer_consumers, 264, 136, 200, ml_dtypes.bfloat16, processors=4, **consts)


def test_a_persistent_block_without_a_k_stores_zeros() -> None:
    product(programs.producer_consumers, 136, 72, 0, ml_dtypes.bfloat16, CM=2)


@pytest.mark.parametrize("processors_", [1, 2, 3])
@pytest.mark.parametrize("k", [0, 64, 264])
def test_instances_in_turns(k: int, processors_: int) -> None:
    product(programs.in_turns, 136, 136, k, ml_dtypes.bfloat16, processors=processors_)


def test_left_operand_from_registers_and_batches() -> None:
    rng = np.random.default_rng(0)
    A = rng.integers(-4, 5, (3, 72, 200)).astype(np.float16)
    B = rng.integers(-4, 5, (3, 200, 88)).astype(np.float16)
    C = np.full((3, 72, 88), 7, np.float32)
    programs.from_registers.check(A, B, C)
    np.testing.assert_array_equal(C, A.astype(np.float32) @ B.astype(np.float32))


@pytest.mark.parametrize("k", [64, 200, 448])
def test_parts_along_k_add_up(k: int) -> None:
    rng = np.random.default_rng(k)
    A, B = (rng.integers(-4, 5, (128, k)).astype(np.float16) for _ in range(2))
    C = np.zeros((128, 128), np.float32)
    programs.split_along_k.check(A, B, C)
    np.testing.assert_array_equal(C, A.astype(np.float32) @ B.astype(np.float32).T)


@pytest.mark.parametrize("in_flight", [0, 1])
@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.parametrize("k", [64, 328])
def test_a_ring_in_another(k: int, every: int, in_flight: int) -> None:
    rng = np.random.default_rng(k)
    A, B = (rng.integers(-4, 5, (rows, k)).astype(np.float16) for rows in (136, 40))
    C = np.full((136, 40), 7, np.float32)
    programs.two_rings.check(A, B, C, IN_FLIGHT=in_flight, EVERY=every)
    np.testing.assert_array_equal(C, A.astype(np.float32) @ B.astype(np.float32).T)


def test_one_group_is_made_of_regions_in_each_other_and_before_a_wait() -> None:
    math = roles(ir(programs.two_rings))[4, 4]
    (inner,) = [op for op in ops(math, control.For) if not ops(op.body, control.For)]
    assert [name for name in names(inner) if name.startswith("wgmma")] == [
        "wgmma.fence",
        "wgmma.mma",
        "wgmma.commit_group",
        "wgmma.wait",  # of the inner region
        "wgmma.wait",  # of the outer one, whose group that was
    ]
    math = roles(ir(programs.two_rings, EVERY=1))[4, 4]
    (inner,) = [op for op in ops(math, control.For) if not ops(op.body, control.For)]
    assert [name for name in names(inner) if name.startswith("wgmma")][2:5] == [
        "wgmma.mma",
        "wgmma.commit_group",
        "wgmma.wait",
    ]
