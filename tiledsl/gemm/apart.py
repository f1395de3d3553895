"""Whether operands that TMA cannot read as they are, but in parts, are loaded so, or padded by a launch before.

Padding takes a launch, and the time to read and write the operands once. The role that puts lines in order handles each
line once for each tile that needs it, so it suits products of few tiles, or few steps of k. Everything is a time in ns,
or a rate in bytes per ns; measured on an H200 at 20 ragged shapes.
"""

from __future__ import annotations

from math import ceil, gcd
from typing import Any

from tiledsl.gemm.choice import SHARED, Variant
from tiledsl.lang import cdiv

AT_ONCE, ORDER = 64, 2.2
"""Elements of a line that a warp puts in order at once, and the time."""
PAD, COPY = 500, 4000
"""A launch that copies operands takes PAD, in ns, and reads and writes at the rate COPY, in bytes a ns."""
SHALLOW = 128
"""Elements of k that are not worth steps of as many."""


def pays(v: Variant, batch: int, m: int, n: int, k: int, unaligned: tuple[bool, bool], processors: int) -> bool:
    """Whether there is room to put lines in order, and it takes less time than padding A and B, of which TMA cannot
    read those that are `unaligned`. v: the variant that would load them in parts."""
    if apart_consts(v, k, unaligned)["BK"] % AT_ONCE:
        return False
    rows, columns, _ = v.tile
    lines = rows * unaligned[v.exchanged] + columns * unaligned[not v.exchanged]
    shared_out = max(v.parts, 1) * v.groups
    tiles = ceil(v.tiles(m, n) * batch * shared_out / processors)  # of the busiest SM
    ordering = ORDER * tiles * ceil(cdiv(k, AT_ONCE) / shared_out) * lines
    return ordering < PAD + 4 * batch * (m * unaligned[0] + n * unaligned[1]) * k / COPY


def apart_consts(v: Variant, k: int, unaligned: tuple[bool, bool]) -> dict[str, Any]:
    """Of `hopper_fastest`: those of a variant, with two or three stages of lines in order and as many as fit, up to 16,
    of lines as they are loaded. Where not even steps of AT_ONCE have room for two stages of both, BK is less."""
    rows, columns, instances = v.tile
    consts = v.consts(k)
    bk = AT_ONCE if k <= SHALLOW else consts["BK"]
    room = SHARED - v.received - (1 if v.parts else 2) * instances * rows * 128
    ordered = 2 * bk * (rows * unaligned[v.exchanged] + columns * unaligned[not v.exchanged])
    stage = 2 * (_elements(rows, bk) + _elements(columns, bk))
    if 2 * (ordered + stage) > room:
        bk, ordered, stage = bk // 2, ordered // 2, 2 * (_elements(rows, bk // 2) + _elements(columns, bk // 2))
    stages = 3 if 3 * ordered + 2 * stage <= room else 2
    return {**consts, "BK": bk, "STAGES": stages, "APART": min(16, (room - stages * ordered) // stage)}


def _elements(extent: int, bk: int) -> int:
    """Of a stage of `hopper_apart.staging_apart`, at most: `extent` lines along k, or bk lines across it."""
    unit = max(8, 64 // gcd(extent // 8, 64))
    return max(extent * cdiv(bk + 8, unit) * unit, bk * (extent + 8))
