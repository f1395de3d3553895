"""`Dim`, the base of named dimensions. `tiledsl.dims` has the usual names."""

from __future__ import annotations

from typing import Never

from tiledsl.errors import TileError
from tiledsl.lang.dtypes import boolean, index
from tiledsl.lang.misuse import only_in_kernel

__all__ = ["Dim", "DimMeta"]


class DimMeta(type):
    """Gives the class of a dimension the arithmetic of an `index`, for type checkers.

    The compiler replaces a dimension's name in a kernel's body by its extent. In plain Python a
    dimension has no value, so every operator raises `TileError`.
    """

    def __no_value(cls) -> TileError:
        return only_in_kernel(f"arithmetic on the dimension {cls.__name__}")

    def __add__(cls, other: index | int | DimMeta) -> index:
        raise cls.__no_value()

    def __radd__(cls, other: index | int) -> index:
        raise cls.__no_value()

    def __sub__(cls, other: index | int | DimMeta) -> index:
        raise cls.__no_value()

    def __rsub__(cls, other: index | int) -> index:
        raise cls.__no_value()

    def __mul__(cls, other: index | int | DimMeta) -> index:
        raise cls.__no_value()

    def __rmul__(cls, other: index | int) -> index:
        raise cls.__no_value()

    def __floordiv__(cls, other: index | int | DimMeta) -> index:
        raise cls.__no_value()

    def __rfloordiv__(cls, other: index | int) -> index:
        raise cls.__no_value()

    def __mod__(cls, other: index | int | DimMeta) -> index:
        raise cls.__no_value()

    def __rmod__(cls, other: index | int) -> index:
        raise cls.__no_value()

    def __and__(cls, other: index | int | DimMeta) -> index:
        raise cls.__no_value()

    def __rand__(cls, other: index | int) -> index:
        raise cls.__no_value()

    def __lshift__(cls, other: index | int) -> index:
        raise cls.__no_value()

    def __rshift__(cls, other: index | int) -> index:
        raise cls.__no_value()

    def __neg__(cls) -> index:
        raise cls.__no_value()

    def __lt__(cls, other: index | int | DimMeta) -> boolean:
        raise cls.__no_value()

    def __le__(cls, other: index | int | DimMeta) -> boolean:
        raise cls.__no_value()

    def __gt__(cls, other: index | int | DimMeta) -> boolean:
        raise cls.__no_value()

    def __ge__(cls, other: index | int | DimMeta) -> boolean:
        raise cls.__no_value()

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
        raise TileError(
            f"a dimension is used as it is, not called: {cls.__name__}() has no value.\n  fix: write {cls.__name__}"
        )
