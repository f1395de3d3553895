"""Asynchronous copies and their tokens; `pipelined` itself is a loop (`loops`)."""

from __future__ import annotations

from typing import Any

from tiledsl import lang
from tiledsl.frontend.bindings import Unusable, describe, is_token, leaves
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.frame import Unit
from tiledsl.frontend.intrinsics.roles import refuse_in_role
from tiledsl.frontend.intrinsics.tiles import IN_ROLES, add_copy, copied_views
from tiledsl.frontend.views import memory_name, memory_type
from tiledsl.ir.core import Value
from tiledsl.ir.ops import async_copy
from tiledsl.ir.types import GlobalType, SharedType

NO_TOKEN = Unusable(
    "a copy_async() in a pipelined loop has no token: the loop waits for it",
    "leave the wait out; or leave pipelined() out, and place waits and barriers yourself",
    code="C407",
)


@intrinsic(lang.copy_async)
def _copy_async(call: Call) -> Value | Unusable:
    refuse_in_role(call, IN_ROLES)
    src, dst = copied_views(call)
    if isinstance(memory_type(src), SharedType) or isinstance(memory_type(dst), GlobalType):
        found = " to ".join(f"{memory_name(view)} ({memory_type(view)})" for view in (src, dst))
        raise call.error(
            f"{call.what} goes from a Global to a shared tile, this one from {found}", "use copy()", code="C402"
        )
    vec = call.width("vec", memory_type(src).dtype, async_copy.CP_BYTES)
    token = add_copy(call, async_copy.Copy, src, dst, vec).result
    return token if call.unit.pipelined is None else NO_TOKEN


@intrinsic(lang.wait)
def _wait(call: Call) -> None:
    given: list[Any] = list(call["tokens"])
    if not given:
        fix = "pass its tokens: wait(token); groups of raw copies are waited for with ptx.wait_group(n)"
        raise call.error("wait() for nothing", fix, code="C407")
    for token in given:
        if not is_token(token):
            fix = "t = copy_async(...); wait(t)"
            if isinstance(token, (list, tuple)) and all(is_token(item) for item in leaves(token)):
                fix = "unpack it: wait(*tokens)"
            raise call.error(f"wait() takes tokens of copy_async(), got {describe(token)}", fix, code="C407")
    call.builder.add(async_copy.Wait(*dict.fromkeys(given)))


def group_dropped(unit: Unit) -> None:
    """Copies whose token was dropped belong to the author's own groups, if there are any."""
    for token in unit.dropped:
        if unit.raw_groups and not token.uses and isinstance(token.op, async_copy.Copy):
            token.op.attrs["grouped"] = True
