"""Memory on the emulator: strides, bounds, alignment, atomics, and the checks of shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulator_kernels import naive_tile, shared_tiled_thread, shared_tiled_tile
from numpy.typing import NDArray

from tiledsl.backends.emulator import Access, Hook, Options, run
from tiledsl.backends.emulator.native import loops as native
from tiledsl.errors import EmulatorError, HazardError
from tiledsl.ir import semantics
from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.types import DTYPES

CHECKED = Options(checks=True)


def kernel(params: str, body: str, grid: str = "1", threads: str = "32", more: str = "") -> Kernel:
    head = f"kernel k({params}) grid({grid}) threads({threads}) {more}"
    return parse_kernel(f"{head} {{\n%t = gpu.thread_id {{axis = 0}} : index\n{body}\ncontrol.return\n}}")


def thread_kernel(params: str, abi: str, body: str, threads: int = 32, shared: int = 0) -> Kernel:
    head = f"kernel k({params}) grid(1) threads({threads}) level(thread) shared_bytes({shared}) abi({abi})"
    return parse_kernel(f"{head} {{\n%t = gpu.thread_id {{axis = 0}} : i32\n{body}\ncontrol.return\n}}")


# -- strides ---------------------------------------------------------------------------------------


def layouts(shape: tuple[int, int]) -> dict[str, NDArray[Any]]:
    m, n = shape
    rng = np.random.default_rng(1)
    big = rng.standard_normal((2 * m, 3 * n)).astype(np.float32)
    return {
        "rows": np.ascontiguousarray(big[:m, :n]),
        "columns": np.asfortranarray(big[:m, :n]),
        "reversed": big[:m, :n].copy()[::-1, ::-1],
        "every second": big[::2, ::3],
        "slice": big[m:, n : 2 * n],
        "broadcast": np.broadcast_to(big[0, :n], (m, n)),
    }


@pytest.mark.parametrize("layout", layouts((1, 1)))
@pytest.mark.parametrize("make", [naive_tile, shared_tiled_tile])
def test_inputs_of_any_strides(make: Any, layout: str) -> None:
    a, b = layouts((35, 18))[layout], layouts((18, 21))[layout]
    expected, got = np.zeros((2, 35, 21), np.float32)
    run(make(), {"A": np.ascontiguousarray(a), "B": np.ascontiguousarray(b), "C": expected})
    run(make(), {"A": a, "B": b, "C": got})
    np.testing.assert_array_equal(got, expected)
    assert got.any()


@pytest.mark.parametrize("layout", ["columns", "reversed", "every second", "slice"])
def test_outputs_of_any_strides_leave_what_is_between_alone(layout: str) -> None:
    a, b = layouts((35, 18))["rows"], layouts((18, 21))["rows"]
    expected = np.zeros((35, 21), np.float32)
    run(naive_tile(), {"A": a, "B": b, "C": expected})
    out = layouts((35, 21))[layout]
    owner = out if out.base is None else out.base
    owner[...] = -1
    run(naive_tile(), {"A": a, "B": b, "C": out})
    np.testing.assert_array_equal(out, expected)
    assert np.count_nonzero(owner == -1) == owner.size - out.size


def test_strides_at_thread_level() -> None:
    a, b = layouts((35, 18))["slice"], layouts((18, 21))["slice"]
    out = layouts((35, 21))["slice"]
    run(shared_tiled_thread(), {"A": a, "B": b, "C": out})
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-5)


def test_a_read_only_output_is_refused() -> None:
    a = np.ones((4, 4), np.float32)
    c = a.copy()
    c.flags.writeable = False
    with pytest.raises(EmulatorError, match="C is read-only"):
        run(naive_tile(), {"A": a, "B": a, "C": c})


# -- bounds and alignment --------------------------------------------------------------------------


def test_out_of_bounds_by_index_names_the_place_and_the_thread() -> None:
    k = kernel(
        "%x: global<f32, [4, N], unit=1, align=16>",
        "%i = arith.constant 2 : index\n%v = tile.load %x, %i, %t : f32",
    )
    with pytest.raises(EmulatorError, match=r"tile.load at x\[2, 30\], but x has 4 x 30 elements; thread \(30, 0, 0\)"):
        run(k, {"x": np.zeros((4, 30), np.float32)})


def test_out_of_bounds_by_address_names_the_element() -> None:
    k = thread_kernel(
        "%x: ptr<global, f32>, %M: i32, %N: i32",
        "pointer x f32 [M, N], extent M i32, extent N i32",
        "%at = arith.mul %t, %N : i32\n%p = mem.offset %x, %at : ptr<global, f32>\n%v = mem.load %p : f32",
    )
    run(k, {"x": np.zeros((32, 5), np.float32)})
    message = r"byte 620 of x \(element 155\), which holds 31 x 5 elements of 4 bytes; thread \(31, 0, 0\)"
    with pytest.raises(EmulatorError, match=message):
        run(k, {"x": np.zeros((31, 5), np.float32)})


def test_the_gaps_of_a_strided_tensor_are_out_of_bounds() -> None:
    k = thread_kernel(
        "%x: ptr<global, f32>, %N: i32",
        "pointer x f32 [N], extent N i32",
        "%p = mem.offset %x, %t : ptr<global, f32>\n%v = mem.load %p : f32",
    )
    run(k, {"x": np.zeros(32, np.float32)})
    with pytest.raises(EmulatorError, match=r"out of bounds: .* byte 4 of x"):
        run(k, {"x": np.zeros(64, np.float32)[::2]})


def test_a_shared_tile_ends_where_the_next_begins() -> None:
    k = thread_kernel(
        "",
        "",
        """
        %a = mem.shared_base {dtype = f32, offset = 0, bytes = 64, label = "As"} : ptr<shared, f32>
        %b = mem.shared_base {dtype = f32, offset = 64, bytes = 128, label = "Bs"} : ptr<shared, f32>
        %z = arith.constant 0.0 : f32
        %p = mem.offset %b, %t : ptr<shared, f32>
        mem.store %p, %z
        %q = mem.offset %a, %t : ptr<shared, f32>
        mem.store %q, %z
        """,
        shared=192,
    )
    with pytest.raises(EmulatorError, match=r"byte 64 of As \(element 16\), .* 16 elements .* thread \(16, 0, 0\)"):
        run(k, {})


@pytest.mark.parametrize(("offset", "fails"), [(0, False), (4, False), (2, True)])
def test_vectors_must_be_aligned(offset: int, fails: bool) -> None:
    k = thread_kernel(
        "%x: ptr<global, f16>",
        "pointer x f16 [64]",
        f"""
        %o = arith.constant {offset} : i32
        %p = mem.offset %x, %o : ptr<global, f16>
        %a, %b, %c, %d = mem.load %p {{vec = 4}} : f16, f16, f16, f16
        mem.store %x, %d, %c, %b, %a {{vec = 4}}
        """,
    )
    x = np.arange(64, dtype=np.float16)
    if fails:
        with pytest.raises(EmulatorError, match=r"misaligned access: mem.load of 8 bytes .* 4 past a multiple of 8"):
            run(k, {"x": x})
    else:
        run(k, {"x": x})
        assert x[:4].tolist() == [offset + 3, offset + 2, offset + 1, offset]


def test_guarded_vectors_at_the_edge_go_element_by_element() -> None:
    k = kernel(
        "%x: global<f16, [N], unit=0, align=8>, %y: global<f16, [P], unit=0, align=8>",
        """
        %four = arith.constant 4 : index
        %i = arith.mul %t, %four : index
        %o = arith.constant -1.0 : f16
        %other = tile.pack %o {type = fragment<f16, [4]>} : fragment<f16, [4]>
        %v = tile.get %x, %i, %other {vec = 4} : fragment<f16, [4]>
        tile.put %y, %i, %v {vec = 4}
        """,
    )
    x = np.arange(1, 55, dtype=np.float16)
    y = np.zeros(99, np.float16)
    run(k, {"x": x, "y": y})
    np.testing.assert_array_equal(y, np.concatenate([x, np.full(45, -1, np.float16)]))


# -- atomics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "i32", "u32", "i64", "u64"])
def test_colliding_atomics_add_in_lane_order_and_return_what_they_found(dtype: str) -> None:
    numpy = semantics.numpy_dtype(DTYPES[dtype])
    k = kernel(
        f"%x: global<{dtype}, [3], unit=0, align=8>, %old: global<{dtype}, [P], unit=0, align=8>",
        f"""
        %three = arith.constant 3 : index
        %at = arith.mod %t, %three : index
        %v = arith.cast %t {{to = {dtype}}} : {dtype}
        %o = tile.atomic_add %x, %at, %v : {dtype}
        tile.store %old, %t, %o
        """,
        threads="70",
    )
    x, old = np.ones(3, numpy), np.zeros(70, numpy)
    run(k, {"x": x, "old": old})
    expected, found = np.ones(3, numpy), np.zeros(70, numpy)
    for t in range(70):
        found[t] = expected[t % 3]
        expected[t % 3] = expected[t % 3] + np.asarray(t).astype(numpy)
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(old, found)


# -- hooks and checks ------------------------------------------------------------------------------


class Recorder(Hook):
    def __init__(self) -> None:
        self.accesses: list[Access] = []
        self.barriers: list[tuple[int, ...]] = []

    def on_access(self, access: Access) -> None:
        self.accesses.append(access)

    def on_barrier(self, op: Op, blocks: NDArray[np.int64]) -> None:
        self.barriers.append(tuple(blocks.tolist()))


def test_hooks_see_every_access_and_barrier() -> None:
    seen = Recorder()
    a = np.ones((4, 4), np.float32)
    run(shared_tiled_thread(2), {"A": a, "B": a, "C": np.zeros((4, 4), np.float32)}, options=Options(hooks=(seen,)))
    first = seen.accesses[0]
    assert (first.kind, first.space, first.label, first.width, first.op.loc.line) == ("read", "global", "A", 4, 8)
    assert first.blocks.tolist() == [b for b in range(4) for _ in range(4)]
    assert first.threads.tolist() == [0, 1, 2, 3] * 4
    assert (first.addresses - first.base)[:8].tolist() == [0, 4, 16, 20, 0, 4, 16, 20]
    shared = [s for s in seen.accesses if s.space == "shared"]
    assert {s.label for s in shared} == {"As", "Bs"}
    assert len(shared) == 2 * (2 + 2 * 2)
    assert seen.barriers == [(0, 1, 2, 3)] * 4


@pytest.mark.parametrize(
    ("barriers", "message"),
    [
        ((False, True), r"reads byte 0 of As at kernel.py:12:5, which thread \(0, 0, 0\) wrote at kernel.py:8:5"),
        ((True, False), r"writes byte 0 of As at kernel.py:8:5, which thread \(15, 0, 0\) read at kernel.py:12:5"),
    ],
)
def test_a_missing_barrier_is_a_race(barriers: tuple[bool, bool], message: str) -> None:
    a = np.ones((32, 32), np.float32)
    arguments = {"A": a, "B": a, "C": np.zeros((32, 32), np.float32)}
    run(shared_tiled_thread(), arguments, options=CHECKED)
    with pytest.raises(HazardError, match=message):
        run(shared_tiled_thread(barriers=barriers), arguments, options=CHECKED)


SHARED = "%s = tile.shared_alloc {type = shared<i32, [64]>} : shared<i32, [64]>\n%v = arith.constant 1 : i32\n"
SWAP = """
tile.store %s, %t, %v
{}
%one = arith.constant 1 : index
%u = arith.xor %t, %one : index
%w = tile.load %s, %u : i32
"""


def test_sync_warp_orders_the_lanes_of_a_warp() -> None:
    run(kernel("", SHARED + SWAP.format("gpu.sync_warp"), threads="64"), {}, options=CHECKED)
    with pytest.raises(HazardError, match="race"):
        run(kernel("", SHARED + SWAP.format(""), threads="64"), {}, options=CHECKED)


def test_sync_warp_does_not_order_warps() -> None:
    across = SWAP.replace("constant 1 : index", "constant 32 : index")
    with pytest.raises(HazardError, match=r"thread \(0, 0, 0\) .* reads byte 128 .*thread \(32, 0, 0\) wrote"):
        run(kernel("", SHARED + across.format("gpu.sync_warp"), threads="64"), {}, options=CHECKED)
    run(kernel("", SHARED + across.format("gpu.barrier"), threads="64"), {}, options=CHECKED)


def test_two_lanes_that_write_one_place_race_but_atomics_do_not() -> None:
    zero = "%z = arith.constant 0 : index\n"
    with pytest.raises(HazardError, match="writes byte 0 of s"):
        run(kernel("", SHARED + zero + "tile.store %s, %z, %v"), {}, options=CHECKED)
    init = "tile.store %s, %t, %v\ngpu.barrier\n"
    atomic = "%o = tile.atomic_add %s, %z, %v : i32\n"
    run(kernel("", SHARED + zero + init + atomic, threads="64"), {}, options=CHECKED)
    mixed = SHARED + zero + init + atomic + "%r = tile.load %s, %z : i32"
    with pytest.raises(HazardError, match=r"reads byte 0 of s .* wrote"):
        run(kernel("", mixed, threads="64"), {}, options=CHECKED)


def test_reading_what_nobody_wrote() -> None:
    half = """
    %limit = arith.constant 31 : index
    %is = arith.lt %t, %limit : bool
    control.if %is { tile.store %s, %t, %v control.yield } else { control.yield }
    gpu.barrier
    %w = tile.load %s, %t : i32
    """
    with pytest.raises(HazardError, match=r"uninitialised read: thread \(31, 0, 0\) .* reads byte 124 of s"):
        run(kernel("", SHARED + half), {}, options=CHECKED)
    run(kernel("", SHARED + half), {})


# -- compiled accesses -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bool", "f16", "f32", "f64"])
@pytest.mark.parametrize("vec", [1, 2])
@pytest.mark.parametrize("masked", ["", "m"])
def test_compiled_accesses_equal_numpy(dtype: str, vec: int, masked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 256 threads shuffle the elements of a shared tile; under a mask, only every third thread."""
    numpy = semantics.numpy_dtype(DTYPES[dtype])
    n = 256 * vec
    mask = "%c3 = arith.constant 3 : i32\n%m3 = arith.mod %t, %c3 : i32\n%p = arith.eq %m3, %z : bool\n"
    types = ", ".join([dtype] * vec)
    reads = ", ".join(f"%v{e}" for e in range(vec))
    width = f"{{vec = {vec}}}"
    k = thread_kernel(
        f"%x: ptr<global, {dtype}>, %y: ptr<global, {dtype}>",
        f"pointer x {dtype} [{n}], pointer y {dtype} [{n}]",
        f"""
        %z = arith.constant 0 : i32
        {mask if masked else "%p = arith.eq %z, %z : bool"}
        %s = mem.shared_base {{dtype = {dtype}, offset = 0, bytes = {n * numpy.itemsize}}} : ptr<shared, {dtype}>
        %vec = arith.constant {vec} : i32
        %mix = arith.constant 165 : i32
        %u = arith.xor %t, %mix : i32
        %i = arith.mul %t, %vec : i32
        %j = arith.mul %u, %vec : i32
        %far = arith.constant 1000000 : i32
        %k = arith.select %p, %i, %far : i32
        %from = mem.offset %x, %k : ptr<global, {dtype}>
        %at = mem.offset %s, %j : ptr<shared, {dtype}>
        %to = mem.offset %y, %j : ptr<global, {dtype}>
        control.if %p {{
          {reads} = mem.load %from {width} : {types}
          mem.store %at, {reads} {width}
          control.yield
        }} else {{ control.yield }}
        gpu.barrier
        {reads.replace("v", "w")} = mem.load %at {width} : {types}
        mem.store %to, {reads.replace("v", "w")} {width}
        """,
        threads=256,
        shared=n * numpy.itemsize,
    )
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 99, n).astype(numpy)
    results = []
    for small in (native.SMALL, 1 << 40):
        monkeypatch.setattr(native, "SMALL", small)
        y = np.zeros(n, numpy)
        run(k, {"x": x, "y": y})
        results.append(y)
    np.testing.assert_array_equal(results[0], results[1])
    t = np.arange(256)
    kept = np.where(((t % 3 == 0) | (not masked))[:, None], x.reshape(256, vec), np.zeros((), numpy))
    np.testing.assert_array_equal(results[0].reshape(256, vec)[t ^ 165], kept)
