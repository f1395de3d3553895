"""Classes of instructions for a histogram of a loop, and the multiply-adds of each instruction."""

from __future__ import annotations

from tiledsl.arch import WARP, WARPGROUP_WARPS
from tiledsl.backends.ptx.sass.opcodes import CLASS
from tiledsl.backends.ptx.sass.operands import mma_shape
from tiledsl.backends.ptx.sass.program import Sass
from tiledsl.layout.wgmma import WGMMA_ROWS

SHAPELESS = (16, 8, 16)
"""Taken for a matrix instruction whose opcode does not say what it multiplies."""


def class_of(sass: Sass) -> str:
    """The class of an instruction, one of `CLASSES`. Filler does not run: ``@!PT LDS`` before asynchronous copies,
    ``@!UPT UIADD3`` among matrix instructions."""
    base, *mods = sass.opcode.split(".")
    if sass.operands.never:
        return "filler"
    if (base == "IMAD" and "MOV" in mods) or (base == "HFMA2" and "-RZ, RZ" in sass.text):
        return "move"  # of a constant, on a pipe that has nothing else to do
    width = next((m for m in mods if m in ("64", "128")), "")
    return CLASS.get(f"{base}.{width}") or CLASS.get(base, "other")


def arithmetic_of(sass: Sass) -> str:
    """What a loop is there for: FFMA or a matrix opcode without modifiers; "" for any other instruction."""
    kind = class_of(sass)
    return kind if kind == "FFMA" else sass.base if kind == "MMA" else ""


def products_of(sass: Sass) -> int:
    """Multiply-adds of one warp by an FFMA or a matrix instruction; 0 for others."""
    arithmetic = arithmetic_of(sass)
    if not arithmetic:
        return 0
    if arithmetic == "FFMA":
        return WARP * (2 if sass.base == "FFMA2" else 1)
    m, n, k = mma_shape(sass.opcode.split(".")) or SHAPELESS
    return (m // WARPGROUP_WARPS if m == WGMMA_ROWS else m) * n * k  # a warp's tensor core makes its part
