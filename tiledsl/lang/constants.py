"""`const` and `Const[T]`: annotations of compile-time parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias, TypeVar

__all__ = ["Const", "const"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConstMarker:
    """Marks an annotation as compile-time: ``const`` is ``Annotated[int, CONST]``."""


CONST = ConstMarker()
"""The marker in the annotations below."""

Const: TypeAlias = Annotated[T, CONST]
"""``epilogue: Const[Callable[[f32], f32]] = relu``: a compile-time parameter of any type."""

const: TypeAlias = Annotated[int, CONST]
"""``T: const = 16``: a compile-time int. Each value is its own specialisation of the kernel."""
