"""Makes NaNs canonical where their bits can be seen and the instructions may leave others.

What computes an f32, f16 or bf16 canonicalises a NaN (measured on an H200), but not everything that is arithmetic here
is an instruction there. LLVM and ptxas make of neg and abs a modifier of whatever comes next, or a bit operation; LLVM
drops x * 1 and the like, and takes signs out of products. f64 instructions pass on the payload of an operand or make
0xfff8000000000000, and what conversions from f64 make is not known. Arithmetic itself cannot tell NaNs apart, so it is
enough to make such a value canonical before what can: a store, a shuffle, a bit cast, a word, a print, inline
PTX, and a merge with a value whose payload counts, such as a loaded one. Accumulators of a loop cost nothing, nor does
a stored -x, which is an addition anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from tiledsl.backends.ptx.vectors import are_rounded_pairs
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import arith, control, mem
from tiledsl.ir.ops.ptx import Inline
from tiledsl.ir.types import BF16, F16, F32, F64, DType

CANONICALIZE: dict[DType, str] = {
    F64: "{.reg .pred p; setp.nan.f64 p, $1, $1; selp.f64 $0, 0d7FFFFFFFFFFFFFFF, $1, p;}",
    F32: "add.rn.f32 $0, $1, 0f80000000;",
    F16: "{.reg .b16 zero; mov.b16 zero, 0x8000; add.rn.f16 $0, $1, zero;}",
    BF16: "{.reg .b16 zero, one; mov.b16 zero, 0x8000; mov.b16 one, 0x3F80; fma.rn.bf16 $0, $1, one, zero;}",
}
"""Adding -0 changes no number, and ptxas keeps it: one instruction."""

SIGNED: dict[tuple[str, DType], str] = {
    ("neg", F32): "sub.rn.f32 $0, 0f80000000, $1;",
    ("abs", F32): "{.reg .f32 y; abs.f32 y, $1; add.rn.f32 $0, y, 0f80000000;}",
    ("neg", F16): "{.reg .b16 zero; mov.b16 zero, 0x8000; sub.rn.f16 $0, zero, $1;}",
    ("abs", F16): "{.reg .b16 y, zero; mov.b16 zero, 0x8000; abs.f16 y, $1; add.rn.f16 $0, y, zero;}",
    ("neg", BF16): "{.reg .b16 zero, one; mov.b16 zero, 0x8000; mov.b16 one, 0xBF80; fma.rn.bf16 $0, $1, one, zero;}",
    ("abs", BF16): (
        "{.reg .b16 y, zero, one; mov.b16 zero, 0x8000; mov.b16 one, 0x3F80; "
        "abs.bf16 y, $1; fma.rn.bf16 $0, y, one, zero;}"
    ),
}
"""neg and abs with the addition in one text: of a neg before it LLVM would make an instruction of its own."""

Use = tuple[Op, int]
"""An operand: an op, and the operand's place."""


def canonicalize_nans(kernel: Kernel) -> Kernel:
    """`kernel`, or a copy of it with the instructions that make NaNs canonical if it needs any."""
    if not any(_needed(kernel)):
        return kernel
    kernel = kernel.clone()
    for op, position in list(_needed(kernel)):
        value, block = op.operands[position], op.parent
        assert isinstance(block, Block)
        source, text = _canonical(value)
        canonical = Inline(source, text=text, outputs=(value.dtype,), loc=op.loc)
        block.insert_before(op, canonical)
        op.set_operand(position, canonical.result)
    return kernel


def _canonical(value: Value) -> tuple[Value, str]:
    """(a value, the text that makes `value` with a canonical NaN of it)."""
    op = value.op
    signed = SIGNED.get((op.fn.name, value.dtype)) if isinstance(op, arith.Scalar) else None
    return (op.operands[0], signed) if op is not None and signed is not None else (value, CANONICALIZE[value.dtype])


def _needed(kernel: Kernel) -> Iterator[Use]:
    """The operands to make canonical."""
    ops = list(kernel.walk())
    flow = _Flow(ops)
    loose = _Loose(ops, flow).values
    if not loose:
        return
    seen, kept = _seen(ops, flow), _with_payload(kernel, ops, flow)
    for op in ops:
        for position, value in enumerate(op.operands):
            if value not in loose or value in kept:
                continue
            into = flow.into.get((op, position))
            if not _is_blind(op, value) if into is None else any(v in seen and v in kept for v in into):
                yield op, position


# -- where a value goes ----------------------------------------------------------------------------


Edges = dict[Value, list[Value]]


class _Flow:
    """Which values are one of others, or hold their bits.

    into: the values that an operand becomes. inputs, outputs: from a value to those that it may be, and back. merges,
    choices: the outputs that are no conversions, and those of branches and selections alone.
    """

    def __init__(self, ops: Sequence[Op]) -> None:
        self.into: dict[Use, list[Value]] = defaultdict(list)
        self.inputs: Edges = defaultdict(list)
        self.outputs: Edges = defaultdict(list)
        self.merges: Edges = defaultdict(list)
        self.choices: Edges = defaultdict(list)
        for op in ops:
            for values, source, first in _becomes(op):
                for position, value in enumerate(values, first):
                    operand = source.operands[position]
                    self.into[source, position].append(value)
                    self.inputs[value].append(operand)
                    self.outputs[operand].append(value)
                    if not isinstance(op, arith.Cast):
                        self.merges[operand].append(value)
                    if isinstance(op, (arith.Select, control.If)):
                        self.choices[operand].append(value)


def _becomes(op: Op) -> list[tuple[Sequence[Value], Op, int]]:
    """(values, an op, the place of the first of its operands that they are)."""
    match op:
        case arith.Select():
            return [(op.results, op, 1), (op.results, op, 2)]
        case control.If():
            return [(op.results, block.terminator, 0) for block in op.blocks]
        case control.For():
            end, inside, behind = op.body.terminator, op.body.args[1:], op.results
            return [(inside, op, 3), (inside, end, 0), (behind, op, 3), (behind, end, 0)]
        case control.While():
            passed = [(values, op.before.terminator, 1) for values in (op.after.args, op.results)]
            return [(op.before.args, op, 0), (op.before.args, op.after.terminator, 0), *passed]
        case arith.PackWord() if not are_rounded_pairs(op.operands):
            return [(op.results, op, position) for position in range(len(op.operands))]
        case arith.Cast() if op.nan == "carries":
            return [(op.results, op, 0)]
        case _:
            return []


def _reached(start: Iterable[Value], edges: Edges) -> set[Value]:
    found = set(start)
    rest = list(found)
    while rest:
        new = {value for value in edges.get(rest.pop(), ()) if value not in found}
        rest += new
        found |= new
    return found


def _is_blind(op: Op, value: Value) -> bool:
    """True if `op` cannot tell NaNs in its operand apart.

    Pairs that are rounded together are one instruction, which canonicalises and which LLVM leaves alone.
    """
    match op:
        case mem.Store():
            return op.vec > 1 and are_rounded_pairs(op.values)
        case arith.PackWord():
            return are_rounded_pairs(op.operands)
        case _:
            return op.nan == "packed" or (op.nan in ("computes", "absorbs") and value.type in CANONICALIZE)


def _seen(ops: Sequence[Op], flow: _Flow) -> set[Value]:
    """Values whose bits something looks at, itself or after merges and moves."""
    uses = ((op, position, value) for op in ops for position, value in enumerate(op.operands))
    direct = (value for op, position, value in uses if (op, position) not in flow.into and not _is_blind(op, value))
    return _reached(direct, flow.inputs)


def _with_payload(kernel: Kernel, ops: Sequence[Op], flow: _Flow) -> set[Value]:
    """Values that may be a NaN whose payload is to be kept: not results of arithmetic and constants on every path."""
    moved = {r for op in ops if op.nan == "carries" for r in op.results}
    others = {r for op in ops if not _computes(op) for r in op.results if r not in flow.inputs}
    return _reached(moved | others | {*kernel.body.args}, flow.outputs)


def _computes(op: Op) -> bool:
    return op.nan in ("computes", "packed")


# -- what may not be canonical ---------------------------------------------------------------------


class _Loose:
    """Results of arithmetic whose NaNs the emitted instructions may leave as they are, or with another sign.

    values: those, and merges of them. half: f32 that LLVM may narrow to the f16 which they come from. constants: values
    that are the constant with that text, or may be chosen to be; a loop's initial value is not.
    """

    def __init__(self, ops: Sequence[Op], flow: _Flow) -> None:
        literals = [op for op in ops if isinstance(op, arith.Constant) and op.dtype.is_float]
        self.constants = {
            text: _reached((op.result for op in literals if repr(op.value) == text), flow.choices)
            for text in ("0.0", "-0.0", "1.0", "-1.0", "nan")
        }
        self.values: set[Value] = set()
        self.half: set[Value] = set()
        computing = [op for op in ops if _computes(op) and op.operands]  # a constant is canonical as it is
        size = -1
        while size != len(self.values) + len(self.half):
            size = len(self.values) + len(self.half)
            for op in computing:  # in program order, each sees what was found before it: a long chain takes one pass
                self.values.update(r for r in op.results if self._is_loose(op, r))
                self.half.update(r for r in op.results if self._is_half(op, r))
            self.values, self.half = _reached(self.values, flow.merges), _reached(self.half, flow.merges)

    def _is_half(self, op: Op, result: Value) -> bool:
        if isinstance(op, arith.Cast):
            return (op.src.type, op.to) == (F16, F32)
        return result in self.values and any(v in self.half for v in op.operands)

    def _is_loose(self, op: Op, result: Value) -> bool:
        if result.type not in CANONICALIZE:
            return False
        if result.type == F64:
            return True
        match op:
            case arith.Cast():
                of_loose_float = op.src.type in CANONICALIZE and op.src in self.values
                return op.src.type == F64 or of_loose_float or (op.to == F16 and op.src in self.half)
            case arith.Scalar():
                return self._is_loose_row(op.fn.name, op.operands)
            case _:
                return False

    def _is_loose_row(self, name: str, operands: list[Value]) -> bool:
        loose = any(v in self.values for v in operands)
        match name:
            case "neg" | "abs":
                return True
            case "add":
                return self._may_be(operands, "0.0", "-0.0")
            case "sub":
                return self._may_be(operands[:1], "-0.0") or self._may_be(operands[1:], "0.0", "-0.0")
            case "mul":
                return loose or self._may_be(operands, "1.0", "-1.0")
            case "div":
                return loose or self._may_be(operands[1:], "1.0", "-1.0")
            case "fma":
                return self._may_be(operands[2:], "0.0", "-0.0") and self._is_loose_row("mul", operands[:2])
            case "min" | "max":
                return loose or operands[0] is operands[1] or self._may_be(operands, "nan")
            case "floor" | "ceil" | "trunc" | "rint":
                return loose
            case _:
                return False

    def _may_be(self, values: Sequence[Value], *wanted: str) -> bool:
        return any(value in self.constants[text] for value in values for text in wanted)
