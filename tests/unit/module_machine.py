"""A module on a GPU as the runtime sees it: variables, and pinned memory, which here both are the process's."""

from __future__ import annotations

import ctypes
import re
import struct
from types import SimpleNamespace
from typing import Any

from tiledsl.backends.print_records import CAPACITY, LINES, LOST, OPERANDS, RECORDS
from tiledsl.runtime.assertions import Assertions
from tiledsl.runtime.driver import Driver
from tiledsl.runtime.prints import Prints

__all__ = ["Machine", "driver_of"]

VARIABLE = re.compile(r"\.(b8|u64) (\$\w+)(?:\[(\d+)\])?(?: = \{(.*)\})?;")


class Machine:
    """The module of a kernel that was compiled to `ptx`. `pinned`: what the host allocated, by address."""

    def __init__(self, ptx: str) -> None:
        self.variables: dict[str, Any] = {}
        for kind, name, size, content in VARIABLE.findall(ptx):
            given = bytes(int(byte) for byte in content.split(",") if byte)
            self.variables[name] = ctypes.create_string_buffer(given, 8 if kind == "u64" else int(size))
        self.pinned: dict[int, Any] = {}
        self.cu: Any = SimpleNamespace(
            cuModuleGetGlobal=lambda module, name: (0, ctypes.addressof(self[name]), len(self[name])),  # pyright: ignore
            cuMemHostAlloc=lambda size, flags: (0, self._allocate(size)),  # pyright: ignore
            cuMemcpyDtoH=lambda host, device, size: (ctypes.memmove(host, device, size), (0,))[1],  # pyright: ignore
            cuMemcpyHtoD=lambda device, host, size: (ctypes.memmove(device, host, size), (0,))[1],  # pyright: ignore
            cuStreamSynchronize=lambda stream: (0,),  # pyright: ignore
        )

    def __getitem__(self, name: bytes | str) -> Any:
        return self.variables[name.decode() if isinstance(name, bytes) else name]

    def _allocate(self, size: int) -> int:
        buffer = ctypes.create_string_buffer(b"\xff" * size, size)
        self.pinned[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    # -- what the code of the PTX backend does -------------------------------------------------------------

    def fail(self, number: int, thread: tuple[int, int, int], block: tuple[int, int, int]) -> None:
        """A failed assertion."""
        (at,) = struct.unpack("<Q", self["$failure"].raw)
        x, y, z = thread
        ctypes.memmove(at, struct.pack("<4I", number, x | y << 10 | z << 20, block[0], block[1] | block[2] << 16), 16)

    def reserve(self) -> int | None:
        """The ticket that a thread gets which prints; None if the ring is full."""
        ring, size, reserved, drawn = struct.unpack("<4Q", self[LINES].raw)
        read = ctypes.c_uint64.from_address(ring)
        if reserved - read.value >= CAPACITY:
            ctypes.c_uint64.from_address(ring + LOST).value += 1
            return None
        ctypes.memmove(self[LINES], struct.pack("<4Q", ring, size, reserved + 1, drawn + 1), 32)
        return drawn

    def publish(self, ticket: int, site: int, *operands: bytes, time: int = 0) -> None:
        ring, size = struct.unpack("<2Q", self[LINES].raw[:16])
        words = b"".join(operand.ljust(8, b"\0") for operand in operands)
        assert OPERANDS + len(words) <= size
        place = ring + RECORDS + ticket % CAPACITY * size
        assert ctypes.c_uint64.from_address(place).value <= max(0, ticket + 1 - CAPACITY)
        ctypes.memmove(place + 8, struct.pack("<2Q", site, time) + words, 16 + len(words))
        ctypes.c_uint64.from_address(place).value = ticket + 1

    def print(self, site: int, *operands: bytes, time: int = 0) -> None:
        ticket = self.reserve()
        if ticket is not None:
            self.publish(ticket, site, *operands, time=time)


def driver_of(machine: Machine) -> Driver:
    """A driver of that machine alone, which has loaded nothing."""
    driver = Driver.__new__(Driver)
    driver.cu, driver.lost, driver.last_kernel = machine.cu, "", "another"
    driver.assertions, driver.prints = Assertions(), Prints()
    return driver
