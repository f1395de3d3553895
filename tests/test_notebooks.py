"""The example notebooks run without a GPU, and what they show is HTML with a plain text beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"

SHOWN = {
    "first_kernel": ["tiled(T=8) for sm_90a"],
    "banks_and_layouts": [
        "shared memory of transpose",
        "padded(33)",
        "swizzled(",
        "shared memory of transpose",
        "mma.m16",
        "mma.m16",
    ],
    "checking": ["exchange: findings (1 schedule)", "exchange: clean (4 schedules)"],
}
"""How what has HTML begins, in this order."""


def test_every_notebook_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {*SHOWN}


@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    notebook: Any = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    NotebookClient(notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    data = [output["data"] for output in outputs if "text/html" in output.get("data", {})]
    assert len(data) == len(SHOWN[name])
    for shown, begins in zip(data, SHOWN[name], strict=True):
        assert shown["text/html"].startswith(f"<div><b>{begins}")
        assert shown["text/plain"] and not shown["text/plain"].startswith("<div")
    streams = [output for output in outputs if output["output_type"] == "stream"]
    assert all(output["name"] == "stdout" for output in streams), streams
