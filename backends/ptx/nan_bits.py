"""Makes NaNs canonical where their bits can be seen and the instructions may leave others.

What computes an f32, f16 or bf16 canonicalises a NaN (measured on an H200), but not everything that is arithmetic here
is an instruction there. LLVM and ptxas make of neg and abs a modifier of whatever comes next, or a bit operation; LLVM
drops x * 1 and the like, takes signs out of products, and makes 0x7e00 of an operation on constants in f16 where an
instruction makes 0x7fff. f64 instructions pass on the payload of an operand or make 0xfff8000000000000, and what
conversions from f64 make is not known. Arithmetic itself cannot tell NaNs apart, so it is enough to make such a value
canonical before what can: a store, a shuffle, a bit cast, a word, a print, inline PTX, and a merge with a value whose
payload counts, such as a loaded one. Accumulators of a loop cost nothing, nor does a stored -x, which is an addition
anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence

from tiledsl.backends.ptx.vectors import are_rounded_pairs
from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.ops import arith, control, mem
from tiledsl.ir.ops.ptx import Inline
from tiledsl.ir.types import BF16, F16, F32, F64, DType
from tiledsl.passes.analysis.forward import Forward
from tiledsl.passes.analysis.structure import flows, reached

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

LITERALS = frozenset({"0.0", "-0.0", "1.0", "-1.0", "nan"})

Use = tuple[Op, int]
"""An operand: an op, and the operand's place."""


def canonicalize_nans(kernel: Kernel) -> Kernel:
    """`kernel`, or a copy of it with the instructions that make NaNs canonical if it needs any."""
    if not any(_needed(kernel)):
        return kernel
    kernel = kernel.clone()
    for op, position in list(_needed(kernel)):
        value = op.operands[position]
        source, text = _canonical(value)
        canonical = Inline(source, text=text, outputs=(value.dtype,), loc=op.loc)
        op.block.insert_before(op, canonical)
        op.set_operand(position, canonical.result)
    return kernel


def _canonical(value: Value) -> tuple[Value, str]:
    """(a value, the text that makes `value` with a canonical NaN of it)."""
    op = value.op
    signed = SIGNED.get((op.fn.name, value.dtype)) if isinstance(op, arith.Scalar) else None
    return (op.operands[0], signed) if op is not None and signed is not None else (value, CANONICALIZE[value.dtype])


def _needed(kernel: Kernel) -> Iterator[Use]:
    """The operands to make canonical."""
    known = _Nans(kernel).of
    if not any("loose" in facts for facts in known.values()):
        return
    ops = list(kernel.walk())
    into = _destinations(ops)
    seen = _seen(ops, into)
    for op in ops:
        for position, value in enumerate(op.operands):
            if "loose" not in known[value] or "kept" in known[value]:
                continue
            targets = into.get((op, position))
            if not _is_blind(op, value) if targets is None else any(v in seen and "kept" in known[v] for v in targets):
                yield op, position


# -- where a value goes ----------------------------------------------------------------------------


def _destinations(ops: Sequence[Op]) -> dict[Use, Sequence[Value]]:
    """The values that an operand becomes, or that hold its bits."""
    found: dict[Use, Sequence[Value]] = {}
    for op in ops:
        for flow in flows(op):
            for offset, (targets, _) in enumerate(flow.slots):
                found.update(((source, first + offset), targets) for source, first in flow.sources)
        if isinstance(op, arith.Select):
            found[op, 1] = found[op, 2] = op.results
        elif op.nan == "carries" and not are_rounded_pairs(op.operands):
            found.update(((op, position), op.results) for position in range(len(op.operands)))
    return found


def _seen(ops: Sequence[Op], into: dict[Use, Sequence[Value]]) -> Container[Value]:
    """Values whose bits something looks at, itself or after merges and moves."""
    origins: dict[Value, list[Value]] = defaultdict(list)
    for (op, position), targets in into.items():
        for target in targets:
            origins[target].append(op.operands[position])
    uses = ((op, position, value) for op in ops for position, value in enumerate(op.operands))
    looked_at = (value for op, position, value in uses if (op, position) not in into and not _is_blind(op, value))
    return reached(looked_at, origins.__getitem__)


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


# -- what a NaN may be -----------------------------------------------------------------------------


class _Nans(Forward):
    """What is known of the NaNs that a value may be, `of` it.

    "kept": one whose payload is to be kept, since not all paths lead from arithmetic and constants. "loose": of
    arithmetic whose instructions may leave it as it is, or with another sign. "half": of an f32 that LLVM may narrow to
    the f16 which it comes from. The text of one of `LITERALS`: the value is that constant, or may be chosen to be; a
    loop's initial value is not. "constant": it is a constant on some path, or computed from such alone.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.of: dict[Value, set[str]] = defaultdict(set)
        for arg in kernel.body.args:
            self.of[arg].add("kept")
        self.walk(kernel.body)

    def _note(self, value: Value, facts: set[str]) -> None:
        if not facts <= self.of[value]:
            self.of[value] |= facts
            self.changed = True

    def join(self, op: Op, target: Value, sources: Sequence[Value]) -> None:
        dropped = LITERALS if isinstance(op, (control.For, control.While)) else frozenset[str]()
        for source in sources:
            self._note(target, self.of[source] - dropped)

    def op(self, op: Op) -> None:
        match op:
            case arith.Select():
                self.join(op, op.result, (op.a, op.b))
            case arith.Constant():  # canonical as it is
                self._note(op.result, {"constant"} | {repr(op.value)} & LITERALS)
            case _:
                for result in op.results:
                    self._result(op, result)

    def _result(self, op: Op, result: Value) -> None:
        if isinstance(op, (arith.Scalar, arith.Cast)) and self._all_constant(op.operands):
            self._note(result, {"constant"})
        if op.nan not in ("computes", "packed"):
            self._note(result, {"kept"})
            return
        if self._is_loose(op, result):
            self._note(result, {"loose"})
        if self._is_half(op, result):
            self._note(result, {"half"})

    def _is_half(self, op: Op, result: Value) -> bool:
        if isinstance(op, arith.Cast):
            return (op.src.type, op.to) == (F16, F32)
        return "loose" in self.of[result] and self._any(op.operands, "half")

    def _is_loose(self, op: Op, result: Value) -> bool:
        if result.type not in CANONICALIZE:
            return False
        if result.type == F64:
            return True
        match op:
            case arith.Cast():
                of_half = op.to == F16 and "half" in self.of[op.src]
                return op.src.type == F64 or "loose" in self.of[op.src] or of_half
            case arith.Scalar():
                return self._all_constant(op.operands) or self._is_loose_row(op.fn.name, op.operands)
            case _:
                return False

    def _is_loose_row(self, name: str, operands: list[Value]) -> bool:
        loose = self._any(operands, "loose")
        match name:
            case "neg" | "abs":
                return True
            case "add":
                return self._any(operands, "0.0", "-0.0")
            case "sub":
                return self._any(operands[:1], "-0.0") or self._any(operands[1:], "0.0", "-0.0")
            case "mul":
                return loose or self._any(operands, "1.0", "-1.0")
            case "div":
                return loose or self._any(operands[1:], "1.0", "-1.0")
            case "fma":
                return self._any(operands[2:], "0.0", "-0.0") and self._is_loose_row("mul", operands[:2])
            case "min" | "max":
                return loose or operands[0] is operands[1] or self._any(operands, "nan")
            case "floor" | "ceil" | "trunc" | "rint":
                return loose
            case _:
                return False

    def _all_constant(self, values: Sequence[Value]) -> bool:
        return all("constant" in self.of[value] for value in values)

    def _any(self, values: Sequence[Value], *facts: str) -> bool:
        return any(not self.of[value].isdisjoint(facts) for value in values)
