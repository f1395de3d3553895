"""Generates the function that a call of a kernel runs, which launches on torch tensors in a few microseconds.

The function is generated for each kernel, so that it has no loop over parameters. It binds the arguments and looks up
the launch plan by all that the plan depends on. A call that has no plan yet (another library, a new shape, a wrong
argument) goes to `slow`, which checks every argument. All plans of a kernel are in one dictionary, under one key
(`_key`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tiledsl.meaning import Meaning
from tiledsl.runtime.launch import SEQUENCE_NAMES, launch_sequence
from tiledsl.signatures.signature import ScalarParam, Signature
from tiledsl.signatures.specialize import argument_error, const_identity

BINDING = """\
    if _len(_args) == {count}:
        {ordinary} = _args
    elif _len(_args) < {count}:
        {ordinary} = _args + _rest[_len(_args)]
    else:
        _refuse(_args, _kwargs)
    {device}
    if _kwargs:
{by_keyword}
        for _name in _kwargs:
{by_name}
            else: _refuse(_args, _kwargs)
    else:
{otherwise}
"""
"""Binds arguments to names. Python's own binding would raise a TypeError without a fix."""
LAUNCH = """\
def launch(_args, _kwargs):
{binding}    try:
{addresses}
        _plan = _plans[{key}] if _current() else None
    except _Exception:
        _plan = None
    if _plan is None:
        return {slow}
{chosen}    if ({gradient}) and _grad_enabled():
        return {slow}
    _pointers = {pointers}
    _stream = _raw_stream(_plan.device)
{sequence}"""
# A kernel's parameters do not begin with an underscore, so they cannot hide these names; builtins get one for that.
ADDRESS, OPTIONAL = "_address_of_{0}", "None if {0} is None else "


def _never() -> bool:
    return False


class Launcher:
    """The generated function of one kernel, ``launch(args, kwargs)``, and the kernel's plans.

    `slow(values, device)` runs a call that has no plan; `values` are all arguments and consts by name.
    `bind(args, kwargs)` returns these values: defaults for arguments that are not given, REQUIRED if there is none.
    Both generated functions raise KernelArgumentError for arguments that the kernel does not have.
    `keyed`: integer scalars whose values are part of the key, since the grid depends on them. `written`: the tensors
    that every plan writes, or None if plans differ.
    """

    LIMIT = 4096
    """Most plans that are kept, so that shapes that keep changing do not fill the memory."""

    def __init__(self, signature: Signature, slow: Callable[..., Any]) -> None:
        self.signature = signature
        self.plans: dict[Any, Any] = {}
        self.keyed: frozenset[str] = frozenset()
        self.written: tuple[str, ...] | None = ()
        self.launch: Any = None
        ordinary = [p for p in signature.params if not p.keyword]
        defaults = {p.name: p.default for p in (*signature.params, *signature.consts)}
        self._names: dict[str, Any] = {
            **SEQUENCE_NAMES,
            "_plans": self.plans,
            "_slow": slow,
            "_refuse": self._refuse,
            "_current": _never,
            "_const_identity": const_identity,
            "_rest": [tuple(defaults[p.name] for p in ordinary[given:]) for given in range(len(ordinary))],
            **{f"_default_{name}": default for name, default in defaults.items()},
            **{f"_{builtin.__name__}": builtin for builtin in (Exception, any, len, tuple, type)},
        }
        self._build()
        self.bind: Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]] = self._names["bind"]

    def _build(self) -> None:
        names = self._names
        exec(launcher_source(self.signature, self.keyed, self.written), names)
        if self.launch is None:
            self.launch = names["launch"]
        self.launch.__code__ = names["launch"].__code__  # TileKernel holds the function object

    def _refuse(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise KernelArgumentError for a call with too many or unknown arguments."""
        signature = self.signature
        fix = f"call it as {signature.usage}"
        ordinary = [p.name for p in signature.params if not p.keyword]
        if len(args) > len(ordinary):
            message = f"{len(args)} arguments by position; it takes {len(ordinary)} ({', '.join(ordinary)})"
            raise argument_error(signature, message, fix)
        known = {p.name for p in (*signature.params, *signature.consts)}.difference(ordinary[: len(args)])
        name = min((n for n in kwargs if n not in known), key=lambda n: n == "device")
        if name in ordinary:
            raise argument_error(signature, f"{name} is given twice, by position and by name", fix)
        consts = ", ".join(c.name for c in signature.consts) or "none"
        raise argument_error(signature, f"unknown argument or const {name}; its consts: {consts}", fix)

    def key(self, values: Mapping[str, Any]) -> Any:
        """The key of the plan for a call with `values`, `device` among them."""
        return self._names["key"](**values)

    def plan(self, key: Any, meaning: Meaning) -> Any:
        """The plan under `key`, if the kernel had the same `meaning` when it was made; else None."""
        return self.plans.get(key) if meaning.guards.check is self._names["_current"] else None

    def add(self, key: Any, plan: Any, meaning: Meaning) -> None:
        """Keep `plan` for as long as the kernel has this `meaning`."""
        current = meaning.guards.check
        if len(self.plans) >= self.LIMIT or current is not self._names["_current"]:
            self.plans.clear()
        if plan.written != self.written and self.written is not None:
            self.written = None if self.plans else plan.written
            self._build()
        self._names["_current"] = current
        self.plans[key] = plan

    def take_torch(self, raw_stream: Callable[[int], int], grad_enabled: Callable[[], bool]) -> None:
        """Set the functions of torch that the generated function calls."""
        self._names.update(_raw_stream=raw_stream, _grad_enabled=grad_enabled)

    def key_by_value(self, scalars: frozenset[str]) -> None:
        """Make the values of `scalars` part of the key: the grid depends on them."""
        if not scalars <= self.keyed:
            self.keyed |= scalars
            self.plans.clear()
            self._build()


def launcher_source(signature: Signature, keyed: frozenset[str], written: tuple[str, ...] | None) -> str:
    """The text of `launch`, `bind` and `key` of a kernel. `written`: see `Launcher`."""
    names = [p.name for p in (*signature.params, *signature.consts)]
    # A copy: binding takes names out of it, and a caller may keep its own.
    head = "def bind(_args, _kwargs):\n    _kwargs = {**_kwargs}\n"
    bind = f"{head}{_binding(signature, device=False)}    return {_bound(signature)}\n"
    key = f"def key({', '.join([*names, 'device'])}): return {_key(signature, keyed, '{}.data_ptr()')}\n"
    return f"{_launch(signature, keyed, written)}{bind}{key}"


def _bound(signature: Signature) -> str:
    """The text of a dict of all arguments and consts by name."""
    return "{" + ", ".join(f"{p.name!r}: {p.name}" for p in (*signature.params, *signature.consts)) + "}"


def _binding(signature: Signature, *, device: bool) -> str:
    ordinary = [p.name for p in signature.params if not p.keyword]
    named = [p.name for p in (*signature.params, *signature.consts) if p.name not in ordinary]
    by_name = [f"elif _name == {n!r} and _len(_args) <= {i}: {n} = _kwargs[{n!r}]" for i, n in enumerate(ordinary)]
    by_name.reverse()  # calls mostly name the last ones
    if device:
        by_name.append("elif _name == 'device': device = _kwargs['device']")
    return BINDING.format(
        count=len(ordinary),
        ordinary=f"[{', '.join(ordinary)}]",
        device="device = None" if device else "",
        by_keyword=_lines(8, [f"{name} = _kwargs.pop({name!r}, _default_{name})" for name in named]),
        by_name=_lines(12, ["if False: pass", *by_name]),
        otherwise=_lines(8, [f"{name} = _default_{name}" for name in named]),
    )


def _lines(indent: int, lines: Iterable[str]) -> str:
    return "\n".join(" " * indent + line for line in lines) or " " * indent + "pass"


def _launch(signature: Signature, keyed: frozenset[str], written: tuple[str, ...] | None) -> str:
    tensors = signature.tensors
    addresses = [f"{ADDRESS} = {OPTIONAL if p.optional else ''}{{0}}.data_ptr()".format(p.name) for p in tensors]
    pointers = f"({''.join(f'{ADDRESS}, '.format(p.name) for p in tensors)})"
    if any(p.optional for p in tensors):
        pointers = f"_tuple(_p for _p in {pointers} if _p is not None)"
    if written is None:
        every = "".join(f"({p.name!r}, {p.name}), " for p in tensors)
        chosen = f"    _written = _tuple(_t for _n, _t in ({every}) if _n in _plan.written)\n"
        changed, gradient = "_written", "_any(_t.requires_grad for _t in _written)"
    else:
        chosen, changed = "", f"({''.join(f'{name}, ' for name in written)})"
        gradient = " or ".join(f"{name}.requires_grad" for name in written) or "False"
    slow = f"_slow({_bound(signature)}, device)"
    return LAUNCH.format(
        binding=_binding(signature, device=True),
        addresses=_lines(8, addresses),
        key=_key(signature, keyed, ADDRESS),
        slow=slow,
        chosen=chosen,
        gradient=gradient,
        pointers=pointers,
        sequence=launch_sequence("_plan.windows", ", ".join(p.name for p in signature.scalars), changed, slow),
    )


def _key(signature: Signature, keyed: frozenset[str], address: str) -> str:
    """The text of a plan's key: all that the plan depends on, and the types of scalars, which it was checked for.

    The variable `device` is the one the caller asked for. Arrays are read through torch's methods, which `ArrayInfo`
    has, too. `address`: the expression for the address of array {0}.
    """
    parts: list[str] = []
    for param in signature.params:
        name = param.name
        if isinstance(param, ScalarParam):
            parts += [f"_type({name})", *([name] if name in keyed else [])]
            continue
        asked = f"{name}.dtype, {name}.shape, {name}.stride(), {address.format(name)} & 15, {name}.get_device()"
        parts.append(f"{OPTIONAL.format(name)}({asked})" if param.optional else asked)
    for const in signature.consts:
        plain = const.type in (int, str, bool)
        # The type too: True and 1.0 are equal to 1.
        parts.append(f"_type({const.name}), {const.name}" if plain else f"_const_identity({const.name})")
    return f"({', '.join([*parts, 'device'])},)"
