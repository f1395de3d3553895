"""The state of one compilation (`Unit`) and of one function being inlined in it (`Frame`).

`evaluate` and `execute` dispatch on the AST node's class; the modules of this package register the
cases. A frame's environment maps names to bindings; names that start with ``$`` are the frontend's
own: ``$return``, ``$break``, ``$continue`` (has control left?) and ``$value`` (what was returned).
"""

from __future__ import annotations

import ast
import builtins
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Generator, get_args, get_type_hints

from tiledsl.errors import CompileError, CompileErrors, Loc
from tiledsl.frontend.bindings import POISON, UNBOUND, Poisoned, Unusable
from tiledsl.frontend.budget import MAX_OPS, MAX_STATEMENTS, OutOfBudget
from tiledsl.frontend.cooperation import Cooperation
from tiledsl.frontend.targets import TargetBuilder
from tiledsl.ir.core import Block, Kernel, Value
from tiledsl.ir.types import INDEX, DType
from tiledsl.layout.fragments import FragmentLayout
from tiledsl.meaning import unreadable
from tiledsl.outside import NotPlain, plain
from tiledsl.signatures.source import checked_source, closure_values

Env = dict[str, Any]


@dataclass
class Unit:
    """One kernel being built. The grid and the threads of `kernel` are () until the kernel has declared them.

    extents: run-time dimensions to the first tensor that has one, and its axis there. pipelined: where the `pipelined`
    loop begins whose body is being built. held: fragments' layouts, each with the line that asked for it, whose threads
    are still to be counted. dropped: tokens of copies that no name was given. raw_groups: does the author place groups
    of copies? conditions: how many run-time conditions stand around what is being built. carried_out: statements so
    far, see `budget`. cooperation: roles, rings and work items. host: where the extents of the grid are computed.
    """

    kernel: Kernel
    builder: TargetBuilder
    extents: dict[str, tuple[Value, int]] = field(default_factory=dict[str, tuple[Value, int]])
    typevars: dict[str, Any] = field(default_factory=dict[str, Any])
    pipelined: Loc | None = None
    held: list[tuple[FragmentLayout, Loc]] = field(default_factory=list[tuple[FragmentLayout, Loc]])
    dropped: list[Value] = field(default_factory=list[Value])
    raw_groups: bool = False
    conditions: int = 0
    cooperation: Cooperation = field(default_factory=Cooperation)
    host: Block = field(default_factory=lambda: Block([INDEX], ["processors"]))
    errors: list[CompileError] = field(default_factory=list[CompileError])
    reported: set[tuple[str, Loc]] = field(default_factory=set[tuple[str, Loc]])
    carried_out: int = 0

    def spend(self, loc: Loc) -> None:
        """Count one more statement, or item of a comprehension. Raises OutOfBudget where a limit is exceeded."""
        self.carried_out += 1
        if self.builder.made > MAX_OPS:
            message = f"the kernel has more than {MAX_OPS} ops here: loops that are unrolled, or large fragments"
        elif self.carried_out > MAX_STATEMENTS:
            message = f"more than {MAX_STATEMENTS} statements were carried out at compile time"
        else:
            return
        raise OutOfBudget(
            message, loc, "unroll less: loop with range(), or unroll(range(n), by=4) for a few at a time", code="C110"
        )

    def report(self, error: CompileError) -> None:
        """Record an error, but none that says much the same as one before: of the same kind at the same place, as in
        each iteration of an unrolled loop; or with the same text in a tile function that is called elsewhere."""
        for single in error.errors if isinstance(error, CompileErrors) else (error,):
            keys = {(single.code, single.loc), (single.message, replace(single.loc, caller=None))}
            if keys.isdisjoint(self.reported):
                self.errors.append(single)
            self.reported |= keys
        if len(self.errors) >= CompileErrors.MOST:
            self.raise_errors()

    def raise_errors(self) -> None:
        if self.errors:
            found = sorted(self.errors, key=lambda e: (e.loc.file, e.loc.line, e.loc.col))
            raise CompileErrors(found)


@dataclass(eq=False)
class Frame:
    """One function, its environment, and the frame that called it. nowrap: as of `schedules.Unwrapped`. looked_up:
    names, each with the id of what it stood for.

    Of a tile function with annotations: `dtypes` and `dims` are what its type variables and dimensions stand for (the
    extent, or the kernel's name for it); `returned` makes of a value, returned at a node, what the caller gets.
    """

    unit: Unit
    fn: Callable[..., Any]
    env: Env
    caller: Frame | None = None
    call: Loc | None = None
    nowrap: bool = False
    looked_up: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    dtypes: dict[str, DType] = field(default_factory=dict[str, DType])
    dims: dict[str, int | str] = field(default_factory=dict[str, "int | str"])
    returned: Callable[[Frame, ast.AST, Any], Any] | None = None

    def __post_init__(self) -> None:
        """Raises CompileError where there is no source, or not that of what Python runs."""
        self.source = checked_source(self.fn)
        self._locs: dict[ast.AST, Loc] = {}
        self.env.setdefault("$return", False)

    @property
    def builder(self) -> TargetBuilder:
        return self.unit.builder

    @property
    def at_top_level(self) -> bool:
        """True where ops go straight into the kernel's body, outside run-time control flow."""
        return self.builder.block is self.unit.kernel.body

    @property
    def callers(self) -> list[Frame]:
        """This frame, the one that called it, and so on."""
        found: list[Frame] = [self]
        while found[-1].caller is not None:
            found.append(found[-1].caller)
        return found

    def loc(self, node: ast.AST) -> Loc:
        """Made once: unrolled loops come back to the same nodes."""
        if node not in self._locs:
            self._locs[node] = self.source.loc(node, self.call)
        return self._locs[node]

    def error(self, node: ast.AST, message: str, fix: str, *, code: str) -> CompileError:
        return CompileError(message, self.loc(node), fix, code=code)

    def lookup(self, node: ast.Name) -> Any:
        """The binding of a name. Unbound, ambiguous and poisoned ones raise."""
        name = node.id
        if name in self.env or name in self.source.bound:
            binding = self.env.get(name, UNBOUND)
        else:
            binding = _lookup_free(self.fn, name)
            if binding is UNBOUND:
                raise self.error(
                    node, f"the name {name} is not defined", "define it before the kernel, or import it", code="C103"
                )
            self.check_readable(node, name, binding)
            binding = self.plain(node, binding, name)
        if binding is POISON:
            raise Poisoned
        if binding is UNBOUND:
            raise self.error(node, f"{name} is used before it is bound", f"assign {name} first", code="C103")
        if isinstance(binding, Unusable):
            raise binding.error(self.loc(node))
        self.looked_up.add((name, id(binding)))
        return binding

    def check_readable(self, node: ast.AST, name: str, value: Any) -> None:
        """Refuse an object from outside whose content cannot be read: the compiled kernel could not follow it."""
        if unreadable(value):
            message = f"{name} is a {type(value).__name__}: whether its content has changed cannot be told"
            raise self.error(
                node, message, "take out what is needed before: numbers, a tuple, a frozen dataclass", code="C113"
            )

    def plain(self, node: ast.AST, value: Any, name: str = "") -> Any:
        """Return what enters the kernel from outside, as `plain` makes it. name: what a message calls it."""
        try:
            return plain(value)
        except NotPlain as problem:
            raise self.error(node, f"{name or 'this value'} holds {problem}", problem.fix, code=problem.code) from None

    @contextmanager
    def into(self, block: Block) -> Generator[Block, None, None]:
        """Send ops to `block` for a while, with a copy of the environment that is then dropped."""
        with during(self.builder, block=block, before=None), during(self, env=dict(self.env)):
            yield block


def _lookup_free(fn: Callable[..., Any], name: str) -> Any:
    """The object that a free variable of `fn` stands for now: closure, module globals, builtins."""
    if name in fn.__code__.co_freevars:
        return closure_values(fn).get(name, UNBOUND)
    found = fn.__globals__.get(name, UNBOUND)
    return getattr(builtins, name, UNBOUND) if found is UNBOUND else found


@contextmanager
def during(owner: Any, **values: Any) -> Generator[None]:
    """Attributes of `owner` have these values for a while."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


class ByNode:
    """A function of a node and a frame that has a case for each class of nodes, which it knows by the annotation of
    `node`. A `functools.singledispatch` does the same in several times as long, and is called for every node."""

    def __init__(self) -> None:
        self._cases: dict[type[ast.AST], Callable[[Any, Frame], Any]] = {}

    def register(self, case: Callable[[Any, Frame], Any]) -> None:
        node = get_type_hints(case)["node"]
        self._cases.update(dict.fromkeys(get_args(node) or (node,), case))

    def __call__(self, node: ast.AST, frame: Frame) -> Any:
        case = self._cases.get(node.__class__)
        if case is None:
            raise _unsupported(node, frame)
        return case(node, frame)


evaluate = ByNode()
"""The binding that an expression stands for; emits the ops it needs."""
execute = ByNode()
"""Carries out a statement that holds no other statements' control flow."""


_UNSUPPORTED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Try: ("try", "guard with `if`, or check with assert_(condition, message)"),
    ast.Raise: ("raise", "check with assert_(condition, message)"),
    ast.Import: ("import", "import at the top of the file"),
    ast.ImportFrom: ("import", "import at the top of the file"),
    ast.FunctionDef: ("a nested function", "write a @tile_function at module level"),
    ast.ClassDef: ("a class", "define it outside the kernel and use its compile-time values"),
    ast.Lambda: ("lambda", "write a @tile_function at module level"),
    ast.Global: ("global", "pass the value as a const parameter"),
    ast.Delete: ("del", "leave the name; registers are freed by the compiler"),
    ast.Match: ("match", "use if / elif"),
    ast.NamedExpr: (":=", "assign in a statement of its own"),
    ast.Yield: ("yield", "return a value, or take a tile function as an argument"),
    ast.Starred: ("* in this place", "write the elements out"),
    ast.Set: ("a set", "use a tuple"),
}


def _unsupported(node: ast.AST, frame: Frame) -> CompileError:
    fix = "docs/language.md lists the statements and expressions that are"
    name, fix = _UNSUPPORTED.get(type(node), (type(node).__name__, fix))
    return frame.error(node, f"{name} is not part of the kernel language", fix, code="C101")
