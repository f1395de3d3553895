"""A walk over all that a kernel reaches: its code, the names that this reads, and what those objects are made of.

The walk feeds a hash, which stands for the content of everything, and collects the guards of this process. Every
kind of object that it understands is a case of `KINDS` or of `_other`; all else is not understood: `reasons` says so,
and the kernel is not kept on disk.
"""

from __future__ import annotations

import builtins
import hashlib
import os
import sys
from types import CodeType, FunctionType, ModuleType
from typing import Any, Callable, ClassVar, Literal, TypeVar

from tiledsl.errors import CompileError
from tiledsl.ir.types import DType
from tiledsl.meaning.guards import Guards
from tiledsl.meaning.origin import Origin, exact_type, home, origin
from tiledsl.meaning.reads import Chain, Reads, reads_of_code, reads_of_tree
from tiledsl.signatures.source import FunctionSource, function_source

PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None), type(...), type(NotImplemented), DType})
"""Types whose values are their own content."""

MOST = 20_000
"""Objects of one walk; a kernel that reaches more is not understood."""

DEEPEST = 25
"""Steps from object to object before the rest waits: each takes up to a dozen frames of Python's stack."""

AMBIENT = frozenset(
    f"builtins.{name}"
    for name in "eval exec compile globals locals vars dir input __import__ id hash breakpoint".split()  # noqa: SIM905
)
"""Builtins whose results depend on more than their arguments."""

Kind = Callable[["Walk", Any], None]
KINDS: dict[type, Kind] = {}
"""How objects of exactly this type are walked; `kinds` fills it."""
OTHERS: dict[Literal["class", "instance"], Kind] = {}
"""How all other objects are; `instances` fills it."""


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
        self.path: list[str] = []
        self._hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._depth = 0
        self._later: list[tuple[Any, list[str]]] = []
        self.kept: list[Any] = []  # keeps the ids from being used again

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    def add(self, kind: str, text: str = "") -> None:
        """Add a text to the digest."""
        self._hash.update(f"{kind} {len(text)} {text}\n".encode("utf-8", "surrogatepass"))

    def unknown(self, value: Any, why: str) -> None:
        """`value` is not understood: only its identity counts, and only in this process."""
        self.kept.append(value)
        self.add("unknown", str(id(value)))
        where = " -> ".join(self.path)
        self.reasons.append(f"{where}: {why}" if where else why)

    def visit(self, value: Any, name: str = "") -> None:
        """Add all that `value` is. `name`: how a message calls the step to it."""
        try:
            self._visit(value, name)
        except Exception as error:  # of a metaclass, say
            self.unknown(value, f"{type(error).__name__} while {name or 'it'} was read: {error}")

    def _visit(self, value: Any, name: str) -> None:
        kind = exact_type(value)
        if kind in PLAIN:
            self.add(kind.__name__, value.hex() if kind is float else hex(value) if kind is int else repr(value))
            return
        if kind is tuple and all(exact_type(item) in PLAIN for item in value):
            self.add("tuple", repr([(exact_type(item).__name__, repr(item)) for item in value]))
            return  # whether two are one object may depend on how Python loaded the code
        if id(value) in self._seen:
            self.add("seen", str(self._seen[id(value)]))
            return
        if len(self._seen) >= MOST:
            self.unknown(value, f"the kernel reaches more than {MOST} objects")
            return
        if self._depth >= DEEPEST:
            self.add("later")
            self._later.append((value, [*self.path, name]))
            return
        self._seen[id(value)] = len(self._seen)
        self.kept.append(value)
        outer = len(self.path)
        if name:
            self.path.append(name)
        self._depth += 1
        try:
            known = KINDS.get(kind)
            known(self, value) if known is not None else self._other(value)
        finally:
            self._depth -= 1
            del self.path[outer:]

    def finish(self) -> None:
        """Visit what stood too deep for Python's stack: a long chain of functions, of objects."""
        while self._later:
            value, self.path = self._later.pop(0)
            self.visit(value)

    def apart(self, value: Any) -> bytes:
        """The digest of `value` alone, for what has no order; guards and reasons are shared."""
        outer, seen, self._hash, self._seen = self._hash, self._seen, hashlib.sha256(), dict(self._seen)
        try:
            self.visit(value)
            return self._hash.digest()
        finally:
            self._hash, self._seen = outer, seen

    def _other(self, value: Any) -> None:
        if isinstance(value, ModuleType):
            self._module(value)
        elif isinstance(value, type):
            OTHERS["class"](self, value)
        elif isinstance(value, TypeVar):
            self.add("type variable", value.__name__)
        else:
            OTHERS["instance"](self, value)

    def _module(self, module: ModuleType) -> None:
        """A module as a value, whose attributes may be read by any name."""
        if module is not builtins and origin(module) in ("pure", "tiledsl"):
            self.add("module", module.__name__)
        else:
            self.unknown(module, f"the module {module.__name__} as a value: which of its names are read is not known")

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
        if id(fn) not in self._seen:
            self._seen[id(fn)] = len(self._seen)
            self.kept.append(fn)
            self.function(fn, compiled=True)

    def function(self, fn: FunctionType, compiled: bool = False) -> None:
        """A Python function; `compiled`: by the frontend from its source, not run by Python."""
        place = self.place(fn, "function", f" {fn.__code__.co_firstlineno}")
        if place != "user":
            wrapped = (*(fn.__closure__ or ()), fn.__dict__) if place != "library" else ()
            for held in wrapped:  # what a wrapper of contextlib wraps
                if held:
                    self.visit(held, "what it wraps")
            return
        reads = reads_of_code(fn.__code__)
        more = self._source(fn).names if compiled else ()
        self.code(fn.__code__)
        self.guards.term("{0}.__code__ is {1}", fn, fn.__code__)
        if self._root is not fn:  # the parameters of a kernel are read once, where it is defined
            self._parts(fn, compiled)
        self._imports(reads)
        for name, chains in reads.names:
            if not name.startswith("@"):  # pytest's own, in the assertions that it rewrites
                self._name(fn, name, chains)
        for name, chains in more:
            if name in fn.__globals__ or name in fn.__code__.co_freevars:
                self._name(fn, name, chains)

    def _parts(self, fn: FunctionType, compiled: bool) -> None:
        """Defaults and what was set on a function, which do not matter for a compiled one."""
        # Where a function has none, setting some does not change what a call of it means that gives all arguments.
        for name in ("__defaults__", "__kwdefaults__"):
            self.visit(getattr(fn, name), name)
            if getattr(fn, name):
                self.guards.term(f"{{0}}.{name} is {{1}}", fn, getattr(fn, name))
        if compiled:
            return
        if fn.__dict__:
            self.visit(fn.__dict__, "its attributes")
            self.guards.term("{0}.__dict__ is {1}", fn, fn.__dict__)
        else:
            self.guards.term("not {0}.__dict__", fn)

    def _source(self, fn: FunctionType) -> Reads:
        """The source of a function that is compiled from it; what its code does not show of what it reads."""
        try:
            source = function_source(fn)
            self.add("source", f"{source.file}:{source.line}\n{source.text}")
            if not sys.flags.optimize and not _annotates_locals(fn.__code__, source):
                return Reads(())
            return reads_of_tree(source.tree, source.bound)
        except CompileError:
            return Reads(())  # the frontend will say what is wrong

    def code(self, code: CodeType) -> None:
        """What Python runs, without its place."""
        self.add("code", " ".join(repr(getattr(code, field)) for field in self.fields))
        for const in code.co_consts:
            self.code(const) if isinstance(const, CodeType) else self.visit(const)

    def _imports(self, reads: Reads) -> None:
        for name in reads.imports:
            module = sys.modules.get(name)
            if module is None or origin(module) not in ("pure", "tiledsl"):
                self.unknown(module, f"it imports {name or 'a module'} when it runs")
        for name in reads.hidden:
            self.unknown(name, f"it reads .{name}")

    # -- names -------------------------------------------------------------------------------------------

    def _name(self, fn: FunctionType, name: str, chains: tuple[Chain, ...]) -> None:
        self.add("name", name)
        code = fn.__code__
        if name in code.co_freevars:
            assert fn.__closure__ is not None
            cell = fn.__closure__[code.co_freevars.index(name)]
            try:
                value = cell.cell_contents
            except ValueError:
                self.unknown(cell, f"{name} has no value yet")
                return

            def is_in_cell(dotted: str, expected: Any) -> None:
                rest = dotted[len(name) :]
                self.guards.term(f"{{0}}.cell_contents{rest} is {{1}}", cell, expected)

            self._read(name, value, chains, is_in_cell)
            return
        found = fn.__globals__ if name in fn.__globals__ else vars(builtins)
        if name not in found:
            self.add("absent")
            self.guards.term(f"{name!r} not in {{0}} and {name!r} not in {{1}}", fn.__globals__, vars(builtins))
            return
        if name != "__debug__":  # Python does not let it be changed
            self._read(name, found[name], chains, lambda dotted, v: self.guards.name(fn.__globals__, dotted, v))

    def _read(self, name: str, value: Any, chains: tuple[Chain, ...], guard: Callable[[str, Any], None]) -> None:
        """An object by its name. Of a module, only those attributes count that the code asks for."""
        if type(value) is not ModuleType or origin(value) == "tiledsl":
            guard(name, value)
            self.visit(value, name)
            return
        for chain in chains:
            self._chain(name, value, chain, guard)

    def _chain(self, name: str, module: Any, chain: Chain, guard: Callable[[str, Any], None]) -> None:
        value, dotted = module, name
        for attribute in chain:
            if type(value) is not ModuleType or origin(value) == "tiledsl":
                break
            if attribute not in value.__dict__:
                self.unknown(module, f"{dotted} has no {attribute} of its own")
                self.guards.term(f"{attribute!r} not in {{0}}", value.__dict__)
                return
            value, dotted = value.__dict__[attribute], f"{dotted}.{attribute}"
        guard(dotted, value)
        self.add("attribute", dotted)
        if value is os.environ:
            self.unknown(value, "the environment is not part of the key")
        else:
            self.visit(value, dotted)


def _annotates_locals(code: CodeType, source: FunctionSource) -> bool:
    """False if no line of the body can be ``name: annotation``, which leaves nothing in the code."""
    first = source.line
    lines = {line for _, _, line in code.co_lines()}
    body = min((line for line in lines if line is not None and line > first), default=first)
    return any(_may_annotate(line) for line in source.text.splitlines()[body - first :] if ":" in line)


def _may_annotate(line: str) -> bool:
    target, _, rest = line.strip().partition(":")
    return bool(rest.strip()) and target.replace(".", "").isidentifier() and target not in ("else", "try", "finally")
