"""Raw PTX, for what the language does not have."""

from __future__ import annotations

from typing import Any, Callable, Literal, TypedDict, TypeVar, Unpack, overload

from tiledsl.lang.dtypes import Scalar, boolean, i32, u32, u64
from tiledsl.lang.fragments import Fragment
from tiledsl.lang.memory import Extent, Memory
from tiledsl.lang.misuse import only_in_kernel

__all__ = [
    "cluster_arrive",
    "cluster_rank",
    "cluster_wait",
    "commit_group",
    "cp_async",
    "elect",
    "fence_mbarrier_init",
    "fence_proxy_async",
    "griddepcontrol_launch",
    "griddepcontrol_wait",
    "inline",
    "ldmatrix",
    "mbarrier_arrive",
    "mbarrier_expect_tx",
    "mbarrier_init",
    "mbarrier_wait",
    "mma_sync",
    "named_barrier",
    "setmaxnreg",
    "st_async",
    "stmatrix",
    "wait_group",
    "wgmma_commit",
    "wgmma_fence",
    "wgmma_wait",
]

A = TypeVar("A", bound=Scalar)
B = TypeVar("B", bound=Scalar)
C = TypeVar("C", bound=Scalar)
E = TypeVar("E", bound=Scalar)
Emulation = Callable[..., Any]


class InlineOptions(TypedDict, total=False):
    """The keywords of `inline`."""

    volatile: bool
    convergent: bool
    memory: Literal["unknown", "nothing", "reads", "writes"]
    uniform: Literal["thread", "warp", "cta", "operands"]
    emulate: Emulation | None


@overload
def inline(text: str, outputs: tuple[()] | None, *operands: Scalar, **options: Unpack[InlineOptions]) -> None: ...
@overload
def inline(text: str, outputs: type[A], *operands: Scalar, **options: Unpack[InlineOptions]) -> A: ...
@overload
def inline(
    text: str, outputs: tuple[type[A], type[B]], *operands: Scalar, **options: Unpack[InlineOptions]
) -> tuple[A, B]: ...
@overload
def inline(
    text: str, outputs: tuple[type[A], type[B], type[C]], *operands: Scalar, **options: Unpack[InlineOptions]
) -> tuple[A, B, C]: ...
@overload
def inline(
    text: str, outputs: tuple[type[A], type[B], type[C], type[E]], *operands: Scalar, **options: Unpack[InlineOptions]
) -> tuple[A, B, C, E]: ...
@overload
def inline(
    text: str, outputs: tuple[type[A], ...], *operands: Scalar, **options: Unpack[InlineOptions]
) -> tuple[A, ...]: ...
def inline(
    text: str,
    outputs: Any,
    *operands: Scalar,
    volatile: bool = False,
    convergent: bool = False,
    memory: Literal["unknown", "nothing", "reads", "writes"] = "unknown",
    uniform: Literal["thread", "warp", "cta", "operands"] = "thread",
    emulate: Emulation | None = None,
) -> Any:
    """PTX instructions: ``ptx.inline("lop3.b32 $0, $1, $2, $3, 0xe8;", u32, a, b, c)``.

    text: names the outputs, then the operands, as $0, $1, ...; ``${:uid}`` makes a label unique.
    outputs: a dtype, a tuple of dtypes, or None. volatile: it does more than compute its outputs, so
    it is kept and stays in order. convergent: control flow around it is not changed.
    memory: what it does to memory that tensors and tiles have; "writes" stands for both, and either for volatile.
    "unknown": it may write anything if an operand stands in brackets. uniform: which threads are sure to get the same
    outputs; with "operands", those that gave it the same operands.
    emulate: a function from NumPy arrays, one an operand, to the output's array or a tuple of them;
    without it the emulator reports an error at this line. `k.check` takes what it computes for what the PTX does, and
    its verdict names the line.
    Operands in brackets are addresses, integers of 32 or 64 bits.
    """
    raise only_in_kernel("ptx.inline()")


# -- matrices: registers of one lane -----------------------------------------------------------------


def ldmatrix(src: Memory[Any], *index: Extent, num: int = 4, trans: bool = False) -> Fragment[u32]:
    """``ptx.ldmatrix(S, row, column)``: `num` matrices of 8 rows x 16 bytes of a shared tile, as `num` registers.

    Lane i says where row i % 8 of matrix i // 8 begins, a multiple of 16 bytes; the lanes from 8 * num on are not
    asked. Of each matrix lane i gets 4 bytes: those at 4 * (i % 4) of row i // 4. trans: of 16-bit elements, the
    transposed matrix is given out. All lanes of a warp take part. (PTX ISA: ldmatrix.)
    """
    raise only_in_kernel("ptx.ldmatrix()")


def stmatrix(
    dst: Memory[Any], *index_and_words: *tuple[*tuple[Extent, ...], Fragment[u32]], trans: bool = False
) -> None:
    """``ptx.stmatrix(S, row, column, words)``: writes 1, 2 or 4 registers to where `ldmatrix` reads them. From sm_90
    on.

    (PTX ISA: stmatrix.)
    """
    raise only_in_kernel("ptx.stmatrix()")


def mma_sync(
    shape: str,
    a: Fragment[Any],
    b: Fragment[Any],
    c: Fragment[A],
    dtypes: tuple[type[Scalar], type[Scalar], type[Scalar]],
) -> Fragment[A]:
    """``c = ptx.mma_sync("m16n8k16", a, b, c, dtypes=(f16, f16, f32))``: one product of a warp, on this lane's
    registers.

    a, b, c: fragments without a layout, of as many registers as a lane has of that operand. Elements narrower than 32
    bits share u32 registers, the first one lowest; others have one each, and those of 32 bits may come as u32. dtypes:
    of the elements of a, of b, and of c and the result. All lanes of a warp take part. (PTX ISA: mma.)
    """
    raise only_in_kernel("ptx.mma_sync()")


# -- asynchronous copies of one thread ---------------------------------------------------------------


def cp_async(
    dst: Memory[B],
    dst_index: Extent | tuple[Extent, ...],
    src: Memory[B],
    src_index: Extent | tuple[Extent, ...],
    bytes: int = 16,
) -> None:
    """``ptx.cp_async(S, (i, j), A, (row, column))``: begins a copy of `bytes` by this thread, from a `Global` to a
    shared tile.

    Both run along the axis of stride 1, aligned to `bytes`. Elements past the edge arrive as 0. (PTX ISA: cp.async.)
    """
    raise only_in_kernel("ptx.cp_async()")


def commit_group() -> None:
    """The copies that this thread has begun since its last group are a group. (PTX ISA: cp.async.commit_group.)"""
    raise only_in_kernel("ptx.commit_group()")


def wait_group(pending: int) -> None:
    """Wait until at most the last `pending` groups of this thread, a compile-time int, are in flight. What has
    arrived, other threads see after a `barrier`. (PTX ISA: cp.async.wait_group.)"""
    raise only_in_kernel("ptx.wait_group()")


# -- barriers in shared memory -----------------------------------------------------------------------


def mbarrier_init(barriers: Memory[u64], *index: Extent, count: int) -> None:
    """``ptx.mbarrier_init(bars, i, count=1)``: element `i` of a shared tile of u64 becomes an mbarrier in phase 0.

    Each of its phases ends after `count` arrivals and all bytes that it expects. One thread does it; the others see it
    after `fence_mbarrier_init` (or a proxy fence, for TMA) and a barrier. (PTX ISA: mbarrier.init.)
    """
    raise only_in_kernel("ptx.mbarrier_init()")


def mbarrier_arrive(
    barriers: Memory[u64], *index: Extent, rank: i32 | int | None = None, scope: Literal["cta", "cluster"] = "cluster"
) -> None:
    """This thread arrives; what it did to memory before is seen by those that wait for the phase.

    rank: of the block in the cluster whose mbarrier at the same place is meant. scope: "cta" orders shared memory
    only between blocks, and costs no fence. (PTX ISA: mbarrier.arrive.)
    """
    raise only_in_kernel("ptx.mbarrier_arrive()")


def mbarrier_expect_tx(barriers: Memory[u64], *index: Extent, bytes: int) -> None:
    """This thread arrives, and the phase waits for `bytes`, a compile-time int, more to come by `tma_load` or
    `st_async`.

    (PTX ISA: mbarrier.arrive.expect_tx.)
    """
    raise only_in_kernel("ptx.mbarrier_expect_tx()")


def st_async(
    dst: Memory[Any], *index_and_value: Any, mbarrier: tuple[Memory[u64], *tuple[Extent, ...]], rank: i32 | int
) -> None:
    """``ptx.st_async(S, i, j, x, mbarrier=(bars, b), rank=r)``: stores x, a scalar or a fragment, as ``S[i, j]`` and on
    of the block of rank `r` in the cluster.

    It goes on by itself: the bytes, 4, 8 or 16 of 4- or 8-byte elements, count at that block's mbarrier, which expects
    them (`mbarrier_expect_tx`); who has waited for its phase reads them. That block must run, and be done with what is
    there. (PTX ISA: st.async, sm_90.)
    """
    raise only_in_kernel("ptx.st_async()")


def mbarrier_wait(
    barriers: Memory[u64], *index: Extent, parity: u32 | int, scope: Literal["cta", "cluster"] = "cluster"
) -> None:
    """Waits until the phase of this parity, 0 or 1, has ended: the current phase, or the one before it.

    scope: as of `mbarrier_arrive`. (PTX ISA: mbarrier.try_wait.parity, in a loop.)
    """
    raise only_in_kernel("ptx.mbarrier_wait()")


def fence_mbarrier_init() -> None:
    """mbarriers that this thread has initialised are seen as such by its cluster. (PTX ISA: fence.mbarrier_init.)"""
    raise only_in_kernel("ptx.fence_mbarrier_init()")


def fence_proxy_async(space: Literal["shared", "global"] = "shared") -> None:
    """This thread's plain accesses to shared memory come before what TMA and wgmma do there later.

    Each thread that wrote what they touch makes one, and each that read what TMA overwrites; then a barrier or an
    mbarrier lets the thread know that begins it. space: "global": the same of tensors, which TMA accesses; the thread
    that begins it may also make one itself, after it has waited for those who wrote. (PTX ISA: fence.proxy.async.)
    """
    raise only_in_kernel("ptx.fence_proxy_async()")


# -- warpgroups, blocks and clusters -----------------------------------------------------------------


def wgmma_fence() -> None:
    """Registers that were written before it may be used by the products of `wgmma` behind it.

    (PTX ISA: wgmma.fence.)
    """
    raise only_in_kernel("ptx.wgmma_fence()")


def wgmma_commit() -> None:
    """The products that this warpgroup has begun since its last group are a group. (PTX ISA: wgmma.commit_group.)"""
    raise only_in_kernel("ptx.wgmma_commit()")


def wgmma_wait(pending: int) -> None:
    """Wait until at most the last `pending` groups of this warpgroup, a compile-time int, are in flight.

    Shared tiles that finished products have read may be written again; the accumulators are read by ``acc.wait()``.
    (PTX ISA: wgmma.wait_group.)
    """
    raise only_in_kernel("ptx.wgmma_wait()")


def setmaxnreg(registers: int, increase: bool) -> None:
    """The warps of this warpgroup acquire (`increase`) or release registers, so that each thread has `registers`, a
    multiple of 8 from 24 to 256. `role` does it by itself. (PTX ISA: setmaxnreg.)"""
    raise only_in_kernel("ptx.setmaxnreg()")


def elect() -> boolean:
    """True in one lane of the warp, false in the others. All lanes of a warp take part. (PTX ISA: elect.sync.)"""
    raise only_in_kernel("ptx.elect()")


def named_barrier(number: int, threads: int, wait: bool = True) -> None:
    """`threads` threads, whole warps, wait for each other at barrier `number`, 1 to 15. wait=False: they arrive only.

    All are compile-time. Roles have the lowest numbers, in the order in which they stand. (PTX ISA: barrier.cta.sync,
    barrier.cta.arrive.)
    """
    raise only_in_kernel("ptx.named_barrier()")


def cluster_arrive() -> None:
    """This thread arrives at the barrier of its cluster. (PTX ISA: barrier.cluster.arrive.)"""
    raise only_in_kernel("ptx.cluster_arrive()")


def cluster_wait() -> None:
    """Waits until all threads of the cluster have arrived. (PTX ISA: barrier.cluster.wait.)"""
    raise only_in_kernel("ptx.cluster_wait()")


def cluster_rank() -> i32:
    """Number of this block in its cluster, x fastest. (PTX ISA: %cluster_ctarank.)"""
    raise only_in_kernel("ptx.cluster_rank()")


# -- launches that overlap ---------------------------------------------------------------------------


def griddepcontrol_wait() -> None:
    """Wait until the grid that this one depends on has ended; its writes are seen then. (PTX ISA: griddepcontrol.)"""
    raise only_in_kernel("ptx.griddepcontrol_wait()")


def griddepcontrol_launch() -> None:
    """The grid that depends on this one may be launched, once all blocks have said so or ended.

    (PTX ISA: griddepcontrol.launch_dependents.)
    """
    raise only_in_kernel("ptx.griddepcontrol_launch()")
