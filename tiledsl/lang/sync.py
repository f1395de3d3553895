"""Synchronisation of threads and of their memory accesses."""

from __future__ import annotations

from typing import Literal, TypeAlias

from tiledsl.lang.misuse import only_in_kernel

__all__ = ["barrier", "fence", "syncwarp"]

Scope: TypeAlias = Literal["cta", "cluster", "gpu", "sys"]
"""Among which threads: those of the block, of its cluster, of the GPU, of all GPUs and the host."""


def barrier() -> None:
    """All threads of the block wait for each other; their memory accesses before it are visible after.

    Every thread must reach it: under a condition that differs within the block it is a compile error.
    (PTX ISA: bar, barrier.)
    """
    raise only_in_kernel("barrier()")


def syncwarp() -> None:
    """The 32 threads of the warp wait for each other, with memory ordering. (PTX ISA: bar.warp.sync.)"""
    raise only_in_kernel("syncwarp()")


def fence(reach: Scope = "gpu") -> None:
    """This thread's accesses to memory before it come before those after it, for all threads of `reach`.

    With an atomic access behind it, this is a release; with one before it, an acquire: see docs/memory_model.md.
    (PTX ISA: fence.acq_rel.)
    """
    raise only_in_kernel("fence()")
