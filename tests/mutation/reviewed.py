"""Mutants that nothing finds, with the reason that a person gave: why it is no fault."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tiledsl.gemm
from tests.mutation.runner import Mutant

__all__ = ["MOST", "REASONS", "Reason"]

GEMM = Path(str(tiledsl.gemm.__file__)).parent
EXAMPLES = Path(__file__).parents[2] / "examples" / "gemm"
MOST = 40
"""Reasons that there may be."""


@dataclass(frozen=True)
class Reason:
    """Of the mutants whose `op`, operator (`by`), change (`what`), code and subject match these patterns in full. code:
    what `code_of` says of the op's line."""

    text: str
    op: str
    by: str = ".*"
    what: str = ".*"
    code: str = ".*"
    subject: str = ".*"

    def fits(self, mutant: Mutant) -> bool:
        pairs = [
            (self.op, mutant.op),
            (self.by, mutant.by),
            (self.what, mutant.what),
            (self.code, code_of(mutant.line)),
        ]
        return all(re.fullmatch(a, b) for a, b in [*pairs, (self.subject, mutant.subject)])


@cache
def code_of(line: str) -> str:
    """Of a line, named as "mma.py:213": the file, the line before and itself."""
    name, _, number = line.rpartition(":")
    file = next((folder / name for folder in (GEMM, EXAMPLES) if (folder / name).is_file()), None)
    if file is None:
        return line
    lines = file.read_text().splitlines()
    return f"{name}: {lines[int(number) - 2].strip()} / {lines[int(number) - 1].strip()}"


REASONS: list[Reason] = [
    Reason(
        "the slots of the last uses of a tile are not filled again, or are released by the use after",
        r"ring\.drain",
    ),
    Reason(
        "as for the drain of a ring, past which it is moved",
        r"wgmma\.wait|matrix\.store",
        "move_.*",
        "(after|before) ring.drain",
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
        "the barrier keeps reads of the operands' tiles before writes of C's, and only C in global memory is between",
        r"gpu\.barrier",
        "move_later",
        r"after control.if",
        r"mma_tiles.py: if beta != 0: / barrier\(\)",
    ),
    Reason(
        "accesses to different stages of one tile",
        r"mem\.(load|ldmatrix)",
        "move_.*",
        r"(before|after) mem.(store|cp_async)",
    ),
    Reason(
        "what the beginning or the end of a turn is moved past needs no turn",
        r"role\.(enter|leave)|gpu\.named_barrier",
        "move_.*",
        code=r"hopper_pingpong.py: .*|hopper.py: .* / (with r.turn\(.*|for t in work:)",
        subject="hopper_pingpong|hopper_fastest, add",
    ),
    Reason(
        "a tile is stored in three wide pieces by two buffers: in front of the first one all stores are waited for, "
        "and the second buffer is used once a tile",
        r"tma\.(store|wait_group|commit_group)|mem\.tma_store",
        subject="hopper_fastest",
    ),
    Reason(
        "the narrow piece's buffer is used once a tile, and stores are waited for in front of the first piece",
        r"gpu\.named_barrier",
        "delete|move_.*",
        code=r"hopper_stores.py: .* / store_tma\(y, to, via=narrow.*",
        subject="hopper_fastest",
    ),
    Reason(
        "other elements of the tile",
        r"matrix\.store",
        "move_.*",
        r"(before|after) matrix.store",
    ),
    Reason(
        "the ring's mbarriers and the kernel's own one are initialised one after the other: one fence will do",
        r"fence\.mbarrier_init|mbarrier\.init|gpu\.barrier",
        "delete|move_.*",
        code=r"mma.py: (ptx.fence_mbarrier_init\(\) / barrier\(\)|.* / ring = Ring\(.*)",
    ),
    Reason(
        "the last fill, which is taken ahead, is not multiplied",
        r"tma\.load|mem\.tma_load",
        "off_by_one|shift",
        code=r"mma.py: .* / tma_load\(as_stored\([AB]\[.*",
    ),
    Reason(
        "bytes may be expected earlier: the slot before is released only when this one has been taken",
        r"mbarrier\.(wait|expect_tx)|tma\.wait_group",
        "move_.*",
        code=r"mma.py: .* / (tma_wait\(0, read=True\)|ptx.mbarrier_expect_tx\(arrived, 0.*|with ring.fill\(\) as s:.*)",
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
        r"(before|after) (matrix.load|mem.ldmatrix|mbarrier.wait)",
        r"mma.py: .* / (return load_matrix\(S, layout\)|then = ring.take\(\)|ring.free\(now\))",
    ),
    Reason(
        "a lane overwrites what it has itself read of C's tile",
        r"gpu\.barrier",
        "move_earlier",
        "before control.if",
        r"mma(_pipelined|_staged)?.py: .* / store\((result.to|scaled)\(.*",
    ),
    Reason(
        "between the last piece of a tile and the first one of the next, which use the same buffer, are turns",
        r"gpu\.(named_)?barrier|matrix\.store|mem\.stmatrix",
        "delete|move_.*",
        code=r"hopper_stores.py: (size, threads, .* / barrier\(\)|if to.dtype.bytes == 2: / store_matrix\(x, via\))",
        subject="hopper_fastest, add",
    ),
    Reason(
        "instances store by turns, so that both may use the same buffers",
        r"role\.instance",
        "delete",
        subject="hopper_fastest, add",
    ),
]
