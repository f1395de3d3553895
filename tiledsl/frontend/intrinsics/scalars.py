"""Functions on scalars and fragments, and exchange between lanes."""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

from tiledsl import lang
from tiledsl.arch import WARP
from tiledsl.frontend.arithmetic import apply, as_condition, as_value, common_dtype, select, taken_by, unify
from tiledsl.frontend.bindings import contains_value, describe, is_fragment, is_register
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.fragments import is_distributed
from tiledsl.ir.core import Value
from tiledsl.ir.ops import warp
from tiledsl.ir.scalar import SCALAR
from tiledsl.ir.types import BOOL, F64, I32, INDEX
from tiledsl.lang import scalar as lang_scalar
from tiledsl.passes.analysis.constants import fold

_TABLE = {name: name for name in lang_scalar.__all__ if name in SCALAR} | {"minimum": "min", "maximum": "max"}
"""Functions of the language that are a row of the scalar table, which has most under the same name."""


def _scalar(row: str, call: Call) -> Any:
    operands = list(call.arguments.values())
    if contains_value(operands):
        return apply(row, operands, call.frame, call.node, call.what)
    odd = [value for value in operands if not isinstance(value, (bool, int, float))]
    if odd:
        raise call.error(
            f"{call.what} of {describe(odd[0])}", "pass numbers, or values of a dtype: f32(...)", code="C104"
        )
    if row not in ("min", "max"):
        names = taken_by(row)
        message = f"{call.what} of compile-time numbers only: their dtype is not known"
        raise call.error(message, f"write {'f32' if 'f32' in names else names[0]}(...) around one of them", code="C205")
    # As of run-time numbers: NaN loses, and -0.0 is less than 0.0.
    floats = all(isinstance(number, float) for number in operands)
    return fold(row, F64, *operands) if floats else (min if row == "min" else max)(operands)


for _name, _row in _TABLE.items():
    intrinsic(getattr(lang_scalar, _name))(partial(_scalar, _row))
intrinsic(abs)(partial(_scalar, "abs"))


@intrinsic(min, max, signature=lambda *values: None)
def _extremum(call: Call) -> Any:
    values, what = call["values"], call.what
    if len(values) == 1:
        values = values[0]
    if type(values) not in (list, tuple) or len(values) < 2:
        fix = f"{what[:-1]}a, b), of two or more numbers or values of a dtype"
        raise call.error(f"{what} of {describe(values)}", fix, code="C104")
    frame, node = call.frame, call.node
    dtype = common_dtype(list(values), frame, node, what)
    assert dtype is not None, "Python's own on compile-time values"
    operands = unify(list(values), dtype, frame, node)
    return reduce(lambda a, b: apply(call.callee.__name__, [a, b], frame, node, what), operands)


@intrinsic(len)
def _len(call: Call) -> Any:
    obj = call["obj"]
    if isinstance(obj, (list, tuple)):
        return len(obj)  # pyright: ignore[reportUnknownArgumentType]
    raise call.error(f"len() of {describe(obj)}", "use .shape", code="C104")


@intrinsic(lang.where)
def _where(call: Call) -> Any:
    condition = call["condition"]
    if not (is_fragment(condition) and condition.type.dtype == BOOL):
        condition = as_condition(condition, call.frame, call.node)
    if isinstance(condition, bool):
        return call["a"] if condition else call["b"]
    return select(condition, call["a"], call["b"], call.frame, call.node)


# -- warps -----------------------------------------------------------------------------------------


def _shuffle(mode: str, lane: str, call: Call) -> Value:
    """lane: the name of the argument that says from which lane."""
    width, value = call["width"], call["value"]
    if width not in (1, 2, 4, 8, 16, WARP):
        message = f"width must be a power of two up to {WARP}, got {describe(width)}"
        raise call.error(message, f"leave it out, which is {WARP}", code="C105")
    if not is_register(value) or is_fragment(value) or value.type == INDEX:
        message = f"{call.what} shuffles a run-time scalar, got {describe(value)}"
        fix = "shuffle scalars that each lane has computed: i32(x) of an index, the elements of a fragment"
        raise call.error(
            message, "go through a shared tile: store(x, S)" if is_distributed(value) else fix, code="C104"
        )
    given = call[lane]
    if isinstance(given, Value) and given.type == INDEX:
        given = call.builder.cast(given, I32)
    distance = as_value(given, I32, call.frame, call.node, lane)
    return call.builder.value(warp.Shuffle(value, distance, mode=mode, width=width))


def _vote(mode: str, call: Call) -> Value:
    return call.builder.value(warp.Vote(call.value("predicate", BOOL), mode=mode))


intrinsic(lang.shuffle)(partial(_shuffle, "idx", "lane"))
intrinsic(lang.shuffle_up)(partial(_shuffle, "up", "distance"))
intrinsic(lang.shuffle_down)(partial(_shuffle, "down", "distance"))
intrinsic(lang.shuffle_xor)(partial(_shuffle, "xor", "mask"))
intrinsic(lang.vote_any)(partial(_vote, "any"))
intrinsic(lang.vote_all)(partial(_vote, "all"))
intrinsic(lang.ballot)(partial(_vote, "ballot"))
