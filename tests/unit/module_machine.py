"""A module on a GPU as the runtime sees it: variables, and pinned memory, which here both are the process's.

Of its code the print()s run, instruction by instruction as the PTX has them.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from tiledsl.runtime.assertions import Assertions
from tiledsl.runtime.driver import Driver
from tiledsl.runtime.prints import Prints

__all__ = ["Machine", "driver_of"]

MASK = (1 << 64) - 1
Statement = tuple[str, str, list[str]]
"""Of PTX: the predicate or "", the instruction, and its arguments."""
STATEMENT = re.compile(r"(?:@(\w+) )?([\w.]+) (.*)")
ARGUMENT = re.compile(r"\[[^\]]*\]|[^\s,{}]+")
VARIABLE = re.compile(r"\.(b8|u64) (\$\w+)(?:\[(\d+)\])?(?: = \{(.*)\})?;")


class Machine:
    """The module of a kernel that was compiled to `ptx`. `pinned`: memory of the host, by address."""

    def __init__(self, ptx: str) -> None:
        self.variables: dict[str, Any] = {}
        for kind, name, size, content in VARIABLE.findall(ptx):
            given = bytes(int(byte) for byte in content.split(",") if byte)
            self.variables[name] = ctypes.create_string_buffer(given, 8 if kind == "u64" else int(size))
        self.sites = _sites(ptx)
        self.pinned: dict[int, Any] = {}
        self.cu: Any = SimpleNamespace(
            cuModuleGetGlobal=lambda module, name: (0, ctypes.addressof(self[name]), len(self[name])),  # pyright: ignore
            cuMemHostRegister=lambda at, size, flags: self._register(at, size),  # pyright: ignore
            cuMemHostGetDevicePointer=lambda at, flags: (0, at),  # pyright: ignore
            cuMemcpyDtoH=lambda host, device, size: (ctypes.memmove(host, device, size), (0,))[1],  # pyright: ignore
            cuMemcpyHtoD=lambda device, host, size: (ctypes.memmove(device, host, size), (0,))[1],  # pyright: ignore
            cuStreamSynchronize=lambda stream: (0,),  # pyright: ignore
        )

    def __getitem__(self, name: bytes | str) -> Any:
        return self.variables[name.decode() if isinstance(name, bytes) else name]

    def _register(self, at: int, size: int) -> tuple[int]:
        self.pinned[at] = (ctypes.c_char * size).from_address(at)
        return (0,)

    # -- what the code of the PTX backend does -------------------------------------------------------------

    def fail(self, number: int, thread: tuple[int, int, int], block: tuple[int, int, int]) -> None:
        """A failed assertion."""
        (at,) = struct.unpack("<Q", self["$failure"].raw)
        x, y, z = thread
        ctypes.memmove(at, struct.pack("<4I", number, x | y << 10 | z << 20, block[0], block[1] | block[2] << 16), 16)

    def begin(self, site: int, *operands: bytes, time: int = 0) -> Iterator[None]:
        """What is left of a print() once its thread has drawn its ticket."""
        before, steps = self["$lines"].raw[24:], self.steps(site, *operands, time=time)
        while self["$lines"].raw[24:] == before:
            next(steps)
        return steps

    def print(self, site: int, *operands: bytes, time: int = 0) -> None:
        for _ in self.steps(site, *operands, time=time):
            pass

    def steps(self, site: int, *operands: bytes, time: int = 0) -> Iterator[None]:
        """One thread runs a print(), and stops before each access to memory, where others may run."""
        statements, inputs = self.sites[site]
        registers = {name: int.from_bytes(given, "little") for name, given in zip(inputs, operands, strict=True)}
        registers["%globaltimer"] = time
        for predicate, op, arguments in statements:
            if predicate and not registers[predicate]:
                continue
            if "[" in "".join(arguments):
                yield
            self._execute(op, registers, arguments)

    def _execute(self, op: str, registers: dict[str, int], arguments: list[str]) -> None:
        def value(text: str) -> int:
            if text.startswith("$"):
                return ctypes.addressof(self[text])
            return registers[text] if text in registers else int(text) & MASK

        def word(text: str) -> Any:
            return ctypes.c_uint64.from_address(sum(value(part) for part in text.strip("[]").split("+")))

        def signed(text: str) -> int:
            return (value(text) + (1 << 63) & MASK) - (1 << 63)

        to, *rest = arguments
        match op.split("."):
            case ["ld", "global", "v2", "b64"]:
                at = word(rest[1])
                registers[to] = at.value
                registers[rest[0]] = ctypes.c_uint64.from_address(ctypes.addressof(at) + 8).value
            case ["ld", *_]:
                registers[to] = word(rest[0]).value
            case ["st", *_]:
                word(to).value = value(rest[0])
            case ["atom", _, _, _, "add", "u64"]:
                at = word(rest[0])
                registers[to], at.value = at.value, at.value + value(rest[1]) & MASK
            case ["red", _, _, _, "add", "u64"]:
                at = word(to)
                at.value = at.value + value(rest[0]) & MASK
            case ["setp", "ne", "b64"]:
                registers[to] = value(rest[0]) != value(rest[1])
            case ["setp", "lt" | "ge" as how, "and", "s64"]:
                less = signed(rest[0]) < signed(rest[1])
                registers[to] = less == (how == "lt") and bool(registers[rest[2]])
            case ["mov", *_]:
                registers[to] = value(rest[0])
            case ["add", "u64"]:
                registers[to] = value(rest[0]) + value(rest[1]) & MASK
            case ["and", "b64"]:
                registers[to] = value(rest[0]) & value(rest[1])
            case ["mad", "lo", "u64"]:
                registers[to] = value(rest[0]) * value(rest[1]) + value(rest[2]) & MASK
            case _:
                raise AssertionError(f"{op} {arguments}")


def _sites(ptx: str) -> dict[int, tuple[list[Statement], list[str]]]:
    """For each print() by its number: the statements that the backend makes of it, and its operands' registers."""
    found: dict[int, tuple[list[Statement], list[str]]] = {}
    for line in ptx.splitlines():
        if "[$lines]" in line:
            parsed = [STATEMENT.fullmatch(text.strip()) for text in line.strip()[1:-1].split(";") if text.strip()]
            statements = [(m[1] or "", m[2], ARGUMENT.findall(m[3])) for m in parsed if m and m[2] != ".reg"]
            (number,) = (int(a[1]) for _, op, a in statements if op == "mov.u64" and a[1].isdigit())
            found[number] = statements, re.findall(r"%rd\d+", line)
    return found


def driver_of(machine: Machine) -> Driver:
    """A driver of that machine alone, which has loaded nothing."""
    driver = Driver.__new__(Driver)
    driver.cu, driver.lost, driver.last_kernel = machine.cu, "", "another"
    driver.assertions, driver.prints = Assertions(), Prints()
    return driver
