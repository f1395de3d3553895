"""`warmup`: what is compiled for which shapes and targets, by this process and by workers, and what is reserved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.emulated_gpu import EmulatedDriver, install
from tests.unit.test_gemm_call import relu_bias
from tests.unit.test_gemm_gpu import tensors
from tiledsl.compilation import compiler, parallel
from tiledsl.errors import CompileError, KernelArgumentError
from tiledsl.gemm import gemm, warmup


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The kernels and targets that are built; nothing is compiled."""
    found: list[tuple[str, str]] = []

    def build_all(jobs: Any) -> None:
        found.extend((kernel.name, arch) for kernel, _, arch in jobs)

    monkeypatch.setattr("tiledsl.gemm.warm_up.build_all", build_all)
    return found


def test_every_launch_of_every_shape(built: list[tuple[str, str]]) -> None:
    """Shapes of one variant are one build."""
    warmup([(8192, 8192, 8192), (8192, 8192, 8256), (1, 8192, 8192, 8192)], arch="sm_90a")
    assert built == [("hopper_fastest", "sm_90a")]
    built.clear()
    warmup([(331, 1024, 4043)], layouts=("NN", "NT"), arch="sm_90a")
    assert built == [(name, "sm_90a") for name in ("pad", "hopper_fastest", "pad_both", "hopper_fastest")]
    built.clear()
    warmup([(128, 128, 65536)], "f16", out_dtype="f32", bias=True, epilogue=relu_bias, arch="sm_90a")
    assert built[0] == ("hopper_fastest", "sm_90a")
    built.clear()
    warmup([(512, 512, 512)], arch="sm_80")
    warmup([(512, 512, 512)], "f32", arch="sm_90a")
    assert built == [("mma_fastest", "sm_80"), ("fastest", "sm_90a")]
    built.clear()
    warmup([(512, 512, 512)], "f32", precision="tf32", layouts=("NT",), arch="sm_90a")
    warmup([(512, 512, 512)], "e4m3", dtype_b="e5m2", arch="sm_90a")
    assert built == [("hopper_fastest", "sm_90a"), ("pad", "sm_90a"), ("hopper_fastest", "sm_90a")]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shapes": [(512, 512)]}, r"a shape is \(512, 512\); expected \(m, n, k\)"),
        ({"shapes": [(512, 512, 0)]}, r"a shape is \(512, 512, 0\)"),
        ({"layouts": ("NN", "N")}, "layouts has 'N'; expected some of NN, NT, TN, TT"),
        ({"dtype": "i16"}, "the dtype 'i16' is none of f32, f64, f16, bf16"),
        ({"dtype": "i8", "dtype_b": "bf16"}, "A is i8, but B is bf16"),
        ({"dtype": "i8", "out_dtype": "f32"}, "out_dtype is f32; expected one of i32 for A and B of i8"),
    ],
)
def test_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelArgumentError, match=message):
        warmup(**{"shapes": [(8, 8, 8)], "arch": "sm_90a", **given})


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(CompileError, match="no target 'sm_1'"):
        warmup([(8, 8, 8)], arch="sm_1")


def test_the_workspace_is_reserved(built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call in a captured graph needs nothing more."""
    gpu = EmulatedDriver()
    install(monkeypatch, gpu)
    warmup([(40, 32, 24), (165, 1024, 2043)], stream=11)
    assert gpu.memory and gpu.loaded == {"hopper_fastest", "pad"}
    gpu.streams = {11}
    gemm(*tensors(165, 1024, 2043), stream=11)
    assert {stream for _, stream, _ in gpu.launched} == {11}


def test_workers_fill_the_disk_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process compiles its share, and what workers cannot find; the rest it loads."""
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(parallel.os, "sched_getaffinity", lambda _: {0, 1})
    compiled: list[Any] = []
    build = compiler.build
    monkeypatch.setattr(compiler, "build", lambda *args: (compiled.append(args[2]), build(*args))[1])
    warmup([(331, 1024, 4043)], arch="sm_90a")
    assert len(compiled) == 1
    assert len(list((tmp_path / "cache").rglob("*.entry"))) == 2
    warmup([(331, 1024, 4043)], arch="sm_90a")
    assert len(compiled) == 1


@pytest.mark.parametrize("arch", ["sm_80", "sm_120a"])
def test_other_targets_compile(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path / "cache"))
    warmup([(2, 64, 64, 63)], arch=arch, bias=True)
    assert len(list((tmp_path / "cache").rglob("*.entry"))) == 1
