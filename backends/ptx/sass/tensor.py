"""The main loop of a tensor-core kernel: its products, what feeds them, in which order, and what bounds its clocks.

Three clocks are compared, of an iteration of one warp on each of an SM's four schedulers:

- issue slots: a scheduler issues one instruction a clock;
- shared memory: the SM serves one wavefront, 128 bytes, a clock, to all four schedulers. Wavefronts are those of the
  accesses' bytes: bank conflicts come on top (`explain("banks")` counts them), and what wgmma reads there by itself is
  not counted. Lanes that share words take fewer, LDS.64 and LDS.128 half as many where pairs of lanes read at one
  place; of a product's operands each lane reads its own. An asynchronous copy past L1 is one wavefront, and so is an
  LDS that no lane makes (docs/bank_conflicts.md);
- tensor cores: multiply-adds over the rate of `RATES`.

Latencies are not among them: what a warp waits for, another one may use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap

from tiledsl.arch import MULTIPLY_ADDS, PARTITIONS, WARP
from tiledsl.backends.ptx.sass.classes import arithmetic_of, class_of, products_of
from tiledsl.backends.ptx.sass.control import check_target
from tiledsl.backends.ptx.sass.iteration import access_bytes
from tiledsl.backends.ptx.sass.program import Sass
from tiledsl.layout.banks import BANKS, WORD

WAVEFRONT = BANKS * WORD
"""Bytes that shared memory moves in a clock."""

LOADS = ("LDSM", "LDS", "LDG", "LDGSTS", "UTMALDG", "UBLKCP")
"""What brings data closer to the tensor cores."""
OTHERS = "STS STSM STG UTMASTG LDGDEPBAR DEPBAR ARRIVES BAR SYNCS WARPGROUP WARPSYNC FENCE MEMBAR"
SHOWN = frozenset((*LOADS, *OTHERS.split()))
"""What is told in the order of a loop, beside matrix instructions."""
TO_SHARED = frozenset({"LDSM", "STSM", "LDS", "STS", "LDGSTS"})
"""Instructions of a warp whose bytes pass through shared memory's one port."""


# -- rates -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rate:
    """Multiply-adds a clock of one scheduler's tensor core, for one kind of instruction. basis: where that is from."""

    products: float
    basis: str


OPERANDS = {"HMMA": "f16", "HMMA.TF32": "tf32", "IMMA": "i8", "QMMA": "e4m3", "DMMA": "f64"}
"""A dtype that each kind of instruction multiplies."""
WGMMA = {"HMMA": "HGMMA", "HMMA.TF32": "HGMMA.TF32", "IMMA": "IGMMA", "QMMA": "QGMMA"}
"""What multiplies the same with wgmma."""
MMA_SHARE, SHORT_SHARE = 0.64, 0.48
"""That part; for 16 bytes along k, not 32, the second one. ptxas leaves 6 clocks after an HMMA.16816 on sm_90, which
would be 67%, and 4 after an HMMA.1688, which has half as many products (docs/tensor_cores.md): hence their ratio."""
FULL = {"HMMA": 16 * 8 * 16, "HMMA.TF32": 16 * 8 * 8, "IMMA": 16 * 8 * 32, "DMMA": 16 * 8 * 4}
"""Products of a 16 x 8 tile with 32 bytes along k; instructions with fewer are "short"."""


def _full(kind: str, capability: tuple[int, int]) -> int:
    """Of one scheduler, by instructions that leave the tensor core no pause."""
    return MULTIPLY_ADDS[capability][OPERANDS[kind]] // PARTITIONS


def _assumed(kind: str, share: float) -> Rate:
    published = " (published: 63 to 65%)" if share == MMA_SHARE else ""
    return Rate(share * _full(kind, (9, 0)), f"assumed: mma.sync at {share:.0%} of wgmma{published}, not measured here")


RATES: dict[int, dict[str, Rate]] = {
    80: {kind: Rate(_full(kind, (8, 0)), "A100 whitepaper") for kind in ("HMMA", "HMMA.TF32", "IMMA", "DMMA")},
    90: {
        **{kind: _assumed(kind, MMA_SHARE) for kind in ("HMMA", "HMMA.TF32", "IMMA")},
        **{f"{kind}.short": _assumed(kind, SHORT_SHARE) for kind in ("HMMA", "HMMA.TF32", "IMMA")},
        "DMMA": Rate(_full("DMMA", (9, 0)), "H100 whitepaper"),
        "DMMA.short": Rate(16, "assumed: the 16 clocks that ptxas leaves, twice those of the H100 whitepaper"),
        **{wgmma: Rate(_full(kind, (9, 0)), "H100 whitepaper") for kind, wgmma in WGMMA.items()},
    },
}
"""By compute capability and kind: those of `arch.MULTIPLY_ADDS`."""


def rate_of(sass: Sass, capability: int) -> Rate | None:
    """The rate of a matrix instruction; None if it is not known."""
    rates = RATES.get(capability, {})
    kind = f"{sass.base}.TF32" if "TF32" in sass.opcode.split(".") else sass.base
    short = products_of(sass) < FULL.get(kind, 0)
    return rates.get(f"{kind}.short" if short else kind) or rates.get(kind)


# -- a loop ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorLoop:
    """Counts of one iteration of a loop, for one warp, that of a full tile.

    products: matrix instructions by opcode. issued: all instructions. others: loads, stores, waits and barriers, by
    opcode without modifiers. order: all of these as they come, as (name, how many in a row). longest: the most
    matrix instructions between two loads, across the end of the loop, too. stalls: how many matrix instructions
    have which stall count; waiting: how many of them wait for a scoreboard barrier. wavefronts: of shared memory,
    see above. clocks: of the tensor core, or None where a rate is not known. bases: what these rest on.
    """

    products: dict[str, int]
    issued: int
    others: dict[str, int]
    order: tuple[tuple[str, int], ...]
    longest: int
    stalls: dict[int, int]
    waiting: int
    wavefronts: int
    clocks: float | None
    bases: tuple[str, ...]

    @property
    def count(self) -> int:
        """All matrix instructions."""
        return sum(self.products.values())

    @property
    def bounds(self) -> dict[str, float]:
        """Clocks of an iteration of one warp a scheduler, by what sets them; the tensor cores' only if known."""
        known = {} if self.clocks is None else {"tensor cores": self.clocks}
        return {"issue slots": self.issued, "shared memory": PARTITIONS * self.wavefronts, **known}

    @property
    def peak_share(self) -> float | None:
        """The most of the tensor cores' rate that the loop can reach: their clocks over the largest bound."""
        return None if self.clocks is None else self.clocks / max(self.bounds.values())

    def __str__(self) -> str:
        name = max(self.products, key=lambda opcode: self.products[opcode]).partition(".")[0]
        per = ", ".join(f"{n / self.count:.2f} {other}" for other, n in self.others.items() if other in LOADS)
        rest = ", ".join(f"{n} {other}" for other, n in self.others.items() if other not in LOADS)
        stalls = ", ".join(f"{stall} x{n}" for stall, n in sorted(self.stalls.items()))
        lines = [
            f"tensor cores: {', '.join(f'{n} {opcode}' for opcode, n in self.products.items())}",
            f"for each {name}: {per or 'no load'}; at most {self.longest} between two loads",
            f"stores, waits, barriers: {rest or 'none'}",
            *wrap(f"order: {', '.join(fold(self.order))}", 104, subsequent_indent="  ", break_long_words=False),
            f"stall counts of {name}: {stalls}; {self.waiting} wait for a scoreboard",
            *self._clocks(),
        ]
        return "\n".join(lines)

    def _clocks(self) -> list[str]:
        notes = {
            "issue slots": "one instruction a clock",
            "shared memory": f"{PARTITIONS} x {self.wavefronts} wavefronts without conflicts",
            "tensor cores": "; ".join(self.bases),
        }
        rows = [f"  {name:<13} {clocks:7.1f}  {notes[name]}" for name, clocks in self.bounds.items()]
        share = self.peak_share
        most = "no rate is known" if share is None else f"at most {share:.1%} of the rate"
        return ["clocks of an iteration, one warp a scheduler:", *rows, f"  {most} of the tensor cores"]


def tensor_loop(sasses: Sequence[Sass], target: str, *, loop: bool = True) -> TensorLoop:
    """Counts of one iteration, which is followed by another if it is of a `loop`."""
    capability = check_target(target)
    running = [s for s in sasses if not s.operands.never]
    matrix = [s for s in running if class_of(s) == "MMA"]
    names = [s.base for s in running if s.base in SHOWN or arithmetic_of(s) == s.base != "FFMA"]
    rates = [rate_of(s, capability) for s in matrix]
    clocks = [products_of(s) / rate.products for s, rate in zip(matrix, rates, strict=True) if rate is not None]
    return TensorLoop(
        products=dict(Counter(s.opcode for s in matrix)),
        issued=len(sasses),
        others=dict(Counter(s.base for s in running if s.base in SHOWN)),
        order=tuple((name, len(list(group))) for name, group in groupby(names)),
        longest=_longest(names, loop=loop),
        stalls=dict(Counter(s.control.stall for s in matrix)),
        waiting=sum(bool(s.control.waits) for s in matrix),
        wavefronts=sum(map(_wavefronts, sasses)),
        clocks=sum(clocks) if len(clocks) == len(matrix) else None,
        bases=tuple(dict.fromkeys(rate.basis for rate in rates if rate is not None)),
    )


def _longest(names: Sequence[str], *, loop: bool) -> int:
    """The most matrix instructions with no load among them."""
    repeated = [*names, *names] if loop and not set(LOADS).isdisjoint(names) else names  # a run goes on past the end
    runs = groupby(repeated, key=lambda name: name in LOADS)
    return max((sum(name not in SHOWN for name in run) for is_load, run in runs if not is_load), default=0)


def _wavefronts(sass: Sass) -> int:
    """Of a warp's access to shared memory, by its bytes; one at least.

    One as well where no bytes pass the banks: filler, `@!PT LDS`, and copies that go past L1.
    """
    if sass.base not in TO_SHARED:
        return 0
    past = sass.operands.never or (sass.base == "LDGSTS" and "BYPASS" in sass.opcode.split("."))
    return 1 if past else -(-WARP * access_bytes(sass) // WAVEFRONT)


# -- text ------------------------------------------------------------------------------------------


def fold(order: Iterable[tuple[str, int]], longest: int = 16) -> list[str]:
    """Runs as text, ``LDSM x4``; a sequence of up to `longest` runs that repeats is written once, ``(...) x3``."""
    runs = [name if n == 1 else f"{name} x{n}" for name, n in order]
    parts: list[str] = []
    at = 0
    while at < len(runs):
        length, times = max(_repeats(runs, at, longest), key=lambda found: found[0] * (found[1] - 1))
        whole = ", ".join(runs[at : at + length])
        parts.append(whole if times == 1 else f"({whole}) x{times}")
        at += length * times
    return parts


def _repeats(runs: Sequence[str], at: int, longest: int) -> Iterable[tuple[int, int]]:
    """(how many runs, how often they stand here one after the other); (1, 1) first."""
    yield 1, 1
    for length in range(2, min(longest, (len(runs) - at) // 2) + 1):
        times = 1
        while runs[at + times * length : at + (times + 1) * length] == runs[at : at + length]:
            times += 1
        yield length, times
