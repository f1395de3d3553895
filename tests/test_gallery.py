"""The gallery is complete, documented, and right: every kernel file is listed, explained and runs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

GEMM = Path(__file__).parent.parent / "examples" / "gemm"


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    sys.path.insert(0, str(GEMM))
    import gallery

    return gallery


def _kernels(path: Path) -> list[str]:
    """Names of the `@tile_kernel` functions in a file, without running it."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
            if any(isinstance(d, ast.Name) and d.id == "tile_kernel" for d in decorators):
                names.append(node.name)
    return names


def test_every_kernel_is_listed(gallery: ModuleType) -> None:
    in_files = {(path.name, name) for path in GEMM.glob("*.py") for name in _kernels(path)}
    listed = {(entry.file, entry.kernel) for entry in gallery.GALLERY}
    assert in_files == listed, "examples/gemm/*.py and GALLERY in gallery.py differ"


@pytest.mark.parametrize("readme", ["README.md", "examples/gemm/README.md"])
def test_every_kernel_is_explained(gallery: ModuleType, readme: str) -> None:
    text = (GEMM.parent.parent / readme).read_text()
    missing = [entry.file for entry in gallery.GALLERY if entry.file not in text]
    assert not missing, f"{readme} does not mention {', '.join(missing)}"


def _variants() -> list[tuple[int, dict[str, int]]]:
    sys.path.insert(0, str(GEMM))
    import gallery

    return [(number, consts) for number, entry in enumerate(gallery.GALLERY) for consts in entry.variants]


@pytest.mark.parametrize(("number", "consts"), _variants())
@pytest.mark.parametrize("size", [(1, 1, 1), (37, 21, 19), (16, 64, 32), (5, 40, 0), (0, 3, 4)])
def test_right_at_edges(gallery: ModuleType, number: int, consts: dict[str, int], size: tuple[int, int, int]) -> None:
    """Any M, N, K: also 1, no multiple of the tile, and none at all (K = 0 gives zeros)."""
    from reference import random_problem, worst_error

    A, B, C = random_problem(*size)
    gallery.load(gallery.GALLERY[number])(A, B, C, device="emulator", **consts)
    error, bound = worst_error(C, A, B)
    assert error <= bound


@pytest.mark.parametrize(("number", "consts"), _variants())
def test_any_strides(gallery: ModuleType, number: int, consts: dict[str, int]) -> None:
    """Column-major and every-other-element operands give the same bits as packed ones."""
    from reference import random_problem

    kernel = gallery.load(gallery.GALLERY[number])
    A, B, C = random_problem(19, 23, 17)
    kernel(A, B, C, device="emulator", **consts)
    wide = np.full((19, 46), np.nan, np.float32)
    kernel(np.asfortranarray(A), np.repeat(B, 2, axis=0)[::2], wide[:, ::2], device="emulator", **consts)
    assert np.array_equal(wide[:, ::2], C)
    assert np.isnan(wide[:, 1::2]).all()


def test_loops_equal_float64() -> None:
    """The reference that is written to be read agrees with the one that is used."""
    sys.path.insert(0, str(GEMM))
    from reference import matmul_loops, random_problem, worst_error

    A, B, C = random_problem(6, 5, 7)
    matmul_loops(A, B, C)
    error, bound = worst_error(C, A, B)
    assert error <= bound


def test_one_wrong_element_is_seen() -> None:
    sys.path.insert(0, str(GEMM))
    from reference import random_problem, worst_error

    A, B, C = random_problem(64, 64, 8)
    C[:] = A @ B
    for wrong in (C[63, 63] + 1e-3, np.nan):
        C[63, 63] = wrong
        error, bound = worst_error(C, A, B)
        assert error > bound


def test_a_kernel_file_runs_by_itself() -> None:
    command = [sys.executable, str(GEMM / "naive.py"), "--m", "33", "--n", "21", "--k", "9"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "33 x 21 x 9" in done.stdout
    assert "right" in done.stdout
