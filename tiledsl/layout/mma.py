"""The products that ``mma.sync`` computes: one table of shapes and dtypes. (PTX ISA: mma.)

A row says that D = A B + C exists for an m x k A, a k x n B and m x n C and D of these dtypes, and from which compute
capability on. `layout.fragments` says which lane holds which element.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class MmaShape:
    """m x n x k of one instruction."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"m{self.m}n{self.n}k{self.k}"


@dataclass(frozen=True, slots=True)
class MmaRow:
    """One kind of product. a, b, acc: dtype names, `acc` that of C and D. capability: the first that has it."""

    shape: MmaShape
    a: str
    b: str
    acc: str
    capability: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.shape} {self.a} x {self.b} -> {self.acc}"


SHAPES: dict[str, MmaShape] = {
    f"m{m}n{n}k{k}": MmaShape(m, n, k) for m, n, k in ((16, 8, 8), (16, 8, 16), (16, 8, 4), (16, 8, 32), (8, 8, 4))
}
"""Shapes by their PTX name."""


def _rows(shapes: str, operands: str, accs: str, capability: tuple[int, int]) -> list[MmaRow]:
    """All rows of some shapes; `operands`: dtypes that A and B may have, each on its own."""
    names = operands.split()
    return [
        MmaRow(SHAPES[shape], a, b, acc, capability)
        for shape in shapes.split()
        for a in names
        for b in names
        for acc in accs.split()
    ]


TABLE: tuple[MmaRow, ...] = (
    *_rows("m16n8k8 m16n8k16", "f16", "f32 f16", (8, 0)),
    *_rows("m16n8k8 m16n8k16", "bf16", "f32", (8, 0)),
    *_rows("m16n8k4 m16n8k8", "tf32", "f32", (8, 0)),
    *_rows("m16n8k32", "e4m3 e5m2", "f32", (8, 9)),
    *_rows("m16n8k16 m16n8k32", "i8 u8", "i32", (8, 0)),
    *_rows("m8n8k4", "f64", "f64", (8, 0)),
    *_rows("m16n8k4 m16n8k8 m16n8k16", "f64", "f64", (9, 0)),
)
"""Every product of the language. s8 and u8 are called i8 and u8 here, s32 is i32."""


@cache
def find_row(shape: MmaShape, a: str, b: str, acc: str) -> MmaRow | None:
    """The row of these dtypes; None if there is no such product."""
    return next((r for r in TABLE if (r.shape, r.a, r.b, r.acc) == (shape, a, b, acc)), None)
