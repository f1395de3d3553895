"""Exchange between the 32 lanes of a warp. All lanes must take part. (PTX ISA: shfl.sync, vote.sync.)

`width`, a power of two up to 32, splits the warp into groups; a source outside the own group gives
the lane's own value. Any dtype of 1 to 8 bytes. If a block's threads are no multiple of 32, its last warp lacks lanes:
a shuffle gets an undefined value from one of these, and votes ask the others.
"""

from __future__ import annotations

from typing import TypeVar

from tiledsl.lang.dtypes import Scalar, boolean, i32, index, u32
from tiledsl.lang.misuse import only_in_kernel

__all__ = ["ballot", "shuffle", "shuffle_down", "shuffle_up", "shuffle_xor", "vote_all", "vote_any"]

S = TypeVar("S", bound=Scalar)
Lane = i32 | index | int


def shuffle(value: S, lane: Lane, width: int = 32) -> S:
    """The `value` of lane `lane` (modulo `width`) of the own group."""
    raise only_in_kernel("shuffle()")


def shuffle_up(value: S, distance: Lane, width: int = 32) -> S:
    """The `value` of the lane `distance` below."""
    raise only_in_kernel("shuffle_up()")


def shuffle_down(value: S, distance: Lane, width: int = 32) -> S:
    """The `value` of the lane `distance` above."""
    raise only_in_kernel("shuffle_down()")


def shuffle_xor(value: S, mask: Lane, width: int = 32) -> S:
    """The `value` of the lane whose number is the own one xor `mask`."""
    raise only_in_kernel("shuffle_xor()")


def vote_any(predicate: boolean | bool) -> boolean:
    """True in every lane if `predicate` is true in one of them."""
    raise only_in_kernel("vote_any()")


def vote_all(predicate: boolean | bool) -> boolean:
    """True in every lane if `predicate` is true in all of them."""
    raise only_in_kernel("vote_all()")


def ballot(predicate: boolean | bool) -> u32:
    """The predicates of all lanes, bit i of lane i."""
    raise only_in_kernel("ballot()")
