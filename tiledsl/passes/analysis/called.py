"""What the kernel's author calls an op or a memory, for messages."""

from __future__ import annotations

from tiledsl.ir.core import Op, Value
from tiledsl.ir.types import TileType


def called(op: Op) -> str:
    """The function that the author calls for `op`; the op's name if there is none."""
    return op.called or op.name


def name_of(memory: Value) -> str:
    """A tensor or tile by its name, if it has one."""
    return memory.name or ("the tile" if isinstance(memory.type, TileType) else "the tensor")
