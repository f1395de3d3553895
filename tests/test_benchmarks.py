"""The harness itself, without a GPU: turns are taken fairly, ratios are formed within a round."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gallery import chosen_consts, gallery_kernels
from benchmarks.gemm import SIZES, as_table, parse_size, summarize, variants
from benchmarks.report import write
from tiledsl.inspect.timing import L2_BYTES, Timing, buffer_sets, interleave, quartiles


class FakeDevice:
    """A device whose clock is a counter: launches add to it, events read it, and it slows down by itself."""

    name = "fake"

    def __init__(self) -> None:
        self.now = 0.0
        self.slowdown = 1.0
        self.log: list[str] = []

    def launcher(self, name: str, ms: float) -> Callable[[int], None]:
        def launch(number: int) -> None:
            self.now += ms * self.slowdown
            self.log.append(name)

        return launch

    def event(self) -> list[float]:
        return [0.0]

    def record(self, event: list[float]) -> None:
        event[0] = self.now

    def milliseconds(self, start: list[float], end: list[float]) -> float:
        return end[0] - start[0]

    def synchronize(self) -> None:
        self.slowdown *= 1.01  # a device that heats up


def test_a_drifting_clock_hardly_moves_the_ratio() -> None:
    device: Any = FakeDevice()
    contenders = {"base": device.launcher("base", 2.0), "ours": device.launcher("ours", 1.0)}
    timing = interleave(device, contenders, rounds=10, seconds=0.01)
    assert timing.rounds["ours"][-1] > 1.15 * timing.rounds["ours"][0]
    low, middle, high = quartiles(timing.speed_ratios("ours", "base"))
    assert 1.97 < low <= middle <= high < 2.03


def orders(seed: int) -> list[str]:
    """Who ran in each of 30 rounds, in order."""
    device: Any = FakeDevice()
    contenders = {name: device.launcher(name, 1.0) for name in "abc"}
    interleave(device, contenders, rounds=30, seconds=0.001, seed=seed)
    rounds = device.log[-90:]
    return ["".join(rounds[i : i + 3]) for i in range(0, 90, 3)]


def test_nobody_always_follows_the_same_one() -> None:
    """Each round has all contenders in an order of its own, and the same seed the same orders."""
    found = orders(0)
    assert set(found) == {"abc", "acb", "bac", "bca", "cab", "cba"}
    assert found == orders(0) != orders(1)


def test_cold_operands_do_not_fit_in_l2() -> None:
    assert buffer_sets(1 << 20, cold=True) << 20 >= 3 * L2_BYTES
    assert buffer_sets(1 << 30, cold=True) == 2
    assert buffer_sets(1 << 20, cold=False) == 1


def test_sizes() -> None:
    assert parse_size("64") == (64, 64, 64)
    assert parse_size("7x8x9") == (7, 8, 9)


def test_a_result_can_be_judged_and_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timing = Timing({"cuBLAS": [2.0, 2.0, 2.0], "ours": [1.0, 1.0, 4.0]})
    cases = summarize(timing, (1000, 1000, 1000), "cuBLAS", {"sm_mhz": 1980.0})
    write("made_up", "A title", as_table(cases), {"cases": cases}, tmp_path)
    result = json.loads((tmp_path / "made_up.json").read_text())
    ours = result["cases"][1]
    assert (ours["tflops"], ours["ratio"], ours["ratio_quartiles"]) == (2.0, 2.0, [1.25, 2.0])
    assert {"date", "commit", "gpu", "driver", "python", "versions"} <= result["machine"].keys()
    assert "| ours   | 1000x1000x1000 |" in (tmp_path / "made_up.md").read_text()
    assert "A title" in capsys.readouterr().out


def test_variants_of_one_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    """Every combination of the consts given; what does not compile is reported and left out."""
    found = variants(gallery_kernels(), "fastest", ["BM=64,100", "BN=64", "BK=8", "SCHEDULE=written,anew"])
    assert list(found) == [f"fastest BM=64 BN=64 BK=8 SCHEDULE={name}" for name in ("written", "anew")]
    assert "BM=100 BN=64 BK=8 SCHEDULE=written: left out" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no kernel 'slowest'"):
        variants(gallery_kernels(), "slowest", [])


def test_what_the_fastest_kernel_chooses() -> None:
    """The consts depend on the size; a variant that names its own keeps them."""
    chosen = {size: chosen_consts("fastest", {}, size) for size in SIZES}
    assert all(chosen[n, n, n]["BN"] == 128 for n in (2048, 4095, 4096, 8192))
    assert chosen[4096, 2112, 7168]["BN"] == 64 and chosen[1000, 1000, 1000]["SLICES"] > 1
    assert chosen_consts("fastest", {"BK": 8}, SIZES[0]) == {"BK": 8}
    assert chosen_consts("naive", {}, SIZES[0]) == {}
