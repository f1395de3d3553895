"""Products over ranks on the emulator: right, without findings, and each thing that orders ranks is needed."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16
from numpy.typing import NDArray

from tiledsl import Fragment, TileFunction, barrier, cdiv, i32, index, maximum, minimum, tile_function, u32
from tiledsl.errors import EmulatorError, HazardError, KernelArgumentError
from tiledsl.gemm import all_reduce as of_sums
from tiledsl.gemm import gemm, peers, sharded
from tiledsl.gemm.all_reduce import BLOCKS
from tiledsl.gemm.emulated_ranks import Call, EmulatedRanks
from tiledsl.gemm.sharded import SOMEWHERE, WORDS, Layout, Sharded, consts_of, gathered, reduced, room_of, scattered
from tiledsl.gemm.steps import Place
from tiledsl.ir.types import BF16
from tiledsl.ranks import OnRank, check_ranks, run_ranks

SMALL = {"BM": 128, "BN": 64, "STAGES": 3, "INSTANCES": 1, "CLUSTER": (1, 1), "GROUP": 8}
VARIANTS = (
    SMALL,
    SMALL | {"INSTANCES": 2},
    SMALL | {"BM": 64, "INSTANCES": 2},
    SMALL | {"CLUSTER": (2, 1)},
)
M, N, K = 200, 128, 72
"""Of a shard. Tiles reach over its last rows, and k over its end."""


def _integers(seed: int, *shape: int) -> NDArray[Any]:
    """Small, so that sums are exact also in bf16."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(bfloat16)


def _shards(ranks: int, rows: int, seed: int = 0) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    As, Bs = ([_integers(seed + 7 * i + j, *s) for i in range(ranks)] for j, s in enumerate(((rows, K), (K, N))))
    return As, Bs


def _float(x: NDArray[Any]) -> NDArray[Any]:
    return x.astype(np.float32)


def _gather(ranks: EmulatedRanks, seed: int = 0, **consts: Any) -> tuple[Call, list[NDArray[Any]]]:
    As, Bs = _shards(ranks.layout.ranks, M, seed)
    whole = np.concatenate([*map(_float, As)])
    return ranks.all_gather_gemm(As, Bs, **(SMALL | consts)), [whole @ _float(B) for B in Bs]


def _scatter(ranks: EmulatedRanks, seed: int = 0, **consts: Any) -> tuple[Call, list[NDArray[Any]]]:
    many = ranks.layout.ranks
    As, Bs = _shards(many, M * many, seed)
    sums = sum(_float(A) @ _float(B) for A, B in zip(As, Bs, strict=True))
    return ranks.gemm_reduce_scatter(As, Bs, **(SMALL | consts)), [sums[i * M :][:M] for i in range(many)]


def _copied(ranks: EmulatedRanks, seed: int = 0, **consts: Any) -> tuple[Call, list[NDArray[Any]]]:
    """As `_scatter` of many tiles for each SM, whose sums copy engines send."""
    sharded.MOST_BY_THREADS = 0
    return _scatter(ranks, seed, **consts)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard has two parts of several tiles. What `_copied` sets is undone."""
    monkeypatch.setattr(sharded, "MOST_BY_THREADS", sharded.MOST_BY_THREADS)
    monkeypatch.setattr(sharded, "SUMS_SENT", (1 << 14, 2))


def _reduce(ranks: EmulatedRanks, seed: int = 0, words: int = 0, **consts: Any) -> tuple[Call, list[NDArray[Any]]]:
    # Vectors of two warps of each block, and one more.
    Xs = [_integers(seed + i, BLOCKS * 33 * 8 + 8) for i in range(ranks.layout.ranks)]
    return ranks.all_reduce(Xs, words, **consts), [sum(map(_float, Xs))] * len(Xs)


def _words(ranks: EmulatedRanks, seed: int = 0, **consts: Any) -> tuple[Call, list[NDArray[Any]]]:
    return _reduce(ranks, seed, WORDS, **consts)


def _require_equal(call: Call, expected: list[NDArray[Any]]) -> None:
    for found, right in zip(call.results, expected, strict=True):
        assert np.array_equal(_float(found), right.astype(bfloat16).astype(np.float32))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("product", [_gather, _scatter, _copied])
def test_products_are_right_and_clean(product: Any, variant: dict[str, Any]) -> None:
    call, expected = product(EmulatedRanks(2), **variant)
    assert check_ranks(call.launches, raises=False).findings == ()
    _require_equal(call, expected)


@pytest.mark.parametrize("product", [_gather, _scatter, _copied, _reduce, _words])
@pytest.mark.parametrize("ranks_", [2, 3])
def test_halves_are_used_in_turn(product: Any, ranks_: int) -> None:
    ranks = EmulatedRanks(ranks_)
    for seed in range(3):
        call, expected = product(ranks, seed)
        run_ranks(call.launches)
        _require_equal(call, expected)


@pytest.mark.parametrize("product", [_gather, _scatter, _copied, _reduce, _words])
def test_clean_under_other_schedules(product: Any) -> None:
    call, expected = product(EmulatedRanks(2))
    check_ranks(call.launches, seeds=1)
    _require_equal(call, expected)


@pytest.mark.parametrize("dtype", [bfloat16, np.float16])
@pytest.mark.parametrize("size", [8, 2 * 64 * 256 + 8])
def test_words_of_either_dtype_and_of_more_than_threads(dtype: Any, size: int) -> None:
    """Behind larger vectors, which go another way."""
    ranks, draw = EmulatedRanks(2), np.random.default_rng(0)
    for extent in (size + WORDS // 2, size):
        Xs = [draw.integers(-8, 9, extent).astype(dtype) for _ in range(2)]
        sums = _float(Xs[0]) + _float(Xs[1])
        call = ranks.all_reduce(Xs)
        run_ranks(call.launches)
        assert all(np.array_equal(_float(X), sums) for X in call.results)


def test_gathered_rows_have_the_bits_of_one_gpu() -> None:
    As, Bs = ([_integers(i, *s) * bfloat16(0.3) for i in range(2)] for s in ((M, K), (K, N)))
    call = EmulatedRanks(2).all_gather_gemm(As, Bs)
    run_ranks(call.launches)
    for C, B in zip(call.results, Bs, strict=True):
        assert np.array_equal(C, gemm(np.concatenate(As), B, batch_invariant=True, device="emulator"))


@tile_function
def _relu(x: Fragment[Any], bias: Any, column: Any) -> Fragment[Any]:
    return maximum(x, 0)


@pytest.mark.parametrize("epilogue", [_relu, None])
@pytest.mark.parametrize("name", ["all_gather_gemm", "gemm_reduce_scatter"])
def test_epilogue_is_applied_to_whole_sums(name: str, epilogue: Any) -> None:
    """The default epilogue adds the bias of the rank, once."""
    ranks = EmulatedRanks(2)
    product = _gather if name == "all_gather_gemm" else _scatter
    _, expected = product(ranks)
    As, Bs = _shards(2, M if name == "all_gather_gemm" else 2 * M)
    biases = [np.arange(N, dtype=np.float32) % 5 - rank for rank in range(2)] if epilogue is None else None
    call = getattr(ranks, name)(As, Bs, epilogue, biases=biases, **SMALL)
    run_ranks(call.launches)
    _require_equal(call, [np.maximum(x, 0) if biases is None else x + biases[i] for i, x in enumerate(expected)])


def test_a_rank_that_does_not_come_is_named() -> None:
    for product in (_gather, _scatter, _copied, _reduce, _words):
        call, _ = product(EmulatedRanks(2))
        with pytest.raises(EmulatorError, match="rank 1 of the group did not come to this product in time"):
            run_ranks([launch for launch in call.launches if launch.rank == 0])


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ([(64, 72)], [(72, 64)] * 2, "there are 1 A and 2 B for 2 ranks"),
        ([(64, 72), (128, 72)], [(72, 64)] * 2, "of rank 0"),
        ([(64, 72)] * 2, [(64, 64)] * 2, r"A is \(64, 72\) and B \(64, 64\)"),
        ([(64, 60)] * 2, [(60, 64)] * 2, "K a multiple of 8"),
        ([(64, 72)] * 2, [(72, 8192)] * 2, "the product needs .* bytes of a half"),
    ],
)
def test_what_does_not_fit_is_refused(a: Any, b: Any, text: str) -> None:
    As, Bs = ([np.zeros(shape, bfloat16) for shape in shapes] for shapes in (a, b))
    for product in (EmulatedRanks(2, 1 << 12).all_gather_gemm, EmulatedRanks(2, 1 << 12).gemm_reduce_scatter):
        with pytest.raises(KernelArgumentError, match=text):
            product(As, Bs)


# -- what orders ranks -----------------------------------------------------------------------------

_numbers = count(9)


def _damaged(product: Any) -> list[OnRank]:
    """Launches of a build of its own, since a kernel's functions in tiledsl itself count as fixed."""
    number = next(_numbers)
    consts = {"T": 32 * number} if product in (_reduce, _words) else {"GROUP": number}
    return product(EmulatedRanks(2), **consts)[0].launches


@tile_function
def _never(arrived: Any, rank: index, place: index, call: Any) -> None:
    """In place of `wait_for`."""


@tile_function
def _relaxed(arrived: Any, rank: index, place: index, call: Any) -> None:
    while arrived.atomic_load(rank, place, scope="sys") != call[2]:
        pass


@tile_function
def _on_one_gpu(arrived: Any, rank: index, place: index, call: Any) -> None:
    while arrived.atomic_load(rank, place, order="acquire") != call[2]:
        pass


@pytest.mark.parametrize("damage", [_never, _relaxed, _on_one_gpu], ids=lambda f: f.fn.__name__)
@pytest.mark.parametrize("product", [_gather, _scatter, _copied, _reduce])
def test_waits_acquire_what_was_sent(product: Any, damage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "wait_for", damage)
    monkeypatch.setattr(of_sums, "wait_for", damage)
    with pytest.raises(HazardError, match="rank"):
        check_ranks(_damaged(product))


@tile_function
def _word_of_one_gpu(received: Any, half: index, rank: int, w: index, epoch: u32, patience: u32) -> u32:
    found = received.atomic_load(half, rank, w)
    while u32(found >> 32) != epoch:
        found = received.atomic_load(half, rank, w)
    return u32(found & 0xFFFFFFFF)


def test_words_come_from_other_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_sums, "await_word", _word_of_one_gpu)
    with pytest.raises(HazardError, match='scope="sys"'):
        check_ranks(_damaged(_words))


@tile_function
def _any_word(received: Any, half: index, rank: int, w: index, epoch: u32, patience: u32) -> u32:
    return u32(received.atomic_load(half, rank, w, scope="sys") & 0xFFFFFFFF)


def test_words_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """No access races with another one: the sums are wrong."""
    monkeypatch.setattr(of_sums, "await_word", _any_word)
    launches = _damaged(_words)
    check_ranks(launches)
    _, expected = _words(EmulatedRanks(2))
    assert not all(np.array_equal(_float(launch.consts["X"]), expected[0]) for launch in launches)


@tile_function
def _without_fence(t: Any, rows: index, arrived: Any, call: Any, last: i32) -> i32:
    if t.batch != call[0]:
        for part in range(arrived.shape[1]):
            peers.wait_for(arrived, t.batch, part, call)
    return last


def test_rows_that_came_are_fenced_before_tma_loads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "await_rows", _without_fence)
    with pytest.raises(HazardError, match=r'fence_proxy_async\("global"\)'):
        check_ranks(_damaged(_gather))


@tile_function
def _without_barrier(signals: Any, rank: index, slot: index, thread: index, call: Any) -> None:
    """In place of `signal`."""
    if thread == 0:
        signals.atomic_store(rank, slot, call[2], order="release", scope="sys")


@tile_function
def _to_one_gpu(signals: Any, rank: index, slot: index, thread: index, call: Any) -> None:
    barrier()
    if thread == 0:
        signals.atomic_store(rank, slot, call[2], order="release")


@pytest.mark.parametrize(("damage", "text"), [(_without_barrier, "rank"), (_to_one_gpu, 'scope="sys"')])
def test_flags_are_set_behind_all_sums_for_other_gpus(damage: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "signal", damage)
    with pytest.raises(HazardError, match=text):
        check_ranks(_damaged(_scatter))


def _count(order: Any, meet: bool) -> TileFunction[..., Any]:
    @tile_function
    def count_in_part(signals: Any, counts: Any, t: Any, slots: index, thread: index, call: Any) -> None:
        each: index = cdiv(slots, counts.shape[1])
        part: index = t.slot // each
        if meet:
            barrier()
        if thread == 0:
            before = counts.atomic_add(t.batch, part, 1, order=order)
            if before + 1 == u32(minimum(each, slots - part * each)):
                counts[t.batch, part] = 0
                signals.atomic_store(t.batch, part, call[2], order="release", scope="sys")

    return count_in_part


@pytest.mark.parametrize(("order", "meet"), [("acq_rel", False), ("relaxed", True)])
def test_parts_are_copied_when_all_sums_are_there(order: Any, meet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "count_in_part", _count(order, meet))
    with pytest.raises(HazardError, match="race"):
        check_ranks(_damaged(_copied))


# -- the plan --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_parts_of_segments_are_apart(rank: int) -> None:
    """What ranks send, in either half, and the flags of it, are bytes of nobody else."""
    layout = Layout(3, 1 << 21, Layout(3, 1 << 21).bytes + 512)
    of = Sharded(rank, 3, 130, 520, 72, BF16, (1, 72))
    for plan, sharded.MOST_BY_THREADS in ((gathered, 0), (scattered, 1 << 20), (scattered, 0)):
        consts, taken = consts_of(of, plan is scattered), np.zeros(3 * layout.pitch, np.int8)
        assert room_of(of, consts, plan is scattered) <= layout.room
        for half in range(2):
            sends, step = plan(of, consts, layout, half)
            places = [send.to for send in sends] + [send.flags for send in sends]
            names = ("sent", "signals") if half else ("sent", "signals", "counts")  # these are of all calls
            places += [step.arrays[name] for name in names if name in step.arrays]
            for place in places:
                taken[_bytes(place)] += 1
            end = rank * layout.pitch + layout.bytes
            assert all(_bytes(step.arrays[name]).max() < end for name in ("arrived", "received") if name in step.arrays)
        assert taken.max() == 1


WRITTEN = {
    "gather": {"C"},
    "scatter": {"own_sums", "sent", "signals"},
    "copies": {"own_sums", "sent", "signals", "counts"},
    "reduce": {"X", "sent", "signals", "epochs"},
    "words": {"X", "sent", "epochs"},
}


@pytest.mark.parametrize("product", WRITTEN)
def test_launches_are_accepted_where_they_are_planned(product: str) -> None:
    """What a kernel writes is no part of its other arguments, as its caller sees them before addresses are known."""
    of = Sharded(1, 2, 256, 512, 128, BF16, (1, 128))
    if product == "copies":
        sharded.MOST_BY_THREADS = 0
    layout, consts = Layout(2, 1 << 20, Layout(2, 1 << 20).bytes), SMALL | {"RANKS": 2}
    if product in ("reduce", "words"):
        step = reduced(1024, BF16, 1, layout, WORDS if product == "words" else 0)
    else:
        step = (gathered if product == "gather" else scattered)(of, consts, layout, 0).step
    dispatcher = step.kernel.dispatcher
    plan = dispatcher.emulated(dispatcher.arguments(step.values(SOMEWHERE, 0)))
    assert set(plan.written) == WRITTEN[product]


def _bytes(place: Place) -> NDArray[np.int64]:
    at: NDArray[np.int64] = np.full((), place.offset, np.int64)
    for extent, stride in zip(place.shape, place.strides, strict=True):
        at = at[..., None] + np.arange(extent) * stride * place.dtype.bytes
    return (at[..., None] + np.arange(place.dtype.bytes)).reshape(-1)
