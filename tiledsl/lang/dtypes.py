"""Scalar dtypes: the classes f64, f32, f16, bf16, tf32, e4m3, e5m2, i8..i64, u8..u64, boolean and index.

They are annotations (``alpha: f32``), arguments (``shared((16, 16), f32)``) and, in a kernel,
conversions (``f32(x)``) and the types of values. Operators take two operands of the same dtype, or
one and a Python number, which takes that dtype and must be exact in it. There is no implicit mixing:
write ``f32(x)`` or ``x.to(f32)``.

Nothing here computes: a kernel's body is compiled, so the operators below only carry types and
documentation. Outside a kernel they raise `TileError`. `ir.scalar` states what each one means.
"""

from __future__ import annotations

from typing import ClassVar, Never, Self, SupportsIndex, TypeVar

from tiledsl.ir.types import BOOL, DTYPES, INDEX, DType
from tiledsl.lang.misuse import only_in_kernel, operators_only_in_kernel

__all__ = [
    "Float",
    "Integer",
    "MatrixFormat",
    "Number",
    "Scalar",
    "bf16",
    "boolean",
    "e4m3",
    "e5m2",
    "f16",
    "f32",
    "f64",
    "i8",
    "i16",
    "i32",
    "i64",
    "index",
    "ir_dtype",
    "tf32",
    "u8",
    "u16",
    "u32",
    "u64",
]

S = TypeVar("S", bound="Scalar")


@operators_only_in_kernel
class Scalar:
    """Base of all dtypes. `ir` is the dtype of the same name in the IR.

    `bytes`: the size of an element in memory; an index has none.
    """

    ir: ClassVar[DType]
    bytes: ClassVar[int]

    def __init_subclass__(cls) -> None:
        dtype = DTYPES.get("bool" if cls.__name__ == "boolean" else cls.__name__)
        if dtype is not None:
            cls.ir = dtype
            if dtype != INDEX:
                cls.bytes = dtype.bytes
        operators_only_in_kernel(cls)

    def __init__(self, value: Scalar | SupportsIndex | float) -> None:
        """Convert `value`, or make a constant of this dtype, rounding a Python float to it.

        To a float: nearest even, overflow gives infinity. Float to integer: towards zero, saturated,
        NaN gives 0. Between integers: low bits, or extended by the source's sign. To boolean: ``x != 0``.
        """
        raise only_in_kernel(f"{type(self).__name__}(...)")

    def to(self, dtype: type[S], /) -> S:
        """This value converted to `dtype`, by the rules of ``dtype(value)``. (PTX ISA: cvt.)"""
        raise only_in_kernel(".to()")

    def bitcast(self, dtype: type[S], /) -> S:
        """The same bits read as `dtype`, of the same width; not for boolean and index. (PTX ISA: mov.b*.)"""
        raise only_in_kernel(".bitcast()")

    def __eq__(self, other: Self | float | type) -> boolean:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Equal; false if one is NaN."""
        ...

    def __ne__(self, other: Self | float | type) -> boolean:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Not equal; true if one is NaN."""
        ...

    __hash__ = None  # pyright: ignore[reportAssignmentType]


class MatrixFormat(Scalar):
    """Base of the formats of matrix operands: they are moved, converted to and from floats, and bit cast.

    There is no arithmetic and no comparison on them: convert first, ``x.to(f32)``. Integers and booleans convert by way
    of f32. A conversion rounds once; each class says how.
    """

    def __init__(self, value: Float | MatrixFormat | float) -> None:
        raise only_in_kernel(f"{type(self).__name__}(...)")

    def __eq__(self, other: Never) -> Never:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Refused."""
        ...

    def __ne__(self, other: Never) -> Never:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Refused."""
        ...


class Number(Scalar):
    """Base of the dtypes with arithmetic: all but boolean and the formats of matrix operands."""

    def __add__(self, other: Self | float) -> Self: ...

    __sub__ = __mul__ = __add__

    def __radd__(self, other: float) -> Self: ...

    __rsub__ = __rmul__ = __radd__

    def __neg__(self) -> Self: ...

    __pos__ = __abs__ = __neg__

    def __lt__(self, other: Self | float) -> boolean: ...

    __le__ = __gt__ = __ge__ = __lt__


class Float(Number):
    """Base of the floating-point dtypes: IEEE 754, nearest even, subnormals kept."""

    def __truediv__(self, other: Self | float) -> Self:
        """Quotient, correctly rounded."""
        ...

    def __rtruediv__(self, other: float) -> Self: ...


class Integer(Number):
    """Base of the integer dtypes: two's complement, arithmetic wraps.

    A float literal is refused by the compiler (and by type checkers where they can tell).
    """

    def __floordiv__(self, other: Self | int) -> Self:
        """Quotient rounded towards minus infinity; ``x // 0`` is 0."""
        ...

    def __mod__(self, other: Self | int) -> Self:
        """``x - (x // y) * y``, which has the sign of y; ``x % 0`` is x."""
        ...

    def __and__(self, other: Self | int) -> Self: ...

    __or__ = __xor__ = __and__

    def __invert__(self) -> Self: ...

    def __lshift__(self, other: Self | int) -> Self:
        """Shift left; by the width or more gives 0."""
        ...

    def __rshift__(self, other: Self | int) -> Self:
        """Shift right, arithmetic for signed dtypes; by the width or more gives 0, or the sign."""
        ...

    def __rfloordiv__(self, other: int) -> Self: ...

    __rmod__ = __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = __rfloordiv__

    def __index__(self) -> int:
        """Lets type checkers accept ``range(n)``; a kernel's loop variable has the bounds' dtype."""
        raise only_in_kernel(f"{type(self).__name__} as a Python int")


class f64(Float):
    """IEEE binary64."""


class f32(Float):
    """IEEE binary32."""


class f16(Float):
    """IEEE binary16."""


class bf16(Float):
    """bfloat16: 8 exponent bits, 7 fraction bits."""


class tf32(MatrixFormat):
    """An f32 of which tensor cores read the upper 19 bits: 8 exponent bits, 10 fraction bits. 4 bytes in memory.

    ``tf32(x)`` rounds to nearest, ties away from zero; overflow gives infinity, and a NaN keeps its upper 19 bits.
    ``f32(x)`` of a tf32 is its bits, the low 13 included, and so is ``x.bitcast(tf32)`` of an f32, u32 or i32: tensor
    cores then truncate. A float32 array is passed where a parameter is declared ``Global[tf32, ...]``.
    (PTX ISA: cvt.rna.tf32.f32.)
    """


class e4m3(MatrixFormat):
    """8-bit float: 4 exponent bits, 3 fraction bits, no infinity; the largest number is 448, NaN is 0x7f.

    ``e4m3(x)`` rounds to nearest even; what is beyond the largest number, infinity included, gives the largest number.
    Conversions need sm_89 or later; moving and bit casting do not. (PTX ISA: cvt.rn.satfinite.e4m3x2.f32.)
    """


class e5m2(MatrixFormat):
    """8-bit float: 5 exponent bits, 2 fraction bits, infinities; the largest number is 57344, NaN is 0x7f.

    ``e5m2(x)`` rounds to nearest even; what is beyond the largest number, infinity included, gives the largest number.
    Conversions need sm_89 or later; moving and bit casting do not. (PTX ISA: cvt.rn.satfinite.e5m2x2.f32.)
    """


class i8(Integer):
    """Signed, 8 bits."""


class i16(Integer):
    """Signed, 16 bits."""


class i32(Integer):
    """Signed, 32 bits."""


class i64(Integer):
    """Signed, 64 bits."""


class u8(Integer):
    """Unsigned, 8 bits."""


class u16(Integer):
    """Unsigned, 16 bits."""


class u32(Integer):
    """Unsigned, 32 bits."""


class u64(Integer):
    """Unsigned, 64 bits."""


class index(Integer):
    """Sizes, strides, and block, thread and loop indices: signed, as wide as the launch needs.

    It is 32 bits where the specialisation proves that safe and 64 otherwise, so it has no bit
    pattern and is no memory dtype: write ``i32(x)`` to store one.
    """


class boolean(Scalar):
    """True or false; one byte in memory. Python's ``bool`` means the same in annotations."""

    def __and__(self, other: boolean | bool) -> boolean: ...

    __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __and__

    def __invert__(self) -> boolean:
        """Logical not."""
        ...

    def __bool__(self) -> bool:
        """Lets type checkers accept ``if``, ``while``, ``and``, ``or``, ``not`` on a condition."""
        raise only_in_kernel("a kernel's boolean as a Python bool")


def ir_dtype(obj: object) -> DType | None:
    """The IR dtype that `obj` names: a dtype class, or Python's ``bool``. None for anything else."""
    if obj is bool:
        return BOOL
    if isinstance(obj, type) and issubclass(obj, Scalar):
        return getattr(obj, "ir", None)
    return None
