"""A walk over all that a kernel reaches: its code, the names that this reads, and what those objects are made of.

The walk feeds a hash, which stands for the content of everything, and collects the guards of this process. Every
kind of object that it understands is a case of `KINDS`; all else is not understood: `reasons` says so,
and the kernel is not kept on disk.
"""

from __future__ import annotations

import builtins
import hashlib
import sys
from collections import deque
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any, Callable, ClassVar

from tiledsl.errors import CompileError
from tiledsl.ir.types import DType
from tiledsl.meaning.guards import Guards
from tiledsl.meaning.origin import Origin, home, origin
from tiledsl.meaning.reads import reads_of_code, reads_of_source
from tiledsl.meaning.sets import ORDERLESS, has_order, makes_visible_order, sees_order
from tiledsl.outside import exact_type
from tiledsl.signatures.source import FunctionSource, checked_source

PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None), type(...), type(NotImplemented), DType})
"""Types whose values are their own content."""

MOST = 20_000
"""Objects of one walk; a kernel that reaches more is not understood."""

AMBIENT = frozenset(
    f"builtins.{name}"
    for name in "eval exec compile globals locals vars dir input __import__ id hash breakpoint".split()  # noqa: SIM905
)
"""Builtins whose results depend on more than their arguments."""

DIFFERS = "that differs between processes"

Kind = Callable[["Walk", Any], None]
KINDS: dict[type, Kind] = {}
"""How objects of exactly this type are walked; under `object`, how all others are. `kinds` and `instances` fill it."""


class Walk:
    """One walk, of the kernel's function `root` if it is of a kernel. `reasons`: what was not understood, and why."""

    fields: ClassVar[tuple[str, ...]] = (
        "co_name", "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags",
        "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_exceptiontable",
    )  # fmt: skip

    def __init__(self, root: FunctionType | None = None) -> None:
        self._root = root
        self.guards = Guards()
        self.reasons: list[str] = []
        self._path: list[str] = []
        self._hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._todo: deque[tuple[Any, list[str], Kind]] = deque()

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    def add(self, kind: str, text: str = "") -> None:
        """Add a text to the digest."""
        self._hash.update(f"{kind} {len(text)} {text}\n".encode("utf-8", "surrogatepass"))

    def unknown(self, value: Any, why: str) -> None:
        """`value` is not understood: only its identity counts, and only in this process."""
        self.guards.kept.append(value)
        self.add("unknown", str(id(value)))
        where = " -> ".join(self._path)
        self.reasons.append(f"{where}: {why}" if where else why)

    def visit(self, value: Any, name: str = "", how: Kind | None = None) -> None:
        """Add `value`: a plain one by its content, all else by a number; `finish` adds what it is.

        name: how a message calls the step to it. how: in which way it is walked, if not by its type.
        """
        kind = exact_type(value)
        if kind in PLAIN:
            self.add(kind.__name__, value.hex() if kind is float else hex(value) if kind is int else repr(value))
        elif kind is tuple and all(exact_type(item) in PLAIN for item in value):
            # Whether two are one object may depend on how Python loaded the code.
            self.add("tuple", repr([(exact_type(item).__name__, repr(item)) for item in value]))
        else:
            if id(value) not in self._seen:
                self._seen[id(value)] = len(self._seen)
                self.guards.kept.append(value)
                path = [*self._path, name] if name else self._path
                self._todo.append((value, path, how or KINDS.get(kind, KINDS[object])))
            self.add("object", str(self._seen[id(value)]))

    def finish(self) -> None:
        """Walk what has been visited, and all that it reaches."""
        while self._todo:
            value, self._path, how = self._todo.popleft()
            if len(self._seen) > MOST:
                self.unknown(value, f"the kernel reaches more than {MOST} objects")
                return
            self.add("content", str(self._seen[id(value)]))
            try:
                how(self, value)
            except Exception as error:  # of a metaclass, say
                self.unknown(value, f"{type(error).__name__} while it was read: {error}")

    def apart(self, value: Any, guards: Guards | None = None) -> bytes:
        """The digest of `value` alone, for what has no order. `guards`: collect its guards there."""
        inner = Walk()
        inner.guards, inner.reasons = guards or self.guards, self.reasons
        inner._seen, inner._path = dict(self._seen), self._path
        inner.visit(value)
        inner.finish()
        return inner.digest

    def place(self, obj: Any, kind: str, more: str = "") -> Origin:
        """Where a class or a function comes from. One that is not the user's is all added then."""
        place, name = home(obj), f"{obj.__module__}.{obj.__qualname__}"
        if place in ("tiledsl", "pure"):
            self.add(kind, name + more)
        elif place == "library":
            self.unknown(obj, f"{name} of the standard library may read files or state")
        return place

    # -- functions ---------------------------------------------------------------------------------------

    def kernel(self, fn: FunctionType) -> None:
        """A function that the frontend compiles: its source counts, with its place."""
        self.visit(fn, how=partial(Walk.function, compiled=True))

    def function(self, fn: FunctionType, compiled: bool = False) -> None:
        """A Python function; `compiled`: by the frontend from its source, not run by Python."""
        place = self.place(fn, "function", f" {fn.__code__.co_firstlineno}")
        if place != "user":
            wrapped = (*(fn.__closure__ or ()), fn.__dict__) if place != "library" else ()
            for held in wrapped:  # what a wrapper of contextlib wraps
                if held:
                    self.visit(held, "what it wraps")
            return
        self.guards.term("{0}.__code__ is {1}", fn, fn.__code__)
        self.code(fn.__code__)
        if self._root is not fn:  # the parameters of a kernel are read once, where it is defined
            self._parts(fn, compiled)
        reads = reads_of_code(fn.__code__)
        for module in map(sys.modules.get, reads.imports):
            if module is None or origin(module) not in ("pure", "tiledsl"):
                self.unknown(module, "it imports a module when it runs")
        for name in reads.hidden:
            self.unknown(name, f"it reads .{name}")
        if reads.sets and _may(fn, makes_visible_order):
            self.unknown(fn, f"{fn.__qualname__}() may see an order of a set {DIFFERS}")
        for read in [*reads.names, *(self._source(fn) if compiled else ())]:
            if not read[0].startswith("@"):  # pytest's own, in the assertions that it rewrites
                self._name(fn, *read)

    def _parts(self, fn: FunctionType, compiled: bool) -> None:
        """Defaults, and what was set on a function."""
        # Where a function has none, setting some does not change what a call of it means that gives all arguments.
        for name in ("__defaults__", "__kwdefaults__"):
            self.visit(getattr(fn, name), name)
            if getattr(fn, name):
                self.guards.term(f"{{0}}.{name} is {{1}}", fn, getattr(fn, name))
        if fn.__dict__:
            self.visit(fn.__dict__, "its attributes")
            self.guards.term("{0}.__dict__ is {1}", fn, fn.__dict__)
        elif not compiled:  # the attributes of a tile function are copied when it is made
            self.guards.term("not {0}.__dict__", fn)

    def _source(self, fn: FunctionType) -> list[tuple[str, ...]]:
        """Add the source of a function that the frontend compiles. Gives what it reads besides what its code shows."""
        try:
            source = checked_source(fn)
            self.add("source", f"{source.file}:{source.line}\n{source.text}")
            return reads_of_source(source)
        except CompileError:
            return []  # the frontend will say what is wrong

    def code(self, code: CodeType) -> None:
        """What Python runs, without its place."""
        self.add("code", " ".join(repr(getattr(code, field)) for field in self.fields))
        for const in code.co_consts:
            if type(const) is frozenset:  # whether its order has an effect is known of the function
                self.members(const)
            else:
                self.code(const) if isinstance(const, CodeType) else self.visit(const)

    def members(self, values: Any) -> None:
        """Add what is in a set: in its order, unless that differs between processes."""
        items: list[Any] = [*values]
        found = [f"{type(item).__name__} {item!r}" if type(item) in PLAIN else self.apart(item).hex() for item in items]
        self.add("set", "\n".join(found if has_order(items) else sorted(found)))

    # -- names -------------------------------------------------------------------------------------------

    def _name(self, fn: FunctionType, name: str, *attributes: str) -> None:
        """A name that `fn` reads. If it is a module, only those attributes of it count that the code asks for."""
        self.add("name", name)
        freevars, names = fn.__code__.co_freevars, fn.__globals__
        if name in freevars:
            assert fn.__closure__ is not None
            cell = fn.__closure__[freevars.index(name)]
            try:
                value = cell.cell_contents
            except ValueError:
                self.unknown(cell, f"{name} has no value yet")
                return

            def guard(dotted: str, expected: Any) -> None:
                self.guards.term(f"{{0}}.cell_contents{dotted.removeprefix(name)} is {{1}}", cell, expected)

        elif name in names or name in vars(builtins):
            value = names[name] if name in names else vars(builtins)[name]

            def guard(dotted: str, expected: Any) -> None:
                self.guards.name(names, dotted, expected)

        else:
            self.add("absent")
            self.guards.term(f"{name!r} not in {{0}} and {name!r} not in {{1}}", names, vars(builtins))
            return
        dotted = name
        for attribute in attributes:
            if type(value) is not ModuleType or origin(value) == "tiledsl":
                break
            guard(dotted, value)
            if attribute not in value.__dict__:
                self.unknown(value, f"{dotted} has no {attribute} of its own")
                self.guards.term(f"{attribute!r} not in {{0}}", value.__dict__)
                return
            value, dotted = value.__dict__[attribute], f"{dotted}.{attribute}"
        guard(dotted, value)
        self.add("attribute", dotted)
        if exact_type(value) in (set, frozenset) and not _may(fn, partial(sees_order, name=dotted)):
            members: Any = value
            self.members(members)
            self.guards.items([*members], "{0}", members)
        else:
            self.visit(value, dotted)


def _may(fn: FunctionType, see: Callable[..., bool]) -> bool:
    """Return whether `see` holds for the source of `fn`; True where that is not known."""
    try:
        source: FunctionSource = checked_source(fn)
    except CompileError:
        return True
    own = {*fn.__globals__, *fn.__code__.co_freevars, *source.bound}
    return see(source.tree, builtin=ORDERLESS - own)
