"""benchmarks/static_report.py: its figures are those of ptxas and of the SASS report, and every kernel has its rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gallery import gallery_module
from benchmarks.static_report import as_row, examine, labelled_kernels, main
from examples.gemm.shared_tiled import shared_tiled


def test_one_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--only", "shared_tiled T=16", "--targets", "sm_80", "sm_90a", "--out", str(tmp_path)])
    result = json.loads((tmp_path / "static_report.json").read_text())
    assert [(c["kernel"], c["target"]) for c in result["cases"]] == [
        ("shared_tiled T=16", "sm_80"),
        ("shared_tiled T=16", "sm_90a"),
    ]
    for case in result["cases"]:
        compiled = shared_tiled.compile(arch=case["target"], T=16)
        assert case["registers"] == compiled.resources.registers
        assert case["shared"] == 2 * 16 * 16 * 4
        assert (case["spill_stores"], case["spill_loads"], case["stack"]) == (0, 0, 0)
        assert case["arithmetic"] == "FFMA" and case["histogram"]["FFMA"] == 16
        assert case["share"] == 16 / case["turn"] and 40 < case["turn"] <= case["loop"] < 80
    assert "| shared_tiled T=16 |  sm_80 |" in capsys.readouterr().out


def test_every_variant_in_every_format_has_a_label() -> None:
    labels = [label for label, *_ in labelled_kernels()]
    gallery = gallery_module().GALLERY
    assert len(labels) == len(set(labels)) == sum(len(e.variants) * len(e.formats) for e in gallery)
    assert {label.split(" ")[0] for label in labels} == {e.kernel for e in gallery}


def test_a_kernel_that_a_target_does_not_have() -> None:
    case = examine("shared_tiled T=64", "f32", shared_tiled, {"T": 64}, "sm_90a")
    assert "1024" in case["refused"]
    assert as_row(case)[:3] == ("shared_tiled T=64", "sm_90a", "refused")


def test_an_unknown_label(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "quickest"])
    assert "no label begins with quickest; there are naive, shared_tiled T=16" in capsys.readouterr().err
