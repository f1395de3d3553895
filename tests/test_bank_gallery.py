"""Every gallery kernel: the static count of wavefronts, times executions, is what the emulator counts."""

from __future__ import annotations

import pytest

from benchmarks.bank_counts import Product, count_both, gallery_products

TWINS = ("f16", "e5m2", "u8")
"""Their accesses are those of bf16, e4m3 and i8."""
PRODUCTS = {label: product for label, product in gallery_products().items() if product.format not in TWINS}
SIZE = (72, 40, 24)
"""Edges of every tile; most tiles of the gallery are larger."""


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS.keys())
def test_static_count_is_the_emulators(product: Product) -> None:
    both = count_both(product.kernel, *product.problem(SIZE), **product.consts)
    assert both.differences == []
    for kind in both.kinds:
        static, emulated = both.of_kind(kind)
        assert static == emulated, f"some accesses of the kind {kind} are not known"
    if product.format != "f32":  # the tensor-core kernels: no conflict is left, and no byte goes to padding
        assert both.report.conflicts == 0
        assert [t.bytes for t in both.report.tiles] == [t.row_bytes for t in both.report.tiles]
