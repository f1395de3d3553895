"""What keeps a loop from being pipelined, each an error at the line that does it.

Producers run iterations ahead of the consumers. So nothing of an iteration may reach a later one's copies but the
loop's variable, and each tile is theirs alone: nobody else writes it, and nobody reads it outside the loop or before
it was copied.
"""

from __future__ import annotations

from tiledsl.errors import CompileError, CompileErrors
from tiledsl.ir.core import Op, Value
from tiledsl.ir.ops import async_copy, control, tile
from tiledsl.passes.analysis.called import called, name_of
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.pipelining.body import LoopBody, fills, memories, overlap

__all__ = ["check_loop"]


def check_loop(body: LoopBody) -> None:
    """Raises CompileErrors with all that is wrong."""
    checker = _Checker(body)
    checker.check_body()
    for copy in body.copies:
        checker.check_copy(copy)
    checker.check_tiles()
    if checker.errors:
        raise CompileErrors(checker.errors)


class _Checker:
    def __init__(self, body: LoopBody) -> None:
        self.body, self.op = body, body.op
        self.errors: list[CompileError] = []

    def error(self, op: Op, message: str, fix: str) -> None:
        if all((e.message, e.loc) != (message, op.loc) for e in self.errors):
            self.errors.append(CompileError(message, op.loc, fix))

    def check_body(self) -> None:
        """What the body may hold."""
        for op in self.body.inside:
            if isinstance(op, control.For) and op.stages:
                fix = "pipeline the inner one; the outer one stays a plain loop"
                self.error(op, "a pipelined loop inside a pipelined loop", fix)
            if _handles_groups(op):
                message = f"{called(op)} inside a pipelined loop, which commits and waits by itself"
                self.error(op, message, "leave it out; copy_async() is all that the body needs")
            if self.op.stages > 1 and _acquires(op):
                message = f"{called(op)} inside a pipelined loop, which lets this thread see what others wrote before"
                fix = "wait in front of the loop, or write a plain for, whose copies stay behind it"
                self.error(op, message + self.ahead(), fix)
            if isinstance(op, async_copy.Copy) and op.result.uses:
                message = "the token of copy_async() is used, but inside a pipelined loop the loop itself waits"
                self.error(op, message, "write copy_async(src, dst) as a statement")
            if isinstance(op, tile.Copy) and fills(op) and op not in self.body.copies:
                message = f"{called(op)} under an if or in an inner loop of a pipelined loop cannot begin ahead"
                fix = "copy in the loop's own body; past the edge of a tensor it gives zeros without a condition"
                self.error(op, message, fix)
        if not self.body.copies and not self.errors:
            message = "a pipelined loop that copies nothing to a shared tile, so there is nothing to begin ahead"
            self.error(self.op, message, "copy_async() what an iteration needs to a shared tile, or write a plain for")

    # -- producers -----------------------------------------------------------------------------

    def check_copy(self, copy: tile.Copy) -> None:
        """What the copy is made of, and what it reads, must be there when earlier iterations have not run."""
        what = f"a consumer that feeds its producer: {called(copy)} to {name_of(copy.dst.memory)}"
        blamed = self.body.blame(copy.operands)
        fix = "say where to copy from by the loop's variable and by what is known before the loop"
        if isinstance(blamed, Value):
            name = f"{blamed.name}, a value" if blamed.name else "a value"
            self.error(copy, f"{what} depends on {name} that one iteration hands to the next{self.ahead()}", fix)
        elif blamed is not None:
            self.error(copy, f"{what} depends on what line {blamed.loc.line} reads in the loop{self.ahead()}", fix)
        elif self.body.variable in self.body.slice(copy.dst.origin):
            message = f"where in {name_of(copy.dst.memory)} {called(copy)} goes changes from one iteration to the next"
            fix = "copy to the same place in every iteration; stages= keeps the tiles of several iterations apart"
            self.error(copy, message, fix)
        source = copy.src.memory
        writer = next((op for op in self.body.inside if self.writes(op, source)), None)
        if writer is not None:
            self.error(
                copy,
                f"{what} reads {name_of(source)}, which line {writer.loc.line} of the loop writes{self.ahead()}",
                "write the result to another tensor, or write a plain for with barriers",
            )

    def writes(self, op: Op, memory: Value) -> bool:
        return any(writes and (m is memory or overlap(m, memory)) for m, writes in memories(op))

    def ahead(self) -> str:
        count = self.op.stages - 1
        return f", but copies begin up to {count} iteration{'s' if count > 1 else ''} ahead" if count else ""

    # -- the tiles that they fill --------------------------------------------------------------

    def check_tiles(self) -> None:
        place = {op: position for position, op in enumerate(self.body.inside)}
        filled = {m: max(place[c] for c in self.body.copies if c.dst.memory is m) for m in self.body.tiles}
        for op in self.body.kernel.walk():
            for memory, writes in memories(op):
                if memory not in self.body.tiles:
                    self.check_neighbour(op, memory)
                elif op not in self.body.inside:
                    self.outside(op, memory)
                elif writes:
                    self.check_writer(op, memory)
                elif place[op] < filled[memory]:
                    message = f"{name_of(memory)} is read before it is copied: this would be the iteration before's"
                    self.error(op, message, "copy first; a pipelined loop has the tiles of its own iteration only")
        for position, copy in enumerate(self.body.copies):
            for other in self.body.copies[:position]:
                if other.dst.memory is copy.dst.memory and _meet(other, copy):
                    name, line = name_of(copy.dst.memory), other.loc.line
                    message = f"{name} is copied to twice in one iteration, first in line {line}"
                    self.error(copy, message, "let each copy fill a part of its own, or leave one out")

    def check_neighbour(self, op: Op, memory: Value) -> None:
        partner = next((t for t in self.body.tiles if overlap(t, memory)), None)
        if partner is not None and op in self.body.inside:
            name = name_of(memory)
            message = f"{name} lies on the bytes of {name_of(partner)}, which the pipelined loop is filling"
            self.error(op, message, f"give {name} bytes of its own in the loop: leave over= out")

    def outside(self, op: Op, memory: Value) -> None:
        name = name_of(memory)
        message = f"{name} is used outside the pipelined loop in line {self.op.loc.line} that fills it"
        self.error(op, message, f"use another tile, which may lie on the same bytes: shared(..., over={name})")

    def check_writer(self, op: Op, memory: Value) -> None:
        told = fills(op) if isinstance(op, tile.Copy) else isinstance(op, async_copy.Cp)
        if not told:
            message = f"{name_of(memory)} is written here and by the copies of the pipelined loop"
            self.error(op, message, "let the copies fill it, and write to another tile")


def _handles_groups(op: Op) -> bool:
    """Does it begin copies of a group, commit them or wait for them by itself?"""
    begins = any(access.done == "cp_async" for access in op.accesses())
    return begins or op.sync.commits == "cp_async" or op.sync.completes in ("cp_async", "token")


def _acquires(op: Op) -> bool:
    """Do copies behind it read what they must not read before it?"""
    return bool(op.sync.acquires)


def _meet(a: tile.Copy, b: tile.Copy) -> bool:
    """True if two copies to one tile are sure to write an element both."""
    sizes = [dict(zip(op.dst.axes, op.shape, strict=True)) for op in (a, b)]
    for axis, (x, y) in enumerate(zip(a.dst.origin, b.dst.origin, strict=True)):
        first, second = integer(x), integer(y)
        if x is y:
            continue
        if first is None or second is None:
            return False
        if first + sizes[0].get(axis, 1) <= second or second + sizes[1].get(axis, 1) <= first:
            return False
    return True
