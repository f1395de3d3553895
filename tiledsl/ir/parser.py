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
    KINDS,
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
        raise CompileError("a second kernel in the text", others[0].loc, "read it with parse_kernels()", code="C902")
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

_PLAIN_TYPES: dict[str, Type] = {**DTYPES, "token": TokenType(), "cursor": CURSOR}
_TYPES_OF_PARTS = ("global", "shared", "fragment", "ptr", "pending", "ring")
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class _Parser(TokenReader):
    # -- the kernel ----------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        start = self.expect("kernel")
        name = self.expect_kind("word", "the kernel's name").text
        scope = _Scope()
        body = self.block_args(scope)
        loc = self.location(start)
        fields = self.header()
        self.block_ops(body, scope)
        return Kernel(name, body, loc=loc, **fields)

    def header(self) -> dict[str, Any]:
        lists: dict[str, Callable[[], Any]] = {
            "grid": lambda: self.item(parse_expr),
            "threads": self.integer,
            "abi": self.abi_arg,
            "cluster": self.integer,
            "tensor_maps": lambda: self.item(parse_tensor_map),
        }
        single: dict[str, Callable[[], Any]] = {
            "level": lambda: self.choice("a kernel's level", "tile", "thread"),
            **dict.fromkeys(("index_bits", "blocks_per_sm", "assembler_level", "shared_bytes"), self.integer),
        }
        fields: dict[str, Any] = {}
        while self.token.text != "{":
            field = self.expect_kind("word", f"{', '.join([*lists, *single])} or '{{'")
            if field.text in lists:
                fields[field.text] = self.listed("(", lists[field.text])
            elif field.text in single:
                self.expect("(")
                fields[field.text] = single[field.text]()
                self.expect(")")
            else:
                self.fail(f"a kernel has no {field.text!r}", field)
        for needed in ("grid", "threads"):
            if needed not in fields:
                self.fail(f"the kernel has no {needed}(...)")
        return fields

    def listed(self, opening: str, read: Callable[[], T]) -> tuple[T, ...]:
        """Items separated by commas, in a pair of brackets; one comma may trail."""
        self.expect(opening)
        items: list[T] = []
        while self.token.text != _CLOSING[opening]:
            items.append(read())
            if not self.accept(","):
                break
        self.expect(_CLOSING[opening])
        return tuple(items)

    def item(self, parse: Callable[[str], T]) -> T:
        """What `parse` makes of the text up to the next comma or closing bracket outside of brackets."""
        first, depth = self.token, self.depth
        while self.token.kind != "end" and (self.depth > depth or self.token.text not in (",", ")", "]", ">")):
            if self.token.kind == "number":
                self.number()
            elif self.accept("(") or self.accept("["):
                self.begin_nested()
            elif self.take().text in (")", "]"):
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
        name = self.expect_kind("word", "a name").text
        axis = self.integer() if kind == "stride" else -1
        dtype = self.type_of(DType)
        dims = self.listed("[", self.extent) if kind == "pointer" and self.token.text == "[" else ()
        return AbiArg(kind, name, dtype, axis, dims)

    # -- blocks and ops ------------------------------------------------------------------------

    def block_args(self, scope: _Scope) -> Block:
        given = self.listed("(", self.argument) if self.token.text == "(" else ()
        block = Block([type_ for _, type_ in given])
        for (token, _), arg in zip(given, block.args, strict=True):
            self.define(token, arg, scope)
        return block

    def argument(self) -> tuple[Token, Type]:
        token = self.expect_kind("value", "an argument")
        self.expect(":")
        return token, self.type()

    def define(self, token: Token, value: Value, scope: _Scope) -> None:
        """Names a value; a name that begins with a digit, such as ``%3``, is no hint for printing."""
        if token.text in scope:
            self.fail(f"{token.text} is defined twice", token)
        scope[token.text] = value
        value.name = "" if token.text[1].isdigit() else token.text[1:]

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
        only = types[0] if types is not None and len(types) == 1 else None
        for name, declared in cls.attributes.items():
            if name not in attrs and type_attribute(cls, name) and isinstance(only, declared.type):
                attrs[name] = only  # left out where it is the result's type
        loc = self.location(token)
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
        if len(names) != len(op.results):
            self.fail(f"{op.name} has {len(op.results)} results, {len(names)} are named", token)
        for name, result in zip(names, op.results, strict=True):
            self.define(name, result, scope)
        return op

    def operands(self, op: Token, scope: _Scope) -> list[Value]:
        """Values after the op's name; the first one stands on its line (the next line may start with a result)."""
        values: list[Value] = []
        while self.token.kind == "value" and (values or "\n" not in self.text[op.start : self.token.start]):
            token = self.take()
            if token.text not in scope:
                self.fail(f"{token.text} is not defined here", token)
            values.append(scope[token.text])
            if not self.accept(","):
                break
        return values

    def blocks(self, cls: type[Op], scope: _Scope) -> list[Block]:
        blocks: list[Block] = []
        while self.token.text in ("(", "{") or (blocks and self.accept(BLOCK_WORDS.get(cls.name, "and"))):
            if self.token.text not in ("(", "{"):
                self.fail_expected("a block")
            inner = _Scope(scope)
            blocks.append(self.block_args(inner))
            self.block_ops(blocks[-1], inner)
        return blocks

    # -- attributes, types, locations ----------------------------------------------------------

    def attrs(self, cls: type[Op]) -> dict[str, Any]:
        """``{name = value, ...}``; a block, which also starts with a brace, is left alone."""
        after = self.tokens[self.at + 1 : self.at + 3]
        if self.token.text != "{" or len(after) < 2 or after[0].kind != "word" or after[1].text != "=":
            return {}
        return dict(self.listed("{", lambda: self.named_attr(cls)))

    def named_attr(self, cls: type[Op]) -> tuple[str, Any]:
        name = self.expect_kind("word", "an attribute's name")
        if name.text not in cls.attributes:
            self.fail(f"{cls.name} has no attribute {name.text}", name)
        self.expect("=")
        return name.text, self.attr()

    def attr(self) -> Any:
        token = self.token
        match token.kind:
            case "number":
                return self.number()
            case "string":
                return self.string()
            case "word" if token.text in ("true", "false"):
                return self.take().text == "true"
            case "word":
                return self.type()
            case _ if token.text == "(":
                self.begin_nested()
                items = self.listed("(", self.attr)
                self.end_nested()
                return items
            case _:
                self.fail_expected("an attribute's value")

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

    def type_of(self, cls: type[T]) -> T:
        token, found = self.token, self.type()
        if not isinstance(found, cls):
            self.fail(f"{found} is not {KINDS[cls]}", token)
        return found

    def type(self) -> Type:
        token = self.expect_kind("word", "a type")
        if token.text in _PLAIN_TYPES:
            return _PLAIN_TYPES[token.text]
        if token.text not in _TYPES_OF_PARTS:
            self.fail(f"no such type: {token.text}", token)
        self.expect("<")
        self.begin_nested()
        type_ = self.inside_type(token.text)
        self.end_nested()
        self.expect(">")
        wrong = problem(type_)
        if wrong:
            self.fail(wrong, token)
        return type_

    def inside_type(self, name: str) -> Type:
        """The type that begins with this word, from what its angle brackets hold."""
        match name:
            case "ring":
                return RingType(self.integer())
            case "pending":
                return PendingType(self.type_of(FragmentType))
            case "ptr":
                space = self.choice("a memory space", "global", "shared")
                self.expect(",")
                return PtrType(space, self.type_of(DType))
            case "global":
                dtype, dims = self.elements(self.extent)
                unit, align = self.named_integer("unit"), self.named_integer("align")
                return GlobalType(dtype, dims, unit, align, self.accept(",") and bool(self.expect("whole")))
            case "shared":
                return SharedType(*self.elements(self.integer))
            case _:  # a fragment
                dtype, dims = self.elements(self.integer)
                return FragmentType(dtype, dims, self.item(parse_fragment_layout) if self.accept(",") else None)

    def elements(self, extent: Callable[[], T]) -> tuple[DType, tuple[T, ...]]:
        dtype = self.type_of(DType)
        self.expect(",")
        return dtype, self.listed("[", extent)

    def extent(self) -> int | str:
        return self.take().text if self.token.kind == "word" else self.integer()

    def named_integer(self, name: str) -> int:
        for word in (",", name, "="):
            self.expect(word)
        return self.integer()

    def location(self, start: Token) -> Loc:
        """``@ "file":line:col-end in "function" from "file":...``, or where there is no ``@`` the place of `start`."""
        return self.source_loc() if self.accept("@") else self.loc(start)

    def source_loc(self) -> Loc:
        file = self.string()
        self.expect(":")
        line = self.integer()
        self.expect(":")
        col = self.integer()
        end = -self.integer() if self.token.text.startswith("-") else 0  # "5-9" reads as 5, -9
        function = self.string() if self.accept("in") else ""
        self.begin_nested()
        caller = self.source_loc() if self.accept("from") else None
        self.end_nested()
        known = file != UNKNOWN_LOC.file
        if line < known or col < 1 or end < 0:
            self.fail("lines and columns count from 1", self.tokens[self.at - 1])
        return Loc(file, line, col, end, function, caller)
