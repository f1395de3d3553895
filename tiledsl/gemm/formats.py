"""What `gemm` multiplies: dtypes of A and B, what their products are added up in, and what C may be.

Everything that depends on the size of an element of A and B goes by `Format.bytes`: a step along k, and a row of a tile
in shared memory, has 128 bytes whatever they are.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

from tiledsl.ir.types import BF16, DTYPES, E4M3, E5M2, F16, F32, F64, I8, I32, TF32, U8, DType
from tiledsl.layout.wgmma import WGMMA
from tiledsl.signatures.signature import ScalarParam
from tiledsl.signatures.specialize import Named, argument_error, check_scalar


class Split(NamedTuple):
    """f32 as a sum of planes of a dtype, each the rounding of what the planes before it leave. Tensor cores multiply
    the pairs of planes i and j with i + j < planes: the others are below the last bits of f32. depth: elements of k
    that they add up, before the sum is added in f32. scaled: each row of A and each column of B is first divided by a
    power of two, into the dtype's range."""

    name: str
    dtype: DType
    planes: int
    depth: int
    scaled: bool = False

    @property
    def products(self) -> int:
        """Pairs of planes."""
        return self.planes * (self.planes + 1) // 2

    @property
    def columns(self) -> int:
        """Of a step along k: of all planes."""
        return self.planes * self.depth


class Residues(NamedTuple):
    """A and B of `dtype` as integers, of which 8-bit tensor cores multiply the residues modulo so many numbers."""

    name: str
    dtype: DType
    moduli: int


RESIDUES = {scheme.name: scheme for scheme in (Residues("i8x8", F32, 8), Residues("i8x15", F64, 15))}
SPLITS = {split.name: split for split in (Split("bf16x6", BF16, 3, 32), Split("f16x3", F16, 2, 64, scaled=True))}
"""By the names that calls give."""


class Format(NamedTuple):
    """a, b: dtypes of A and B. sums: that of the accumulators. results: those that C may have, first the one that it
    has if nothing is said. promoted: the sums of tensor cores are added up in f32 every 128 of k. split: A and B are
    f32, of which tensor cores multiply the planes, or f32 or f64, of which they multiply residues."""

    a: DType
    b: DType
    sums: DType
    results: tuple[DType, ...]
    promoted: bool = False
    split: Split | Residues | None = None

    @property
    def bytes(self) -> int:
        """Of an element of A, and of B."""
        return self.a.bytes

    @property
    def along_k(self) -> bool:
        """Whether wgmma reads A and B along k only. (PTX ISA: wgmma.mma_async; only 16-bit operands are transposed.)"""
        return self.a.bytes != 2

    def __str__(self) -> str:
        return f"A of {self.a} and B of {self.b}" if self.a != self.b else f"A and B of {self.a}"


FLOATS = (BF16, F16, F32, E4M3, E5M2)
DEFAULT = {BF16: BF16, F16: F16, TF32: F32, E4M3: BF16, E5M2: BF16}


def _results(a: DType, sums: DType) -> tuple[DType, ...]:
    if sums == I32:
        return (I32,)
    return DEFAULT[a], *(dtype for dtype in FLOATS if dtype != DEFAULT[a])


FORMATS: dict[tuple[str, str], Format] = {
    ("f32", "f32"): Format(F32, F32, F32, (F32,)),
    ("f64", "f64"): Format(F64, F64, F64, (F64,)),
    **{
        (row.a, row.b): Format(DTYPES[row.a], DTYPES[row.b], DTYPES[row.acc], _results(DTYPES[row.a], DTYPES[row.acc]))
        for row in WGMMA
        if row.acc != "f16"
    },
}
"""By the dtypes of A and B: f32 in fp32, f64 as residues, and what tensor cores multiply, tf32 for operands of f32
among them."""
PRECISIONS = {
    "tf32": (F32,),
    **dict.fromkeys(SPLITS, (F32,)),
    **{name: (scheme.dtype,) for name, scheme in RESIDUES.items()},
    "promoted": (E4M3, E5M2),
}
"""By the names that calls give, the dtypes of A and B that it is for: products by tensor cores, sums with more bits."""
CONVERTED = (I32, F32, BF16, F16)
"""What C may be if an epilogue function has converted integer sums."""
INTEGERS = (I8, U8)
FROM_SCALED = (BF16, F16, F32, *INTEGERS)
"""What C may be if integer sums have been multiplied by the scales of rows and columns."""
NAMES = tuple(dict.fromkeys(dtype.name for f in FORMATS.values() for dtype in (f.a, *f.results) if dtype != TF32))
"""Of all dtypes that A, B or C may have."""
BLOCK = 128
"""Elements of k, and columns of B, that have one scale."""
WHOLE = 1 << 24
"""Up to which an f32 has all integers."""


def format_of(
    call: Any, a: DType, b: DType, precision: Any = None, epilogue: bool = False, scaled: bool = False
) -> Format:
    """What is multiplied if A and B have these dtypes. call: what errors name. epilogue: a function may convert the
    sums. scaled: 8-bit floats by blocks, whose sums are promoted; integers by rows of A and columns of B. Raises
    KernelArgumentError if no kernel multiplies them."""
    known = tuple(dict.fromkeys(name for name, _ in FORMATS if name != "tf32"))
    for name, dtype in (("A", a), ("B", b)):
        if dtype.name not in known:
            message = f"{name} is {dtype}, which no kernel multiplies; expected one of {', '.join(known)}"
            raise argument_error(call, message, "convert A and B", code="C802")
    blocks, vectors = (scaled and {a, b} <= {*dtypes} for dtypes in (PRECISIONS["promoted"], INTEGERS))
    if scaled and not (blocks or vectors):
        names = " or ".join(map(str, (*PRECISIONS["promoted"], *INTEGERS)))
        message = f"scale_a and scale_b are for A and B of {names}; they are {a} and {b}"
        raise argument_error(
            call, message, "leave them out: alpha, or an epilogue function, scales any result", code="C802"
        )
    check_precision(call, precision)
    if precision is not None:
        possible = PRECISIONS[precision]
        if not {a, b} <= {*possible}:
            names = " or ".join(map(str, possible))
            message = f"precision is {precision!r}, which is for A and B of {names}; they are {a} and {b}"
            raise argument_error(call, message, "leave it out", code="C802")
        if precision == "tf32":
            a = b = TF32
    found = FORMATS.get((a.name, b.name))
    if found is None:
        message = f"A is {a}, but B is {b}; only e4m3 and e5m2, and i8 and u8, are multiplied by each other"
        raise argument_error(call, message, "convert one of them", code="C802")
    split = SPLITS.get(precision or "") or RESIDUES.get(precision or "")
    found = found._replace(promoted=blocks or precision == "promoted", split=split)
    if found.sums == F64 and not found.split:
        fix = f"pass precision={' or '.join(repr(s.name) for s in RESIDUES.values() if s.dtype == F64)}"
        raise argument_error(call, "A and B are f64, which are multiplied as integers only", fix, code="C802")
    if vectors:
        return found._replace(sums=F32, results=FROM_SCALED)
    return found._replace(results=CONVERTED) if found.sums == I32 and epilogue else found


_F32, _F64 = Struct("<2f"), Struct("<2d")


def factors(alpha: Any, beta: Any, precision: str | None) -> tuple[float, float]:
    """Return alpha and beta as kernels get them: rounded to f32, or to f64 for products by residues.

    The key of a call and its plan both read these, so they agree on which factors are 0.

    Raises:
        Exception: One of them is no number, or too large. `checked_factors` explains it.
    """
    packed = _F64 if precision in RESIDUES else _F32
    return packed.unpack(packed.pack(alpha, beta))


def checked_factors(call: Named, alpha: Any, beta: Any, precision: str | None) -> tuple[float, float]:
    """Return `factors`.

    Raises:
        KernelArgumentError: One of them is no number, or out of range, or there is no such precision. It names `call`.
    """
    check_precision(call, precision)
    kind = F64 if precision in RESIDUES else F32
    for name, value in (("alpha", alpha), ("beta", beta)):
        check_scalar(call, ScalarParam(name, kind), value)
    return factors(alpha, beta, precision)


def check_precision(call: Any, precision: Any) -> None:
    """Raise KernelArgumentError unless it is None or a name that calls give."""
    if precision is not None and not (isinstance(precision, str) and precision in PRECISIONS):
        message = f"precision is {precision!r}; expected None or one of {', '.join(map(repr, PRECISIONS))}"
        raise argument_error(call, message, "leave it out, for products of the dtypes of A and B", code="C805")


def check_factors(call: Any, format: Format, c: DType, alpha: float, beta: float) -> None:
    """Raise KernelArgumentError unless integer sums can be scaled by alpha, and beta C added."""
    if format.sums != I32:
        return
    for name, value in (("alpha", alpha), ("beta", beta)):
        if value % 1 or abs(value) > WHOLE:
            message = f"{name} is {value:g}, but the sums of {format} are i32: expected an integer up to 2^24"
            raise argument_error(call, message, "scale by an epilogue function, which may convert to f32", code="C805")
    if beta and c != I32:
        message = f"beta is {beta:g} and C is {c}, but the sums of {format} are i32"
        raise argument_error(call, message, "pass C of i32, or add to it by an epilogue function", code="C802")
