"""Synchronisation of threads and of their memory accesses."""

from __future__ import annotations

from typing import Literal

from tiledsl.lang.misuse import only_in_kernel

__all__ = ["barrier", "fence", "syncwarp"]


def barrier() -> None:
    """All threads of the block wait for each other; their memory accesses before it are visible after.

    Every thread must reach it: under a condition that differs within the block it is a compile error.
    (PTX ISA: bar, barrier.)
    """
    raise only_in_kernel("barrier()")


def syncwarp() -> None:
    """The 32 threads of the warp wait for each other, with memory ordering. (PTX ISA: bar.warp.sync.)"""
    raise only_in_kernel("syncwarp()")


def fence(reach: Literal["cta", "gpu", "sys"] = "gpu") -> None:
    """This thread's writes become visible, to all threads of `reach`, before its later ones.

    (PTX ISA: fence.acq_rel.)
    """
    raise only_in_kernel("fence()")
