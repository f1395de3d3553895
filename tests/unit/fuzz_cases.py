"""Cases that a fuzzer must survive: of the first the process ends, the others are fine."""

from __future__ import annotations

import os

from tests.fuzz.outcome import Outcome

SUFFIX = "txt"


def generate(seed: int, case: int) -> str:
    return "end" if case == 0 else "go on"


def run(text: str, seed: int, case: int) -> Outcome:
    if text == "end":
        os._exit(3)
    return Outcome("ok")
