"""The tile-level IR of kernels for sm_90a, with roles and rings or with what becomes of them, and what is in it."""

from __future__ import annotations

from typing import Any

from tiledsl.frontend import build
from tiledsl.ir.core import Block, Kernel, Op
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.verifier import verify
from tiledsl.passes.lower_rings import LowerRings
from tiledsl.passes.lower_roles import LowerRoles
from tiledsl.specialize import assumed, check_consts

__all__ = ["ir", "ops", "written"]


def written(kernel: Any, **consts: Any) -> Kernel:
    """The IR of a kernel as the frontend makes it: valid, and the same when its text is read back."""
    signature = kernel.signature
    return _valid(build(signature, assumed(signature, {}, check_consts(signature, consts)), "sm_90a"))


def ir(kernel: Any, **consts: Any) -> Kernel:
    """The same with rings and roles lowered."""
    built = written(kernel, **consts)
    for lower in (LowerRings(), LowerRoles()):
        lower.run(built)
        _valid(built)
    return built


def _valid(kernel: Kernel) -> Kernel:
    verify(kernel)
    text = print_kernel(kernel)
    assert print_kernel(parse_kernel(text)) == text
    return kernel


def ops(within: Kernel | Op | Block, *classes: type[Op]) -> list[Any]:
    return [op for op in within.walk() if type(op) in classes]
