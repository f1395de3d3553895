"""Exact arithmetic: a kernel on integers modulo a prime in place of floats, where no operation rounds.

A finite float is m 2^e, and stands for the residue m 2^e mod PRIME. Sums and products of floats are then those of
residues in any order, so that a term that is lost, doubled or misplaced shows in the result. Registers and elements of
16 bits and more hold a residue as their bits, which all that only moves bits leaves alone; those of 8 bits are too
narrow and hold their float, whose residue is taken where it is multiplied or converted. Infinities and NaN stand for
NONE, as does what is made of it. What has no meaning for residues, as an order or a rounding, is not emulated.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.rules.arith import bitcast
from tiledsl.backends.emulator.rules.matrix import multiply_registers as multiply_mma
from tiledsl.backends.emulator.rules.memory import atomic
from tiledsl.backends.emulator.rules.registry import Rule, rule_of
from tiledsl.backends.emulator.rules.wgmma import multiply_registers as multiply_wgmma
from tiledsl.errors import Accessed, EmulatorError, HazardError, Loc
from tiledsl.ir.core import Op
from tiledsl.ir.ops import arith, mem, ptx, wgmma
from tiledsl.ir.semantics import Array, numpy_dtype
from tiledsl.ir.types import DTYPES, DType

PRIME = 65521
"""The largest one of 16 bits: a wrong element is right by chance once in so many."""
NONE = (1 << 16) - 1
"""Of what is no number. All bits from PRIME on count as it."""

# -- floats and residues ---------------------------------------------------------------------------


def is_float(dtype: DType) -> bool:
    """Of registers, memory or matrix operands."""
    return dtype.python is float


@cache
def _powers() -> Array:
    """Of 2: `_powers()[e]` for every exponent of an f64, negative ones from the end."""
    exponents = np.arange(2200)
    exponents[1100:] -= 2200
    return np.array([pow(2, e, PRIME) for e in exponents.tolist()])


def of_floats(values: Any) -> Array:
    """The residue of each float, as i64."""
    with np.errstate(invalid="ignore"):  # NaNs that signal
        wide = np.asarray(values).astype(np.float64)
    finite = np.isfinite(wide)
    fraction, exponent = np.frexp(np.where(finite, wide, 0.0))
    whole = np.ldexp(fraction, 53).astype(np.int64) % PRIME
    return np.where(finite, whole * _powers()[exponent - 53] % PRIME, NONE)


def taken(array: Any, dtype: DType) -> Array:
    """The residues that elements of a float dtype hold, as i64."""
    array = np.asarray(array)
    if array.itemsize == 1:
        return of_floats(array.astype(np.float32))
    bits = array.view(f"u{array.itemsize}")
    return np.minimum(bits, NONE).astype(np.int64)


def held(residues: Any, dtype: DType) -> Array:
    """Elements of a float dtype that hold these."""
    to = numpy_dtype(dtype)
    return np.asarray(residues).astype(f"u{to.itemsize}").view(to)


def copied(array: Array, dtype: DType) -> Array:
    """A copy with the same strides, where elements of floats hold the residues."""
    size, offset = array.itemsize, sum((n - 1) * -s for n, s in zip(array.shape, array.strides, strict=True) if s < 0)
    reach = sum((n - 1) * abs(s) for n, s in zip(array.shape, array.strides, strict=True))
    start = array.__array_interface__["data"][0] - offset
    memory = np.zeros(reach + size + 16, np.uint8)
    offset += (start - memory.__array_interface__["data"][0]) % 16  # aligned as it is
    copy = np.ndarray(array.shape, array.dtype, memory, offset, array.strides)
    copy[...] = held(of_floats(array), dtype) if is_float(dtype) and size > 1 else array
    copy.flags.writeable = array.flags.writeable
    return copy


def _known(exact: Array, *operands: Array) -> Array:
    """The residues of what was computed from these, in i64 or f64."""
    result = np.mod(exact, PRIME).astype(np.int64)
    if any((operand >= PRIME).any() for operand in operands):
        none = np.zeros((), np.bool_)
        for operand in operands:
            none = none | (operand >= PRIME)
        result = np.where(none, NONE, result)
    return result


# -- rules -----------------------------------------------------------------------------------------


def _fma(a: Array, b: Array, c: Array) -> Array:
    return a * b + c


def _neg(a: Array) -> Array:
    return -a


_EXACT: Mapping[str, Callable[..., Array]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "fma": _fma,
    "neg": _neg,
}
_EQUAL: Mapping[str, bool] = {"eq": True, "ne": False}


def _refuse(op: Op, what: str) -> EmulatorError:
    message = f"{what} has no meaning in exact arithmetic, where numbers are residues modulo {PRIME}"
    return EmulatorError(message, op.loc, "check this kernel without algebra=", code="T901")


def _function(op: arith.Scalar | mem.Atomic, fn: str, dtype: DType) -> Callable[..., Array]:
    exact = _EXACT.get(fn)
    if exact is None:
        raise _refuse(op, f"{fn} of {dtype}")

    def evaluate(*operands: Any) -> Array:
        residues = [taken(x, dtype) for x in operands]
        return held(_known(exact(*residues), *residues), dtype)

    return evaluate


def _scalar(c: Cohort, op: arith.Scalar, *operands: Any) -> Any:
    dtype = op.operands[0].dtype
    if op.fn.name not in _EQUAL:
        return _function(op, op.fn.name, dtype)(*operands)
    a, b = (taken(x, dtype) for x in operands)
    equal = (a == b) & (a < PRIME)
    return equal if _EQUAL[op.fn.name] else ~equal


def _cast(c: Cohort, op: arith.Cast, src: Any) -> Any:
    if not is_float(op.to) or op.to.bits == 8:
        raise _refuse(op, f"a conversion from {op.src.dtype} to {op.to}")
    if is_float(op.src.dtype):
        return held(taken(src, op.src.dtype), op.to)
    return held(np.mod(np.asarray(src), PRIME) if op.src.dtype.is_integer else src, op.to)


def _bitcast(c: Cohort, op: arith.Bitcast, src: Any) -> Any:
    """Between floats, and to and from words that are only moved: registers of products."""
    makers = [op.src.op, *(user for user, _ in op.results[0].uses)]
    if not (is_float(op.src.dtype) and is_float(op.to)) and any(
        isinstance(x, arith.Scalar | arith.Cast) for x in makers
    ):
        raise _refuse(op, f"a bit cast from {op.src.dtype} to {op.to}")
    return bitcast(c, op, src)


def _not_here(c: Cohort, op: Op, *operands: Any) -> Any:
    raise _refuse(op, op.name)


def _atomic(c: Cohort, op: mem.Atomic, *operands: Any) -> Any:
    moves = op.fn.name in ("exchange", "cas") or not (op.fn.reads and op.fn.writes)
    return atomic(c, op, *operands, update=None if moves else _function(op, op.fn.name, op.dtype))


def _planes(row: Any, a: Array, b: Array, c: Array, *_: Any) -> Array:
    """`tensor_core.mma_planes`: a [k, m, warps], b [k, n, warps], c [m, n, warps]."""
    left, right = taken(a, DTYPES[row.a]).transpose(2, 1, 0), taken(b, DTYPES[row.b]).transpose(2, 0, 1)
    return held(
        _products(left, right, taken(c, DTYPES[row.acc]).transpose(2, 0, 1)).transpose(1, 2, 0), DTYPES[row.acc]
    )


def _wgmma(row: Any, a: Array, b: Array, c: Array, *_: Any) -> Array:
    """`tensor_core.wgmma`: a [products, m, k], b [products, n, k], c [products, m, n]."""
    left, right = taken(a, DTYPES[row.a]), taken(b, DTYPES[row.b]).transpose(0, 2, 1)
    return held(_products(left, right, taken(c, DTYPES[row.acc])), DTYPES[row.acc])


def _products(a: Array, b: Array, c: Array) -> Array:
    """``a b + c`` of residues. A sum of 2^20 products is exact in f64, which NumPy multiplies fast."""
    exact = a.astype(np.float64) @ b.astype(np.float64)
    rows, columns = (np.asarray((x >= PRIME).any(axis=axis)) for x, axis in ((a, -1), (b, -2)))
    return np.where(rows[..., :, None] | columns[..., None, :], NONE, _known(exact + c, c))


_RULES: Mapping[type[Op], Rule] = {
    arith.Scalar: _scalar,
    arith.Cast: _cast,
    arith.Bitcast: _bitcast,
    ptx.Inline: _not_here,
    mem.Atomic: _atomic,
    ptx.MmaSync: partial(multiply_mma, multiply=_planes),
    wgmma.Instruction: partial(multiply_wgmma, multiply=_wgmma),
}
"""Of ops that compute with floats. All others move them."""


def residue_rule(op: Op) -> Rule:
    """The rule of an op at thread level."""
    rule = next((_RULES[cls] for cls in type(op).__mro__ if cls in _RULES), None)
    if rule is None or not _computes_with_floats(op):
        return rule_of(op)
    return rule


def _computes_with_floats(op: Op) -> bool:
    if isinstance(op, (ptx.MmaSync, wgmma.Instruction)):
        return is_float(DTYPES[op.row.acc])
    return any(isinstance(v.type, DType) and is_float(v.type) for v in (*op.operands, *op.results))


# -- references and results ---------------------------------------------------------------------------------------


def of_argument(value: Any, dtype: DType) -> Any:
    """What a reference gets of an array or a scalar: residues of floats, else a copy."""
    given: Array = np.array(value, numpy_dtype(dtype))
    found = of_floats(given) if is_float(dtype) else given
    return found if found.ndim else found.item()


def differs(kernel: str, loc: Loc, name: str, got: Array, expected: Any) -> HazardError | None:
    """How the output `name` differs from what the reference expects; residues, or integers of the output's dtype."""
    expected = np.mod(expected, PRIME) if got.dtype == np.int64 else expected.astype(got.dtype)
    wrong = np.argwhere(got != expected)
    if not len(wrong):
        return None
    at = tuple(wrong[0].tolist())
    box = ", ".join(f"{low} to {high}" for low, high in zip(wrong.min(axis=0), wrong.max(axis=0), strict=True))
    found = "no number" if got[at] >= PRIME and got.dtype == np.int64 else f"{got[at]}"
    memory = Accessed(name, "global", at)
    message = (
        f"wrong sum: {memory} is {found}, and {expected[at]} by the reference, modulo {PRIME}; {len(wrong)} of "
        f"{got.size} elements of {kernel} are wrong, within [{box}]"
    )
    fix = "look for terms that are left out, added twice, or multiplied with those of another place"
    return HazardError(message, loc, fix, code="T203", memory=memory)
