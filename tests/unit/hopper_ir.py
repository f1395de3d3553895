"""The tile-level IR of kernels for sm_90a, and what is in it."""

from __future__ import annotations

from typing import Any

from tiledsl.frontend import build
from tiledsl.ir.core import Block, Kernel, Op
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.verifier import verify
from tiledsl.specialize import assumed, check_consts

__all__ = ["ir", "ops"]


def ir(kernel: Any, **consts: Any) -> Kernel:
    """The tile-level IR of a kernel: valid, and the same when its text is read back."""
    signature = kernel.signature
    built = build(signature, assumed(signature, {}, check_consts(signature, consts)), "sm_90a")
    verify(built)
    text = print_kernel(built)
    assert print_kernel(parse_kernel(text)) == text
    return built


def ops(within: Kernel | Op | Block, *classes: type[Op]) -> list[Any]:
    return [op for op in within.walk() if type(op) in classes]
