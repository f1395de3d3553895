"""Matrix operands: fragments that the warps of a block hold together, and their products on tensor cores.

``mma.m16n8k16`` is a shape of one instruction; its methods give the layouts of block tiles. `tiledsl.layout.mma` lists
the products, `tiledsl.layout.fragments` says which lane holds what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from tiledsl.lang.dtypes import Scalar, index
from tiledsl.lang.fragments import Fragment
from tiledsl.lang.memory import Memory
from tiledsl.lang.misuse import only_in_kernel
from tiledsl.layout.fragments import FragmentLayout
from tiledsl.layout.mma import SHAPES, MmaShape

__all__ = [
    "convert",
    "coordinates",
    "load_fragment",
    "load_matrix",
    "mma",
    "store",
    "store_matrix",
]

D = TypeVar("D", bound=Scalar)
E = TypeVar("E", bound=Scalar)
F = TypeVar("F", bound=Scalar)


class Product:
    """One shape of ``mma.sync``, m x n x k: an m x k `a` times a k x n `b` is added to an m x n accumulator.

    Its methods give layouts of block tiles. warps: how many share the tile along m and along n; the block has 32
    threads for each. Warps along n hold the same part of `a`, those along m the same part of `b`.
    """

    def __init__(self, shape: MmaShape) -> None:
        self.shape = shape

    def acc(self, warps: tuple[int, int]) -> FragmentLayout:
        """The layout of an accumulator; ``.a`` and ``.b`` of it, or of the fragment, are those of its operands."""
        along_m, along_n = warps
        if not all(type(count) is int and count >= 1 for count in warps):
            raise ValueError(f"warps={warps}: an int each, at least one along each axis")
        return FragmentLayout(self.shape, "acc", (along_m, along_n))

    def a(self, warps: tuple[int, int]) -> FragmentLayout:
        """The layout of a left operand."""
        return self.acc(warps).a

    def b(self, warps: tuple[int, int]) -> FragmentLayout:
        """The layout of a right operand."""
        return self.acc(warps).b

    def __repr__(self) -> str:
        return f"mma.{self.shape}"


class Mma:
    """The product on tensor cores, ``acc = mma(a, b, acc)``, and the shapes of its instructions, ``mma.m16n8k16``."""

    __name__ = "mma"

    m16n8k4 = Product(SHAPES["m16n8k4"])
    """tf32 into f32; f64 from sm_90 on."""
    m16n8k8 = Product(SHAPES["m16n8k8"])
    """f16 into f32 or f16, bf16 and tf32 into f32; f64 from sm_90 on."""
    m16n8k16 = Product(SHAPES["m16n8k16"])
    """f16 into f32 or f16, bf16 into f32, i8 and u8 into i32; f64 from sm_90 on."""
    m16n8k32 = Product(SHAPES["m16n8k32"])
    """i8 and u8 into i32; e4m3 and e5m2 into f32 from sm_89 on."""
    m8n8k4 = Product(SHAPES["m8n8k4"])
    """f64."""

    def __call__(self, a: Fragment[D], b: Fragment[E], acc: Fragment[F]) -> Fragment[F]:
        """``a b + acc``, in the layout of `acc`: a is m x k as ``acc.a``, b is k x n as ``acc.b``, acc m x n.

        A sequence of instructions, k ascending. Which dtypes go together the shape says; f32 is multiplied as tf32:
        ``x.to(tf32)`` rounds, ``x.bitcast(tf32)`` truncates. All lanes of a warp take part. (PTX ISA: mma.)
        """
        raise only_in_kernel("mma()")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Product:
            raise AttributeError(f"mma has no {name}; the shapes are {', '.join(SHAPES)}")


mma = Mma()
"""The product on tensor cores, and the shapes of its instructions."""


def load_matrix(src: Memory[D], layout: FragmentLayout) -> Fragment[D]:
    """``load_matrix(As[:, kk], acc.a)``: a rows-by-columns view of a shared tile as a fragment.

    Elements of up to 32 bits. The tile's axis of stride 1 is the operand's k axis (of an accumulator: its
    columns), or, for 16-bit elements only, the other one. A row of 16 bytes is aligned to 16 bytes. All lanes of a warp
    take part. (PTX ISA: ldmatrix.)
    """
    raise only_in_kernel("load_matrix()")


def load_fragment(src: Memory[D], layout: FragmentLayout, vec: int = 0) -> Fragment[D]:
    """A rows-by-columns view of a `Global` or shared tile as a fragment, by plain loads: any dtype, any order of axes.

    What is past the edge of a `Global` reads as 0. vec: bytes of one access; 0 is one element. More takes elements
    that a lane holds side by side along the axis of stride 1: two of an accumulator's row, 4 bytes of an operand along
    k. (PTX ISA: ld.)
    """
    raise only_in_kernel("load_fragment()")


def store(fragment: Fragment[D], dst: Memory[D], via: Memory[D] | None = None, vec: int = 0) -> None:
    """``store(acc.to(f16), C[m, n])``: a fragment with a layout to a view of its shape and dtype, by plain stores.

    Nothing is written past the edge of a `Global`. vec: as for `load_fragment`. No barrier is implied.

    via: a shared tile of the fragment's shape and dtype, through which it goes, so that whole rows reach `dst`: a
    barrier, the fragment to `via`, a barrier, ``copy(via, dst, vec)``; vec is then 16 unless given. (PTX ISA: st.)
    """
    raise only_in_kernel("store()")


def store_matrix(fragment: Fragment[D], dst: Memory[D]) -> None:
    """A fragment of 16-bit elements to a view of a shared tile, 8 x 8 elements of a warp at a time. From sm_90 on.

    The axes are those of `load_matrix`. No barrier is implied. (PTX ISA: stmatrix.)
    """
    raise only_in_kernel("store_matrix()")


def convert(fragment: Fragment[D], layout: FragmentLayout) -> Fragment[D]:
    """The same elements in another layout, where every thread already holds those that it needs: nothing is
    exchanged.

    So an f16 accumulator becomes the left operand of a next product. Where elements would have to change threads,
    an error says so: store them to a shared tile and load them.
    """
    raise only_in_kernel("convert()")


def coordinates(acc: Fragment[Any]) -> tuple[Fragment[index], Fragment[index]]:
    """``rows, columns = coordinates(acc)``: where each element of an accumulator is in it, as fragments of its
    layout.

    They are indices: ``C.put(m.start + rows, n.start + columns, acc)``, ``acc + bias.get(n.start + columns)``,
    ``where(rows >= columns, acc, 0)``.
    """
    raise only_in_kernel("coordinates()")
