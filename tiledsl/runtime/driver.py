"""The CUDA driver through cuda.bindings: contexts, modules, memory, events, and what its errors mean.

`driver()` returns the one instance and raises DeviceError if there is no driver or no GPU; `available()` returns None
then. A failed call raises a DeviceError that says what was tried. After an error that the driver cannot recover from
(an illegal address and the like) the context is dead, and every further call is refused with the reason.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Generator

from tiledsl.arch import STATIC_SHARED, TARGETS
from tiledsl.backends.print_records import LINES, PRINTS, Records
from tiledsl.backends.protocol import ASSERTIONS, FAILURE, RECORD_BYTES
from tiledsl.errors import DeviceError
from tiledsl.runtime.assertions import Assertions
from tiledsl.runtime.prints import Prints

OUT_OF_MEMORY, NO_BINARY = 2, 209
WRONG_CONTEXT = frozenset({201, 400, 709})
"""INVALID_CONTEXT, INVALID_HANDLE, CONTEXT_IS_DESTROYED: the results of a launch while another context is current."""

STICKY = {
    700: "accessed an illegal address",
    702: "ran longer than this GPU allows",
    710: "failed an assertion",
    714: "overflowed its stack",
    715: "met an illegal instruction or a trap",
    716: "accessed a misaligned address",
    717: "used an address of the wrong space",
    718: "jumped to an invalid address",
    719: "failed while it ran",
}
"""CUresult values after which the context is lost (CUDA driver API, "Data types used by CUDA driver")."""

PORTABLE, MAPPED = 1, 2
"""Flags of cuMemHostRegister: pinned for every context, and mapped into the address space of the GPU. (CUDA driver API:
memory management.)"""
_KEPT: list[mmap.mmap] = []
"""Pinned memory that is never freed. Memory that the driver allocates ends with its context, which another library may
destroy while our thread reads it."""


@dataclass(frozen=True)
class Device:
    """One GPU. `capability`: major, minor. `processors`: its SMs."""

    ordinal: int
    handle: Any
    name: str
    capability: tuple[int, int]
    processors: int = 0


class Driver:
    assertions, prints = Assertions(), Prints()
    """Of all modules: the memory that kernels write these to belongs to the process, not to a context."""

    def __init__(self) -> None:
        self.cu = _load_bindings()
        self.devices = self._find_devices()
        self.launch, self.launch_with = self.cu.cuLaunchKernel, self.cu.cuLaunchKernelEx
        self.last_kernel = ""
        """The kernel launched last, which most likely caused an error that is reported late."""
        self.lost = ""
        """Why the context is dead, or ""."""
        self._functions: dict[tuple[Any, ...], Any] = {}
        self._primary_context = cache(self._retain)
        self._zeros = cache(self._allocate_zeros)

    # -- errors ------------------------------------------------------------------------------------------

    def check(self, result: tuple[Any, ...], action: str) -> Any:
        """The value of a driver call's result tuple. Raises DeviceError with `action` if the call failed."""
        code = int(result[0])
        if code:
            raise self.error(code, action)
        return result[1] if len(result) == 2 else result[1:]

    def error(self, code: int, action: str) -> DeviceError:
        if code in STICKY:
            return self._lose(code)
        name, text = self._describe(code)
        return DeviceError(f"{action}: the CUDA driver reports {name}: {text}")

    def _describe(self, code: int) -> tuple[str, str]:
        try:
            result = self.cu.CUresult(code)
        except ValueError:  # a code newer than the bindings
            return f"error {code}", "unknown to this version of cuda.bindings"
        name, text = (call(result)[1] for call in (self.cu.cuGetErrorName, self.cu.cuGetErrorString))
        return name.decode(), text.decode()

    def _lose(self, code: int) -> DeviceError:
        self.prints.show(last=True)
        text = self.assertions.failed()
        if not text and not self.lost:
            text = f"{f'kernel {self.last_kernel}()' if self.last_kernel else 'a kernel'} {STICKY[code]}"
        if text:
            self.lost = text
        else:
            text = f"the GPU cannot be used any more by this process: {self.lost}"
            text += " (launches are asynchronous: it is the kernel launched last before the error was seen)"
        fix = 'start a new process; run the kernel with device="emulator" to find the line'
        return DeviceError(f"{text}\n  fix: {fix}")

    def refuse_if_lost(self) -> None:
        if self.lost:
            raise self._lose(719)

    # -- devices and contexts ----------------------------------------------------------------------------

    def _find_devices(self) -> tuple[Device, ...]:
        count = self.check(self.cu.cuDeviceGetCount(), "counting the GPUs")
        if not count:
            raise _no_gpu("the driver finds none")
        return tuple(self._device(ordinal) for ordinal in range(count))

    def _device(self, ordinal: int) -> Device:
        cu, action = self.cu, f"reading the properties of GPU {ordinal}"
        handle = self.check(cu.cuDeviceGet(ordinal), action)
        name = self.check(cu.cuDeviceGetName(100, handle), action).decode().rstrip("\0")
        asked = ("COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR", "MULTIPROCESSOR_COUNT")
        keys = (getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{attribute}") for attribute in asked)
        major, minor, processors = (self.check(cu.cuDeviceGetAttribute(key, handle), action) for key in keys)
        return Device(ordinal, handle, name, (major, minor), processors)

    def current_device(self) -> int:
        """The device of the caller's current context, or 0 without one."""
        if not int(self.check(self.cu.cuCtxGetCurrent(), "reading the current context")):
            return 0
        current = int(self.check(self.cu.cuCtxGetDevice(), "reading the current device"))
        return next(d.ordinal for d in self.devices if int(d.handle) == current)

    def target_of(self, ordinal: int, kernel: str = "", arch: str = "") -> str:
        """`arch`, for which `kernel` is to be built, or else the compiler's best target for device `ordinal`.

        Raises DeviceError if that device does not run it.
        """
        device = self.devices[ordinal]
        (major, minor), fitting = device.capability, [t for t in TARGETS.values() if t.runs_on(device.capability)]
        if arch and arch not in [t.name for t in fitting]:
            message = f"{kernel}() is built for {arch}; GPU {ordinal}, {device.name}, is sm_{major}{minor}"
            fix = 'build it for this GPU, or run it with device="emulator"'
            raise DeviceError(f"{message} and cannot run it\n  fix: {fix}")
        if not fitting:
            message = f"GPU {ordinal}, {device.name}, has compute capability {major}.{minor}"
            message += f"; the compiler has no target for it, only {', '.join(TARGETS)}"
            raise DeviceError(f'{message}\n  fix: run the kernel with device="emulator", or on another GPU')
        return arch or max(fitting, key=lambda t: (t.exact, t.capability)).name

    @contextmanager
    def active(self, ordinal: int) -> Generator[int, None, None]:
        """Make a context of device `ordinal` current: the caller's if it is on that device, else the primary one.

        Yields the context's handle as an int. The caller's context is restored at the end.
        """
        self.refuse_if_lost()
        cu = self.cu
        current = self.check(cu.cuCtxGetCurrent(), "reading the current context")
        if int(current) and self.current_device() == ordinal:
            yield int(current)
            return
        context = self._primary_context(ordinal)
        self.check(cu.cuCtxPushCurrent(context), f"using GPU {ordinal}")
        try:
            yield int(context)
        finally:
            cu.cuCtxPopCurrent()

    def _retain(self, ordinal: int) -> Any:
        """The primary context of device `ordinal`."""
        device = self.devices[ordinal]
        return self.check(self.cu.cuDevicePrimaryCtxRetain(device.handle), f"opening GPU {ordinal} ({device.name})")

    def pointer_device(self, pointer: int) -> int:
        """The device whose memory `pointer` points to. DeviceError if it is not CUDA memory."""
        kind = self.cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(self.check(self.cu.cuPointerGetAttribute(kind, pointer), f"looking up the address {pointer:#x}"))

    # -- code --------------------------------------------------------------------------------------------

    def function(self, *code: Any) -> Any:
        """The kernel of this `code`, the arguments of `_load`, which loads it the first time."""
        found = self._functions.get(code)
        if found is None:
            with self.beside_captures():
                found = self._functions.setdefault(code, self._load(*code))
        return found

    def is_loaded(self, *code: Any) -> bool:
        return code in self._functions

    @contextmanager
    def beside_captures(self) -> Generator[None]:
        """Allow this thread to allocate, to load code and to wait while another one captures a graph. The driver
        forbids it, as it cannot know that the graph does not depend on it. (CUDA driver API:
        CU_STREAM_CAPTURE_MODE_RELAXED.)"""
        relaxed = self.cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = self.check(self.cu.cuThreadExchangeStreamCaptureMode(relaxed), "changing the mode of captures")
        try:
            yield
        finally:
            self.cu.cuThreadExchangeStreamCaptureMode(before)

    def _load(self, context: int, cubin: bytes, name: str, arch: str, shared: int, ordinal: int) -> Any:
        """The kernel, loaded into `context` (active), with `shared` bytes of shared memory allowed."""
        cu = self.cu
        self.target_of(ordinal, name, arch)
        result = cu.cuModuleLoadData(cubin)
        if int(result[0]) == NO_BINARY:
            device = self.devices[ordinal]
            message = f"{name}(): the driver refuses the code for {arch} on GPU {ordinal}, {device.name}"
            raise DeviceError(f"{message}\n  fix: update the NVIDIA driver, or compile for another target")
        module = self.check(result, f"loading {name}()")
        function = self.check(cu.cuModuleGetFunction(module, name.encode()), f"finding {name} in its code")
        if has_variable(cubin, FAILURE):
            self.watch_assertions(module, name)
        if has_variable(cubin, LINES):
            self.watch_prints(module, name)
        limit = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        if shared > STATIC_SHARED:
            result = cu.cuFuncSetAttribute(function, limit, shared)
            self.check(result, f"giving {name}() {shared} bytes of shared memory")
        return function

    def watch_assertions(self, module: Any, name: str) -> None:
        """Allocate the assertion record of `module`, the code of kernel `name`. Its context is active."""
        what = f"the assertions of {name}()"
        sites = self._read_variable(module, ASSERTIONS, what)
        self.assertions.watch(self._give_memory(module, FAILURE, RECORD_BYTES, what), sites)

    def watch_prints(self, module: Any, name: str) -> None:
        """Allocate the ring for the lines that `module`, the code of kernel `name`, prints. Its context is active."""
        what = f"the lines that {name}() prints"
        records = Records(self._read_variable(module, PRINTS, what))
        self.prints.watch(self._give_memory(module, LINES, records.ring_bytes, what), records)

    def read_variable(self, function: Any, name: str) -> bytes:
        """The content of a variable of the module that `function`, a kernel, is in. Its context is active."""
        module = self.check(self.cu.cuFuncGetModule(function), "finding a kernel's module")
        return self._read_variable(module, name, name)

    def clear_variable(self, function: Any, name: str) -> None:
        """Fill such a variable with zeros."""
        module = self.check(self.cu.cuFuncGetModule(function), "finding a kernel's module")
        place, size = self.check(self.cu.cuModuleGetGlobal(module, name.encode()), f"finding {name}")
        self.clear(int(place), int(size), 0)

    def _read_variable(self, module: Any, name: str, what: str) -> bytes:
        """The content of a variable of `module`, whose context is active; `what` names it in an error."""
        place, size = self.check(self.cu.cuModuleGetGlobal(module, name.encode()), f"finding {what}")
        content = ctypes.create_string_buffer(int(size))
        self.download(ctypes.addressof(content), int(place), int(size), what)
        return content.raw

    def _give_memory(self, module: Any, name: str, size: int, what: str) -> int:
        """Allocate `size` zero bytes of pinned memory, write their address to the module's variable, and return it.

        The memory stays readable after a kernel has failed, and lives as long as the process.
        """
        memory = mmap.mmap(-1, size)
        _KEPT.append(memory)
        here = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.check(self.cu.cuMemHostRegister(here, size, PORTABLE | MAPPED), f"pinning memory for {what}")
        there = self.check(self.cu.cuMemHostGetDevicePointer(here, 0), f"finding the memory for {what} on the GPU")
        place, _ = self.check(self.cu.cuModuleGetGlobal(module, name.encode()), f"finding {what}")
        address = ctypes.c_uint64(int(there))
        self.upload(int(place), ctypes.addressof(address), 8, f"the address of {what}")
        return here

    # -- memory and time ---------------------------------------------------------------------------------

    def allocate(self, size: int, what: str) -> int:
        """Address of `size` bytes of device memory, aligned to 256. `what` names them in the error."""
        result = self.cu.cuMemAlloc(max(size, 1))
        if int(result[0]) == OUT_OF_MEMORY:
            free, total = self.check(self.cu.cuMemGetInfo(), "reading the free memory")
            text = f"{what} needs {_bytes(size)} of GPU memory; {_bytes(free)} of {_bytes(total)} are free"
            raise DeviceError(f"{text}\n  fix: free other arrays, use smaller ones, or pass CUDA arrays in place")
        return int(self.check(result, f"allocating {_bytes(size)} for {what}"))

    def blank(self, context: int, writable: bool) -> int:
        """Address of 128 bytes in `context` (active) that replace an empty array: zeros, or bytes to write to."""
        return self._zeros(context) + (128 if writable else 0)

    def _allocate_zeros(self, context: int) -> int:
        with self.beside_captures():
            base = self.allocate(256, "memory for empty arrays")
            self.check(self.cu.cuMemsetD8(base, 0, 256), "filling memory with zeros")
        return base

    def free(self, pointer: int) -> None:
        self.cu.cuMemFree(pointer)  # unchecked: it fails after the context is lost, which was reported

    def upload(self, pointer: int, host: int, size: int, what: str) -> None:
        if size:
            self.check(self.cu.cuMemcpyHtoD(pointer, host, size), f"copying {what} to the GPU")

    def download(self, host: int, pointer: int, size: int, what: str) -> None:
        if size:
            self.check(self.cu.cuMemcpyDtoH(host, pointer, size), f"copying {what} from the GPU")

    def synchronize(self, stream: int, what: str) -> None:
        self.check(self.cu.cuStreamSynchronize(stream), f"waiting for {what}")
        self.prints.show()

    def clear(self, pointer: int, size: int, stream: int) -> None:
        """Fill memory with zeros, in the order of `stream`."""
        self.check(self.cu.cuMemsetD8Async(pointer, 0, size, stream), "filling memory with zeros")

    def capturing(self, stream: int) -> bool:
        """Does `stream` capture a graph now? It may not be the legacy default stream while another one captures."""
        status = self.check(self.cu.cuStreamIsCapturing(stream), "asking whether a stream captures a graph")
        return int(status) != 0

    def finish(self, what: str) -> None:
        """Wait for all work of the current context."""
        self.check(self.cu.cuCtxSynchronize(), f"waiting for {what}")

    def capture_id(self, stream: int) -> int:
        """A number of the capture that `stream` is in, which no other capture of this process has."""
        return int(self.check(self.cu.cuStreamGetCaptureInfo(stream), "asking for the capture of a stream")[1])

    def event(self) -> Any:
        return self.check(self.cu.cuEventCreate(0), "creating an event")

    def record(self, event: Any, stream: int) -> None:
        self.check(self.cu.cuEventRecord(event, stream), "recording an event")

    def elapsed(self, start: Any, end: Any) -> float:
        """Seconds between two recorded events that have completed."""
        return self.check(self.cu.cuEventElapsedTime(start, end), "reading the time between two events") / 1e3

    def destroy(self, event: Any) -> None:
        self.cu.cuEventDestroy(event)

    def wait_for(self, stream: int, other: int) -> None:
        """Make `stream` wait for the work that is in `other` now."""
        event = self.check(self.cu.cuEventCreate(2), "creating an event")  # 2: without timing
        self.record(event, other)
        self.check(self.cu.cuStreamWaitEvent(stream, event, 0), "waiting for another stream")
        self.destroy(event)


def _bytes(size: int) -> str:
    if size < 2**20:
        return f"{size} bytes"
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def has_variable(cubin: bytes, name: str) -> bool:
    """Does the code have this variable? A symbol name in an ELF file has a zero byte on both sides; a kernel's texts do
    not contain one."""
    return b"\0%b\0" % name.encode() in cubin


def _no_gpu(reason: str) -> DeviceError:
    fix = 'see whether nvidia-smi works, check CUDA_VISIBLE_DEVICES, or run the kernel with device="emulator"'
    return DeviceError(f"there is no NVIDIA GPU that this process can use: {reason}\n  fix: {fix}")


def _load_bindings() -> Any:
    try:
        # Not an import statement: the package has no type stubs.
        cu: Any = importlib.import_module("cuda.bindings.driver")
        code = int(cu.cuInit(0)[0])
    except (ImportError, RuntimeError) as error:  # the package or libcuda is missing
        raise _no_gpu(str(error)) from None
    if code:
        raise _no_gpu(f"cuInit gives {cu.CUresult(code).name}")
    return cu


@cache
def _open() -> Driver | DeviceError:
    try:
        return Driver()
    except DeviceError as error:
        return error


def driver() -> Driver:
    """The driver. Raises DeviceError, each time, if there is no driver or no GPU."""
    found = _open()
    if isinstance(found, DeviceError):
        raise DeviceError(str(found))
    return found


def available() -> Driver | None:
    """The driver, or None if there is no driver or no GPU."""
    found = _open()
    return None if isinstance(found, DeviceError) else found
