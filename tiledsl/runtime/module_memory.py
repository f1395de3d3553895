"""What a module on a GPU and the host tell each other besides arguments: its variables, and memory of the host."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, Protocol

__all__ = ["Uploads", "give_memory", "has_variable", "read_variable"]

PORTABLE, MAPPED = 1, 2
"""Of cuMemHostRegister: pinned for every context, and in the address space of the GPU. (CUDA driver API: memory
management.)"""
_KEPT: list[mmap.mmap] = []
"""The process's own memory: what the driver allocates goes with its context, which another library may end while a
thread of ours looks there."""


class Uploads(Protocol):
    """What is needed of a `driver.Driver` here."""

    cu: Any

    def check(self, result: tuple[Any, ...], action: str) -> Any: ...
    def upload(self, pointer: int, host: int, size: int, what: str) -> None: ...
    def download(self, host: int, pointer: int, size: int, what: str) -> None: ...


def has_variable(cubin: bytes, name: str) -> bool:
    """Does the code have this variable? A name of the ELF file stands between zeros, which no text of a kernel has."""
    return b"\0%b\0" % name.encode() in cubin


def read_variable(driver: Uploads, module: Any, name: str, what: str) -> bytes:
    """The bytes of a variable of `module`, whose context is active; `what` names them in an error."""
    place, size = driver.check(driver.cu.cuModuleGetGlobal(module, name.encode()), f"finding {what}")
    content = ctypes.create_string_buffer(int(size))
    driver.download(ctypes.addressof(content), int(place), int(size), what)
    return content.raw


def give_memory(driver: Uploads, module: Any, name: str, size: int, what: str) -> int:
    """Address of `size` zeros in pinned memory, which the first word of the module's variable has from now on.

    A kernel that failed leaves it readable. It is kept for the life of the process.
    """
    memory = mmap.mmap(-1, size)
    _KEPT.append(memory)
    here = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    driver.check(driver.cu.cuMemHostRegister(here, size, PORTABLE | MAPPED), f"pinning memory for {what}")
    there = driver.check(driver.cu.cuMemHostGetDevicePointer(here, 0), f"finding the memory for {what} on the GPU")
    place, _ = driver.check(driver.cu.cuModuleGetGlobal(module, name.encode()), f"finding {what}")
    address = ctypes.c_uint64(int(there))
    driver.upload(int(place), ctypes.addressof(address), 8, f"the address of {what}")
    return here
