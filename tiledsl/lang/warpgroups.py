"""Products of warpgroups: 128 threads multiply tiles in shared memory, and do not wait for the result.

`tiledsl.layout.wgmma` lists the products.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from tiledsl.lang.dtypes import Scalar
from tiledsl.lang.fragments import Fragment
from tiledsl.lang.memory import Memory
from tiledsl.lang.misuse import only_in_kernel
from tiledsl.layout.fragments import FragmentLayout

__all__ = ["Pending", "wgmma"]

D = TypeVar("D", bound=Scalar)
E = TypeVar("E", bound=Scalar)
F = TypeVar("F", bound=Scalar)


class Pending(Generic[D]):
    """An accumulator that products are being added to. It has no elements yet: ``acc.wait()`` gives them.

    Every one is used once: a product takes it and gives the next, `wait` ends it. Loops and branches carry it.
    """

    def wait(self) -> Fragment[D]:
        """Wait for all products of this warpgroup. The fragment has the layout of an accumulator of m16n8k16, its rows
        interleaved over warps as wgmma does; of a sum of no products it is 0. Slots of rings that the products read are
        free then. (PTX ISA: wgmma.wait_group.)"""
        raise only_in_kernel(".wait()")

    a: FragmentLayout
    """The layout of a left operand in registers."""

    layout: FragmentLayout
    """The layout that the fragment will have."""


class Wgmma:
    """The product of warpgroups, ``acc = wgmma(a, b, acc)``, and its accumulators, ``wgmma.accumulator(...)``."""

    __name__ = "wgmma"

    def __call__(self, a: Memory[D] | Fragment[D], b: Memory[E], acc: Pending[F]) -> Pending[F]:
        """Begins ``a b + acc``: a is m x k, b k x n, acc m x n.

        a, b: views of shared tiles with a `swizzle_128b`, `swizzle_64b` or `swizzle_32b` layout; ``S.T`` is one
        transposed. 8- and 32-bit elements are contiguous along k; 16-bit ones along either axis. A view of a part of a
        tile, ``S[:, :176]``, begins where a panel does, and may end within one. a may be a fragment, in the layout
        ``acc.a``. k is a multiple of 32 bytes, m of 64 for each warpgroup, n of 8 up to 256. What is read
        may not be written before the product has ended.

        In ``with ring.use()`` the region places fence, commit and wait; elsewhere `ptx.wgmma_fence` stands before the
        first product and `ptx.wgmma_commit` behind the last one. (PTX ISA: wgmma.mma_async.)
        """
        raise only_in_kernel("wgmma()")

    def accumulator(self, shape: tuple[int, int], dtype: type[D]) -> Pending[D]:
        """An accumulator of 0, of compile-time shape, that the warpgroups of the role (else of the block) hold
        together: 64 rows of every multiple of 64 per warpgroup. Nothing is written: the first product does not add."""
        raise only_in_kernel("wgmma.accumulator()")


wgmma = Wgmma()
"""The product of warpgroups."""
