"""Random programs on the GPU and on the emulator."""

from __future__ import annotations

import pytest

from tests.gpu.process import run_program

pytestmark = pytest.mark.gpu

COUNT = 200


@pytest.mark.parametrize("kind", ["statements", "products"])
@pytest.mark.parametrize("part", range(3))
def test_random_programs(kind: str, part: int) -> None:
    """`python -m benchmarks.random_programs` runs many more."""
    run_program("random_program.py", kind, str(part * COUNT), str(COUNT))


def test_random_programs_of_integers() -> None:
    run_program("random_program.py", "integers", "0", "20")
