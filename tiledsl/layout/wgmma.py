"""The products that ``wgmma.mma_async`` computes: 64 rows of a warpgroup, n columns, k of one instruction.

(PTX ISA: wgmma.mma_async.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

WGMMA_ROWS = 64
"""Rows of one instruction: 16 for each warp of the warpgroup."""
STEP_BYTES = 32
"""Of k, in one instruction of any dtype."""


@dataclass(frozen=True, slots=True)
class WgmmaRow:
    """One kind of product. a, b, acc: dtype names. k: of one instruction. bits: of an element of A and B."""

    a: str
    b: str
    acc: str
    k: int
    bits: int

    def __str__(self) -> str:
        return f"{self.a} x {self.b} -> {self.acc}"

    def widths(self) -> tuple[int, ...]:
        """The n that exist: multiples of 8 up to 256; of 16 from 48 on for integers."""
        if self.acc == "i32":
            return (8, 16, 24, 32, *range(48, 257, 16))
        return tuple(range(8, 257, 8))


WGMMA: tuple[WgmmaRow, ...] = (
    WgmmaRow("f16", "f16", "f32", 16, 16),
    WgmmaRow("f16", "f16", "f16", 16, 16),
    WgmmaRow("bf16", "bf16", "f32", 16, 16),
    WgmmaRow("tf32", "tf32", "f32", 8, 32),
    *(WgmmaRow(a, b, "f32", 32, 8) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
    *(WgmmaRow(a, b, "i32", 32, 8) for a in ("i8", "u8") for b in ("i8", "u8")),
)
"""Every product. tf32 and 8-bit operands are read along k only."""


@cache
def find_wgmma(a: str, b: str, acc: str) -> WgmmaRow | None:
    """The row of these dtypes; None if there is no such product."""
    return next((r for r in WGMMA if (r.a, r.b, r.acc) == (a, b, acc)), None)
