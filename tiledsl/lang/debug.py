"""Debugging from inside a kernel. Python's ``print`` and ``breakpoint`` work there too."""

from __future__ import annotations

from tiledsl.lang.dtypes import boolean
from tiledsl.lang.misuse import only_in_kernel

__all__ = ["assert_"]


def assert_(condition: boolean | bool, message: str = "") -> None:
    """Stop the launch, with `message` and this line, if a thread finds `condition` false.

    On a GPU threads go on behind it until they are stopped; a later call raises the error, and the context is lost.
    """
    raise only_in_kernel("assert_()")
