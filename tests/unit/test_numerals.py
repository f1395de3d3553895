"""Numbers in variables of the environment and options of commands: what is none is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiledsl import Global, f32, grid, threads, tile_kernel
from tiledsl.__main__ import main
from tiledsl.backends.emulator.options import Options
from tiledsl.compilation.cache import disk_cache
from tiledsl.dims import N
from tiledsl.errors import CacheError, KernelArgumentError
from tiledsl.outside import count_of, is_time, python_number, seconds_of

ROOT = Path(__file__).parents[2]
NO_COUNTS = [
    "",
    " 1",
    "-1",
    "+1",
    "1.0",
    "1e3",
    "nan",
    "inf",
    "0x10",
    "1_000",
    "\u0663",
    "\u00b2",
    "9" * 19,
    "9" * 5000,
]
NO_TIMES = ["", "soon", "0", "-0.0", "-1", "nan", "-nan", "inf", "-inf", "1e400", "1e15"]


@pytest.mark.parametrize("text", NO_COUNTS)
def test_what_is_no_count_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_of(text) is None
    monkeypatch.setenv("TILEDSL_MAX_STEPS", text)
    with pytest.raises(KernelArgumentError, match="TILEDSL_MAX_STEPS is "):
        Options()
    monkeypatch.setenv("TILEDSL_CACHE_SIZE", text)
    with pytest.raises(CacheError, match="TILEDSL_CACHE_SIZE is "):
        disk_cache()


def test_counts_have_a_least() -> None:
    assert count_of("0") == 0 and count_of("0", least=1) is None and count_of("007", least=7) == 7


@pytest.mark.parametrize("text", NO_TIMES)
def test_what_is_no_time_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert seconds_of(text) is None
    if text in ("", "soon"):
        return
    file = f"{ROOT}/examples/gemm/naive.py"
    assert main(["tune", file, f"--limit={text}"]) == 2 and "--limit is a time" in capsys.readouterr().err
    assert main(["bench", file, f"--seconds={text}"]) == 2 and "--seconds a time" in capsys.readouterr().err


def test_times_are_numbers() -> None:
    assert seconds_of("0.5") == 0.5 and seconds_of("1e3") == 1000.0
    assert is_time(3) and is_time(1e-9) and not is_time(True) and not is_time("3") and not is_time(10**400)


def test_a_number_of_numpy_is_the_equal_one_of_python_and_all_else_is_itself() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert [type(python_number(x)) for x in (np.int8(3), np.uint64(2**64 - 1), np.float16(0.5))] == [int, int, float]
    for other in (endless, np.longdouble(1) / 3, np.zeros(()), "3", None):
        assert python_number(other) is other


@tile_kernel
def nothing(A: Global[f32, N]):
    grid(1)
    threads(1)


@pytest.mark.parametrize("value", [[1], np.longdouble(1) / 3, 2.0, True, "2", 0])
def test_counts_of_a_check_and_of_runs_are_integers(value: Any) -> None:
    A = np.zeros(1, np.float32)
    for call in (lambda: nothing.check(A, processors=value), lambda: nothing.time(A, repeat=value, device="emulator")):
        with pytest.raises(KernelArgumentError, match=r"nothing\(\)|time\(\)"):
            call()
