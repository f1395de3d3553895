"""Cases of `fresh`: those of `sequences`, each call of which is compared with the same call in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.fuzz.outcome import ROOT, Outcome, judge, limit
from tests.fuzz.sequences import SECONDS, SUFFIX, Result, compared, generate, in_turn

__all__ = ["PATIENCE", "SUFFIX", "generate", "run"]

PATIENCE = 900.0
"""Seconds that a case may take, six processes included."""


def run(text: str, seed: int, case: int) -> Outcome:
    lines = text.splitlines()
    try:
        with limit(SECONDS):
            together, errors = in_turn(lines)
    except BaseException as error:
        return judge(error)
    return compared(lines, together, [_alone(line) for line in lines], errors)


def _alone(line: str) -> Result:
    """Return the result of a call in a process that has made no other."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    command = [sys.executable, "-m", "tests.fuzz.fresh"]
    done = subprocess.run(command, input=line, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    if done.returncode:
        return f"exit code {done.returncode}: {done.stderr[-2000:]}", ""
    words, digest = json.loads(done.stdout.splitlines()[-1])
    return words, digest


if __name__ == "__main__":
    print(json.dumps(in_turn(sys.stdin.read().splitlines())[0][0]))
