"""Host expressions in C: the grid of an exported kernel, and the functions that it calls.

The functions have the values of the kernel's integers (`ir/semantics.py`): each computes in 64 bits without sign, where
C defines wrap-around, and converts to its type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tiledsl.ir.expr import CallExpr, Expr
from tiledsl.ir.types import BOOL, INDEX, DType

BLOCKS = """\

/* Blocks along an axis; what no grid can have is UINT_MAX, which cuLaunchKernelEx refuses. */
static inline unsigned tiledsl_blocks(int64_t n) { return n < 0 || n > INT32_MAX ? UINT32_MAX : (unsigned)n; }
"""
FUNCTION = "static inline {result} tiledsl_{name}({parameters}) {{ return {value}; }}\n"

_ANY = {
    "add": "({t})((uint64_t)a + (uint64_t)b)",
    "sub": "({t})((uint64_t)a - (uint64_t)b)",
    "mul": "({t})((uint64_t)a * (uint64_t)b)",
    "mod": "({t})((uint64_t)a - (uint64_t)b * (uint64_t){floordiv})",
    "min": "a < b ? a : b",
    "max": "a > b ? a : b",
    "neg": "({t})(0 - (uint64_t)a)",
    "and": "({t})(a & b)",
    "or": "({t})(a | b)",
    "xor": "({t})(a ^ b)",
    "not": "({t})~a",
    "shl": "({u})b < {bits} ? ({t})((uint64_t)a << ({u})b) : 0",
    "popc": "({t})__builtin_popcountll(({u})a)",
    "clz": "({t})(a ? __builtin_clzll(({u})a) - (64 - {bits}) : {bits})",
    "eq": "a == b",
    "ne": "a != b",
    "lt": "a < b",
    "le": "a <= b",
    "gt": "a > b",
    "ge": "a >= b",
    "cast": "({t})a",
    "select": "p ? a : b",
}
_SIGNED = {
    "floordiv": "(b == 0 ? 0 : b == -1 ? ({t})(0 - (uint64_t)a) : ({t})(a / b - (a % b != 0 && (a < 0) != (b < 0))))",
    "ceildiv": "b == 0 ? 0 : b == -1 ? ({t})(0 - (uint64_t)a) : ({t})(a / b + (a % b != 0 && (a < 0) == (b < 0)))",
    "abs": "a < 0 ? ({t})(0 - (uint64_t)a) : a",
    "shr": "({t})(a >> (({u})b < {bits} ? ({u})b : {bits} - 1))",
}
_UNSIGNED = {
    "floordiv": "(b == 0 ? 0 : ({t})(a / b))",
    "ceildiv": "b == 0 ? 0 : ({t})(a / b + (a % b != 0))",
    "abs": "a",
    "shr": "({u})b < {bits} ? ({t})(a >> b) : 0",
}
_BOOL = {"not": "!a", "cast": "a != 0"}


def c_expression(expr: Expr, values: Mapping[str, str]) -> str:
    """Return a host expression in C. Names are looked up in `values`."""
    match expr:
        case int():
            low, high = INDEX.limits
            return f"({expr + 1} - 1)" if expr == low else f"{expr}{'ull' if expr > high else ''}"
        case str():
            return values[expr]
        case CallExpr(fn, args, dtype):
            return f"tiledsl_{fn}_{dtype}({', '.join(c_expression(arg, values) for arg in args)})"


def c_functions(exprs: Sequence[Expr]) -> str:
    """Return the C functions that these expressions call."""
    used = {(call.fn, call.dtype): call for expr in exprs for call in _calls(expr)}
    return BLOCKS + "".join(_function(used[key]) for key in sorted(used, key=str))


def _calls(expr: Expr) -> Iterator[CallExpr]:
    if isinstance(expr, CallExpr):
        yield expr
        for arg in expr.args:
            yield from _calls(arg)


def _function(call: CallExpr) -> str:
    fn, dtype, type_ = call.fn, call.dtype, _c_type(call.dtype)
    texts = {**_ANY, **(_SIGNED if dtype.is_signed else _UNSIGNED), **(_BOOL if dtype == BOOL else {})}
    fields = {"t": type_, "u": f"uint{dtype.bits}_t", "bits": str(dtype.bits)}
    fields["floordiv"] = texts["floordiv"].format(**fields)
    given = {"cast": ["int64_t a"], "select": ["int p", f"{type_} a", f"{type_} b"]}
    return FUNCTION.format(
        result=_c_type(call.result),
        name=f"{fn}_{dtype}",
        parameters=", ".join(given.get(fn) or [f"{type_} {name}" for name in "ab"[: len(call.args)]]),
        value=texts[fn].format(**fields),
    )


def _c_type(dtype: DType) -> str:
    if dtype == BOOL:
        return "int"
    return "int64_t" if dtype == INDEX else f"{'int' if dtype.is_signed else 'uint'}{dtype.bits}_t"
