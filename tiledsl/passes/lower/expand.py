"""Expand: from tile level to thread level, the only place where addresses are computed.

- Parameters follow `ir.abi`: pointers, extents, strides, scalars; static extents become constants.
- `index` becomes i32 or i64 (`Kernel.index_bits`). Positions are i32 in hardware, widened if needed.
- Fragments become registers, through arguments and results of control ops too: one an element, or, of fragments that
  warps hold together, the words that their instructions take (`expand_matrices`).
- Shared tiles get their bytes (`passes.shared_layout`).
- Loads and stores get an address (`expand_memory`); guarded ones a real branch, so that nothing outside is touched.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import arith, control, debug, gpu, tile
from tiledsl.ir.types import I32, I64, INDEX, FragmentType
from tiledsl.passes.lower.expand_hopper import HOPPER_RULES
from tiledsl.passes.lower.expand_matrices import MATRIX_RULES
from tiledsl.passes.lower.expand_memory import MEMORY_RULES
from tiledsl.passes.lower.expander import Expander, Rule


def expand(kernel: Kernel, bounds: bool = False) -> None:
    """Rewrites a tile-level kernel, whose accesses `check-accesses` has approved.

    bounds: put a `mem.within` before accesses that are not proven to stay inside their memory, for the emulator.
    """
    assert kernel.level == "tile", "only tile-level kernels are expanded"
    Expander(kernel, _RULES, bounds).run()


def _constant(x: Expander, op: arith.Constant) -> None:
    x.give(op.result, [x.b.constant(op.value, x.index if op.dtype is INDEX else op.dtype)])


def _scalar(x: Expander, op: arith.Scalar) -> None:
    nowrap = op.nowrap and op.operands[0].type is not INDEX
    x.give(op.result, [x.b.scalar(op.fn.name, *x.all(op.operands), nowrap=nowrap)])


def _position(x: Expander, op: gpu.Position) -> None:
    attrs: dict[str, Any] = {**op.attrs, "dtype": I32}
    value = x.b.value(type(op)(**attrs))
    wide = op.dtype is INDEX and x.index is I64
    x.give(op.result, [x.b.cast(value, I64) if wide else value])


def _select(x: Expander, op: arith.Select) -> None:
    condition = x.one(op.condition)
    pairs = zip(x.mapping[op.a], x.mapping[op.b], strict=True)
    x.give(op.result, [x.b.select(condition, a, c) for a, c in pairs])


def _cast(x: Expander, op: arith.Cast) -> None:
    to = x.index if op.to is INDEX else op.to
    if INDEX in (op.to, op.src.type):
        x.give(op.result, [x.b.cast(x.one(op.src), to)])  # nothing, where the widths agree
    else:
        x.copy(op)


def _for(x: Expander, op: control.For) -> None:
    assert op.stages == 0, "the pipeline pass has run"
    x.copy(op)


def _pack(x: Expander, op: tile.Pack) -> None:
    type_ = op.type
    elements = x.all(op.operands)
    if len(elements) == type_.size:
        x.mapping[op.result] = x.registers(elements, type_)
        return
    (register,) = x.registers(elements * type_.per_register, type_)
    x.mapping[op.result] = [register] * len(type_.registers)


def _extract(x: Expander, op: tile.Extract) -> None:
    register, within = divmod(op.position, op.fragment.fragment.per_register)
    x.mapping[op.result] = [x.held_by(op.fragment, register)[within]]


def _insert(x: Expander, op: tile.Insert) -> None:
    type_ = op.fragment.fragment
    register, within = divmod(op.position, type_.per_register)
    elements = x.held_by(op.fragment, register)
    elements[within] = x.one(op.element)
    registers = list(x.mapping[op.fragment])
    registers[register : register + 1] = x.registers(elements, type_)
    x.mapping[op.result] = registers


def _breakpoint(x: Expander, op: debug.Breakpoint) -> None:
    """Shows a fragment as its elements, `acc[0, 1]`; tensors and tiles have no value to show."""
    names: list[str] = []
    values: list[Any] = []
    for name, value in zip(op.names, op.operands, strict=True):
        new = x.elements(value) if value in x.mapping else []
        type_ = value.type
        places = list(product(*map(range, type_.local))) if isinstance(type_, FragmentType) else []
        names += [f"{name}[{', '.join(map(str, at))}]" for at in places] or [name] * len(new)
        values += new
    x.b.add(debug.Breakpoint(*values, names=tuple(names)))


_RULES: dict[type[Op], Rule] = {
    **MEMORY_RULES,
    **MATRIX_RULES,
    **HOPPER_RULES,
    gpu.ThreadId: _position,
    gpu.BlockId: _position,
    gpu.GridSize: _position,
    gpu.WarpId: _position,
    gpu.LaneId: _position,
    arith.Constant: _constant,
    **dict.fromkeys(arith.Scalar.__subclasses__(), _scalar),
    arith.Select: _select,
    arith.Cast: _cast,
    control.For: _for,
    tile.Pack: _pack,
    tile.Extract: _extract,
    tile.Insert: _insert,
    debug.Breakpoint: _breakpoint,
}
"""Of the ops that do not simply exist at both levels."""
