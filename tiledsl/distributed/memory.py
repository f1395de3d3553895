"""A process group: its ranks, the memory that they share, and the number of its calls.

Each rank allocates its segment by `torch.distributed._symmetric_memory`, which exchanges the handles. The segments are
then mapped once more, one after the other, so that one tensor reaches over all of them.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tiledsl.arch import TARGETS
from tiledsl.errors import DeviceError
from tiledsl.gemm.sharded import Copy, Layout
from tiledsl.outside import seconds_of
from tiledsl.runtime.driver import driver
from tiledsl.signatures.specialize import Called, argument_error

__all__ = ["Ranks", "dist", "ranks_of", "release", "torch"]

try:
    # Not import statements: torch is no dependency, and a type checker need not have it.
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
except ImportError as error:
    raise ImportError(f"tiledsl.distributed needs PyTorch: {error}\n  fix: pip install torch") from error

ASKS = 1 << 22
"""How often a kernel asks for a flag in a second, about."""
LONGEST = 1000.0
"""Seconds that a kernel waits at most: what it counts has 32 bits."""
CALLS = 4096
"""Rows of the table that tells kernels the number of their call."""
WORDS, MASK = 3, 0xFFFFFFFF
"""Of a row; of a word."""


def _timeout() -> float:
    text = os.environ.get("TILEDSL_PEER_TIMEOUT", "600")
    seconds = seconds_of(text)
    if seconds is None or seconds > LONGEST:
        message = f"TILEDSL_PEER_TIMEOUT is {text!r}; expected seconds above 0, at most {LONGEST:g}"
        raise DeviceError(f"{message}\n  fix: set it to such a number, or unset it")
    return seconds


class Segments:
    """The segments of all ranks, mapped one after the other from `base` on. `own`: the bytes of this rank's."""

    def __init__(self, layout: Layout, group: Any, device: Any) -> None:
        symmetric = importlib.import_module("torch.distributed._symmetric_memory")
        self.own = symmetric.empty(layout.bytes, dtype=torch.uint8, device=device)
        handle = symmetric.rendezvous(self.own, group)
        self.own[: layout.zeros].zero_()
        cu, check, what = driver().cu, driver().check, "mapping the memory of the other ranks"
        with driver().active(device.index):
            found = [check(cu.cuMemGetAddressRange(at), what) for at in handle.buffer_ptrs]
            pitch = int(found[0][1])
            self.layout, self.mapped = replace(layout, pitch=pitch), pitch * len(found)
            self.base = int(check(cu.cuMemAddressReserve(self.mapped, 0, 0, 0), what))
            for number, (start, _) in enumerate(found):
                memory = check(cu.cuMemRetainAllocationHandle(int(start)), what)
                check(cu.cuMemMap(self.base + number * pitch, pitch, 0, memory, 0), what)
                check(cu.cuMemRelease(memory), what)
            access = cu.CUmemAccessDesc()
            access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            access.location.id = device.index
            access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            check(cu.cuMemSetAccess(self.base, self.mapped, [access], 1), what)

    def free(self) -> None:
        """When no rank uses them any more."""
        cu, check = driver().cu, driver().check
        check(cu.cuMemUnmap(self.base, self.mapped), "unmapping the memory of the other ranks")
        check(cu.cuMemAddressFree(self.base, self.mapped), "freeing the addresses of the other ranks' memory")
        self.own = None


class Ranks:
    """The ranks of a group, of which this process is number `rank`.

    apart: why they do not share memory; "" if they do. known: launches, by all that they depend on. told: of this rank,
    as `of_call` of the kernels, without the number of a call. captured: graphs use the segments, which are then kept.
    """

    def __init__(self, group: Any) -> None:
        self.group, self.rank, self.count = group, dist.get_rank(group), dist.get_world_size(group)
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.processors: int = driver().devices[int(self.device.index)].processors
        self._side = torch.cuda.Stream(self.device)
        self._events = [driver().check(driver().cu.cuEventCreate(2), "creating an event") for _ in range(2)]
        self.segments: Segments | None = None
        self.captured, self._kept = False, list[Segments]()
        self.known: dict[Any, Any] = {}
        self.told = torch.tensor([self.rank, 0, int(_timeout() * ASKS) & MASK], dtype=torch.int64)
        self.told = self.told.to(torch.uint32).to(self.device)
        self._agreed: set[Any] = set()
        self._table: Any = None
        self._calls = 0
        self._stream = -1
        self.apart = self._why_apart()
        if self.apart and self.count > 1 and self.rank == 0:
            warnings.warn(f"tiledsl.distributed: NCCL sends what products need: {self.apart}", stacklevel=6)

    def _why_apart(self) -> str:
        """All ranks come to the same."""
        asked = os.environ.get("TILEDSL_PEERS", "1") != "0"
        kind = "wgmma" in TARGETS[driver().target_of(self.device.index)].features, self.processors
        every = self._exchanged((asked, kind, os.uname().nodename, self.device.index))
        if not all(asked for asked, *_ in every):
            return "TILEDSL_PEERS is 0"
        kinds = {kind for _, kind, *_ in every}
        if not all(has_wgmma for has_wgmma, _ in kinds):
            return "a GPU has no wgmma"
        if len(kinds) > 1:
            return "the GPUs differ in their SMs"
        if len({host for *_, host, _ in every}) > 1:
            return "the ranks are on several hosts"
        others = {number for *_, number in every} - {self.device.index}
        reached = all(torch.cuda.can_device_access_peer(self.device, number) for number in others)
        same = all(self._exchanged(reached and len(others) == self.count - 1))
        return "" if same else "the GPUs do not reach each other's memory"

    def _exchanged(self, mine: Any) -> list[Any]:
        """What each rank has passed."""
        every: list[Any] = [None] * self.count
        dist.all_gather_object(every, mine, group=self.group)
        return every

    def agree(self, call: Called, facts: tuple[Any, ...]) -> None:
        """Raises KernelArgumentError unless all ranks call this function with these facts. New ones are compared."""
        key = call.name, facts
        if key in self._agreed:
            return
        if torch.cuda.is_current_stream_capturing():
            message = f"{call.name}() is new for these shapes, and its stream captures a graph"
            raise DeviceError(f"{message}\n  fix: call it once, on all ranks, before the capture")
        for rank, theirs in enumerate(self._exchanged(key)):
            if theirs != key:
                message = f"rank {rank} calls {_shown(*theirs)}, and rank {self.rank} {_shown(*key)}"
                raise argument_error(call, message, "let all ranks of the group make the same calls", code="C803")
        self._agreed.add(key)

    def require(self, room: int) -> Segments:
        """Segments whose halves have so much room. All ranks ask for the same in the same call."""
        if self.segments is None or self.segments.layout.room < room:
            self.finish()
            if self.segments is not None and self.captured:
                self._kept.append(self.segments)
            elif self.segments is not None:
                self.segments.free()
            self.known.clear()
            self.segments, self.captured = Segments(Layout(self.count, room), self.group, self.device), False
            self.finish()
        return self.segments

    def free(self) -> None:
        """All segments, when all ranks come here."""
        if self.segments is not None:
            self.finish()
            for segments in (self.segments, *self._kept):
                segments.free()

    def finish(self) -> None:
        """Wait until all ranks have done what they were given so far."""
        torch.cuda.synchronize(self.device)
        dist.barrier(self.group, device_ids=[self.device.index])
        torch.cuda.synchronize(self.device)

    def put_behind(self, stream: int) -> None:
        """What comes next on `stream` comes behind the call before."""
        if stream != self._stream:
            if self._stream >= 0:
                driver().wait_for(stream, self._stream)
            self._stream = stream

    def begin_call(self, stream: int) -> tuple[int, int]:
        """Counts a call. Gives the half that it uses, and the address of what its kernel is told. It comes behind the
        call before, also if that was on another stream."""
        self.put_behind(stream)
        row = self._calls % CALLS
        if row == 0:
            self._table = self.told.repeat(CALLS, 1)
            numbers = torch.arange(self._calls + 1, self._calls + 1 + CALLS) & MASK
            self._table[:, 1] = numbers.to(torch.uint32).to(self.device)
        self._calls += 1
        return self._calls % 2, self._table.data_ptr() + row * WORDS * 4

    def begin_to_send(self, stream: int) -> None:
        """What is sent next comes behind what `stream` has now."""
        self._follow(self._side.cuda_stream, stream, self._events[0])

    def send(self, source: int, copies: Iterable[Copy]) -> None:
        """Send what begins at `source`, for the call that has begun. Where copies wait for flags, the kernel that sets
        these has been launched: so none of them can be before it in a queue of the GPU."""
        assert self.segments is not None
        gpu, base, side = driver(), self.segments.base, self._side.cuda_stream
        copy, write, wait = gpu.cu.cuMemcpyDtoDAsync, gpu.cu.cuStreamWriteValue32, gpu.cu.cuStreamWaitValue32
        number, equal = self._calls & MASK, gpu.cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ.value
        for each in copies:
            if each.ready is not None:
                gpu.check(wait(side, base + each.ready, number, equal), "waiting for a part to be sent")
            gpu.check(copy(base + each.to, source + each.source, each.bytes, side), "sending to another rank")
            gpu.check(write(side, base + each.flag, number, 0), "setting a flag of another rank")

    def join(self, stream: int) -> None:
        """What comes next on `stream` may overwrite what was sent."""
        self._follow(stream, self._side.cuda_stream, self._events[1])

    def _follow(self, stream: int, other: int, event: Any) -> None:
        gpu = driver()
        gpu.record(event, other)
        gpu.check(gpu.cu.cuStreamWaitEvent(stream, event, 0), "waiting for another stream")


def _shown(name: str, facts: tuple[Any, ...]) -> str:
    return f"{name}({', '.join(map(str, facts))})"


_RANKS: dict[Any, Ranks] = {}


def ranks_of(group: Any) -> Ranks:
    """What is known of a group; None: the default one. Raises DeviceError where none is initialised."""
    found = _RANKS.get(group)
    if found is not None:
        return found
    if not dist.is_initialized():
        message = "tiledsl.distributed needs a process group"
        raise DeviceError(f'{message}\n  fix: torch.distributed.init_process_group("nccl")')
    named = dist.group.WORLD if group is None else group
    found = _RANKS[group] = _RANKS.get(named) or _RANKS.setdefault(named, Ranks(named))
    return found


def release() -> None:
    """Free the memory of all groups, before these are destroyed. All ranks call it together."""
    for ranks in {id(each): each for each in _RANKS.values()}.values():
        ranks.free()
    _RANKS.clear()
