"""Debugging from inside a kernel."""

from __future__ import annotations

from tiledsl.ir.core import Op, attribute, operand
from tiledsl.ir.types import BOOL, DType

__all__ = ["Assert", "Breakpoint", "Print"]


class Print(Op):
    """``print("x =", x)``: `format` has one ``{}`` an operand; a line a thread, in no fixed order."""

    name = "debug.print"
    effects = frozenset({"io"})
    variadic = True
    format = attribute(str)

    def verify(self) -> None:
        self.require(self.format.count("{}") == len(self.operands), "one {} an operand")
        plain = all(isinstance(v.type, DType) and not v.type.is_matrix for v in self.operands)
        self.require(plain, "prints scalars that need no conversion")


class Assert(Op):
    """``assert_(condition, message)``: stops the launch with `message` if a thread finds it false."""

    name = "debug.assert"
    effects = frozenset({"io"})
    message = attribute(str, "")
    condition = operand(0)

    def verify(self) -> None:
        self.require(self.condition.type == BOOL, "the condition is not a bool")


class Breakpoint(Op):
    """Opens a debugger on the emulator, with the operands shown under `names`. No code on a GPU."""

    name = "debug.breakpoint"
    effects = frozenset({"io"})
    variadic = True
    names = attribute[tuple[str, ...]](tuple, (), of=str)

    def verify(self) -> None:
        self.require(len(self.names) == len(self.operands), "one name an operand")
