"""Every gallery kernel: the static count of wavefronts, times executions, is what the emulator counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.bank_counts import Product, count_both, gallery_products
from tiledsl.arch import WARP
from tiledsl.backends.emulator import Access, Hook, Options
from tiledsl.layout.banks import BANKS, WORD

TWINS = ("f16", "e5m2", "u8")
"""Their accesses are those of bf16, e4m3 and i8."""
PRODUCTS = {label: product for label, product in gallery_products().items() if product.format not in TWINS}
SIZE = (72, 40, 24)
"""Edges of every tile; most tiles of the gallery are larger."""
WHOLE = (128, 128, 64)
"""Whole tiles of each kernel: one of the largest."""


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS.keys())
def test_static_count_is_the_emulators(product: Product) -> None:
    both = count_both(product.kernel, *product.problem(SIZE), **product.consts)
    assert both.differences == []
    for kind in both.kinds:
        static, emulated = both.of_kind(kind)
        assert static == emulated, f"some accesses of the kind {kind} are not known"
    for access in both.report.accesses:
        assert access.lanes is not None
        for lanes, most in ((access.lanes.chosen, access.most), (access.lanes.row_order, None)):
            waves = {wave for lane in lanes for wave in lane[1:]}
            assert waves == {*range(len(waves))} and len(waves) <= (most or len(waves))
        if access.chosen != access.ideal:
            assert len({wave for lane in access.lanes.chosen for wave in lane[1:]}) == access.most
    if product.format != "f32":  # the tensor-core kernels: no conflict is left, and no byte goes to padding
        assert both.report.conflicts == 0
        assert [t.bytes for t in both.report.tiles] == [t.row_bytes for t in both.report.tiles]


class _Banks(Hook):
    """For each line and width, what warps did: the bank of each lane's first word, counted from that of the first."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, int, int], set[tuple[int | None, ...]]] = {}

    def on_access(self, access: Access) -> None:
        if access.space != "shared" or access.run > 1:
            return
        key = Path(access.op.loc.file).name, access.op.loc.line, access.width
        of_warps: dict[tuple[int, int], list[int | None]] = {}
        for block, thread, address in zip(
            access.blocks.tolist(), access.threads.tolist(), access.addresses.tolist(), strict=True
        ):
            of_warps.setdefault((block, thread // WARP), [None] * WARP)[thread % WARP] = address // WORD
        for words in of_warps.values():
            self.seen.setdefault(key, set()).add(_from_first(words))


def _from_first(words: list[int | None]) -> tuple[int | None, ...]:
    first = next((word for word in words if word is not None), 0)
    return tuple(None if word is None else (word - first) % BANKS for word in words)


@pytest.mark.parametrize("label", ["shared_tiled T=32", "maxas_64", "fastest", "bf16 mma_pipelined", "i8 mma_fastest"])
def test_the_warp_that_is_shown_is_one_that_the_emulator_has(label: str) -> None:
    """Its addresses, from those of a tile's beginning: a tile begins in any bank."""
    product = PRODUCTS[label]
    found: Any = count_both(product.kernel, *product.problem(WHOLE), **product.consts).report
    banks = _Banks()
    dispatcher = product.kernel.dispatcher
    bound = dispatcher.launcher.bind(product.problem(WHOLE), product.consts)
    arguments = dispatcher.arguments(bound, "emulator")
    dispatcher.place(arguments)
    dispatcher.emulate(arguments, Options(hooks=(banks,)))
    keys = [(Path(access.loc.file).name, access.loc.line, access.bytes) for access in found.accesses]
    assert sum(key in banks.seen for key in keys) > len(keys) / 2
    for key, access in zip(keys, found.accesses, strict=True):
        if key not in banks.seen:  # C is read where beta is not 0
            continue
        shown = _from_first([lane[0] if lane else None for lane in access.lanes.chosen])
        assert shown in banks.seen[key], (key, access.kind)
