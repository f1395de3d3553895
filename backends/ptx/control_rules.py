"""Structured control flow as branches and phis: blocks first, then phis from block arguments."""

from __future__ import annotations

from typing import Any, Sequence

from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.types import I1, I32, integer, llvm_type
from tiledsl.ir.core import Value
from tiledsl.ir.ops import control
from tiledsl.passes.analysis.constants import integer as integer_of
from tiledsl.passes.analysis.intervals import Intervals

LIKELY = (1 << 20, 1)
"""Weights of the two blocks of an `if` that is likely."""


def _phis(lw: Lowering, values: Sequence[Value], *incoming: tuple[Sequence[Any], Any]) -> list[Any]:
    """One phi for each of `values`, fed from (LLVM values, block) pairs."""
    phis = [lw.b.phi(llvm_type(value.type)) for value in values]
    for sources, block in incoming:
        _feed(phis, sources, block)
    return phis


def _feed(phis: Sequence[Any], sources: Sequence[Any], block: Any) -> None:
    for phi, source in zip(phis, sources, strict=True):
        phi.add_incoming(source, block)


@lowers(control.If)
def lower_if(lw: Lowering, op: control.If) -> Sequence[Any]:
    """A likely side that does nothing gets no block, and the branch its weights. Of two blocks that end alike LLVM
    makes selections between their results, which take their time in any case; of one that is told to be rare, none.
    """
    skips = op.likely and len(op.then.ops) == 1
    then = None if skips else lw.b.new_block("then")
    orelse, merge = lw.b.new_block("else"), lw.b.new_block("endif")
    incoming: list[tuple[Sequence[Any], Any]] = []
    weights: dict[str, Any] = {}
    if skips:
        incoming.append((lw.operands(op.then.terminator.operands), lw.b.block))
        nodes = [integer(weight, I32) for weight in LIKELY]
        weights["prof"] = lw.module.add_metadata(["branch_weights", *nodes])
    lw.b.cbranch(lw.value(op.condition), then or merge, orelse, weights)
    for block, region in ((then, op.then), (orelse, op.orelse)):
        if block is None:
            continue
        lw.b.block = block
        # Loops in a block that is rarely run stay as short as they are written.
        outer, lw.rare = lw.rare, lw.rare or (op.likely and region is op.orelse)
        yielded = lw.operands(lw.lower_block(region).operands)
        lw.rare = outer
        incoming.append((yielded, lw.b.block))
        lw.b.branch(merge)
    lw.b.block = merge
    return _phis(lw, op.results, *incoming)


@lowers(control.For)
def lower_for(lw: Lowering, op: control.For) -> Sequence[Any]:
    """A loop that tests at its end: ``if lo < hi: do {...} while (i < hi - step; i += step)``.

    With ``>`` where the step is negative, and with the one or the other where that is only known at run time.

    Comparing with ``hi - step``, which saturates, keeps the induction variable from overflowing near
    the end of its range, so its addition is `nsw` whatever the bounds: LLVM then strength-reduces
    addresses as it does for C's signed loops.
    """
    b = lw.b
    lo, hi, step, *inits = lw.operands(op.operands)
    body, done = b.new_block("for"), b.new_block("endfor")
    last = _last(lw, op, hi, step)
    entry = b.block
    least, most = Intervals(lw.kernel).of(op.step)
    known = least > 0 or most < 0
    up = integer(least > 0, I1) if known else b.icmp("sgt", step, integer(0, step))

    def before(index: Any, end: Any) -> Any:
        return b.select(up, b.icmp("slt", index, end), b.icmp("sgt", index, end))

    enters = before(lo, hi)
    if not known:
        enters = b.and_(enters, b.icmp("ne", step, integer(0, step)))
    b.cbranch(enters, body, done)

    b.block = body
    phis = _phis(lw, op.body.args, ([lo, *inits], entry))
    lw.values.update(zip(op.body.args, phis, strict=True))
    yielded = lw.operands(lw.lower_block(op.body).operands)
    index, latch = phis[0], b.block
    _feed(phis, [b.add(index, step, nsw=True), *yielded], latch)
    unrolling = {"llvm.loop": _never_unrolled(lw)} if lw.rare else None
    b.cbranch(before(index, last), body, done, unrolling)

    b.block = done
    return _phis(lw, op.results, (inits, entry), (yielded, latch))


def _never_unrolled(lw: Lowering) -> Any:
    """Metadata of one loop, which LLVM passes on to ptxas as a pragma. Its first operand is itself."""
    node = lw.module.add_metadata([lw.module.add_metadata(["llvm.loop.unroll.disable"])])
    node.operands = (node, *node.operands)
    return node


def _last(lw: Lowering, op: control.For, hi: Any, step: Any) -> Any:
    """``hi - step``: an iteration at or past it is the last one."""
    lo, by = integer_of(op.lo), integer_of(op.step)
    if by == 1 or (lo is not None and lo >= 0 and by is not None and by > 0):
        return lw.b.sub(hi, step, nsw=True)  # the loop is entered only if hi > lo
    return lw.intrinsic("llvm.ssub.sat", hi.type, hi, step, types=[hi.type])


@lowers(control.While)
def lower_while(lw: Lowering, op: control.While) -> Sequence[Any]:
    b = lw.b
    test, body, done = (b.new_block(name) for name in ("while", "do", "endwhile"))
    inits, entry = lw.operands(op.operands), b.block
    b.branch(test)

    b.block = test
    phis = _phis(lw, op.before.args, (inits, entry))
    lw.values.update(zip(op.before.args, phis, strict=True))
    go_on, *passed = lw.operands(lw.lower_block(op.before).operands)
    b.cbranch(go_on, body, done)

    b.block = body
    lw.values.update(zip(op.after.args, passed, strict=True))
    yielded = lw.operands(lw.lower_block(op.after).operands)
    _feed(phis, yielded, b.block)
    b.branch(test)

    b.block = done
    return passed
