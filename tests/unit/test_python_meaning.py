"""A kernel means what Python means: each program runs as plain Python on lists, and as a kernel of one thread on the
emulator, before and after the passes. Values stay small, so that nothing wraps; what Python has no word for (a step of
0, products past 32 bits, -0.0 that reaches a division) has tests of its own below."""

from __future__ import annotations

import itertools
import linecache
from typing import Any, Literal

import numpy as np
import pytest

from tiledsl import lang
from tiledsl.backends import emulator
from tiledsl.dims import M, N
from tiledsl.errors import CompileErrors
from tiledsl.frontend import build
from tiledsl.function import tile_function
from tiledsl.ir.core import Kernel
from tiledsl.ir.ops import control, tile
from tiledsl.ir.types import I64
from tiledsl.lang import Global, cdiv, f32, grid, i8, i32, i64, index, threads, u32, unroll
from tiledsl.passes.pipeline import run_pipeline
from tiledsl.signatures.annotations import read_signature
from tiledsl.signatures.signature import GlobalParam, GlobalSpec, Specialization

START = [3, -7, 5, 100, 0, 2, -1, 8]
FLOATS = [1.5, -2.25, 0.0, -0.0, float("nan"), float("inf"), 4.0, -3.5]


def clamped(x, low=0, high=9):
    if x < low:
        return low
    if x > high:
        return high
    return x


def divided(a, b):
    return a // b, a % b


PROGRAMS = {
    "floor division and remainder": "A[0] = A[1] // A[5]; A[2] = A[1] % A[5]; A[3] = A[3] // A[1]; A[5] = A[3] % A[1]",
    "constants divide as variables do": "A[0] = A[1] // 4; A[2] = A[1] % 4; A[3] = 100 // A[1]; A[4] = A[1] // -2",
    "shifts": "A[0] = A[1] >> 1; A[2] = A[2] << 3; A[3] = 1 << A[0] + 4; A[4] = A[1] >> 31",
    "precedence": "A[0] = -A[0] ** 0 if False else -A[0] + A[2] * A[5] & 7 | A[7] ^ 3",
    "a chain of comparisons": "if 0 < A[0] < A[2] <= A[3] != A[4]: A[7] = 1",
    "a chain stops at what is false": "i = A[3]\nif 0 <= i < 8 < A[index(i)]: A[7] = 1\nelse: A[7] = 2",
    "a chain in the middle": "i = A[0]\nA[7] = i32(1) if 0 <= i < 8 and A[index(i)] > 50 else i32(2)",
    "and stops at what is false": "i = A[3]\nif i < 8 and A[index(i)] > 0: A[7] = 1\nelse: A[7] = 2",
    "or stops at what is true": "i = A[3]\nif i >= 8 or A[index(i)] > 0: A[7] = 1\nelse: A[7] = 2",
    "compile-time operands of and and or": "A[0] = 0 or A[1]; A[2] = 5 and A[3]; A[4] = [] or 7",
    "not, and, or together": "if not (A[0] > 1 and A[1] > 0) or A[4] > 0: A[7] = 1",
    "comparisons of truths": "if (A[0] < A[1]) == (A[2] < A[1]): A[7] = 1\nif (A[0] > A[1]) != (A[2] < A[1]): A[6] = 1",
    "one side of a choice is evaluated": "i = A[3]\nA[0] = A[index(i)] if i < 8 else i32(1)",
    "nested choices": "a, b = A[0], A[1]\nA[7] = a if a > b else b if a > 0 else A[2] if b < 0 else A[3]",
    "a choice in a choice's condition": "A[7] = A[0] if (A[1] > 0 if A[2] > 9 else A[3] > 9) else A[2]",
    "a swap": "a, b = A[0], A[1]\na, b = b, a\nA[0], A[1] = a, b\nA[2], A[3] = A[3], A[2]",
    "a rotation in a loop": """
a, b, c = A[0], A[1], A[2]
for _ in range(4):
    a, b, c = c, a, b
A[0] = a; A[1] = b; A[2] = c""",
    "nested unpacking": "(a, b), c = (A[0], A[1]), A[2]\n[d, (e, f)] = [c, (b, a)]\nA[0] = e; A[1] = f; A[2] = d",
    "an augmented element": "A[index(A[5])] += A[0]\nA[0] -= A[1]\nA[3] //= 7\nA[2] <<= 2\nA[7] %= 5",
    "an augmented element of a list": "xs = [A[0], A[1]]\nxs[1] += 4\nxs[0] *= xs[1]\nA[0] = xs[0]; A[1] = xs[1]",
    "the value before the target": "i = 1\nA[i] = i + A[0]\ni, A[i] = 2, i + 40\nA[7] = i32(i)",
    "tuples are equal element by element": "if (A[0], A[1]) == (3, -7): A[7] = 1\nif (A[0], A[1]) == (3, 7): A[6] = 1",
    "tuples differ": "if (A[0], 4) != (3, 4): A[7] = 1\nif (A[0], 4) != (3, A[4]): A[6] = 1",
    "lists in tuples": "if ([A[0], 2], A[1]) == ([3, A[5]], -7): A[7] = 1",
    "lengths and classes count": "if (A[0],) == (A[0], A[1]): A[7] = 1\nif [A[0]] == (A[0],): A[6] = 1",
    "break and continue in nested loops": """
total = i32(0)
for i in range(6):
    if i == 4:
        break
    for j in range(6):
        if j == i:
            continue
        if j > 3:
            break
        total = total + i32(10 * i + j)
    total = total + 1
A[0] = total""",
    "a while that tests, continues and breaks": """
n, steps = A[3], i32(0)
while n != 1 and steps < 50:
    steps += 1
    if n % 2 == 0:
        n = n // 2
        continue
    n = 3 * n + 1
    if n > 200:
        break
A[0] = n
A[1] = steps""",
    "a while over memory": "i = i32(0)\nwhile i < 8 and A[index(i)] != 0: i += 1\nA[7] = i",
    "a range downwards": "n = i32(0)\nfor i in range(10, 0, -3): n = n * 11 + i32(i)\nA[0] = n",
    "a step at run time": "n = i32(0)\nfor i in range(A[3], A[1], A[6] * 20): n = n * 3 + i\nA[0] = n",
    "the same with a break": """
n = i32(0)
for i in range(A[3], A[1], A[6] * 20):
    n = n * 3 + i
    if i < 30:
        break
A[0] = n""",
    "a step upwards at run time": "n = i32(0)\nfor i in range(A[1], A[2], A[0]): n = n * 16 + i\nA[0] = n",
    "the wrong way at run time": "n = i32(4)\nfor i in range(A[2], A[1], A[0]): n = n + 1\nA[0] = n",
    "an index steps at run time": """
n, s = i32(0), index(A[6] - 1)
for i in range(index(A[3]), 91, s):
    n = n + i32(i)
    if n > 700:
        break
A[0] = n""",
    "a continue goes on with the next": """
n = i32(0)
for i in range(9, 0, -2):
    if i == 5:
        continue
    n = n * 10 + i32(i)
A[0] = n""",
    "unroll and break": "n = i32(0)\nfor i in unroll(6):\n    if A[i] == 5: break\n    n = n * 10 + A[i]\nA[0] = n",
    "default arguments": "A[0] = clamped(A[3]); A[1] = clamped(A[1], -3); A[2] = clamped(A[2], high=4)",
    "several results": "q, r = divided(A[3], A[1])\nA[0] = q; A[1] = r; A[2] = divided(A[3], 7)[1]",
    "comprehensions": "xs = [A[i] * i for i in range(4) if i != 2]\nA[0] = xs[0] + xs[1] + xs[2]; A[7] = len(xs)",
    "zip, enumerate, reversed": """
for i, (x, y) in enumerate(zip([A[0], A[1]], reversed([A[2], A[3]]))):
    A[i + 4] = x * y""",
    "slices and negative places of lists": "xs = [A[0], A[1], A[2], A[3]]\nA[4] = xs[-1] + xs[1:3][0] + xs[::-1][1]",
    "lists grow": "xs = [A[0]]\nfor i in unroll(3): xs.append(xs[i] + A[i])\nA[7] = xs[3]; A[6] = (xs + [A[1]] * 2)[5]",
    "minimum and maximum": "A[0] = min(A[0], A[1], 4); A[1] = max(A[1], -9); A[2] = min([A[2], A[3]])",
    "absolute values": "A[0] = abs(A[1]); A[1] = abs(A[0] - 50)",
    "conversions towards zero": "F[0] = f32(A[1]) / 2; A[0] = i32(F[0]); A[2] = i32(-F[0]); A[3] = i32(f32(2.5))",
    "signs of zero": "z = F[3] if A[0] > 0 else F[2]\nF[0] = F[6] / f32(4) * z; F[1] = F[2] + F[3]; F[7] = F[3] - F[2]",
    "comparisons with NaN": """
n = F[4]
if n != n:
    A[0] = 1
if not n < 1.0 and not n >= 1.0:
    A[1] = 1
if n == n:
    A[2] = 1""",
    "early returns": """
if A[0] > 2:
    A[0] = 1
    if A[1] < 0:
        A[1] = 2
        return
    A[2] = 3
A[3] = 4""",
    "None is a value": "x = None\nif x is None: A[0] = 1\nif A is not None: A[1] = 2",
    "a name per branch": "if A[0] > 0:\n    x = A[1]\nelif A[2] > 0:\n    x = A[3]\nelse:\n    x = i32(0)\nA[7] = x",
    "dicts": """
d = {1: A[0], 2: A[1], "x": 5}
n = i32(0)
for k in (1, 2, "x"):
    n = n * 10 + d[k]
A[0] = n""",
    "formats": "name = 'x'\nfor i, c in enumerate(f'{name!r:>4}|{3.5:.2f}'): A[i % 8] = i32(len(c) * i)",
}
COUNTER = itertools.count()


def function(head: str, lines: str, names: dict[str, Any]) -> Any:
    file = f"<meaning {next(COUNTER)}>"
    text = "\n".join([head, *("    " + line for line in lines.strip().splitlines()), ""])
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec", dont_inherit=True), names)
    return names["program"]


def built(fn: Any) -> Kernel:
    signature = read_signature(fn)
    tensors = tuple(
        (p.name, GlobalSpec(p.dtype, len(p.dims) - 1, p.dtype.bytes))
        for p in signature.params
        if isinstance(p, GlobalParam) and not isinstance(p.dtype, str)
    )
    return build(signature, Specialization(tensors, ()), "sm_90a")


def results(kernel: Kernel, **arrays: Any) -> list[dict[str, Any]]:
    """What the kernel leaves in copies of `arrays`, at tile level and at thread level."""
    found: list[dict[str, Any]] = []
    for level in ("tile", "thread"):
        if level == "thread":
            kernel = run_pipeline(kernel, verify_each=True)
        assert kernel.level == level
        given = {k: a if not isinstance(a, np.ndarray) or 0 in a.strides else a.copy() for k, a in arrays.items()}
        emulator.run(kernel, given)
        found.append(given)
    return found


@pytest.mark.parametrize("lines", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_program_means_the_same(lines: str) -> None:
    language = {"Global": Global, "i32": i32, "f32": f32, "index": index, "M": M, "N": N, "unroll": unroll}
    language |= {"grid": grid, "threads": threads, "clamped": tile_function(clamped), "divided": tile_function(divided)}
    head = "def program(A: Global[i32, M], F: Global[f32, N]):\n    grid(1)\n    threads(1)"
    kernel = built(function(head, lines, language))

    python = {"i32": int, "index": int, "f32": np.float32, "unroll": range, "clamped": clamped, "divided": divided}
    integers, floats = list(START), [np.float32(x) for x in FLOATS]
    with np.errstate(all="ignore"):
        function("def program(A, F):", lines, python)(integers, floats)
    wanted = np.array(floats, np.float32).view(np.uint32)
    for found in results(kernel, A=np.array(START, np.int32), F=np.array(FLOATS, np.float32)):
        assert found["A"].tolist() == integers
        assert (found["F"].view(np.uint32) == wanted)[~np.isnan(floats)].all()


# -- what Python has no word for -------------------------------------------------------------------


def zero_of_either_sign(A: Global[f32, M]):
    grid(1)
    i = threads(8)
    z = 0.0
    if i > 3:
        z = -0.0
    A[i] = f32(1) / f32(z)


def test_constants_of_two_branches_merge_only_if_their_bits_agree() -> None:
    with pytest.raises(CompileErrors, match=r"z is the compile-time value -0\.0 on one path and .* 0\.0 on the other"):
        built(zero_of_either_sign)


def step_of_zero(A: Global[i32, M], s: i32):
    grid(1)
    t = threads(4)
    n = i32(0)
    for _ in range(i32(10), i32(0), s * i32(t)):
        n = n + 1
    A[t] = n
    n = i32(0)
    for _ in range(i32(10), i32(0), s * i32(t)):
        n = n + 1
        if n > 100:
            break
    A[t + 4] = n


def test_a_step_of_zero_at_run_time_makes_no_iterations() -> None:
    for found in results(built(step_of_zero), A=np.zeros(8, np.int32), s=-1):
        assert found["A"].tolist() == [0, 10, 5, 4, 0, 10, 5, 4]


def to_the_end_of_the_dtype(A: Global[i32, M], s: i32):
    grid(1)
    threads(1)
    for kind in unroll(4):
        n = i32(0)
        if kind < 2:
            for _ in range(i32(2147483600), i32(2147483647), i32(30) if kind == 0 else s):
                n = n + 1
        else:
            for _ in range(i32(2147483600), i32(2147483647), i32(30) if kind == 2 else s):
                n = n + 1
                if n > 100:
                    break
        A[kind] = n
    n = i32(0)
    for i in range(i8(-100), i8(-128), i8(-100)):
        n = n + i32(i)
        if n > 100:
            break
    A[4] = n


def test_nothing_wraps_behind_the_last_iteration() -> None:
    for found in results(built(to_the_end_of_the_dtype), A=np.zeros(5, np.int32), s=30):
        assert found["A"].tolist() == [2, 2, 2, 2, -100]


def sizes(A: Global[i8, M], B: Global[i8, N], out: Global[i64, Literal[8]], n: i64):
    grid(1)
    threads(1)
    out[0] = i64(M * N)
    out[1] = i64(M * N // 1000)
    out[2] = i64(M << 40)
    out[3] = i64(M * N % 4097)
    if M * N > 3_000_000_000 // 2 and M * N > M:
        out[4] = 1
    out[5] = i64(i32(M * N))
    out[6] = i64(index(n) + M)
    out[7] = i64(f32(M * N))


def sums_of_products(A: Global[i8, M], B: Global[i8, N], out: Global[i64, Literal[8]], n: i64):
    grid(1)
    threads(1)
    total = index(0)
    for i in range(3):
        total = total + M * N * i
    out[0] = i64(total)


def arguments() -> dict[str, Any]:
    many = np.broadcast_to(np.int8(0), (70000,))
    return {"A": many, "B": many, "out": np.zeros(8, np.int64), "n": 1 << 40}


def test_an_index_is_exact_where_its_number_counts() -> None:
    m = 70000
    low = (m * m + (1 << 31)) % (1 << 32) - (1 << 31)
    wanted = [m * m, m * m // 1000, m << 40, m * m % 4097, 1, low, (1 << 40) + m, int(np.float32(m * m))]
    kernel = built(sizes)
    for found in results(kernel, **arguments()):
        assert found["out"].tolist() == wanted
    assert kernel.index_bits == 32


def test_where_a_loop_carries_more_the_kernel_gets_indices_of_64_bits() -> None:
    kernel = built(sums_of_products)
    for found in results(kernel, **arguments()):
        assert found["out"][0] == 3 * 70000**2
    assert kernel.index_bits == 64


def pieces(A: Global[i32, M], x: i32, y: u32):
    grid(1)
    threads(1)
    A[0] = cdiv(x, 2)
    A[1] = i32(cdiv(y, 2) - 2**31)
    A[2] = cdiv(-x, 4) + cdiv(x - x, 4)
    A[3] = cdiv(7, x - 2147483644) + i32(cdiv(y - y, 3))


def test_cdiv_of_numbers_at_the_end_of_their_dtype() -> None:
    last = 2**31 - 1
    for found in results(built(pieces), A=np.zeros(4, np.int32), x=last, y=2**32 - 1):
        assert found["A"].tolist() == [2**30, 0, -(last // 4), 3]


def positions(A: Global[f32, M, N], n: i32):
    bx, by = grid(cdiv(N, 128), cdiv(M, 8))
    t = threads(128)
    slot = index(0)
    for i in range(8):
        row, column = by * 8 + i, bx * 128 + t
        if row < M and column < N:
            A[row, column] = A[row, column] + f32(slot) + A[index(n) * 3 + row, column]
        slot = 0 if slot + 1 == 5 else slot + 1


def test_places_in_a_tensor_are_proven_to_fit() -> None:
    kernel = run_pipeline(built(positions))
    assert kernel.index_bits == 32
    assert not any(r.type == I64 for op in kernel.walk() for r in op.results)


# -- each expression is evaluated once -------------------------------------------------------------------

CALLS: list[int] = []


def counted(x: int) -> int:
    CALLS.append(x)
    return x


def many_conditions(A: Global[i32, M]):
    grid(1)
    threads(1)
    if A[0] > 0 and A[1] > 0 and A[2] > 0 and A[3] > 0 and A[4] > 0 and A[5] > 0 and A[6] > 0 and A[7] > 0:
        A[8] = 1
    if A[0] > 0 or A[1] > 0 or A[2] > 0 or A[3] > 0 or A[4] > 0 or A[5] > 0 or A[6] > 0 or A[7] > 0:
        A[9] = 1


def many_choices(A: Global[i32, M]):
    grid(1)
    threads(1)
    a = A[0]
    A[1] = (
        A[2] if a == 2 else A[3] if a == 3 else A[4] if a == 4 else A[5] if a == 5 else A[6] if a == 6
        else A[7] if a == 7 else A[8] if a == 8 else A[9] if a == 9 else A[10] if a == 10 else A[11]
    )  # fmt: skip


def counted_sides(A: Global[i32, M]):
    grid(1)
    threads(1)
    a = A[0]
    A[1] = A[counted(1)] if a > 0 else A[counted(2)] if a > 1 else a + counted(3)
    if a > 0 and A[counted(4)] > 0 and A[counted(5)] > 0:
        A[2] = 1


@pytest.mark.parametrize(("fn", "loads"), [(many_conditions, 16), (many_choices, 11)])
def test_sides_are_built_once(fn: Any, loads: int) -> None:
    assert sum(isinstance(op, tile.Load) for op in built(fn).walk()) == loads


def test_what_python_does_at_compile_time_is_done_once() -> None:
    CALLS.clear()
    built(counted_sides)
    assert sorted(CALLS) == [1, 2, 3, 4, 5]


def free_sides(A: Global[i32, M]):
    grid(1)
    threads(1)
    a = A[0]
    A[1] = a + 1 if a > 0 else a - 1 if a < -9 and a > -20 else a


def test_sides_without_effects_need_no_branch() -> None:
    assert not any(isinstance(op, control.If) for op in built(free_sides).walk())


def minima(F: Global[f32, M]):
    grid(1)
    threads(1)
    nan = float("nan")
    F[0] = f32(lang.minimum(nan, 1.0))
    F[1] = f32(1) / f32(lang.minimum(0.0, -0.0))
    F[2] = min(nan, 1.0, F[3])
    F[4] = f32(1) / max(-0.0, 0.0, F[5])


def test_minima_of_numbers_are_those_of_values() -> None:
    """NaN loses and -0.0 is less than 0.0, whether or not the compiler knows the numbers."""
    start = np.array([0, 0, 0, 7, 0, -1, 0, 0], np.float32)
    for found in results(built(minima), F=start):
        assert found["F"][[0, 1, 2, 4]].tolist() == [1, -np.inf, 1, np.inf]


def counted_targets(A: Global[i32, M]):
    grid(1)
    threads(1)
    rows = [[A[0], 1], [A[1], 2]]
    rows[counted(1)][0] = A[2]
    rows[counted(0)].append(A[3])
    rows[counted(-1)][counted(-2)] += 4
    for i in [range(3), range(4)][counted(0)]:
        A[i] = rows[1][0]


def test_places_that_are_assigned_are_evaluated_once() -> None:
    CALLS.clear()
    built(counted_targets)
    assert CALLS == [1, 0, -1, -2, 0]
