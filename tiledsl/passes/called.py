"""What the kernel's author calls an op or a memory, for messages."""

from __future__ import annotations

from tiledsl.ir.core import Op, Value
from tiledsl.ir.ops import matrix, tile
from tiledsl.ir.types import SharedType

__all__ = ["called", "name_of"]

_CALLED = {
    "gpu.barrier": "barrier()",
    "gpu.sync_warp": "syncwarp()",
    "gpu.fence": "fence()",
    "tile.copy": "copy()",
    "async.copy": "copy_async()",
    "async.wait": "wait()",
    "async.cp": "ptx.cp_async()",
    "async.commit_group": "ptx.commit_group()",
    "async.wait_group": "ptx.wait_group()",
    "matrix.mma": "mma()",
    "matrix.ldmatrix": "ptx.ldmatrix()",
    "matrix.stmatrix": "ptx.stmatrix()",
    "mem.ldmatrix": "ldmatrix",
    "mem.stmatrix": "stmatrix",
    "tma.load": "tma_load()",
    "tma.store": "store_tma()",
    "tma.prefetch": "tma_prefetch()",
    "tma.commit_group": "tma_commit()",
    "tma.wait_group": "tma_wait()",
    "wgmma.mma": "wgmma()",
    "wgmma.begin": "wgmma.accumulator()",
    "wgmma.wait": "wait()",
    "wgmma.fence": "ptx.wgmma_fence()",
    "wgmma.commit_group": "ptx.wgmma_commit()",
    "mbarrier.init": "ptx.mbarrier_init()",
    "mbarrier.arrive": "ptx.mbarrier_arrive()",
    "mbarrier.expect_tx": "ptx.mbarrier_expect_tx()",
    "mbarrier.wait": "ptx.mbarrier_wait()",
    "gpu.named_barrier": "a barrier of some warps",
    "gpu.setmaxnreg": "ptx.setmaxnreg()",
    "cluster.arrive": "ptx.cluster_arrive()",
    "cluster.wait": "ptx.cluster_wait()",
    "warp.elect": "ptx.elect()",
    "ptx.mma_sync": "ptx.mma_sync()",
    "warp.shuffle": "a shuffle",
    "warp.vote": "a vote",
}


def called(op: Op) -> str:
    """The function that the author calls for `op`; the op's name if there is none."""
    match op:
        case matrix.Load():
            return "load_matrix()" if op.vec == 0 else "load_fragment()"
        case matrix.Store():
            return "store_matrix()" if op.vec == 0 else "store()"
        case tile.Atomic():
            return f"atomic_{op.fn.name}()"
        case _:
            return _CALLED.get(op.name, op.name)


def name_of(memory: Value) -> str:
    """A tensor or tile by its name, if it has one."""
    return memory.name or ("the tile" if isinstance(memory.type, SharedType) else "the tensor")
