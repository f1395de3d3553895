"""Raw PTX, for what the language does not have."""

from __future__ import annotations

from typing import Any, Callable, TypeVar, overload

from tiledsl.lang.dtypes import Scalar
from tiledsl.lang.misuse import only_in_kernel

__all__ = ["inline"]

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
