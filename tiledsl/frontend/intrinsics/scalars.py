"""Functions on scalars and fragments, and exchange between lanes."""

from __future__ import annotations

from functools import reduce
from typing import Any

from tiledsl import lang
from tiledsl.arch import WARP
from tiledsl.frontend.arithmetic import apply, as_condition, as_value, common_dtype, select, taken_by, unify
from tiledsl.frontend.bindings import contains_value, describe, is_register
from tiledsl.frontend.calls import Call, intrinsic
from tiledsl.frontend.fragments import is_distributed
from tiledsl.ir.core import Value
from tiledsl.ir.ops import warp
from tiledsl.ir.scalar import SCALAR
from tiledsl.ir.types import BOOL, F64, I32, INDEX, FragmentType
from tiledsl.lang import scalar as lang_scalar
from tiledsl.passes.analysis.constants import fold

__all__: list[str] = []

_TABLE = {name: name for name in lang_scalar.__all__ if name in SCALAR} | {"minimum": "min", "maximum": "max"}
"""Functions of the language that are a row of the scalar table, which has most under the same name."""


def _register(function: Any, row: str) -> None:
    @intrinsic(function)
    def _(call: Call) -> Any:
        operands = list(call.arguments.values())
        if not contains_value(operands):
            _need_numbers(call, operands, f"{function.__name__}()")
            if row in ("min", "max"):
                return _extremum(row, operands)
            message = f"{function.__name__}() of compile-time numbers only: their dtype is not known"
            names = taken_by(row)
            raise call.error(message, f"write {'f32' if 'f32' in names else names[0]}(...) around one of them")
        return apply(row, operands, call.frame, call.node, f"{function.__name__}()")


for _name, _row in _TABLE.items():
    _register(getattr(lang_scalar, _name), _row)


def _need_numbers(call: Call, values: list[Any], what: str) -> None:
    odd = [value for value in values if not isinstance(value, (bool, int, float))]
    if odd:
        raise call.error(f"{what} of {describe(odd[0])}", "pass numbers, or values of a dtype: f32(...)")


def _variadic(*values: Any) -> None:
    """The signature of min() and max() as kernels may call them."""


def _extremum(row: str, numbers: list[Any]) -> Any:
    """Of two compile-time numbers, as of run-time ones: NaN loses, and -0.0 is less than 0.0."""
    if all(isinstance(number, float) for number in numbers):
        return fold(row, F64, *numbers)
    return (min if row == "min" else max)(numbers)


@intrinsic(min, signature=_variadic)
def _min(call: Call) -> Any:
    return _fold(call, "min")


@intrinsic(max, signature=_variadic)
def _max(call: Call) -> Any:
    return _fold(call, "max")


def _fold(call: Call, row: str) -> Any:
    values: Any = call["values"]
    if len(values) == 1:
        values = values[0]
    if type(values) not in (list, tuple) and not isinstance(values, Value):
        raise call.error(f"{row}() of {describe(values)}", f"{row}(a, b), of numbers or values of a dtype")
    if isinstance(values, Value) or len(values) < 2:
        raise call.error(f"{row}() takes at least two values", f"{row}(a, b)")
    frame, node, shown = call.frame, call.node, f"{row}()"
    dtype = common_dtype(list(values), frame, node, shown)
    assert dtype is not None, "Python's own on compile-time values"
    return reduce(lambda a, b: apply(row, [a, b], frame, node, shown), unify(list(values), dtype, frame, node))


@intrinsic(abs)
def _abs(call: Call) -> Any:
    return apply("abs", [call["x"]], call.frame, call.node, "abs()")


@intrinsic(len)
def _len(call: Call) -> Any:
    obj = call["obj"]
    if isinstance(obj, (list, tuple)):
        return len(obj)  # pyright: ignore[reportUnknownArgumentType]
    raise call.error(f"len() of {describe(obj)}", "use .shape")


@intrinsic(lang.where)
def _where(call: Call) -> Any:
    condition = call["condition"]
    if not (is_register(condition) and isinstance(condition.type, FragmentType) and condition.type.dtype == BOOL):
        condition = as_condition(condition, call.frame, call.node)
    if isinstance(condition, bool):
        return call["a"] if condition else call["b"]
    return select(condition, call["a"], call["b"], call.frame, call.node)


# -- warps -----------------------------------------------------------------------------------------


def _shuffle_instead(value: Any) -> str:
    if not is_register(value):
        return "shuffle what each lane has computed, as in shuffle(x, 0)"
    if value.type == INDEX:
        return "convert it: i32(x)"
    return "go through a shared tile: store(x, S)" if is_distributed(value) else "shuffle its elements"


def _shuffle(call: Call, mode: str, lane: Any) -> Any:
    width = call["width"]
    if width not in (1, 2, 4, 8, 16, WARP):
        raise call.error(
            f"width must be a power of two up to {WARP}, got {describe(width)}", f"leave it out, which is {WARP}"
        )
    value = call["value"]
    if not is_register(value) or isinstance(value.type, FragmentType) or value.type == INDEX:
        name = "shuffle" if mode == "idx" else f"shuffle_{mode}"
        raise call.error(f"{name}() shuffles a run-time scalar, got {describe(value)}", _shuffle_instead(value))
    if isinstance(lane, Value) and lane.type == INDEX:
        lane = call.builder.cast(lane, I32)
    distance = as_value(lane, I32, call.frame, call.node, "lane")
    return call.builder.value(warp.Shuffle(value, distance, mode=mode, width=width))


@intrinsic(lang.shuffle)
def _idx(call: Call) -> Any:
    return _shuffle(call, "idx", call["lane"])


@intrinsic(lang.shuffle_up)
def _up(call: Call) -> Any:
    return _shuffle(call, "up", call["distance"])


@intrinsic(lang.shuffle_down)
def _down(call: Call) -> Any:
    return _shuffle(call, "down", call["distance"])


@intrinsic(lang.shuffle_xor)
def _xor(call: Call) -> Any:
    return _shuffle(call, "xor", call["mask"])


def _vote(call: Call, mode: str) -> Any:
    predicate = as_value(call["predicate"], BOOL, call.frame, call.node, "predicate")
    return call.builder.value(warp.Vote(predicate, mode=mode))


@intrinsic(lang.vote_any)
def _any(call: Call) -> Any:
    return _vote(call, "any")


@intrinsic(lang.vote_all)
def _all(call: Call) -> Any:
    return _vote(call, "all")


@intrinsic(lang.ballot)
def _ballot(call: Call) -> Any:
    return _vote(call, "ballot")
