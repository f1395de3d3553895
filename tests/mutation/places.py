"""Whether two neighbours of one block may change places without any effect, by what the ops declare."""

from __future__ import annotations

from functools import lru_cache

from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.facts import NOTHING, Access
from tiledsl.ir.ops import barriers, mem
from tiledsl.ir.types import GlobalType, PtrType
from tiledsl.passes.analysis.written import WrittenMemory, memory_of
from tiledsl.passes.pipelining.body import overlap

__all__ = ["apart", "kernel_of"]


def kernel_of(op: Op) -> Kernel:
    around = op.block.parent
    while isinstance(around, Op):
        around = around.block.parent
    assert around is not None
    return around


@lru_cache(maxsize=4)
def _written(kernel: Kernel) -> WrittenMemory:
    return WrittenMemory(kernel)


def apart(op: Op, other: Op) -> bool:
    """True if neither orders anything that the other does, and they access no memory of which one writes. False: they
    may have to do with each other. All that is inside an op counts."""
    kernel = kernel_of(op)
    return all(_apart(kernel, a, b) for a in op.walk() for b in other.walk())


def _apart(kernel: Kernel, a: Op, b: Op) -> bool:
    if a.sync == NOTHING and b.sync == NOTHING:
        if _begins(a) and _begins(b):
            return True  # nothing orders asynchronous work among itself; bytes count at an mbarrier in any order
        if isinstance(a, barriers.Init) and isinstance(b, barriers.Init):
            return a.operands != b.operands
        return not any(_conflict(kernel, x, y) for x in _accesses(kernel, a) for y in _accesses(kernel, b))
    if isinstance(a, barriers.Arrive) and isinstance(b, barriers.Arrive):
        return True  # nobody sees which of its arrivals a thread has made first
    return not _concerns(kernel, a, b) and not _concerns(kernel, b, a)


def _begins(op: Op) -> bool:
    return any(each.done for each in op.accesses())


def _accesses(kernel: Kernel, op: Op) -> list[Access]:
    """Those that others may meet: without reads of tensors that the kernel never writes."""
    return [each for each in op.accesses() if each.writes or not _only_read(kernel, each)]


def _only_read(kernel: Kernel, access: Access) -> bool:
    memory = _memory(kernel, access)
    return memory is not None and not _shared(memory) and not _written(kernel).may_write(memory)


def _memory(kernel: Kernel, access: Access) -> Value | None:
    if isinstance(access.memory, int):
        name = kernel.tensor_maps[access.memory].tensor
        return next(arg for arg in kernel.body.args if arg.name == name and isinstance(arg.type, (GlobalType, PtrType)))
    return None if access.memory is None else memory_of(access.memory)


def _shared(memory: Value) -> bool:
    return not isinstance(memory.type, GlobalType) and getattr(memory.type, "space", "shared") == "shared"


def _conflict(kernel: Kernel, a: Access, b: Access) -> bool:
    if not (a.writes or b.writes):
        return False
    x, y = _memory(kernel, a), _memory(kernel, b)
    if x is None or y is None or x is y:
        return True
    if not (_shared(x) and _shared(y)):
        return False
    if isinstance(x.op, mem.SharedBase) and isinstance(y.op, mem.SharedBase):
        return x.op.offset < y.op.offset + y.op.bytes and y.op.offset < x.op.offset + x.op.bytes
    return overlap(x, y)


def _concerns(kernel: Kernel, op: Op, other: Op) -> bool:
    """Does `op` order, by its `sync`, anything that `other` does?"""
    sync, of_other = op.sync, other.sync
    if sync == NOTHING:
        return False
    accesses = _accesses(kernel, other)
    if sync.orders == "registers":
        return other.scope == "warpgroup"
    if sync.commits and not sync.releases:
        begun = {each.done for each in other.accesses()}
        return sync.commits in {*begun, of_other.commits, of_other.completes}
    if isinstance(op, barriers.ExpectTx):
        # Bytes may come before they are expected: the phase lacks this arrival. A release is not of what has begun.
        accesses = [each for each in accesses if not each.done and each.atomic == ""]
    orders = of_other.meets or of_other.releases or of_other.acquires or of_other.completes
    return bool(accesses or orders or of_other.orders == "proxy" or of_other.commits == (sync.completes or None))
