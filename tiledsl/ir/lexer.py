"""Tokens of the textual IR, and a reader over them that reports errors at their place."""

from __future__ import annotations

import linecache
import re
from bisect import bisect_right
from typing import NamedTuple, NoReturn

from tiledsl.errors import CompileError, Loc

MOST_NESTING = 1100
"""Levels of blocks and brackets inside each other: passes and printers are recursive, and Python's stack is limited."""
MOST_BITS = 64
"""Of an integer."""

_TOKEN = re.compile(
    r"""(?P<space>(?:[ \t\r\n]|;[^\n]*)+)
      | (?P<value>%\w+)
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<number>-?(?:0x[0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?(?:p[+-]?\d+)?
                      |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+|inf\b|nan\b))
      | (?P<word>[^\W\d]\w*(?:\.[^\W\d]\w*)*)
      | (?P<punct>[(){}\[\]<>=,:@-])
      | (?P<end>\Z)
      | (?P<other>.)""",
    re.VERBOSE,
)


class Token(NamedTuple):
    kind: str
    text: str
    start: int


class TokenReader:
    """A position in the tokens of `text`; `file` is what errors name."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.line_starts = [0, *(m.end() for m in re.finditer("\n", text))]
        found = _TOKEN.finditer(text)
        self.tokens = [Token(str(m.lastgroup), m[0], m.start()) for m in found if m.lastgroup != "space"]
        self.at = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def loc(self, token: Token) -> Loc:
        line = bisect_right(self.line_starts, token.start)
        col = token.start - self.line_starts[line - 1] + 1
        return Loc(self.file, line, col, col + max(1, len(token.text)))

    def fail(self, message: str, token: Token | None = None) -> NoReturn:
        if self.file.startswith("<"):  # no file to show the line from
            linecache.cache[self.file] = len(self.text), None, self.text.splitlines(keepends=True), self.file
        raise CompileError(message, self.loc(token or self.token), "write it as print_kernel() does", code="C902")

    def fail_expected(self, what: str) -> NoReturn:
        self.fail(f"expected {what}, found {self.token.text or 'the end'!r}")

    def take(self) -> Token:
        self.at += 1
        return self.tokens[self.at - 1]

    def accept(self, text: str) -> bool:
        found = self.token.text == text and self.token.kind in ("punct", "word")
        self.at += found
        return found

    def expect(self, text: str) -> Token:
        if not self.accept(text):
            self.fail_expected(repr(text))
        return self.tokens[self.at - 1]

    def expect_kind(self, kind: str, what: str) -> Token:
        if self.token.kind != kind:
            self.fail_expected(what)
        return self.take()

    def integer(self) -> int:
        token = self.token
        value = self.number("an integer")
        if not isinstance(value, int):
            self.fail(f"expected an integer, found {token.text}", token)
        return value

    def number(self, what: str = "a number") -> int | float:
        """An int, or a float if it has a point, an exponent or a name."""
        token = self.expect_kind("number", what)
        try:
            value = _number(token.text)
        except (ValueError, OverflowError):  # too many digits, or no float
            self.fail("not a number", token)
        if isinstance(value, int) and not -(1 << (MOST_BITS - 1)) <= value < 1 << MOST_BITS:
            self.fail(f"an integer of more than {MOST_BITS} bits", token)
        return value

    def begin_nested(self) -> None:
        """One level deeper; `end_nested` where it ends."""
        self.depth += 1
        if self.depth > MOST_NESTING:
            self.fail(f"more than {MOST_NESTING} levels inside each other")

    def end_nested(self) -> None:
        self.depth -= 1


def _number(text: str) -> int | float:
    if "0x" in text:
        return float.fromhex(text) if "." in text or "p" in text else int(text, 16)
    return int(text) if text.lstrip("-").isdigit() else float(text)
