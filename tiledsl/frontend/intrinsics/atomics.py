"""The methods ``atomic_<row>`` of tensors and tiles, by the table of atomics."""

from __future__ import annotations

from functools import partial
from typing import Any

from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.intrinsics.memory import memory_class, place_and_values
from tiledsl.frontend.memory import access
from tiledsl.frontend.views import memory_type
from tiledsl.ir.atomics import ATOMICS, SCOPES, AtomicFn
from tiledsl.ir.core import OPS


def _atomic(fn: AtomicFn, call: Call) -> Any:
    dtype = memory_type(call["self"]).dtype
    order, scope = call.choice("order", fn.orders), call.choice("scope", SCOPES)
    if order == "volatile" and scope == "gpu":  # the default
        scope = "sys"
    problem = fn.problem(dtype, order, scope)
    if problem is not None:
        dtypes = ", ".join(sorted(fn.dtypes))
        raise call.error(
            f"{call.what} is {problem}", f"it takes {dtypes}, and a scope unless it is volatile", code="C409"
        )
    names = ("compare", "value")[2 - fn.values :]
    at, values = place_and_values(call, "index_and_value" if names else "index", names)
    found = access(call.frame, call.node, call["self"], at)
    operands = [found.values(value, dtype, "value") for value in values]
    return found.each(OPS[f"tile.atomic_{fn.name}"], *operands, order=order, reach=scope)


for _row in ATOMICS.values():
    intrinsic(getattr(memory_class, f"atomic_{_row.name}"))(partial(_atomic, _row))
