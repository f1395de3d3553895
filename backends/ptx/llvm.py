"""The one import of llvmlite. It has no type information, so both modules are `Any` to the checker."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["binding", "ir"]

ir: Any = import_module("llvmlite.ir")
binding: Any = import_module("llvmlite.binding")
