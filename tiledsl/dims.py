"""Names of dimensions, for annotations such as ``Global[f32, M, K]``.

A name stands for one extent in all arguments of a launch; in a kernel's body it is that extent. These
are the usual letters; write ``class Rows(Dim): ...`` for any other.
"""

from __future__ import annotations

from tiledsl.lang.dim import Dim

__all__ = ["B", "D", "Dim", "H", "J", "K", "L", "M", "N", "P", "Q", "R", "S"]


class M(Dim):
    """Rows of the result."""


class N(Dim):
    """Columns of the result."""


class K(Dim):
    """The summed dimension."""


class B(Dim):
    """Batch."""


class D(Dim):
    """Features."""


class H(Dim):
    """Heads."""


class J(Dim):
    """Free to use."""


class L(Dim):
    """Length."""


class P(Dim):
    """Free to use."""


class Q(Dim):
    """Free to use."""


class R(Dim):
    """Free to use."""


class S(Dim):
    """Sequence."""
