"""Expand: from tile level to thread level, the only place where addresses are computed.

- Parameters follow `ir.abi`: pointers, extents, strides, scalars; static extents become constants.
- `index` becomes i32 or i64 (`Kernel.index_bits`). Positions are i32 in hardware, widened if needed.
- Fragments become scalars, through arguments and results of control ops too.
- Shared tiles get their bytes (`passes.shared_layout`).
- Loads and stores get an address; guarded ones a real branch, so that nothing outside is touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, Callable, ClassVar, Sequence

from tiledsl.ir.abi import abi_of
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import arith, control, debug, gpu, mem, tile
from tiledsl.ir.types import I32, I64, INDEX, FragmentType, GlobalType, Type
from tiledsl.layout.shared import Swizzled, row_major
from tiledsl.passes.addresses import (
    Memory,
    below,
    both,
    bounds,
    element,
    pointer_to,
    unsigned_extent,
)
from tiledsl.passes.shared_layout import lay_out_shared

__all__ = ["Expand"]


@dataclass(frozen=True)
class Expand:
    """Rewrites a tile-level kernel, whose accesses `check-accesses` has approved."""

    name: ClassVar[str] = "expand"

    def run(self, kernel: Kernel) -> None:
        assert kernel.level == "tile", "only tile-level kernels are expanded"
        if _needs_wide_index(kernel):
            kernel.index_bits = 64
        _Expander(kernel).run()


def _needs_wide_index(kernel: Kernel) -> bool:
    """A constant that i32 cannot hold: then no index is narrowed, whatever the sizes in the call."""
    constants = (op for op in kernel.walk() if isinstance(op, arith.Constant) and op.dtype is INDEX)
    return any(not -(1 << 31) <= op.value < 1 << 31 for op in constants)


class _Expander:
    """Writes a new body; `mapping` gives each old value's new ones (a fragment's in row-major order)."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.index = I32 if kernel.index_bits == 32 else I64
        self.layout = lay_out_shared(kernel)
        self.abi = abi_of([(a.name, a.type) for a in kernel.body.args], kernel.index_bits)
        self.body = Block([a.type for a in self.abi], [_arg_name(a.kind, a.name, a.axis) for a in self.abi])
        self.mapping: dict[Value, list[Value]] = {}
        self.memories: dict[Value, Memory] = {}
        self.b = Builder(self.body)
        self.rules: dict[type[Op], Callable[[Any], None]] = {
            arith.Select: self.select,
            arith.Cast: self.cast,
            tile.Dim: self.dim,
            tile.Stride: self.dim,
            tile.SharedAlloc: self.shared_alloc,
            tile.Load: self.load,
            tile.Get: self.get,
            tile.Store: self.store,
            tile.Put: self.put,
            tile.AtomicAdd: self.atomic_add,
            tile.Pack: self.pack,
            tile.Extract: self.extract,
            tile.Insert: self.insert,
            debug.Breakpoint: self.breakpoint,
        }

    def run(self) -> None:
        self.parameters()
        self.ops(self.kernel.body)
        kernel = self.kernel
        kernel.body, self.body.parent = self.body, kernel
        kernel.level, kernel.abi, kernel.shared_bytes = "thread", self.abi, self.layout.bytes

    # -- values --------------------------------------------------------------------------------

    def one(self, value: Value) -> Value:
        (new,) = self.mapping[value]
        return new

    def all(self, values: Sequence[Value]) -> list[Value]:
        return [new for value in values for new in self.mapping[value]]

    def flat(self, type_: Type) -> list[Type]:
        """The thread-level types of a tile-level one."""
        if isinstance(type_, FragmentType):
            return [type_.dtype] * type_.size
        return [self.index if type_ is INDEX else type_]

    def give(self, old: Value, new: Sequence[Value]) -> None:
        """`new` stands for `old` from here on, and inherits its name."""
        self.mapping[old] = list(new)
        for position, value in enumerate(new):
            if old.name and not value.name:
                value.name = old.name if len(new) == 1 else f"{old.name}_{position}"

    def parameters(self) -> None:
        given = {(a.kind, a.name, a.axis): value for a, value in zip(self.abi, self.body.args, strict=True)}
        for arg in self.kernel.body.args:
            type_ = arg.type
            if not isinstance(type_, GlobalType):
                self.mapping[arg] = [given["scalar", arg.name, -1]]
                continue
            extents = [d if isinstance(d, int) else given["extent", d, -1] for d in type_.dims]
            strides = [1 if a == type_.unit else given["stride", arg.name, a] for a in range(type_.rank)]
            base = given["pointer", arg.name, -1]
            self.memories[arg] = Memory(base, tuple(extents), tuple(strides), type_.unit)

    # -- ops in general ------------------------------------------------------------------------

    def ops(self, block: Block) -> None:
        for op in block.ops:
            self.b.loc = op.loc
            rule = self.rules.get(type(op))
            if rule is not None:
                rule(op)
            else:
                self.copy(op)

    def block(self, old: Block) -> Block:
        types = [self.flat(a.type) for a in old.args]
        new = Block([t for flat in types for t in flat])
        position = 0
        for arg, flat in zip(old.args, types, strict=True):
            self.give(arg, new.args[position : position + len(flat)])
            position += len(flat)
        outer, self.b.block = self.b.block, new
        self.ops(old)
        self.b.block = outer
        return new

    def copy(self, op: Op) -> None:
        """An op that exists at both levels: flattened operands, blocks, results and index types."""
        operands = self.all(op.operands)
        blocks = [self.block(block) for block in op.blocks]
        self.b.loc = op.loc
        if isinstance(op, gpu.Position):
            self.position(op)
            return
        types = [self.flat(r.type) for r in op.results]
        attrs = {name: self.attr(value) for name, value in op.attrs.items()}
        new = self.b.add(type(op)(*operands, blocks=blocks, types=[t for f in types for t in f], **attrs))
        position = 0
        for result, flat in zip(op.results, types, strict=True):
            self.give(result, new.results[position : position + len(flat)])
            position += len(flat)

    def attr(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self.attr(v) for v in value)  # pyright: ignore[reportUnknownVariableType]
        return self.index if value is INDEX else value

    def position(self, op: gpu.Position) -> None:
        attrs: dict[str, Any] = {**op.attrs, "dtype": I32}
        value = self.b.value(type(op)(**attrs))
        wide = op.dtype is INDEX and self.index is I64
        self.give(op.result, [self.b.cast(value, I64) if wide else value])

    def select(self, op: arith.Select) -> None:
        condition = self.one(op.condition)
        pairs = zip(self.mapping[op.a], self.mapping[op.b], strict=True)
        self.give(op.result, [self.b.select(condition, x, y) for x, y in pairs])

    def cast(self, op: arith.Cast) -> None:
        to = self.index if op.to is INDEX else op.to
        if INDEX in (op.to, op.src.type):
            self.give(op.result, [self.b.cast(self.one(op.src), to)])  # nothing, where the widths agree
        else:
            self.copy(op)

    # -- tensors, tiles and fragments ----------------------------------------------------------

    def dim(self, op: tile.Dim) -> None:
        memory = self.memories[op.tensor]
        size = (memory.strides if isinstance(op, tile.Stride) else memory.extents)[op.axis]
        self.give(op.result, [self.b.constant(size, self.index) if isinstance(size, int) else size])

    def shared_alloc(self, op: tile.SharedAlloc) -> None:
        slot = self.layout.slots[op]
        base = mem.SharedBase(dtype=op.type.dtype, offset=slot.offset, bytes=slot.bytes, label=op.result.name)
        pointer = self.b.value(base)
        pointer.name = op.result.name
        dims, layout = op.type.dims, op.placement
        swizzle = layout if isinstance(layout, Swizzled) else None
        rows, panels = layout.row_strides(dims), swizzle.panels(dims) if swizzle is not None else 1
        strides = layout.strides(dims)
        self.memories[op.result] = Memory(pointer, dims, strides, len(dims) - 1, swizzle, rows, panels)

    def pack(self, op: tile.Pack) -> None:
        elements = self.all(op.operands)
        self.mapping[op.result] = elements if len(elements) == op.type.size else elements * op.type.size

    def extract(self, op: tile.Extract) -> None:
        self.mapping[op.result] = [self.mapping[op.fragment][_place(op.fragment.type, op.at)]]

    def insert(self, op: tile.Insert) -> None:
        elements = list(self.mapping[op.fragment])
        elements[_place(op.fragment.type, op.at)] = self.one(op.element)
        self.mapping[op.result] = elements

    def breakpoint(self, op: debug.Breakpoint) -> None:
        """Shows a fragment as its elements, `acc[0, 1]`; tensors and tiles have no value to show."""
        names: list[str] = []
        values: list[Value] = []
        for name, value in zip(op.names, op.operands, strict=True):
            new = self.mapping.get(value, [])
            type_ = value.type
            places = list(product(*map(range, type_.dims))) if isinstance(type_, FragmentType) else []
            names += [f"{name}[{', '.join(map(str, at))}]" for at in places] or [name] * len(new)
            values += new
        self.b.add(debug.Breakpoint(*values, names=tuple(names)))

    # -- memory accesses -----------------------------------------------------------------------

    def address(self, op: tile.Access) -> tuple[Memory, list[Value], Value]:
        memory = self.memories[op.memory]
        indices = self.all(op.indices)
        return memory, indices, pointer_to(self.b, memory, indices)

    def load(self, op: tile.Load) -> None:
        self.give(op.result, self.b.add(mem.Load(self.address(op)[2], vec=op.vec)).results)

    def store(self, op: tile.Store) -> None:
        values = self.mapping[op.value]
        self.b.add(mem.Store(self.address(op)[2], *values, vec=op.vec))

    def atomic_add(self, op: tile.AtomicAdd) -> None:
        self.give(op.result, [self.b.value(mem.AtomicAdd(self.address(op)[2], self.one(op.value)))])

    def get(self, op: tile.Get) -> None:
        others = self.mapping[op.other]
        memory, indices, pointer = self.address(op)

        def element_or_other(position: int) -> Callable[[Value], Sequence[Value]]:
            def read(condition: Value) -> Sequence[Value]:
                at = element(self.b, pointer, position)
                return self.branch(condition, lambda: self.b.add(mem.Load(at)).results, [others[position]])

            return read

        def whole() -> Sequence[Value]:
            return self.b.add(mem.Load(pointer, vec=op.vec)).results

        self.give(op.result, self.guarded(op, memory, indices, whole, element_or_other, others))

    def put(self, op: tile.Put) -> None:
        values = self.mapping[op.value]
        memory, indices, pointer = self.address(op)

        def element_if(position: int) -> Callable[[Value], Sequence[Value]]:
            def write(condition: Value) -> Sequence[Value]:
                at = element(self.b, pointer, position)

                def store() -> Sequence[Value]:
                    return self.b.add(mem.Store(at, values[position])).results

                return self.branch(condition, store, ())

            return write

        def whole() -> Sequence[Value]:
            return self.b.add(mem.Store(pointer, *values, vec=op.vec)).results

        self.guarded(op, memory, indices, whole, element_if, ())

    def guarded(
        self,
        op: tile.Access,
        memory: Memory,
        indices: list[Value],
        whole: Callable[[], Sequence[Value]],
        single: Callable[[int], Callable[[Value], Sequence[Value]]],
        outside: Sequence[Value],
    ) -> Sequence[Value]:
        """One access where all `vec` elements are inside; else those that are, one by one.

        `single(i)` accesses element i under a condition; `outside` is the result where nothing is read.
        """
        if op.vec == 1:
            condition = bounds(self.b, memory, indices)
            return whole() if condition is None else self.branch(condition, whole, outside)
        axis = memory.unit
        index, extent = indices[axis], memory.extents[axis]
        rest = bounds(self.b, memory, indices, skip=axis)
        # The index is a multiple of vec, so all are inside exactly if it is below the rounded extent.
        rounded = unsigned_extent(self.b, extent, index.dtype, multiple_of=op.vec)
        condition = both(self.b, rest, below(self.b, index, rounded))
        if isinstance(extent, int) and extent % op.vec == 0:
            return self.branch(condition, whole, outside)
        limit = unsigned_extent(self.b, extent, index.dtype)

        def one_by_one() -> Sequence[Value]:
            results: list[Value] = []
            for position in range(op.vec):
                shift = self.b.constant(position, index.dtype)
                moved = self.b.scalar("add", index, shift) if position else index
                results += single(position)(both(self.b, rest, below(self.b, moved, limit)))
            return results

        return self.branch(condition, whole, one_by_one)

    def branch(
        self,
        condition: Value,
        then: Callable[[], Sequence[Value]],
        orelse: Callable[[], Sequence[Value]] | Sequence[Value],
    ) -> Sequence[Value]:
        """A `control.if` whose blocks are what the callables emit; its results."""
        outer = self.b.block
        blocks: list[Block] = []
        for emit in (then, orelse):
            self.b.block = block = Block()
            results = emit() if callable(emit) else emit
            self.b.add(control.Yield(*results))
            blocks.append(block)
        self.b.block = outer
        return self.b.add(control.If(condition, blocks=blocks)).results


def _arg_name(kind: str, name: str, axis: int) -> str:
    return f"{name}_stride{axis}" if kind == "stride" else name


def _place(type_: Type, at: tuple[int, ...]) -> int:
    """Row-major position of element `at` of a fragment."""
    assert isinstance(type_, FragmentType)
    return sum(i * s for i, s in zip(at, row_major(type_.dims), strict=True))
