"""Two versions of a program, of which the first must not be served for the second: a table.

@@ stands for what changes, in any text of a row. `kept`: is the kernel kept on disk at all? What is not fully
understood is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["REPORTED", "Scenario"]

IMPORTS = "from tiledsl import *\nfrom tiledsl.dims import M\nfrom typing import *\n"
KERNEL = """
@tile_kernel
def k(A: Global[f32, M]{consts}):
    i = grid(cdiv(M, 64)) * 64 + threads(64)
{body}    A.put(i, {expr})
"""


@dataclass(frozen=True)
class Scenario:
    """A kernel that stores `expr`. before: module-level source above it. body: lines above the store. files: other
    modules, by path. module: where the kernel stands. environment: variables, too."""

    name: str
    expr: str
    before: str = ""
    files: dict[str, str] = field(default_factory=dict[str, str])
    old: str = "1.5"
    new: str = "2.5"
    kept: bool = True
    body: str = ""
    consts: str = ""
    module: str = "kern"
    environment: dict[str, str] = field(default_factory=dict[str, str])

    def sources(self, new: bool) -> dict[str, str]:
        """The files of one version."""
        kernel = IMPORTS + self.before + KERNEL.format(expr=self.expr, body=self.body, consts=self.consts)
        path = self.module.replace(".", "/") + ("/__init__.py" if self.module in PACKAGES else ".py")
        return {name: self.version(text, new) for name, text in {path: kernel, **self.files}.items()}

    def version(self, text: str, new: bool) -> str:
        return text.replace("@@", self.new if new else self.old)


PACKAGES = ("mylib",)

TILE_FUNCTION = "from tiledsl import *\n@tile_function\ndef f(x: f32) -> f32:\n    return x * @@\n"
DATACLASS = "from dataclasses import dataclass\n@dataclass(frozen=True)\n"
IN_PACKAGE = {"pkg/__init__.py": ""}
METADATA = "Metadata-Version: 2.1\nName: mylib\nVersion: 1.0\n"

REPORTED = [
    Scenario("a global", "A.get(i) * G", "G = @@\n"),
    Scenario(
        "the annotation of a local", "A.get(i) + f32(acc)", "ACC = @@\n", old="f32", new="f16",
        body="    acc: ACC = 0.333251953125\n    acc = acc * acc\n",
    ),
    Scenario("pkg.cfg.T", "A.get(i) * pkg.cfg.T", "import pkg.cfg\n", {**IN_PACKAGE, "pkg/cfg.py": "T = @@\n"}),
    Scenario(
        "a function of a nested module", "A.get(i) * pkg.h.f()", "import pkg.h\n",
        {**IN_PACKAGE, "pkg/h.py": "def f():\n    return @@\n"},
    ),
    Scenario(
        "a tile function of a nested module", "pkg.h.f(A.get(i))", "import pkg.h\n",
        {**IN_PACKAGE, "pkg/h.py": TILE_FUNCTION},
    ),
    Scenario("getattr of a module", "A.get(i) * getattr(cfg, 'T')", "import cfg\n", {"cfg.py": "T = @@\n"}, kept=False),
    Scenario(
        "a method of a NamedTuple", "A.get(i) * CFG.scale()",
        "class Cfg(NamedTuple):\n    n: int\n    def scale(self):\n        return @@\nCFG = Cfg(1)\n",
    ),
    Scenario(
        "the order of a NamedTuple's fields", "A.get(i) * CFG.a",
        "class Cfg(NamedTuple):\n    @@\nCFG = Cfg(1.5, 2.5)\n", old="a: float\n    b: float",
        new="b: float\n    a: float",
    ),
    Scenario(
        "a property of an Enum", "A.get(i) * MODE.scale",
        "import enum\nclass Mode(enum.Enum):\n    X = 1\n    @property\n    def scale(self):\n        return @@\n"
        "MODE = Mode.X\n",
    ),
    Scenario(
        "a property of an IntEnum", "A.get(i) * MODE.scale",
        "import enum\nclass Mode(enum.IntEnum):\n    X = 1\n    @property\n    def scale(self):\n        return @@\n"
        "MODE = Mode.X\n",
    ),
    Scenario(
        "a cached_property", "A.get(i) * CFG.scale",
        "import functools\nclass Cfg:\n    @functools.cached_property\n    def scale(self):\n        return @@\n"
        "CFG = Cfg()\n",
    ),
    Scenario(
        "a class attribute that is an object", "A.get(i) * Cfg.inner.s",
        DATACLASS + "class In:\n    s: float\nclass Cfg:\n    inner = In(@@)\n",
    ),
    Scenario(
        "a class attribute that is a layout", "A.get(i) * f32(Cfg.layout.warps[0])",
        "class Cfg:\n    layout = mma.m16n8k16.acc(warps=(@@))\n", old="2, 2", new="4, 1",
    ),
    Scenario(
        "a class attribute that is a scalar of NumPy", "A.get(i) * float(Cfg.s)",
        "import numpy as np\nclass Cfg:\n    s = np.float32(@@)\n",
    ),
    Scenario(
        "a class attribute that is a partial", "A.get(i) * Cfg.s()",
        "import functools\ndef f(x): return x\nclass Cfg:\n    s = functools.partial(f, @@)\n",
    ),
    Scenario(
        "a staticmethod that is an lru_cache", "A.get(i) * Cfg.s()",
        "import functools\nclass Cfg:\n    @staticmethod\n    @functools.lru_cache\n    def s(): return @@\n",
    ),
    Scenario("a bound method of a dict", "A.get(i) * LOOK('a')", "LOOK = {'a': @@}.get\n"),
    Scenario("a subclass of list", "A.get(i) * L.s()", "class Li(list):\n    def s(self): return @@\nL = Li()\n"),
    Scenario(
        "__missing__ of a subclass of dict", "A.get(i) * D['q']",
        "class Di(dict):\n    def __missing__(self, k): return @@\nD = Di()\n",
    ),
    Scenario(
        "a property of a subclass of int", "A.get(i) * X.s",
        "class I(int):\n    @property\n    def s(self): return @@\nX = I(3)\n",
    ),
    Scenario(
        "the environment", "A.get(i) * h()", "import os\ndef h():\n    return float(os.environ['SCALE'])\n",
        environment={"SCALE": "@@"}, kept=False,
    ),
    Scenario("a module called profile", "A.get(i) * @@", module="profile"),
    Scenario("a helper module called code", "A.get(i) * code.T", "import code\n", {"code.py": "T = @@\n"}),
    Scenario("a kernel in site-packages", "A.get(i) * @@", module="site-packages.mylib_kernel"),
    Scenario(
        "a helper in site-packages", "f(A.get(i))", "from mylib import f\n",
        {"site-packages/mylib/__init__.py": TILE_FUNCTION}
    ),
    Scenario(
        "a package installed again with its version", "f(A.get(i))", "from mylib import f\n",
        {"site-packages/mylib/__init__.py": "__version__ = '1'\n" + TILE_FUNCTION},
    ),
    Scenario(
        "a package whose metadata alone has a version", "f(A.get(i))", "from mylib.part import f\n",
        {
            "site-packages/mylib/__init__.py": "",
            "site-packages/mylib/part.py": TILE_FUNCTION,
            "site-packages/mylib-1.0.dist-info/METADATA": METADATA,
        },
    ),
    Scenario("a closure", "A.get(i) * s()", "def make(v):\n    def s(): return v\n    return s\ns = make(@@)\n"),
    Scenario(
        "the state of an object", "A.get(i) * s()",
        "class C: pass\nc = C()\nc.s = @@\ndef make(v):\n    def s(): return v.s\n    return s\ns = make(c)\n",
    ),
    Scenario("a helper", "A.get(i) * f()", "from h import f\n", {"h.py": "def f():\n    return @@\n"}),
    Scenario(
        "a global of a helper of a helper", "A.get(i) * f()", "from h import f\n",
        {"h.py": "import g\ndef f():\n    return g.q()\n", "g.py": "Q = @@\ndef q(): return Q\n"},
    ),
    Scenario("globals()", "A.get(i) * h()", "G = @@\ndef h():\n    return globals()['G']\n", kept=False),
    Scenario(
        "a file", "A.get(i) * h()",
        "import pathlib\ndef h():\n    return float(pathlib.Path(__file__).with_name('t.txt').read_text())\n",
        {"t.txt": "@@"}, kept=False,
    ),
    Scenario(
        "the default of a tile function", "f(A.get(i))",
        "S = @@\n@tile_function\ndef f(x: f32, s=S) -> f32:\n    return x * s\n",
    ),
    Scenario("__new__", "A.get(i) * T()", "class T:\n    def __new__(cls):\n        return @@\n"),
    Scenario(
        "a metaclass", "A.get(i) * C.s",
        "class Meta(type):\n    @property\n    def s(cls): return @@\nclass C(metaclass=Meta): pass\n",
    ),
    Scenario("__getattr__", "A.get(i) * C.s", "class Q:\n    def __getattr__(self, n): return @@\nC = Q()\n"),
    Scenario(
        "a descriptor", "A.get(i) * C.s",
        "class D:\n    def __get__(self, o, t): return @@\nclass Q:\n    s = D()\nC = Q()\n",
    ),
    Scenario(
        "the default of a dataclass", "A.get(i) * C.s",
        "from dataclasses import dataclass\n@dataclass\nclass Q:\n    s: float = @@\nC = Q\n",
    ),
    Scenario(
        "an object in a list", "A.get(i) * L[0].s",
        "class Q:\n    def __init__(self, s): self.s = s\nL = [Q(@@)]\n",
    ),
    Scenario("a range", "A.get(i) * f32(len(R))", "R = range(@@)\n", old="3", new="4"),
    Scenario(
        "an inherited method", "A.get(i) * C().s()", "from h import P\nclass C(P): pass\n",
        {"h.py": "class P:\n    def s(self): return @@\n"},
    ),
    Scenario(
        "__getattr__ of a module", "A.get(i) * h.S", "import h\n", {"h.py": "def __getattr__(n): return @@\n"},
        kept=False
    ),
    Scenario(
        "a module of a package of a package", "A.get(i) * sub.x.T", "from pkg import sub\n",
        {**IN_PACKAGE, "pkg/sub/__init__.py": "from . import x\n", "pkg/sub/x.py": "T = @@\n"},
    ),
    Scenario("a number of NumPy", "A.get(i) * S", "import numpy as np\nS = np.float32(@@)\n"),
    Scenario("a number of ml_dtypes", "A.get(i) * S", "import ml_dtypes\nS = ml_dtypes.bfloat16(@@)\n"),
    Scenario(
        "a private name of a class", "A.get(i) * C.f()",
        "_C__s = @@\nclass C:\n    @tile_function\n    def f(): return __s\n",
    ),
    Scenario(
        "a private name in the annotation of a local", "A.get(i) * f32(C.f())",
        "_C__T = @@\nclass C:\n    @tile_function\n    def f():\n        x: __T = 0.5\n        return x * x\n",
        old="f32", new="f16",
    ),
    Scenario(
        "the annotation of a parameter of a tile function", "A.get(i) * f32(f(0.5))",
        "D = @@\n@tile_function\ndef f(x: D): return x * x\n", old="f32", new="f16",
    ),
    Scenario(
        "the annotation of a result, kept as text", "A.get(i) * f32(f() * 2)",
        "D = @@\n@tile_function\ndef f() -> 'D | None': return 0.5\n", old="f32", new="f16",
    ),
    Scenario("an array of NumPy", "A.get(i) * float(ARR[0])", "import numpy as np\nARR = np.array([@@])\n"),
    Scenario("a partial", "A.get(i) * h()", "import functools\nh = functools.partial(float, @@)\n"),
    Scenario("a SimpleNamespace", "A.get(i) * NS.s", "import types\nNS = types.SimpleNamespace(s=@@)\n"),
    Scenario(
        "a class attribute that is a SimpleNamespace", "A.get(i) * C.ns.s",
        "import types\nclass C:\n    ns = types.SimpleNamespace(s=@@)\n",
    ),
    Scenario(
        "a class attribute that is an array", "A.get(i) * float(C.a[0])",
        "import numpy as np\nclass C:\n    a = np.array([@@])\n",
    ),
    Scenario(
        "the default of a const, a class", "A.get(i) * C.inner.v",
        "class In:\n    def __init__(s, v): s.v = v\nclass Cfg:\n    inner = In(@@)\n",
        consts=", *, C: Const[type] = Cfg",
    ),
]  # fmt: skip
