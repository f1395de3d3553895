"""``tiledsl doctor``: what is there, what is missing, and what works without it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tiledsl.__main__ import main
from tiledsl.commands.starter import linear
from tiledsl.errors import DeviceError

FAILED = ("driver", "GPU")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same on every machine; a test may put a GPU there."""

    def driver() -> Any:
        raise DeviceError("there is no NVIDIA GPU\n  fix: buy one")

    monkeypatch.setattr("tiledsl.runtime.driver.driver", driver)
    monkeypatch.setattr("tiledsl.commands.doctor._driver", lambda: "for CUDA 13.0")
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path))


def asked(capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    """The answer, with its parts by name; text and JSON say the same."""
    assert main(["doctor"]) == code
    text = capsys.readouterr().out
    assert main(["doctor", "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "tiledsl.doctor/1"
    words = " ".join(text.split())
    for part in found["parts"]:
        assert f"{'ok' if part['ok'] else 'no'} {part['name']} {' '.join(part['found'].split())}" in words
        assert part["ok"] or (part["fix"] and f"needed for {part['needed_for']} fix: {part['fix']}" in words)
    assert max(len(line) for line in text.splitlines() if "/" not in line) < 80
    return {**found, "parts": {part["name"]: part for part in found["parts"]}}


def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys)
    assert found["works"] == {"emulator": True, "machine_code": True, "gpu": False}
    assert [name for name, part in found["parts"].items() if not part["ok"]] == ["GPU"]
    assert found["parts"]["GPU"]["fix"] == "buy one"
    assert "of the wheel nvidia-cuda-nvcc: /" in found["parts"]["ptxas"]["found"]
    assert "with LLVM " in found["parts"]["llvmlite"]["found"]


def test_with_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(ordinal=0, name="H200", capability=(9, 0), processors=132)
    gpu = SimpleNamespace(devices=[device], target_of=lambda ordinal: "sm_90a")
    monkeypatch.setattr("tiledsl.runtime.driver.driver", lambda: gpu)
    found = asked(capsys)
    assert found["works"]["gpu"] is True
    expected = "0: H200, sm_90, 132 SMs, compiled for as sm_90a; a kernel ran, and its result is right"
    assert found["parts"]["GPU"]["found"] == expected


def test_a_wrong_result_is_no_emulator(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"specialized": linear.specialized, "signature": linear.signature}
    nothing = SimpleNamespace(check=lambda A, B, bias, C: None, **parts)
    monkeypatch.setattr("tiledsl.commands.starter.linear", nothing)
    found = asked(capsys, code=1)
    assert found["works"] == {"emulator": False, "machine_code": False, "gpu": False}
    assert found["parts"]["emulator"]["found"] == "a kernel ran, and its result is wrong"


def test_another_assembler(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "ptxas"
    program.write_text("#!/bin/sh\necho hello\n")
    monkeypatch.setenv("TILEDSL_PTXAS", str(program))
    assert "is not an executable file" in asked(capsys)["parts"]["ptxas"]["found"]
    program.chmod(0o700)
    found = asked(capsys)
    assert found["works"] == {"emulator": True, "machine_code": False, "gpu": False}
    expected = f"{program}, named by TILEDSL_PTXAS, does not say which release it is"
    assert found["parts"]["ptxas"]["found"] == expected
    assert found["parts"]["assembly"]["found"] == "not tried"
    assert found["parts"]["assembly"]["fix"] == "first mend ptxas, above"


def test_no_assembler(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tiledsl.backends.ptx.tools._in_wheel", lambda wheel, name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = asked(capsys)
    assert not found["works"]["machine_code"] and not found["parts"]["nvdisasm"]["ok"]
    assert "pip install nvidia-cuda-nvcc" in found["parts"]["ptxas"]["found"]
    program = tmp_path / "ptxas"
    program.write_text('#!/bin/sh\necho "Cuda compilation tools, release 12.8, V12.8.1"\nexit 1\n')
    program.chmod(0o700)
    expected = f"V12.8.1, on PATH, since the wheel nvidia-cuda-nvcc is not installed: {program}"
    assert main(["doctor"]) == 0
    assert expected in " ".join(capsys.readouterr().out.split())


def test_a_cache_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TILEDSL_CACHE_SIZE", "1 GB")
    part = asked(capsys)["parts"]["cache"]
    assert (
        not part["ok"] and "TILEDSL_CACHE_SIZE" in part["found"] and part["fix"] == "give it in bytes, or leave it out"
    )
    monkeypatch.setenv("TILEDSL_CACHE", "0")
    assert asked(capsys)["parts"]["cache"]["found"].startswith("switched off by TILEDSL_CACHE=0")


@pytest.mark.parametrize(
    ("missing", "fails", "works"),
    [
        ("ml_dtypes", ["ml_dtypes", "emulator", "assembly"], False),
        ("llvmlite", ["llvmlite", "assembly"], True),
        ("cuda", ["cuda-python"], True),
    ],
)
def test_a_library_that_is_missing(missing: str, fails: list[str], works: bool) -> None:
    """In a process of its own: here it has been imported."""
    blocked = f"import sys; sys.modules[{missing!r}] = None; from tiledsl.__main__ import main; "
    script = f"{blocked}sys.exit(main(['doctor', '--json']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == (0 if works else 1), done.stderr
    found = json.loads(done.stdout)
    assert found["works"]["emulator"] is works
    failed = [part for part in found["parts"] if not part["ok"] and part["name"] not in FAILED]
    assert [part["name"] for part in failed] == fails and failed[0]["fix"].startswith("pip install ")
