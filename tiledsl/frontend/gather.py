"""Accesses whose indices are fragments: one access an element, so that a fragment is gathered or scattered."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from tiledsl.frontend.arithmetic import as_value, elements
from tiledsl.frontend.bindings import View, describe, is_register
from tiledsl.frontend.fragments import joined, relaid
from tiledsl.frontend.frame import Frame
from tiledsl.frontend.views import located, places
from tiledsl.ir.core import Value
from tiledsl.ir.ops import tile
from tiledsl.ir.types import INDEX, DType, FragmentType

__all__ = ["Gather", "gather", "is_gather"]


@dataclass(frozen=True)
class Gather:
    """The elements of memory that fragments of indices name, in the order in which a thread holds them.

    base: the tensor or tile. rows: the indices there of each element.
    """

    frame: Frame
    node: ast.AST
    type: FragmentType
    base: Value
    rows: list[list[Value]]

    def fragment(self, results: list[Value]) -> Value:
        """What was read, one value an element, as a fragment."""
        type_ = relaid(self.frame, self.node, self.type, results[0].dtype, "an access")
        return self.frame.builder.value(tile.Pack(*results, type=type_))

    def values(self, binding: Any, dtype: DType, what: str) -> list[Value]:
        """One value an element: those of a fragment of this shape and layout, or one scalar for all."""
        if not (is_register(binding) and isinstance(binding.type, FragmentType)):
            return [as_value(binding, dtype, self.frame, self.node, what)] * len(self.rows)
        joined(self.frame, self.node, [self.type, binding.type], f"{what} and indices")
        if binding.type.dtype != dtype:
            message = f"the {what} must be {dtype}, it is {describe(binding)}"
            raise self.frame.error(self.node, message, f"convert it: x.to({dtype})")
        return elements(binding, self.frame)


def is_gather(at: Any) -> bool:
    """Is one of the indices between the brackets a fragment?"""
    return any(_is_fragment(item) for item in places(at))


def _is_fragment(item: Any) -> bool:
    return isinstance(item, Value) and isinstance(item.type, FragmentType)


def gather(frame: Frame, node: ast.AST, memory: Value | View, at: Any) -> Gather:
    """The elements of `memory` at indices of which some are fragments; the others are the same for all."""
    items = places(at)
    fragments: list[Value] = [item for item in items if _is_fragment(item)]
    for fragment in fragments:
        assert isinstance(fragment.type, FragmentType)
        if fragment.type.dtype != INDEX:
            fix = "convert it: x.to(index); rows, columns = coordinates(acc) are indices"
            raise frame.error(node, f"an index must be index, it is {describe(fragment)}", fix)
    types = [f.type for f in fragments if isinstance(f.type, FragmentType)]
    type_ = joined(frame, node, types, "indices")
    columns = [elements(item, frame) if _is_fragment(item) else [item] * type_.size for item in items]
    found = [located(frame, node, memory, row) for row in zip(*columns, strict=True)]
    return Gather(frame, node, type_, found[0][0], [indices for _, indices in found])
