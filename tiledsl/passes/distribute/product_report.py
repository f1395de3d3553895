"""The products of a kernel on tensor cores, and where their operands are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tiledsl.errors import Loc
from tiledsl.ir.core import Kernel, Value
from tiledsl.ir.ops import matrix, wgmma
from tiledsl.ir.types import FragmentType, SharedType
from tiledsl.layout.fragments import FragmentLayout
from tiledsl.layout.wgmma import WGMMA_ROWS

Name = Literal["A", "B", "accumulator"]


@dataclass(frozen=True, slots=True)
class OperandReport:
    """`dims`: of what the product takes, rows by columns. layout: None for an operand in shared memory, in `tile`."""

    name: Name
    dtype: str
    bits: int
    dims: tuple[int, int]
    layout: FragmentLayout | None
    tile: str = ""


@dataclass(frozen=True, slots=True)
class ProductReport:
    """`instruction`: its shape and dtypes."""

    loc: Loc
    instruction: str
    operands: tuple[OperandReport, ...]


def product_report(kernel: Kernel) -> list[ProductReport]:
    """Of a tile-level kernel; copies of one statement that are alike count once."""
    return [*dict.fromkeys(_products(kernel))]


def _products(kernel: Kernel) -> Iterator[ProductReport]:
    for op in kernel.walk():
        if isinstance(op, matrix.Mma):
            a, b, acc = (value.type for value in op.operands)
            assert isinstance(a, FragmentType) and isinstance(b, FragmentType) and isinstance(acc, FragmentType)
            held = (_held("A", a), _held("B", b), _held("accumulator", acc))
            yield ProductReport(op.loc, f"mma.sync {op.row}", held)
        elif isinstance(op, wgmma.Mma):
            acc, row = op.fragment, op.row
            m, n = acc.dims
            a = _held("A", op.a.type) if isinstance(op.a.type, FragmentType) else _shared("A", op.a, (m, op.k))
            held = (a, _shared("B", op.b, (op.k, n)), _held("accumulator", acc))
            yield ProductReport(op.loc, f"wgmma m{WGMMA_ROWS}n{n}k{row.k} {row}", held)


def _held(name: Name, type_: FragmentType) -> OperandReport:
    rows, columns = type_.dims
    return OperandReport(name, type_.dtype.name, type_.dtype.bits, (rows, columns), type_.held_as)


def _shared(name: Name, tile: Value, dims: tuple[int, int]) -> OperandReport:
    assert isinstance(tile.type, SharedType)
    return OperandReport(name, tile.type.dtype.name, tile.type.dtype.bits, dims, None, tile.name or "a tile")
