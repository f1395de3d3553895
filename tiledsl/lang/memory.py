"""Memory in a kernel: tensors in global memory, tiles in shared memory, fragments in registers.

Vector widths are in bytes. An access of 2, 4, 8 or 16 bytes must be provably aligned: for a tensor
from its specialisation (`Global.align`) and the indices, else compiling fails and says why.
"""

from __future__ import annotations

from typing import Any, Generic, TypeAlias, TypeVar, TypeVarTuple, overload

from tiledsl.lang.dim import Dim
from tiledsl.lang.dtypes import Scalar, index
from tiledsl.lang.misuse import only_in_kernel

__all__ = ["Extent", "Fragment", "Global", "Memory", "SharedTile", "fragment", "shared"]

D = TypeVar("D", bound=Scalar)
E = TypeVar("E", bound=Scalar)
Dims = TypeVarTuple("Dims")

Extent: TypeAlias = index | int | type[Dim]
"""What an index, a size or a grid extent may be: an index, a Python int, or a dimension's name."""


class Fragment(Generic[D]):
    """Registers of one thread, as a small array. Made by `fragment` and by vector loads.

    Elements are read and written with compile-time indices only, since registers cannot be indexed
    at run time: loop over them with `unroll`. A fragment is a value: changing one changes no other.
    Arithmetic goes element by element, on fragments of one shape and dtype, or with a scalar.
    """

    def __getitem__(self, index: int | tuple[int, ...]) -> D:
        """One element."""
        raise only_in_kernel("a fragment")

    def __setitem__(self, index: int | tuple[int, ...], value: D | float) -> None:
        """Replace one element."""
        raise only_in_kernel("a fragment")

    def to(self, dtype: type[E], /) -> Fragment[E]:
        """Every element converted, as by `Scalar.to`."""
        raise only_in_kernel("a fragment")

    def bitcast(self, dtype: type[E], /) -> Fragment[E]:
        """The bits of every element read as `dtype`, as by `Scalar.bitcast`."""
        raise only_in_kernel("a fragment")

    def __add__(self, other: Fragment[D] | D | float) -> Fragment[D]:
        raise only_in_kernel("a fragment")

    def __radd__(self, other: D | float) -> Fragment[D]:
        raise only_in_kernel("a fragment")

    def __sub__(self, other: Fragment[D] | D | float) -> Fragment[D]:
        raise only_in_kernel("a fragment")

    def __rsub__(self, other: D | float) -> Fragment[D]:
        raise only_in_kernel("a fragment")

    def __mul__(self, other: Fragment[D] | D | float) -> Fragment[D]:
        raise only_in_kernel("a fragment")

    def __rmul__(self, other: D | float) -> Fragment[D]:
        raise only_in_kernel("a fragment")

    def __truediv__(self, other: Fragment[D] | D | float) -> Fragment[D]:
        raise only_in_kernel("a fragment")

    def __rtruediv__(self, other: D | float) -> Fragment[D]:
        raise only_in_kernel("a fragment")

    def __neg__(self) -> Fragment[D]:
        raise only_in_kernel("a fragment")

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, compile-time ints."""
        raise only_in_kernel("a fragment")

    @property
    def rank(self) -> int:
        """How many extents there are."""
        raise only_in_kernel("a fragment")

    @property
    def dtype(self) -> type[D]:
        """dtype of an element."""
        raise only_in_kernel("a fragment")


class Memory(Generic[D]):
    """What `Global` tensors and shared tiles have in common.

    Indices are `index` values, ints or dimensions, one an axis. There are no negative indices.
    """

    def __getitem__(self, index: Extent | tuple[Extent, ...]) -> D:
        """The element at `index`. Out of bounds is an error of the kernel: the emulator reports it,
        a static one is a compile error, a GPU reads what is there. (PTX ISA: ld.)"""
        raise only_in_kernel("an element access")

    def __setitem__(self, index: Extent | tuple[Extent, ...], value: D | float) -> None:
        """Write the element at `index`. Out of bounds: as for reading. (PTX ISA: st.)"""
        raise only_in_kernel("an element access")

    @overload
    def get(self, *index: Extent, other: D | float = 0) -> D: ...
    @overload
    def get(self, *index: Extent, other: D | float | Fragment[D] = 0, vec: int) -> Fragment[D]: ...
    def get(self, *index: Extent, other: Any = 0, vec: int = 0) -> Any:
        """The element at `index`, or `other` (and memory is not touched) if it is out of bounds.

        vec: bytes of a vector along the unit-stride axis, as a 1-D fragment: one access if it lies
        inside, else element by element, each guarded. 0 reads one element as a scalar. For a vector
        `other` may be a fragment.
        """
        raise only_in_kernel(".get()")

    @overload
    def put(self, i: Extent, value: D | float | Fragment[D], /) -> None: ...
    @overload
    def put(self, i: Extent, j: Extent, value: D | float | Fragment[D], /) -> None: ...
    @overload
    def put(self, i: Extent, j: Extent, k: Extent, value: D | float | Fragment[D], /) -> None: ...
    @overload
    def put(self, i: Extent, j: Extent, k: Extent, m: Extent, value: D | float | Fragment[D], /) -> None: ...
    def put(self, *index_and_value: Any) -> None:
        """``C.put(row, col, value)``: write `value` unless `index` is out of bounds.

        A 1-D fragment is written as a vector along the unit-stride axis: one access if it lies
        inside, else element by element, each guarded.
        """
        raise only_in_kernel(".put()")

    def load(self, *index: Extent, vec: int = 16) -> Fragment[D]:
        """`vec` bytes (2, 4, 8, 16) from `index` on along the unit-stride axis, in one access, as a
        1-D fragment. Unguarded. (PTX ISA: ld.v2, ld.v4.)"""
        raise only_in_kernel(".load()")

    @overload
    def store(self, i: Extent, fragment: Fragment[D], /) -> None: ...
    @overload
    def store(self, i: Extent, j: Extent, fragment: Fragment[D], /) -> None: ...
    @overload
    def store(self, i: Extent, j: Extent, k: Extent, fragment: Fragment[D], /) -> None: ...
    @overload
    def store(self, i: Extent, j: Extent, k: Extent, m: Extent, fragment: Fragment[D], /) -> None: ...
    def store(self, *index_and_fragment: Any) -> None:
        """``S.store(i, j, fragment)``: write a 1-D fragment of 2, 4, 8 or 16 bytes along the
        unit-stride axis in one access. Unguarded. (PTX ISA: st.v2, st.v4.)"""
        raise only_in_kernel(".store()")

    @overload
    def atomic_add(self, i: Extent, value: D | float, /) -> D: ...
    @overload
    def atomic_add(self, i: Extent, j: Extent, value: D | float, /) -> D: ...
    @overload
    def atomic_add(self, i: Extent, j: Extent, k: Extent, value: D | float, /) -> D: ...
    @overload
    def atomic_add(self, i: Extent, j: Extent, k: Extent, m: Extent, value: D | float, /) -> D: ...
    def atomic_add(self, *index_and_value: Any) -> Any:
        """``C.atomic_add(i, j, value)``: add in one indivisible step; returns the old element.

        f64, f32, f16, bf16, i32, u32, i64, u64. Relaxed, device scope; the order among threads is
        not defined, so float sums may differ between runs. Unguarded. (PTX ISA: atom.add, red.add.)
        """
        raise only_in_kernel(".atomic_add()")

    @property
    def rank(self) -> int:
        """How many axes there are, a compile-time int."""
        raise only_in_kernel(".rank")

    @property
    def dtype(self) -> type[D]:
        """dtype of an element, a compile-time value: ``A.dtype(0)`` is a zero of it."""
        raise only_in_kernel(".dtype")

    @property
    def unit(self) -> int:
        """The axis of stride 1, along which vectors go, or -1: a compile-time int."""
        raise only_in_kernel(".unit")

    @property
    def align(self) -> int:
        """Largest of 16, 8, 4, 2, 1 bytes that divides the address and every stride but the unit
        one, a compile-time int: a kernel can choose its vector width by it."""
        raise only_in_kernel(".align")


class SharedTile(Memory[D]):
    """A tile in the block's shared memory, row-major. Made by `shared`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in elements, compile-time ints."""
        raise only_in_kernel(".shape")

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance in elements between neighbours along each axis, compile-time ints."""
        raise only_in_kernel(".strides")


class Global(Memory[D], Generic[D, *Dims]):
    """A tensor in global memory: ``A: Global[f32, M, K]``, of rank 1 to 4.

    The first argument is a dtype, or a `TypeVar` for a dtype-generic kernel. A dimension is a `Dim`
    class (an extent known at launch; one name has one extent) or ``Literal[3]`` (a static extent).
    ``Global[f32, N] | None`` is optional: ``if bias is not None`` is decided at compile time.
    Strides are any; the specialisation knows which one is 1.
    """

    @property
    def shape(self) -> tuple[index, ...]:
        """Extents in elements. A static one is a compile-time int."""
        raise only_in_kernel(".shape")

    @property
    def strides(self) -> tuple[index, ...]:
        """Distance in elements between neighbours along each axis. The unit one is a compile-time 1."""
        raise only_in_kernel(".strides")


def shared(
    shape: int | tuple[int, ...],
    dtype: type[D],
    over: SharedTile[Any] | tuple[SharedTile[Any], ...] | None = None,
) -> SharedTile[D]:
    """Allocate a tile in the block's shared memory; its contents are undefined.

    shape: compile-time extents in elements. dtype: any but `index`. over: earlier tiles whose bytes
    this one may reuse; without it tiles are disjoint. Call it at the kernel's top level. The tile starts
    at a multiple of 16 bytes. Needing more than the target has is an error that lists every tile.
    """
    raise only_in_kernel("shared()")


def fragment(shape: int | tuple[int, ...], dtype: type[D], init: D | float = 0) -> Fragment[D]:
    """Registers of this thread as an array of compile-time `shape`, every element `init`."""
    raise only_in_kernel("fragment()")
