"""Workspaces of `gemm`: memory of the GPU that belongs to a stream, so that calls on different streams share none.

The calls of one stream share a workspace: its kernels run in their order. It grows on demand. The smaller one is kept,
since kernels that are still to run, and captured graphs, may use it; each is at least twice as large as the one before,
so all that are kept are no larger than the last. `release` frees them.

A graph that torch captures has its workspace from torch. The words that are zero before and after each product it has
from here: torch's would have to be set to zero in the graph. They are zero before, and each graph has words of its own.
"""

from __future__ import annotations

import threading

from tiledsl.errors import DeviceError
from tiledsl.forks import in_child
from tiledsl.runtime.driver import Driver, driver

PER_THREAD_STREAM = 2
"""The handle that is another stream in each thread. (CUDA driver API: CU_STREAM_PER_THREAD.)"""
LEAST_ROOM, LEAST_ZEROS = 1 << 20, 1 << 12
"""Bytes that are allocated at least."""
GRAPH_ZEROS = 1 << 20
"""Bytes of zeros for captured graphs that are allocated at a time."""


class Workspace:
    """The memory of one stream. Who launches kernels that use it holds `lock` from `require` to the last launch, so
    that those of another thread do not come between."""

    def __init__(self, gpu: Driver, device: int, stream: int) -> None:
        self.gpu, self.device, self.stream = gpu, device, stream
        self.lock = threading.Lock()
        self.kept: list[int] = []
        self.memory = 0, 0
        self.room = self.zeros = 0
        in_child(self)

    def renew(self) -> None:
        """In the child of a fork, which has no context: the memory is the parent's."""
        self.lock = threading.Lock()
        self.kept, self.memory, self.room, self.zeros = [], (0, 0), 0, 0

    def require(self, room: int, zeros: int) -> tuple[int, int]:
        """Addresses of at least `room` bytes, and of `zeros` bytes that are 0 when the stream comes to what is launched
        next."""
        if room <= self.room and zeros <= self.zeros:
            return self.memory
        with self.gpu.active(self.device):
            if self.gpu.capturing(self.stream):
                message = f"gemm() needs a workspace of {room + zeros} bytes, and its stream captures a graph"
                fix = "call tiledsl.gemm.warmup(...) for these shapes on this stream, or gemm once, before the capture"
                raise DeviceError(f"{message}\n  fix: {fix}")
            if room > self.room:
                address, size = self._allocated(max(room, LEAST_ROOM, 2 * self.room))
                self.memory, self.room = (address, self.memory[1]), size
            if zeros > self.zeros:
                address, size = self._allocated(max(zeros, LEAST_ZEROS, 2 * self.zeros))
                self.gpu.clear(address, size, self.stream)
                self.memory, self.zeros = (self.memory[0], address), size
        return self.memory

    def _allocated(self, size: int) -> tuple[int, int]:
        with self.gpu.beside_captures():
            address = self.gpu.allocate(size, "the workspace of gemm()")
        self.kept.append(address)
        return address, size

    def free(self) -> None:
        with self.lock, self.gpu.active(self.device):
            if self.kept:
                self.gpu.finish("gemm()")
            for address in self.kept:
                self.gpu.free(address)
            self.kept, self.memory, self.room, self.zeros = [], (0, 0), 0, 0


_ALL: dict[tuple[int, ...], Workspace] = {}


def workspace_of(device: int, stream: int) -> Workspace:
    """The workspace of this stream."""
    key = (device, stream) if stream != PER_THREAD_STREAM else (device, stream, threading.get_ident())
    return _ALL.get(key) or _ALL.setdefault(key, Workspace(driver(), device, stream))


class _GraphZeros:
    """Memory of one device that is zero. Each capture takes a part for each of its streams."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.start = self.end = 0
        self.parts: dict[tuple[int, int], tuple[int, int]] = {}
        in_child(self)

    def renew(self) -> None:
        self.lock = threading.Lock()
        self.start, self.end, self.parts = 0, 0, {}

    def keep(self, gpu: Driver, stream: int) -> None:
        """Have enough for the captures to come. `stream` captures nothing."""
        with self.lock:
            if self.end - self.start >= GRAPH_ZEROS // 2:
                return
            with gpu.beside_captures():
                start = gpu.allocate(GRAPH_ZEROS, "the workspaces of graphs")
                gpu.clear(start, GRAPH_ZEROS, stream)
                gpu.synchronize(stream, "the workspaces of graphs")
            self.start, self.end = start, start + GRAPH_ZEROS

    def part(self, gpu: Driver, stream: int, size: int) -> int:
        with self.lock:
            key = stream, gpu.capture_id(stream)
            at, has = self.parts.get(key, (0, 0))
            if has < size:
                at, has = self.start, max(size + -size % LEAST_ZEROS, 2 * has)
                if at + has > self.end:
                    return 0
                self.start, self.parts[key] = at + has, (at, has)
            return at


_GRAPHS: dict[int, _GraphZeros] = {}


def keep_graph_zeros(device: int, stream: int) -> None:
    """Have zeros for graphs that are captured later. `stream` captures nothing now."""
    found = _GRAPHS.get(device) or _GRAPHS.setdefault(device, _GraphZeros())
    gpu = driver()
    with gpu.active(device):
        found.keep(gpu, stream)


def graph_zeros(device: int, stream: int, size: int) -> int:
    """The address of `size` bytes that are zero, for the graph that `stream` captures; 0 if none are left. The launches
    of a graph on one stream share them."""
    found = _GRAPHS.get(device)
    return 0 if found is None else found.part(driver(), stream, size)


def release() -> None:
    """Free all workspaces of `gemm`, after the work of their GPUs has ended. Later calls allocate new ones.

    Graphs that were captured must not run any more, except those of torch tensors, which have memory of their own.
    """
    for found in list(_ALL.values()):
        found.free()
