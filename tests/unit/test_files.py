"""A device, a pipe, or a folder in the place of a file is an error at once, whoever reads it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tiledsl import outside
from tiledsl.__main__ import main
from tiledsl.accepted import read_baseline, write_baseline
from tiledsl.errors import Loc, TileError, render_at
from tiledsl.inspect.report.measure import read_run
from tiledsl.tune.carried import Carried
from tiledsl.tune.records import Records

SETTING = {"kernel": "k", "code": "c", "device": "GPU", "toolchain": "ptxas 13"}


@pytest.fixture(autouse=True)
def short() -> Iterator[None]:
    """Interrupt a test that waits for a pipe."""

    def stop(*_: Any) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def _link(folder: Path) -> Path:
    (folder / "link").symlink_to("/dev/null")
    return folder / "link"


ODD: dict[str, Callable[[Path], Path]] = {
    "a pipe": _pipe,
    "a device": _link,
    "a folder": lambda folder: folder,
}


def _carried(file: Path) -> object:
    (file.parent / "kernels").mkdir()
    (file.parent / "kernels" / "toolchain.txt").symlink_to(file)
    return Carried(str(file.parent / "kernels")).toolchain


READERS: dict[str, Callable[[Path], object]] = {
    "records": lambda file: Records(file, SETTING),
    "builds": _carried,
    "baseline": read_baseline,
    "baseline that is written": lambda file: write_baseline(file, []),
    "stamps": lambda file: read_run(str(file)),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_says_what_is_there(tmp_path: Path, kind: str, reader: str) -> None:
    with pytest.raises(TileError) as caught:
        READERS[reader](ODD[kind](tmp_path))
    assert f"expected a file, got {kind}" in str(caught.value) and "\n  fix: " in str(caught.value)


@pytest.mark.parametrize("kind", ODD)
def test_a_command_says_what_is_there(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", str(ODD[kind](tmp_path))]) == 2
    assert f"expected a file, got {kind}" in capsys.readouterr().err


def test_a_file_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(outside, "MOST_BYTES", 1000)
    with pytest.raises(OSError, match="expected a file, got a device"):
        outside.read_bytes(Path("/dev/zero"))
    (tmp_path / "long").write_bytes(b"x" * 1001)
    with pytest.raises(OSError, match="expected at most"):
        outside.read_bytes(tmp_path / "long")
    (tmp_path / "right").write_bytes("ä\r\n".encode())
    assert outside.read_text(tmp_path / "right") == "ä\n"


@pytest.mark.parametrize("kind", ODD)
def test_a_location_in_no_file_has_no_text(tmp_path: Path, kind: str) -> None:
    """A text may name any file as the place of an operation."""
    file = str(ODD[kind](tmp_path))
    assert outside.source_lines(file) == [] and outside.source_line(file, 1) == ""
    assert render_at(Loc(file, 1, 1), "wrong") == f"{file}:1:1: wrong"


def test_the_lines_of_a_source() -> None:
    assert outside.source_line(__file__, 1).startswith('"""A device')
    assert [outside.source_line(__file__, line) for line in (0, -1, 10**9)] == ["", "", ""]
