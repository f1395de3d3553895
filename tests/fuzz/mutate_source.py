"""Mutants of a program: its tree, then at times its text, is changed in a few places."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

from tests.fuzz.corpus import words

__all__ = ["mutate_source"]

SYMBOLS = re.compile(r"\s+|\w+|[^\w\s]")
FRAGMENTS = (*"()[]{}:,.=+-*/%@<>!&|^~\\#'\n", "**", "//", "->", ":=", "    ", "def", "if", "else", "for", "in", "with")
OPERATORS: tuple[type[ast.operator], ...] = (
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift, ast.BitAnd, ast.BitOr,
    ast.BitXor, ast.MatMult,
)  # fmt: skip
COMPARISONS: tuple[type[ast.cmpop], ...] = (
    ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Is, ast.IsNot, ast.In, ast.NotIn,
)  # fmt: skip


_HOSTILE = [ast.parse(text, mode="eval").body for text in words("expressions")]
_STATEMENTS = [ast.parse(text.replace("\\n", "\n")).body for text in words("statements")]


def mutate_source(text: str, donor: str, random: Random) -> str:
    """`text` with a few changes; parts of `donor` may be put into it."""
    count = random.choice((1, 1, 1, 1, 2, 2, 3, 4, 6))
    try:
        mutant = _Mutant(ast.parse(text), ast.parse(donor), random)
        changes = mutant.gentle() if random.random() < 0.5 else mutant.all()
        for _ in range(count):
            random.choices([change for _, change in changes], [weight for weight, _ in changes])[0]()
        changed = ast.unparse(ast.fix_missing_locations(mutant.tree)) + "\n"
    except (RecursionError, SyntaxError, ValueError, AttributeError, TypeError, IndexError, KeyError):
        changed = text  # a change that this tree cannot have, or that `unparse` cannot write
    if random.random() < 0.1 or changed == text:
        changed = _garbled(changed, random)
    return changed


class _Mutant:
    """A tree, and changes of one place of one of its functions."""

    def __init__(self, tree: ast.Module, donor: ast.Module, random: Random) -> None:
        self.tree, self.donor, self.random = tree, donor, random

    def gentle(self) -> list[tuple[float, Callable[[], None]]]:
        """Changes, with their weights, after which a kernel often compiles, to something else."""
        return [
            (4, self.change_constant),
            (4, lambda: self.change_node(ast.BinOp, ast.AugAssign, ast.Compare, ast.BoolOp)),
            (3, self.swap_expressions),
            (2, self.drop_statement),
            (2, self.copy_statement),
        ]

    def all(self) -> list[tuple[float, Callable[[], None]]]:
        return [
            *self.gentle(),
            (4, self.replace_expression),
            (3, self.nest_expression),
            (3, lambda: self.change_node(ast.Attribute, ast.keyword, ast.Name, ast.arg)),
            (4, self.insert_statement),
            (3, self.splice_statement),
            (3, self.wrap_statement),
            (2, self.change_arguments),
            (0.5, self.deep),
        ]

    # -- places ----------------------------------------------------------------------------------

    def functions(self, tree: ast.Module) -> list[ast.FunctionDef]:
        return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]

    def root(self) -> ast.AST:
        """A function, nearly always; else the module."""
        functions = self.functions(self.tree)
        return self.random.choice(functions) if functions and self.random.random() < 0.95 else self.tree

    def slots(self, root: ast.AST) -> list[tuple[Any, str, int | None, ast.expr]]:
        """(node, field, position, expression) of every expression that is read."""
        found: list[tuple[Any, str, int | None, ast.expr]] = []
        for node in ast.walk(root):
            for field, value in ast.iter_fields(node):
                items = enumerate(value) if isinstance(value, list) else [(None, value)]
                found += [(node, field, at, v) for at, v in items if isinstance(v, ast.expr)]
        return [s for s in found if isinstance(getattr(s[3], "ctx", ast.Load()), ast.Load)]

    def blocks(self, root: ast.AST) -> list[list[ast.stmt]]:
        fields = [value for node in ast.walk(root) for _, value in ast.iter_fields(node)]
        return [v for v in fields if isinstance(v, list) and v and isinstance(v[0], ast.stmt)]

    def put(self, slot: tuple[Any, str, int | None, ast.expr], value: ast.expr) -> None:
        node, field, at, _ = slot
        if at is None:
            setattr(node, field, value)
        else:
            getattr(node, field)[at] = value

    def any_expression(self) -> ast.expr:
        random = self.random
        if random.random() < 0.5:
            return deepcopy(random.choice(_HOSTILE))
        tree = self.tree if random.random() < 0.7 else self.donor
        return deepcopy(random.choice(self.slots(tree))[3])

    # -- changes ---------------------------------------------------------------------------------

    def replace_expression(self) -> None:
        self.put(self.random.choice(self.slots(self.root())), self.any_expression())

    def swap_expressions(self) -> None:
        """One of the function's own takes the place of another of its kind."""
        slots = self.slots(self.root())
        slot = self.random.choice(slots)
        alike = [s for s in slots if type(s[3]) is type(slot[3])]
        self.put(slot, deepcopy(self.random.choice(alike)[3]))

    def nest_expression(self) -> None:
        """An expression becomes a part of another one, or is replaced by a part of itself."""
        slot = self.random.choice(self.slots(self.root()))
        x, other = slot[3], self.any_expression()
        shapes: list[Callable[[], ast.expr]] = [
            lambda: ast.BinOp(x, self.random.choice(OPERATORS)(), other),
            lambda: ast.BinOp(other, self.random.choice(OPERATORS)(), x),
            lambda: ast.Compare(x, [self.random.choice(COMPARISONS)()], [other]),
            lambda: ast.BoolOp(self.random.choice((ast.And, ast.Or))(), [x, other]),
            lambda: ast.UnaryOp(self.random.choice((ast.Not, ast.USub, ast.Invert, ast.UAdd))(), x),
            lambda: ast.IfExp(other, x, self.any_expression()),
            lambda: ast.Call(x, [other], []),
            lambda: ast.Call(other, [x], []),
            lambda: ast.Subscript(x, other, ast.Load()),
            lambda: ast.Tuple([x, other], ast.Load()),
            lambda: ast.List([x, other], ast.Load()),
            lambda: ast.Starred(x, ast.Load()),
            lambda: ast.NamedExpr(ast.Name("x", ast.Store()), x),
            lambda: ast.Attribute(x, self.random.choice(("T", "to", "shape", "dtype", "start", "x")), ast.Load()),
            lambda: ast.JoinedStr([ast.FormattedValue(x, -1)]),
            lambda: self.random.choice(self.slots(x) or [slot])[3],
        ]
        self.put(slot, self.random.choice(shapes)())

    def change_node(self, *kinds: type[ast.AST]) -> None:
        """Another operator, comparison, name, attribute or keyword, in a node of one of these kinds."""
        random = self.random
        root = self.root()
        nodes: list[Any] = [n for n in ast.walk(root) if isinstance(n, kinds)]
        node = random.choice(nodes)
        names = [n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name)]
        match node:
            case ast.BinOp() if random.random() < 0.3:
                node.left, node.right = node.right, node.left
            case ast.BinOp() | ast.AugAssign():
                node.op = random.choice(OPERATORS)()
            case ast.Compare():
                node.ops[0] = random.choice(COMPARISONS)()
            case ast.Attribute():
                known = [n.attr for n in ast.walk(self.tree) if isinstance(n, ast.Attribute)]
                known += [n.attr for n in ast.walk(self.donor) if isinstance(n, ast.Attribute)]
                node.attr = random.choice([*known, "__class__", "__dict__", "__wrapped__", "_x", "shape", "T", "real"])
            case ast.keyword() | ast.arg():
                node.arg = random.choice([*names, "x", "vec", "layout", "self", "arch", "other"])
            case ast.Name():
                node.id = random.choice(names)
            case _:
                node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()

    def change_arguments(self) -> None:
        """Of one call: one more, one less, two swapped, by name, or spread."""
        random = self.random
        calls = [n for n in ast.walk(self.root()) if isinstance(n, ast.Call)]
        call = random.choice(calls)
        match random.randrange(6):
            case 0:
                call.args.append(self.any_expression())
            case 1 if call.args:
                call.args.pop(random.randrange(len(call.args)))
            case 2 if call.keywords:
                call.keywords.pop(random.randrange(len(call.keywords)))
            case 3:
                random.shuffle(call.args)
            case 4:
                name = random.choice(("x", "vec", "other", "layout", None))
                call.keywords.append(ast.keyword(name, self.any_expression()))
            case _:
                call.args.append(ast.Starred(self.any_expression(), ast.Load()))

    def change_constant(self) -> None:
        nodes = [n for n in ast.walk(self.tree) if isinstance(n, ast.Constant)]
        node = self.random.choice(nodes)
        value: Any = node.value
        if type(value) is int:
            near = (value + 1, value - 1, -value, value * 2, value // 2, value << 20, value * 10**9, 0, 1, float(value))
            node.value = self.random.choice(near)
        elif isinstance(value, str):
            node.value = self.random.choice((value * 2, "", value[::-1], value.upper(), value + "\n", 0))
        else:
            node.value = self.random.choice((0, 1, None, True, "x", 2**63))

    def drop_statement(self) -> None:
        block = self.random.choice(self.blocks(self.root()))
        block.pop(self.random.randrange(len(block)))
        if not block:
            block.append(ast.Pass())

    def copy_statement(self) -> None:
        """Repeated, or moved to another place."""
        blocks = self.blocks(self.root())
        source, target = self.random.choice(blocks), self.random.choice(blocks)
        node = self.random.choice(source)
        if self.random.random() < 0.5 and len(source) > 1:
            source.remove(node)
        target.insert(self.random.randrange(len(target) + 1), deepcopy(node))

    def insert_statement(self) -> None:
        block = self.random.choice(self.blocks(self.root()))
        at = self.random.randrange(len(block) + 1)
        block[at:at] = deepcopy(self.random.choice(_STATEMENTS))

    def splice_statement(self) -> None:
        """One of the donor's."""
        blocks = [b for f in self.functions(self.donor) for b in self.blocks(f)]
        if blocks:
            node = deepcopy(self.random.choice(self.random.choice(blocks)))
            block = self.random.choice(self.blocks(self.root()))
            block.insert(self.random.randrange(len(block) + 1), node)

    def wrap_statement(self) -> None:
        random = self.random
        block = random.choice(self.blocks(self.root()))
        at = random.randrange(len(block))
        inner = [block[at]]
        for _ in range(random.choice((1, 1, 1, 2, 3, 12))):
            inner = [self.wrapped(inner)]
        block[at : at + 1] = inner

    def wrapped(self, inner: list[ast.stmt]) -> ast.stmt:
        x, name = self.any_expression(), ast.Name("v", ast.Store())
        match self.random.randrange(6):
            case 0:
                return ast.If(x, inner, [])
            case 1:
                return ast.If(x, inner, deepcopy(inner))
            case 2:
                return ast.For(name, ast.Call(ast.Name("range", ast.Load()), [x], []), inner, [])
            case 3:
                return ast.For(name, ast.Call(ast.Name("unroll", ast.Load()), [ast.Constant(2)], []), inner, [])
            case 4:
                return ast.While(x, inner, [])
            case _:
                return ast.With([ast.withitem(x)], inner)

    def deep(self) -> None:
        """An expression or statement that is repeated inside itself, or in a row, very often."""
        random = self.random
        count = random.choice((20, 80, 200))
        slot = random.choice(self.slots(self.root()))
        x = slot[3]
        match random.randrange(5):
            case 0:
                text = "(" * count + ast.unparse(x) + " + 1)" * count
            case 1:
                text = " + ".join([ast.unparse(x)] * count)
            case 2:
                text = " and ".join([ast.unparse(x)] * count)
            case 3:
                text = "".join(f"{ast.unparse(x)} if i == {n} else " for n in range(count // 4)) + "0"
            case _:
                text = "-" * count + ast.unparse(x)
        self.put(slot, ast.parse(text, mode="eval").body)


def _garbled(text: str, random: Random) -> str:
    """Words and symbols left out, doubled, swapped, replaced."""
    parts = SYMBOLS.findall(text)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(parts))
        match random.randrange(5):
            case 0:
                parts.pop(at)
            case 1:
                parts.insert(at, parts[at])
            case 2:
                parts[at] = random.choice(parts)
            case 3:
                parts.insert(at, random.choice(FRAGMENTS))
            case _:
                parts[at] = random.choice(FRAGMENTS)
    return "".join(parts)
