"""How an op class declares its attributes."""

from __future__ import annotations

from typing import Any, Generic, Sequence, TypeVar, overload

T = TypeVar("T")


MOST_STAGES = 64
"""Of a pipelined loop and of its tiles."""
MOST_INT = 2**31 - 1
"""The largest int in an attribute, where its class says nothing else."""


class attribute(Generic[T]):  # noqa: N801 - used like a keyword in op classes
    """Declares an attribute of an op class; without a default it must be given.

    least, most: ints are from `least` to `most`; those in tuples at most that, of either sign. among: all values that
    there are. of: the type of a tuple's items.
    """

    name: str

    def __init__(
        self,
        type_: type[T],
        default: T | None = None,
        *,
        of: type[Any] = int,
        least: int = 0,
        most: int = MOST_INT,
        among: Sequence[T] = (),
    ) -> None:
        self.type, self.default, self.of, self.least, self.most, self.among = type_, default, of, least, most, among

    def problem(self, value: Any) -> str:
        """What keeps `value` from being this attribute's; "" if nothing does."""
        wanted: Any = self.type
        exact = wanted in (int, bool, str, tuple)
        if (type(value) is not wanted) if exact else not isinstance(value, wanted):
            return f"attribute {self.name} is {_shown(value)}, not of type {wanted.__name__}"
        if wanted is int and not self.least <= value <= self.most:
            return f"attribute {self.name} is {_shown(value)}; {self.least} to {self.most} are possible"
        if self.among and value not in self.among:
            return f"attribute {self.name} is {_shown(value)}; {', '.join(map(repr, self.among))} are possible"
        for item in value if wanted is tuple else ():
            if type(item) is not self.of or (self.of is int and abs(item) > self.most):
                return f"attribute {self.name} is {_shown(value)}, not of items of type {self.of.__name__}"
        return ""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, op: None, owner: type[Any]) -> attribute[T]: ...
    @overload
    def __get__(self, op: object, owner: type[Any]) -> T: ...
    def __get__(self, op: Any, owner: type[Any]) -> attribute[T] | T:
        return self if op is None else op.attrs[self.name]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
