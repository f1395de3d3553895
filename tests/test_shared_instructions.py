"""Every gallery kernel: the accesses to shared memory in the report are those of the PTX, and of the machine code."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from benchmarks.bank_counts import Product, gallery_products
from benchmarks.gallery import dtype_settings
from tiledsl.backends.ptx.sass.program import Sass
from tiledsl.compilation.compiled import Compiled
from tiledsl.compilation.lowering import lower
from tiledsl.ir.core import Kernel
from tiledsl.ir.ops import control, gpu, tile

PRODUCTS = {label: product for label, product in gallery_products().items() if product.format in ("f32", "bf16")}
PTX = re.compile(r"\b(ld|st)\.shared(?:\.v(\d))?\.[a-z](\d+)")
KINDS = {"ld": "load", "st": "store", "LDS": "load", "STS": "store"}
BYTES = {"": 4, "U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}

Accesses = Counter[tuple[str, int]]
"""By kind and bytes a lane."""


def reported(compiled: Compiled) -> Accesses:
    found: Accesses = Counter()
    report: Any = compiled.explain("banks")
    for access in report.accesses:
        if access.kind in KINDS.values():
            found[access.kind, access.bytes] += access.copies
    return found


def in_ptx(compiled: Compiled) -> Accesses:
    return Counter((KINDS[op], int(n or 1) * int(bits) // 8) for op, n, bits in PTX.findall(compiled.ptx))


def in_sass(compiled: Compiled) -> Accesses:
    """Without those under @!PT, which ptxas puts behind asynchronous copies, and which never run."""
    report: Any = compiled.explain("sass")
    listing: list[Sass] = [s for s in report.program.instructions if s.base in KINDS and not s.operands.never]
    return Counter((KINDS[s.base], BYTES[s.opcode.partition(".")[2]]) for s in listing)


def after_bank_conflict(compiled: Compiled) -> Kernel:
    """The kernel as the report sees it."""
    return lower(compiled.signature, compiled.spec, compiled.arch, until="bank-conflict")[0]


def in_short_loops(compiled: Compiled) -> set[tuple[str, int]]:
    """What loops without a barrier access: of their bodies there may be several copies."""
    kernel = after_bank_conflict(compiled)
    found: set[tuple[str, int]] = set()
    for loop in kernel.walk():
        inside = list(loop.walk()) if isinstance(loop, (control.For, control.While)) else []
        if not any(isinstance(op, gpu.Barrier) for op in inside):
            accesses = [op for op in inside if isinstance(op, (tile.Load, tile.Get, tile.Store))]
            kinds = ["store" if isinstance(op, tile.Store) else "load" for op in accesses]
            found |= {(k, op.vec * op.memory_type.dtype.bytes) for k, op in zip(kinds, accesses, strict=True)}
    return found


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS.keys())
def test_what_is_counted_is_what_runs(product: Product) -> None:
    """Neither LLVM nor ptxas merges, splits or drops an access. Both may unroll a short loop."""
    dtypes = dtype_settings(product.kernel, product.format)
    compiled = product.kernel.compile(arch="sm_90a", **dtypes, **product.consts)
    counted = reported(compiled)
    for made in (in_ptx(compiled), in_sass(compiled)):
        assert not counted - made, "fewer than counted"
        more = made - counted
        assert not more or more.keys() <= in_short_loops(compiled), "more than counted"
