"""What every lowering rule works with: the writer of LLVM IR, the values so far, and the table of rules."""

from __future__ import annotations

from functools import cache
from typing import Any, Callable, Sequence

from tiledsl.arch import Target, require_feature
from tiledsl.backends.ptx.debuginfo import DebugInfo
from tiledsl.backends.ptx.llvm import ir
from tiledsl.backends.ptx.types import bits_of, overload, register_class, result_type
from tiledsl.backends.ptx.writer import Writer
from tiledsl.errors import UNKNOWN_LOC, Loc
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import debug
from tiledsl.ir.types import DType
from tiledsl.passes.analysis.called import called

Rule = Callable[["Lowering", Any], Sequence[Any] | None]

RULES: dict[type[Op], Rule] = {}
"""One rule an op class: it emits code and returns the LLVM values of the op's results in order, None for no results."""


def lowers(*classes: type[Op]) -> Callable[[Rule], Rule]:
    """Registers a function as the rule of these op classes."""

    def register(rule: Rule) -> Rule:
        for cls in classes:
            assert cls not in RULES, f"{cls.name} has two lowering rules"
            RULES[cls] = rule
        return rule

    return register


@cache
def _escaped(text: str) -> str:
    """Inline PTX as LLVM quotes it. There are few texts, and many instructions of each."""
    plain = bytes(range(0x20, 0x7F)).translate(None, b'"\\')
    return "".join(chr(c) if c in plain else f"\\{c:02X}" for c in text.encode())


class Lowering:
    """One kernel while it becomes LLVM IR. Rules emit through `b`.

    `shared`: the dynamic array that is all of the block's shared memory. `tensor_maps`: pointers to them, by number.
    `assertions`, `prints`: ops so far, whose number is their place. `stamp`: the variable that
    says where the next stamp goes, in a build that has any. `rare`: whether what is lowered now is rarely run.
    """

    def __init__(self, kernel: Kernel, target: Target, module: Any, function: Any, shared: Any) -> None:
        self.kernel, self.target = kernel, target
        self.module, self.function, self.shared = module, function, shared
        self.b = Writer(function)
        self.values: dict[Value, Any] = {}
        self.tensor_maps: list[Any] = []
        self.assertions: list[debug.Assert] = []
        self.prints: list[debug.Print] = []
        self.stamp: Any = None
        self.rare = False
        self.debug = DebugInfo(kernel, module, function)
        self._at: Loc = UNKNOWN_LOC

    def value(self, value: Value) -> Any:
        """The LLVM value of an IR value that has been lowered."""
        return self.values[value]

    def operands(self, values: Sequence[Value]) -> list[Any]:
        return [self.values[v] for v in values]

    def lower_block(self, block: Block) -> Op:
        """Emit all ops of `block` but its terminator, which is returned for the caller to act on."""
        for op in block.ops[:-1]:
            self.at(op)
            rule = RULES.get(type(op))
            assert rule is not None, f"{op.name} has no lowering rule"
            for feature in op.features:
                require_feature(self.target.name, feature, called(op), op.loc)
            self.values.update(zip(op.results, rule(self, op) or (), strict=True))
        self.at(block.terminator)
        return block.terminator

    def at(self, op: Op) -> None:
        """Give the location of `op` to the instructions that follow."""
        if op.loc is not self._at:  # most have that of their neighbour
            self._at = op.loc
            self.b.suffix = self.debug.suffix(op.loc)

    def intrinsic(self, name: str, result: Any, *args: Any, types: Sequence[Any] = ()) -> Any:
        """Call an LLVM intrinsic; `types` are the types that its name is overloaded on."""
        full = ".".join([name, *(overload(t) for t in types)])
        callee = self.module.globals.get(full)
        if callee is None:
            callee = ir.Function(self.module, ir.FunctionType(result, [a.type for a in args]), full)
        return self.b.call(callee.get_reference(), result, args)

    def asm(
        self,
        text: str,
        *args: Any,
        results: Sequence[Any] = (),
        pure: bool = False,
        convergent: bool = False,
        tied: bool = False,
        early: bool = False,
    ) -> list[Any]:
        """Inline PTX. Its operands are the results, which have the LLVM types `results`, and then `args`.

        It is kept, stays in order and may access memory; if pure, equal ones may be merged and unused ones dropped.
        convergent: the lanes of a warp run it together. tied: the last arguments are what the results' registers hold
        before. early: results may be written before all arguments are read.
        """
        free = len(args) - len(results) if tied else len(args)
        constraints = [f"={'&' if early else ''}{register_class(t)}" for t in results]
        constraints += [register_class(a.type) for a in args[:free]] + [str(i) for i in range(len(args) - free)]
        if not pure:
            constraints.append("~{memory}")
        callee = f'asm {"" if pure else "sideeffect "}"{_escaped(text)}", "{",".join(constraints)}"'
        type_ = result_type(results)
        value = self.b.call(callee, type_, args, " convergent" if convergent else "")
        return self.parts(value, len(results))

    def parts(self, value: Any, count: int) -> list[Any]:
        """The registers of what an instruction with `count` results gives: one value, or a structure of several."""
        if count > 1:
            return [self.b.extract_value(value, i) for i in range(count)]
        return [value] if count else []

    def bits(self, value: Any) -> Any:
        """A scalar as an integer of as many bits."""
        return self.b.bitcast(value, ir.IntType(bits_of(value.type)))

    def widened(self, value: Any, dtype: DType, to: Any) -> Any:
        """The bits of a scalar in an integer type that has as many or more; an integer keeps its value."""
        extend = self.b.sext if dtype.is_integer and dtype.is_signed else self.b.zext
        return extend(self.bits(value), to)

    def from_bits(self, bits: Any, type_: Any) -> Any:
        """The scalar of an LLVM type whose bits are the lowest of an integer."""
        if bits.type == type_:
            return bits
        return self.b.bitcast(self.b.trunc(bits, ir.IntType(bits_of(type_))), type_)
