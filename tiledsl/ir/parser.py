"""Reads the textual form that `ir.printer` writes. Grammar: see there; ``;`` starts a comment.

Errors are `CompileError`s that point into the text. Result types may be left out where the op class
infers them. The parser checks syntax, names and attributes; `ir.verifier` checks the rest.
"""

from __future__ import annotations

from json import JSONDecodeError, loads
from typing import Any, Callable, TypeVar

from tiledsl.boundary import stage
from tiledsl.errors import UNKNOWN_LOC, CompileError, Loc, VerifyError
from tiledsl.ir import ops as _ops
from tiledsl.ir.abi import AbiArg
from tiledsl.ir.core import OPS, Block, Kernel, Op, Value
from tiledsl.ir.expr import parse_expr
from tiledsl.ir.lexer import Token, TokenReader
from tiledsl.ir.printer import BLOCK_WORDS, type_attribute
from tiledsl.ir.tensor_maps import parse_tensor_map
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
from tiledsl.layout.fragments import parse_fragment_layout
from tiledsl.recursion import deep_recursion

assert _ops  # importing the package registers the ops

T = TypeVar("T")


def parse_kernel(text: str, file: str = "<ir>") -> Kernel:
    """The kernel that `text` describes; `file` is what errors name.

    Raises CompileError, with line and column in `text`, for anything that is not the textual form.
    What has no printed location gets its line of `text` as location.
    """
    kernel, *others = parse_kernels(text, file)
    if others:
        raise CompileError("a second kernel in the text", others[0].loc, "read it with parse_kernels()")
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


_Scope = dict[str, Value]
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
        readers: dict[str, Callable[[], Any]] = {
            "grid": lambda: self.listed(lambda: self.item(parse_expr)),
            "threads": lambda: self.listed(self.integer),
            "level": lambda: self.choice("a kernel's level", "tile", "thread"),
            **dict.fromkeys(("index_bits", "blocks_per_sm", "assembler_level", "shared_bytes"), self.integer),
            "abi": lambda: self.listed(self.abi_arg),
            "cluster": lambda: self.listed(self.integer),
            "tensor_maps": lambda: self.listed(lambda: self.item(parse_tensor_map)),
        }
        fields: dict[str, Any] = {}
        while self.token.text != "{":
            token = self.expect_kind("word", f"{', '.join(readers)} or '{{'")
            if token.text not in readers:
                self.fail(f"a kernel has no {token.text!r}", token)
            self.expect("(")
            fields[token.text] = readers[token.text]()
            self.expect(")")
        for needed in ("grid", "threads"):
            if needed not in fields:
                self.fail(f"the kernel has no {needed}(...)")
        return fields

    def listed(self, read: Callable[[], T]) -> tuple[T, ...]:
        """Items separated by commas, up to a closing bracket; one comma may trail."""
        items: list[T] = []
        while self.token.text not in (")", "]", "}"):
            items.append(read())
            if not self.accept(","):
                break
        return tuple(items)

    def item(self, parse: Callable[[str], T]) -> T:
        """What `parse` makes of the text up to the next comma or closing bracket outside of brackets."""
        first, depth = self.token, self.depth
        while self.token.kind != "end" and (self.depth > depth or self.token.text not in (",", ")", "]", ">")):
            token = self.take()
            if token.kind == "number":
                self.number(token)
            elif token.text in ("(", "["):
                self.begin_nested()
            elif token.text in (")", "]"):
                self.end_nested()
        try:
            return parse(self.text[first.start : self.token.start].strip())
        except ValueError as error:
            self.fail(str(error), first)

    def choice(self, what: str, *options: str) -> Any:
        token = self.expect_kind("word", what)
        if token.text not in options:
            self.fail(f"{what} is {' or '.join(options)}, not {token.text}", token)
        return token.text

    def abi_arg(self) -> AbiArg:
        kind = self.choice("the kind of a parameter", "pointer", "extent", "stride", "scalar")
        name = self.word("a name")
        axis = self.integer() if kind == "stride" else -1
        dtype = self.dtype()
        dims = self.dims() if kind == "pointer" and self.token.text == "[" else ()
        return AbiArg(kind, name, dtype, axis, dims)

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
        for name, value in attrs.items() if types is None else ():  # of what a type may be inferred from
            wrong = cls.attributes[name].problem(value)
            if wrong:
                self.fail(f"{cls.name}: {wrong}", token)
        try:
            op = cls(*operands, blocks=blocks, types=types, loc=loc, **attrs)
        except VerifyError as error:
            self.fail(error.message, token)
        except Exception as error:  # it infers from what it takes for granted, and the verifier would check
            self.fail(f"{cls.name} cannot infer its result from these operands ({error})", token)
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
        if token.text not in ("global", "shared", "fragment", "ptr", "pending", "ring", "token", "cursor"):
            return self.dtype()
        self.take()
        if token.text in ("token", "cursor"):
            return TokenType() if token.text == "token" else CURSOR
        self.expect("<")
        self.begin_nested()
        type_ = self.inside_type(token)
        self.end_nested()
        self.expect(">")
        wrong = problem(type_)
        if wrong:
            self.fail(wrong, token)
        return type_

    def inside_type(self, token: Token) -> Type:
        """The type that begins with this word, from what its angle brackets hold."""
        match token.text:
            case "ring":
                return RingType(self.integer())
            case "pending":
                first, fragment = self.token, self.type()
                if not isinstance(fragment, FragmentType):
                    self.fail("a pending accumulator will be a fragment", first)
                return PendingType(fragment)
            case "ptr":
                space = self.choice("a memory space", "global", "shared")
                self.expect(",")
                return PtrType(space, self.dtype())
            case _:
                return self.tile(token)

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
        return FragmentType(dtype, sizes, self.item(parse_fragment_layout) if self.accept(",") else None)

    def dims(self) -> tuple[int | str, ...]:
        self.expect("[")
        dims = self.listed(lambda: self.take().text if self.token.kind == "word" else self.integer())
        self.expect("]")
        return dims

    def named_integer(self, name: str) -> int:
        self.expect(",")
        self.expect(name)
        self.expect("=")
        return self.integer()

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
