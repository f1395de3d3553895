"""What a code-generating backend gives back, whatever the target."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiledsl.errors import render_at

if TYPE_CHECKING:
    from tiledsl.ir.core import Kernel
    from tiledsl.ir.ops import debug

FAILURE, ASSERTIONS = "$failure", "$assertions"
"""Variables of a module whose kernel asserts: the address where a failed assertion leaves its record (0 for nowhere),
and what the numbers of such records mean."""

RECORD_BYTES = 16
"""Four words: the assertion's number, from 1 on; x, y, z of the thread, 10 bits each; x of the block; its y and z, 16
bits each."""

_WHERE = "\0"
"""Stands for thread and block in the text of an assertion."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What the assembler says that one kernel uses. Sizes in bytes.

    registers: a thread. spill_stores, spill_loads, stack: a thread, all 0 in a good kernel.
    shared: a block, as laid out by the compiler. threads: of a block.
    blocks_per_sm: how many blocks an SM holds at once; limiter: what stops another one
    ("registers", "shared memory", "threads" or "blocks"). occupancy: resident warps over possible.
    assembler_level: how much the assembler was to optimise, 0 to 3.
    """

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int
    threads: int
    blocks_per_sm: int
    limiter: str
    occupancy: float
    assembler_level: int = 3


@dataclass(frozen=True)
class Binary:
    """A kernel built for one target: texts of the stages, the loadable image, its resources."""

    name: str
    arch: str
    llvm: str
    ptx: str
    cubin: bytes
    resources: Resources


def encode_assertions(kernel: Kernel, assertions: Iterable[debug.Assert]) -> bytes:
    """The content of `ASSERTIONS`: the text of each with `_WHERE` in it, and how many coordinates to show."""
    messages = [(a.loc, f"assertion failed{f': {a.message}' if a.message else ''}; {_WHERE}") for a in assertions]
    texts = [render_at(loc, f"kernel {kernel.name}(): {message}") for loc, message in messages]
    return json.dumps({"texts": texts, "threads": len(kernel.threads), "blocks": len(kernel.grid)}).encode()


def describe_failure(assertions: bytes, record: bytes) -> str:
    """What happened, by a record that a failed assertion left; "" for one that none has written."""
    number, thread, block, upper = (int.from_bytes(record[at : at + 4], "little") for at in range(0, RECORD_BYTES, 4))
    if number == 0:
        return ""
    told = json.loads(assertions)
    at_thread = (thread & 0x3FF, thread >> 10 & 0x3FF, thread >> 20)[: told["threads"]]
    at_block = (block, upper & 0xFFFF, upper >> 16)[: told["blocks"]]
    return told["texts"][number - 1].replace(_WHERE, f"thread {at_thread} of block {at_block}")
