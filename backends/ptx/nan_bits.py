"""Makes NaNs canonical where their bits can be seen and the instructions may leave others.

What computes an f32, f16 or bf16 canonicalises a NaN (measured on an H200), but not everything that is arithmetic here
is an instruction there. LLVM and ptxas make of neg and abs a modifier of whatever comes next, or a bit operation; LLVM
drops x * 1 and the like, and takes signs out of products. f64 instructions hand on the payload of an operand or make
0xfff8000000000000, and what conversions from f64 make is not known. Arithmetic itself cannot tell NaNs apart, so it
is enough to settle such a value on its way to what can: a store, a shuffle, a bit cast, a word, a print, inline PTX,
and a merge with a value whose payload counts, such as a loaded one. Accumulators of a loop cost nothing, nor does a
stored -x, which is an addition anyway.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiledsl.backends.ptx.vectors import are_rounded_pairs
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import arith, control, mem
from tiledsl.ir.ops.ptx import Inline
from tiledsl.ir.types import BF16, F16, F32, F64, DType

__all__ = ["SETTLE", "settle_nans"]

SETTLE: dict[DType, str] = {
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
Sources = dict[Value, list[Use]]
"""For each value that is one of others or holds their bits: the operands that those are."""


def settle_nans(kernel: Kernel) -> Kernel:
    """`kernel`, or a copy of it with the settling instructions if it needs any."""
    if not any(_needed(kernel)):
        return kernel
    kernel = kernel.clone()
    for op, position in list(_needed(kernel)):
        value, block = op.operands[position], op.parent
        assert isinstance(block, Block)
        source, text = _settled(value)
        settled = Inline(source, text=text, outputs=(value.dtype,), loc=op.loc)
        block.insert_before(op, settled)
        op.set_operand(position, settled.result)
    return kernel


def _settled(value: Value) -> tuple[Value, str]:
    """What to apply which text to for `value` with a canonical NaN."""
    op = value.op
    signed = SIGNED.get((op.fn.name, value.dtype)) if isinstance(op, arith.Scalar) else None
    return (op.operands[0], signed) if op is not None and signed is not None else (value, SETTLE[value.dtype])


def _needed(kernel: Kernel) -> Iterator[Use]:
    """The operands to settle."""
    loose = _Loose(kernel)
    if not loose.values:
        return
    sources = loose.sources
    seen, kept = _seen(kernel, sources), _with_payload(kernel, sources)
    flows = _flows(sources)
    for op in kernel.walk():
        for position, value in enumerate(op.operands):
            if value not in loose.values or value in kept:
                continue
            into = flows.get((op, position))
            bare = not _is_blind(op, value) if into is None else any(v in seen and v in kept for v in into)
            if bare:
                yield op, position


# -- where a value goes ----------------------------------------------------------------------------


def _sources(kernel: Kernel) -> Sources:
    found: Sources = {}

    def note(values: list[Value], op: Op, first: int) -> None:
        for offset, value in enumerate(values):
            found.setdefault(value, []).append((op, first + offset))

    for op in kernel.walk():
        match op:
            case arith.Select():
                note(op.results, op, 1)
                note(op.results, op, 2)
            case control.If():
                for block in op.blocks:
                    note(op.results, block.terminator, 0)
            case control.For():
                for carried in (op.body.args[1:], op.results):
                    note(carried, op, 3)
                    note(carried, op.body.terminator, 0)
            case control.While():
                note(op.before.args, op, 0)
                note(op.before.args, op.after.terminator, 0)
                for passed in (op.after.args, op.results):
                    note(passed, op.before.terminator, 1)
            case arith.PackWord() if not are_rounded_pairs(op.operands):
                found[op.result] = [(op, position) for position in range(len(op.operands))]
            case arith.Cast() if op.nan == "carries":
                note(op.results, op, 0)
            case _:
                pass
    return found


def _flows(sources: Sources) -> dict[Use, list[Value]]:
    flows: dict[Use, list[Value]] = {}
    for value, uses in sources.items():
        for use in uses:
            flows.setdefault(use, []).append(value)
    return flows


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
            return op.nan == "packed" or (op.nan in ("computes", "absorbs") and value.type in SETTLE)


def _seen(kernel: Kernel, sources: Sources) -> set[Value]:
    """Values whose bits something looks at, itself or after merges and moves."""
    flows = _flows(sources)
    found = {
        value
        for op in kernel.walk()
        for position, value in enumerate(op.operands)
        if (op, position) not in flows and not _is_blind(op, value)
    }
    rest = list(found)
    while rest:
        inputs = {op.operands[position] for op, position in sources.get(rest.pop(), ())}
        rest += inputs - found
        found |= inputs
    return found


def _with_payload(kernel: Kernel, sources: Sources) -> set[Value]:
    """Values that may be a NaN whose payload is to be kept: not results of arithmetic and constants on every path."""
    moved = {r for op in kernel.walk() if op.nan == "carries" for r in op.results}
    others = {r for op in kernel.walk() if not _computes(op) for r in op.results if r not in sources}
    return _spread(moved | others | {*kernel.body.args}, sources)


def _computes(op: Op) -> bool:
    return op.nan in ("computes", "packed")


def _spread(found: set[Value], sources: Sources) -> set[Value]:
    """`found`, and every merge of it."""
    merged: dict[Value, list[Value]] = {}
    for value, uses in sources.items():
        for op, position in uses:
            merged.setdefault(op.operands[position], []).append(value)
    rest = list(found)
    while rest:
        reached = [v for v in merged.get(rest.pop(), ()) if v not in found]
        rest += reached
        found.update(reached)
    return found


# -- what may not be canonical ---------------------------------------------------------------------


class _Loose:
    """Results of arithmetic whose NaNs the emitted instructions may leave as they are, or with another sign.

    values: those, and merges of them. half: f32 that LLVM may narrow to the f16 which they come from.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.sources = _sources(kernel)
        merges = {v: uses for v, uses in self.sources.items() if v.op is None or v.op.nan != "carries"}
        self.values: set[Value] = set()
        self.half: set[Value] = set()
        self.constants = _constants(kernel)
        ops = [op for op in kernel.walk() if _computes(op) and op.operands]  # a constant is canonical as it is
        size = -1
        while size != len(self.values) + len(self.half):
            size = len(self.values) + len(self.half)
            for op in ops:  # in program order, and each sees what was found before it: a long chain takes one pass
                self.values.update(r for r in op.results if self._is_loose(op, r))
                self.half.update(r for r in op.results if self._is_half(op, r))
            self.values, self.half = _spread(self.values, merges), _spread(self.half, merges)

    def _is_loose(self, op: Op, result: Value) -> bool:
        if result.type not in SETTLE:
            return False
        if result.type == F64:
            return True
        match op:
            case arith.Cast():
                of_float = op.src.type in SETTLE
                return op.src.type == F64 or (of_float and op.src in self.values) or self._narrows(op)
            case arith.Scalar():
                return self._is_loose_row(op.fn.name, op.operands)
            case _:
                return False

    def _narrows(self, op: arith.Cast) -> bool:
        return op.to == F16 and op.src in self.half

    def _is_half(self, op: Op, result: Value) -> bool:
        if isinstance(op, arith.Cast):
            return (op.src.type, op.to) == (F16, F32)
        return result in self.values and any(v in self.half for v in op.operands)

    def _is_loose_row(self, name: str, operands: list[Value]) -> bool:
        loose = any(v in self.values for v in operands)
        match name:
            case "neg" | "abs":
                return True
            case "add":
                return any(self._may_be(v, "0.0", "-0.0") for v in operands)
            case "sub":
                return self._may_be(operands[0], "-0.0") or self._may_be(operands[1], "0.0", "-0.0")
            case "mul":
                return loose or any(self._may_be(v, "1.0", "-1.0") for v in operands)
            case "div":
                return loose or self._may_be(operands[1], "1.0", "-1.0")
            case "fma":
                return self._may_be(operands[2], "0.0", "-0.0") and self._is_loose_row("mul", operands[:2])
            case "min" | "max":
                return loose or operands[0] is operands[1] or any(self._may_be(v, "nan") for v in operands)
            case "floor" | "ceil" | "trunc" | "rint":
                return loose
            case _:
                return False

    def _may_be(self, value: Value, *wanted: str) -> bool:
        return not self.constants.get(value, set()).isdisjoint(wanted)


def _constants(kernel: Kernel) -> dict[Value, set[str]]:
    """Of each value the constants that it is, or that a choice may make it; a loop's initial value is not."""
    found: dict[Value, set[str]] = {}
    for op in kernel.walk():
        match op:
            case arith.Constant():
                found[op.result] = {repr(op.value)}
            case arith.Select():
                found[op.result] = found.get(op.a, set()) | found.get(op.b, set())
            case control.Yield() if op.parent is not None and isinstance(op.parent.parent, control.If):
                for result, value in zip(op.parent.parent.results, op.operands, strict=True):
                    found.setdefault(result, set()).update(found.get(value, ()))
            case _:
                pass
    return found
