"""``k.explain("resources")``: what a block takes of an SM, and what one block more would need; and
``k.explain("tensor-maps")``: the boxes that TMA moves."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tiledsl.arch import target_named
from tiledsl.backends.protocol import Resources
from tiledsl.ir.core import Kernel
from tiledsl.signatures.signature import Specialization
from tiledsl.tables import table


@dataclass(frozen=True)
class Room:
    """Blocks that an SM holds, by each resource alone, and what one block more would need: at most so many registers a
    thread, and so many bytes of shared memory. None where that cannot help: threads or blocks are the limit."""

    blocks: dict[str, int]
    next_blocks: int
    registers: int | None
    shared: int | None


def room_of(arch: str, used: Resources) -> Room:
    """What one block more on an SM would need, each resource by itself."""
    target = target_named(arch)

    def blocks(registers: int = used.registers, shared: int = used.shared) -> dict[str, int]:
        return target.block_limits(registers=registers, shared=shared, threads=used.threads)

    now = blocks()
    wanted = used.blocks_per_sm + 1
    registers = shared = None
    if min(now["threads"], now["blocks"]) >= wanted:
        fewer = range(used.registers, 0, -1)
        registers = next((n for n in fewer if blocks(registers=n)["registers"] >= wanted), None)
        less = range(used.shared, -1, -16)  # what a tile is aligned to at least
        shared = next((n for n in less if blocks(shared=n)["shared memory"] >= wanted), None)
    return Room(now, wanted, registers, shared)


@dataclass(frozen=True)
class ResourceReport:
    """`title`: the kernel and its target. `room`: by the same target."""

    title: str
    used: Resources
    room: Room

    def __str__(self) -> str:
        used, room = self.used, self.room
        takes = {
            "registers": f"{used.registers} a thread",
            "shared memory": f"{used.shared} bytes",
            "threads": str(used.threads),
        }
        needs = {"registers": room.registers, "shared memory": room.shared}
        rows = [
            (name, takes.get(name, ""), str(count), "" if needs.get(name) is None else f"at most {needs[name]}")
            for name, count in room.blocks.items()
        ]
        more = f"{room.next_blocks} blocks need"
        spilled = f"{used.spill_stores} bytes of spill stores and {used.spill_loads} of loads"
        return "\n".join(
            [
                f"{self.title}: {used.blocks_per_sm} blocks an SM, limited by {used.limiter}: "
                f"{used.occupancy:.0%} of its warps",
                table(("limit", "a block takes", "blocks an SM", more), rows, (0, 1)),
                f"{spilled}, {used.stack} bytes of stack a thread",
            ]
        )


@dataclass(frozen=True)
class BoxReport:
    """A tensor map. axes: of the tensor, that of stride 1 first. box: elements along them. swizzle: bytes of the span,
    0 for none. bytes: of a box. every: only every so many-th row is loaded."""

    tensor: str
    dtype: str
    axes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    bytes: int
    every: int


@dataclass(frozen=True)
class MapsReport:
    """`maps`: in the order of the kernel's parameters for them; the launch encodes each by the array that it gets."""

    title: str
    maps: tuple[BoxReport, ...]

    def __str__(self) -> str:
        if not self.maps:
            return f"{self.title} has no tensor maps: it does not use TMA on tensors"
        header = "tensor", "dtype", "axes, that of stride 1 first", "box", "bytes", "swizzle", "rows"
        rows = [
            (
                each.tensor,
                each.dtype,
                ", ".join(map(str, each.axes)),
                " x ".join(map(str, each.box)),
                str(each.bytes),
                f"{each.swizzle} bytes" if each.swizzle else "none",
                "all" if each.every == 1 else f"every {each.every}",
            )
            for each in self.maps
        ]
        return f"{self.title}:\n{table(header, rows, (0, 1, 2, 3))}"


def maps_report(kernel: Kernel, spec: Specialization, title: str) -> MapsReport:
    """Of a thread-level kernel."""
    dtypes = {name: given.dtype for name, given in spec.tensors if given is not None}
    boxes = [
        BoxReport(
            m.tensor, str(dtypes[m.tensor]), m.axes, m.box, m.swizzle, prod(m.box) * dtypes[m.tensor].bytes, m.every
        )
        for m in kernel.tensor_maps
    ]
    return MapsReport(title, tuple(boxes))
