"""Guards: whether the names and objects that a walk read are still what they were, in a fraction of a microsecond.

The guards of a kernel are one generated Python function, ``return f32 is _0 and helpers.scale is _1 and ...``. Names
are read by a function with the kernel's own globals: Python reads a global there in a few nanoseconds, and as the
kernel would, builtins included. Objects are not compared by `==`, which they may define as they like. What can be
changed in place is compared item by item. Many names, and the items of a dict, are looked at only where the dict has
another version than the last time (`versions`).
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, Callable, Sequence

from tiledsl.meaning.versions import version_of

INLINE = 64
"""Items of one object that the generated function compares by itself; more are compared in a loop."""
FEW = 4
"""Names that are read as fast as the version of one dict."""
FEW_OBJECTS = 8
"""Objects for which a function of their own costs more than it saves."""


class Guards:
    """What a walk has seen. `holds`: is all of it as it was?"""

    def __init__(self) -> None:
        self._names: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}  # by id of the globals: them, name: object
        self._terms: dict[Any, tuple[str, tuple[Any, ...]]] = {}
        self._contents: dict[Any, _Contents] = {}
        self._kept: list[Any] = []
        self._off = 0
        self._check: Callable[[], bool] | None = None

    def keep(self, objects: list[Any]) -> None:
        """Keep `objects` alive, so that nothing else can have their identity."""
        self._kept.append(objects)

    @contextmanager
    def off(self) -> Generator[None]:
        """Take no guards meanwhile."""
        self._off += 1
        try:
            yield
        finally:
            self._off -= 1

    @property
    def taken(self) -> bool:
        """Are guards taken now?"""
        return not self._off

    def name(self, namespace: dict[str, Any], dotted: str, value: Any) -> None:
        """``dotted``, read as a global of `namespace`, is `value`."""
        if not self._off:
            self._names.setdefault(id(namespace), (namespace, {}))[1][dotted] = value

    def term(self, text: str, *objects: Any) -> None:
        """The expression `text` is true, where ``{0}``, ``{1}`` ... are `objects`."""
        if not self._off:
            self._terms[text, *map(id, objects)] = text, objects

    def items(self, found: Sequence[Any], text: str, *objects: Any, held_by: dict[str, Any] | None = None) -> None:
        """The items of what the expression `text` gives, of an object that can be changed in place, are those.

        `held_by`: the dict of which they are keys or values."""
        if not self._off:
            self._contents[text, *map(id, objects)] = _Contents(found, text, objects, held_by)

    def holds(self) -> bool:
        """True if nothing has changed. Any exception means that something has."""
        try:
            return self.check()
        except Exception:
            return False

    @property
    def check(self) -> Callable[[], bool]:
        """The generated function. It raises, or is False, where something has changed."""
        if self._check is None:
            self._check = self._generate()
        return self._check

    def _generate(self) -> Callable[[], bool]:
        entry = _Writer()
        apart: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for namespace, values in self._names.values():
            modules = _modules(namespace, values)
            check = _names({**modules, **values}, namespace)
            dicts: list[dict[str, Any]] = [namespace, check.__builtins__, *map(_body, modules.values())]
            if len(values) <= FEW * len(dicts) or not entry.since(dicts, check):
                apart.append((namespace, values))
        for contents in self._contents.values():
            held_by = [] if contents.held_by is None else [contents.held_by]
            inner = _Writer()
            inner.items(contents)
            if not held_by or not entry.since(held_by, inner.function()):
                entry.items(contents)
        for text, objects in self._terms.values():
            entry.terms.append(text.format(*map(entry.bound, objects)))
        return _joined(entry, apart)


@dataclass(frozen=True, eq=False)
class _Contents:
    """See `Guards.items`."""

    found: Sequence[Any]
    text: str
    objects: tuple[Any, ...]
    held_by: dict[str, Any] | None


def _modules(namespace: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """What stands on the way to attributes, by name: the modules `pkg` and `pkg.cfg` of ``pkg.cfg.T``."""
    found: dict[str, Any] = {}
    for dotted in values:
        way = dotted.split(".")[:-1]
        for end in range(1, len(way) + 1):
            outer = _body(found[".".join(way[: end - 1])]) if end > 1 else namespace
            found[".".join(way[:end])] = outer.get(way[end - 1])
    return found


def _body(module: Any) -> dict[str, Any]:
    return module.__dict__ if type(module) is ModuleType else {}


def _names(values: dict[str, Any], namespace: dict[str, Any]) -> FunctionType:
    writer = _Writer()
    writer.names(values)
    return writer.function(namespace)


def _joined(entry: _Writer, apart: list[tuple[dict[str, Any], dict[str, Any]]]) -> FunctionType:
    """The function of `entry`, which looks at the names `apart`, too: those of one module by itself, if it has little
    else to do."""
    own = len(entry.objects) <= FEW_OBJECTS and apart and not entry.versions
    for namespace, values in apart[1:] if own else apart:
        entry.terms.append(f"{entry.bound(_names(values, namespace))}()")
    if not own:
        return entry.function()
    namespace, values = apart[0]
    entry.names(values)
    return entry.function(namespace)


class _Writer:
    """The text of one function. `objects` are its globals, or variables of an enclosing function where its globals are
    those of a module; their names occur nowhere else. (As constants of its code they would never be collected.)"""

    def __init__(self) -> None:
        self.terms: list[str] = []
        self.objects: list[Any] = []
        self.versions: dict[int, str] = {}
        self._first: list[str] = []
        self._lines: list[str] = []

    def bound(self, value: Any) -> str:
        """The name by which the text calls an object."""
        self.objects.append(value)
        return f"_tiledsl_{len(self.objects) - 1}_"

    def names(self, values: dict[str, Any]) -> None:
        self.terms += [f"{dotted} is {self.bound(value)}" for dotted, value in values.items()]

    def items(self, contents: _Contents) -> None:
        found, text = contents.found, contents.text.format(*map(self.bound, contents.objects))
        if len(found) > INLINE:
            self.terms.append(f"{self.bound(_same)}([*{text}], {self.bound(found)})")
            return
        # To unpack another number of items is an exception.
        items = [f"item_{i}" for i in range(len(found))]
        self._lines.append(f"[{', '.join(items)}] = {text}")
        if found:
            tests = [f"{item} is {self.bound(value)}" for item, value in zip(items, found, strict=True)]
            self._lines.append(f"if not ({' and '.join(tests)}): return False")

    def since(self, dicts: Sequence[dict[str, Any]], check: Callable[[], bool]) -> bool:
        """`check` holds. It is called where one of `dicts` has changed since it did. False if that cannot be told."""
        versions = [self._version(held) for held in dicts]
        if None in versions:
            return False
        seen = [self.bound(None) for _ in versions]
        changed = " or ".join(f"{now} != {then}" for now, then in zip(versions, seen, strict=True))
        self._first.append(f"global {', '.join(seen)}")
        self._lines += [
            f"if {changed}:",
            f" if not {self.bound(check)}(): return False",
            *(f" {then} = {now}" for now, then in zip(versions, seen, strict=True)),
        ]
        return True

    def _version(self, held: dict[str, Any]) -> str | None:
        """The variable that has the version of a dict. It is read before anything is checked."""
        version = version_of(held)
        if version is None:
            return None
        if id(held) not in self.versions:
            self.versions[id(held)] = name = f"version_{len(self.versions)}"
            self._first.append(f"{name} = {self.bound(version)}.value")
            self.bound(held)  # lives as long as the function
        return self.versions[id(held)]

    def function(self, namespace: dict[str, Any] | None = None) -> FunctionType:
        """The function, with the globals `namespace`. Without one it has less to do at each call."""
        names = [f"_tiledsl_{i}_" for i in range(len(self.objects))]
        lines = [*self._first, *self._lines, f"return {' and '.join(self.terms) or 'True'}"]
        outer = ", ".join(names) if namespace is not None else ""
        text = "\n  ".join([f"def make({outer}):\n def check():", *lines]) + "\n return check"
        made: dict[str, Any] = {}
        exec(text, made)
        if namespace is None:
            own: dict[str, Any] = {"__builtins__": {}, **dict(zip(names, self.objects, strict=True))}
            return FunctionType(made["make"]().__code__, own, "check")
        check: FunctionType = made["make"](*self.objects)
        return FunctionType(check.__code__, namespace, "check", None, check.__closure__)


def _same(items: list[Any], saved: Sequence[Any]) -> bool:
    return len(items) == len(saved) and all(a is b for a, b in zip(items, saved, strict=True))
