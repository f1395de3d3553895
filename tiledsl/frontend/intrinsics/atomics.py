"""The methods ``atomic_<row>`` of tensors and tiles, by the table of atomics."""

from __future__ import annotations

from functools import partial
from typing import Any

from tiledsl import lang
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.memory import access
from tiledsl.frontend.views import as_view, memory_type
from tiledsl.ir.atomics import ATOMICS, SCOPES, AtomicFn
from tiledsl.ir.core import OPS

memory_class: Any = lang.Memory


def _atomic(fn: AtomicFn, call: Call) -> Any:
    dtype = memory_type(call["self"]).dtype
    if not fn.accepts(dtype):
        raise call.error(f"{call.what} is not defined for {dtype}", f"it takes {', '.join(sorted(fn.dtypes))}")
    order, scope = call.choice("order", fn.orders), call.choice("scope", SCOPES)
    if order == "volatile":
        if scope not in ("gpu", "sys"):
            fix = "leave scope out, or order='relaxed', which has one"
            raise call.error(f"a volatile access has scope 'sys', got {scope!r}", fix)
        scope = "sys"
    at, values = _place_and_values(fn, call)
    found = access(call.frame, call.node, call["self"], at)
    operands = [found.values(value, dtype, "value") for value in values]
    return found.each(partial(OPS[f"tile.atomic_{fn.name}"], order=order, reach=scope), *operands)


def _place_and_values(fn: AtomicFn, call: Call) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The indices, and the values that follow them."""
    given: tuple[Any, ...] = call["index_and_value" if fn.values else "index"]
    rank = as_view(call["self"]).rank
    if len(given) != rank + fn.values:
        values = ("", " and a value", ", the value to compare with, and the new one")[fn.values]
        axes = f"{rank} ind{'ex' if rank == 1 else 'ices'}"
        message = f"{call.what} on a tile of {rank} axes takes {axes}{values}, got {len(given)} arguments"
        raise call.error(message, "an element is named by one index an axis")
    return given[:rank], given[rank:]


for _row in ATOMICS.values():
    intrinsic(getattr(memory_class, f"atomic_{_row.name}"))(partial(_atomic, _row))
