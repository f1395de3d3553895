"""The methods ``atomic_<row>`` of tensors and tiles, by the table of atomics."""

from __future__ import annotations

from functools import partial
from typing import Any

from tiledsl import lang
from tiledsl.frontend.arithmetic import as_value
from tiledsl.frontend.bindings import describe
from tiledsl.frontend.calls import Call, intrinsic
from tiledsl.frontend.gather import gather, is_gather
from tiledsl.frontend.views import as_view, located, memory_type
from tiledsl.ir.atomics import ATOMICS, SCOPES, AtomicFn
from tiledsl.ir.core import Value
from tiledsl.ir.ops import tile

memory_class: Any = lang.Memory

__all__: list[str] = []


def _atomic(fn: AtomicFn, call: Call) -> Any:
    dtype = memory_type(call["self"]).dtype
    if not fn.accepts(dtype):
        known = ", ".join(sorted(fn.dtypes))
        raise call.error(f"atomic_{fn.name}() is not defined for {dtype}", f"it takes {known}")
    how = _order_and_scope(fn, call)
    at, given = _place_and_values(fn, call)

    def made(base: Value, indices: list[Value], *elements: Value) -> Any:
        op = call.builder.add(tile.atomic(fn.name, base, *indices, *elements, **how))
        return op.result if fn.result else None

    if is_gather(at):
        found = gather(call.frame, call.node, call["self"], at)
        columns = [found.values(value, dtype, "value") for value in given]
        results = [made(found.base, *each) for each in zip(found.rows, *columns, strict=True)]
        return found.fragment(results) if fn.result else None
    base, indices = located(call.frame, call.node, call["self"], at)
    return made(base, indices, *(as_value(value, dtype, call.frame, call.node, "value") for value in given))


def _order_and_scope(fn: AtomicFn, call: Call) -> dict[str, str]:
    order, scope = call["order"], call["scope"]
    if order not in fn.orders:
        known = ", ".join(map(repr, fn.orders))
        raise call.error(f"atomic_{fn.name}() has no order {describe(order)}", f"one of {known}")
    if scope not in SCOPES:
        known = ", ".join(map(repr, SCOPES))
        raise call.error(f"atomic_{fn.name}() has no scope {describe(scope)}", f"one of {known}")
    if order == "volatile" and scope not in ("gpu", "sys"):
        fix = "leave scope out, or order='relaxed', which has one"
        raise call.error(f"a volatile access has scope 'sys', got {scope!r}", fix)
    return {"order": order, "reach": "sys" if order == "volatile" else scope}


def _place_and_values(fn: AtomicFn, call: Call) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The indices, and the values that follow them."""
    given: tuple[Any, ...] = call["index_and_value" if fn.values else "index"]
    rank = as_view(call["self"]).rank
    if len(given) != rank + fn.values:
        values = ("", " and a value", ", the value to compare with, and the new one")[fn.values]
        axes = f"{rank} ind{'ex' if rank == 1 else 'ices'}"
        message = f"atomic_{fn.name}() on a tile of {rank} axes takes {axes}{values}, got {len(given)} arguments"
        raise call.error(message, "an element is named by one index an axis")
    return given[:rank], given[rank:]


for _row in ATOMICS.values():
    intrinsic(getattr(memory_class, f"atomic_{_row.name}"))(partial(_atomic, _row))
