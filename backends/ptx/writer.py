"""Writes the body of an LLVM function as text, instruction by instruction.

Types, constants, declarations and metadata are llvmlite's. Its instructions are objects that become text at the end;
of a kernel's thousands, this makes the text at once, in a third of the time. What is wrong in it the parser finds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tiledsl.backends.ptx.types import I1, VOID


class Register:
    """The result of an instruction: an LLVM value as llvmlite's are, with `type` and `get_reference()`."""

    __slots__ = ("reference", "type")

    def __init__(self, type_: Any, reference: str) -> None:
        self.type, self.reference = type_, reference

    def get_reference(self) -> str:
        return self.reference


class Phi(Register):
    """A phi. Values come in from other blocks until the text is asked for."""

    __slots__ = ("incoming", "suffix")

    def __init__(self, type_: Any, reference: str, suffix: str) -> None:
        super().__init__(type_, reference)
        self.suffix = suffix
        self.incoming: list[str] = []

    def add_incoming(self, value: Any, block: Label) -> None:
        self.incoming.append(f"[{value.get_reference()}, {block.reference}]")

    def __str__(self) -> str:
        return f"{self.reference} = phi {self.type} {', '.join(self.incoming)}{self.suffix}"


class Label:
    """A basic block, in the list of blocks of an llvmlite function."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reference = f'%"{name}"'
        self.phis: list[Phi] = []
        self.lines: list[str] = []

    def descr(self, parts: list[str]) -> None:
        """What llvmlite calls to print a block."""
        parts.append(f'"{self.name}":\n')
        parts += [f"  {line}\n" for line in (*self.phis, *self.lines)]


def _typed(value: Any) -> str:
    return f"{value.type} {value.get_reference()}"


def _binary(name: str) -> Callable[..., Register]:
    """The method of an instruction with two operands of one type."""

    def method(self: Writer, a: Any, b: Any, nsw: bool = False) -> Register:
        opcode = f"{name} nsw" if nsw else name
        return self.emit(a.type, f"{opcode} {a.type} {a.get_reference()}, {b.get_reference()}")

    return method


def _conversion(name: str) -> Callable[..., Any]:
    """The method of a conversion to another type; to the same type nothing is done."""

    def method(self: Writer, value: Any, to: Any) -> Any:
        return value if value.type == to else self.emit(to, f"{name} {_typed(value)} to {to}")

    return method


class Writer:
    """Appends to `block`. `suffix` ends each instruction: its debug location.

    Methods are named as LLVM's instructions are.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        self.suffix = ""
        self._values = 0
        self.block = self.new_block("entry")

    def new_block(self, name: str) -> Label:
        """A basic block after the last one; what is written next still goes to `block`."""
        label = Label(f"{name}.{len(self.function.blocks)}")
        self.function.blocks.append(label)
        return label

    def emit(self, type_: Any, text: str, *, located: bool = True) -> Register:
        name = self._name()
        self.block.lines.append(f"{name} = {text}{self.suffix}" if located else f"{name} = {text}")
        return Register(type_, name)

    def _line(self, text: str) -> None:
        self.block.lines.append(text + self.suffix)

    def _name(self) -> str:
        """A name that no parameter has: those are identifiers of Python, or `.` and a number."""
        self._values += 1
        return f"%v.{self._values}"

    # -- arithmetic ----------------------------------------------------------------------------

    add, sub, mul = _binary("add"), _binary("sub"), _binary("mul")
    sdiv, udiv, urem = _binary("sdiv"), _binary("udiv"), _binary("urem")
    and_, or_, xor = _binary("and"), _binary("or"), _binary("xor")
    shl, lshr, ashr = _binary("shl"), _binary("lshr"), _binary("ashr")
    fadd, fsub, fmul, fdiv = _binary("fadd"), _binary("fsub"), _binary("fmul"), _binary("fdiv")

    def fneg(self, a: Any) -> Register:
        return self.emit(a.type, f"fneg {_typed(a)}")

    def icmp(self, predicate: str, a: Any, b: Any) -> Register:
        """`predicate`: LLVM's, such as eq, slt (signed) or ult (unsigned)."""
        return self.emit(I1, f"icmp {predicate} {a.type} {a.get_reference()}, {b.get_reference()}")

    def fcmp(self, predicate: str, a: Any, b: Any) -> Register:
        """`predicate`: LLVM's, such as olt (ordered: false for a NaN), une (unordered: true), uno (either is a NaN)."""
        return self.emit(I1, f"fcmp {predicate} {a.type} {a.get_reference()}, {b.get_reference()}")

    def select(self, condition: Any, a: Any, b: Any) -> Register:
        return self.emit(a.type, f"select {_typed(condition)}, {_typed(a)}, {_typed(b)}")

    trunc, zext, sext = _conversion("trunc"), _conversion("zext"), _conversion("sext")
    fptrunc, fpext = _conversion("fptrunc"), _conversion("fpext")
    sitofp, uitofp = _conversion("sitofp"), _conversion("uitofp")
    ptrtoint, bitcast = _conversion("ptrtoint"), _conversion("bitcast")

    # -- vectors and structures ----------------------------------------------------------------

    # Those of vectors have no location: a vector in registers is nothing that runs.

    def extract_element(self, vector: Any, at: Any) -> Register:
        return self.emit(vector.type.element, f"extractelement {_typed(vector)}, {_typed(at)}", located=False)

    def insert_element(self, vector: Any, value: Any, at: Any) -> Register:
        return self.emit(vector.type, f"insertelement {_typed(vector)}, {_typed(value)}, {_typed(at)}", located=False)

    def extract_value(self, whole: Any, at: int) -> Register:
        return self.emit(whole.type.elements[at], f"extractvalue {_typed(whole)}, {at}")

    # -- memory --------------------------------------------------------------------------------

    def gep(self, pointer: Any, indices: Sequence[Any], source_etype: Any) -> Register:
        places = ", ".join([_typed(i) for i in indices])
        return self.emit(pointer.type, f"getelementptr {source_etype}, {_typed(pointer)}, {places}")

    def load(self, pointer: Any, typ: Any, align: int) -> Register:
        return self.emit(typ, f"load {typ}, {_typed(pointer)}, align {align}")

    def store(self, value: Any, pointer: Any, align: int) -> None:
        self._line(f"store {_typed(value)}, {_typed(pointer)}, align {align}")

    # -- control flow --------------------------------------------------------------------------

    def phi(self, type_: Any) -> Phi:
        phi = Phi(type_, self._name(), self.suffix)
        self.block.phis.append(phi)
        return phi

    def branch(self, target: Label) -> None:
        self._line(f"br label {target.reference}")

    def cbranch(self, condition: Any, then: Label, orelse: Label, metadata: Mapping[str, Any] | None = None) -> None:
        """`metadata`: nodes by their kind, such as prof."""
        nodes = "".join([f", !{kind} {node.get_reference()}" for kind, node in (metadata or {}).items()])
        self._line(f"br {_typed(condition)}, label {then.reference}, label {orelse.reference}{nodes}")

    def ret_void(self) -> None:
        self._line("ret void")

    def call(self, callee: str, result: Any, arguments: Sequence[Any], attribute: str = "") -> Register:
        """`callee`: as LLVM writes it, inline assembly too."""
        text = f"call {result} {callee}({', '.join([_typed(a) for a in arguments])}){attribute}"
        if result is not VOID:
            return self.emit(result, text)
        self._line(text)
        return Register(result, "")
