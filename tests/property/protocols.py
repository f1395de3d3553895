"""Protocols of mbarriers: what each warp does, one after the other. `explored` tries all interleavings; `protocol` is
the kernel that does the same."""

from __future__ import annotations

import random
from typing import NamedTuple

from tiledsl import (
    Const,
    Global,
    barrier,
    f32,
    grid,
    ptx,
    row_major,
    shared,
    threads,
    tile,
    tile_kernel,
    tma_load,
    u32,
    u64,
)
from tiledsl.dims import M, N

__all__ = ["Protocol", "Step", "damaged", "explored", "of_text", "protocol", "ring"]

BYTES = 1024
"""Of each copy."""


class Step(NamedTuple):
    """`does`: "arrive", "expect" (arrive, and expect the bytes of a copy), "copy" or "wait". `at`: which mbarrier."""

    does: str
    at: int
    parity: int = 0


class Protocol(NamedTuple):
    """`counts`: arrivals of a phase of each mbarrier. `warps`: the steps of each."""

    counts: tuple[int, ...]
    warps: tuple[tuple[Step, ...], ...]


@tile_kernel(arch="sm_90a")
def protocol(
    X: Global[f32, M, N], *, COUNTS: Const[tuple[int, ...]] = (1,), WARPS: Const[tuple[tuple[Step, ...], ...]] = ()
):
    """One lane of each warp does its steps."""
    grid(1)
    t = threads(32 * len(WARPS))
    bars, room = shared((len(COUNTS),), u64), shared((8, 32), f32, layout=row_major)
    if t == 0:
        for at, count in enumerate(COUNTS):
            ptx.mbarrier_init(bars, at, count=count)
        ptx.fence_mbarrier_init()
    barrier()
    for warp, steps in enumerate(WARPS):
        if t == 32 * warp:
            for does, at, parity in steps:
                if does == "arrive":
                    ptx.mbarrier_arrive(bars, at)
                elif does == "expect":
                    ptx.mbarrier_expect_tx(bars, at, bytes=BYTES)
                elif does == "copy":
                    tma_load(X[tile(0, 8), tile(0, 32)], room, mbarrier=(bars, at))
                else:
                    ptx.mbarrier_wait(bars, at, parity=u32(parity))


def of_text(counts: tuple[int, ...], *warps: str) -> Protocol:
    """a0: arrive at mbarrier 0; e0: expect; c0: copy; w01: wait with parity 1."""
    names = {"a": "arrive", "e": "expect", "c": "copy", "w": "wait"}
    steps = [[Step(names[each[0]], int(each[1]), int(each[2:] or 0)) for each in warp.split()] for warp in warps]
    return Protocol(counts, tuple(map(tuple, steps)))


def ring(rng: random.Random) -> Protocol:
    """Producers fill the stages of a ring, by copies or by arrivals, and consumers use them."""
    stages, producers, consumers, rounds = (rng.randint(1, most) for most in (3, 2, 2, 3))
    copied = rng.random() < 0.5
    counts = (producers,) * stages + (consumers,) * stages
    warps = list[tuple[Step, ...]]()
    for _ in range(producers):
        steps = list[Step]()
        for i in range(stages * rounds):
            stage, turn = i % stages, i // stages
            steps += [Step("wait", stages + stage, (turn + 1) % 2)] * (turn > 0)
            steps += [Step("expect", stage), Step("copy", stage)] if copied else [Step("arrive", stage)]
        warps.append(tuple(steps))
    for _ in range(consumers):
        each = [(i % stages, i // stages) for i in range(stages * rounds)]
        used = [[Step("wait", stage, turn % 2), Step("arrive", stages + stage)] for stage, turn in each]
        warps.append(tuple(step for steps in used for step in steps))
    return Protocol(counts, tuple(warps))


def damaged(whole: Protocol, rng: random.Random) -> Protocol:
    """One thing is changed."""
    counts, warps = [*whole.counts], [[*steps] for steps in whole.warps]
    steps = rng.choice([steps for steps in warps if steps])
    at = rng.randrange(len(steps))
    match rng.randrange(6):
        case 0:
            del steps[at]
        case 1:
            steps.insert(at, steps[at])
        case 2:
            steps[at] = steps[at]._replace(parity=1 - steps[at].parity)
        case 3:
            other = rng.randrange(len(steps))
            steps[at], steps[other] = steps[other], steps[at]
        case 4:
            steps[at] = steps[at]._replace(at=rng.randrange(len(counts)))
        case _:
            where = rng.randrange(len(counts))
            counts[where] = max(1, counts[where] + rng.choice((-1, 1)))
    return Protocol(tuple(counts), tuple(tuple(steps) for steps in warps))


class Counted(NamedTuple):
    """An mbarrier: phases that have ended, what the one that goes on lacks, copies that are on their way to it."""

    phase: int
    arrivals: int
    bytes: int
    copies: int

    def settled(self, count: int) -> Counted:
        return Counted(self.phase + 1, count, 0, self.copies) if self.arrivals == self.bytes == 0 else self


def explored(whole: Protocol) -> bool:
    """Do all interleavings end, with each arrival, wait and copy in the same phase? Equal states are looked at once."""
    phases: dict[tuple[str, int, int], int] = {}
    first = (0,) * len(whole.warps), tuple(Counted(0, count, 0, 0) for count in whole.counts)
    seen, todo = {first}, [first]
    while todo:
        places, bars = todo.pop()
        after = list[tuple[tuple[int, ...], tuple[Counted, ...]]]()
        for warp, place in enumerate(places):
            if place == len(whole.warps[warp]):
                continue
            does, at, parity = whole.warps[warp][place]
            bar = bars[at]
            if does == "wait" and bar.phase % 2 == parity:
                continue
            if phases.setdefault(("step", warp, place), bar.phase - (does == "wait")) != bar.phase - (does == "wait"):
                return False
            if does in ("arrive", "expect"):
                bar = bar._replace(arrivals=bar.arrivals - 1, bytes=bar.bytes + BYTES * (does == "expect"))
            elif does == "copy":
                bar = bar._replace(copies=bar.copies + 1)
            moved = (*places[:warp], place + 1, *places[warp + 1 :])
            after.append((moved, (*bars[:at], bar.settled(whole.counts[at]), *bars[at + 1 :])))
        for at, bar in enumerate(bars):
            if bar.copies:
                come = bar._replace(copies=bar.copies - 1, bytes=bar.bytes - BYTES).settled(whole.counts[at])
                after.append((places, (*bars[:at], come, *bars[at + 1 :])))
        if not after and any(place < len(steps) for place, steps in zip(places, whole.warps, strict=True)):
            return False
        if not after and any(bar.bytes for bar in bars):
            return False
        todo += (new := {*after} - seen)
        seen |= new
    return True
