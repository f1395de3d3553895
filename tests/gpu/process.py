"""Each GPU test has a process and a time limit: a hang or a lost context ends only itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["run_program"]

FOLDER = Path(__file__).parent
SECONDS = 180


def run_program(program: str, *args: str) -> None:
    """Run a program of this folder; it must exit with 0 and print "done" last."""
    root = FOLDER.parents[1]
    done = subprocess.run(
        [sys.executable, str(FOLDER / program), *args],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stdout[-6000:] + done.stderr[-6000:]
