"""From the arguments of one call to what the compiler may know of them, with every check of an argument."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Mapping, NamedTuple, Protocol, get_args, get_origin

from tiledsl.errors import KernelArgumentError, TileError
from tiledsl.ir.abi import INDEX32_LIMIT
from tiledsl.ir.types import DTYPES, F32, INDEX, TF32, DType
from tiledsl.meaning import meaning_of, unreadable
from tiledsl.outside import NotPlain, exact_type, plain, python_number
from tiledsl.signatures.signature import (
    REQUIRED,
    ConstParam,
    GlobalParam,
    GlobalSpec,
    ScalarParam,
    Signature,
    Specialization,
)

HELD_BY = {TF32: F32}
"""Dtypes that no array library has, and whose arrays hold them. A type variable is bound to the array's own dtype."""

ARRAY_DTYPES = tuple(t.name for t in DTYPES.values() if t != INDEX and t not in HELD_BY)
"""Names of the dtypes that arrays may have."""


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """One array argument. `strides` in elements; `device`: CUDA ordinal, or -1 for host memory.

    `stream`: the CUDA stream that last wrote it, if its library says so. `owner` keeps the memory alive.
    It answers what a torch tensor is asked, so that the key of a launch plan is one expression (`runtime/launcher.py`).
    """

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    pointer: int
    device: int
    writable: bool
    owner: Any
    stream: int | None = None

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def data_ptr(self) -> int:
        return self.pointer

    def get_device(self) -> int:
        return self.device

    @property
    def empty(self) -> bool:
        return 0 in self.shape

    def span(self) -> tuple[int, int]:
        """Bytes from `pointer` to the first element and past the last one."""
        if self.empty:
            return 0, 0
        reach = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        size = self.dtype.bytes
        return sum(r for r in reach if r < 0) * size, (sum(r for r in reach if r > 0) + 1) * size

    def unit_axis(self) -> int:
        """The axis whose stride is 1, or may be taken as 1; -1 if there is none.

        An axis of extent 1 is never stepped along, so any stride will do: it is the choice where no axis
        has stride 1. The last one wins, so that a contiguous column of a matrix still counts as row-major.
        """
        if self.empty:
            return len(self.shape) - 1
        units = [axis for axis, stride in enumerate(self.strides) if stride == 1]
        units = units or [axis for axis, extent in enumerate(self.shape) if extent == 1]
        return units[-1] if units else -1

    def alignment(self, unit: int) -> int:
        """The largest of 16, 8, 4, 2, 1 bytes at which every vector along `unit` may start.

        16 also says that TMA can describe the array, and so that no stride is negative: then it is 8 at most.
        """
        if self.empty:
            return 16
        steps = [s for axis, s in enumerate(self.strides) if axis != unit and self.shape[axis] > 1]
        most = 16 if all(s >= 0 for s in steps) else 8
        return math.gcd(self.pointer, most, *(s * self.dtype.bytes for s in steps))

    def whole(self, unit: int, align: int) -> bool:
        """True if no vector along `unit` of up to `align` bytes lies across the edge."""
        return self.empty or (unit >= 0 and self.shape[unit] * self.dtype.bytes % align == 0)

    def fits_32_bits(self) -> bool:
        low, high = self.span()
        reach = max(-low, high) // self.dtype.bytes
        return reach < INDEX32_LIMIT and all(n < INDEX32_LIMIT for n in self.shape)


@dataclass(frozen=True)
class Problem:
    """One call: its specialisation, and the extents by name that the grid and the parameter list need."""

    spec: Specialization
    extents: dict[str, int]


class Named(Protocol):
    """What is called, for messages: a signature, or a function that launches kernels."""

    @property
    def name(self) -> str: ...


class Called(NamedTuple):
    """A function that is `Named`, and nothing more."""

    name: str


def argument_error(signature: Named, message: str, fix: str = "", *, code: str = "C801") -> KernelArgumentError:
    text = f"{signature.name}(): {message}"
    return KernelArgumentError(f"{text}\n  fix: {fix}" if fix else text, code=code)


@contextmanager
def looking_at(signature: Named, name: str, value: Any, expected: str, fix: str) -> Generator[None]:
    """Turn whatever an object of the caller raises while it is examined into an error of that argument."""
    try:
        yield
    except TileError:
        raise
    except Exception as error:
        message = f"{name} is {_article(type(value).__name__)}, which cannot be read as {expected}"
        raise argument_error(signature, f"{message}: {type(error).__name__}: {error}", fix) from error


def _article(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"


def specialize(signature: Signature, arrays: Mapping[str, ArrayInfo | None], consts: Mapping[str, Any]) -> Problem:
    """Check `arrays` (by parameter name; None for an absent one) against the signature and describe them."""
    extents: dict[str, tuple[int, str]] = {}
    variables: dict[str, tuple[DType, str]] = {}
    tensors: list[tuple[str, GlobalSpec | None]] = []
    safe = True
    for param in signature.tensors:
        info = arrays[param.name]
        if info is None:
            tensors.append((param.name, absent(signature, param)))
            continue
        dtype = _checked_dtype(signature, param, info, variables)
        _check_shape(signature, param, info, extents)
        unit = info.unit_axis()
        align = info.alignment(unit)
        if align < info.dtype.bytes:
            message = f"{param.name} starts at an address that is no multiple of its {info.dtype.bytes}-byte elements"
            raise argument_error(signature, message, "pass a copy of it", code="C804")
        safe = safe and info.fits_32_bits()
        tensors.append((param.name, GlobalSpec(dtype, unit, align, info.whole(unit, align))))
    spec = Specialization(tuple(tensors), tuple(consts.items()), 32 if safe else 64)
    return Problem(spec, {name: extent for name, (extent, _) in extents.items()})


def absent(signature: Signature, param: GlobalParam) -> None:
    """What stands for a tensor that is not there: None, if it is optional."""
    if not param.optional:
        fix = f"declare it `{param.name}: Global[...] | None` if it may be absent"
        raise argument_error(signature, f"{param.name} is None, but not optional", fix)


def _checked_dtype(
    signature: Signature, param: GlobalParam, info: ArrayInfo, variables: dict[str, tuple[DType, str]]
) -> DType:
    """The dtype that the kernel sees."""
    if isinstance(param.dtype, DType):
        wanted = HELD_BY.get(param.dtype, param.dtype)
        if info.dtype != wanted:
            held = f", held by {wanted}" if wanted != param.dtype else ""
            message = f"{param.name} is {info.dtype}; expected {param.dtype}{held}"
            raise argument_error(signature, message, f"convert the array to {wanted}", code="C802")
        return param.dtype
    dtype, first = variables.setdefault(param.dtype, (info.dtype, param.name))
    if dtype != info.dtype:
        message = f"{param.name} is {info.dtype}, but {first} is {dtype}, and both are declared {param.dtype}"
        raise argument_error(signature, message, "convert one of them", code="C802")
    return dtype


def _check_shape(
    signature: Signature, param: GlobalParam, info: ArrayInfo, extents: dict[str, tuple[int, str]]
) -> None:
    declared = f"[{', '.join(map(str, param.dims))}]"
    if len(info.shape) != len(param.dims):
        message = f"{param.name} has {len(info.shape)} dimensions, shape {info.shape}; expected {declared}"
        raise argument_error(signature, message, f"pass an array of {len(param.dims)} dimensions", code="C803")
    for axis, (dim, extent) in enumerate(zip(param.dims, info.shape, strict=True)):
        if isinstance(dim, int):
            if extent != dim:
                message = f"{param.name} has shape {info.shape}; axis {axis} of {declared} is fixed at {dim}"
                raise argument_error(
                    signature, message, f"pass an array whose axis {axis} has extent {dim}", code="C803"
                )
            continue
        known, first = extents.setdefault(dim, (extent, param.name))
        if known != extent:
            here = f"(axis {axis} of {declared}, shape {info.shape})"
            message = f"{dim} is {known} in {first} but {extent} in {param.name} {here}"
            raise argument_error(signature, message, f"pass arrays that agree on {dim}", code="C803")


# -- consts and scalars ----------------------------------------------------------------------------------


def check_consts(signature: Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    """All consts by name in the order of the signature. Raises for missing, unknown and ill-typed ones."""
    known = {c.name: c for c in signature.consts}
    for name in given:
        if name not in known:
            message = f"unknown const {name}; it has {', '.join(known) or 'none'}"
            raise argument_error(signature, message, f"call it as {signature.usage}")
    checked: dict[str, Any] = {}
    for name, const in known.items():
        value = given.get(name, const.default)
        fix = "pass a number, string, tuple, dtype or function"
        with looking_at(signature, f"const {name}", value, "a const", fix):
            checked[name] = _check_const(signature, const, value)
    return checked


def _check_const(signature: Signature, const: ConstParam, value: Any) -> Any:
    if value is REQUIRED:
        message = f"const {const.name} is missing: it has no default"
        raise argument_error(signature, message, f"call it as {signature.usage}")
    try:
        value = plain(value)
    except NotPlain as problem:
        message = f"const {const.name} holds {problem}"
        raise argument_error(signature, message, problem.fix, code="C805") from None
    if const.type is int and not isinstance(value, (bool, float)) and hasattr(value, "__index__"):
        value = operator.index(value)
    if const.type is float and type(value) is int:
        value = float(value)
    fits, expected = True, ""  # other types are for type checkers, as in the rest of Python
    if get_origin(const.type) is Literal:
        choices = get_args(const.type)
        fits = any(type(value) is type(choice) and value == choice for choice in choices)
        expected = f"one of {', '.join(map(repr, choices))}"
    elif const.type in (int, float, str, bool):
        fits, expected = type(value) is const.type, const.type.__name__
    if not fits:
        message = f"const {const.name} is {value!r}, a {type(value).__name__}; expected {expected}"
        raise argument_error(signature, message, f"call it as {signature.usage}", code="C805")
    mutable = _is_mutable(value)
    if not mutable:
        hash(value)  # what it raises is about the const
    if mutable or unreadable(value):
        problem = "which is mutable" if mutable else "whose content cannot be read"
        message = f"const {const.name} is a {type(value).__name__}, {problem}"
        raise argument_error(
            signature, message, "pass a number, string, tuple, dtype, function or frozen dataclass", code="C805"
        )
    return value


def _is_mutable(value: Any) -> bool:
    """True for an object of a class that has no hash, and for a tuple of such."""
    return type(value).__hash__ is None or (exact_type(value) is tuple and any(map(_is_mutable, value)))


_BY_VALUE = frozenset({int, bool, str, bytes, type(None)})


def const_identity(value: Any) -> Any:
    """A key that two consts share only if they compile to the same code: type and content, not Python's ``==``.

    So 1, 1.0 and True differ, as do 0.0 and -0.0, and objects that hold them. An object that was changed differs, too.
    """
    kind = exact_type(value)
    if kind in _BY_VALUE:
        return kind, value
    if kind is float:
        return kind, value.hex()
    return tuple(map(const_identity, value)) if kind is tuple else meaning_of(value).digest


def check_scalar(signature: Named, param: ScalarParam, value: Any) -> int | float | bool:
    """`value` as the kernel will see it: an int in range, a float already rounded to the dtype, or a bool."""
    kind = param.dtype.kind
    fix = "pass True or False" if kind == "bool" else "convert it with int() or float()"
    wanted = "a bool of Python or NumPy" if kind == "bool" else f"a Python or NumPy number for {param.dtype}"
    expected = {"float": (int, float), "bool": (bool,)}.get(kind, (int,))
    with looking_at(signature, param.name, value, f"a scalar of {param.dtype}", fix):
        number = python_number(value)
        if not isinstance(number, expected) or (isinstance(number, bool) and kind != "bool"):
            message = f"{param.name} is a {type(value).__name__}; expected {wanted}"
            raise argument_error(signature, message, fix, code="C805")
        try:
            return _round_float(param.dtype, float(number)) if kind == "float" else _check_range(param.dtype, number)
        except OverflowError:
            message = f"{param.name} is {value!r}, out of the range of {param.dtype}"
            raise argument_error(
                signature, message, "pass a smaller value or declare a wider dtype", code="C805"
            ) from None


def _check_range(dtype: DType, value: Any) -> int | bool:
    if dtype.kind == "bool":
        return value
    low = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
    if not low <= value < low + (1 << dtype.bits):
        raise OverflowError
    return value


def _round_float(dtype: DType, value: float) -> float:
    if not math.isfinite(value):
        return value
    if dtype.name == "bf16":
        return struct.unpack("<f", struct.pack("<I", bf16_bits(value) << 16))[0]
    code = {"f64": "<d", "f32": "<f", "f16": "<e"}[dtype.name]
    return struct.unpack(code, struct.pack(code, value))[0]


def bf16_bits(value: float) -> int:
    """The bit pattern of `value` as bf16, rounded to nearest even (by way of f32, as NumPy does it)."""
    if math.isnan(value):
        return 0x7FFF
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    if bits & 0x7FFF == 0x7F80 and not math.isinf(value):
        raise OverflowError
    return bits


# -- without arguments -----------------------------------------------------------------------------------


def assumed(signature: Signature, dtypes: Mapping[str, DType], consts: Mapping[str, Any]) -> Specialization:
    """The specialisation of `compile` without arguments: row-major, 16-byte aligned, rows of whole vectors,
    32-bit-safe, nothing absent."""
    missing = [v for v in signature.dtype_variables if v not in dtypes]
    if missing:
        message = f"the dtype variable {missing[0]} is open"
        raise argument_error(signature, message, f"call compile({missing[0]}=f32, ...)", code="C802")
    tensors = tuple(
        (p.name, GlobalSpec(p.dtype if isinstance(p.dtype, DType) else dtypes[p.dtype], len(p.dims) - 1, 16, True))
        for p in signature.tensors
    )
    return Specialization(tensors, tuple(consts.items()), 32)
