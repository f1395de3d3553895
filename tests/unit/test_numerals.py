"""Numbers in variables of the environment and options of commands: what is none is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiledsl.__main__ import main
from tiledsl.backends.emulator.options import Options
from tiledsl.compilation.cache import disk_cache
from tiledsl.errors import CacheError, KernelArgumentError
from tiledsl.outside import count_of, is_time, seconds_of

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
