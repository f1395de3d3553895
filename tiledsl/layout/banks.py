"""The bank model of shared memory, as data: how many wavefronts one access of a warp takes.

Bank of a byte address: ``address // 4 % 32``. A warp's access runs in phases of neighbouring lanes; lanes of a
phase that touch the same 32-bit word share it. A phase takes as many wavefronts as the bank with the most
distinct words in it; a phase without active lanes takes none. The access takes the sum over its phases.

`PHASES` is the only place that holds numbers. `benchmarks/bank_calibration.py` compares every entry with the
hardware counters; what it finds changes this table and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Sequence

from tiledsl.arch import WARP

BANKS = 32
WORD = 4
"""Bytes of a word: a bank delivers one a wavefront."""

Kind = Literal["load", "store", "atomic", "ldmatrix", "stmatrix", "cp_async"]
"""cp_async: what an asynchronous copy writes to shared memory; for a row of 16 bytes see its note."""


@dataclass(frozen=True, slots=True)
class Phases:
    """How an access of `width` bytes a lane runs.

    lanes: how many neighbouring lanes a phase has.
    merge: neighbouring phases 2p and 2p + 1 run as one where, for one of these distances d, every active lane i of the
           warp has the address of lane i ^ d, or that lane is inactive. Empty: never.
    shared: lanes that touch the same word share it; otherwise each takes a turn.
    calibrated: measured against hardware counters; the result is committed under benchmarks/results. Otherwise the
                simplest rule that fits what is published.
    note: for what the entry does not stand, or what is to be measured.
    """

    lanes: int
    merge: tuple[int, ...] = ()
    shared: bool = True
    calibrated: bool = True
    note: str = ""


_SMALL_COPY = "where the lanes of a phase read from one line of 128 bytes; each further line takes a phase of its own"
_LARGE_COPY = "zeros take that. What is fetched passes no bank: it hardly delays other accesses, whatever the layout"
_LOOP = "the machine has no such addition: how many turns does its loop of a load and a compare-and-swap take?"

PHASES: dict[tuple[Kind, int], Phases] = {
    ("load", 1): Phases(32),
    ("load", 2): Phases(32),
    ("load", 4): Phases(32),
    ("load", 8): Phases(16, merge=(1, 2)),
    ("load", 16): Phases(8, merge=(1, 2)),
    ("store", 1): Phases(32),
    ("store", 2): Phases(32),
    ("store", 4): Phases(32),
    ("store", 8): Phases(16),
    ("store", 16): Phases(8),
    ("atomic", 2): Phases(32, shared=False, calibrated=False, note=_LOOP),
    ("atomic", 4): Phases(32, shared=False),
    ("atomic", 8): Phases(16, shared=False, calibrated=False, note=_LOOP),
    ("ldmatrix", 16): Phases(8),
    ("stmatrix", 16): Phases(8),
    ("cp_async", 4): Phases(32, note=_SMALL_COPY),
    ("cp_async", 8): Phases(16, note=_SMALL_COPY),
    ("cp_async", 16): Phases(8, note=_LARGE_COPY),
}
"""By kind of access and bytes a lane. An f32 adds in a loop as well; its entry is that of 4 bytes. Of ldmatrix and
stmatrix the lanes are those that give a row's address: the first 8, 16 or 32 of a warp for 1, 2 or 4 matrices. What
asynchronous copies take, and why those of 16 bytes count as stores all the same, stands in docs/bank_conflicts.md."""


class Cost(NamedTuple):
    """What one access takes, and what it would take if no two words of a phase met in a bank, in any layout."""

    wavefronts: int
    ideal: int


def cost(
    addresses: Sequence[int],
    width: int,
    active: Sequence[bool] | None = None,
    kind: Kind = "load",
    rule: Phases | None = None,
) -> Cost:
    """Wavefronts of one access, and the ideal: `addresses` in bytes, one for each of 32 lanes, multiples of `width`.

    Lanes that are not `active` take no part; their addresses do not count. `rule`: instead of the table's.
    """
    assert len(addresses) == WARP, "one address a lane"
    rule = rule or PHASES[kind, width]
    lanes = [a if on else None for a, on in zip(addresses, active or [True] * WARP, strict=True)]
    count = ideal = 0
    for phase in _phases(lanes, rule):
        addresses = [a for a in phase if a is not None]
        if not addresses:
            continue
        words = [word for a in addresses for word in range(a // WORD, (a + width - 1) // WORD + 1)]
        count += _busiest(set(words) if rule.shared else words)
        # Lanes that take turns at one word do so in every layout.
        ideal += 1 if rule.shared else max(words.count(word) for word in words)
    return Cost(count, ideal)


class Turns(NamedTuple):
    """In which wavefront of an access each word is served.

    lanes: of a phase. by_lane: (bank of the first word, wavefront of each word), the wavefronts counted from 0 through
    all phases; () for a lane that takes no part.
    """

    lanes: int
    by_lane: tuple[tuple[int, ...], ...]


def turns(addresses: Sequence[int | None], width: int, kind: Kind) -> Turns:
    """What `cost` counts, lane by lane; None: a lane that takes no part. The words of a bank come in the order of the
    lanes that touch them first: the hardware's order is not known, only how many there are."""
    rule = PHASES[kind, width]
    phases = _phases([*addresses], rule)
    found: list[tuple[int, ...]] = []
    begun = 0
    for phase in phases:
        served: dict[int, list[int]] = {}
        for address in phase:
            if address is None:
                found.append(())
                continue
            turn = [address // WORD % BANKS]
            for word in range(address // WORD, (address + width - 1) // WORD + 1):
                queue = served.setdefault(word % BANKS, [])
                if not rule.shared or word not in queue:
                    queue.append(word)
                turn.append(begun + (queue.index(word) if rule.shared else len(queue) - 1))
            found.append((*turn,))
        begun += max(map(len, served.values()), default=0)
    return Turns(WARP // len(phases), (*found,))


def _phases(lanes: list[int | None], rule: Phases) -> list[list[int | None]]:
    """The lanes of each phase, after neighbours have merged; None for an inactive one."""
    phases = [lanes[start : start + rule.lanes] for start in range(0, WARP, rule.lanes)]
    if not any(_paired(lanes, distance) for distance in rule.merge):
        return phases
    return [first + second for first, second in zip(phases[::2], phases[1::2], strict=True)]


def _paired(lanes: list[int | None], distance: int) -> bool:
    partners = (lanes[lane ^ distance] for lane in range(len(lanes)))
    return all(a is None or b is None or a == b for a, b in zip(lanes, partners, strict=True))


def _busiest(words: Sequence[int] | set[int]) -> int:
    """The largest number of words in one bank."""
    load = [0] * BANKS
    for word in words:
        load[word % BANKS] += 1
    return max(load)
