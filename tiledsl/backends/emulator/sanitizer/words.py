"""How hazards are told: of threads where barriers of whole blocks order them, of warps where roles do."""

from __future__ import annotations

from tiledsl.arch import WARP
from tiledsl.backends.emulator.hooks import AccessKind, LaunchInfo
from tiledsl.backends.emulator.sanitizer.shadow import DOES
from tiledsl.errors import HazardError
from tiledsl.ir.core import Op

__all__ = ["Words"]

_MEET = "let the one wait for the other: at an mbarrier, or at a barrier where both are"


class Words:
    """`simple`: nothing but barriers of whole blocks orders warps. `copies`: the ops that have brought anything."""

    def __init__(self, launch: LaunchInfo, first: int, simple: bool) -> None:
        self.launch, self.first, self.simple = launch, first, simple
        self.copies: set[Op] = set()
        self.unknown = " with no barrier between" if simple else ", with no wait between that lets it know"

    def meet(self, one_atomic: bool = False) -> str:
        """The fix. one_atomic: one of the two is atomic, the other is not."""
        return ("put a barrier() between the two" if self.simple else _MEET) + ", or make both atomic" * one_atomic

    def did(self, what: str) -> str:
        if self.simple:
            return {"read": "read", "wrote": "wrote", "copied": "copied to"}[what]
        return {"read": "has read", "wrote": "has written", "copied": "has filled"}[what]

    def other(self, warp: int, lane: int, own_warp: int, own_lane: int) -> str:
        """Who did the earlier access, of which `own_warp` and `own_lane` do the later one."""
        if not self.simple:
            return f"warp {warp}"
        same = (warp, lane % WARP) == (own_warp, own_lane)
        return "another thread" if same else self.thread(warp, lane)

    def thread(self, warp: int, lane: int) -> str:
        """lane: maybe with a flag above the bits of a lane."""
        return f"thread {self.launch.thread_index(warp * WARP + lane % WARP)}"

    def warp(self, row: int, warp: int) -> str:
        return f"warp {int(warp)} of block {self.launch.block_index(int(row) + self.first)}"

    def fail(self, op: Op, kind: AccessKind, block: int, warp: int, lane: int, byte: str, text: str, fix: str) -> None:
        """Raise HazardError. lane: -1 if it is not one thread that accesses."""
        who = self.warp(block - self.first, warp)
        if self.simple and lane >= 0:
            index = self.launch.block_index(block)
            who = f"{self.thread(warp, lane)} of block {index}"
        raise HazardError(f"race: {who} {DOES[kind]} {byte} at {op.loc}, {text}", op.loc, fix)
