"""Failed assertions of kernels: each module has a record in pinned memory, which outlives the context that they end."""

from __future__ import annotations

import atexit
import ctypes
import sys
from typing import TYPE_CHECKING, Any

from tiledsl.backends.protocol import ASSERTIONS, FAILURE, RECORD_BYTES, describe_failure

if TYPE_CHECKING:
    from tiledsl.runtime.driver import Driver

__all__ = ["Assertions"]

PORTABLE, MAPPED = 1, 2
"""Of cuMemHostAlloc: pinned for every context, and in the address space of the GPU, where unified addresses are the
same as here. (CUDA driver API: memory management.)"""


class Assertions:
    """The records of all modules that assert."""

    def __init__(self) -> None:
        self._records: list[tuple[int, bytes]] = []
        self._told = False

    def watch(self, driver: Driver, module: Any, name: str) -> None:
        """Give `module`, the code of kernel `name`, a record of its own; its context is active."""
        cu, what = driver.cu, f"the assertions of {name}()"
        sites, size = driver.check(cu.cuModuleGetGlobal(module, ASSERTIONS.encode()), f"finding {what}")
        told = ctypes.create_string_buffer(int(size))
        driver.download(ctypes.addressof(told), int(sites), int(size), what)
        made = driver.check(cu.cuMemHostAlloc(RECORD_BYTES, PORTABLE | MAPPED), f"allocating a record for {what}")
        ctypes.memset(int(made), 0, RECORD_BYTES)
        place, _ = driver.check(cu.cuModuleGetGlobal(module, FAILURE.encode()), f"finding {what}")
        address = ctypes.c_uint64(int(made))
        driver.upload(int(place), ctypes.addressof(address), 8, f"the address of the record for {what}")
        if not self._records:
            atexit.register(self.tell)
        self._records.append((int(made), told.raw))

    def failed(self) -> str:
        """What failed, and where; "" if nothing did."""
        texts = (describe_failure(sites, ctypes.string_at(at, RECORD_BYTES)) for at, sites in self._records)
        text = next(filter(None, texts), "")
        self._told = self._told or bool(text)
        return text

    def tell(self) -> None:
        """At the end of the process, where another library has seen the driver's error before anybody asked here."""
        if not self._told and (text := self.failed()):
            print(text, file=sys.stderr)
