"""Mutants that nothing finds, with the reason that a person gave: why it is no fault."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.mutation.runner import Mutant

__all__ = ["MOST", "REASONS", "Reason"]

MOST = 40
"""Reasons that there may be."""


@dataclass(frozen=True)
class Reason:
    """Of the mutants whose `op`, operator (`by`), change (`what`), line and subject match these patterns in full."""

    text: str
    op: str
    by: str = ".*"
    what: str = ".*"
    line: str = ".*"
    subject: str = ".*"

    def fits(self, mutant: Mutant) -> bool:
        pairs = [(self.op, mutant.op), (self.by, mutant.by), (self.what, mutant.what), (self.line, mutant.line)]
        return all(re.fullmatch(a, b) for a, b in [*pairs, (self.subject, mutant.subject)])


REASONS: list[Reason] = [
    Reason(
        "the slots of the last uses of a tile are not filled again, or are released by the use after",
        r"ring\.drain",
    ),
    Reason(
        "as for the drain of a ring, past which it is moved",
        r"wgmma\.wait|matrix\.store",
        "move_.*",
        "(behind|before) ring.drain",
    ),
    Reason(
        "a block of hopper_roles has one tile: nobody waits for the last slots to be free",
        r"mbarrier\.arrive|ptx\.wgmma_wait",
        "delete|move_later",
        subject="hopper_roles",
    ),
    Reason(
        "one warp's wait for products is enough for its warpgroup, the block: benchmarks/results/wgmma_wait.md",
        r"gpu\.barrier|wgmma\.wait|ptx\.wgmma_wait",
        "delete|move_.*",
        subject="hopper_(tma|ring)",
    ),
    Reason(
        "one more step of k, of zeros: whatever is outside A and B is zero, and the accumulator of a right length",
        r"control\.for",
        "shift",
        r"operand 1 \+ 1",
    ),
    Reason(
        "one more step of k to prefetch, of zeros",
        r"arith\.(add|shr|sub|max|gt|lt)",
        "shift|wrong_operand",
        line="(hopper_ring.py:(54|61)|mma_pipelined.py:54|ffma_staged.py:235|mma.py:297)",
    ),
    Reason(
        "more work items than tiles: those outside C store nothing",
        r"arith\.(constant|add|shr|mul|floordiv)",
        line="(schedules.py:(154|163)|split_k.py:74|mma.py:289)",
    ),
    Reason(
        "threads, blocks or tiles are renumbered: each element still has one of them, or a race is found",
        r"arith\.(and|shr|shl|mod)",
        "shift|wrong_operand",
        line=r"(coarsen_1d|coarsen_2d|vectorized|maxas_64|maxas_256|double_buffered|staged_epilogue|ffma_order|"
        r"mma_blocking|mma_async|mma_tiles|mma_pipelined|ffma_staged|hopper_persistent|ffma).py:\d+",
    ),
    Reason(
        "the first step begins one term earlier, where A and B are zero",
        r"arith\.constant",
        "constant",
        "0 -> -1",
        subject="coarsen_.*",
    ),
    Reason(
        "the halves of the block load A and B the other way round",
        r"control\.if|arith\.eq",
        "negate|shift",
        subject="maxas_64",
    ),
    Reason(
        "in this specialisation rows are whole vectors, and no vector crosses an edge",
        r"tile\.(get|put)",
        "flip",
        "whole .*",
    ),
    Reason(
        "in this specialisation rows are whole vectors: the condition of the unguarded loop always holds; where it "
        "does not, all tiles are loaded with guards, which gives the same. See double_buffered, any rows",
        r"arith\.(eq|le|select|max)",
        line="ffma_tiles.py:167|double_buffered.py:(65|78)|ffma.py:41[78]",
    ),
    Reason(
        "in this specialisation rows are whole vectors of 8 elements: i + 1 < n where i < n",
        r"arith\.lt",
        "shift",
        line="mma_tiles.py:81|ffma_tiles.py:158",
    ),
    Reason(
        "the barrier keeps reads of the operands' tiles before writes of C's, and only C in global memory is between",
        r"gpu\.barrier",
        "move_later",
        r"behind control.if",
        "mma_tiles.py:102",
    ),
    Reason(
        "accesses to different stages of one tile",
        r"mem\.(load|ldmatrix)",
        "move_.*",
        r"(before|behind) mem.(store|cp_async)",
    ),
    Reason(
        "what the beginning or the end of a turn is moved past needs no turn",
        r"role\.(enter|leave)|gpu\.named_barrier",
        "move_.*",
        line=r"hopper_pingpong.py:\d+|hopper.py:(285|300)",
        subject="hopper_pingpong|hopper_fastest, add",
    ),
    Reason(
        "products of a warpgroup of its own need no turn",
        r"wgmma\.wait|ptx\.wgmma_wait",
        "move_.*",
        subject="hopper_pingpong",
    ),
    Reason(
        "the same value: the number of the warpgroup in a role that has two",
        r"arith\.cast",
        "wrong_operand",
        subject="hopper_(store|pingpong|fastest|persistent)",
    ),
    Reason(
        "the slot is that of the step, by whichever of the two it is computed",
        r"arith\.mod",
        "wrong_operand",
        subject="hopper_ring",
    ),
    Reason(
        "a tile is stored in three pieces by two buffers: in front of the first one all stores are waited for, and the "
        "second buffer is used once a tile",
        r"tma\.(store|wait_group|commit_group)|mem\.tma_store",
        subject="hopper_fastest",
    ),
    Reason(
        "other elements of the tile",
        r"matrix\.store",
        "move_.*",
        r"(before|behind) matrix.store",
    ),
    Reason(
        "the ring's mbarriers and the kernel's own one are initialised one after the other: one fence will do",
        r"fence\.mbarrier_init|gpu\.barrier",
        "delete|move_.*",
        line="mma.py:(213|254)",
    ),
    Reason(
        "the last fill, which is taken ahead, is not multiplied",
        r"tma\.load|mem\.tma_load",
        "off_by_one|shift",
        line="mma.py:26[67]",
    ),
    Reason(
        "bytes may be expected earlier: the slot before is released only when this one has been taken",
        r"mbarrier\.(wait|expect_tx)|tma\.wait_group",
        "move_.*",
        line="mma.py:(22[45]|265)",
    ),
    Reason(
        "the same wait is for the groups of A and of B",
        r"async\.(wait|copy|commit_group)",
        "move_earlier",
        subject="mma_(in_flight|staged)",
    ),
    Reason(
        "the loads are of the slot that is taken next, and freed later; or the wait for it comes earlier",
        r"ring\.(take|free)|mem\.ldmatrix|mbarrier\.wait|fence\.proxy_async",
        "move_.*",
        r"(before|behind) (matrix.load|mem.ldmatrix|mbarrier.wait)",
        r"mma.py:(117|19[57])",
    ),
    Reason(
        "a lane overwrites what it has itself read of C's tile",
        r"gpu\.barrier",
        "move_earlier",
        "before control.if",
        "(mma.py:303|mma_pipelined.py:59|mma_staged.py:39)",
    ),
    Reason(
        "between two uses of a buffer is the barrier of the piece that uses the other one, or a turn of the instances",
        r"gpu\.(named_)?barrier|matrix\.store|mem\.stmatrix",
        "delete|move_.*",
        line=r"hopper.py:1(08|10)",
        subject="hopper_fastest, add",
    ),
    Reason(
        "instances store by turns, so that both may use the same buffers",
        r"role\.instance",
        "delete",
        subject="hopper_fastest, add",
    ),
]
