"""Guards: whether the names and objects that a walk read are still what they were, in a fraction of a microsecond.

The guards of a kernel are one generated Python function whose globals are the kernel's own:
``return f32 is _0 and helpers.scale is _1 and ...``. Python reads a global there in a few nanoseconds, and as the
kernel would, builtins included. Objects are not compared by `==`, which they may define as they like. What can be
changed in place is compared item by item.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Callable, Sequence

__all__ = ["Guards"]

INLINE = 64
"""Items of one object that the generated function compares by itself; more are compared in a loop."""
FEW = 8
"""Objects for which a function of their own costs more than it saves."""


class Guards:
    """What a walk has seen. `holds`: is all of it as it was?"""

    def __init__(self) -> None:
        self._names: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}  # by id of the globals: them, name: object
        self._terms: dict[Any, tuple[str, tuple[Any, ...]]] = {}
        self._contents: dict[Any, tuple[Sequence[Any], str, tuple[Any, ...]]] = {}
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

    def items(self, found: Sequence[Any], text: str, *objects: Any) -> None:
        """The items of what the expression `text` gives, of an object that can be changed in place, are those."""
        if not self._off:
            self._contents[text, *map(id, objects)] = found, text, objects

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
        """One function for each module whose names are read. The first also looks at the rest, and calls the others."""
        rest = _Writer()
        for text, objects in self._terms.values():
            rest.terms.append(text.format(*map(rest.bound, objects)))
        for found, text, objects in self._contents.values():
            rest.items(found, text.format(*map(rest.bound, objects)))
        few = len(rest.objects) <= FEW
        entry = rest if few else _Writer()
        if not few:
            entry.terms.append(f"{entry.bound(rest.function())}()")
        spaces = list(self._names.values())
        for namespace, values in spaces[1:]:
            other = _Writer()
            other.names(values)
            entry.terms.append(f"{entry.bound(other.function(namespace))}()")
        if not spaces:
            return entry.function()
        namespace, values = spaces[0]
        entry.names(values)
        return entry.function(namespace)


class _Writer:
    """The text of one function. `objects` are its globals, or variables of an enclosing function where its globals are
    those of a module; they have names that nobody has. (As constants of its code they would never be collected.)"""

    def __init__(self) -> None:
        self.terms: list[str] = []
        self.objects: list[Any] = []
        self._lines: list[str] = []

    def bound(self, value: Any) -> str:
        """The name by which the text calls an object."""
        self.objects.append(value)
        return f"_tiledsl_{len(self.objects) - 1}_"

    def names(self, values: dict[str, Any]) -> None:
        self.terms += [f"{dotted} is {self.bound(value)}" for dotted, value in values.items()]

    def items(self, found: Sequence[Any], text: str) -> None:
        if len(found) > INLINE:
            self.terms.append(f"{self.bound(_same)}([*{text}], {self.bound(found)})")
            return
        # To unpack another number of items is an exception.
        items = [f"item_{i}" for i in range(len(found))]
        self._lines.append(f"[{', '.join(items)}] = {text}")
        if found:
            tests = [f"{item} is {self.bound(value)}" for item, value in zip(items, found, strict=True)]
            self._lines.append(f"if not ({' and '.join(tests)}): return False")

    def function(self, namespace: dict[str, Any] | None = None) -> Callable[[], bool]:
        """The function, with the globals `namespace`. Without one it has less to do at each call."""
        names = [f"_tiledsl_{i}_" for i in range(len(self.objects))]
        lines = [*self._lines, f"return {' and '.join(self.terms) or 'True'}"]
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
