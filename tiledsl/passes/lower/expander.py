"""What the rules of `expand` work with: the new body, and what stands there for each value of the old one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tiledsl.arch import WARP
from tiledsl.ir.abi import abi_of
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import arith, mem
from tiledsl.ir.tensor_maps import TensorMap
from tiledsl.ir.types import I32, I64, INDEX, U32, FragmentType, GlobalType, MemoryType, PendingType, Type
from tiledsl.passes.analysis.called import name_of
from tiledsl.passes.analysis.intervals import Intervals
from tiledsl.passes.analysis.structure import loops_around
from tiledsl.passes.banks.shared_layout import lay_out_shared
from tiledsl.passes.lower.addresses import Memory, Writer, pointer_to
from tiledsl.passes.lower.within import proven

ADDRESSED = 1 << 48
"""A distance in elements up to which an address does not wrap."""

Rule = Callable[["Expander", Any], None]
"""Writes the thread level of one op and gives what stands for its results."""


class Expander:
    """Writes a new body. `mapping` gives each old value's new ones: a fragment's registers in order.

    `memories`: where tensors and tiles lie. `maps`: tensor maps, by number. `b`: writes at the current place.
    `checked`: index, extent and count of each axis that a check of bounds has been written for, each once in a block
    and what is inside it; None for a GPU, which has no such checks.
    """

    def __init__(self, kernel: Kernel, rules: dict[type[Op], Rule], bounds: bool = False) -> None:
        self.kernel, self.rules = kernel, rules
        self.checked: set[tuple[Value, Value | int, int]] | None = set() if bounds else None
        self.index = I32 if kernel.index_bits == 32 else I64
        self.layout = lay_out_shared(kernel)
        self.abi = abi_of([(a.name, a.type) for a in kernel.body.args], kernel.index_bits)
        self.body = Block([a.type for a in self.abi], [_arg_name(a.kind, a.name, a.axis) for a in self.abi])
        self.mapping: dict[Value, list[Value]] = {}
        self.memories: dict[Value, Memory] = {}
        self.maps: dict[TensorMap, int] = {}
        self.b = Writer(self.body, Intervals(kernel))
        self._depths: dict[Value, int] = {}
        self._judged = False

    def run(self) -> None:
        self._parameters()
        self.ops(self.kernel.body)
        kernel, old = self.kernel, self.kernel.body
        kernel.body, self.body.parent = self.body, kernel
        old.discard()
        kernel.level, kernel.abi, kernel.shared_bytes = "thread", self.abi, self.layout.bytes
        kernel.tensor_maps = tuple(self.maps)

    def _parameters(self) -> None:
        given = {(a.kind, a.name, a.axis): value for a, value in zip(self.abi, self.body.args, strict=True)}
        for arg in self.kernel.body.args:
            type_ = arg.type
            if not isinstance(type_, GlobalType):
                self.mapping[arg] = [given["scalar", arg.name, -1]]
                continue
            extents = [d if isinstance(d, int) else given["extent", d, -1] for d in type_.dims]
            strides = [1 if a == type_.unit else given["stride", arg.name, a] for a in range(type_.rank)]
            base = given["pointer", arg.name, -1]
            self.memories[arg] = Memory(base, tuple(extents), tuple(strides), type_.unit, type_.whole)

    # -- values --------------------------------------------------------------------------------

    def one(self, value: Value) -> Value:
        (new,) = self.mapping[value]
        return new

    def all(self, values: Sequence[Value]) -> list[Value]:
        return [new for value in values for new in self.mapping[value]]

    def flat(self, type_: Type) -> list[Type]:
        """The thread-level types of a tile-level one."""
        if isinstance(type_, PendingType):
            type_ = type_.fragment
        if isinstance(type_, FragmentType):
            return [self.index if register is INDEX else register for register in type_.registers]
        return [self.index if type_ is INDEX else type_]

    def give(self, old: Value, new: Sequence[Value]) -> None:
        """`new` stands for `old` from here on, and inherits its name."""
        self.mapping[old] = list(new)
        for position, value in enumerate(new):
            if old.name and not value.name:
                value.name = old.name if len(new) == 1 else f"{old.name}_{position}"

    def give_each(self, old: Sequence[Value], new: Sequence[Value]) -> None:
        """The same for several values; `new` are those of all, one after the other."""
        position = 0
        for value in old:
            count = len(self.flat(value.type))
            self.give(value, new[position : position + count])
            position += count

    def address(
        self, op: Op, memory: Value, indices: Sequence[Value], counts: Sequence[int] | None, *, lanes: int = WARP
    ) -> Value:
        """A pointer to the element at `indices`, summed up from what the most loops leave as it is. `op` accesses
        `counts` elements from there on along each axis; None if it guards the access itself. lanes: of a warp only the
        first so many have indices.
        """
        self.require_within(op, memory, indices, counts, lanes)
        return pointer_to(self.b, self.memories[memory], self.all(indices), [self.depth(v) for v in indices])

    def require_within(
        self, op: Op, memory: Value, indices: Sequence[Value], counts: Sequence[int] | None, lanes: int = WARP
    ) -> None:
        """On the emulator, an access that leaves an axis of its memory is an error. counts, lanes: see `address`."""
        self._judged = True
        lowered = self.memories[memory]
        new, known = self.all(indices), self.b.intervals
        if counts is None or self.checked is None:
            return
        if lowered.strides == (1,) and max(map(abs, known.of(indices[0]))) < ADDRESSED:
            return  # past its end is past the allocation's
        axes = [axis for axis, v in enumerate(indices) if not proven(known, memory, v, axis, counts[axis])]
        keys = {(new[axis], lowered.extents[axis], counts[axis]) for axis in axes}
        if keys <= self.checked:
            return
        if lanes == WARP:
            self.checked |= keys
        extents = tuple(-1 if isinstance(e, Value) else e for e in lowered.extents)
        operands = [*new, *(e for e in lowered.extents if isinstance(e, Value))]
        where: dict[str, Any] = {"extents": extents, "counts": tuple(counts), "axes": tuple(axes), "lanes": lanes}
        self.b.add(mem.Within(*operands, **where, label=name_of(memory), access=op.name))

    def tensor_map(self, described: TensorMap) -> int:
        """The number of a tensor map; equal ones are one."""
        return self.maps.setdefault(described, len(self.maps))

    def depth(self, value: Value) -> int:
        """How many loops change a value of the old body."""
        return loops_around(value, self._depths)

    def elements(self, value: Value) -> list[Value]:
        """The elements of a scalar or a fragment: what its registers hold."""
        return [element for register in range(len(self.mapping[value])) for element in self.held_by(value, register)]

    def held_by(self, value: Value, register: int) -> list[Value]:
        """The elements that share the register of that number."""
        type_, held = value.type, self.mapping[value][register]
        if not isinstance(type_, FragmentType) or type_.per_register == 1:
            return [held]
        made = held.op
        if isinstance(made, arith.PackWord) and made.operands[0].type == type_.dtype:
            return list(made.operands)
        return list(self.b.add(arith.UnpackWord(held, to=type_.dtype)).results)

    def word(self, register: Value) -> Value:
        """A register of 32 bits as a u32."""
        return register if register.type == U32 else self.b.value(arith.Bitcast(register, to=U32))

    def registers(self, elements: Sequence[Value], type_: FragmentType) -> list[Value]:
        """The registers that hold a fragment of these elements."""
        count = type_.per_register
        if count == 1:
            return list(elements)
        return [self._packed(elements[first : first + count]) for first in range(0, len(elements), count)]

    def _packed(self, elements: Sequence[Value]) -> Value:
        made = elements[0].op
        if isinstance(made, arith.UnpackWord) and made.results == list(elements):
            return made.word
        return self.b.value(arith.PackWord(*elements))

    # -- ops -----------------------------------------------------------------------------------

    def ops(self, block: Block) -> None:
        for op in block.ops:
            self.b.loc = op.loc
            self._judged = False
            rule = self.rules.get(type(op))
            if rule is not None:
                rule(self, op)
            else:
                assert op.level != "tile", f"expand has no rule for {op.name}"
                self.copy(op)
            judged = self._judged or not op.touches or not _accesses(op)
            assert judged, f"nothing says whether {op.name} stays inside its memory"

    def block(self, old: Block) -> Block:
        new = Block([t for a in old.args for t in self.flat(a.type)])
        self.give_each(old.args, new.args)
        checked = self.checked
        self.checked = None if checked is None else {*checked}
        with self.b.inside(new):
            self.ops(old)
        self.checked = checked
        return new

    def copy(self, op: Op) -> None:
        """An op that exists at both levels: flattened operands, blocks, results and index types."""
        operands = self.all(op.operands)
        blocks = [self.block(block) for block in op.blocks]
        self.b.loc = op.loc
        types = [t for r in op.results for t in self.flat(r.type)]
        attrs = {name: self._attr(value) for name, value in op.attrs.items()}
        new = self.b.add(type(op)(*operands, blocks=blocks, types=types, **attrs))
        self.give_each(op.results, new.results)

    def _attr(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._attr(v) for v in value)  # pyright: ignore[reportUnknownVariableType]
        return self.index if value is INDEX else value


def _accesses(op: Op) -> bool:
    return any(isinstance(a.memory, Value) and isinstance(a.memory.type, MemoryType) for a in op.accesses())


def _arg_name(kind: str, name: str, axis: int) -> str:
    return f"{name}_stride{axis}" if kind == "stride" else name
