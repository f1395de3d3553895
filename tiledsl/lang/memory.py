"""Memory in a kernel: tensors in global memory, tiles in shared memory, and views of both.

Vector widths are in bytes. An access of 2, 4, 8 or 16 bytes must be provably aligned: for a tensor
from its specialisation (`Global.align`) and the indices, else compiling fails and says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, TypeVarTuple, overload

from tiledsl.lang.dim import Dim
from tiledsl.lang.dtypes import Scalar, index
from tiledsl.lang.fragments import Fragment
from tiledsl.lang.misuse import only_in_kernel, typed_like
from tiledsl.lang.ranges import Extent
from tiledsl.lang.sync import Scope
from tiledsl.layout.shared import Layout

if TYPE_CHECKING:
    from tiledsl.lang.fragments import Slice

__all__ = ["Global", "Memory", "SharedTile", "View", "shared"]

D = TypeVar("D", bound=Scalar)
Dims = TypeVarTuple("Dims")

At: TypeAlias = index | int | type[Dim] | Fragment[index]
"""One index of an access: a fragment of them names an element for each of its own."""


LoadOrder: TypeAlias = Literal["relaxed", "acquire", "volatile"]
StoreOrder: TypeAlias = Literal["relaxed", "release", "volatile"]
UpdateOrder: TypeAlias = Literal["relaxed", "acquire", "release", "acq_rel"]


class Memory(Generic[D]):
    """What `Global` tensors, shared tiles and views of them have in common.

    Indices are `index` values, ints or dimensions, one an axis. There are no negative indices. Where some are fragments
    of indices, of one shape and layout, an access goes element by element, and what it reads is such a fragment.
    """

    @overload
    def __getitem__(self, index: Extent | tuple[Extent, ...]) -> D: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __getitem__(self, index: Slice | tuple[Extent | Slice, ...]) -> View[D]: ...
    @overload
    def __getitem__(self, index: At | tuple[At, ...]) -> Fragment[D]: ...
    def __getitem__(self, index: Any) -> Any:
        """The element at `index`. Out of bounds is an error of the kernel: the emulator reports it,
        a static one is a compile error, a GPU reads what is there. (PTX ISA: ld.)

        With a `Range` or a slice (``:``, ``2:6``) along some axes, the view of these elements; axes with a
        number are dropped. A slice that leaves a static extent is an error.
        """
        raise only_in_kernel("an element access")

    @overload
    def __setitem__(self, index: Extent | tuple[Extent, ...], value: D | float) -> None: ...
    @overload
    def __setitem__(self, index: At | tuple[At, ...], value: D | float | Fragment[D]) -> None: ...
    def __setitem__(self, index: Any, value: Any) -> None:
        """Write the element at `index`. Out of bounds: as for reading. (PTX ISA: st.)"""
        raise only_in_kernel("an element access")

    @overload
    def get(self, *index: Extent, other: D | float = 0) -> D: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def get(self, *index: Extent, other: D | float | Fragment[D] = 0, vec: int) -> Fragment[D]: ...
    @overload
    def get(self, *index: At, other: D | float | Fragment[D] = 0) -> Fragment[D]: ...
    def get(self, *index: At, other: Any = 0, vec: int = 0) -> Any:
        """The element at `index`, or `other` (and memory is not touched) if it is out of bounds.

        vec: bytes of a vector along the unit-stride axis, as a 1-D fragment: one access if it is
        inside, else element by element, each guarded. 0 reads one element as a scalar. For a vector
        `other` may be a fragment.
        """
        raise only_in_kernel(".get()")

    def put(self, *index_and_value: *tuple[*tuple[At, ...], D | float | Fragment[D]]) -> None:
        """``C.put(row, col, value)``: write `value` unless `index` is out of bounds.

        A 1-D fragment is written as a vector along the unit-stride axis: one access if it is
        inside, else element by element, each guarded. With fragments of indices, `value` is one element for all
        of them, or a fragment of their shape and layout.
        """
        raise only_in_kernel(".put()")

    def load(self, *index: Extent, vec: int = 16) -> Fragment[D]:
        """`vec` bytes (2, 4, 8, 16) from `index` on along the unit-stride axis, in one access, as a
        1-D fragment. Unguarded. (PTX ISA: ld.v2, ld.v4.)"""
        raise only_in_kernel(".load()")

    def store(self, *index_and_fragment: *tuple[*tuple[Extent, ...], Fragment[D]]) -> None:
        """``S.store(i, j, fragment)``: write a 1-D fragment of 2, 4, 8 or 16 bytes along the
        unit-stride axis in one access. Unguarded. (PTX ISA: st.v2, st.v4.)"""
        raise only_in_kernel(".store()")

    # -- atomic operations: docs/memory_model.md says what orders and scopes mean --------------------

    @overload
    def atomic_load(self, *index: Extent, order: LoadOrder = "relaxed", scope: Scope = "gpu") -> D: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def atomic_load(self, *index: At, order: LoadOrder = "relaxed", scope: Scope = "gpu") -> Fragment[D]: ...
    def atomic_load(self, *index: Any, order: LoadOrder = "relaxed", scope: Scope = "gpu") -> Any:
        """``flag.atomic_load(i, order="acquire")``: the element, read anew each time. Unguarded.

        The only load that sees what other threads write meanwhile, so that a loop may wait by it. Any dtype but
        formats of matrix operands. A volatile one has scope "sys". (PTX ISA: ld.relaxed, ld.acquire, ld.volatile.)
        """
        raise only_in_kernel(".atomic_load()")

    def atomic_store(
        self, *index_and_value: At | D | float | Fragment[D], order: StoreOrder = "relaxed", scope: Scope = "gpu"
    ) -> None:
        """``flag.atomic_store(i, v, order="release")``: writes the element, for others that wait for it. Unguarded.

        Any dtype but formats of matrix operands. A volatile one has scope "sys".
        (PTX ISA: st.relaxed, st.release, st.volatile.)
        """
        raise only_in_kernel(".atomic_store()")

    @overload
    def atomic_add(  # pyright: ignore[reportOverlappingOverload]
        self, *index_and_value: Extent | D | float, order: UpdateOrder = "relaxed", scope: Scope = "gpu"
    ) -> D: ...
    @overload
    def atomic_add(
        self, *index_and_value: At | D | float | Fragment[D], order: UpdateOrder = "relaxed", scope: Scope = "gpu"
    ) -> Fragment[D]: ...
    def atomic_add(self, *index_and_value: Any, order: UpdateOrder = "relaxed", scope: Scope = "gpu") -> Any:
        """``C.atomic_add(i, j, value)``: add in one indivisible step; returns the old element.

        f64, f32, f16, bf16, i32, u32, i64, u64. The order among threads is not defined, so float sums may
        differ between runs. Unguarded. (PTX ISA: atom.add, red.add.)
        """
        raise only_in_kernel(".atomic_add()")

    @typed_like(atomic_add)
    def atomic_exchange(self, *index_and_value: Any, order: UpdateOrder = "relaxed", scope: Scope = "gpu") -> Any:
        """``C.atomic_exchange(i, j, value)``: write in one indivisible step; returns the old element.

        f64, f32, i32, u32, i64, u64. Unguarded. (PTX ISA: atom.exch.)
        """
        raise only_in_kernel(".atomic_exchange()")

    @typed_like(atomic_add)
    def atomic_cas(self, *index_and_value: Any, order: UpdateOrder = "relaxed", scope: Scope = "gpu") -> Any:
        """``C.atomic_cas(i, j, compare, value)``: write `value` if the element is `compare`, in one indivisible step;
        returns the old element.

        Bits are compared: 0.0 is not -0.0, and a NaN is itself. Numbers of 16, 32 and 64 bits. Unguarded.
        (PTX ISA: atom.cas.)
        """
        raise only_in_kernel(".atomic_cas()")

    @typed_like(atomic_add)
    def atomic_min(self, *index_and_value: Any, order: UpdateOrder = "relaxed", scope: Scope = "gpu") -> Any:
        """``C.atomic_min(i, j, value)``: the element becomes the lesser of it and `value`; returns the old one.

        i32, u32, i64, u64. Unguarded. (PTX ISA: atom.min.)
        """
        raise only_in_kernel(".atomic_min()")

    @typed_like(atomic_add)
    def atomic_max(self, *index_and_value: Any, order: UpdateOrder = "relaxed", scope: Scope = "gpu") -> Any:
        """``C.atomic_max(i, j, value)``: the element becomes the greater of it and `value`; returns the old one.

        i32, u32, i64, u64. Unguarded. (PTX ISA: atom.max.)
        """
        raise only_in_kernel(".atomic_max()")

    @typed_like(atomic_add)
    def atomic_and(self, *index_and_value: Any, order: UpdateOrder = "relaxed", scope: Scope = "gpu") -> Any:
        """``C.atomic_and(i, j, value)``: the element becomes it ``& value``; returns the old one.

        i32, u32, i64, u64. Unguarded. (PTX ISA: atom.and.)
        """
        raise only_in_kernel(".atomic_and()")

    @typed_like(atomic_add)
    def atomic_or(self, *index_and_value: Any, order: UpdateOrder = "relaxed", scope: Scope = "gpu") -> Any:
        """``C.atomic_or(i, j, value)``: the element becomes it ``| value``; returns the old one.

        i32, u32, i64, u64. Unguarded. (PTX ISA: atom.or.)
        """
        raise only_in_kernel(".atomic_or()")

    @typed_like(atomic_add)
    def atomic_xor(self, *index_and_value: Any, order: UpdateOrder = "relaxed", scope: Scope = "gpu") -> Any:
        """``C.atomic_xor(i, j, value)``: the element becomes it ``^ value``; returns the old one.

        i32, u32, i64, u64. Unguarded. (PTX ISA: atom.xor.)
        """
        raise only_in_kernel(".atomic_xor()")

    @property
    def T(self) -> View[D]:  # noqa: N802 - as in NumPy
        """A view with the axes in reverse order."""
        raise only_in_kernel(".T")

    rank: int
    """How many axes there are, a compile-time int."""

    dtype: type[D]
    """dtype of an element, a compile-time value: ``A.dtype(0)`` is a zero of it."""

    unit: int
    """The axis of stride 1, along which vectors go, or -1: a compile-time int."""

    align: int
    """Largest of 16, 8, 4, 2, 1 bytes that divides the address and every stride but the unit
    one, a compile-time int: a kernel can choose its vector width by it. Not of a view."""

    whole: bool
    """Of a tensor: `align` divides the extent along the unit axis, too, in bytes. Then no vector of so many bytes lies
    across the edge, and with an `align` of 16 TMA can store the tensor. Compile-time; not of a view."""


class View(Memory[D]):
    """A part of a tensor or tile, or one with its axes in another order: ``A[rows, columns]``, ``As.T``.

    It holds no elements of its own: reading and writing it reads and writes what it is a view of.
    Guards are at the edges of that tensor, not at those of the view. It is known at compile time, so it
    can be passed to tile functions, but an `if` at run time cannot choose between two views.
    """

    shape: tuple[int, ...]
    """Extents in elements: compile-time ints, but for whole axes of a tensor."""

    strides: tuple[index, ...]
    """Distance in elements between neighbours along each axis; compile-time ints where known."""


class SharedTile(Memory[D]):
    """A tile in the block's shared memory. Made by `shared`."""

    shape: tuple[int, ...]
    """Extents in elements, compile-time ints."""

    strides: tuple[int, ...]
    """Distance in elements between neighbours along each axis in row order, which a layout may change:
    compile-time ints."""


class Global(Memory[D], Generic[D, *Dims]):
    """A tensor in global memory: ``A: Global[f32, M, K]``, of rank 1 to 4.

    The first argument is a dtype, or a `TypeVar` for a dtype-generic kernel. A dimension is a `Dim`
    class (an extent known at launch; one name has one extent) or ``Literal[3]`` (a static extent).
    ``Global[f32, N] | None`` is optional: ``if bias is not None`` is decided at compile time.
    Strides are any; the specialisation knows which one is 1.
    """

    shape: tuple[index, ...]
    """Extents in elements. A static one is a compile-time int."""

    strides: tuple[index, ...]
    """Distance in elements between neighbours along each axis. The unit one is a compile-time 1."""


def shared(
    shape: int | tuple[int, ...],
    dtype: type[D],
    over: SharedTile[Any] | tuple[SharedTile[Any], ...] | None = None,
    layout: Layout | None = None,
) -> SharedTile[D]:
    """Allocate a tile in the block's shared memory; its contents are undefined.

    shape: compile-time extents in elements. dtype: any but `index`. over: earlier tiles whose bytes
    this one may reuse; without it tiles are disjoint. layout: `row_major`, `padded` or `swizzled`; None lets
    the compiler choose the one with the fewest bank conflicts. Call it at the kernel's top level. The tile
    starts at a multiple of 16 bytes. Needing more than the target has is an error that lists every tile.
    """
    raise only_in_kernel("shared()")
