"""An old kernel is never served: not from disk after a change of anything that the kernel reads, nor in a process."""

from __future__ import annotations

import gc
import importlib
import linecache
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.unit.stale_inventions import INVENTED
from tests.unit.stale_scenarios import REPORTED, Scenario
from tests.unit.test_runtime_launch import Harness, Tensor, meant
from tiledsl import frontend
from tiledsl.compilation import fingerprint
from tiledsl.errors import CompileError, KernelArgumentError, TileError
from tiledsl.ir.printer import print_kernel
from tiledsl.meaning import meaning_of, versions
from tiledsl.signatures.specialize import assumed, check_consts

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fresh_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules are importable."""
    for path in (tmp_path / "site-packages", tmp_path):
        monkeypatch.syspath_prepend(str(path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


def version(folder: Path, scenario: Scenario, new: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[bytes | None, str]:
    """The key of one version on disk, None if it is not kept there, and the IR that it compiles to."""
    for name, text in scenario.sources(new).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, value in scenario.environment.items():
        monkeypatch.setenv(name, scenario.version(value, new))
    # Modules of the standard library of the same name may be loaded.
    mine = {path.stem for path in folder.rglob("*")}
    hidden = {name: module for name, module in sys.modules.items() if name.split(".")[0] in mine}
    for name in hidden:
        del sys.modules[name]
    importlib.invalidate_caches()
    try:
        kernel = importlib.import_module(scenario.module.removeprefix("site-packages.")).k
        signature = kernel.signature
        spec = assumed(signature, {}, check_consts(signature, {}))
        try:
            key = fingerprint.kernel_key(signature, kernel.builds.meaning())
            key += fingerprint.specialization_key(spec, "sm_90a")
        except fingerprint.NotUnderstood:
            key = None
        return key, print_kernel(frontend.build(signature, spec, "sm_90a"))
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] in mine]:
            del sys.modules[name]
        sys.modules.update(hidden)


@pytest.mark.parametrize("scenario", [*REPORTED, *INVENTED], ids=lambda s: s.name)
def test_a_changed_program_has_another_key(
    scenario: Scenario, fresh_modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The versions compile to different code. So their keys differ, or they have none."""
    (old, old_ir), (new, new_ir) = (version(fresh_modules, scenario, n, monkeypatch) for n in (False, True))
    assert old_ir != new_ir
    assert old is None or old != new
    assert (old is not None, new is not None) == (scenario.kept, scenario.kept)


@pytest.mark.parametrize("scenario", [s for s in (*REPORTED, *INVENTED) if s.kept], ids=lambda s: s.name)
def test_the_same_program_has_the_same_key(
    scenario: Scenario, fresh_modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, _), (again, _) = (version(fresh_modules, scenario, False, monkeypatch) for _ in range(2))
    assert first is not None
    assert first == again


# -- in one process --------------------------------------------------------------------------------------

KERNEL = """
from tiledsl import *
from tiledsl.dims import M
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
import collections, functools, helpers
import numpy as np
{before}

@tile_kernel
def k(A: Global[f32, M], *, T: const = 4):
    A.put(grid(1) + threads(T), f32({value}))
"""

CHANGES: dict[str, tuple[str, str, str]] = {
    # what changes: (definitions, what the kernel stores: 1.5, then 2.5; the change)
    "a global": ("G = 1.5", "G", "G = 2.5"),
    "the type of a global": ("G = 1", "2.5 if isinstance(G, float) else 1.5", "G = 1.0"),
    "True for 1": ("G = 1", "2.5 if G is True else 1.5", "G = True"),
    "the sign of zero": ("G = 0.0\ndef h(): return 2.5 if str(G)[0] == '-' else 1.5", "h()", "G = -0.0"),
    "what is equal to everything": (
        "class Any_:\n    s = 2.5\n    def __eq__(self, o): return True\nclass C:\n    s = 1.5", "C.s", "C = Any_()",
    ),
    "an attribute of a module": ("", "helpers.scale", "helpers.scale = 2.5"),
    "a module by another": ("", "helpers.scale", "helpers = SimpleNamespace(scale=2.5)"),
    "a builtin, shadowed": ("", "max(1.5, 1.0)", "def max(a, b): return 2.5"),
    "a global, deleted": ("def max(a, b): return 1.5", "max(2.5, 1.0)", "del max"),
    "a closure": (
        "def make():\n    s = 1.5\n    def get(): return s\n    def set(v):\n        nonlocal s\n        s = v\n"
        "    return get, set\n"
        "get, set = make()", "get()", "set(2.5)",
    ),
    "a helper": ("def h(): return 1.5", "h()", "def h(): return 2.5"),
    "the code of a helper": ("def h(): return 1.5", "h()", "h.__code__ = (lambda: 2.5).__code__"),
    "the defaults of a helper": ("def h(s=1.5): return s", "h()", "h.__defaults__ = (2.5,)"),
    "the keyword defaults of a helper": ("def h(*, s=1.5): return s", "h()", "h.__kwdefaults__['s'] = 2.5"),
    "an attribute of a helper": ("def h(): return getattr(h, 's', 1.5)", "h()", "h.s = 2.5"),
    "a tile function": (
        "@tile_function\ndef f(x: f32) -> f32: return x + 0.5\n@tile_function\ndef g(x: f32) -> f32: return x + 1.5",
        "f(f32(1.0))", "f = g",
    ),
    "the code of a tile function": (
        "@tile_function\ndef f(x: f32) -> f32:\n    return x + 0.5\n@tile_function\ndef g(x: f32) -> f32:\n"
        "    return x + 1.5",
        "f(f32(1.0))", "f.fn.__code__ = g.fn.__code__",
    ),
    "a global of a tile function elsewhere": ("", "helpers.scaled(f32(1.0))", "helpers.scale = 2.5"),
    "an item of a list": ("L = [1.5]", "L[0]", "L[0] = 2.5"),
    "an item of a list in a tuple": ("L = (0, [1.5])", "L[1][0]", "L[1][0] = 2.5"),
    "the length of a list": ("L = [1.5]", "L[-1]", "L.append(2.5)"),
    "a long list": ("L = [1.5] * 1000", "L[999]", "L[999] = 2.5"),
    "an item of a dict": ("D = {'a': {'b': 1.5}}", "D['a']['b']", "D['a']['b'] = 2.5"),
    "the order of a dict": (
        "D = collections.OrderedDict(a=1.5, b=2.5)\ndef h(): return next(iter(D.values()))", "h()",
        "D.move_to_end('a')",
    ),
    "a key of a dict": ("X = 1.5\nD = {'a': X}", "D['a'] if 'a' in D else 2.5", "D['b'] = D.pop('a')"),
    "a set": ("S = {1}", "2.5 if 2 in S else 1.5", "S.add(2)"),
    "an attribute of an object": ("class C: pass\nc = C()\nc.s = 1.5", "c.s", "c.s = 2.5"),
    "an attribute that hides one of the class": ("class C:\n    s = 1.5\nc = C()", "c.s", "c.s = 2.5"),
    "an attribute of a class": ("class C:\n    s = 1.5", "C.s", "C.s = 2.5"),
    "a new attribute of a class": ("class P:\n    s = 1.5\nclass C(P): pass", "C.s", "C.s = 2.5"),
    "an attribute of a base": ("class P:\n    s = 1.5\nclass C(P): pass\nc = C()", "c.s", "P.s = 2.5"),
    "the bases of a class": (
        "class P:\n    s = 1.5\nclass Q:\n    s = 2.5\nclass C(P): pass", "C.s", "C.__bases__ = (Q,)",
    ),
    "the class of an object": (
        "class P:\n    s = 1.5\nclass Q:\n    s = 2.5\nc = P()", "c.s", "c.__class__ = Q",
    ),
    "a slot": (
        "class C:\n    __slots__ = ('s',)\nc = C()\nc.s = 1.5", "c.s", "c.s = 2.5",
    ),
    "a method": ("class C:\n    def s(self): return 1.5\nc = C()", "c.s()", "C.s = lambda self: 2.5"),
    "the code of a method": (
        "class C:\n    def s(self): return 1.5\nc = C()", "c.s()", "C.s.__code__ = (lambda self: 2.5).__code__",
    ),
    "a property": (
        "class C:\n    @property\n    def s(self): return self._s\nc = C()\nc._s = 1.5", "c.s", "c._s = 2.5",
    ),
    "a namespace": ("N = SimpleNamespace(s=1.5)", "N.s", "N.s = 2.5"),
    "an element of an array": ("N = np.array([1.5])", "float(N[0])", "N[0] = 2.5"),
    "a bytearray": ("B = bytearray(b'1.5')", "float(B)", "B[0] = ord('2')"),
    "a partial": (
        "P = functools.partial(float, 1.5)", "P()", "P.__setstate__((float, (2.5,), {}, None))",
    ),
    "a field of a dataclass": (
        "@dataclass\nclass C:\n    s: float\nc = C(1.5)", "c.s", "c.s = 2.5",
    ),
    "the end of a long chain of functions": (
        "G = 1.5\ndef h0(): return G\n" + "\n".join(f"def h{i}(): return h{i - 1}()" for i in range(1, 300)),
        "h299()", "G = 2.5",
    ),
    "a list in a frozen dataclass": (
        "@dataclass(frozen=True)\nclass P:\n    l: Any\np = P([1.5])", "p.l[0]", "p.l[0] = 2.5",
    ),
    "what hasattr() finds": ("N = SimpleNamespace()", "2.5 if hasattr(N, 'x') else 1.5", "N.x = 1"),
    "an attribute that a module gets": (
        "def h():\n    try: return helpers.late\n    except AttributeError: return 1.5", "h()", "helpers.late = 2.5",
    ),
    "an operand's operator": (
        "class V:\n    def __add__(self, o): return G + o\nG = 1.5\nv = V()", "v + 0.0", "G = 2.5",
    ),
    "a method of a metaclass": (
        "class M_(type):\n    def s(cls): return 1.5\nclass C(metaclass=M_): pass", "C.s()", "M_.s = lambda cls: 2.5",
    ),
    "an Enum's attribute": (
        "import enum\nclass E(enum.Enum):\n    X = 1\n    def s(self): return 1.5", "E.X.s()", "E.s = lambda self: 2.5",
    ),
}  # fmt: skip


def stored(kernel: Any, **consts: Any) -> float:
    out = np.zeros(4, np.float32)
    kernel(out, device="emulator", **consts)
    return float(out[0])


@pytest.fixture
def make_module(fresh_modules: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Any]:
    """A module of `before` and a kernel that stores `value`."""

    def make(before: str, value: str) -> Any:
        (fresh_modules / "helpers.py").write_text(
            "from tiledsl import *\nscale = 1.5\n@tile_function\ndef scaled(x: f32) -> f32: return x * scale\n"
        )
        (fresh_modules / "changing.py").write_text(KERNEL.format(before=before, value=value))
        for name in ("helpers", "changing"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        return importlib.import_module("changing")

    return make


GUARDS = {"as it is": versions._COUNTED, "a Python without versions": False}
"""Whether Python tells the versions of dicts."""


@pytest.fixture(params=GUARDS)
def guarded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_COUNTED", GUARDS[request.param])


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("change", CHANGES)
def test_a_kernel_sees_what_its_names_mean_now(make_module: Callable[[str, str], Any], change: str) -> None:
    before, value, then = CHANGES[change]
    module = make_module(before, value)
    assert stored(module.k) == 1.5
    meaning = module.k.builds.meaning()
    assert stored(module.k) == 1.5 and module.k.builds.meaning() is meaning  # nothing is walked again
    exec(then, vars(module))
    assert stored(module.k) == 2.5
    assert stored(module.k, T=2) == 2.5  # another specialisation sees the same


MANY = "\n".join(f"G{i} = {i}" for i in range(20))
ALL = " + ".join(f"G{i}" for i in range(20)) + f" - {sum(range(20))}"
WAYS: dict[str, tuple[str, str, str]] = {
    # which of many names changes: as in CHANGES
    "a global": (MANY + "\nG = 1.5", f"{ALL} + G", "G = 2.5"),
    "a global, by its dict": (MANY + "\nG = 1.5", f"{ALL} + G", "globals().update(G=2.5)"),
    "a global, deleted": (MANY + "\ndef max(a, b): return 1.5", f"{ALL} + max(2.5, 1.0)", "del max"),
    "a builtin, shadowed": (MANY, f"{ALL} + max(1.5, 1.0)", "def max(a, b): return 2.5"),
    "an attribute of a module": (MANY + "\nimport helpers", f"{ALL} + helpers.scale", "helpers.scale = 2.5"),
    "a module by another": (
        MANY + "\nimport helpers, types\nother = types.ModuleType('other')\nother.scale = 2.5",
        f"{ALL} + helpers.scale", "helpers = other",
    ),
    "an attribute of the next module": (
        MANY + "\nimport helpers, types\nother = types.ModuleType('other')\nother.scale = helpers.scale",
        f"{ALL} + helpers.scale", "helpers = other\nk.builds.meaning()\nother.scale = 2.5",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("way", WAYS)
def test_a_change_of_one_of_many_names_is_seen(make_module: Callable[[str, str], Any], way: str) -> None:
    before, value, then = WAYS[way]
    module = make_module(before, value)
    assert [stored(module.k) for _ in range(3)] == [1.5] * 3
    module.unrelated, meaning = 1, module.k.builds.meaning()
    assert stored(module.k) == 1.5 and module.k.builds.meaning() is meaning
    exec(then, vars(module))
    assert [stored(module.k) for _ in range(3)] == [2.5] * 3


def test_a_builtin_that_a_global_stood_for(make_module: Callable[[str, str], Any]) -> None:
    """The global goes, the builtin is the same object: nothing has changed. Then the builtin does."""
    module = make_module(MANY + "\noct = oct", f"{ALL} + (1.5 if oct(8) == '0o10' else 2.5)")
    assert stored(module.k) == 1.5
    del module.oct
    assert stored(module.k) == 1.5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.oct", lambda x: "")
        assert stored(module.k) == 2.5
    assert stored(module.k) == 1.5


DICT_CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "an item": lambda d: d.__setitem__("a", 2),
    "the type of an item": lambda d: d.__setitem__("a", True),
    "a new item": lambda d: d.__setitem__("new", 1),
    "an item less": lambda d: d.pop("a"),
    "the last item": lambda d: d.popitem(),
    "del": lambda d: d.__delitem__("b"),
    "update": lambda d: d.update(a=3),
    "|=": lambda d: d.__ior__({"b": 5}),
    "setdefault": lambda d: d.setdefault("c", 1),
    "clear": lambda d: d.clear(),
    "a global": lambda d: exec("global a\na = 7", d),
    "an attribute": lambda d: setattr(module_of(d), "a", 9),
}


def module_of(names: dict[str, Any]) -> Any:
    return names["__module__"]


@pytest.mark.parametrize("change", DICT_CHANGES)
def test_every_change_of_a_dict_is_a_new_version(change: str) -> None:
    """Where Python counts versions at all. What only reads the dict changes nothing."""
    module = ModuleType("m")
    names = vars(module)
    names.update(a=1, b=2, __module__=module)
    version = versions.version_of(names)
    assert (version is not None) == (sys.version_info < (3, 13))
    if version is None:
        return
    before = version.value
    assert names["a"] == module.a == eval("a", names) and "__builtins__" in names
    before = version.value
    assert names["a"] == module.a and [*names.values()] and version.value == before
    DICT_CHANGES[change](names)
    assert version.value != before


def test_a_class_has_a_dict_behind_its_view() -> None:
    class C:
        s = 1

    body = versions.body_of(C)
    assert body is not None and body == dict(C.__dict__)
    version = versions.version_of(body)
    before = version and version.value
    C.s = 2
    assert body["s"] == 2 and (version is None or version.value != before)


def test_guards_outlive_what_they_look_at(make_module: Callable[[str, str], Any]) -> None:
    """A launcher may still ask guards of a kernel that means another thing by now: their dicts are kept."""
    module = make_module("D = {'s': 1.5}", "D['s']")
    assert stored(module.k) == 1.5
    check = module.k.builds.meaning().guards.check
    module.D = {"s": 2.5}
    assert stored(module.k) == 2.5
    gc.collect()
    assert not check()


def test_what_was_compiled_before_is_not_compiled_again(make_module: Callable[[str, str], Any]) -> None:
    """A value that comes back, or an equal one: nothing is compiled for it."""
    module = make_module("G = 1.5", "G")
    for value in (1.5, 2.5, float("1.5"), float("2.5")):
        module.G = value
        assert stored(module.k) == value
    assert len(module.k.builds._known) == 2


def test_a_helper_that_changes_what_the_kernel_reads_is_compiled_twice_and_not_kept(
    make_module: Callable[[str, str], Any],
) -> None:
    module = make_module("COUNT = []\ndef h():\n    COUNT.append(1)\n    return float(len(COUNT))", "h()")
    assert [stored(module.k) for _ in range(3)] == [2.0, 2.0, 2.0]


# -- consts ----------------------------------------------------------------------------------------------

CONSTS = """
from tiledsl import *
from tiledsl.dims import M
from dataclasses import dataclass, field
from typing import Any

@dataclass(frozen=True)
class P:
    x: Any

@dataclass(frozen=True)
class Q:
    a: int
    b: float = field(default=1.0, compare=False)

class R:
    def __init__(self, v): self.v = v

@tile_kernel
def k(A: Global[f32, M], *, p: Const[Any]):
    A.put(grid(1) + threads(4), f32({value}))
"""


@pytest.fixture
def make_consts(fresh_modules: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    def make(value: str) -> Any:
        (fresh_modules / "consts.py").write_text(CONSTS.format(value=value))
        monkeypatch.delitem(sys.modules, "consts", raising=False)
        importlib.invalidate_caches()
        return importlib.import_module("consts")

    return make


@pytest.mark.parametrize(
    ("value", "first", "second"),
    [
        ("1.5 if isinstance(p.x, int) else 2.5", "P(1)", "P(1.0)"),
        ("1.5 if p.x is not True else 2.5", "P(1)", "P(True)"),
        ("1.5 if isinstance(list(p)[0], int) else 2.5", "frozenset({1})", "frozenset({1.0})"),
        ("p.b", "Q(1, 1.5)", "Q(1, 2.5)"),
        ("1.5 if str(p[0][0]) == '0.0' else 2.5", "((0.0,),)", "((-0.0,),)"),
        ("p()", "(lambda: 1.5)", "(lambda: 2.5)"),
        ("p.v", "R(1.5)", "R(2.5)"),
        ("1.5 if p is f32 else 2.5", "f32", "f16"),
    ],
)
def test_consts_that_python_calls_equal_are_told_apart(
    make_consts: Callable[[str], Any], value: str, first: str, second: str
) -> None:
    module = make_consts(value)
    assert stored(module.k, p=eval(first, vars(module))) == 1.5
    assert stored(module.k, p=eval(second, vars(module))) == 2.5


def test_a_const_that_changes_is_followed(make_consts: Callable[[str], Any]) -> None:
    module = make_consts("p.v if isinstance(p, R) else p()")
    r, f = module.R(1.5), lambda: 1.5
    assert (stored(module.k, p=r), stored(module.k, p=f)) == (1.5, 1.5)
    r.v, f.__code__ = 2.5, (lambda: 2.5).__code__
    assert (stored(module.k, p=r), stored(module.k, p=f)) == (2.5, 2.5)


def test_an_object_without_readable_content_is_no_const(make_consts: Callable[[str], Any]) -> None:
    with pytest.raises(KernelArgumentError, match="const p is a list_iterator, whose content cannot be read") as caught:
        stored(make_consts("1.5").k, p=iter([1]))
    assert "fix: pass a number" in str(caught.value)


def test_the_guards_of_a_value_see_all_of_it() -> None:
    """Alone, without the names and functions that a kernel has."""
    items: list[Any] = [1.5, [2.5]]
    for change in (lambda: items.append(1), lambda: items[1].clear(), lambda: items.__setitem__(0, 1.5 + len(items))):
        meaning = meaning_of(items)
        assert meaning.holds()
        change()
        assert not meaning.holds()
        assert meaning_of(items).digest != meaning.digest


# -- what cannot be followed -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "value"),
    [("G = iter([1.5, 2.5])", "next(G)"), ("class C:\n    g = iter([1.5])", "next(C.g)")],
)
def test_a_mutable_object_whose_content_cannot_be_read_is_an_error_at_the_line(
    make_module: Callable[[str, str], Any], before: str, value: str
) -> None:
    with pytest.raises(CompileError) as caught:
        stored(make_module(before, value).k)
    text = str(caught.value)
    assert "is a list_iterator: whether its content has changed cannot be told" in text
    assert f"f32({value})" in text and "fix: take out what is needed before: numbers, a tuple" in text


def test_what_keeps_a_kernel_off_the_disk_is_said_once(make_module: Callable[[str, str], Any]) -> None:
    module = make_module("import time\ndef h(): return time.time() * 0 + 1.5", "h()")
    with pytest.warns(RuntimeWarning) as caught:
        _ = [module.k.compile("sm_90a", T=T) for T in (2, 4)]
    (warning,) = caught
    assert str(warning.message) == (
        "k() is compiled again by each process: h -> time.time: time.time() may depend on more than its arguments"
    )
    assert warning.filename == module.__file__


def test_the_ir_of_what_has_changed_is_not_shown(make_module: Callable[[str, str], Any]) -> None:
    module = make_module("G = 1.5", "G")
    compiled = module.k.compile("sm_90a")
    module.G = 2.5
    with pytest.raises(TileError, match="what k reads has changed since it was compiled"):
        compiled.ir()
    assert "2.5" in module.k.compile("sm_90a").ir()


def test_a_tile_function_does_not_change(make_module: Callable[[str, str], Any]) -> None:
    module = make_module("", "helpers.scaled(f32(1.0))")
    with pytest.raises(TileError, match=r"scaled\.fn is set: a tile function does not change"):
        module.helpers.scaled.fn = None


# -- files that are edited -------------------------------------------------------------------------------

FILE = """{above}from tiledsl import *
from tiledsl.dims import M

@tile_function
def act(x: f32) -> f32:
    return x + {value}

def make():
    @tile_kernel
    def k(A: Global[f32, M]):
        A.put(grid(1) + threads(4), act(f32({value})))
    return k

k = make()
"""


@pytest.fixture
def edited(fresh_modules: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Writes edited.py; with `load`, imports it or loads it again."""

    def write(value: float, above: str = "", load: bool = False) -> Any:
        (fresh_modules / "edited.py").write_text(FILE.format(value=value, above=above))
        importlib.invalidate_caches()
        if not load:
            return None
        known = sys.modules.get("edited")
        return importlib.import_module("edited") if known is None else importlib.reload(known)

    monkeypatch.delitem(sys.modules, "edited", raising=False)
    return write


def test_a_reloaded_module_is_compiled_from_its_new_source(edited: Callable[..., Any]) -> None:
    assert stored(edited(1.5, load=True).k) == 3.0
    assert stored(edited(2.5, load=True).k) == 5.0
    assert stored(edited(4.5, above="# one more line\n", load=True).k) == 9.0


@pytest.mark.parametrize("above", ["", "# one more line\n\n"])
def test_a_file_edited_after_its_import_does_not_change_its_kernels(edited: Callable[..., Any], above: str) -> None:
    module = edited(1.5, load=True)
    edited(2.5, above=above)
    assert stored(module.k) == 3.0


def test_a_kernel_made_after_its_file_was_edited_is_an_error(edited: Callable[..., Any]) -> None:
    """Python runs what it read at the import, of which no text is left."""
    module = edited(1.5, load=True)
    edited(2.5, above="# one more line\n")
    with pytest.raises(CompileError) as caught:
        module.make()
    assert "edited.py has changed since k was defined: this is not what Python runs" in str(caught.value)
    assert "fix: import it again (importlib.reload)" in str(caught.value)


def test_a_cell_that_is_run_again_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As notebooks and debuggers do: the same file name in `linecache`, another text."""
    space: dict[str, Any] = {}
    for value in (1.5, 2.5):
        text = FILE.format(value=value, above="")
        monkeypatch.setitem(linecache.cache, "<cell>", (len(text), None, text.splitlines(True), "<cell>"))
        exec(compile(text, "<cell>", "exec"), space)
        assert stored(space["k"]) == 2 * value


def test_functions_are_not_kept_alive(edited: Callable[..., Any]) -> None:
    module = edited(1.5, load=True)
    kernel = module.make()
    kernel.compile("sm_90a")
    gone = weakref.ref(kernel.fn)
    del kernel
    gc.collect()
    assert gone() is None


# -- launches --------------------------------------------------------------------------------------------


def test_a_known_launch_is_forgotten_when_a_name_changes() -> None:
    harness = Harness()
    A, C = Tensor((4, 8), 0x10000), Tensor((4, 16), 0x20000)
    assert (harness.call(A, C), harness.call(A, C)) == (1, 1)
    harness.meaning = meant(holds=False)
    harness.launcher._names["_current"] = harness.meaning.guards.check
    assert (harness.call(A, C), harness.call(A, C)) == (2, 3)


def test_a_launch_tells_the_types_of_consts_apart() -> None:
    harness = Harness()
    A, C = Tensor((4, 8), 0x10000), Tensor((4, 16), 0x20000)
    assert (harness.call(A, C, T=1), harness.call(A, C, T=1)) == (1, 1)
    assert (harness.call(A, C, T=True), harness.call(A, C, T=1.0)) == (2, 3)


# -- processes -------------------------------------------------------------------------------------------

COUNTING = """
import sys
sys.path.insert(0, {folder!r})
import kern
compiled = kern.k.compile("sm_90a")
heavy = [m for m in ("llvmlite", "numpy", "tiledsl.frontend", "tiledsl.passes.pipeline") if m in sys.modules]
print(compiled.cached, heavy, "1.5" if "0f3FC00000" in compiled.ptx else "2.5" if "0f40200000" in compiled.ptx else "?")
"""


def process(folder: Path, *options: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *options, "-c", COUNTING.format(folder=str(folder))], check=True, capture_output=True,
        text=True,
        env={**os.environ, "TILEDSL_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(ROOT),
             "PYTHONDONTWRITEBYTECODE": "1", **environment},  # bytecode of a file of one size and second may be stale
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def kern(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(before: str, value: str) -> Path:
        scenario = Scenario("", f"A.get(i) * {value}", before)
        for name, text in scenario.sources(False).items():
            (tmp_path / name).write_text(text)
        return tmp_path

    return write


def test_a_hit_loads_no_compiler_and_a_change_is_none(kern: Callable[[str, str], Path]) -> None:
    folder = kern("G = 1.5\n", "G")
    assert process(folder).startswith("False")
    assert process(folder) == "True [] 1.5"
    kern("G = 2.5\n", "G")
    assert process(folder).startswith("False") and process(folder) == "True [] 2.5"


def test_what_python_leaves_out_when_it_optimizes(kern: Callable[[str, str], Path]) -> None:
    folder = kern("def h():\n    return 1.5 if __debug__ else 2.5\n", "h()")
    assert process(folder).endswith("1.5")
    assert process(folder, "-O").endswith("2.5")
    assert process(folder, "-O") == "True [] 2.5"


def test_an_edited_package_with_the_same_version(tmp_path: Path, kern: Callable[[str, str], Path]) -> None:
    folder = kern("from mylib import h\n", "h()")
    package = tmp_path / "site-packages"
    package.mkdir()
    for value in ("1.5", "2.5"):
        (package / "mylib.py").write_text(f"__version__ = '1'\ndef h(): return {value}\n")
        path = f"{ROOT}{os.pathsep}{package}"
        found = process(folder, PYTHONPATH=path)
        assert found.startswith("False") and found.endswith(value)
