"""Raw PTX."""

from __future__ import annotations

import re
from functools import cache
from typing import Sequence

from tiledsl.ir.core import Op, Pure, Value, attribute, operands
from tiledsl.ir.facts import NOTHING, Access, by
from tiledsl.ir.ops.matrix import HELD
from tiledsl.ir.types import DTYPES, DType, FragmentType, Type
from tiledsl.layout.fragments import FragmentLayout
from tiledsl.layout.mma import SHAPES, MmaRow, find_row


class Inline(Op):
    """PTX text, as ``ptx.inline("lop3.b32 $0, $1, $2, $3, 0xe8;", u32, a, b, c)``.

    `text` names results, then operands, as $0, $1, ...; ``${:uid}`` makes a label unique.
    `outputs`: result dtypes. `volatile`: it does more than compute its results, so it is kept and
    stays in order. `convergent`: control flow around it is not changed.
    `memory`: "nothing", "reads" or "writes" (and reads) any memory; "unknown": it writes if an operand is in brackets.
    `uniform`: who agrees on the results: "thread", "warp", "cta", or as for the "operands".
    `emulate`: key into `Kernel.externals` of a function from NumPy arrays (one a operand) to the
    result arrays; empty means that the emulator reports an error at this line.
    """

    name = "ptx.inline"
    touches, sync, stays, scope, features = (), NOTHING, "", "thread", ()
    effects = by(lambda op: frozenset({"sync"} if op.volatile or op.convergent else ()))
    varies, nan = by(lambda op: op.uniform), "sees"
    cause = "the result of inline PTX"
    called = "ptx.inline()"
    text = attribute(str)
    outputs = attribute[tuple[DType, ...]](tuple, of=DType)
    volatile = attribute(bool, False)
    convergent = attribute(bool, False)
    memory = attribute(str, "unknown", among=("unknown", "nothing", "reads", "writes"))
    uniform = attribute(str, "thread", among=("thread", "warp", "cta", "operands"))
    emulate = attribute(str, "")
    values = operands(0)

    def infer(self) -> Sequence[Type]:
        return self.outputs

    @property
    def addresses(self) -> list[tuple[str, DType]]:
        """Return the addresses in the text: names as ``$1``, with their dtypes. (PTX ISA: Addresses as Operands.)"""
        return addresses(self.text, [*self.outputs, *(v.dtype for v in self.values)])

    def accesses(self) -> list[Access]:
        """PTX writes an operand in memory in brackets; where the address came from is not known here."""
        kinds = {"nothing": [], "reads": [False], "writes": [False, True]}
        return [Access("", kind) for kind in kinds.get(self.memory, [False, True] if "[" in self.text else [])]

    def verify(self) -> None:
        self.require(all(isinstance(v.type, DType) for v in self.values), "operands are scalars")
        for name, dtype in self.addresses:
            self.require(is_address(dtype), f"{name} is an address, got {dtype}")
        self.require(self.memory not in ("reads", "writes") or self.volatile, f"{self.memory}, but is not volatile")


_BRACKETS = re.compile(r"\[([^\]]*)\]")
_BRACES = re.compile(r"\{[^}]*\}")
_PLACE = re.compile(r"\$(\d+)")


def addresses(text: str, dtypes: Sequence[DType]) -> list[tuple[str, DType]]:
    """Return the names in brackets in PTX text, such as ``$1``, with their dtypes. Coordinates, in braces, are none.

    dtypes: of the results and the operands, in order.
    """
    plain = re.sub(r"\$\{(\d+)\}", r"$\1", text)
    inside = " ".join(_BRACES.sub("", found) for found in _BRACKETS.findall(plain))
    return [(f"${number}", dtypes[int(number)]) for number in _PLACE.findall(inside) if int(number) < len(dtypes)]


def is_address(dtype: DType) -> bool:
    """Return True for the dtypes that an address can have: integers of 32 and 64 bits."""
    return dtype.is_integer and dtype.bits >= 32


class MmaSync(Pure):
    """``mma.sync``: one product of a warp. Operands: this lane's registers of A, of B and of C; results: those of D.

    Elements narrower than 32 bits share u32 registers, the first one lowest; wider ones have one each. `layout.mma`
    lists the products, `layout.fragments` says which lane holds what. (PTX ISA: mma.)
    """

    name = "ptx.mma_sync"
    scope, alike = "whole warp", ()
    varies, nan = "thread", "packed"
    cause = HELD
    called = "ptx.mma_sync()"
    values = operands(0)
    shape = attribute(str)
    a, b, acc = attribute(DType), attribute(DType), attribute(DType)

    @property
    def row(self) -> MmaRow:
        """The kind of product."""
        shape = SHAPES.get(self.shape)
        row = find_row(shape, self.a.name, self.b.name, self.acc.name) if shape is not None else None
        return self.found(row, f"no product {self.shape} of {self.a} and {self.b} into {self.acc}")

    def registers(self) -> _Registers:
        """Register types of A, B and C."""
        return _registers(self.row)

    def split(self) -> tuple[list[Value], list[Value], list[Value]]:
        """The registers of A, of B and of C."""
        a, b, _ = (len(types) for types in self.registers())
        return self.operands[:a], self.operands[a : a + b], self.operands[a + b :]

    def infer(self) -> Sequence[Type]:
        return self.registers()[2]

    def verify(self) -> None:
        a, b, acc = self.registers()
        wanted = [*a, *b, *acc]
        self.require([v.type for v in self.operands] == wanted, f"takes {', '.join(map(str, wanted))}")


_Registers = tuple[tuple[DType, ...], tuple[DType, ...], tuple[DType, ...]]


@cache
def _registers(row: MmaRow) -> _Registers:
    acc = FragmentLayout(row.shape, "acc", (1, 1))
    operands = (acc.a, row.a), (acc.b, row.b), (acc, row.acc)
    a, b, c = (FragmentType(DTYPES[dtype], layout.tile, layout).registers for layout, dtype in operands)
    return a, b, c
