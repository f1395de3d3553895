"""Every refused construct: one error, at the line that carries ``# error: <text of the message>``.

A kernel below may hold several such lines: then exactly these errors are reported, in this order.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from tiledsl.dims import K, M, N
from tiledsl.errors import CompileError, CompileErrors
from tiledsl.frontend import build
from tiledsl.function import tile_function
from tiledsl.ir.types import BF16, F32
from tiledsl.lang import (
    Dim,
    Global,
    assert_,
    barrier,
    cdiv,
    const,
    e4m3,
    e5m2,
    f16,
    f32,
    fence,
    fragment,
    grid,
    i32,
    index,
    shared,
    shuffle,
    tf32,
    threads,
    unroll,
    where,
)
from tiledsl.signatures.annotations import read_signature
from tiledsl.signatures.signature import REQUIRED, GlobalParam, GlobalSpec, Specialization

BAD: list[Callable[..., Any]] = []


def bad(fn: Callable[..., Any]) -> Callable[..., Any]:
    BAD.append(fn)
    return fn


def specialization(fn: Callable[..., Any], **dtypes: Any) -> tuple[Any, Specialization]:
    signature = read_signature(fn)
    tensors = tuple(
        (p.name, GlobalSpec(dtypes.get(p.name, p.dtype), len(p.dims) - 1, 16))
        for p in signature.params
        if isinstance(p, GlobalParam)
    )
    consts = tuple((c.name, c.default) for c in signature.consts if c.default is not REQUIRED)
    return signature, Specialization(tensors, consts)


def expected_errors(fn: Callable[..., Any]) -> list[tuple[int, str]]:
    lines, first = inspect.getsourcelines(fn)
    found = [(first + i, re.search(r"# error: (.*)$", line)) for i, line in enumerate(lines)]
    return [(number, match.group(1).strip()) for number, match in found if match]


class Elsewhere(Dim):
    """A dimension that no kernel below has."""


@bad
def unbound_name(A: Global[f32, M]):
    grid(1)
    threads(32)
    A[0] = nowhere  # error: the name nowhere is not defined  # noqa: F821


@bad
def used_before_assignment(A: Global[f32, M]):
    grid(1)
    threads(32)
    A[0] = x  # error: x is used before it is bound  # noqa: F821
    x = f32(1)  # noqa: F841


@bad
def bound_in_one_branch(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    if tx < 4:
        x = f32(1)
    A[tx] = x  # error: x may be unbound: only one branch assigns it


@bad
def bound_in_loop_only(A: Global[f32, M]):
    grid(1)
    threads(32)
    for i in range(M):
        x = A[i]
    A[0] = x  # error: x may be unbound: only the body of a loop assigns it


@bad
def loop_variable_after_loop(A: Global[f32, M]):
    grid(1)
    threads(32)
    for i in range(M):
        A[i] = 0
    A[i] = 1  # error: i may be unbound: it is the variable of a loop that may run zero times


@bad
def mixed_dtypes(A: Global[f32, M], B: Global[f16, M]):
    grid(1)
    tx = threads(32)
    A[tx] = A[tx] + B[tx]  # error: + mixes f32 and f16


@bad
def mixed_dtypes_fma(A: Global[f32, M], B: Global[f16, M]):
    grid(1)
    tx = threads(32)
    acc = f32(0)
    acc += B[tx] * B[tx]  # error: fma (from a * b + c) mixes f16 and f32
    A[tx] = acc


@bad
def index_with_i32(A: Global[i32, M]):
    grid(1)
    tx = threads(32)
    A[tx] = A[tx] + tx  # error: + mixes i32 and index


@bad
def inexact_literal(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    A[tx] = A[tx] * 0.1  # error: 0.1 is not exact in f32


@bad
def inexact_integer_literal(A: Global[f16, M]):
    grid(1)
    tx = threads(32)
    A[tx] = A[tx] + 4097  # error: 4097 is not exact in f16


@bad
def float_literal_for_integer(A: Global[i32, M]):
    grid(1)
    tx = threads(32)
    A[tx] = A[tx] + 1.5  # error: 1.5 where i32 is expected


@bad
def integer_division(A: Global[i32, M]):
    grid(1)
    tx = threads(32)
    A[tx] = A[tx] / 2  # error: / is not defined for i32


@bad
def stored_dtype(A: Global[f16, M], B: Global[f32, M]):
    grid(1)
    tx = threads(32)
    A[tx] = B[tx]  # error: the value stored to A must be f16, it is f32


@bad
def condition_is_a_number(A: Global[i32, M]):
    grid(1)
    tx = threads(32)
    if A[tx]:  # error: a condition must be a bool, it is i32
        A[tx] = 0


@bad
def run_time_value_where_const_is_needed(A: Global[f32, M]):
    grid(1)
    threads(32)
    for i in unroll(M):  # error: unroll() needs compile-time ints, got index
        A[i] = 0


@bad
def run_time_shape(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    S = shared((M, 4), f32)  # error: a shape is made of positive compile-time ints, got index
    A[tx] = S[0, 0]


@bad
def run_time_fragment_index(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    acc = fragment((4,), f32)
    for i in range(4):
        A[tx] = acc[i]  # error: a fragment lives in registers and takes compile-time indices


@bad
def fragment_bound(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    acc = fragment((4, 2), f32)
    A[tx] = acc[4, 0]  # error: index 4 is outside a fragment of shape (4, 2)


@bad
def index_beyond_static_bound(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    S = shared((8, 32), f32)
    S[8, tx] = 0  # error: index 8 is outside axis 0 of S, whose extent is 8
    A[-1] = 0  # error: index -1 is outside axis 0 of A


@bad
def wrong_rank(A: Global[f32, M, N]):
    grid(1)
    tx = threads(32)
    A[tx] = 0  # error: A has 2 axes, got 1 indices


@bad
def too_many_threads(A: Global[f32, M]):
    grid(1)
    tx, ty = threads(64, 32)  # error: threads(64, 32): 2048 threads; at most 1024
    A[tx + ty] = 0


@bad
def run_time_threads(A: Global[f32, M]):
    grid(1)
    tx = threads(M)  # error: threads() takes positive compile-time ints, got index
    A[tx] = 0


@bad
def no_threads(A: Global[f32, M], *, T: const = 0):
    grid(1)
    tx = threads(T)  # error: threads() takes positive compile-time ints, got the compile-time value 0
    A[tx] = 0


@bad
def empty_tile(A: Global[f32, M], *, T: const = 0):
    grid(1)
    tx = threads(32)
    S = shared((T,), f32)  # error: a shape is made of positive compile-time ints, got the compile-time value 0
    A[tx] = S[0]


@bad
def no_grid(A: Global[f32, M]):  # error: the kernel no_grid does not call grid()
    tx = threads(32)
    A[tx] = 0


@bad
def grid_twice(A: Global[f32, M]):
    grid(1)
    grid(2)  # error: grid() is called twice
    tx = threads(32)
    A[tx] = 0


@bad
def grid_from_memory(A: Global[i32, M]):
    grid(A[0])  # error: a grid extent depends on something that the host does not know
    tx = threads(32)
    A[tx] = 0


@bad
def shared_in_a_loop(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    for i in range(M):
        S = shared((32,), f32)  # error: shared() under a run-time condition or loop
        S[tx] = A[i]


@bad
def unknown_dimension(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    if tx < Elsewhere:  # error: Elsewhere is not a dimension of this kernel's tensors
        A[tx] = 0


@bad
def loop_changes_dtype(A: Global[f32, M], B: Global[f16, M]):
    grid(1)
    tx = threads(32)
    x = A[tx]
    for i in range(M):  # error: x is f32 before the loop and f16 at the end of its body
        A[i] = x.to(f32)
        x = B[i]


@bad
def loop_makes_a_list_longer(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    found = []
    for i in range(M):  # error: found is a list of length 0 before the loop and a list of length 1 at the end
        found.append(A[i])
    A[tx] = 0


@bad
def loop_starts_with_a_bare_float(A: Global[f32, M]):
    grid(1)
    threads(32)
    acc = 0.0
    for i in range(M):  # error: acc changes in a run-time loop but starts as the literal 0.0
        acc += A[i]
    A[0] = acc


@bad
def branches_disagree(A: Global[f32, M], B: Global[f16, M]):
    grid(1)
    tx = threads(32)
    if tx < 4:
        x = A[tx]
    else:
        x = B[tx]
    A[tx] = x  # error: x is f32 on one path and f16 on the other


@bad
def tile_chosen_at_run_time(A: Global[f32, M], B: Global[f32, M]):
    grid(1)
    tx = threads(32)
    if tx < 4:
        t = A
    else:
        t = B
    t[tx] = 0  # error: t is the tile A


UNHASHABLE: Any = [open]


@bad
def unsupported_python(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    try:  # error: try is not part of the kernel language  # noqa: SIM105
        A[tx] = 0
    except ValueError:
        pass
    with open("x"):  # error: with is not part of the kernel language
        pass
    with UNHASHABLE("x"):  # error: with is not part of the kernel language on
        pass
    f = lambda x: x  # error: lambda is not part of the kernel language  # noqa: E731, F841
    import math  # error: import is not part of the kernel language  # noqa: F401

    raise ValueError  # error: raise is not part of the kernel language


@bad
def unsupported_statements(A: Global[f32, M]):
    grid(1)
    tx = threads(32)

    def inner(x: Any) -> Any:  # error: a nested function is not part of the kernel language
        return x

    class Inner:  # error: a class is not part of the kernel language
        pass

    match A.rank:  # error: match is not part of the kernel language
        case 1:
            pass
    A[tx] = (x := 3)  # error: := is not part of the kernel language
    x = 1
    del x  # error: del is not part of the kernel language
    for _ in range(M):  # error: `else` on a loop is not part of the kernel language
        pass
    else:
        A[tx] = 0
    A[tx] = A[tx] @ A[tx]  # error: @ is not part of the kernel language
    A[0:2] = 0  # error: a part of A is not an element
    print(f"{A[tx]}")  # error: a run-time value in an f-string
    a, *b = (1, 2, 3)  # error: cannot unpack 3 values into 2 names  # noqa: F841
    A.H  # error: no attribute H  # noqa: B018


@bad
def unsupported_global(A: Global[f32, M]):
    global K  # error: global is not part of the kernel language
    grid(1)
    A[threads(32)] = 0


@bad
def unsupported_yield(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    yield A[tx]  # error: yield is not part of the kernel language


async def unsupported_async(A: Global[f32, M]):
    grid(1)
    A[threads(32)] = 0


@bad
def power(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    A[tx] = A[tx] ** 2  # error: ** is not part of the kernel language


@bad
def returns_a_value(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    A[tx] = 0
    return A[tx]  # error: a kernel returns nothing


def python_helper(x: Any) -> Any:
    return x + 1


@bad
def python_function_on_run_time_value(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    A[tx] = python_helper(A[tx])  # error: the Python function python_helper() is called with a run-time value


@bad
def python_builtin_on_run_time_values(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    A[tx] = sum([A[tx], A[tx]])  # error: the Python function sum() is called with a run-time value


@bad
def python_cannot_compare_run_time_values(A: Global[i32, M]):
    grid(1)
    t = threads(32)
    pair, small = (t, 1), fragment((4,), i32)
    x = {t: 1}  # error: a key of a dict that is index
    x = {pair: 1}  # error: a key of a dict that is a tuple of length 2
    x = {(k, t): k for k in (1, 2)}  # error: a key of a dict that is a tuple of length 2
    x = {(0, 1): 1}[pair]  # error: cannot be indexed with a tuple of length 2
    x = pair in [(0, 1)]  # error: `in` needs compile-time values
    x = 1 not in pair  # error: `in` needs compile-time values
    x = pair < (1, 2)  # error: < between a tuple of length 2 and a tuple of length 2 with run-time values
    x = t is M  # error: `is` between index and index
    x = pair is A  # error: `is` between a tuple of length 2 and the tile A
    x = [t].index(t)  # error: .index on a list with run-time values
    x = [1, 2].count(t)  # error: the Python function count() is called with a run-time value
    x = sorted([t, 1])  # error: the Python function sorted() is called with a run-time value
    x = set(pair)  # error: the Python function set() is called with a run-time value
    x = pair - pair  # error: Python cannot work on a tuple of length 2 with run-time values in it
    x = (small, 1) == (small, 1)  # error: == of sequences that hold fragment<i32, [4]>
    x = (A, 1) == (A, 1)  # error: == is not defined for the tile A
    x = {1: t} == {1: t}  # error: Python cannot work on a compile-time dict with run-time values in it
    assert A, "always true"  # error: assert of a run-time value
    A[t] = x


@bad
def truths_that_are_no_bools(A: Global[i32, M]):
    grid(1)
    t = threads(32)
    x = A[t] > 0 and 5  # error: `and` of a run-time bool and the compile-time value 5
    x = A[t] > 0 or []  # error: `or` of a run-time bool and a list of length 0
    x = A[0:4] and A[t] > 0  # error: a condition must be a bool, it is a view
    A[t] = x


COUNTS = {"a": 1}
OUTSIDE = [1, 2]


@tile_function
def appended(xs: Any, x: i32) -> Any:
    xs.append(x)  # error: xs is a list that ys holds, too, and this would change both
    return xs


def appends_in_a_function(A: Global[i32, M]):
    grid(1)
    t = threads(32)
    ys = [A[t]]
    zs = appended(ys, A[t])
    A[t] = zs[0]


@bad
def lists_of_several_names(A: Global[i32, M]):
    grid(1)
    t = threads(32)
    xs = [A[t], 2]
    ys = xs
    xs[0] = A[t]  # error: xs is a list that ys holds, too, and this would change both
    ys = [A[t]]
    pair = (ys, 1)
    ys.append(A[t])  # error: ys is a list that pair holds, too
    vs = ws = [1]
    vs += [2]  # error: vs is a list that ws holds, too
    rows = [[0]] * 2
    rows[0].append(1)  # error: rows is a list that rows holds, too
    OUTSIDE.append(3)  # error: OUTSIDE is a list from outside, which this would change
    A[t] = pair[1] + ws[0] + vs[0]


@bad
def lists_and_dicts_are_values(A: Global[i32, M]):
    grid(1)
    t = threads(32)
    xs = [3, 1, 2]
    xs.sort()  # error: sort() changes a list of length 3 in place
    if A[t] > 0:
        xs.pop()  # error: pop() changes a list of length 3 in place
    COUNTS.update(b=2)  # error: update() changes a compile-time dict in place
    A[t] = xs[0]


@bad
def condition_is_a_fragment(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    acc = fragment((4,), f32)
    if acc > 0:  # error: a condition must be a bool, it is fragment<bool, [4]>
        A[tx] = 0


@bad
def select_by_a_fragment_of_numbers(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    acc = fragment((4,), f32)
    A[tx] = where(acc, 1, A[tx])  # error: a condition must be a bool, it is fragment<f32, [4]>


@tile_function
def recursive(x: f32) -> f32:
    return recursive(x)  # error: recursive() calls itself


def calls_recursive(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    A[tx] = recursive(A[tx])


@tile_function
def sometimes(x: f32) -> f32:
    if x > 0:
        return x


@bad
def function_without_value(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    A[tx] = sometimes(A[tx])  # error: sometimes() may end without returning a value


@bad
def wrong_arguments(A: Global[f32, M]):
    grid(1)
    threads(32)
    barrier(1)  # error: too many positional arguments
    A[cdiv(1)] = 0  # error: missing a required argument: 'b'


@bad
def atomic_on_i16(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    S = shared((4,), bool)
    S.atomic_add(0, True)  # error: atomic_add() is not defined for bool
    A[tx] = 0


@bad
def atomic_on_wrong_dtypes(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    H, T = shared((4,), f16), shared((4,), tf32)
    A.atomic_max(tx, 1.0)  # error: atomic_max() is not defined for f32
    H.atomic_exchange(0, 1.0)  # error: atomic_exchange() is not defined for f16
    T.atomic_load(0)  # error: atomic_load() is not defined for tf32


@bad
def orders_and_scopes(A: Global[i32, M], n: i32):
    grid(1)
    threads(32)
    A.atomic_load(0, order="release")  # error: atomic_load() has no order 'release'
    A.atomic_store(0, 1, order="acq_rel")  # error: atomic_store() has no order 'acq_rel'
    A.atomic_add(0, 1, order="volatile")  # error: atomic_add() has no order 'volatile'
    A.atomic_cas(0, 1, 2, order="seq_cst")  # error: atomic_cas() has no order 'seq_cst'
    A.atomic_max(0, 1, order=n)  # error: atomic_max() has no order i32
    A.atomic_min(0, 1, scope="block")  # error: atomic_min() has no scope 'block'
    A.atomic_load(0, scope=1)  # error: atomic_load() has no scope the compile-time value 1
    A.atomic_load(0, order="volatile", scope="cta")  # error: atomic_load() is volatile, and has scope 'sys', not 'cta'
    fence("block")  # error: fence() has no reach 'block'


@bad
def atomic_arguments(A: Global[i32, M, N]):
    grid(1)
    threads(32)
    A.atomic_load(0)  # error: atomic_load() on a tile of 2 axes takes (i, j), got 1 arguments
    A.atomic_max(0, 0)  # error: takes (i, j, value), got 2 arguments
    A.atomic_cas(0, 0, 1)  # error: takes (i, j, compare, value), got 3 arguments
    A.atomic_store(0, 0, 1.5)  # error: 1.5 where i32 is expected
    A.atomic_xor(0, 0, 1, 2)  # error: takes (i, j, value), got 4 arguments


@bad
def padding_of_another_length(A: Global[f32, M]):
    grid(1)
    threads(32)
    A.put(0, A.get(0, vec=16, other=fragment((2,), f32)))  # error: other= is fragment<f32, [2]>
    A.put(0, A.get(0, vec=8, other=fragment((2,), f16)))  # error: the vector has 2 elements of f32


@bad
def vector_width(A: Global[f32, M]):
    grid(1)
    threads(32)
    A.load(0, vec=3)  # error: vec=3 on elements of 4 bytes
    A.load(0, vec=2)  # error: vec=2 on elements of 4 bytes


@bad
def shuffle_of_index(A: Global[i32, M]):
    grid(1)
    tx = threads(32)
    A[tx] = i32(shuffle(tx, 0))  # error: shuffles a run-time scalar, got index


@bad
def no_effect(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    A[tx] + 1  # error: this expression has no effect


@bad
def static_assertion(A: Global[f32, M], *, T: const = 3):
    grid(1)
    tx = threads(32)
    assert T % 2 == 0, "T must be even"  # error: assertion failed at compile time: T must be even
    A[tx] = 0


@bad
def assertion_of_run_time_value(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    assert A[tx] > 0  # error: assert of a run-time value
    assert_(A[tx] > 0, 3)  # error: assert_(): message= is a string


@bad
def no_follow_up_noise(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    x = A[tx] * 0.1  # error: 0.1 is not exact in f32
    y = x + 1
    for i in range(M):
        y = y + x
        A[i] = y
    A[tx] = y + nothing  # noqa: F821


@bad
def unrolled_errors_once(A: Global[f32, M]):
    grid(1)
    threads(32)
    for i in unroll(8):
        A[i] = A[i] * 0.1  # error: 0.1 is not exact in f32


@bad
def python_error_at_compile_time(A: Global[f32, M], *, T: const = 0):
    grid(1)
    tx = threads(32)
    A[tx + 1 // T] = 0  # error: ZeroDivisionError at compile time


@bad
def formats_of_matrix_operands(A: Global[tf32, M], B: Global[e4m3, M], C: Global[e5m2, M]):
    grid(1)
    tx = threads(32)
    a, b, c = A[tx], B[tx], C[tx]
    A[tx] = a + a  # error: + is not defined for tf32
    B[tx] = -b  # error: - is not defined for e4m3
    if c < 1:  # error: < is not defined for e5m2
        C[tx] = c
    C[tx] = max(c, c)  # error: max() is not defined for e5m2
    assert b == b  # error: == is not defined for e4m3
    B.atomic_add(tx, b)  # error: atomic_add() is not defined for e4m3
    A[tx] = tf32(tx)  # error: no conversion from index to tf32
    A[tx] = tf32(i32(tx))  # error: no conversion from i32 to tf32
    A[i32(b)] = a  # error: no conversion from e4m3 to i32
    A[tx] = a if b.to(bool) else 0  # error: no conversion from e4m3 to bool
    B[tx] = f32(b)  # error: the value stored to B must be e4m3, it is f32
    B[tx] = 0.3  # error: 0.3 is not exact in e4m3
    B[tx] = 480  # error: 480 is not exact in e4m3
    C[tx] = float("inf")  # error: inf is not exact in e5m2
    A[tx] = 1 + 2.0**-11  # error: is not exact in tf32
    A[tx] = b.bitcast(tf32)  # error: bitcast from e4m3 to tf32


def return_value_in_a_run_time_loop(A: Global[f32, M]):
    grid(1)
    tx = threads(32)
    A[tx] = f32(first_positive(A))


@tile_function
def first_positive(A: Global[f32, M]) -> index:
    for i in range(M):  # error: `return` with a value inside a run-time loop
        if A[i] > 0:
            return i
    return index(0)


def errors_of(fn: Callable[..., Any]) -> CompileErrors:
    signature, spec = specialization(fn)
    with pytest.raises(CompileErrors) as caught:
        build(signature, spec, "sm_90a")
    return caught.value


@pytest.mark.parametrize("fn", BAD, ids=lambda f: f.__name__)
def test_error_at_its_line(fn: Callable[..., Any]) -> None:
    found = [(e.loc.line, e.message) for e in errors_of(fn).errors]
    wanted = expected_errors(fn)
    assert len(found) == len(wanted), found
    for (line, message), (wanted_line, text) in zip(found, wanted, strict=True):
        assert line == wanted_line, message
        assert text.split("  # noqa")[0] in message


@pytest.mark.parametrize(
    ("fn", "inner"),
    [
        (calls_recursive, recursive.fn),
        (return_value_in_a_run_time_loop, first_positive.fn),
        (appends_in_a_function, appended.fn),
    ],
    ids=["recursion", "return in a loop", "the caller's list"],
)
def test_error_inside_a_tile_function_names_the_caller(fn: Callable[..., Any], inner: Callable[..., Any]) -> None:
    (error,) = errors_of(fn).errors
    [(line, text)] = expected_errors(inner)
    assert (error.loc.line, error.loc.function) == (line, inner.__name__)
    assert text in error.message
    assert error.loc.caller is not None and error.loc.caller.function == fn.__name__
    assert "called here" in str(error)


def test_an_async_function_is_no_kernel() -> None:
    with pytest.raises(CompileError, match="error: async is not part of the kernel language") as caught:
        read_signature(unsupported_async)
    assert "fix: write it with def alone" in str(caught.value)
    source, caret = str(caught.value).splitlines()[1:3]
    start = caret.index("^")
    assert source[start : start + caret.count("^")] == "async def"


def test_at_most_twenty_errors() -> None:
    def many(A: Global[f32, M], B: Global[f16, M], C: Global[f32, K, N]):
        grid(1)
        threads(1)
        A[0] = B[0]
        A[1] = B[0]
        A[2] = B[0]
        A[3] = B[0]
        A[4] = B[0]
        A[5] = B[0]
        A[0] = B[0]
        A[1] = B[0]
        A[2] = B[0]
        A[3] = B[0]
        A[4] = B[0]
        A[5] = B[0]
        A[0] = B[0]
        A[1] = B[0]
        A[2] = B[0]
        A[3] = B[0]
        A[4] = B[0]
        A[5] = B[0]
        A[0] = B[0]
        A[1] = B[0]
        A[2] = B[0]
        A[3] = B[0]
        A[4] = B[0]
        A[5] = B[0]

    assert len(errors_of(many).errors) == 20


def test_the_caret_marks_the_expression() -> None:
    text = str(errors_of(mixed_dtypes))
    source, caret = text.splitlines()[1:3]
    start = caret.index("^")
    assert source[start : start + caret.count("^")] == "A[tx] + B[tx]"
    assert "fix: convert one side: f32(...) or f16(...)" in text


def test_advice_that_can_be_followed() -> None:
    assert "decorate it with @tile_function" in str(errors_of(python_function_on_run_time_value))
    assert "fix: write it out: a loop over unroll(...)" in str(errors_of(python_builtin_on_run_time_values))
    assert "fix: use const parameters of 1 or more" in str(errors_of(no_threads))
    assert "fix: use const parameters of 1 or more" in str(errors_of(run_time_threads))
    assert "fix: use const parameters of 1 or more" in str(errors_of(empty_tile))
    assert "run-time extents belong to Global tensors" in str(errors_of(run_time_shape))
    assert "fix: multiply, or use exp2(y * log(x) * f32(1.4426950408889634))" in str(errors_of(power))


def test_dtype_generic_errors_depend_on_the_specialisation() -> None:
    signature, spec = specialization(inexact_literal, A=F32)
    with pytest.raises(CompileErrors, match="not exact in f32"):
        build(signature, spec, "sm_90a")
    tensors = (("A", GlobalSpec(BF16, 0, 16)),)
    with pytest.raises(CompileErrors, match="not exact in bf16"):
        build(signature, Specialization(tensors, ()), "sm_90a")
