"""Every gallery kernel: the static count of wavefronts, times executions, is what the emulator counts."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.bank_calibration import problem
from benchmarks.bank_counts import count_both
from benchmarks.gallery import gallery_kernels

KERNELS: dict[str, tuple[Any, dict[str, int]]] = gallery_kernels()
SIZE = (72, 40, 24)
"""Edges of every tile; most tiles of the gallery are larger."""


@pytest.mark.parametrize("label", KERNELS)
def test_static_count_is_the_emulators(label: str) -> None:
    kernel, consts = KERNELS[label]
    both = count_both(kernel, *problem(SIZE), **consts)
    assert both.differences == []
    for kind in ("load", "store"):
        static, emulated = both.of_kind(kind)
        assert static == emulated, f"some {kind}s are not known"
