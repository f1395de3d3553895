"""Debugging from inside a kernel."""

from __future__ import annotations

from tiledsl.ir.core import Op, attribute, operand, operands
from tiledsl.ir.facts import NOTHING
from tiledsl.ir.types import BOOL, DType, PtrType


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


class Stamp(_Debug):
    """Notes the time at which each warp comes here, of the blocks of the first cluster, in a build that is measured
    (`passes.lower.stamps`). No other build has any.

    `site`: its number. `event`: the kernel begins or ends; the warp comes to a wait, or has waited; or it arrives.
    `at`: at what; "" for the kernel itself. The operands say which one it is: the mbarrier's place, with the rank of
    its block if it is another one's; of a named barrier what is added to `number`, if anything. Of a wait for
    asynchronous work, `work` says of which kind.
    """

    name = "debug.stamp"
    stays = "io"
    level = "thread"
    called = "a stamp"
    site = attribute(int, least=0)
    event = attribute(str, among=("begin", "end", "wait", "waited", "arrive"))
    at = attribute(str, "", among=("", "mbarrier", "named", "block", "cluster", "work"))
    number = attribute(int, 0, least=0)
    work = attribute(str, "")
    which = operands(0)

    def verify(self) -> None:
        kinds = ["at a place" if isinstance(v.type, PtrType) else str(v.type) for v in self.operands]
        taken: dict[str, tuple[list[str], ...]] = {
            "mbarrier": (["at a place"], ["at a place", "i32"]),
            "named": ([], ["i32"]),
        }
        self.require(kinds in taken.get(self.at, ([],)), f"a stamp at {self.at or 'nothing'} takes other operands")
