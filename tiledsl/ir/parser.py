"""Reads the textual form that `ir.printer` writes. Grammar: see there; ``;`` starts a comment.

Errors are `CompileError`s that point into the text. Result types may be left out where the op class
infers them. The parser checks syntax, names and attributes; `ir.verifier` checks the rest.
"""

from __future__ import annotations

from json import JSONDecodeError, loads
from typing import Any, cast

from tiledsl.boundary import stage
from tiledsl.errors import UNKNOWN_LOC, Loc, VerifyError
from tiledsl.ir import ops as _ops
from tiledsl.ir.abi import AbiArg
from tiledsl.ir.core import OPS, Block, Kernel, Op, Value
from tiledsl.ir.expr import FUNCTIONS, BinExpr, ConstExpr, Expr, NameExpr
from tiledsl.ir.lexer import Token, TokenReader
from tiledsl.ir.printer import BLOCK_WORDS, type_attribute
from tiledsl.ir.tensor_maps import TensorMap
from tiledsl.ir.types import (
    CURSOR,
    DTYPES,
    DType,
    FragmentType,
    GlobalType,
    PendingType,
    PtrType,
    RingType,
    SharedType,
    TokenType,
    Type,
    problem,
)
from tiledsl.layout.fragments import FragmentLayout, parse_fragment_layout
from tiledsl.recursion import deep_recursion

__all__ = ["parse_kernel", "parse_kernels"]

assert _ops  # importing the package registers the ops

KERNEL_FIELDS = (
    "grid, threads, level, index_bits, blocks_per_sm, assembler_level, shared_bytes, abi, cluster, tensor_maps"
)


@deep_recursion()
def parse_kernel(text: str, file: str = "<ir>") -> Kernel:
    """The kernel that `text` describes; `file` is what errors name.

    Raises CompileError, with line and column in `text`, for anything that is not the textual form.
    What has no printed location gets its line of `text` as location.
    """
    with stage("the parser", file, Loc(file, 1)):
        parser = _Parser(text, file)
        kernel = parser.kernel()
        if parser.token.kind != "end":
            parser.fail(f"unexpected {parser.token.text!r} after the kernel")
        return kernel


@deep_recursion()
def parse_kernels(text: str, file: str = "<ir>") -> list[Kernel]:
    """All kernels of `text`, one or more, as `parse_kernel` reads each."""
    with stage("the parser", file, Loc(file, 1)):
        parser = _Parser(text, file)
        kernels = [parser.kernel()]
        while parser.token.kind != "end":
            kernels.append(parser.kernel())
        return kernels


class _Scope(dict[str, Value]):
    """Visible values by name. A block sees the values of the blocks around it."""


class _Parser(TokenReader):
    # -- the kernel ----------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        start = self.expect("kernel").start
        name = self.word("the kernel's name")
        scope = _Scope()
        body = self.block_args(scope)
        loc = self.location() or self.loc_at(start, len("kernel"))
        fields = self.header()
        self.block_ops(body, scope)
        return Kernel(name, body, loc=loc, **fields)

    def header(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        while self.token.text != "{":
            token = self.expect_kind("word", f"{KERNEL_FIELDS} or '{{'")
            self.expect("(")
            match token.text:
                case "grid":
                    fields["grid"] = self.listed(self.expr)
                case "threads":
                    fields["threads"] = self.listed(self.integer)
                case "cluster":
                    fields["cluster"] = self.cluster()
                case "tensor_maps":
                    fields["tensor_maps"] = self.listed(self.tensor_map)
                case "abi":
                    fields["abi"] = self.listed(self.abi_arg)
                case "index_bits" | "shared_bytes" | "blocks_per_sm" | "assembler_level":
                    fields[token.text] = self.integer()
                case "level":
                    fields["level"] = self.word("tile or thread")
                    if fields["level"] not in ("tile", "thread"):
                        self.fail("a kernel's level is tile or thread", self.tokens[self.at - 1])
                case _:
                    self.fail(f"a kernel has no {token.text!r}", token)
            self.expect(")")
        for needed in ("grid", "threads"):
            if needed not in fields:
                self.fail(f"the kernel has no {needed}(...)")
        return fields

    def listed(self, item: Any) -> tuple[Any, ...]:
        """Items separated by commas, up to a closing bracket; one comma may trail."""
        items: list[Any] = []
        while self.token.text not in (")", "]", "}"):
            items.append(item())
            if not self.accept(","):
                break
        return tuple(items)

    def expr(self) -> Expr:
        token = self.take()
        if token.kind == "number":
            value = self.number(token)
            if isinstance(value, int):
                return ConstExpr(value)
        if token.kind == "word":
            if not self.accept("("):
                return NameExpr(token.text)
            if token.text not in FUNCTIONS:
                self.fail(f"no such function of extents: {token.text}", token)
            self.begin_nested()
            a = self.expr()
            self.expect(",")
            b = self.expr()
            self.expect(")")
            self.end_nested()
            return BinExpr(token.text, a, b)
        self.fail(f"expected an extent's name, an integer or a function, found {token.text!r}", token)

    def abi_arg(self) -> AbiArg:
        kind = self.word("pointer, extent, stride or scalar")
        if kind not in ("pointer", "extent", "stride", "scalar"):
            self.fail(f"no such kind of parameter: {kind}", self.tokens[self.at - 1])
        name = self.word("a name")
        axis = self.integer() if kind == "stride" else -1
        dtype = self.dtype()
        dims = self.dims() if kind == "pointer" and self.token.text == "[" else ()
        return AbiArg(cast(Any, kind), name, dtype, axis, dims)

    def cluster(self) -> tuple[int, ...]:
        extents = self.listed(self.integer)
        if len(extents) != 3:
            self.fail(f"a cluster has 3 extents, not {len(extents)}")
        return extents

    def tensor_map(self) -> TensorMap:
        """``map(A, axes=[1, 0], box=[64, 128], swizzle=128)``."""
        self.expect("map")
        self.expect("(")
        tensor = self.word("a tensor's name")
        axes, box = self.named_integers("axes"), self.named_integers("box")
        swizzle = self.named_integer("swizzle")
        self.expect(")")
        return TensorMap(tensor, axes, box, swizzle)

    # -- blocks and ops ------------------------------------------------------------------------

    def block_args(self, scope: _Scope) -> Block:
        names: list[Token] = []
        types: list[Type] = []
        if self.accept("("):
            while not self.accept(")"):
                if names:
                    self.expect(",")
                names.append(self.expect_kind("value", "an argument"))
                self.expect(":")
                types.append(self.type())
        block = Block(types, [_hint(t.text) for t in names])
        for token, arg in zip(names, block.args, strict=True):
            self.define(token, arg, scope)
        return block

    def define(self, token: Token, value: Value, scope: _Scope) -> None:
        if token.text in scope:
            self.fail(f"{token.text} is defined twice", token)
        scope[token.text] = value

    def block_ops(self, block: Block, scope: _Scope) -> None:
        self.begin_nested()
        self.expect("{")
        while not self.accept("}"):
            if self.token.kind == "end":
                self.fail("the text ends inside a block; '}' is missing")
            block.append(self.op(scope))
        self.end_nested()

    def op(self, scope: _Scope) -> Op:
        names: list[Token] = []
        if self.token.kind == "value":
            names.append(self.take())
            while self.accept(","):
                names.append(self.expect_kind("value", "a result's name"))
            self.expect("=")
        token = self.expect_kind("word", "an op")
        cls = OPS.get(token.text)
        if cls is None:
            self.fail(f"no such op: {token.text}", token)
        attrs: dict[str, Any] = {}
        if token.text == "arith.constant" and self.token.kind in ("number", "word"):
            attrs["value"] = self.attr()
        operands = self.operands(token, scope)
        attrs.update(self.attrs(cls))
        types = self.types() if self.accept(":") else None
        if types is not None and len(types) == 1:
            self.attrs_from_type(cls, attrs, types[0])
        loc = self.location() or self.loc_at(token.start, len(token.text))
        blocks = self.blocks(cls, scope)
        op = self.construct(cls, token, operands, blocks, types, loc, attrs)
        self.bind(names, token, op, scope)
        return op

    def operands(self, op: Token, scope: _Scope) -> list[Value]:
        """Values after the op's name; the first one stands on its line (the next line may start with a result)."""
        values: list[Value] = []
        while self.token.kind == "value" and (values or "\n" not in self.text[op.start : self.token.start]):
            token = self.take()
            value = scope.get(token.text)
            if value is None:
                self.fail(f"{token.text} is not defined here", token)
            values.append(value)
            if not self.accept(","):
                break
        return values

    def blocks(self, cls: type[Op], scope: _Scope) -> list[Block]:
        blocks: list[Block] = []
        while self.token.text in ("(", "{") or (blocks and self.accept(BLOCK_WORDS.get(cls.name, "and"))):
            if self.token.text not in ("(", "{"):
                self.fail(f"expected a block, found {self.token.text!r}")
            inner = _Scope(scope)
            block = self.block_args(inner)
            self.block_ops(block, inner)
            blocks.append(block)
        return blocks

    def construct(
        self,
        cls: type[Op],
        token: Token,
        operands: list[Value],
        blocks: list[Block],
        types: list[Type] | None,
        loc: Loc,
        attrs: dict[str, Any],
    ) -> Op:
        """Build the op. What its class makes of bad operands while it infers types is an error here."""
        for name, value in attrs.items() if types is None else ():  # of what a type may be inferred from
            wrong = cls.attributes[name].problem(value)
            if wrong:
                self.fail(f"{cls.name}: {wrong}", token)
        try:
            return cls(*operands, blocks=blocks, types=types, loc=loc, **attrs)
        except VerifyError as error:
            self.fail(error.message, token)
        except Exception as error:  # it infers from what it takes for granted, and the verifier would check
            self.fail(f"{cls.name} cannot infer its result from these operands ({error})", token)

    def bind(self, names: list[Token], token: Token, op: Op, scope: _Scope) -> None:
        if len(names) != len(op.results):
            self.fail(f"{op.name} has {len(op.results)} results, {len(names)} are named", token)
        for name, result in zip(names, op.results, strict=True):
            result.name = _hint(name.text)
            self.define(name, result, scope)

    # -- attributes, types, locations ----------------------------------------------------------

    def attrs(self, cls: type[Op]) -> dict[str, Any]:
        """``{name = value, ...}``; a block, which also starts with a brace, is left alone."""
        after = self.tokens[self.at + 1 : self.at + 3]
        if self.token.text != "{" or len(after) < 2 or after[0].kind != "word" or after[1].text != "=":
            return {}
        self.expect("{")
        attrs: dict[str, Any] = {}
        while not self.accept("}"):
            if attrs:
                self.expect(",")
            name = self.expect_kind("word", "an attribute's name")
            if name.text not in cls.attributes:
                self.fail(f"{cls.name} has no attribute {name.text}", name)
            self.expect("=")
            attrs[name.text] = self.attr()
        return attrs

    def attrs_from_type(self, cls: type[Op], attrs: dict[str, Any], result: Type) -> None:
        """A type attribute that was left out is the result's type."""
        for name, declared in cls.attributes.items():
            if name not in attrs and type_attribute(cls, name) and isinstance(result, declared.type):
                attrs[name] = result

    def attr(self) -> Any:
        token = self.token
        match token.kind:
            case "number":
                return self.number(self.take())
            case "string":
                return self.string()
            case "word" if token.text in ("true", "false"):
                return self.take().text == "true"
            case "word" if token.text in ("inf", "nan"):
                return float(self.take().text)
            case "word":
                return self.type()
            case _ if self.accept("("):
                self.begin_nested()
                items = self.listed(self.attr)
                self.expect(")")
                self.end_nested()
                return items
            case _:
                self.fail(f"expected an attribute's value, found {token.text or 'the end'!r}")

    def string(self) -> str:
        token = self.expect_kind("string", "a string")
        try:
            return loads(token.text)
        except JSONDecodeError as error:
            self.fail(f"not a string: {error.msg}", token)

    def types(self) -> list[Type]:
        types = [self.type()]
        while self.accept(","):
            types.append(self.type())
        return types

    def dtype(self) -> DType:
        token = self.expect_kind("word", "a dtype")
        if token.text not in DTYPES:
            self.fail(f"no such dtype: {token.text}", token)
        return DTYPES[token.text]

    def type(self) -> Type:
        token = self.token
        if token.text in ("token", "cursor"):
            self.take()
            return TokenType() if token.text == "token" else CURSOR
        if token.text == "pending":
            return self.pending()
        if token.text not in ("global", "shared", "fragment", "ptr", "ring"):
            return self.dtype()
        self.take()
        self.expect("<")
        type_: Type = RingType(self.integer()) if token.text == "ring" else self.pointer_or_tile(token)
        self.expect(">")
        return self.possible(type_, token)

    def pointer_or_tile(self, token: Token) -> Type:
        return self.pointer() if token.text == "ptr" else self.tile(token)

    def possible(self, type_: Type, token: Token) -> Type:
        wrong = problem(type_)
        if wrong:
            self.fail(wrong, token)
        return type_

    def pending(self) -> Type:
        self.expect("pending")
        self.expect("<")
        self.begin_nested()
        token, type_ = self.token, self.type()
        if not isinstance(type_, FragmentType):
            self.fail("a pending accumulator will be a fragment", token)
        self.end_nested()
        self.expect(">")
        return self.possible(PendingType(type_), token)

    def pointer(self) -> Type:
        space = self.expect_kind("word", "a memory space")
        if space.text not in ("global", "shared"):
            self.fail(f"no such memory space: {space.text}", space)
        self.expect(",")
        return PtrType(cast(Any, space.text), self.dtype())

    def tile(self, token: Token) -> Type:
        dtype = self.dtype()
        self.expect(",")
        dims = self.dims()
        if token.text == "global":
            unit, align = self.named_integer("unit"), self.named_integer("align")
            return GlobalType(dtype, dims, unit, align, self.accept(",") and bool(self.expect("whole")))
        sizes = tuple(d for d in dims if isinstance(d, int))
        if len(sizes) != len(dims):
            self.fail(f"extents of a {token.text} type are integers", token)
        if token.text == "shared":
            return SharedType(dtype, sizes)
        return FragmentType(dtype, sizes, self.fragment_layout() if self.accept(",") else None)

    def fragment_layout(self) -> FragmentLayout:
        token = self.expect_kind("word", "a layout of a fragment")
        self.expect("(")
        warps = self.listed(self.integer)
        self.expect(")")
        try:
            return parse_fragment_layout(f"{token.text}({', '.join(map(str, warps))})")
        except ValueError as error:
            self.fail(str(error), token)

    def dims(self) -> tuple[int | str, ...]:
        self.expect("[")
        dims = self.listed(self.extent)
        self.expect("]")
        return dims

    def extent(self) -> int | str:
        return self.take().text if self.token.kind == "word" else self.integer()

    def named_integer(self, name: str) -> int:
        self.expect(",")
        self.expect(name)
        self.expect("=")
        return self.integer()

    def named_integers(self, name: str) -> tuple[int, ...]:
        self.expect(",")
        self.expect(name)
        self.expect("=")
        self.expect("[")
        numbers = self.listed(self.integer)
        self.expect("]")
        return numbers

    def location(self) -> Loc | None:
        """``@ "file":line:col-end in "function" from "file":...``, or None where there is no ``@``."""
        return self.source_loc() if self.accept("@") else None

    def source_loc(self) -> Loc:
        file = self.string()
        self.expect(":")
        line = self.integer()
        self.expect(":")
        col = self.integer()
        end = 0
        if self.token.kind == "number" and self.token.text.startswith("-"):  # "5-9" reads as 5, -9
            end = -self.integer()
        function = self.string() if self.accept("in") else ""
        self.begin_nested()
        caller = self.source_loc() if self.accept("from") else None
        self.end_nested()
        known = file != UNKNOWN_LOC.file
        if line < known or col < 1 or end < 0:
            self.fail("lines and columns count from 1", self.tokens[self.at - 1])
        return Loc(file, line, col, end, function, caller)


def _hint(text: str) -> str:
    """``%acc`` has the hint "acc"; ``%3`` has none."""
    return "" if text[1].isdigit() else text[1:]
