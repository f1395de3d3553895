"""Raw PTX, for what the language does not have."""

from __future__ import annotations

from typing import Any, Callable, TypeVar, overload

from tiledsl.lang.dtypes import Scalar, u32
from tiledsl.lang.fragments import Fragment
from tiledsl.lang.memory import Extent, Memory
from tiledsl.lang.misuse import only_in_kernel

__all__ = ["commit_group", "cp_async", "inline", "ldmatrix", "mma_sync", "stmatrix", "wait_group"]

A = TypeVar("A", bound=Scalar)
B = TypeVar("B", bound=Scalar)
C = TypeVar("C", bound=Scalar)
E = TypeVar("E", bound=Scalar)
Emulation = Callable[..., Any]


@overload
def inline(
    text: str,
    outputs: tuple[()] | None,
    *operands: Scalar,
    volatile: bool = False,
    convergent: bool = False,
    emulate: Emulation | None = None,
) -> None: ...
@overload
def inline(
    text: str,
    outputs: type[A],
    *operands: Scalar,
    volatile: bool = False,
    convergent: bool = False,
    emulate: Emulation | None = None,
) -> A: ...
@overload
def inline(
    text: str,
    outputs: tuple[type[A], type[B]],
    *operands: Scalar,
    volatile: bool = False,
    convergent: bool = False,
    emulate: Emulation | None = None,
) -> tuple[A, B]: ...
@overload
def inline(
    text: str,
    outputs: tuple[type[A], type[B], type[C]],
    *operands: Scalar,
    volatile: bool = False,
    convergent: bool = False,
    emulate: Emulation | None = None,
) -> tuple[A, B, C]: ...
@overload
def inline(
    text: str,
    outputs: tuple[type[A], type[B], type[C], type[E]],
    *operands: Scalar,
    volatile: bool = False,
    convergent: bool = False,
    emulate: Emulation | None = None,
) -> tuple[A, B, C, E]: ...
@overload
def inline(
    text: str,
    outputs: tuple[type[A], ...],
    *operands: Scalar,
    volatile: bool = False,
    convergent: bool = False,
    emulate: Emulation | None = None,
) -> tuple[A, ...]: ...
def inline(
    text: str,
    outputs: Any,
    *operands: Scalar,
    volatile: bool = False,
    convergent: bool = False,
    emulate: Emulation | None = None,
) -> Any:
    """PTX instructions: ``ptx.inline("lop3.b32 $0, $1, $2, $3, 0xe8;", u32, a, b, c)``.

    text: names the outputs, then the operands, as $0, $1, ...; ``${:uid}`` makes a label unique.
    outputs: a dtype, a tuple of dtypes, or None. volatile: it does more than compute its outputs, so
    it is kept and stays in order. convergent: control flow around it is not changed.
    emulate: a function from NumPy arrays, one an operand, to the output's array or a tuple of them;
    without it the emulator reports an error at this line.
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


@overload
def stmatrix(dst: Memory[Any], i: Extent, words: Fragment[u32], /, *, trans: bool = False) -> None: ...
@overload
def stmatrix(dst: Memory[Any], i: Extent, j: Extent, words: Fragment[u32], /, *, trans: bool = False) -> None: ...
@overload
def stmatrix(
    dst: Memory[Any], i: Extent, j: Extent, k: Extent, words: Fragment[u32], /, *, trans: bool = False
) -> None: ...
def stmatrix(dst: Memory[Any], *index_and_words: Any, trans: bool = False) -> None:
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
    """Wait until at most the last `pending` groups of this thread, a compile-time int, are on their way. What has
    arrived, other threads see after a `barrier`. (PTX ISA: cp.async.wait_group.)"""
    raise only_in_kernel("ptx.wait_group()")
