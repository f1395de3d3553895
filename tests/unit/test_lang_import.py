"""`import tiledsl`: fast, without heavy modules, and clear about a broken checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "tiledsl"
HEAVY = ("numpy", "llvmlite", "cuda", "ml_dtypes", "rich", "pygments", "torch", "tiledsl.ir.semantics")


def run(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=60, check=False)


def test_import_loads_nothing_heavy() -> None:
    code = f"""
        import sys
        import tiledsl
        from tiledsl import dims, lang
        print([name for name in {HEAVY!r} if name in sys.modules])
    """
    assert run(code, PACKAGE.parent).stdout.strip() == "[]"


def checkout(folder: Path) -> Path:
    """A copy of the package whose `backends/ptx` is still to be made."""
    ignore = shutil.ignore_patterns("__pycache__", "ptx")
    shutil.copytree(PACKAGE, folder / "tiledsl", ignore=ignore, symlinks=True)
    shutil.copy(PACKAGE / "lang" / "ptx.py", folder / "tiledsl" / "lang" / "ptx.py")
    return folder / "tiledsl" / "backends" / "ptx"


def test_link_that_became_a_file_is_named(tmp_path: Path) -> None:
    checkout(tmp_path).write_text("../../backends/ptx")
    result = run("import tiledsl", tmp_path)
    assert "ImportError: tiledsl is not complete" in result.stderr
    assert "is a plain file" in result.stderr
    assert "git config core.symlinks true" in result.stderr


def test_missing_link_is_named(tmp_path: Path) -> None:
    checkout(tmp_path)
    assert "and is missing" in run("import tiledsl", tmp_path).stderr


def test_operators_of_torch_without_torch() -> None:
    """The one module that needs it says so; nothing else imports it."""
    code = """
        import sys
        sys.modules["torch"] = None
        import tiledsl, tiledsl.gemm, tiledsl.export.command
        import tiledsl.torch
    """
    error = run(code, PACKAGE.parent).stderr
    assert "ImportError: tiledsl.torch needs PyTorch" in error and error.endswith("fix: pip install torch\n")
