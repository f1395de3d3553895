"""Writes the function that a call of a kernel runs: torch tensors of known shapes launch in a few microseconds.

The function is generated for each kernel, so that Python binds the arguments by itself and no loop runs
over parameters. It looks up the launch plan by everything of the arguments that the plan depends on.
What it does not know (another library, a new shape, a wrong argument) it hands to `slow`, which checks
every argument with an error for each fault, and adds the plan.
"""

from __future__ import annotations

import struct
from typing import Any, Callable, Iterable, Mapping

from tiledsl.ir.types import BF16
from tiledsl.runtime.launch import LaunchPlan
from tiledsl.signature import REQUIRED, ConstParam, GlobalParam, ScalarParam, Signature
from tiledsl.specialize import bf16_bits, const_identity

__all__ = ["MISSING", "Launcher", "key_text", "launcher_source"]


class _Missing:
    def __repr__(self) -> str:
        return "<missing>"


MISSING: Any = _Missing()
"""Stands for an argument that was not given, so that the error can name it."""

TEMPLATE = """\
def launch({parameters}):
    try:
{addresses}
        _plan = _plans[{key}] if _current() else None
    except _Exception:
        _plan = None
    if _plan is None:
        return _slow({values})
{written}
    if {gradient}:
        return _slow({values})
    _pointers = {pointers}
    try:
        _frame = _plan.frames.pop()
    except _IndexError:
        _frame = _plan.arguments.new_frame()
    if _frame.packed != _pointers:
        for _i, _j, _low, _high in _plan.windows:
            if _low < _pointers[_j] - _pointers[_i] < _high:
                return _slow({values})
{pack_pointers}
        if _plan.maps is not None:
            _plan.maps.write(_frame, _pointers)
        _frame.packed = _pointers
{pack_scalars}
    _code = _plan.launch(_raw_stream(_plan.device), _frame.address, 0)[0]
    if _code:
        _plan.failed(_code, _raw_stream(_plan.device), _frame)
    _bump_versions({changed})
    _plan.driver.last_kernel = _plan.kernel
    _plan.frames.append(_frame)
"""
PACK_SCALARS = """\
    try:
        _plan.pack(_frame.buffer, 0, {packed})
    except (_OverflowError, _struct_error):
        _frame = None
    if _frame is None:
        return _slow({values})"""
"""Scalars are packed at each launch; addresses alone, where they are others than the last time."""
# Parameters of a kernel do not begin with an underscore, so they cannot hide the names above: builtins have one, too.


def _never() -> bool:
    return False


def _no_grad() -> bool:
    return False


def _no_versions(tensors: tuple[Any, ...]) -> None:
    """Stands in for torch where the arrays are not torch's."""


class Launcher:
    """The generated function of one kernel, and its plans.

    `keyed`: integer scalars on whose value the grid depends, so that it is part of the key. `written`: the tensors
    that all plans write; None where they differ, so that each plan says which.
    """

    LIMIT = 4096
    """Plans are dropped beyond this many: shapes that vary without end must not fill the memory."""

    def __init__(self, signature: Signature, slow: Callable[..., None]) -> None:
        self.signature, self._slow = signature, slow
        self.plans: dict[Any, LaunchPlan] = {}
        self.keyed: frozenset[str] = frozenset()
        self.written: tuple[str, ...] | None = ()
        self._current: Callable[[], bool] = _never
        self._names: dict[str, Any] = {}
        self.launch: Any = None
        self._build()

    def _build(self) -> None:
        names = self._names
        names |= {
            "_plans": self.plans,
            "_slow": self._slow,
            "_struct_error": struct.error,
            "_bf16_bits": bf16_bits,
            "_const_identity": const_identity,
            "_current": self._current,
            "_grad_enabled": _no_grad,
            "_bump_versions": _no_versions,
            **{f"_{builtin.__name__}": builtin for builtin in (Exception, IndexError, OverflowError, any, type)},
        }
        for param in (*self.signature.params, *self.signature.consts):
            names[f"_default_{param.name}"] = MISSING if param.default is REQUIRED else param.default
        exec(launcher_source(self.signature, self.keyed, self.written), names)
        if self.launch is None:
            self.launch = names["launch"]
        self.launch.__code__ = names["launch"].__code__  # the kernel holds the function, so that it finds it at once
        exec(f"def key({_parameters(self.signature)}): return {key_text(self.signature, self.keyed)}", names)
        self._key: Callable[..., Any] = names["key"]

    def with_defaults(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments and consts by name: `given`, else the default, else MISSING."""
        every = (*self.signature.params, *self.signature.consts)
        return {p.name: given[p.name] if p.name in given else self._names[f"_default_{p.name}"] for p in every}

    def add(
        self,
        values: dict[str, Any],
        plan: LaunchPlan,
        raw_stream: Callable[[int], int],
        current: Callable[[], bool],
        grad_enabled: Callable[[], bool] = _no_grad,
        bump_versions: Callable[[tuple[Any, ...]], None] = _no_versions,
    ) -> None:
        """Remember `plan` for torch arguments like `values`, as long as `current` is true: the guards of its kernel.
        The other functions are torch's."""
        if len(self.plans) >= self.LIMIT or current is not self._current:
            self.plans.clear()
        self._current = current
        written = tuple(self.signature.tensors[position].name for position in plan.written)
        if written != self.written and self.written is not None:
            self.written = None if self.plans else written
            self._build()
        self._names.update(_raw_stream=raw_stream, _grad_enabled=grad_enabled, _bump_versions=bump_versions)
        self._names["_current"] = current
        self.plans[self._key(**values)] = plan

    def key_by_value(self, scalars: frozenset[str]) -> None:
        """From now on the grid depends on the value of `scalars`, too."""
        if not scalars <= self.keyed:
            self.keyed |= scalars
            self.plans.clear()
            self._build()


def launcher_source(signature: Signature, keyed: frozenset[str], written: tuple[str, ...] | None) -> str:
    """The text of the launcher of `signature`. `written`: see `Launcher`."""
    tensors = signature.tensors
    addresses = [f"{_address(p)} = {_if_given(p, f'{p.name}.data_ptr()')}" for p in tensors]
    pointers = "".join(f"{_address(p)}, " for p in tensors)
    passed = [_address(p) for p in tensors]
    if any(p.optional for p in tensors):
        pointers = f"*(_p for _p in ({pointers}) if _p is not None),"
        passed = ["*_pointers"]  # to unpack costs more
    packed = [f"_bf16_bits({p.name})" if p.dtype == BF16 else p.name for p in signature.scalars]
    every = (*signature.params, *signature.consts)
    values = ", ".join(["device", *(f"{p.name}={p.name}" for p in every)])
    together = ", ".join([*passed, *packed])
    pack = "" if packed else f"        _plan.pack(_frame.buffer, 0, {together})"
    pack_scalars = PACK_SCALARS.format(packed=together, values=values) if packed else ""
    if written is None:
        chosen, changed = f"    _written = _plan.take({_tuple(p.name for p in tensors)})", "_written"
        gradient = "_any(_tensor.requires_grad for _tensor in _written) and _grad_enabled()"
    else:
        chosen, changed = "", _tuple(written)
        gradient = f"({' or '.join(f'{name}.requires_grad' for name in written) or False}) and _grad_enabled()"
    return TEMPLATE.format(
        parameters=_parameters(signature),
        addresses="\n".join(f"        {line}" for line in addresses) or "        pass",
        key=_key(signature, keyed, _address),
        values=values,
        written=chosen,
        gradient=gradient,
        changed=changed,
        pointers=f"({pointers})",
        pack_pointers=pack,
        pack_scalars=pack_scalars,
    )


def _tuple(names: Iterable[str]) -> str:
    return f"({''.join(f'{name}, ' for name in names)})"


def key_text(signature: Signature, keyed: frozenset[str]) -> str:
    """The key of a plan as an expression of the arguments alone."""
    return _key(signature, keyed, lambda p: f"{p.name}.data_ptr()")


def _key(signature: Signature, keyed: frozenset[str], address: Callable[[GlobalParam], str]) -> str:
    parts: list[str] = []
    for param in signature.params:
        name = param.name
        if isinstance(param, ScalarParam):
            parts += [f"_type({name})", *([name] if name in keyed else [])]
        elif param.optional:
            tensor = f"{name}.dtype, {name}.shape, {name}.stride(), {address(param)} & 15, {name}.get_device()"
            parts.append(f"None if {name} is None else ({tensor})")
        else:
            parts += [
                f"{name}.dtype",
                f"{name}.shape",
                f"{name}.stride()",
                f"{address(param)} & 15",
                f"{name}.get_device()",
            ]
    for const in signature.consts:
        plain = const.type in (int, str, bool)
        # The type too: True and 1.0 are equal to 1.
        parts.append(f"_type({const.name}), {const.name}" if plain else f"_const_identity({const.name})")
    parts.append("device")
    return f"({', '.join(parts)},)"


def _address(param: GlobalParam) -> str:
    return f"_address_of_{param.name}"


def _if_given(param: GlobalParam, text: str) -> str:
    return f"None if {param.name} is None else {text}" if param.optional else text


def _parameters(signature: Signature) -> str:
    """The parameter list. Every one has a default, so that a missing argument reaches `slow` as MISSING."""

    def declared(param: GlobalParam | ScalarParam | ConstParam) -> str:
        return f"{param.name}=_default_{param.name}"

    ordinary = [declared(p) for p in signature.params if not p.keyword]
    named = [declared(p) for p in signature.params if p.keyword] + [declared(c) for c in signature.consts]
    return ", ".join([*ordinary, "*", *named, "device=None"])
