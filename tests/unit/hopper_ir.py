"""The tile-level IR of kernels for sm_90a, with roles and rings or with what becomes of them, and what is in it."""

from __future__ import annotations

from typing import Any

import pytest

from tiledsl.backends import emulator
from tiledsl.errors import HazardError
from tiledsl.frontend import build
from tiledsl.ir.core import Block, Kernel, Op
from tiledsl.ir.ops import barriers
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.verifier import verify
from tiledsl.passes.cooperation.lower_roles import COOPERATION
from tiledsl.signatures.specialize import assumed, check_consts

__all__ = ["called", "ir", "lowered", "not_found", "ops", "written"]


def written(kernel: Any, **consts: Any) -> Kernel:
    """The IR of a kernel as the frontend makes it: valid, and the same when its text is read back."""
    signature = kernel.signature
    return _valid(build(signature, assumed(signature, {}, check_consts(signature, consts)), "sm_90a"))


def ir(kernel: Any, **consts: Any) -> Kernel:
    """The same with rings and roles lowered."""
    return lowered(written(kernel, **consts))


def lowered(kernel: Kernel) -> Kernel:
    """`kernel`, changed in place."""
    for lower in COOPERATION:
        lower.run(kernel)
        _valid(kernel)
    return kernel


def called(
    program: Any, arguments: tuple[Any, ...], consts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[Kernel, dict[str, Any]]:
    """The kernel at thread level that a call emulates, and its arguments by name."""
    calls: list[tuple[Kernel, dict[str, Any]]] = []

    def keep(prepared: emulator.Prepared, arguments: dict[str, Any], options: Any) -> None:
        calls.append((prepared.kernel, arguments))

    with monkeypatch.context() as patch:
        patch.setattr(emulator.Prepared, "run", keep)
        program(*arguments, device="emulator", **consts)
    return calls[0]


def not_found(kernel: Kernel, arguments: dict[str, Any], kinds: tuple[type[Op], ...], processors: int) -> list[str]:
    """Ops of these kinds without which the emulator does not stop the kernel, each taken out alone, and what it says.
    For a proxy fence the message speaks of one. As it is, the kernel runs."""
    options = emulator.Options(checks=True, processors=processors)
    emulator.run(kernel, arguments, options=options)
    missed: list[str] = []
    for number, op in enumerate(ops(kernel, *kinds)):
        without = kernel.clone()
        ops(without, *kinds)[number].erase()
        try:
            emulator.run(without, arguments, options=options)
            found = ""
        except HazardError as error:
            found = str(error)
        if ("with no proxy fence since" if isinstance(op, barriers.FenceProxy) else "error") not in found:
            missed.append(f"{op.name} at {op.loc}: {found}")
    return missed


def _valid(kernel: Kernel) -> Kernel:
    verify(kernel)
    text = print_kernel(kernel)
    assert print_kernel(parse_kernel(text)) == text
    return kernel


def ops(within: Kernel | Op | Block, *classes: type[Op]) -> list[Any]:
    return [op for op in within.walk() if type(op) in classes]
