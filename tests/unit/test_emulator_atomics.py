"""Atomic operations on the emulator, at both levels: results, patterns of blocks and warps, and what `checks` finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tiledsl import Const, Global, barrier, f32, fence, grid, i32, shared, syncwarp, threads, tile_kernel
from tiledsl.backends.emulator import Access, Hook, Options, run
from tiledsl.dims import K, M, N
from tiledsl.errors import EmulatorError, HazardError
from tiledsl.ir import semantics
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import DTYPES

Array = NDArray[Any]


def at_both_levels(kernel: Any, *arrays: Array, consts: dict[str, Any] | None = None, **options: Any) -> list[Array]:
    """The arrays after a run of the kernel as it was written, which equal those after a run of what the passes make."""
    compiled = kernel.compile(arch="sm_90a", **(consts or {}))
    results: list[list[Array]] = []
    for level in ("tile", "thread"):
        made = parse_kernel(compiled.ir(level), "kernel.tir")
        given = [a.copy() for a in arrays]
        names = [a.name for a in made.abi if a.kind == "pointer"] or [a.name for a in made.body.args]
        run(made, dict(zip(names, given, strict=True)), options=Options(**options))
        results.append(given)
    for tile, thread in zip(*results, strict=True):
        np.testing.assert_array_equal(tile, thread)
    return results[1]


def zeros(*shape: int, dtype: Any = np.int32) -> Array:
    return np.zeros(shape, dtype)


# -- results -----------------------------------------------------------------------------------------

FUNCTIONS = {
    "exchange": lambda old, v: v,
    "min": min,
    "max": max,
    "and": lambda old, v: old & v,
    "or": lambda old, v: old | v,
    "xor": lambda old, v: old ^ v,
    "add": lambda old, v: old + v,
}


@pytest.mark.parametrize("dtype", ["i32", "u32", "i64", "u64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_threads_at_one_element_go_in_lane_order_and_find_what_was_there(name: str, dtype: str) -> None:
    """70 threads at 3 elements."""
    text = f"""
kernel k(%x: global<{dtype}, [3], unit=0, align=8>, %given: global<{dtype}, [P], unit=0, align=8>,
         %old: global<{dtype}, [P], unit=0, align=8>)
  grid(1) threads(70) level(tile) index_bits(32) {{
  %t = gpu.thread_id {{axis = 0}} : index
  %three = arith.constant 3 : index
  %at = arith.mod %t, %three : index
  %v = tile.load %given, %t : {dtype}
  %o = tile.atomic_{name} %x, %at, %v {{order = "acq_rel", reach = "sys"}} : {dtype}
  tile.store %old, %t, %o
  control.return
}}
"""
    numpy = numpy_dtype(DTYPES[dtype])
    low = 0 if dtype[0] == "u" else -(1 << 20)
    given = np.random.default_rng(1).integers(low, 1 << 20, 70).astype(numpy)
    x, old = np.full(3, 1000, numpy), np.zeros(70, numpy)
    run(parse_kernel(text, "k.tir"), {"x": x, "given": given, "old": old})
    elements, found = [1000] * 3, []
    for t, v in enumerate(given.tolist()):
        found.append(elements[t % 3])
        elements[t % 3] = FUNCTIONS[name](elements[t % 3], v)
    assert (x.tolist(), old.tolist()) == (elements, found)


ADDED = {
    "numbers": [1.5, -2.25, 1e-3, 3e7, 0.0, -0.0],
    "a sum below the least normal number": [2.0**-126, -(2.0**-126) * (1 + 2.0**-23), 0.0],
    "subnormal numbers": [2.0**-130, -(2.0**-149), 1.0],
    "no numbers": [1.0, np.inf, -np.inf, np.nan, 2.0],
}


@pytest.mark.parametrize("added", ADDED.values(), ids=ADDED)
def test_sums_of_f32_are_those_of_one_lane_after_the_other(added: list[float]) -> None:
    """70 threads at 3 elements of a tensor: addresses with 24 and with 23 turns. Subnormals are zeros of their sign."""
    text = """
kernel k(%x: global<f32, [3], unit=0, align=4>, %given: global<f32, [P], unit=0, align=4>,
         %old: global<f32, [P], unit=0, align=4>)
  grid(1) threads(70) level(tile) index_bits(32) {
  %t = gpu.thread_id {axis = 0} : index
  %three = arith.constant 3 : index
  %at = arith.mod %t, %three : index
  %v = tile.load %given, %t : f32
  %o = tile.atomic_add %x, %at, %v {order = "acq_rel", reach = "sys"} : f32
  tile.store %old, %t, %o
  control.return
}
"""

    def flushed(value: np.float32) -> np.float32:
        return np.copysign(np.float32(0), value) if abs(value) < 2.0**-126 else value

    given = np.resize(np.array(added, np.float32), 70)
    start = np.array([0.5, 2.0**-140, -0.0], np.float32)
    x, old = start.copy(), np.zeros(70, np.float32)
    run(parse_kernel(text, "k.tir"), {"x": x, "given": given, "old": old})
    elements, found = start.copy(), np.zeros(70, np.float32)
    for t, v in enumerate(given):
        found[t] = elements[t % 3]
        with np.errstate(invalid="ignore"):
            elements[t % 3] = semantics.apply("add", DTYPES["f32"], flushed(elements[t % 3]), flushed(v))
        elements[t % 3] = flushed(elements[t % 3])
    assert x.tobytes() == elements.tobytes() and old.tobytes() == found.tobytes()


@tile_kernel
def claims(slots: Global[i32, N], winners: Global[i32, M]):
    """Each slot is claimed once, by the first that comes."""
    b, t = grid(4), threads(32)
    me = (b * 32 + t + 1).to(i32)
    old = slots.atomic_cas(t, 0, me)
    if old == 0:
        winners.atomic_add(t, me)


def test_one_of_all_that_compare_and_swap_wins() -> None:
    slots, winners = at_both_levels(claims, zeros(32), zeros(32))
    np.testing.assert_array_equal(slots, winners)
    assert (slots > 0).all()


@tile_kernel
def bits(X: Global[f32, N], old: Global[f32, N]):
    grid(1)
    threads(1)
    old[0] = X.atomic_cas(0, 0.0, 1)
    old[1] = X.atomic_cas(1, X[1], 1)
    old[2] = X.atomic_exchange(2, 2)


def test_compare_and_swap_compares_bits() -> None:
    """-0.0 is not 0.0; a NaN is itself."""
    nan = np.array([0xFFC00001], np.uint32).view(np.float32)[0]
    x, old = at_both_levels(bits, np.array([-0.0, nan, nan], np.float32), zeros(3, dtype=np.float32))
    assert x.view(np.uint32).tolist() == [0x80000000, 0x3F800000, 0x40000000]
    assert old.view(np.uint32).tolist() == [0x80000000, 0xFFC00001, 0xFFC00001]


@tile_kernel
def writes(X: Global[i32, N], *, how: Const[str] = "max"):
    grid(1)
    threads(1)
    if how == "max":
        X.atomic_max(0, 1)
    else:
        X.atomic_store(0, 1)


@pytest.mark.parametrize("how", ["max", "store"])
def test_an_array_that_is_read_only_is_refused(how: str) -> None:
    x = zeros(1)
    x.flags.writeable = False
    with pytest.raises(EmulatorError, match="X is read-only"):
        run(parse_kernel(writes.compile(arch="sm_90a", how=how).ir("thread"), "k.tir"), {"X": x})


# -- between blocks ----------------------------------------------------------------------------------

ORDERS = [("acquire", "release"), ("relaxed", "relaxed"), ("volatile", "volatile")]


@tile_kernel
def chain(flag: Global[i32, N], data: Global[i32, N], *, LOAD: Const[str] = "acquire", STORE: Const[str] = "release"):
    """Each block waits for the one behind it, which a machine with few SMs, or the emulator, starts later."""
    b, t = grid(N), threads(32)
    if b + 1 < N:
        while flag.atomic_load(b + 1, order=LOAD) == 0:
            pass
        if t == 0:
            data[b] = data[b + 1] + 1
    syncwarp()
    if t == 0:
        flag.atomic_store(b, 1, order=STORE)


@pytest.mark.parametrize(("load", "store"), ORDERS)
@pytest.mark.parametrize("chunk", [32, 64, 65536])
def test_a_loop_that_waits_lets_others_run(chunk: int, load: str, store: str) -> None:
    consts = {"LOAD": load, "STORE": store}
    _, data = at_both_levels(chain, zeros(9), zeros(9), consts=consts, chunk_threads=chunk)
    assert data.tolist() == list(range(8, -1, -1))


@tile_kernel
def polls(flag: Global[i32, N], seen: Global[i32, M]):
    """A bounded loop that nothing leaves early asks often enough, too."""
    b, t = grid(4), threads(32)
    found = i32(0)
    if b < 3:
        for _ in range(200):
            found = found | flag.atomic_load(0)
    else:
        flag.atomic_store(0, 1)
    if t == 0:
        seen[b] = found


@pytest.mark.parametrize("chunk", [32, 65536])
def test_a_bounded_loop_that_asks_lets_others_run(chunk: int) -> None:
    _, seen = at_both_levels(polls, zeros(1), zeros(4), chunk_threads=chunk)
    assert seen.tolist() == [1, 1, 1, 0]


@tile_kernel
def with_lock(lock: Global[i32, N], count: Global[i32, N], log: Global[i32, M]):
    """Plain accesses in a critical section of one thread a block."""
    b, t = grid(M), threads(64)
    if t == 0:
        while lock.atomic_cas(0, 0, 1, order="acquire") != 0:
            pass
        n = count[0]
        log[b] = n
        count[0] = n + 1
        lock.atomic_store(0, 0, order="release")


@pytest.mark.parametrize("chunk", [64, 65536])
def test_a_lock(chunk: int) -> None:
    lock, count, log = at_both_levels(with_lock, zeros(1), zeros(1), zeros(12), chunk_threads=chunk)
    assert (lock[0], count[0]) == (0, 12)
    assert sorted(log.tolist()) == list(range(12))


@tile_kernel
def last_block_sums(X: Global[f32, M, N], part: Global[f32, M], done: Global[i32, K], out: Global[f32, K]):
    """The block that ends last adds up what all have written."""
    b, t = grid(M), threads(32)
    last = shared((1,), i32)
    if t == 0:
        s = f32(0)
        for j in range(N):
            s += X[b, j]
        part[b] = s
        last[0] = done.atomic_add(0, 1, order="acq_rel")
    barrier()
    if (last[0] == i32(M) - 1) & (t == 0):
        total = f32(0)
        for i in range(M):
            total += part[i]
        out[0] = total


@pytest.mark.parametrize("chunk", [32, 65536])
def test_the_last_block_adds_up(chunk: int) -> None:
    x = np.arange(35, dtype=np.float32).reshape(7, 5)
    *_, out = at_both_levels(
        last_block_sums, x, zeros(7, dtype=np.float32), zeros(1), zeros(1, dtype=np.float32), chunk_threads=chunk
    )
    assert out[0] == x.sum()


@tile_kernel
def nobody_writes(flag: Global[i32, N]):
    grid(2)
    threads(32)
    while flag.atomic_load(0, order="acquire") == 0:
        pass


def test_a_loop_that_waits_for_ever_is_reported() -> None:
    with pytest.raises(HazardError) as caught:
        at_both_levels(nobody_writes, zeros(1), max_steps=2000)
    assert caught.value.code == "T403"


# -- races of shared memory --------------------------------------------------------------------------


@tile_kernel
def mixed(Z: Global[i32, N], *, first: Const[str] = "store", second: Const[str] = "load"):
    """Warp 0 does the first, warp 1 the second, with no barrier between."""
    grid(1)
    t = threads(64)
    S = shared((1,), i32)
    if t == 0:
        S[0] = 0
    barrier()
    if t == 0:
        if first == "store":
            S.atomic_store(0, 1)
        elif first == "load":
            Z[0] = S.atomic_load(0)
        elif first == "max":
            S.atomic_max(0, 1)
        elif first == "plain store":
            S[0] = 1
        else:
            Z[0] = S[0]
    if t == 32:
        if second == "store":
            S.atomic_store(0, 2)
        elif second == "load":
            Z[1] = S.atomic_load(0)
        elif second == "max":
            S.atomic_max(0, 2)
        elif second == "plain store":
            S[0] = 2
        else:
            Z[1] = S[0]


ACCESSES = ("store", "load", "max", "plain store", "plain load")


@pytest.mark.parametrize("second", ACCESSES)
@pytest.mark.parametrize("first", ACCESSES)
@pytest.mark.parametrize("orders", [False, True], ids=["barriers", "clocks"])
def test_atomic_operations_do_not_race_with_each_other_but_with_plain_ones(
    first: str, second: str, orders: bool
) -> None:
    """Two accesses race if one of them writes, and not both are atomic: for both of the emulator's checks."""
    kernel = with_orders if orders else mixed
    plain = [a for a in (first, second) if a.startswith("plain")]
    reading = {first, second} <= {"load", "plain load"}
    if plain and not reading:
        with pytest.raises(HazardError, match="race: "):
            kernel.check(zeros(2), first=first, second=second)
    else:
        kernel.check(zeros(2), first=first, second=second)


@tile_kernel
def with_orders(Z: Global[i32, N], *, first: Const[str] = "store", second: Const[str] = "load"):
    """The same, with a release beside, so that the emulator looks at orders."""
    grid(1)
    t = threads(64)
    S, other = shared((1,), i32), shared((1,), i32)
    if t == 0:
        S[0] = 0
    barrier()
    other.atomic_store(0, 0, order="release")
    if t == 0:
        if first == "store":
            S.atomic_store(0, 1)
        elif first == "load":
            Z[0] = S.atomic_load(0)
        elif first == "max":
            S.atomic_max(0, 1)
        elif first == "plain store":
            S[0] = 1
        else:
            Z[0] = S[0]
    if t == 32:
        if second == "store":
            S.atomic_store(0, 2)
        elif second == "load":
            Z[1] = S.atomic_load(0)
        elif second == "max":
            S.atomic_max(0, 2)
        elif second == "plain store":
            S[0] = 2
        else:
            Z[1] = S[0]


def test_the_advice_for_a_plain_and_an_atomic_access() -> None:
    with pytest.raises(HazardError, match=r"put a barrier\(\) between the two, .* or make both atomic"):
        mixed.check(zeros(2), first="store", second="plain load")


@tile_kernel
def passes_on(
    Z: Global[i32, N],
    *,
    store: Const[str] = "release",
    load: Const[str] = "acquire",
    before: Const[str] = "",
    behind: Const[str] = "",
):
    """Warp 1 writes D and sets F in shared memory; warp 0 waits for F and reads D. With fences, or without."""
    grid(1)
    t = threads(64)
    D, F = shared((1,), i32), shared((1,), i32)
    if t == 0:
        F[0] = 0
    barrier()
    if t == 32:
        D[0] = 5
        if before:
            fence(before)
        F.atomic_store(0, 1, order=store, scope="cta")
    if t == 0:
        while F.atomic_load(0, order=load, scope="cta") == 0:
            pass
        if behind:
            fence(behind)
        Z[0] = D[0]


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"store": "relaxed", "before": "cta"},
        {"load": "relaxed", "behind": "cta"},
        {"store": "relaxed", "load": "relaxed", "before": "cta", "behind": "cta"},
    ],
    ids=["release and acquire", "fence, acquire", "release, fence", "fences"],
)
def test_release_and_acquire_order_plain_accesses(how: dict[str, str]) -> None:
    z = zeros(1)
    passes_on.check(z, **how)
    assert z[0] == 5


@pytest.mark.parametrize(
    "how",
    [
        {"store": "relaxed"},
        {"load": "relaxed"},
        {"store": "relaxed", "behind": "cta"},
        {"load": "relaxed", "before": "cta"},
        {"store": "relaxed", "load": "relaxed"},
    ],
    ids=["no release", "no acquire", "no release, fence", "fence, no acquire", "neither"],
)
def test_half_of_it_orders_nothing(how: dict[str, str]) -> None:
    with pytest.raises(HazardError, match=r"race: .*D"):
        passes_on.check(zeros(1), **how)


@tile_kernel
def through_updates(Z: Global[i32, N]):
    """A release goes through an update of another warp, which has no order itself."""
    grid(1)
    t = threads(96)
    D, F = shared((1,), i32), shared((1,), i32)
    if t == 0:
        F[0] = 0
    barrier()
    if t == 64:
        D[0] = 5
        F.atomic_store(0, 1, order="release", scope="cta")
    if t == 32:
        while F.atomic_cas(0, 1, 2) != 1:
            pass
    if t == 0:
        while F.atomic_load(0, order="acquire", scope="cta") != 2:
            pass
        Z[0] = D[0]


def test_updates_hand_on_what_was_released() -> None:
    z = zeros(1)
    through_updates.check(z)
    assert z[0] == 5


@tile_kernel
def lock_in_shared(Z: Global[i32, N]):
    """Each warp adds to a plain element under a lock."""
    b, t = grid(2), threads(128)
    lock, D = shared((1,), i32), shared((1,), i32)
    if t == 0:
        lock[0] = 0
        D[0] = 0
    barrier()
    if t % 32 == 0:
        while lock.atomic_cas(0, 0, 1, order="acquire", scope="cta") != 0:
            pass
        D[0] = D[0] + 1
        lock.atomic_store(0, 0, order="release", scope="cta")
    barrier()
    if t == 0:
        Z[b] = D[0]


def test_a_lock_in_shared_memory() -> None:
    z = zeros(2)
    lock_in_shared.check(z)
    assert z.tolist() == [4, 4]


# -- what hooks see ----------------------------------------------------------------------------------


class Recorder(Hook):
    def __init__(self) -> None:
        self.seen: list[tuple[str, str | None, str | None]] = []

    def on_access(self, access: Access) -> None:
        self.seen.append((access.kind, access.order, access.reach))


@tile_kernel
def four(X: Global[i32, N]):
    grid(1)
    threads(1)
    X.atomic_store(0, X[1], order="release", scope="cluster")
    X.atomic_max(0, X.atomic_load(1, order="volatile"), order="acq_rel", scope="cta")


def test_hooks_see_kind_order_and_scope() -> None:
    seen = Recorder()
    at_both_levels(four, zeros(2), hooks=(seen,))
    assert seen.seen == 2 * [
        ("read", None, None),
        ("write", "release", "cluster"),
        ("read", "volatile", "sys"),
        ("atomic", "acq_rel", "cta"),
    ]


# -- several atomic accesses, and a plain one ----------------------------------------------------------


@tile_kernel
def hidden(Z: Global[i32, N], *, plain: Const[str] = "first", orders: Const[bool] = False):
    """Warp 1 stores plainly and adds, and warp 0 adds; or both add, and warp 0 loads plainly."""
    grid(1)
    t = threads(64)
    S, other = shared((1,), i32), shared((1,), i32)
    if t == 0:
        S[0] = 0
    barrier()
    if orders:
        other.atomic_store(0, 0, order="release")
    if t == 32:
        if plain == "first":
            S[0] = 2
        S.atomic_add(0, 1)
    if t == 0:
        S.atomic_add(0, 1)
        if plain == "last":
            Z[0] = S[0]


@pytest.mark.parametrize("orders", [False, True])
@pytest.mark.parametrize("plain", ["first", "last"])
def test_an_atomic_update_hides_no_other_access_to_its_place(plain: str, orders: bool) -> None:
    """Whichever of several atomic updates came last, a plain access must come after all of them."""
    with pytest.raises(HazardError, match=r"race: .* byte 0 of S"):
        hidden.check(zeros(2), plain=plain, orders=orders)


@tile_kernel
def covered(Z: Global[i32, N], *, orders: Const[bool] = False):
    """Warps 1 and 2 add; the thread that adds last of all reads what both have made."""
    grid(1)
    t = threads(96)
    S, other = shared((1,), i32), shared((1,), i32)
    if t == 0:
        S[0] = 0
    barrier()
    if orders:
        other.atomic_store(0, 0, order="release")
    if t >= 32:
        S.atomic_add(0, 1)
    syncwarp()
    if t == 95:
        Z[0] = S[0]


@pytest.mark.parametrize("orders", [False, True])
def test_the_last_of_several_updates_is_not_the_only_one(orders: bool) -> None:
    with pytest.raises(HazardError, match=r"reads byte 0 of S"):
        covered.check(zeros(2), orders=orders)
