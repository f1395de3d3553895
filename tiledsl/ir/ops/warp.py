"""Exchange between the lanes of a warp. (PTX ISA: shfl.sync, vote.sync; all 32 lanes take part.)"""

from __future__ import annotations

from tiledsl.arch import WARP
from tiledsl.ir.core import Op, attribute, operand
from tiledsl.ir.facts import NOTHING, by
from tiledsl.ir.types import BOOL, I32, U32, DType


class _Exchange(Op):
    touches, sync, features = (), NOTHING, ()
    scope, alike = "warp", ()
    nan = "sees"


class Shuffle(_Exchange):
    """The value of another lane. `lane` (i32): the source lane for mode "idx", the distance for
    "up" and "down", the mask for "xor". `width` (a power of two up to 32) splits the warp into
    groups; a source outside the group gives the lane's own value; "idx" takes `lane` modulo width.
    Any dtype of 1 to 8 bytes. The value of a lane that the block does not have is undefined.
    """

    name = "warp.shuffle"
    stays = "pinned"
    varies = "operands"
    called = "a shuffle"
    gives = ("value",)
    mode = attribute(str, among=("idx", "up", "down", "xor"))
    width = attribute(int, WARP, among=(1, 2, 4, 8, 16, WARP))
    value, lane = operand(0, DType), operand(1, I32)


class Uniform(_Exchange):
    """A u32 that all lanes of the warp agree on, as itself: told so, ptxas computes what follows from it once a warp.
    (PTX ISA: redux.sync.)"""

    name = "warp.uniform"
    stays = ""
    varies = "operands"
    called = "warp.uniform"
    gives = (U32,)
    value = operand(0, U32)


class Vote(_Exchange):
    """Over the predicates of all 32 lanes: "any" and "all" give a bool, "ballot" a u32 of one bit a lane.

    Lanes that have left the kernel, or that the block does not have, count as false (true for "all").
    """

    name = "warp.vote"
    stays = "pinned"
    varies = by(lambda op: "warp" if op.mode == "ballot" else "vote")  # warps may differ in how many lanes they have
    cause = "a vote of the warp"
    called = "a vote"
    gives = by(lambda op: (U32 if op.mode == "ballot" else BOOL,))
    mode = attribute(str, among=("any", "all", "ballot"))
    predicate = operand(0, BOOL)
