"""Random programs on the GPU and on the emulator."""

from __future__ import annotations

import pytest

from tests.gpu.process import run_program

pytestmark = pytest.mark.gpu

COUNT = 200


@pytest.mark.parametrize("part", range(3))
def test_random_programs(part: int) -> None:
    run_program("random_program.py", str(part * COUNT), str(COUNT))
