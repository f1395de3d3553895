"""The PTX of two hand-built kernels, whole: a change of a lowering rule or of LLVM shows up as a diff."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ptx_kernels import naive, shared_tiled

from tiledsl.backends.ptx import TARGETS
from tiledsl.backends.ptx.codegen import emit_ptx
from tiledsl.ir.core import Kernel


@pytest.mark.parametrize(
    ("name", "make"), [("naive", naive), ("shared_tiled_16", lambda: shared_tiled(16))], ids=lambda v: str(v)[:20]
)
def test_ptx(name: str, make: Callable[[], Kernel], golden: Callable[[str, str], None]) -> None:
    _, ptx = emit_ptx(make(), TARGETS["sm_90a"])
    golden(f"{name}.sm_90a.ptx", ptx)
