"""Writes the body of an LLVM function as text, instruction by instruction.

Types, constants, declarations and metadata are llvmlite's. Its instructions are objects that become text at the end;
of a kernel's thousands, this makes the text at once, in a third of the time. What is wrong in it the parser finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tiledsl.backends.ptx.types import I1, VOID

__all__ = ["Label", "Phi", "Register", "Writer"]

SIGNS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


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


class Writer:
    """Appends to `block`. `suffix` ends each instruction: its debug location.

    Methods are named as llvmlite's builder has them, which are LLVM's instructions.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        self.suffix = ""
        self._values = 0
        self.block = self.new_block("entry")

    def new_block(self, name: str) -> Label:
        """A block after the last one; one goes on writing where one is."""
        label = Label(f"{name}.{len(self.function.blocks)}")
        self.function.blocks.append(label)
        return label

    def position_at_end(self, block: Label) -> None:
        self.block = block

    def _line(self, text: str) -> None:
        self.block.lines.append(text + self.suffix)

    def _name(self) -> str:
        """A name that no parameter has: those are identifiers of Python, or `.` and a number."""
        self._values += 1
        return f"%v.{self._values}"

    def _value(self, type_: Any, text: str) -> Register:
        name = self._name()
        self.block.lines.append(f"{name} = {text}{self.suffix}")
        return Register(type_, name)

    # -- arithmetic ----------------------------------------------------------------------------

    def _binary(self, name: str, a: Any, b: Any, flags: Sequence[str] = ()) -> Register:
        what = " ".join((name, *flags)) if flags else name
        return self._value(a.type, f"{what} {a.type} {a.get_reference()}, {b.get_reference()}")

    def add(self, a: Any, b: Any, flags: Sequence[str] = ()) -> Register:
        return self._binary("add", a, b, flags)

    def sub(self, a: Any, b: Any, flags: Sequence[str] = ()) -> Register:
        return self._binary("sub", a, b, flags)

    def mul(self, a: Any, b: Any, flags: Sequence[str] = ()) -> Register:
        return self._binary("mul", a, b, flags)

    def sdiv(self, a: Any, b: Any) -> Register:
        return self._binary("sdiv", a, b)

    def udiv(self, a: Any, b: Any) -> Register:
        return self._binary("udiv", a, b)

    def urem(self, a: Any, b: Any) -> Register:
        return self._binary("urem", a, b)

    def and_(self, a: Any, b: Any) -> Register:
        return self._binary("and", a, b)

    def or_(self, a: Any, b: Any) -> Register:
        return self._binary("or", a, b)

    def xor(self, a: Any, b: Any) -> Register:
        return self._binary("xor", a, b)

    def shl(self, a: Any, b: Any) -> Register:
        return self._binary("shl", a, b)

    def lshr(self, a: Any, b: Any) -> Register:
        return self._binary("lshr", a, b)

    def ashr(self, a: Any, b: Any) -> Register:
        return self._binary("ashr", a, b)

    def fadd(self, a: Any, b: Any) -> Register:
        return self._binary("fadd", a, b)

    def fsub(self, a: Any, b: Any) -> Register:
        return self._binary("fsub", a, b)

    def fmul(self, a: Any, b: Any) -> Register:
        return self._binary("fmul", a, b)

    def fdiv(self, a: Any, b: Any) -> Register:
        return self._binary("fdiv", a, b)

    def fneg(self, a: Any) -> Register:
        return self._value(a.type, f"fneg {_typed(a)}")

    # -- comparisons ---------------------------------------------------------------------------

    def _compared(self, what: str, a: Any, b: Any) -> Register:
        return self._value(I1, f"{what} {a.type} {a.get_reference()}, {b.get_reference()}")

    def icmp_signed(self, sign: str, a: Any, b: Any) -> Register:
        return self._compared(f"icmp {'' if sign in ('==', '!=') else 's'}{SIGNS[sign]}", a, b)

    def icmp_unsigned(self, sign: str, a: Any, b: Any) -> Register:
        return self._compared(f"icmp {'' if sign in ('==', '!=') else 'u'}{SIGNS[sign]}", a, b)

    def fcmp_ordered(self, sign: str, a: Any, b: Any) -> Register:
        return self._compared(f"fcmp o{SIGNS[sign]}", a, b)

    def fcmp_unordered(self, sign: str, a: Any, b: Any) -> Register:
        return self._compared(f"fcmp {'uno' if sign == 'uno' else 'u' + SIGNS[sign]}", a, b)

    def select(self, condition: Any, a: Any, b: Any) -> Register:
        return self._value(a.type, f"select {_typed(condition)}, {_typed(a)}, {_typed(b)}")

    # -- conversions ---------------------------------------------------------------------------

    def _cast(self, name: str, value: Any, to: Any) -> Any:
        return value if value.type == to else self._value(to, f"{name} {_typed(value)} to {to}")

    def trunc(self, value: Any, to: Any) -> Any:
        return self._cast("trunc", value, to)

    def zext(self, value: Any, to: Any) -> Any:
        return self._cast("zext", value, to)

    def sext(self, value: Any, to: Any) -> Any:
        return self._cast("sext", value, to)

    def fptrunc(self, value: Any, to: Any) -> Any:
        return self._cast("fptrunc", value, to)

    def fpext(self, value: Any, to: Any) -> Any:
        return self._cast("fpext", value, to)

    def sitofp(self, value: Any, to: Any) -> Any:
        return self._cast("sitofp", value, to)

    def uitofp(self, value: Any, to: Any) -> Any:
        return self._cast("uitofp", value, to)

    def ptrtoint(self, value: Any, to: Any) -> Any:
        return self._cast("ptrtoint", value, to)

    def bitcast(self, value: Any, to: Any) -> Any:
        return self._cast("bitcast", value, to)

    def addrspacecast(self, value: Any, to: Any) -> Any:
        return self._cast("addrspacecast", value, to)

    # -- vectors and structures ----------------------------------------------------------------

    def _part(self, type_: Any, text: str) -> Register:
        """Without a location: a vector in registers is nothing that runs."""
        name = self._name()
        self.block.lines.append(f"{name} = {text}")
        return Register(type_, name)

    def extract_element(self, vector: Any, at: Any) -> Register:
        return self._part(vector.type.element, f"extractelement {_typed(vector)}, {_typed(at)}")

    def insert_element(self, vector: Any, value: Any, at: Any) -> Register:
        return self._part(vector.type, f"insertelement {_typed(vector)}, {_typed(value)}, {_typed(at)}")

    def extract_value(self, whole: Any, at: int) -> Register:
        return self._value(whole.type.elements[at], f"extractvalue {_typed(whole)}, {at}")

    # -- memory --------------------------------------------------------------------------------

    def gep(self, pointer: Any, indices: Sequence[Any], source_etype: Any) -> Register:
        places = ", ".join([_typed(i) for i in indices])
        return self._value(pointer.type, f"getelementptr {source_etype}, {_typed(pointer)}, {places}")

    def load(self, pointer: Any, typ: Any, align: int) -> Register:
        return self._value(typ, f"load {typ}, {_typed(pointer)}, align {align}")

    def store(self, value: Any, pointer: Any, align: int = 0) -> None:
        aligned = f", align {align}" if align else ""
        self._line(f"store {_typed(value)}, {_typed(pointer)}{aligned}")

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

    def unreachable(self) -> None:
        self.block.lines.append("unreachable")

    def ret_void(self) -> None:
        self._line("ret void")

    def call(self, callee: Any, arguments: Sequence[Any], attrs: Sequence[str] = ()) -> Register:
        return self.call_named(callee.get_reference(), callee.function_type.return_type, arguments, attrs)

    def call_named(self, callee: str, result: Any, arguments: Sequence[Any], attrs: Sequence[str] = ()) -> Register:
        """`callee`: as LLVM writes it, inline assembly too."""
        text = f"call {result} {callee}({', '.join([_typed(a) for a in arguments])})"
        if attrs:
            text = " ".join((text, *attrs))
        if result is not VOID:
            return self._value(result, text)
        self._line(text)
        return Register(result, "")
