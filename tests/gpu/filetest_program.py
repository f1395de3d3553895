"""Runs the filetests of one folder on the GPU: ``PYTHONPATH=. python tests/gpu/filetest_program.py scalar``.

Prints a line for each kernel whose bits or printed lines differ from the expected ones, then "done".
"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout

import raw_launch

from tests.filetest import read_filetests
from tests.filetests.made import filetests
from tiledsl.passes.pipeline import run_pipeline


def main(folder: str) -> int:
    wrong = 0
    for path in filetests():
        for test in read_filetests(path) if path.parent.name == folder else ():
            if test.expected:
                continue  # what the emulator stops at, a GPU may survive
            for run in test.runs:
                kernel = test.kernel()
                arguments = run.arguments(kernel)
                printed = io.StringIO()
                with redirect_stdout(printed):
                    raw_launch.run(kernel if kernel.level == "thread" else run_pipeline(kernel), arguments)
                differences = run.differences(arguments)
                lines = sorted(printed.getvalue().splitlines())
                differences += [] if lines == sorted(run.printed) else [f"printed {lines}"]
                wrong += bool(differences)
                for line in differences:
                    print(f"{test.name}, {run.name}: {line}")
    print("done")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1]), 100))
