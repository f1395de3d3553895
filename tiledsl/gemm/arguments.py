"""Checks of the arguments that several products take: factors, flags, an epilogue function, a bias, and memory.

Each function takes `call`, the product that errors name.
"""

from __future__ import annotations

import inspect
import math
from functools import lru_cache
from typing import Any

from tiledsl.function import TileFunction
from tiledsl.gemm.epilogue import add_bias
from tiledsl.ir.types import BOOL, F32, I64
from tiledsl.runtime.arrays import describe
from tiledsl.runtime.dispatch import memory_problems, place_name
from tiledsl.signatures.signature import ScalarParam
from tiledsl.signatures.specialize import ArrayInfo, Named, argument_error, check_scalar

__all__ = ["check_given", "check_memory", "described_bias", "epilogue_of", "factor", "flag", "integer", "mean"]


def factor(call: Named, name: str, value: Any) -> float:
    """Return a factor as the kernel gets it: rounded to f32. Raises KernelArgumentError."""
    if type(value) is float and value == 1.0:  # the default of alpha
        return value
    return check_scalar(call, ScalarParam(name, F32), value)


def flag(call: Named, name: str, value: Any) -> bool:
    """Return the bool `value`, of Python or NumPy. Raises KernelArgumentError."""
    return bool(check_scalar(call, ScalarParam(name, BOOL), value))


def integer(call: Named, name: str, value: Any) -> int:
    """Return the integer `value`, of Python or NumPy. Raises KernelArgumentError."""
    return int(check_scalar(call, ScalarParam(name, I64), value))


def mean(call: Named, name: str, value: Any) -> float:
    """Return a number of rows, on average: finite and not negative. Raises KernelArgumentError."""
    number = factor(call, name, value)
    if not (math.isfinite(number) and number >= 0):
        message = f"{name} is {value!r}; expected a number of rows, 0 or more"
        raise argument_error(call, message, "pass how many rows a group has on average, or leave it out", code="C805")
    return number


def epilogue_of(call: Named, epilogue: Any) -> Any:
    """Return the epilogue function that a caller passed, or None for the default, which kernels have themselves.

    Raises KernelArgumentError unless it is a tile function of a piece of the result, the bias, and the columns.
    """
    if epilogue is None or epilogue is add_bias:
        return None
    expected = "a tile function of (x, bias, column)"
    if not _is_tile_function(epilogue):
        message = f"epilogue is a {type(epilogue).__name__}; expected {expected}"
        raise argument_error(call, message, "decorate a def with @tile_function, or leave it out", code="C805")
    if not _takes_three(epilogue):
        parameters = ", ".join(inspect.signature(epilogue.fn).parameters)
        message = f"epilogue is {epilogue.name}({parameters}); expected {expected}"
        raise argument_error(call, message, "give it these three parameters", code="C805")
    return epilogue


def _is_tile_function(value: object) -> bool:
    """Return whether `value` is a tile function. (A type checker would narrow an `Any` to one of unknown types.)"""
    return isinstance(value, TileFunction)


@lru_cache(256)
def _takes_three(function: TileFunction[..., Any]) -> bool:
    """Return whether it can be called with three arguments."""
    try:
        inspect.signature(function.fn).bind(None, None, None)
    except TypeError:
        return False
    return True


def described_bias(call: Named, bias: Any, shape: tuple[int, ...]) -> ArrayInfo:
    """Describe a bias, of which there is one for each column, or one for each group and column.

    Raises KernelArgumentError.
    """
    found = describe(call, "bias", bias)
    if found.dtype != F32 or found.shape != shape:
        each = "each column" if len(shape) == 1 else "each group and column"
        message = f"bias is {found.dtype} of shape {found.shape}; expected f32 of shape {shape}, one for {each}"
        raise argument_error(call, message, "convert it", code="C803")
    return found


def check_memory(call: Named, arrays: dict[str, ArrayInfo]) -> None:
    """Raise KernelArgumentError unless all arrays are in one place, C can be written, and nothing shares its memory."""
    first, *_ = arrays
    for name, info in arrays.items():
        if info.device != arrays[first].device:
            message = f"{first} is in {place_name(arrays[first].device)}, but {name} in {place_name(info.device)}"
            raise argument_error(call, message, "move all arrays to one device", code="C804")
    c = arrays["C"]
    if any(s < 0 and n > 1 for n, s in zip(c.shape, c.strides, strict=True)):
        message = f"C has negative strides {c.strides}"
        raise argument_error(call, message, f"pass C without, and reverse {first} instead", code="C804")
    for problem, fix in memory_problems("C", arrays):
        raise argument_error(call, f"C is written, {problem}", fix, code="C804")


def check_given(call: Named, given: dict[str, Any]) -> None:
    """Raise KernelArgumentError as `check_memory` for arrays as a caller passed them; None: it is left out."""
    check_memory(call, {name: describe(call, name, x) for name, x in given.items() if x is not None})
