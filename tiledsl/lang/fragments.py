"""Fragments: arrays in the registers of one thread, or of all threads of the block together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, overload

from tiledsl.lang.dim import Dim
from tiledsl.lang.dtypes import Float, Scalar, boolean
from tiledsl.lang.misuse import only_in_kernel, operators_only_in_kernel
from tiledsl.lang.ranges import Range
from tiledsl.layout.fragments import FragmentLayout

if TYPE_CHECKING:
    Slice: TypeAlias = slice[Any, Any, Any] | Range

__all__ = ["Fragment", "fragment", "outer_fma"]

D = TypeVar("D", bound=Scalar)
E = TypeVar("E", bound=Scalar)
F = TypeVar("F", bound=Float)


def _misuse() -> Exception:
    return only_in_kernel("a fragment")


@operators_only_in_kernel
class Fragment(Generic[D]):
    """An array in registers, and a value: changing one changes no other.

    Without a layout it is one thread's own; `fragment` and vector loads make it. Elements and slices are read and
    written with compile-time indices only, since registers cannot be indexed at run time: loop over them with `unroll`.

    With a layout the threads of the block hold it together, as the matrix instructions want it; `fragment`,
    `load_matrix`, `load_fragment` and `mma` make it. It is not indexed: no thread has all of it.

    Arithmetic, comparison and functions go element by element, on fragments of one shape and layout, or with a scalar.
    """

    @overload
    def __getitem__(self, index: int | tuple[int, ...]) -> D: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __getitem__(self, index: Slice | tuple[int | Slice, ...]) -> Fragment[D]: ...
    def __getitem__(self, index: Any) -> Any:
        """One element, or a slice: ``acc[0:4, 2]`` is a fragment of 4. Slices are not clipped."""
        raise _misuse()

    def __setitem__(self, index: int | Slice | tuple[int | Slice, ...], value: D | float | Fragment[D]) -> None:
        """Replace one element, or those of a slice, by a number or a fragment of the slice's shape."""
        raise _misuse()

    def to(self, dtype: type[E], /) -> Fragment[E]:
        """Every element converted, as by `Scalar.to`."""
        raise _misuse()

    def bitcast(self, dtype: type[E], /) -> Fragment[E]:
        """The bits of every element read as `dtype`, as by `Scalar.bitcast`."""
        raise _misuse()

    def columns(self, first: int, count: int, /) -> Fragment[D]:
        """Some columns of an accumulator, all of whose columns a warp holds: compile-time multiples of 8. Each thread
        keeps what it holds, in the same layout."""
        raise _misuse()

    def registers(self) -> Fragment[D]:
        """What this thread holds of a fragment with a layout, as one of its own, with one axis. Of an accumulator of
        wgmma: eight columns after eight columns, of each two neighbours of a row, then two of the row eight below."""
        raise _misuse()

    def __add__(self, other: Fragment[D] | D | float | type[Dim]) -> Fragment[D]: ...

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __add__

    def __truediv__(self, other: Fragment[D] | D | float) -> Fragment[D]: ...

    __rtruediv__ = __truediv__

    def __floordiv__(self, other: Fragment[D] | D | int | type[Dim]) -> Fragment[D]: ...

    __rfloordiv__ = __mod__ = __rmod__ = __floordiv__

    def __and__(self, other: Fragment[D] | D | int) -> Fragment[D]: ...

    __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __and__
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __and__

    def __neg__(self) -> Fragment[D]: ...

    __pos__ = __invert__ = __abs__ = __neg__

    def __lt__(self, other: Fragment[D] | D | float | type[Dim]) -> Fragment[boolean]: ...

    __le__ = __gt__ = __ge__ = __lt__

    def __eq__(self, other: Fragment[D] | D | float | type[Dim]) -> Fragment[boolean]: ...  # pyright: ignore[reportIncompatibleMethodOverride]
    def __ne__(self, other: Fragment[D] | D | float | type[Dim]) -> Fragment[boolean]: ...  # pyright: ignore[reportIncompatibleMethodOverride]

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    shape: tuple[int, ...]
    """Extents, compile-time ints."""

    rank: int
    """How many extents there are."""

    dtype: type[D]
    """dtype of an element."""

    layout: FragmentLayout
    """Which thread holds what, a compile-time value; a fragment of one thread has none."""

    a: FragmentLayout
    """Of an accumulator, the layout of the left operand of its products: ``load_matrix(As, acc.a)``."""

    b: FragmentLayout
    """Of an accumulator, the layout of the right operand of its products."""


def fragment(
    shape: int | tuple[int, ...],
    dtype: type[D],
    layout: FragmentLayout | None = None,
    init: D | float | Fragment[D] = 0,
) -> Fragment[D]:
    """Registers as an array of compile-time `shape`, every element `init`; with a layout, `init` may be what each
    thread holds, as `Fragment.registers` gives it.

    Without a layout, `shape` is what each thread has for itself. With one, such as ``mma.m16n8k16.acc(warps=(2, 2))``,
    it is what the block's threads hold together: rows by columns, multiples of what the layout's warps take, and as
    many threads as the layout says. A thread has 255 registers.
    """
    raise only_in_kernel("fragment()")


def outer_fma(
    acc: Fragment[F],
    a: Fragment[F],
    b: Fragment[F],
    order: Literal["rows", "serpentine", "spiral", "pairs", "column_pairs", "column_quads"] = "rows",
) -> Fragment[F]:
    """``acc = outer_fma(acc, a, b)``: `acc` with ``acc[i, j] + a[i] * b[j]`` in every place, one fma each.

    acc: of shape (m, n); a: (m,); b: (n,). order: in which order the m * n instructions are issued, which
    decides how often a register operand can be reused, and nothing else. "rows": row after row.
    "serpentine": every other row backwards. "spiral": maxas's, which goes around 2 x 2 elements; m and n
    are multiples of 8. "pairs": two rows at a time, column by column; m is even. "column_pairs": two columns
    at a time, and the last row at the end; n is even. "column_quads": four columns at a time, and the last two rows
    at the end; n is a multiple of 4. Both are for ``threads(..., assembler_level=1)``.
    """
    raise only_in_kernel("outer_fma()")
