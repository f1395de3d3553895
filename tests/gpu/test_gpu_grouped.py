"""Grouped and masked products on a real GPU: one test for each program of grouped_programs.py."""

from __future__ import annotations

import pytest

from tests.gpu.process import run_program

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "name",
    [
        "every_tile",
        "scales_of_blocks",
        "any_strides",
        "in_a_graph",
        "wrong_offsets_touch_nothing_else",
        "offsets_beyond_32_bits",
    ],
)
def test_program(name: str) -> None:
    run_program("grouped_programs.py", name)
