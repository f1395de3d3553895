"""What keeps a loop from being pipelined, each an error at the line that does it.

Producers run iterations ahead of the consumers. So nothing of an iteration may reach a later one's copies but the
loop's variable, and each tile is theirs alone: nobody else writes it, and nobody reads it outside the loop or before
it was copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from tiledsl.errors import CompileError, CompileErrors
from tiledsl.ir.core import Op
from tiledsl.ir.ops import async_copy, control, tile
from tiledsl.passes.analysis.called import called, name_of
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.pipelining.body import LoopBody, fills, memories, overlap


def check_loop(body: LoopBody) -> None:
    """Raises CompileErrors with all that is wrong."""
    errors = {(error.loc, error.message): error for error in _errors(body)}
    if errors:
        raise CompileErrors(errors.values())


def _errors(body: LoopBody) -> Iterator[CompileError]:
    found = list(_in_body(body))
    yield from found
    if not body.copies and not found:
        message = "a pipelined loop that copies nothing to a shared tile, so there is nothing to begin ahead"
        fix = "copy_async() what an iteration needs to a shared tile, or write a plain for"
        yield CompileError(message, body.op.loc, fix, code="C607")
    for copy in body.copies:
        yield from _of_copy(body, copy)
    yield from _of_tiles(body)


def _in_body(body: LoopBody) -> Iterator[CompileError]:
    """What the body may hold."""
    for op in body.inside:
        if isinstance(op, control.For) and op.stages:
            fix = "pipeline the inner one; the outer one stays a plain loop"
            yield CompileError("a pipelined loop inside a pipelined loop", op.loc, fix, code="C607")
        if _handles_groups(op):
            message = f"{called(op)} inside a pipelined loop, which commits and waits by itself"
            fix = "leave it out; or leave pipelined() out, and place groups, waits and barriers yourself"
            yield CompileError(message, op.loc, fix, code="C607")
        if body.op.stages > 1 and op.sync.acquires:  # copies behind it read what they must not read before it
            message = f"{called(op)} inside a pipelined loop, which lets this thread see what others wrote before"
            fix = "wait in front of the loop, or write a plain for, whose copies stay behind it"
            yield CompileError(message + _ahead(body), op.loc, fix, code="C607")
        if isinstance(op, async_copy.Copy) and op.result.uses:
            message = "the token of copy_async() is used, but inside a pipelined loop the loop itself waits"
            yield CompileError(message, op.loc, "write copy_async(src, dst) as a statement", code="C607")
        if isinstance(op, tile.Copy) and fills(op) and op not in body.copies:
            message = f"{called(op)} under an if or in an inner loop of a pipelined loop cannot begin ahead"
            fix = "copy in the loop's own body; past the edge of a tensor it gives zeros without a condition"
            yield CompileError(message, op.loc, fix, code="C607")


def _ahead(body: LoopBody) -> str:
    count = body.op.stages - 1
    return f", but copies begin up to {count} iteration{'s' if count > 1 else ''} ahead" if count else ""


def _of_copy(body: LoopBody, copy: tile.Copy) -> Iterator[CompileError]:
    """What the copy is made of, and what it reads, must be there when earlier iterations have not run."""
    name, source = name_of(copy.dst.memory), copy.src.memory
    what = f"a consumer that feeds its producer: {called(copy)} to {name}"
    if blamed := body.blame(copy.operands):
        fix = "say where to copy from by the loop's variable and by what is known before the loop"
        yield CompileError(f"{what} depends on {blamed}{_ahead(body)}", copy.loc, fix, code="C607")
    elif body.variable in body.slice(copy.dst.origin):
        message = f"where in {name} {called(copy)} goes changes from one iteration to the next"
        fix = "copy to the same place in every iteration; stages= keeps the tiles of several iterations apart"
        yield CompileError(message, copy.loc, fix, code="C607")
    for op in body.inside:
        if any(writes and (m is source or overlap(m, source)) for m, writes in memories(op)):
            message = f"{what} reads {name_of(source)}, which line {op.loc.line} of the loop writes{_ahead(body)}"
            fix = "write the result to another tensor, or write a plain for with barriers"
            yield CompileError(message, copy.loc, fix, code="C607")
            break


def _of_tiles(body: LoopBody) -> Iterator[CompileError]:
    """The tiles that the copies fill are theirs alone."""
    place = {op: position for position, op in enumerate(body.inside)}
    filled = {m: max(place[c] for c in body.copies if c.dst.memory is m) for m in body.tiles}
    for op in body.kernel.walk():
        for memory, writes in memories(op):
            name = name_of(memory)
            if memory not in body.tiles:
                partner = next((t for t in body.tiles if overlap(t, memory)), None)
                if partner is not None and op in body.inside:
                    message = f"{name} lies on the bytes of {name_of(partner)}, which the pipelined loop is filling"
                    yield CompileError(
                        message, op.loc, f"give {name} bytes of its own in the loop: leave over= out", code="C607"
                    )
            elif op not in body.inside:
                message = f"{name} is used outside the pipelined loop in line {body.op.loc.line} that fills it"
                fix = f"use another tile, which may lie on the same bytes: shared(..., over={name})"
                yield CompileError(message, op.loc, fix, code="C607")
            elif writes:
                if not (fills(op) if isinstance(op, tile.Copy) else isinstance(op, async_copy.Cp)):  # told of before
                    message = f"{name} is written here and by the copies of the pipelined loop"
                    yield CompileError(
                        message, op.loc, "let the copies fill it, and write to another tile", code="C607"
                    )
            elif place[op] < filled[memory]:
                message = f"{name} is read before it is copied: this would be the iteration before's"
                fix = "copy first; a pipelined loop has the tiles of its own iteration only"
                yield CompileError(message, op.loc, fix, code="C607")
    for other, copy in combinations(body.copies, 2):
        if other.dst.memory is copy.dst.memory and _meet(other, copy):
            message = f"{name_of(copy.dst.memory)} is copied to twice in one iteration, first in line {other.loc.line}"
            yield CompileError(message, copy.loc, "let each copy fill a part of its own, or leave one out", code="C607")


def _handles_groups(op: Op) -> bool:
    """Does it begin copies of a group, commit them or wait for them by itself?"""
    begins = any(access.done == "cp_async" for access in op.accesses())
    return begins or op.sync.commits == "cp_async" or op.sync.completes in ("cp_async", "token")


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
