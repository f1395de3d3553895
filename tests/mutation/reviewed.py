"""Mutants that nothing finds, each with a reason that a person gave: it is no fault, or it is beyond a stated limit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tiledsl.gemm
from tests.mutation.runner import Mutant

__all__ = ["MOST", "REASONS", "Reason"]

FOLDERS = (
    Path(str(tiledsl.gemm.__file__)).parent,
    Path(__file__).parents[2] / "examples" / "gemm",
    Path(__file__).parent,
)
"""The folders with the lines of mutated kernels: the library, the gallery, `kernels`."""
MOST = 40
"""The most reasons that there may be."""


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
    file = next((folder / name for folder in FOLDERS if (folder / name).is_file()), None)
    if file is None:
        return line
    lines = file.read_text().splitlines()
    return f"{name}: {lines[int(number) - 2].strip()} / {lines[int(number) - 1].strip()}"


REASONS: list[Reason] = [
    Reason(
        "the slots of the last uses of a tile are not filled again, or the next use releases them",
        r"ring\.drain",
    ),
    Reason(
        "it is moved past the drain of a ring, which is not needed there either",
        r"wgmma\.wait|matrix\.store",
        "move_.*",
        "(after|before) ring.drain",
    ),
    Reason(
        "a block of hopper_roles has one tile: nobody waits for the last slots to be free",
        r"mbarrier\.arrive|ptx\.wgmma_wait|arith\.ge",
        "delete|move_later|compares",
        code=r"hopper_roles.py: .* / (with ring.use\(in_flight=1\) as s:|store\(.*)",
        subject="hopper_roles",
    ),
    Reason(
        "measured, and not promised by PTX: one warp's wait for products is enough for its warpgroup, the block "
        "(benchmarks/results/wgmma_wait.md)",
        r"gpu\.barrier|wgmma\.wait|ptx\.wgmma_wait",
        "delete|move_.*|narrower",
        subject="hopper_(tma|ring)",
    ),
    Reason(
        "the barrier orders reads of the operands' tiles before writes of C's tile; between is only an access to C in "
        "global memory",
        r"gpu\.barrier",
        "move_later",
        r"after control.if",
        r"mma_tiles.py: if beta != 0: / barrier\(\)",
    ),
    Reason(
        "the two access different stages of one tile",
        r"mem\.(load|ldmatrix)",
        "move_.*",
        r"(before|after) mem.(store|cp_async)",
    ),
    Reason(
        "the beginning or the end of a turn is moved past an op that needs no turn",
        r"role\.(enter|leave)|gpu\.named_barrier",
        "move_.*",
        code=r"hopper_pingpong.py: .*|hopper.py: .* / (with r.turn\(.*|for t in work:)",
        subject="hopper_pingpong|hopper_fastest, add",
    ),
    Reason(
        "the turns of products and of stores change places, so that a tile begins when the one before it is stored",
        r"gpu\.named_barrier",
        "exchange",
        "number 4 <-> 6",
        r"hopper_pingpong.py: .* / with r.turn\(.*|hopper.py: .* / with r.turn\(.*",
        "hopper_pingpong|hopper_fastest, add",
    ),
    Reason(
        "two buffers store a tile in three wide pieces: the block waits for all stores before the first piece, and the "
        "second buffer is used once per tile",
        r"tma\.(store|wait_group|commit_group)|mem\.tma_store",
        subject="hopper_fastest",
    ),
    Reason(
        "the second of two buffers is used once per tile, and the block waits for all stores before the first piece; "
        "before the first tile nothing is stored",
        r"gpu\.named_barrier",
        "narrower|skips",
        code=r"hopper_stores.py: .* / store_tma\(y, to, via=matrix.*",
        subject="hopper_fastest",
    ),
    Reason(
        "the narrow piece's buffer is used once per tile, and the block waits for all stores before the first piece",
        r"gpu\.named_barrier",
        "delete|move_.*",
        code=r"hopper_stores.py: .* / store_tma\(y, to, via=narrow.*",
        subject="hopper_fastest",
    ),
    Reason(
        "the two store different elements of the tile",
        r"matrix\.store",
        "move_.*",
        r"(before|after) matrix.store",
    ),
    Reason(
        "the kernel initializes the ring's mbarriers and its own one after the other: one fence is enough",
        r"fence\.mbarrier_init|mbarrier\.init|gpu\.barrier",
        "delete|move_.*",
        code=r"mma.py: (ptx.fence_mbarrier_init\(\) / barrier\(\)|.* / ring = Ring\(.*)",
    ),
    Reason(
        "no product reads the last fill, which is loaded ahead",
        r"tma\.load|mem\.tma_load",
        "off_by_one|shift|exchange.*",
        code=r"mma.py: .* / tma_load\(as_stored\([AB]\[tile\(0, .*",
    ),
    Reason(
        "bytes may be expected earlier: the previous slot is released only after this one has been taken",
        r"mbarrier\.(wait|expect_tx)|tma\.wait_group",
        "move_.*",
        code=r"mma.py: .* / (tma_wait\(0, read=True\)|ptx.mbarrier_expect_tx\(arrived, 0.*|with ring.fill\(\) as s:.*)",
    ),
    Reason(
        "one wait covers the groups of A and of B",
        r"async\.(wait|copy|commit_group)",
        "move_earlier",
        subject="mma_(in_flight|staged)",
    ),
    Reason(
        "the loads read the slot that is taken next and freed later; or the wait for it comes earlier",
        r"ring\.(take|free)|mem\.ldmatrix|mbarrier\.wait|fence\.proxy_async",
        "move_.*",
        r"(before|after) (matrix.load|mem.ldmatrix|mbarrier.wait)",
        r"mma.py: .* / (return load_matrix\(S, layout\)|then = ring.take\(\)|ring.free\(now\))",
    ),
    Reason(
        "each lane overwrites only what it has read of C's tile itself",
        r"gpu\.barrier",
        "move_earlier",
        "before control.if",
        r"mma(_pipelined|_staged)?.py: .* / store\((result.to|scaled)\(.*",
    ),
    Reason(
        "turns separate the last piece of a tile from the first piece of the next, which uses the same buffer",
        r"gpu\.(named_)?barrier|matrix\.store|mem\.stmatrix",
        "delete|move_.*",
        code=r"hopper_stores.py: (size, threads, .* / barrier\(\)|if to.dtype.bytes == 2: / store_matrix\(x, via\))",
        subject="hopper_fastest, add",
    ),
    Reason(
        "instances store in turns, so that both may use the same buffers",
        r"role\.instance",
        "delete",
        subject="hopper_fastest, add",
    ),
    # -- mistakes in protocols, and kernels outside the gallery
    Reason(
        "a limit that docs/memory_model.md states: matrix operations and products, which whole warps execute, count as "
        "having waited if any lane has; these kernels read the slot by no other",
        r"mbarrier\.wait",
        "partly",
        "by even lanes only",
        subject="mma_fastest, TMA|hopper_.*",
    ),
    Reason(
        "the last iteration need not free its slot, nor fence it for TMA: it is not filled again",
        r"mbarrier\.arrive|fence\.proxy_async",
        "skips",
        "not in the last iteration",
        subject="hopper_.*|sent|by_hand",
    ),
    Reason(
        "a block has one tile, whose last slot is not filled again; another wait comes before the sums are read",
        r"ptx\.wgmma_wait",
        "skips",
        "not in the last iteration",
        subject="hopper_(tma|ring|roles|scaled|split)",
    ),
    Reason(
        "the last iteration loads a tile ahead that nobody reads",
        r"mem\.(cp_async|store)",
        "skips",
        "not in the last iteration",
        r"ffma_tiles.py: .* / S(\[k \+ i, w\] = |\.store\(k, w, ).*|"
        r"(ffma_staged.py: .* / |mma_tiles.py: .* / return \()copy_async\(.*",
        "double_buffered|staged_epilogue|ffma_order|fastest, .*|mma_(async|in_flight|staged|pipelined|fastest)",
    ),
    Reason(
        "the barrier orders the reads of an iteration before the writes of the next one, which the last does not have",
        r"gpu\.(barrier|sync_warp)",
        "skips",
        "not in the last iteration",
        r".*\.py: (acc.*|C\[b \* rows.*) / (barrier|syncwarp)\(\)",
        "shared_tiled|coarsen_.*|vectorized|maxas_.*|copied_by_warps",
    ),
    Reason(
        "the barrier comes before the reads of an iteration, in place of after the writes of the one before",
        r"gpu\.barrier",
        "past_previous",
        "before control.for",
        r"ffma_tiles.py: stash\(Bs.* / barrier\(\)",
    ),
    Reason(
        "a tile that ends at the edge takes the guarded path, which is right for every tile",
        r"arith\.le",
        "compares",
        "le -> lt",
        r"ffma_tiles.py: return True / .*",
    ),
    Reason(
        "the batch of a block is always less than the number of batches",
        r"arith\.lt",
        "compares",
        "lt -> le",
        r"ffma_staged.py: .* / copy_async\(.*",
        subject="fastest, staged",
    ),
    Reason(
        "the factors of a product change places",
        r"mem\.load",
        "exchange_operand",
        subject="naive",
    ),
    Reason(
        "a wait for the phase before the first one ends at once",
        r"arith\.gt",
        "compares",
        "gt -> ge",
        r"kernels.py: .* / if i > 1:",
        "sent",
    ),
    Reason(
        "a block has one tile, and its first fill waits for the phase before the first one, which ends at once",
        r"mbarrier\.wait",
        "skips",
        "not in the first iteration",
        r".* / with ring.fill\(\) as s:",
        "hopper_(roles|scaled|split|int4)",
    ),
    Reason(
        "what is left of a sum is positive in each iteration of its loop",
        r"arith\.max",
        "drops",
        "is its operand 0",
        r"ffma_tiles.py: .* / for k in range\(skip, minimum\(skip \+ steps, maximum\(depth \+ bk - k0, 0\)\)\):",
    ),
    Reason(
        "the thread that makes an mbarrier may arrive there before its fence, which others need",
        r"fence\.mbarrier_init|mbarrier\.expect_tx",
        "move_.*|past_.*",
        "(after|before) (fence.mbarrier_init|mbarrier.expect_tx)",
        subject="turned",
    ),
    Reason(
        "a limit that docs/memory_model.md states: an arrival in another block with the scope of a block orders shared "
        "memory, which is all that they exchange, and a wait of that scope counts as one of the cluster",
        r"mbarrier\.(arrive|wait)",
        "weaken",
        "reach cluster -> cta",
        subject="sent",
    ),
]
