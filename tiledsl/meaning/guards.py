"""Guards: whether the names and objects that a walk read are still what they were, in a fraction of a microsecond.

The guards of a kernel are one generated Python function, ``return scale is _0 and len(table) == 3 and ...``. The names
of a module are compared by a function with that module's globals: Python reads a global there in a few nanoseconds, and
as the kernel would, builtins included. Objects are not compared by `==`, which they may define as they like. What can
be changed in place is compared item by item. Names, and the items of a dict, are looked at only where the dict has
another version than the last time (`versions`).
"""

from __future__ import annotations

from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any, Callable, Sequence

from tiledsl.meaning.versions import version_of

INLINE = 64
"""Items of one object that the generated function compares by itself; more are compared in a loop."""


class Guards:
    """What a walk has seen. `holds`: is all of it as it was? `kept` stays alive, so that nothing else can have the
    identity of one of these objects."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self._names: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}  # by id of the globals: them, name: object
        self._terms: dict[Any, tuple[str, tuple[Any, ...]]] = {}
        self._items: dict[Any, tuple[Sequence[Any], str, tuple[Any, ...], dict[str, Any] | None]] = {}

    def name(self, namespace: dict[str, Any], dotted: str, value: Any) -> None:
        """``dotted``, read as a global of `namespace`, is `value`. For ``a.b`` there is a guard of the module `a`."""
        self._names.setdefault(id(namespace), (namespace, {}))[1][dotted] = value

    def term(self, text: str, *objects: Any) -> None:
        """The expression `text` is true, where ``{0}``, ``{1}`` ... are `objects`."""
        self._terms[text, *map(id, objects)] = text, objects

    def items(self, found: Sequence[Any], text: str, *objects: Any, held_by: dict[str, Any] | None = None) -> None:
        """The items of what the expression `text` gives, of an object that can be changed in place, are those.

        `held_by`: the dict that contains them."""
        self._items[text, *map(id, objects)] = found, text, objects, held_by

    def holds(self) -> bool:
        """True if nothing has changed. Any exception means that something has."""
        try:
            return self.check()
        except Exception:
            return False

    @cached_property
    def check(self) -> Callable[[], bool]:
        """The generated function. It raises, or is False, where something has changed."""
        entry = _Writer()
        for namespace, values in self._names.values():
            inner = _Writer()
            inner.terms = [f"{dotted} is {inner.bound(value)}" for dotted, value in values.items()]
            check = inner.function(namespace)
            modules = [value.__dict__ for value in values.values() if type(value) is ModuleType]
            entry.since([namespace, check.__builtins__, *modules], check)
        for found, text, objects, held_by in self._items.values():
            if held_by is None:
                entry.items(found, text, objects)
            else:
                inner = _Writer()
                inner.items(found, text, objects)
                entry.since([held_by], inner.function())
        entry.terms += [text.format(*map(entry.bound, objects)) for text, objects in self._terms.values()]
        return entry.function()


class _Writer:
    """The text of one function. `objects` are its globals, or variables of an enclosing function where its globals are
    those of a module; their names occur nowhere else. (As constants of its code they would never be collected.)"""

    def __init__(self) -> None:
        self.terms: list[str] = []
        self.objects: list[Any] = []
        self._versions: dict[int, str] = {}
        self._first: list[str] = []
        self._lines: list[str] = []

    def bound(self, value: Any) -> str:
        """The name by which the text calls an object."""
        self.objects.append(value)
        return f"_tiledsl_{len(self.objects) - 1}_"

    def items(self, found: Sequence[Any], text: str, objects: Sequence[Any]) -> None:
        text = text.format(*map(self.bound, objects))
        if len(found) > INLINE:
            self.terms.append(f"{self.bound(_same)}([*{text}], {self.bound(found)})")
            return
        # To unpack another number of items is an exception.
        items = [f"item_{i}" for i in range(len(found))]
        self._lines.append(f"[{', '.join(items)}] = {text}")
        if found:
            tests = [f"{item} is {self.bound(value)}" for item, value in zip(items, found, strict=True)]
            self._lines.append(f"if not ({' and '.join(tests)}): return False")

    def since(self, dicts: Sequence[dict[str, Any]], check: Callable[[], bool]) -> None:
        """`check` holds. If the versions of all `dicts` can be told, it is called only where one has changed since."""
        versions = [self._version(held) for held in dicts]
        if None in versions:
            self._lines.append(f"if not {self.bound(check)}(): return False")
            return
        seen = [self.bound(None) for _ in versions]
        changed = " or ".join(f"{now} != {then}" for now, then in zip(versions, seen, strict=True))
        self._first.append(f"global {', '.join(seen)}")
        self._lines += [
            f"if {changed}:",
            f" if not {self.bound(check)}(): return False",
            *(f" {then} = {now}" for now, then in zip(versions, seen, strict=True)),
        ]

    def _version(self, held: dict[str, Any]) -> str | None:
        """The variable that has the version of a dict. It is read before anything is checked."""
        version = version_of(held)
        if version is None:
            return None
        if id(held) not in self._versions:
            self._versions[id(held)] = name = f"version_{len(self._versions)}"
            self._first.append(f"{name} = {self.bound(version)}.value")
            self.bound(held)  # lives as long as the function
        return self._versions[id(held)]

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
