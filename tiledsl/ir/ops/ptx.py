"""Raw PTX."""

from __future__ import annotations

from typing import Sequence

from tiledsl.ir.core import Op, attribute
from tiledsl.ir.types import DType, Type

__all__ = ["Inline"]


class Inline(Op):
    """PTX text, as ``ptx.inline("lop3.b32 $0, $1, $2, $3, 0xe8;", u32, a, b, c)``.

    `text` names results, then operands, as $0, $1, ...; ``${:uid}`` makes a label unique.
    `outputs`: result dtypes. `volatile`: it does more than compute its results, so it is kept and
    stays in order. `convergent`: control flow around it is not changed.
    `emulate`: key into `Kernel.externals` of a function from NumPy arrays (one a operand) to the
    result arrays; empty means that the emulator reports an error at this line.
    """

    name = "ptx.inline"
    text = attribute(str)
    outputs = attribute[tuple[DType, ...]](tuple)
    volatile = attribute(bool, False)
    convergent = attribute(bool, False)
    emulate = attribute(str, "")

    def infer(self) -> Sequence[Type]:
        return self.outputs

    @property
    def is_pure(self) -> bool:
        return not (self.volatile or self.convergent)

    def verify(self) -> None:
        self.require(all(isinstance(v.type, DType) for v in self.operands), "operands are scalars")
