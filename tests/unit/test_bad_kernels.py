"""Kernels that are wrong in every way that could be thought of: each is an error at its line, with a fix, at once.

A case is the body of a kernel, or a whole module. `# error: text` marks the line that is to be blamed, with a part of
the message. None of them may look like a bug of the compiler, whatever exception lies behind it.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from tiledsl import CompileError
from tiledsl.boundary import stage
from tiledsl.errors import CompileErrors, InternalError, Loc
from tiledsl.frontend import budget
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Op
from tiledsl.ir.declare import MOST_STAGES
from tiledsl.ir.types import F32
from tiledsl.kernel import TileKernel
from tiledsl.layout.shared import MAX_EXTENT
from tiledsl.passes.scalar.unroll import MOST_OPS

HEAD = "import functools, itertools\nimport numpy as np\nfrom tiledsl import *\nfrom tiledsl.dims import K, M, N\n"

HELPERS = """
ARRAY = np.ones(3)
class Odd:
    def __bool__(self): raise ValueError("no truth")
    def __eq__(self, other): raise ValueError("no equality")
    def __getattr__(self, name): raise RuntimeError("no " + name)
    __hash__ = None
ODD = Odd()
def ends_badly():
    yield 1
    raise ValueError("mine")
def fails(x):
    return {}[x]
def deep(n):
    return deep(n + 1)
"""

START = """
@tile_kernel
def k(A: Global[f32, M]):
    i = grid(cdiv(M, 64)) * 64 + threads(64)
"""


def body(*lines: str) -> str:
    return HEAD + HELPERS + START + "".join(f"    {line}\n" for line in lines)


PIPELINED = """
@tile_kernel
def k(A: Global[f32, M, K], C: Global[f32, M]):
    m = tile(grid(cdiv(M, 32)), 32)
    t = threads(32)
    S = shared((32, 8), f32)
    total = f32(0)
    for q in pipelined(tiles(K, 8), stages=10**6):  # error: stages is a compile-time int from 1 to
        copy_async(A[m, q], S)
        for j in unroll(8):
            total += S[t, j]
    C.put(m.start + t, total)
"""

NESTED = "".join(
    f"@tile_function\ndef fn{j}(x: f32) -> f32:\n    return {f'fn{j - 1}(x)' if j else 'x'} + 1.0\n" for j in range(250)
)

STORE = "A[i] = 1.0"

BODIES: dict[str, tuple[str, ...]] = {
    # Python's own errors, where the kernel works on compile-time values
    "a key that is a list": ("d = {[1]: 2}  # error: unhashable type", STORE),
    "keys of a comprehension": ("d = {[j]: 2 for j in range(2)}  # error: unhashable type", STORE),
    "a key that is not there": ("d = {'a': 1}", "A[i] = f32(d['b'])  # error: KeyError"),
    "a zip of different lengths": ("for a, b in zip([1, 2], [A[i]], strict=True):  # error: zip()", "    A[i] = b"),
    "an if on an array": ("if ARRAY:  # error: truth value of an array", "    A[i] = 1.0"),
    "an assert on an array": ("assert ARRAY  # error: truth value of an array", STORE),
    "a not on an array": ("if not ARRAY:  # error: truth value of an array", "    A[i] = 1.0"),
    "an and on an array": ("if ARRAY and A[i] > 0:  # error: truth value of an array", "    A[i] = 1.0"),
    "a choice by an array": ("A[i] = 1.0 if ARRAY else 2.0  # error: truth value of an array",),
    "a while on an array": ("while ARRAY:  # error: truth value of an array", "    A[i] = 1.0"),
    "a filter by an array": ("xs = [1 for j in range(2) if ARRAY]  # error: truth value of an array", STORE),
    "a division by zero": ("A[i] = f32(1 // 0)  # error: ZeroDivisionError",),
    "cdiv of a float": ("A[i] = f32(cdiv(7.5, 2))  # error: expected an integer as a",),
    "cdiv of a bool": ("A[i] = f32(cdiv(2, True))  # error: expected an integer as b",),
    "cdiv of objects": ("A[i] = f32(cdiv(wgmma, 2))  # error: expected an integer as a",),
    # the user's own code, which runs at compile time
    "a generator that raises": ("for j in ends_badly():  # error: ends_badly() raised ValueError", "    pass", STORE),
    "a comprehension over it": ("xs = [j for j in ends_badly()]  # error: ends_badly() raised ValueError: mine", STORE),
    "a list of it": ("xs = list(ends_badly())  # error: ends_badly() raised ValueError: mine", STORE),
    "a helper that raises": ("A[i] = f32(fails(3))  # error: fails() raised KeyError: 3 at",),
    "a helper without end": ("A[i] = f32(deep(0))  # error: deep() raised RecursionError",),
    "a __bool__ that raises": ("if ODD:  # error: __bool__() raised ValueError: no truth", "    A[i] = 1.0"),
    "a __eq__ that raises": ("if ODD == 1:  # error: __eq__() raised ValueError: no equality", "    A[i] = 1.0"),
    "a __getattr__ that raises": ("A[i] = f32(ODD.x)  # error: __getattr__() raised RuntimeError: no x",),
    # arguments of the language's functions
    "minimum of None": ("A[i] = f32(minimum(None, 1))  # error: minimum() of the compile-time value None",),
    "maximum of a string": ("A[i] = f32(maximum('a', 1))  # error: maximum() of the compile-time value 'a'",),
    "min of a range": ("A[i] = min(tile(0, 4))  # error: min() of a range",),
    "min of ranges": ("A[i] = min(tiles(M, 4))  # error: min() of the ranges",),
    "max of a view": ("A[i] = max(A[0:4])  # error: max() of a view",),
    "a method of the class": ("A[i] = Global.get(0, i)  # error: is a method, and is called without an object",),
    "a volatile that is a number": ("ptx.inline('membar.cta;', None, volatile=5)  # error: volatile= is True", STORE),
    "memory in other words": ("ptx.inline('membar.cta;', None, memory='none')  # error: memory= is one of", STORE),
    "a text that is a number": ("A[i] = ptx.inline(5, f32)  # error: text= is a string",),
    "half a surrogate pair": ("print('\\ud800', i)  # error: half of a surrogate pair", STORE),
    "the same in an assertion": ("assert_(i >= 0, '\\ud800')  # error: half of a surrogate pair", STORE),
    "a padding that is a text": ("S = shared((4, 4), f32, layout=padded('x'))  # error: length is a compile", STORE),
    "a swizzle of None": ("S = shared((4, 4), f32, layout=swizzled(None, 2))  # error: unit is a compile-time", STORE),
    "a layout that is a number": ("S = shared((4,), f32, layout=5)  # error: layout= takes a layout", STORE),
    "a fence to the moon": ("fence(reach='moon')  # error: fence() has no reach", STORE),
    "a shuffle of width None": ("A[i] = shuffle(A[i], 0, width=None)  # error: width must be",),
    "a dtype of two values": ("A[i] = f32(1, 2)  # error: converts one value",),
    "a call of a tuple with a list": ("([1], 2)(1)  # error: is not callable", STORE),
    "a shuffle of a function": ("A[i] = shuffle(barrier, 0)  # error: shuffles a run-time scalar",),
    "a call of a text": ("M(1)  # error: is not callable", STORE),
    # more than may be done at compile time
    "unroll(2**31)": ("for j in unroll(2**31):  # error: this would unroll 2147483648 iterations", "    A[i] = 1.0"),
    "unroll(2**63)": ("for j in unroll(2**63):  # error: this would unroll 9223372036854775808", "    A[i] = 1.0"),
    "unroll of tiles": ("for j in unroll(tiles(2**40, 1)):  # error: this would unroll 109951162777", "    A[i] = 1.0"),
    "by=10**6": ("for j in unroll(range(M), by=10**6):  # error: by is a compile-time int", "    A[i] = 1.0"),
    "count()": ("for j in itertools.count():  # error: this would unroll more than 4096 iterations", "    A[i] = 1.0"),
    "a list of count()": ("xs = list(itertools.count())  # error: this would go through more than 65536 items", STORE),
    "a sum of count()": ("x = sum(itertools.count())  # error: this would go through more than 65536 items", STORE),
    "an enumeration of it": ("xs = enumerate(itertools.count())  # error: this would make more than 65536", STORE),
    "a comprehension of it": ("xs = [j for j in itertools.count()]  # error: this would make more than 65536", STORE),
    "a huge comprehension": ("xs = [j for j in range(10**12)]  # error: this would make 1000000000000 items", STORE),
    "nested comprehensions": ("xs = [0 for j in range(9999) for l in range(9999)]  # error: more than 200000", STORE),
    "a huge list": ("xs = [0] * 10**9  # error: * makes a list of 1000000000 items", STORE),
    "a huge text": ("xs = 10**10 * 'a'  # error: * makes a str of 10000000000 items", STORE),
    "a text as wide": ("xs = f'{1:>9999999999}'  # error: a width of more than 9999 characters", STORE),
    "a huge power": ("x = 10**10**8  # error: ** makes an integer of 400000000 bits", STORE),
    "a huge shift": ("x = 1 << 10**9  # error: << makes an integer of 1000000001 bits", STORE),
    "squares of squares": ("x = 3", "for j in unroll(60):", "    x = x * x  # error: * makes an integer of", STORE),
    "lists that double": ("x = [1]", "for j in unroll(60):", "    x = x + x  # error: + makes a list of 131072", STORE),
    "lists in lists": ("x = [1]", "for j in unroll(60):", "    x = [x, x]  # error: more than 65536 items", STORE),
    "unroll in unroll": (
        "x = A.get(i)",
        "for j in unroll(4096):",
        "    for l in unroll(4096):",
        "        x = x + 1.0  # error: the kernel has more than 50000 ops here",
    ),
    "unroll without ops": (
        "for j in unroll(4096):",
        "    for l in unroll(4096):",
        "        x = j  # error: more than 200000 statements were carried out at compile time",
    ),
    "by= in by=": (
        "x = A.get(i)",
        "for j in unroll(range(M), by=4096):",
        "    for l in unroll(range(M), by=4096):  # error: at most 100000 ops are possible",
        "        x = x + 1.0",
        "A.put(i, x)",
    ),
    "a huge tile": ("S = shared((10**30,), f32)  # error: an extent of 1000000000000000000000000000000", STORE),
    "a tile of huge sides": ("S = shared((2**20, 2**20), f32)  # error: need 4398046511104", "S[i, i] = 1.0", STORE),
    "a huge fragment": ("f = fragment((2**20, 2**20), f32)  # error: a fragment of 1099511627776 elements", STORE),
    "a huge fragment of the block": (
        "acc = fragment((16, 10**30), f32, mma.m16n8k8.acc(warps=(1, 2)))  # error: an extent of 1000000",
        STORE,
    ),
    "a huge padding": ("S = shared((4, 4), f32, layout=padded(10**20))  # error: length is a compile-time int", STORE),
    "2000 breaks": (
        "x = A.get(i)",
        "for j in unroll(2000):",
        "    if x > j:  # error: more than 1100 run-time conditions inside each other",
        "        break",
        "    x = x + 1.0",
        "A.put(i, x)",
    ),
}  # fmt: skip

MODULES = {
    "stages=10**6": HEAD + PIPELINED,
    "250 nested tile functions": HEAD
    + NESTED.replace("fn49(x) + 1.0", "fn49(x) + 1.0  # error: more than 200 tile functions inside each other")
    + "@tile_kernel\ndef k(A: Global[f32, M]):\n    i = grid(1) + threads(1)\n    A[i] = fn249(A[i])\n",
    "a wrapper that takes anything": HEAD
    + "def deco(f):\n    @functools.wraps(f)\n"
    + "    def k(*args):  # error: *args is not possible\n        return f(*args)\n    return k\n\n"
    + "@tile_kernel\n@deco\ndef k(A: Global[f32, M]):\n    A[grid(1) + threads(1)] = 1.0\n",
    "a tile function of a builtin": HEAD
    + "f = tile_function(abs)  # error: takes a function, got a builtin_function\n",
    "a kernel of a function and an arch": HEAD
    + "def f():\n    pass\n\n\n"
    + "f = tile_kernel(f, arch='sm_90a')  # error: expected either a function or arch=, got both\n",
    "a tile function of None": HEAD + "f = tile_function(None)  # error: takes a function, got a NoneType\n",
    "a tile function of a class": HEAD + "@tile_function  # error: takes a function, got a type\nclass f:\n    pass\n",
    "a tile function of a kernel": HEAD
    + "@tile_function  # error: takes a function, got a TileKernel\n@tile_kernel\n"
    + "def k(A: Global[f32, M]):\n    A[grid(1) + threads(1)] = 1.0\n",
    "a kernel of a class": HEAD + "@tile_kernel  # error: takes a function, got a type\nclass k:\n    pass\n",
    "an arch that is a list": HEAD + "@tile_kernel(arch=['sm_90a'])  # error: no target\ndef k(A: f32): pass\n",
    "an arch that is a number": HEAD + "@tile_kernel(arch=5)  # error: no target 5\ndef k(A: f32): pass\n",
    "device as a parameter": HEAD
    + "@tile_kernel\ndef k(\n    device: f32  # error: cannot be called device\n): pass\n",
    "a grid of a tree of sums": HEAD
    + "@tile_kernel\ndef k(A: Global[f32, M]):\n    n = M + 1\n    for _ in unroll(60):\n        n = n + n\n"
    + "    A[grid(n) + threads(1)] = 1.0  # error: takes more than 1000 operations\n",
    "processors as a parameter": HEAD
    + "@tile_kernel\ndef k(\n    processors: i32  # error: processors is the number of SMs\n): pass\n",
}

CASES = {**{name: body(*lines) for name, lines in BODIES.items()}, **MODULES}


def load(text: str, folder: Path) -> ModuleType:
    path = folder / "bad_kernel.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("bad_kernel", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(text: str, folder: Path) -> None:
    for value in list(vars(load(text, folder)).values()):
        if isinstance(value, TileKernel):
            value.compile("sm_90a")


@pytest.mark.parametrize("text", CASES.values(), ids=CASES.keys())
def test_error_at_the_line(text: str, tmp_path: Path) -> None:
    marked = [
        (n, m.group(1)) for n, line in enumerate(text.splitlines(), 1) if (m := re.search("# error: (.*)$", line))
    ]
    with pytest.raises(CompileError) as caught:
        compiled(text, tmp_path)
    errors = caught.value.errors if isinstance(caught.value, CompileErrors) else (caught.value,)
    assert [(e.loc.file, e.loc.line) for e in errors] == [(str(tmp_path / "bad_kernel.py"), n) for n, _ in marked]
    for error, (_, message) in zip(errors, marked, strict=True):
        assert message in error.message
        assert error.fix
        assert not isinstance(error, InternalError)


# -- what the boundary itself says -----------------------------------------------------------------------


def test_a_bug_of_the_compiler_is_an_error_at_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(body("if i > 3:", "    A[i] = 1.0"), tmp_path)
    monkeypatch.setattr(vars(sys.modules["tiledsl.frontend.control"])["_Merge"], "join", None)
    with pytest.raises(CompileErrors) as caught:
        module.k.compile("sm_90a")
    (error,) = caught.value.errors
    assert isinstance(error, InternalError)
    assert re.search(r"the compiler failed here: TypeError: .* at tiledsl/frontend/control.py:\d+$", error.message)
    assert "report it" in error.fix
    assert isinstance(error.__cause__, TypeError)
    source = (tmp_path / "bad_kernel.py").read_text().splitlines()
    assert source[error.loc.line - 1].strip() == "if i > 3:"


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_who_interrupts_is_not_held_up(interrupt: type[BaseException], tmp_path: Path) -> None:
    def stop() -> None:
        raise interrupt

    module = load(body("stop()", "A[i] = 1.0"), tmp_path)
    vars(module)["stop"] = stop
    with pytest.raises(interrupt):
        module.k.compile("sm_90a")


def test_a_stage_names_the_kernel_itself_and_the_line_of_the_op() -> None:
    def work(op: Op) -> None:
        raise AssertionError("no rule")

    builder = Builder(Block(), Loc("kernel.py", 12))
    constant = builder.constant(1.0, F32).op
    assert constant is not None
    with pytest.raises(InternalError) as caught, stage("the pass expand", "gemm", Loc("kernel.py", 3)):
        work(constant)
    assert caught.value.loc == Loc("kernel.py", 12)
    assert "the compiler failed here, in the pass expand of gemm: AssertionError: no rule" in caught.value.message
    assert isinstance(caught.value.__cause__, AssertionError)


def test_the_limit_of_recursion_is_as_it_was(tmp_path: Path) -> None:
    before = sys.getrecursionlimit()
    load(body("A[i] = 1.0"), tmp_path).k.compile("sm_90a")
    assert sys.getrecursionlimit() == before


# -- every error says what to write instead --------------------------------------------------------------

ROOT = Path(inspect.getfile(CompileError)).parent
PLACES = {"CompileError": 3, "OutOfBudget": 3, "Unusable": 2, "argument_error": 3}
"""How many arguments there are with the fix, by the name of what is called; `error` of a frame has 3, of a call 2."""


@cache
def constructions() -> list[tuple[str, ast.Call, int]]:
    found: list[tuple[str, ast.Call, int]] = []
    for path in sorted(p for p in ROOT.rglob("*.py") if "emulator" not in p.parts and "inspect" not in p.parts):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            shown = ast.unparse(node.func)
            places = PLACES.get(name) or (
                3 if shown.endswith("frame.error") else 2 if shown.endswith("call.error") else 0
            )
            if places:
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", node, places))
    return found


def test_every_error_is_made_with_a_fix() -> None:
    found = list(dict.fromkeys(where for where, *_ in constructions()))
    assert len(found) > 300, "the walk finds them"
    without = [
        where
        for where, node, places in constructions()
        if len(node.args) < places and not any(k.arg == "fix" for k in node.keywords)
    ]
    assert not without


def test_no_fix_is_empty() -> None:
    for where, node, places in constructions():
        given = [k.value for k in node.keywords if k.arg == "fix"] or node.args[places - 1 : places]
        choices = [n for fix in given for n in ((fix.body, fix.orelse) if isinstance(fix, ast.IfExp) else (fix,))]
        assert all(not isinstance(n, ast.Constant) or n.value for n in choices), where


# -- the limits ------------------------------------------------------------------------------------------


def test_the_limits_are_those_of_the_page() -> None:
    page = (ROOT.parent / "docs" / "language.md").read_text()
    table = page.split("## Limits at compile time")[1].split("\n\n")[2]
    stated = [int(row.split("|")[2].replace(" ", "")) for row in table.splitlines()[2:]]
    most = (
        budget.MAX_UNROLL,
        budget.MAX_OPS,
        MOST_OPS,
        budget.MAX_STATEMENTS,
        budget.MAX_CONDITIONS,
        budget.MAX_CALLS,
        budget.MAX_ITEMS,
        budget.MAX_BITS,
        budget.MAX_GRID_OPS,
        MOST_STAGES,
        MAX_EXTENT,
    )
    assert stated == list(most)
