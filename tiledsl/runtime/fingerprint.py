"""The key of a compiled kernel: a hash of everything that its code depends on.

That is the source of the kernel and of every function it reaches, the values they close over or read
from their modules, the specialisation, the target, the compiler's own sources and the versions of
what it calls. The IR is no part of it, so that a lookup runs no part of the compiler.
"""

from __future__ import annotations

import enum
import hashlib
import sys
from functools import cache, lru_cache
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Iterator, TypeVar

from tiledsl.annotations import closure_values
from tiledsl.errors import CompileError
from tiledsl.function import TileFunction
from tiledsl.ir.types import DType
from tiledsl.signature import Signature, Specialization
from tiledsl.source import function_source

__all__ = ["Unhashable", "compiler_key", "kernel_key", "specialization_key"]

PLAIN = (int, float, complex, str, bytes, bool, type(None), type(...), DType)


class Unhashable(Exception):  # noqa: N818 - not an error: the kernel is compiled without the disk cache
    """A value that the kernel uses has no content that a key could be made from."""


def kernel_key(signature: Signature) -> bytes:
    """Hash of the kernel's parameters, its source, and of all that it reaches. Raises Unhashable."""
    walk = _Walk()
    walk.add("signature", repr((signature.params, signature.arch)))
    for const in signature.consts:
        walk.add("const", f"{const.name}: {const.type!r}")
        walk.visit(const.default)
    walk.visit(signature.fn)
    return walk.hash.digest()


def specialization_key(spec: Specialization, arch: str) -> bytes:
    """Hash of a specialisation, consts included, and of the target. Raises Unhashable."""
    walk = _Walk()
    walk.add("spec", repr((spec.tensors, spec.index_bits, arch)))
    for name, value in spec.consts:
        walk.add("const", name)
        walk.visit(value)
    return walk.hash.digest()


class _Walk:
    """Feeds values into a hash, each function and container once."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.seen: dict[int, Any] = {}  # the values themselves keep their ids from being used again

    def add(self, kind: str, text: str) -> None:
        self.hash.update(f"{kind} {len(text)} {text}\n".encode())

    def visit(self, value: Any) -> None:
        if isinstance(value, PLAIN):
            self.add(type(value).__name__, repr(value))
            return
        if id(value) in self.seen:
            self.add("seen", str(list(self.seen).index(id(value))))
            return
        self.seen[id(value)] = value
        if isinstance(value, TileFunction):
            self.add("tile_function", value.name)
            self.visit(value.fn)
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, (tuple, list, dict, set, frozenset)):
            self._container(value)
        elif isinstance(value, enum.Enum):
            self.add("enum", f"{type(value).__module__}.{type(value).__qualname__}.{value.name}")
            self.visit(value.value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, (ModuleType, BuiltinFunctionType)):
            self.add("external", _external_name(value))
        else:
            self._object(value)

    def _function(self, fn: FunctionType) -> None:
        if _is_external(fn.__module__):
            self.add("external", f"{_external_name(sys.modules.get(fn.__module__))} {fn.__qualname__}")
            return
        try:
            source = function_source(fn)
            self.add("source", f"{source.file}:{source.line}\n{source.text}")
        except CompileError:
            self.add("generated", fn.__qualname__)  # a method of a dataclass, say: its code stands for it
        # Also where there is a source: two lambdas on one line share it.
        self._code(fn.__code__)
        self.visit(fn.__defaults__)
        self.visit(fn.__kwdefaults__)
        for name, value in sorted(closure_values(fn).items()):
            self.add("closure", name)
            self.visit(value)
        used = sorted(set(_names(fn.__code__)))
        for name in used:
            if name in fn.__globals__:
                self.add("global", name)
                self._global(fn.__globals__[name], used)

    def _code(self, code: CodeType) -> None:
        self.add("code", f"{code.co_code.hex()} {code.co_names}")
        for const in code.co_consts:
            self._code(const) if isinstance(const, CodeType) else self.visit(const)

    def _global(self, value: Any, names: list[str]) -> None:
        """A module-level value. What is read from a module of the user's counts by its value."""
        if not isinstance(value, ModuleType) or _is_external(value.__name__):
            self.visit(value)
            return
        self.add("module", value.__name__)
        for name in names:
            if name in vars(value):
                self.add("attribute", name)
                self.visit(vars(value)[name])

    def _container(self, value: Any) -> None:
        self.add(type(value).__name__, str(len(value)))
        items: list[Any] = list(value)
        if isinstance(value, (set, frozenset)):
            # The order of a set differs between runs; the hashes of its elements do not.
            self.add("elements", " ".join(sorted(_digest(item) for item in items)))
            return
        for item in items:
            self.visit(item)
            if isinstance(value, dict):
                self.visit(value[item])

    def _class(self, cls: type) -> None:
        self.add("class", f"{cls.__module__}.{cls.__qualname__}")
        if not _is_external(cls.__module__):
            for base in cls.__bases__:
                self.visit(base)
            self._members(vars(cls))

    def _object(self, value: Any) -> None:
        kind: type = value.__class__
        self.add("object", f"{kind.__module__}.{kind.__qualname__}")
        if isinstance(value, TypeVar):
            self.add("type variable", value.__name__)
            return
        if not _is_external(kind.__module__) or kind.__module__.startswith("tiledsl."):
            self.visit(kind)
            state = dict(getattr(value, "__dict__", {}))
            state |= {s: getattr(value, s) for s in _slots(kind) if hasattr(value, s)}
            for name, member in sorted(state.items()):
                self.add("state", name)
                self.visit(member)
            return
        raise Unhashable(f"{kind.__module__}.{kind.__qualname__}")

    def _members(self, members: Any) -> None:
        for name, member in sorted(members.items()):
            if name.startswith("__") and name.endswith("__") and not isinstance(member, FunctionType):
                continue
            inner = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(
                inner, (*PLAIN, TileFunction, FunctionType, tuple, list, dict, set, frozenset, type, enum.Enum)
            ):
                self.add("member", name)
                self.visit(inner)


def _digest(value: Any) -> str:
    walk = _Walk()
    walk.visit(value)
    return walk.hash.hexdigest()


def _slots(kind: type) -> Iterator[str]:
    for cls in kind.__mro__:
        slots = vars(cls).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def _names(code: CodeType) -> Iterator[str]:
    """Every global and attribute name that the code and the functions inside it read."""
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _names(const)


# -- what is not the user's ------------------------------------------------------------------------------


@cache
def _is_external(module: str | None) -> bool:
    """True for the standard library, installed packages and tiledsl itself: versions stand for their content."""
    if not module:
        return False
    top = module.split(".")[0]
    if (top in sys.stdlib_module_names and top != "__main__") or top in ("tiledsl", "builtins"):
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return any(part in ("site-packages", "dist-packages") for part in Path(file).parts)


def _external_name(value: Any) -> str:
    module = value if isinstance(value, ModuleType) else sys.modules.get(getattr(value, "__module__", None) or "")
    top = sys.modules.get(module.__name__.split(".")[0]) if module is not None else None
    return f"{getattr(value, '__name__', value)} of {getattr(top, '__name__', '')} {getattr(top, '__version__', '')}"


def compiler_key() -> bytes:
    """Hash of the compiler: the sources of tiledsl, the version of Python, and what the backend calls."""
    from tiledsl.backends.ptx.tools import tool_versions

    tools = f"{sys.implementation.cache_tag} {tool_versions()}\n"
    return hashlib.sha256(tools.encode() + _sources_key()).digest()


@lru_cache(maxsize=1)
def _sources_key() -> bytes:
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted(_sources(root)):
        digest.update(f"{path.relative_to(root)}\n".encode())
        digest.update(path.read_bytes())
    return digest.digest()


def _sources(folder: Path) -> Iterator[Path]:
    # Not rglob: it does not follow the link that backends/ptx is in a checkout.
    for path in folder.iterdir():
        if path.suffix == ".py":
            yield path
        elif path.name != "__pycache__" and path.is_dir():
            yield from _sources(path)
