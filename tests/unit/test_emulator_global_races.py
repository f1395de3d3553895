"""Races on global memory: the checks find each, and say nothing of the right version beside it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from race_pairs import PAIRS, Pair, aliases
from race_pairs_hopper import HOPPER_PAIRS

from tiledsl import Const, Global, barrier, f32, fence, grid, i32, index, shared, threads, tile_kernel
from tiledsl.backends.emulator import Options, run
from tiledsl.dims import B, M, N
from tiledsl.errors import HazardError
from tiledsl.ir.parser import parse_kernel

LEVELS = ("tile", "thread")
ALL = [*PAIRS, *HOPPER_PAIRS]
NAMES = [pair.kernel.__name__ for pair in ALL]


def checked(kernel: Any, level: str, arrays: dict[str, Any], options: Options | None = None, **consts: Any) -> None:
    made = parse_kernel(kernel.compile(arch="sm_90a", **consts).ir(level), "kernel.tir")
    run(made, arrays, options=replace(options or Options(), checks=True))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("pair", ALL, ids=NAMES)
def test_the_right_version_is_silent(pair: Pair, level: str) -> None:
    checked(pair.kernel, level, pair.arrays(), RIGHT=True)
    checked(pair.kernel, level, pair.arrays(), Options(chunk_threads=1), RIGHT=True)


@pytest.mark.parametrize(
    ("pair", "level"),
    [pytest.param(pair, level, id=f"{pair.kernel.__name__}-{level}") for pair in ALL for level in pair.levels],
)
def test_the_race_is_found(pair: Pair, level: str) -> None:
    with pytest.raises(HazardError, match=r"race: .*" + pair.says) as caught:
        checked(pair.kernel, level, pair.arrays(), RIGHT=False)
    assert str(caught.value).count("kernel.tir") >= 2 and "fix: " in str(caught.value)
    with pytest.raises(HazardError, match="race: "):  # whichever blocks run together
        checked(pair.kernel, level, pair.arrays(), Options(chunk_threads=1), RIGHT=False)


@pytest.mark.parametrize("level", LEVELS)
def test_tensors_with_bytes_in_common(level: str) -> None:
    memory = np.zeros(128, np.float32)
    checked(aliases, level, {"X": memory[:64], "Y": memory[64:]})
    checked(aliases, level, {"X": memory[:64], "Y": memory[:64]})  # each thread reads what it writes
    with pytest.raises(HazardError, match=r"Y\[\d+\] at .*, which .* of block \(1, 0, 0\) read"):
        checked(aliases, level, {"X": memory[:64], "Y": memory[32:96]})


def test_elements_of_reversed_and_strided_tensors_are_named() -> None:
    X = np.ones((2, 128), np.float32)[:, ::-2]
    with pytest.raises(HazardError, match=r"reads X\[1, 63\] .* wrote at"):
        checked(last_of_row, "tile", {"X": X, "Y": np.zeros(64, np.float32)})


@tile_kernel
def last_of_row(X: Global[f32, M, N], Y: Global[f32, N]):
    grid(1)
    t = threads(64)
    X[1, t] = f32(t)
    Y[t] = X[1, 63]


def test_a_finding_names_both_lines_the_edge_and_a_fix() -> None:
    pair = next(pair for pair in PAIRS if pair.kernel.__name__ == "exchanged")
    with pytest.raises(HazardError) as caught:
        pair.kernel.check(**pair.arrays(), RIGHT=False)
    lines = str(caught.value).splitlines()
    place = r"\S*race_pairs.py:\d+:\d+"
    assert re.fullmatch(
        rf"{place}: error: race: thread \(0, 0, 0\) of block \(0, 0, 0\) reads X\[63\] at {place}, which thread "
        rf"\(63, 0, 0\) of block \(0, 0, 0\) wrote at {place}, with no barrier of the block between the two",
        lines[0],
    )
    assert "Y[b * 64 + t] = X[b * 64 + (63 - t)]" in lines[1]
    assert lines[-2].strip().startswith("fix: put a barrier() between the two")
    assert lines[-1].strip() == "code: T102; python -m tiledsl error T102 explains it"


@tile_kernel
def histogram(X: Global[i32, N], counts: Global[i32, M], done: Global[i32, B], out: Global[i32, M], *,
              RIGHT: Const[bool] = True):  # fmt: skip
    """Each element is updated by all warps; the last block reads what they have added up."""
    b, t = grid(16), threads(64)
    last = shared((1,), i32)
    counts.atomic_add(index(X[b * 64 + t]), 1)
    if RIGHT:
        barrier()
    if t == 0:
        last[0] = done.atomic_add(0, 1, order="acq_rel")
    barrier()
    if last[0] == 15 and t < 4:
        out[t] = counts[t]


@pytest.mark.parametrize("level", LEVELS)
def test_updates_by_many_warps_are_all_remembered(level: str) -> None:
    arrays = lambda: {  # noqa: E731
        "X": np.arange(1024, dtype=np.int32) % 4,
        **{name: np.zeros(size, np.int32) for name, size in (("counts", 4), ("done", 1), ("out", 4))},
    }
    right = arrays()
    checked(histogram, level, right)
    assert right["out"].tolist() == [256] * 4
    with pytest.raises(HazardError, match=r"reads counts\[0\] at .* atomically wrote"):
        checked(histogram, level, arrays(), RIGHT=False)


FIXES = {
    "one_of_a_block": "let one thread write the element, or put a ",
    "exchanged": "put a barrier() between the two",
    "exchanged_in_a_warp": "put a syncwarp() between the two",
    "one_element": "let one block write each element: check its tile's origin",
    "flag": 'an atomic operation with order="release"',
    "read_beside_atomic": "or make both atomic",
    "narrow_scope": 'scope="gpu"',
    "in_a_cluster": "ptx.cluster_arrive() and ptx.cluster_wait() between the two",
    "stored_by_tma": "read=True waits for the source alone",
    "written_then_loaded": 'fence_proxy_async("global") after it has waited',
    "overwritten_source": "wait for the copy before the element is written",
}


@pytest.mark.parametrize("name", FIXES)
def test_the_fix_is_one_for_these_threads(name: str) -> None:
    pair = ALL[NAMES.index(name)]
    with pytest.raises(HazardError) as caught:
        checked(pair.kernel, "thread", pair.arrays(), RIGHT=False)
    assert FIXES[name] in str(caught.value).rpartition("fix: ")[2]


# -- a fence on the wrong side of a barrier --------------------------------------------------------


@tile_kernel
def signaled(data: Global[f32, N], ready: Global[i32, B], out: Global[f32, N], *, HOW: Const[str]):
    """All threads of block 0 write, thread 0 signals by a relaxed operation, and block 1 reads."""
    b, t = grid(2), threads(64)
    if b == 0:
        data[t] = f32(t)
        if HOW == "early":
            fence()
        barrier()
        if t == 0:
            if HOW == "late":
                fence()
            if HOW == "release":
                ready.atomic_store(0, 1, order="release")
            else:
                ready.atomic_store(0, 1)
    else:
        if t == 0:
            while ready.atomic_load(0, order="acquire") == 0:
                pass
        barrier()
        out[t] = data[63 - t]


def signaled_by(how: str, **options: Any) -> Any:
    arrays = np.zeros(64, np.float32), np.zeros(1, np.int32), np.zeros(64, np.float32)
    return signaled.check(*arrays, HOW=how, raises=False, **options)


def test_a_fence_before_the_barrier_is_not_the_signals() -> None:
    """The finding names the fence, and shows both right forms, which are clean."""
    (found,) = signaled_by("early", seeds=4).findings
    assert (found.code, found.missing) == ("T102", "release-acquire")
    lines = Path(__file__).read_text().splitlines()
    line = 2 + next(n for n, text in enumerate(lines) if text.strip() == 'if HOW == "early":')
    assert f"the fence at {__file__}:{line}:" in found.message
    assert "fence(); flag.atomic_store(0, 1)" in found.fix and 'flag.atomic_store(0, 1, order="release")' in found.fix
    for right in ("late", "release"):
        assert signaled_by(right, seeds=4)
    (found,) = signaled_by("no fence").findings
    assert found.code == "T102" and "the fence at" not in found.message
