"""What the emulator can find: every code with its meaning, the usual fix, and a few lines that do it wrong.

A code never changes its meaning, and none is used again. T1xx: accesses that nothing orders; T2xx: data that is not
there; T3xx: asynchronous work; T4xx: barriers; T5xx: what no GPU executes; T9xx: what the emulator does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tiledsl import refusals
from tiledsl.errors import UsageError
from tiledsl.refusals import Kind

__all__ = ["CHECKS", "CODES", "EDGES", "EVERYTHING", "KINDS", "Kind", "Selection", "explain", "selected"]


EDGES = {
    "barrier": "a barrier() of the block",
    "syncwarp": "a syncwarp()",
    "cluster-barrier": "ptx.cluster_arrive() and ptx.cluster_wait()",
    "release-acquire": "a release that the other acquires",
    "scope": "a scope that includes the other thread",
    "proxy-fence": "a proxy fence",
    "init-fence": "ptx.fence_mbarrier_init()",
    "wgmma-fence": "ptx.wgmma_fence()",
    "mbarrier-wait": "a wait for the mbarrier that counts the copy",
    "copy-wait": "a wait for the copy",
    "read-wait": "a wait for TMA or wgmma to have read",
    "store-wait": "a wait for the store by TMA",
    "product-wait": "a wait for the product",
    "commit": "a commit of the work",
}
"""What `Finding.missing` names."""

_TABLE = {
    "T101": (
        "race in shared memory",
        "Two threads access the same bytes of a tile, at least one of them writes, and nothing orders the two.",
        "put a barrier() between the two; within a warp a syncwarp(); or let the one wait for the other at an mbarrier",
        "S[t] = x\ny = S[63 - t]  # no barrier() since S was written",
    ),
    "T102": (
        "race in global memory",
        "Two threads access one element of a tensor, at least one of them writes, and nothing orders the two.",
        "let one thread write each element; or put a barrier() between threads of a block, a release and an acquire "
        "between blocks",
        'part[b] = x\ndone.atomic_add(0, 1)  # relaxed: give it order="release", and the reader order="acquire"',
    ),
    "T103": (
        "scope too narrow",
        "Two atomic operations on one element, and the scope of one of them leaves out the other's thread.",
        'give both a scope that includes the other thread: scope="gpu" for those of all blocks',
        'X.atomic_add(0, 1, scope="cta")  # by threads of several blocks',
    ),
    "T104": (
        "no proxy fence",
        "TMA or wgmma touch shared memory that threads have written, or TMA overwrites what they have read, and these "
        "threads have made no proxy fence since.",
        "let the threads execute ptx.fence_proxy_async() behind their accesses, before the barrier",
        "S[i, j] = x\nbarrier()  # ptx.fence_proxy_async() is missing before it\nstore_tma(S, C[m, n])",
    ),
    "T105": (
        "global memory by two proxies",
        "TMA reads or overwrites what threads have written to global memory in the same launch, or in one that runs at "
        "the same time, with no proxy fence for global memory between the two.",
        'let the thread that starts TMA execute ptx.fence_proxy_async("global") after it has waited for them; or let '
        "one of the two access it in the way of the other, or in another launch",
        "A[m, k] = x\nbarrier()\ntma_load(A[tile_m, tile_k], S)",
    ),
    "T106": (
        "data has not arrived",
        "A thread accesses bytes that an asynchronous copy is still writing.",
        "wait for the copy's group, or for the mbarrier that counts its bytes; then others need a barrier()",
        "ptx.cp_async(S, i, A, j, bytes=16)\nptx.commit_group()\nx = S[i]  # ptx.wait_group(0) is missing",
    ),
    "T107": (
        "asynchronous access goes on",
        "Bytes are accessed that TMA, wgmma or cp.async may still read or write.",
        "wait for it (acc.wait(), tma_wait(0)), and let others know by a barrier or an mbarrier",
        "store_tma(S, C[m, n])\ntma_commit()\nS[i, j] = x  # tma_wait(0, read=True) is missing",
    ),
    "T108": (
        "mbarrier accessed as data",
        "Bytes are accessed at which a live mbarrier is.",
        "leave mbarriers to their own operations, and let no tile lie over them",
        "ptx.mbarrier_init(bars, 0, count=1)\nbars[0] = u64(0)",
    ),
    "T201": (
        "uninitialised read",
        "A thread reads bytes of shared memory that no thread of its block has written.",
        "write the tile before it is read; shared memory does not start as zero on a GPU",
        "S = shared((64,), f32)\nX[t] = S[t]",
    ),
    "T202": (
        "read through another tile",
        "A thread reads bytes that were last written through a tile that lies over the one it reads.",
        "read a tile for the last time before the one over= it is written, or leave out over=",
        "Q = shared((64,), f32, over=S)\nQ[t] = x\nbarrier()\ny = S[t]",
    ),
    "T203": (
        "wrong sum",
        "In exact arithmetic (algebra=), where no addition rounds, an element differs from the reference.",
        "look for terms that are left out, added twice, or multiplied with those of another place",
        "for k in range(K - 1):  # the last term of k is left out\n    acc += A[m, k] * B[k, n]",
    ),
    "T204": (
        "element never written",
        "An array that the caller left empty (unwritten=) is written by the kernel, but not all of its elements are.",
        "write them, or do not say that the array holds nothing yet",
        "if i < N - 1:  # the last element is left out\n    Y[i] = X[i]",
    ),
    "T205": (
        "missing lane",
        "A thread uses the undefined value of a shuffle that reads a lane which the block does not have, in a last "
        "warp of fewer than 32 threads.",
        "let threads(...) be a multiple of 32; or take the value only where the lane is there, by width= or where()",
        "t = threads(40)\ns += shuffle_down(s, 16)  # warp 1 has lanes 0 to 7\nif t % 32 == 0:\n    Y[t // 32] = s",
    ),
    "T301": (
        "copy nobody waits for",
        "A block ends while an asynchronous copy to its shared memory may be under way.",
        "wait for the copy, also on the last iteration; or do not begin it",
        "tma_load(A[m, k], S)  # and no wait for its mbarrier",
    ),
    "T302": (
        "block ends while it is read",
        "A warp ends, and has not waited for TMA or wgmma, which may still read the block's shared memory.",
        "wait at the end: tma_commit(), tma_wait(0), or acc.wait()",
        "store_tma(S, C[m, n])\ntma_commit()  # tma_wait(0) is missing",
    ),
    "T303": (
        "copies pile up",
        "Copies are begun again and again, and nothing waits for them.",
        "wait for the copies inside the loop that begins them",
        "for k in range(K):\n    tma_load(A[m, k], S)",
    ),
    "T304": (
        "product in no group",
        "A wait for products does not cover one that no commit has put into a group.",
        "put ptx.wgmma_commit() behind the products",
        "acc = wgmma(S.a, S.b, acc)\nptx.wgmma_wait(0)  # ptx.wgmma_commit() is missing",
    ),
    "T305": (
        "work without its commit",
        "Work that commits to an mbarrier is begun by several threads of a warp, never committed, or never waited for.",
        "let the thread that begins it commit it to an mbarrier, and wait there before the block ends",
        "",
    ),
    "T306": (
        "registers without a fence",
        "A product by wgmma uses registers that threads have written, with no wgmma.fence since.",
        "put ptx.wgmma_fence() before the first product, and behind writes of its registers",
        "a = load_fragment(S.a, layout)\nacc = wgmma(a, S.b, acc)  # ptx.wgmma_fence() is missing",
    ),
    "T307": (
        "accumulator in flight",
        "A register of a product is used before the product was waited for.",
        "wait for the accumulator first: acc.wait()",
        "acc = wgmma(S.a, S.b, acc)\nstore(acc, C[m, n])",
    ),
    "T401": (
        "deadlock",
        "All warps that have not ended wait, and nothing can let one of them go on.",
        "count the arrivals and bytes of every phase, and the phases; let all threads execute the same barriers",
        "if t < 32:\n    ptx.mbarrier_wait(bar, 0, parity=0)  # nobody arrives at bar",
    ),
    "T402": (
        "run does not end",
        "The run was stopped after the most loop iterations that it may have; what follows was not looked at.",
        "if it is only long, set TILEDSL_MAX_STEPS, or check a smaller problem",
        "while True:\n    i += 1",
    ),
    "T403": (
        "spins forever",
        "A loop waits for a value that no running thread will write.",
        "check that what the loop waits for is written, under every order of the warps",
        "while flag.atomic_load(0) == 0:  # nobody stores to flag\n    pass",
    ),
    "T404": (
        "too many arrivals",
        "More arrive at an mbarrier than a phase of it waits for.",
        "wait for a phase before arriving for the next one, or let it count as many arrivals as there are",
        "ptx.mbarrier_init(bar, 0, count=1)\nbarrier()\nptx.mbarrier_arrive(bar, 0)  # by all threads",
    ),
    "T405": (
        "no mbarrier there",
        "An mbarrier is used that was not initialised.",
        "initialise it before, and let all who use it wait for that with a barrier()",
        "bar = shared((1,), u64)\nptx.mbarrier_arrive(bar, 0)",
    ),
    "T406": (
        "mbarrier initialised twice",
        "An mbarrier that is live is initialised again, or by several threads.",
        "let one thread initialise it, once",
        "ptx.mbarrier_init(bar, 0, count=1)  # by all threads",
    ),
    "T407": (
        "initialisation not known",
        "A warp uses an mbarrier, and nothing orders that behind its initialisation.",
        "put a barrier() behind the initialisation (of the cluster, if it uses the mbarrier)",
        "if t == 0:\n    ptx.mbarrier_init(bar, 0, count=1)\nptx.mbarrier_wait(bar, 0, parity=0)",
    ),
    "T408": (
        "initialisation without a fence",
        "TMA or another block uses an mbarrier whose initialisation was not fenced.",
        "put ptx.fence_mbarrier_init() behind the initialisation, before the barrier",
        "if t == 0:\n    ptx.mbarrier_init(bar, 0, count=1)\nbarrier()",
    ),
    "T409": (
        "waiter overtaken",
        "A warp waits for a phase, and the next one has ended before it could see that: on a GPU it waits for ever.",
        "let no phase end before all have waited for the one before it",
        "for i in range(4):\n    ptx.mbarrier_arrive(bar, 0)  # and waits for nobody",
    ),
    "T410": (
        "wrong number of bytes",
        "A phase of an mbarrier expects other bytes than come.",
        "let expect_tx say how many bytes the loads of the phase bring",
        "ptx.mbarrier_expect_tx(bar, 0, bytes=1024)  # the load brings 2048",
    ),
    "T411": (
        "too many bytes in a phase",
        "A phase of an mbarrier counts more bytes than it can.",
        "use smaller tiles, or several mbarriers",
        "ptx.mbarrier_expect_tx(bar, 0, bytes=1 << 21)",
    ),
    "T412": (
        "named barrier of two sizes",
        "Threads that meet at a named barrier give different numbers of threads.",
        "let all that meet there give the same number",
        "if warp_id() == 0:\n    ptx.named_barrier(1, threads=64)\nelse:\n    ptx.named_barrier(1, threads=96)",
    ),
    "T413": (
        "named barrier too small",
        "More threads arrive at a named barrier than it waits for.",
        "use another number for other threads, or count them all",
        "ptx.named_barrier(1, threads=64)  # by 128 threads",
    ),
    "T414": (
        "named barrier without a waiter",
        "All threads arrive at a named barrier, and none of them waits: who comes later waits for the next round.",
        "let somebody wait",
        "ptx.named_barrier(1, threads=64, wait=False)  # by all 64",
    ),
    "T415": (
        "part of a warp",
        "Only some lanes of a warp reach an operation that all execute together, or the warp has fewer than 32.",
        "move it out of the condition that the lanes do not share; let threads(...) be a multiple of 32",
        "if t < 5:\n    x = shuffle_xor(x, 1)",
    ),
    "T416": (
        "block has ended",
        "A block reaches the shared memory of another one of its cluster, which has ended.",
        "end the kernel with a barrier of the cluster",
        "ptx.mbarrier_arrive(bar, 0, rank=1)  # block 1 waits for nothing",
    ),
    "T417": (
        "block may end too early",
        "Nothing keeps a block from ending before another one of its cluster arrives at an mbarrier in it.",
        "end the kernel with a barrier of the cluster, or wait for all arrivals",
        "ptx.mbarrier_arrive(bar, 0, rank=1)  # as the last statement",
    ),
    "T418": (
        "named barrier used again too early",
        "A warp arrives at a named barrier, and nothing orders that behind the end of the round before: under "
        "another schedule the arrival counts in that one.",
        "let the warp wait for a round before it arrives for the next one, or use another number",
        "for i in range(4):\n    ptx.named_barrier(1, threads=64, wait=warp_id() == 0)  # warp 1 waits for nobody",
    ),
    "T419": (
        "arrival in another phase",
        "A warp arrives at an mbarrier, or begins a copy that it counts, and nothing orders that behind the end of the "
        "phase before: under another schedule it counts in that one.",
        "let it wait for a phase before it arrives for the next one",
        "for i in range(4):\n    ptx.mbarrier_arrive(full, 0)  # and waits for nobody",
    ),
    "T420": (
        "wait for the phase before",
        "A warp waits for a phase of an mbarrier, and nothing orders that behind the end of the phase before, whose "
        "parity is that of the phase before it: under another schedule the wait ends at once.",
        "let each wait for one phase after the other",
        "ptx.mbarrier_wait(full, 0, parity=1)  # for the second phase, without having waited for the first",
    ),
    "T421": (
        "waiter may be overtaken",
        "A warp waits for a phase of an mbarrier, and no arrival of the next phase comes after that: under another "
        "schedule the next phase ends before the warp has seen this one, and it waits for ever.",
        "let no phase end before all have waited for the one before it",
        "for i in range(4):  # two warps wait, and one of them says so\n    ptx.mbarrier_wait(full, 0, parity=i % 2)\n"
        "    if warp_id() == 1:\n        ptx.mbarrier_arrive(empty, 0)",
    ),
    "T422": (
        "second arrival at a cluster's barrier",
        "A warp arrives at the barrier of its cluster, and has not waited there since it arrived before: it may count "
        "for another one.",
        "wait once behind each arrival: ptx.cluster_arrive(), ptx.cluster_wait()",
        "ptx.cluster_arrive()\nptx.cluster_arrive()",
    ),
    "T423": (
        "more blocks than the GPU holds",
        "The grid has more blocks than the GPU holds at once. All that have started wait for some that can start only "
        "when one of them has ended.",
        "launch no more blocks than that, each with a loop over its share of the work; or let a block wait only for "
        "blocks that have started: each takes a number by an atomic_add, and waits for lower ones",
        "while flag.atomic_load(b + 1) == 0:  # of 300 blocks of 1024 threads an H200 holds 264\n    pass",
    ),
    "T501": (
        "out of bounds",
        "An access is outside its tensor or tile.",
        "guard the access (A.get, A.put) or correct the index",
        "Y[i] = X[i + 1]  # i goes up to the last element",
    ),
    "T502": (
        "misaligned access",
        "The address of an access is not a multiple of the bytes that are accessed at once.",
        "make the address a multiple of them, or access fewer elements at once",
        "x = X.load(i + 1, vec=16)",
    ),
    "T503": (
        "write to read-only memory",
        "The kernel writes to an array that is read-only.",
        "pass a writable array",
        "X[i] = 0  # X.flags.writeable is False",
    ),
    "T504": (
        "pointer into several tensors",
        "One access goes to several tensors, or to none of its dtype.",
        "derive the pointer from one tensor in every lane",
        "",
    ),
    "T505": (
        "box that TMA cannot move",
        "A box does not begin at a multiple of 16 bytes, has rows of other sizes, or is stored before a tensor.",
        "begin at a multiple of 16 bytes, use rows of whole 16 bytes, and store from coordinates of 0 on",
        "tma_load(A[m, tile(1, 4)], S)  # of bf16: 8 bytes into the row",
    ),
    "T506": (
        "assertion failed",
        "The condition of an assert_ is false in some thread.",
        "correct what the assertion checks",
        'assert_(0 <= at < M, "points outside X")',
    ),
    "T507": (
        "size of a cp.async",
        "A cp.async reads fewer than 0 bytes, or more than it writes.",
        "read 0 to as many bytes as it writes",
        "",
    ),
    "T508": (
        "operand out of range",
        "A rank that the cluster does not have, a named barrier that is none, a parity other than 0 and 1, or "
        "registers in the wrong direction.",
        "correct the operand",
        "ptx.mbarrier_arrive(bar, 0, rank=2)  # in a cluster of two blocks",
    ),
    "T509": (
        "too much shared memory",
        "A block has more shared memory than a block can have.",
        "use smaller tiles",
        "S = shared((512, 512), f32)",
    ),
    "T510": (
        "operand of wgmma",
        "A descriptor differs within a warpgroup, points outside shared memory, or begins inside a pattern.",
        "let operands begin where the swizzle's pattern does, and compute them alike in all threads",
        "",
    ),
    "T901": (
        "not emulated",
        "The emulator cannot run an operation, so what follows was not looked at.",
        "pass emulate=f to ptx.inline, a function from NumPy arrays to the result arrays",
        'x = ptx.inline("neg.f32 $0, $1;", f32, x)',
    ),
    "T902": (
        "the emulator fails",
        "A bug of the emulator, or IR written by hand that breaks a rule of the op.",
        "report it with the kernel",
        "",
    ),
    "T903": (
        "too large to emulate",
        "The run needs more memory or a deeper stack than there is; what follows was not looked at.",
        "check a smaller problem",
        "",
    ),
    "T904": (
        "wrong function as emulate=",
        "A function given as emulate= does not take one array per operand of the PTX, or return one per output.",
        "take one array per operand; return one per output, of the operands' shape and of the output's dtype",
        'x = ptx.inline("neg.f32 $0, $1;", f32, x, emulate=negated)  # def negated(x): return x.sum()',
    ),
}

KINDS = {code: Kind(code, *row) for code, row in _TABLE.items()}
"""By code."""

INCOMPLETE = ("T402", "T901", "T903")
"""They say nothing about the kernel, but that the rest of it was not run."""

OWN_FAULT = ("T902", "T904")
"""They are no findings either: the check itself failed."""


# -- what is checked -------------------------------------------------------------------------------

CHECKS: Mapping[str, tuple[str, ...]] = {
    "shared": ("T101", "T104", "T106", "T107", "T108", "T301", "T302", "T304", "T305", "T306"),
    "global": ("T102", "T103", "T105", "T107"),
    "uninitialised": ("T201", "T202", "T204", "T205"),
    "registers": ("T306", "T307"),
    "barriers": ("T407", "T408", "T410", "T417", "T418", "T419", "T420", "T421"),
    "coverage": ("",),
}
"""What can be turned off, each with the codes that it finds. What has no check here costs nothing, or the emulator
cannot go on behind it. coverage: which lines no thread executed."""


class Selection(NamedTuple):
    """The checks that are on, each with each of its codes that is."""

    on: frozenset[tuple[str, str]]

    def __contains__(self, name: object) -> bool:
        """Is this check on, or the code in some check? Codes that no check has are always on."""
        return any(name in pair for pair in self.on) or (name in KINDS and name not in CODES)

    @property
    def off(self) -> tuple[str, ...]:
        """Checks that are off, and the codes that are off in the others."""
        checks = [check for check in CHECKS if check not in self]
        codes = {code for check, codes in CHECKS.items() if check in self for code in codes}
        return (*checks, *sorted(code for code in codes if code not in self))


CODES = frozenset(code for codes in CHECKS.values() for code in codes)
"""Those that a run goes on behind."""
EVERYTHING = Selection(frozenset((check, code) for check, codes in CHECKS.items() for code in codes))


def selected(checks: Iterable[str] | None, without: Iterable[str] = ()) -> Selection:
    """`checks`, or all, but for those `without`. Each is a name of `CHECKS`, a code, or the beginning of codes: "T1".
    Raises ValueError, with a line "fix:"."""
    on = EVERYTHING.on if checks is None else frozenset[tuple[str, str]]().union(*map(_pairs, checks))
    return Selection(on.difference(*map(_pairs, without)))


def _pairs(name: str) -> frozenset[tuple[str, str]]:
    found = {pair for pair in EVERYTHING.on if name == pair[0] or (name[:1] == "T" and pair[1].startswith(name))}
    if not found and name in KINDS:
        problem = f"{name} ({KINDS[name].name}) is always looked for: it costs nothing, or a run cannot go on behind it"
    elif not found:
        problem = f"there is no check {name!r}"
    else:
        return frozenset(found)
    raise ValueError(f"{problem}\n  fix: name some of {', '.join(CHECKS)}, or codes: T101, or T1 for all that begin so")


def explain(code: str) -> str:
    """The text of ``python -m tiledsl error CODE``, also of what is refused before a kernel runs; without a code, all
    with their names. Raises UsageError for a code that there is not."""
    kinds = {**refusals.KINDS, **KINDS}
    if not code:
        return "\n".join(f"{kind.code}  {kind.name}" for kind in kinds.values())
    kind = kinds.get(code.upper())
    if kind is None:
        raise UsageError(f"there is no error {code}\n  fix: python -m tiledsl error lists all of them")
    lines = [f"{kind.code}: {kind.name}", "", kind.text, "", f"fix: {kind.fix}"]
    if kind.example:
        lines += ["", "for example", "", *(f"    {line}" if line else "" for line in kind.example.splitlines())]
    return "\n".join(lines)
