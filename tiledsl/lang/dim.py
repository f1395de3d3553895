"""`Dim`, the base of named dimensions. `tiledsl.dims` has the usual names."""

from __future__ import annotations

from typing import Never

from tiledsl.errors import TileError
from tiledsl.lang.dtypes import boolean, index
from tiledsl.lang.misuse import only_in_kernel, operators_only_in_kernel

__all__ = ["Dim"]


@operators_only_in_kernel
class DimMeta(type):
    """Gives the class of a dimension the arithmetic of an `index`, for type checkers.

    The compiler replaces a dimension's name in a kernel's body by its extent. In plain Python a
    dimension has no value, so every operator raises `TileError`.
    """

    def __add__(cls, other: index | int | DimMeta) -> index: ...

    __sub__ = __mul__ = __floordiv__ = __mod__ = __and__ = __add__

    def __radd__(cls, other: index | int) -> index: ...

    __rsub__ = __rmul__ = __rfloordiv__ = __rmod__ = __rand__ = __lshift__ = __rshift__ = __radd__

    def __neg__(cls) -> index: ...
    def __lt__(cls, other: index | int | DimMeta) -> boolean: ...

    __le__ = __gt__ = __ge__ = __lt__

    def __index__(cls) -> int:
        raise only_in_kernel(f"the dimension {cls.__name__} as a Python int")

    def __repr__(cls) -> str:
        return cls.__name__


class Dim(metaclass=DimMeta):
    """A named dimension: ``class Rows(Dim): "Rows of the batch."``, then ``Global[f32, Rows]``.

    Extents of one name must be equal in all arguments of a launch. In a kernel's body the name is
    the extent, an `index`.
    """

    def __new__(cls) -> Never:
        message = f"a dimension is used as it is, not called: {cls.__name__}() has no value."
        raise TileError(f"{message}\n  fix: write {cls.__name__}")
