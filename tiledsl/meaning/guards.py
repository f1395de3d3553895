"""Guards: whether the names and objects that a walk read are still what they were, in a fraction of a microsecond.

A guard is a generated Python function whose globals are the kernel's own: ``f32 is _0 and helpers.scale is _1 and ...``.
Python reads a global in a few nanoseconds there, and as the kernel would, builtins included. Nothing is compared
by `==`, which the objects might define. What can be changed in place is compared item by item.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Callable

__all__ = ["Guards", "Read"]

Read = Callable[[Any], Any]
"""What an object that can be changed in place contains: a list, whose items are compared by identity, or a tuple of
strings, numbers and bytes."""


class Guards:
    """What a walk has seen. `holds`: is all of it as it was?"""

    def __init__(self) -> None:
        self._names: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}  # by id of the globals: them, name: object
        self._terms: dict[str, tuple[str, tuple[Any, ...]]] = {}
        self._contents: dict[int, tuple[Read, Any, Any]] = {}
        self._kept: list[Any] = []  # keeps the ids of items from being used again
        self._check: Callable[[], bool] | None = None

    def keep(self, objects: list[Any]) -> None:
        """Keep `objects` alive, so that nothing else can have their identity."""
        self._kept.append(objects)

    @contextmanager
    def off(self) -> Generator[None]:
        """Take no guards meanwhile."""
        names, terms, contents = (dict(part) for part in (self._names, self._terms, self._contents))
        try:
            yield
        finally:
            self._names, self._terms, self._contents = names, terms, contents

    def name(self, namespace: dict[str, Any], dotted: str, value: Any) -> None:
        """``dotted``, read as a global of `namespace`, is `value`."""
        self._names.setdefault(id(namespace), (namespace, {}))[1][dotted] = value

    def term(self, text: str, *objects: Any) -> None:
        """`text` is true, where ``{0}``, ``{1}`` ... are `objects`."""
        self._terms[f"{text} {tuple(map(id, objects))}"] = text, objects

    def content(self, read: Read, owner: Any) -> None:
        """What `read` gives of `owner` stays as it is."""
        found = read(owner)
        self._kept.append(found)
        self._contents[id(owner)] = read, owner, found if isinstance(found, tuple) else [*map(id, found)]

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
        checks = [
            _function([f"{name} is {{{i}}}" for i, name in enumerate(values)], list(values.values()), namespace)
            for namespace, values in self._names.values()
        ]
        texts: list[str] = []
        objects: list[Any] = []
        for text, bound in self._terms.values():
            texts.append(text.format(*(f"{{{len(objects) + i}}}" for i in range(len(bound)))))
            objects += bound
        for read, owner, saved in self._contents.values():
            at = len(objects)
            texts.append(f"{{{at}}}({{{at + 1}}}, {{{at + 2}}}, {{{at + 3}}})")
            objects += [_same_value if isinstance(saved, tuple) else _same_items, read, owner, saved]
        if texts:
            checks.append(_function(texts, objects, {"__builtins__": {}}))
        if not checks:
            return _always
        if len(checks) == 1:
            return checks[0]
        return _function([f"{{{i}}}()" for i in range(len(checks))], checks, {"__builtins__": {}})


def _always() -> bool:
    return True


def _same_items(read: Read, owner: Any, saved: list[int]) -> bool:
    return [*map(id, read(owner))] == saved


def _same_value(read: Read, owner: Any, saved: tuple[Any, ...]) -> bool:
    return read(owner) == saved


def _function(terms: list[str], objects: list[Any], namespace: Mapping[str, Any]) -> Callable[[], bool]:
    """A function that says whether all `terms` are true, with the globals `namespace`; ``{i}`` is ``objects[i]``."""
    # The objects are variables of an enclosing function, with names that nobody has.
    names = [f"_tiledsl_{i}_" for i in range(len(objects))]
    text = " and ".join(terms).format(*names)
    made: dict[str, Any] = {}
    exec(f"def make({', '.join(names)}):\n def check(): return {text}\n return check", made)
    check: FunctionType = made["make"](*objects)
    return FunctionType(check.__code__, namespace, "check", None, check.__closure__)  # type: ignore[arg-type]
