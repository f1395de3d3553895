"""Debugging from inside a kernel."""

from __future__ import annotations

from tiledsl.ir.core import Op, attribute, operand, operands
from tiledsl.ir.facts import NOTHING
from tiledsl.ir.types import BOOL, DType


class _Debug(Op):
    touches, sync, scope, features = (), NOTHING, "thread", ()


class Print(_Debug):
    """``print("x =", x)``: `format` has one ``{}`` an operand; a line a thread, in no fixed order."""

    name = "debug.print"
    stays = "io"
    called = "print()"
    format = attribute(str)
    values = operands(0)

    def verify(self) -> None:
        self.require(self.format.count("{}") == len(self.operands), "one {} an operand")
        plain = all(isinstance(v.type, DType) and not v.type.is_matrix for v in self.operands)
        self.require(plain, "prints scalars that need no conversion")


class Assert(_Debug):
    """``assert_(condition, message)``: stops the launch with `message` if a thread finds it false."""

    name = "debug.assert"
    stays = "guard"
    called = "assert_()"
    message = attribute(str, "")
    condition = operand(0, BOOL)


class Breakpoint(_Debug):
    """Opens a debugger on the emulator, with the operands shown under `names`. No code on a GPU."""

    name = "debug.breakpoint"
    stays = "io"
    called = "breakpoint()"
    names = attribute[tuple[str, ...]](tuple, (), of=str)
    values = operands(0)

    def verify(self) -> None:
        self.require(len(self.names) == len(self.operands), "one name an operand")
