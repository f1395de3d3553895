"""Mutants of a text of IR: words, numbers, types, attributes, operands and lines are changed in a few places."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

from tests.fuzz.corpus import words
from tiledsl.ir.core import OPS
from tiledsl.ir.types import DTYPES

__all__ = ["mutate_text"]

TOKEN = re.compile(r"\s+|;[^\n]*|%\w+|\"[^\"\n]*\"|-?\d+(?:\.\d*)?(?:e[+-]?\d+)?|[\w.]+|.")
NUMBERS, TYPES, FIELDS, ATTRIBUTES = words("numbers"), words("types"), words("fields"), words("attributes")
SYMBOLS = (*'{}()<>[],:=@%;"é\x00', '"\\', '@ "f":0:0', '@ "f":-1:2-1', "from")
SMALL = (0, 1, 2, 3, 4, 8, 16, 32, 64)
TYPE = re.compile(
    r"\b(?:global|shared|fragment|ptr|pending)<[^<>]*(?:<[^<>]*>[^<>]*)?>|\b(?:" + "|".join(DTYPES) + r")\b"
)
ATTRIBUTE = re.compile(r"(\w+ = )((?:\([^()]*\))|\"[^\"]*\"|[^,{}\n]+)")


def mutate_text(text: str, donor: str, random: Random) -> str:
    """`text` with a few changes; lines of `donor` may be put into it."""
    changes: list[tuple[float, Callable[[str], str]]] = [
        (2, lambda t: _tokens(t, random)),
        (3, lambda t: _replaced(t, r"-?\b\d+\b(?!\s*=)", random.choice(NUMBERS), random)),
        (2, lambda t: _replaced(t, r"%\w+", "%" + random.choice(re.findall(r"%(\w+)", t) or ["x"]), random)),
        (4, lambda t: _operand(t, random)),
        (3, lambda t: _replaced(t, r"(?<![.\w%])\d+\b(?!\s*=)", str(random.choice(SMALL)), random)),
        (3, lambda t: _replaced(t, TYPE, random.choice(TYPES + TYPE.findall(t)), random)),
        (3, lambda t: _attribute(t, random)),
        (2, lambda t: _replaced(t, r"\b[a-z_0-9]+\.[a-z_0-9]+\b", random.choice(list(OPS)), random)),
        (1, lambda t: _replaced(t, r"\b(?:grid|threads|level|index_bits)\([^{\n]*?\)(?= |$)", _field(random), random)),
        (0.7, lambda t: _replaced(t, r" \{(?=\n)", " " + _field(random) + " {", random)),
        (3, lambda t: _lines(t, donor, random)),
        (0.3, lambda t: _deep(t, random)),
    ]
    weights = [weight for weight, _ in changes]
    for _ in range(random.choice((1, 1, 1, 1, 2, 2, 3, 5))):
        text = random.choices([change for _, change in changes], weights)[0](text)
    return text


def _field(random: Random) -> str:
    return random.choice(FIELDS)


def _replaced(text: str, pattern: str | re.Pattern[str], new: str, random: Random) -> str:
    found = list(re.finditer(pattern, text))
    if not found:
        return text
    match = random.choice(found)
    return text[: match.start()] + new + text[match.end() :]


def _operand(text: str, random: Random) -> str:
    """One operand becomes another value that is defined above with the same type."""
    types = {name: type_.strip() for name, type_ in re.findall(r"(%\w+) = [^\n]*: ([^\n:]+)$", text, re.MULTILINE)}
    uses = [m for m in re.finditer(r"%\w+(?! =)", text) if m[0] in types]
    if not uses:
        return text
    use = random.choice(uses)
    alike = [name for name in types if types[name] == types[use[0]] and f"{name} =" in text[: use.start()]]
    return text[: use.start()] + random.choice(alike or [use[0]]) + text[use.end() :]


def _attribute(text: str, random: Random) -> str:
    """Another value, none, or one more."""
    found = list(ATTRIBUTE.finditer(text))
    if not found:
        return text
    match = random.choice(found)
    values = [*ATTRIBUTES, *NUMBERS, random.choice(found)[2], random.choice(TYPES)]
    other = match[1] + random.choice(values)
    new = random.choice((other, other, other, "", f"{match[0]}, {random.choice(found)[0]}"))
    return text[: match.start()] + new + text[match.end() :]


def _tokens(text: str, random: Random) -> str:
    parts = TOKEN.findall(text)
    at = random.randrange(len(parts))
    match random.randrange(4):
        case 0:
            parts.pop(at)
        case 1:
            parts.insert(at, parts[at])
        case 2:
            parts[at] = random.choice(parts)
        case _:
            parts.insert(at, random.choice(SYMBOLS))
    return "".join(parts)


def _lines(text: str, donor: str, random: Random) -> str:
    """A line left out, repeated, moved, or one of the donor's with operands of this text."""
    lines = text.splitlines(keepends=True)
    at, to = random.randrange(len(lines)), random.randrange(len(lines))
    match random.randrange(5):
        case 0:
            lines.pop(at)
        case 1:
            lines.insert(to, lines[at])
        case 2:
            lines.insert(to, lines.pop(at))
        case 3:
            lines[at], lines[to] = lines[to], lines[at]
        case _:
            line = random.choice(donor.splitlines(keepends=True))
            known = re.findall(r"%\w+", "".join(lines[:at])) or ["%x"]
            result, equals, rest = line.rpartition(" = ") if re.match(r"\s*%[^{]* = ", line) else ("", "", line)
            result = re.sub(r"%(\w+)", r"%new_\1", result)
            lines.insert(at, result + equals + re.sub(r"%\w+", lambda _: random.choice(known), rest))
    return "".join(lines)


def _deep(text: str, random: Random) -> str:
    """Something that is repeated inside itself, very often."""
    count = random.choice((50, 500, 5000))
    lines = text.splitlines(keepends=True)
    match random.randrange(5):
        case 0:
            known = random.choice(re.findall(r"%\w+", text) or ["%x"])
            opened, closed = f"control.if {known} {{\n" * count, "control.yield } else { control.yield }\n" * count
            lines.insert(random.randrange(len(lines)), opened + closed)
            return "".join(lines)
        case 1:
            return text.replace("grid(", "grid(" + "add(1, " * count + "1" + ")" * count + ", ", 1)
        case 2:
            return _replaced(text, ATTRIBUTE, "axes = " + "(" * count + ")" * count, random)
        case 3:
            return _replaced(text, TYPE, "pending<" * count + "f32" + ">" * count, random)
        case _:
            where = '@ "f":1:1 in "g"' + ' from "f":1:1' * count
            lines[random.randrange(len(lines))] += where
            return "".join(lines)
