"""The textual form of a kernel, which `ir.parser` reads back to the same IR.

It is generic: names, attributes and blocks come from the op classes. One op a line::

    kernel saxpy(%x: global<f32, [N], unit=0, align=16>, %a: f32)
      grid(floordiv(add(N, 127), 128)) threads(128) level(tile) index_bits(32) {
      %i = gpu.thread_id {axis = 0} : index
      %one = arith.constant 1.0 : f32
      %v = tile.get %x, %i, %one : f32
      %acc = control.for %lo, %hi, %step, %v {unroll = 4} : f32 (%k: index, %s: f32) {
        ...
        control.yield %t
      }
      control.if %c {
        ...
      } else {
        ...
      }
      control.return
    }

Rules: results, op name, operands, attributes that differ from their default, ``: types`` of the
results, the location on request, then each block as ``(arguments) { ops }``. A dtype or type
attribute that equals the only result's type is left out. Values keep their name hints, made unique.
Floats are written by `repr`, which is exact. `Kernel.externals` holds Python functions and is not text.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import count
from json import dumps
from typing import Any

from tiledsl.errors import Loc
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import arith
from tiledsl.ir.types import KINDS
from tiledsl.recursion import deep_recursion

BLOCK_WORDS = {"control.if": "else", "control.while": "do"}
"""The word between the two blocks of an op."""

_HINT = re.compile(r"[^\W\d]\w*\Z")


@deep_recursion()
def print_kernel(kernel: Kernel, *, locs: bool = False) -> str:
    """The text of `kernel`, ending in a newline. With `locs`, every op carries its source location."""
    return _Printer(locs).kernel(kernel)


def type_attribute(cls: type[Op], name: str) -> bool:
    """True if attribute `name` is a type, and so left out where it equals the only result's type."""
    return cls.attributes[name].type in KINDS


class _Printer:
    """Holds the names given so far and the lines written."""

    def __init__(self, locs: bool) -> None:
        self.locs = locs
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()
        self.numbers = count()
        self.suffixes: defaultdict[str, count[int]] = defaultdict(lambda: count(1))
        self.lines: list[str] = []

    def name(self, value: Value) -> str:
        known = self.names.get(value)
        if known is None:
            hint = value.name
            text = hint if _HINT.match(hint) else str(next(self.numbers))
            while text in self.taken:
                text = f"{hint}_{next(self.suffixes[hint])}"
            self.taken.add(text)
            known = self.names[value] = "%" + text
        return known

    def kernel(self, kernel: Kernel) -> str:
        shown = [f"{name}({_field(getattr(kernel, name))})" for name in ("grid", "threads", "level", "index_bits")]
        for name in ("blocks_per_sm", "assembler_level", "shared_bytes", "abi", "cluster", "tensor_maps"):
            value = getattr(kernel, name)
            if value != getattr(Kernel, name):  # the default
                shown.append(f"{name}({_field(value)})")
        self.lines.append(f"kernel {kernel.name}{self.args(kernel.body) or '()'}{self.loc(kernel.loc)}")
        self.lines.append(f"  {' '.join(shown)} {{")
        self.block(kernel.body, "  ")
        self.lines.append("}\n")
        return "\n".join(self.lines)

    def args(self, block: Block) -> str:
        if not block.args:
            return ""
        return "(" + ", ".join(f"{self.name(a)}: {a.type}" for a in block.args) + ")"

    def block(self, block: Block, indent: str) -> None:
        for op in block.ops:
            if op.blocks:
                self.region_op(op, indent)
            else:
                self.lines.append(indent + self.head(op))

    def region_op(self, op: Op, indent: str) -> None:
        text = indent + self.head(op)
        word = BLOCK_WORDS.get(op.name, "and")
        for position, block in enumerate(op.blocks):
            args = self.args(block)
            self.lines.append(f"{text} {args} {{" if args else f"{text} {{")
            self.block(block, indent + "  ")
            text = f"{indent}}} {word}" if position + 1 < len(op.blocks) else f"{indent}}}"
        self.lines.append(text)

    def head(self, op: Op) -> str:
        parts = [op.name]
        if type(op) is arith.Constant:
            parts.append(_attr(op.value))
        elif op.operands:
            parts.append(", ".join([self.name(v) for v in op.operands]))
        attrs = _shown_attrs(op)
        if attrs:
            parts.append("{" + ", ".join(attrs) + "}")
        text = " ".join(parts)
        if op.results:
            results = ", ".join([self.name(r) for r in op.results])
            text = f"{results} = {text} : {', '.join([str(r.type) for r in op.results])}"
        return text + self.loc(op.loc)

    def loc(self, loc: Loc) -> str:
        return f" @ {_loc(loc)}" if self.locs else ""


def _shown_attrs(op: Op) -> list[str]:
    shown: list[str] = []
    cls = type(op)
    for name, value in op.attrs.items():
        if cls is arith.Constant and name == "value":
            continue
        if type_attribute(cls, name) and len(op.results) == 1:
            elided = value == op.results[0].type
        else:
            elided = value == op.attributes[name].default
        if not elided:
            shown.append(f"{name} = {_attr(value)}")
    return shown


def _attr(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return dumps(value)
        case tuple():
            items = [_attr(v) for v in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
        case _:
            return repr(value) if isinstance(value, (int, float)) else str(value)


def _field(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)  # pyright: ignore


def _loc(loc: Loc) -> str:
    text = f"{dumps(loc.file)}:{loc.line}:{loc.col}"
    if loc.end_col:
        text += f"-{loc.end_col}"
    if loc.function:
        text += f" in {dumps(loc.function)}"
    if loc.caller is not None:
        text += f" from {_loc(loc.caller)}"
    return text
