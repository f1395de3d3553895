"""Scenarios thought up against the finished implementation; stale_scenarios.py says what a row is."""

from __future__ import annotations

from tests.unit.stale_scenarios import DATACLASS, IN_PACKAGE, Scenario

__all__ = ["INVENTED"]

INVENTED = [
    Scenario(
        "a decorator of another module", "A.get(i) * h()", "from d import doubled\n@doubled\ndef h(): return 1.0\n",
        {"d.py": "import functools\ndef doubled(f):\n    @functools.wraps(f)\n    def g(): return f() * @@\n"
        "    return g\n"},
    ),
    Scenario(
        "what a single dispatch knows", "A.get(i) * h(1)",
        "import functools\n@functools.singledispatch\ndef h(x): return 1.0\n@h.register\ndef _(x: int): return @@\n",
        kept=False,
    ),
    Scenario(
        "an attrgetter", "A.get(i) * GET(C)",
        "import operator\nclass C:\n    a = 1.5\n    b = 2.5\nGET = operator.attrgetter('@@')\n", old="a", new="b",
    ),
    Scenario(
        "a class decorator", "A.get(i) * C.s",
        "from d import add\n@add\nclass C: pass\n", {"d.py": "def add(c):\n    c.s = @@\n    return c\n"},
    ),
    Scenario(
        "__init_subclass__", "A.get(i) * C.s",
        "class P:\n    def __init_subclass__(cls): cls.s = @@\nclass C(P): pass\n",
    ),
    Scenario("__class_getitem__", "A.get(i) * C['x']", "class C:\n    def __class_getitem__(cls, x): return @@\n"),
    Scenario("a ChainMap", "A.get(i) * C['s']", "import collections\nC = collections.ChainMap({}, {'s': @@})\n"),
    Scenario("a read-only view of a dict", "A.get(i) * C['s']",
    "import types\nC = types.MappingProxyType({'s': @@})\n"),
    Scenario("a Fraction", "A.get(i) * float(C)", "from fractions import Fraction\nC = Fraction('@@')\n"),
    Scenario(
        "the defaults of a namedtuple", "A.get(i) * C().s",
        "import collections\nC = collections.namedtuple('C', 's', defaults=[@@])\n",
    ),
    Scenario(
        "how an Enum counts", "A.get(i) * C.X.value",
        "import enum\nclass C(enum.Enum):\n    def _generate_next_value_(name, *_): return @@\n    X = enum.auto()\n",
    ),
    Scenario(
        "an expression inside a helper", "A.get(i) * h()", "G = @@\ndef h(): return sum(x * G for x in (1, 1))\n",
    ),
    Scenario(
        "a class inside a helper", "A.get(i) * h()", "G = @@\ndef h():\n    class C:\n        s = G\n    return C.s\n",
    ),
    Scenario(
        "a name that appears", "A.get(i) * h()",
        "@@def h():\n    try:\n        return LATER\n    except NameError:\n        return 1.5\n", old="",
        new="LATER = 2.5\n",
    ),
    Scenario(
        "a builtin that is shadowed", "A.get(i) * h()", "@@def h(): return max(1.5, 2.5)\n",
        old="", new="def max(a, b): return a\n",
    ),
    Scenario("a star import", "A.get(i) * T", "from h import *\n", {"h.py": "__all__ = ['T']\nT = @@\n"}),
    Scenario(
        "a kernel in a package", "A.get(i) * T", "from .cfg import T\n", {**IN_PACKAGE, "pkg/cfg.py": "T = @@\n"},
        module="pkg.kern",
    ),
    Scenario(
        "a module chosen at compile time", "A.get(i) * (a if FLAG else b).T", "import a\nimport b\nFLAG = @@\n",
        {"a.py": "T = 1.5\n", "b.py": "T = 2.5\n"}, old="True", new="False", kept=False,
    ),
    Scenario(
        "another name for a module", "A.get(i) * h()", "import cfg\ndef h():\n    c = cfg\n    return c.T\n",
        {"cfg.py": "T = @@\n"}, kept=False,
    ),
    Scenario(
        "sys.modules", "A.get(i) * h()", "import sys, cfg\ndef h(): return sys.modules['cfg'].T\n",
        {"cfg.py": "T = @@\n"},
        kept=False,
    ),
    Scenario(
        "an import inside a helper", "A.get(i) * h()", "def h():\n    import cfg\n    return cfg.T\n",
        {"cfg.py": "T = @@\n"}, kept=False,
    ),
    Scenario(
        "the dict of a module", "A.get(i) * h()", "import cfg\ndef h(): return cfg.__dict__['T']\n",
        {"cfg.py": "T = @@\n"},
        kept=False,
    ),
    Scenario(
        "the globals of a function", "A.get(i) * h()", "G = @@\ndef h(): return h.__globals__['G']\n", kept=False
    ),
    Scenario(
        "the line of a function", "A.get(i) * h()", "from h import h\n",
        {"h.py": "@@def h(): return float(h.__code__.co_firstlineno)\n"}, old="", new="# one more\n", kept=False,
    ),
    Scenario(
        "a private slot", "A.get(i) * C.s",
        "class Q:\n    __slots__ = ('__v',)\n    def __init__(self, v): self.__v = v\n    @property\n"
        "    def s(self): return self.__v\nC = Q(@@)\n",
    ),
    Scenario("the sign of zero", "A.get(i) * math.copysign(2.0, Z)", "import math\nZ = @@\n", old="0.0", new="-0.0"),
    Scenario("True for 1", "A.get(i) * (3.0 if ONE is True else 2.0)", "ONE = @@\n", old="1", new="True"),
    Scenario(
        "a list for a tuple", "A.get(i) * h()", "X = @@\ndef h(): return 3.0 if isinstance(X, list) else 2.0\n",
        old="(1,)", new="[1]",
    ),
    Scenario("a docstring", "A.get(i) * float(h.__doc__)", "def h():\n    '@@'\n"),
    Scenario(
        "the name of a function", "A.get(i) * float(len(h.__name__))", "def @@(): return 1\nh = @@\n", old="a", new="bb"
    ),
    Scenario("an attribute of a function", "A.get(i) * h()", "def h(): return h.s\nh.s = @@\n"),
    Scenario(
        "a default factory", "A.get(i) * C().s",
        "from dataclasses import dataclass, field\n@dataclass\nclass C:\n"
        "    s: float = field(default_factory=lambda: @@)\n",
    ),
    Scenario(
        "__post_init__", "A.get(i) * C().s",
        "from dataclasses import dataclass\n@dataclass\nclass C:\n    s: float = 1.0\n"
        "    def __post_init__(self): self.s *= @@\n",
    ),
    Scenario("a Literal", "A.get(i) * float(get_args(L)[0])", "L = Literal['@@']\n"),
    Scenario("Annotated", "A.get(i) * get_args(L)[1]", "L = Annotated[int, @@]\n"),
    Scenario("__call__", "A.get(i) * C()", "class Q:\n    def __call__(self): return @@\nC = Q()\n"),
    Scenario("an f-string", "A.get(i) * float(f'{C}')", "class Q:\n    def __format__(self, f): return '@@'\n"
    "C = Q()\n"),
    Scenario("__bool__", "A.get(i) * (2.0 if C else 3.0)", "class Q:\n    def __bool__(self): return @@\nC = Q()\n",
        old="True", new="False",
    ),
    Scenario(
        "a partialmethod", "A.get(i) * C().s()",
        "import functools\nclass C:\n    def f(self, v): return v\n    s = functools.partialmethod(f, @@)\n",
    ),
    Scenario(
        "a ufunc made of Python", "A.get(i) * float(U(1.0))",
        "import numpy as np\nU = np.frompyfunc(lambda x: x * @@, 1, 1)\n", kept=False,
    ),
    Scenario(
        "the bound of a deque", "A.get(i) * float(D.maxlen)", "import collections\n"
        "D = collections.deque([1], maxlen=@@)\n",
        old="3", new="4",
    ),
    Scenario("a class made by type()", "A.get(i) * C.s", "C = type('C', (), {'s': @@})\n"),
    Scenario("a function made by exec()", "A.get(i) * h()", "exec('def h(): return @@')\n"),
    Scenario(
        "a generic class", "A.get(i) * Box[int].s", "T = TypeVar('T')\nclass Box(Generic[T]):\n    s = @@\n",
    ),
    Scenario(
        "a tile function as an argument", "each(f, A.get(i))",
        "@tile_function\ndef f(x: f32) -> f32: return x * @@\n@tile_function\n"
        "def each(g, x: f32) -> f32: return g(x)\n",
    ),
    Scenario(
        "super()", "A.get(i) * C().s()",
        "class P:\n    def s(self): return @@\nclass C(P):\n    def s(self): return super().s()\n",
    ),
    Scenario(
        "a module with a class of its own", "A.get(i) * m.s", "import m\n",
        {"m.py": "import sys, types\nclass Mod(types.ModuleType):\n    s = @@\n"
        "sys.modules[__name__].__class__ = Mod\n"},
        kept=False,
    ),
    Scenario(
        "a cached function that has been called", "A.get(i) * h()",
        "import functools\nG = @@\n@functools.cache\ndef h(): return G\nh()\n", kept=False,
    ),
    Scenario(
        "a registered class", "A.get(i) * h()",
        "import abc\nclass P(abc.ABC): pass\nclass C: pass\n@@\ndef h(): return 2.0 if issubclass(C, P) else 3.0\n",
        old="P.register(C)", new="P.register(float)", kept=False,
    ),
    Scenario(
        "a field of a frozen dataclass in a tuple in a dict", "A.get(i) * D['x'][1].s",
        DATACLASS + "class P:\n    s: float\nD = {'x': (0, P(@@))}\n",
    ),
]  # fmt: skip
