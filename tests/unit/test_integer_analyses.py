"""The analyses of integers are right for every value: exhaustively in 8 bits, for random values in 16 to 64 bits.

The reference is `ir.semantics`. Rows are found by introspection, so that a new one without a rule fails here.
"""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise, product
from random import Random
from typing import Any

import numpy as np
import pytest

from tiledsl.ir import semantics
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Value
from tiledsl.ir.ops import arith, control, gpu
from tiledsl.ir.scalar import OPPOSITE, SCALAR, ScalarFn
from tiledsl.ir.types import BOOL, DTYPES, I8, I32, I64, INDEX, U8, DType
from tiledsl.passes.analysis.divisibility import LIMIT, divisor_of
from tiledsl.passes.analysis.interval_rules import Interval, hull, transfer
from tiledsl.passes.analysis.intervals import Intervals
from tiledsl.passes.analysis.lanes import Lanes
from tiledsl.passes.analysis.sums import Sum, Sums
from tiledsl.passes.scalar.canonicalize import Simplifier
from tiledsl.passes.scalar.ceil_division import lower_ceil_divisions
from tiledsl.passes.scalar.identities import simplify_scalar

Array = np.ndarray[Any, Any]
INTEGERS = [d for d in DTYPES.values() if d.is_integer]
WIDE = [d for d in INTEGERS if d.bits > 8]
ROWS = [row for row in SCALAR.values() if any(map(row.accepts, INTEGERS)) and not row.to_bool]
BYTES = [row for row in ROWS if row.accepts(I8)]
ENDS = (-128, -127, -65, -8, -3, -1, 0, 1, 2, 8, 100, 127)
"""The ends of intervals of bytes, for u8 plus 128."""
EXACT = ("add", "sub", "mul", "min", "max", "neg", "abs", "not")
"""Rows whose interval is the smallest one where nothing wraps."""


def numbers(dtype: DType) -> Array:
    """Return all numbers of a dtype of 8 bits."""
    least, most = dtype.limits
    return np.arange(least, most + 1).astype(semantics.numpy_dtype(dtype))


def ends(dtype: DType) -> list[int]:
    """Return where intervals of a dtype begin and end: near its limits, 0, and those of half its bits."""
    if dtype.bits == 8:
        return [v + 128 * (dtype is U8) for v in ENDS]
    least, most = dtype.limits
    middle = 1 << (dtype.bits // 2)
    around = [least, most, 0, middle, -middle, middle * middle // 4, dtype.bits]
    return sorted({v + d for v in around for d in (-2, -1, 0, 1, 3) if least <= v + d <= most})


def sampled(rng: np.random.Generator, dtype: DType, interval: Interval, count: int) -> Array:
    """Return numbers of an interval, among them its ends."""
    least, most = interval
    random = [least + int(x) % (most - least + 1) for x in rng.integers(0, 1 << 63, count - 2)]
    return np.array([least, most, *random], semantics.numpy_dtype(dtype))


# -- the rules of intervals ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [I8, U8], ids=str)
@pytest.mark.parametrize("row", [r for r in BYTES if r.arity == 1], ids=lambda r: r.name)
def test_functions_of_every_interval_of_bytes(row: ScalarFn, dtype: DType) -> None:
    results = semantics.apply(row.name, dtype, numbers(dtype)).astype(int)
    least = dtype.limits[0]
    for first in range(256):
        lows, highs = np.minimum.accumulate(results[first:]), np.maximum.accumulate(results[first:])
        for last, low, high in zip(range(first, 256), lows.tolist(), highs.tolist(), strict=True):
            found = transfer(row, dtype, [(least + first, least + last)])
            assert found[0] <= low and high <= found[1], (first, last, found)


@pytest.mark.parametrize("dtype", [I8, U8], ids=str)
@pytest.mark.parametrize("row", [r for r in BYTES if r.arity == 2], ids=lambda r: r.name)
def test_functions_of_pairs_of_intervals_of_bytes(row: ScalarFn, dtype: DType) -> None:
    column, least = numbers(dtype), dtype.limits[0]
    table = semantics.apply(row.name, dtype, *np.broadcast_arrays(column[:, None], column)).astype(int)
    intervals = list(combinations_with_replacement(ends(dtype), 2))
    exact = {"add": np.add, "sub": np.subtract, "mul": np.multiply}.get(row.name)
    kept = 0
    for a in intervals:
        rows = table[a[0] - least : a[1] - least + 1]
        lows, highs = rows.min(0), rows.max(0)
        for b in intervals:
            low, high = (
                int(lows[b[0] - least : b[1] - least + 1].min()),
                int(highs[b[0] - least : b[1] - least + 1].max()),
            )
            found = transfer(row, dtype, [a, b])
            assert dtype.limits[0] <= found[0] <= low and high <= found[1] <= dtype.limits[1], (a, b, found)
            corners = [] if exact is None else [int(exact(x, y)) for x in a for y in b]
            if row.name in EXACT and all(dtype.limits[0] <= c <= dtype.limits[1] for c in corners):
                assert found == (low, high)
            kept += found != dtype.limits
    assert kept > len(intervals), "a rule that says nothing"


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_functions_of_random_intervals(row: ScalarFn, dtype: DType) -> None:
    if not row.accepts(dtype):
        return
    rng, random = np.random.default_rng(1), Random(f"{row.name} {dtype}")
    pairs = list(combinations_with_replacement(ends(dtype), 2))
    for _ in range(60):
        chosen = [random.choice(pairs) for _ in range(row.arity)]
        results = semantics.apply(row.name, dtype, *(sampled(rng, dtype, i, 30) for i in chosen))
        found = transfer(row, dtype, chosen)
        assert found[0] <= int(results.min()) and int(results.max()) <= found[1], (chosen, found)


@pytest.mark.parametrize("src", [BOOL, *INTEGERS], ids=str)
def test_casts_of_intervals(src: DType) -> None:
    rng, random = np.random.default_rng(2), Random(f"{src}")
    b, (x,) = block(src)
    intervals = Intervals(of(b))
    pairs = list(combinations_with_replacement([0, 1] if src is BOOL else ends(src), 2))
    for to in INTEGERS:
        made = b.cast(x, to)
        for chosen in random.sample(pairs, min(40, len(pairs))):
            results = semantics.cast(sampled(rng, src, chosen, 20), src, to)
            intervals.known = {x: chosen}
            found = intervals.of(made)
            assert found[0] <= int(results.min()) and int(results.max()) <= found[1], (to, chosen, found)


# -- what conditions say ---------------------------------------------------------------------------


def block(*dtypes: DType) -> tuple[Builder, list[Value]]:
    """Return a builder of a kernel's body, and its parameters."""
    body = Block(list(dtypes), [f"x{i}" for i in range(len(dtypes))])
    return Builder(body, None), body.args  # pyright: ignore[reportArgumentType]


def of(b: Builder, index_bits: int = 64) -> Kernel:
    return Kernel("k", b.block, (1,), (64,), index_bits=index_bits)


def conditions(b: Builder, x: Value, y: Value) -> list[Value]:
    """Return conditions on two numbers: each comparison, on either side, negated, and two of them."""
    plain = [b.scalar(fn, x, y) for fn in OPPOSITE]
    three = b.constant(3, x.dtype)
    more = [b.scalar(fn, three, x) for fn in OPPOSITE] + [b.scalar("lt", b.scalar("add", x, three), y)]
    both = [b.scalar(fn, *pair) for fn in ("and", "or") for pair in pairwise([*plain, *more])]
    return [*plain, *more, *both, *(b.scalar("not", c) for c in both)]


def values(b: Builder, x: Value, y: Value) -> list[Value]:
    """Return what is chosen: a number, or what each row of the table makes of it."""
    seven = b.constant(7, x.dtype)
    made = [b.scalar(row.name, *[x, seven][: row.arity]) for row in ROWS if row.accepts(x.dtype)]
    return [x, *made, *(b.scalar(fn, x, y) for fn in ("add", "sub", "mul", "floordiv", "mod", "shl"))]


def computed(value: Value, known: dict[Value, Array]) -> Array:
    """Return the numbers of a value, by the definition of each op."""
    if value not in known:
        op = value.op
        inputs = [] if op is None else [computed(v, known) for v in op.operands]
        match op:
            case arith.Constant():
                known[value] = np.array(op.value, semantics.numpy_dtype(op.dtype))
            case arith.Cast():
                known[value] = semantics.cast(inputs[0], op.src.dtype, op.to)
            case arith.Scalar():
                known[value] = semantics.apply(op.fn.name, op.operands[0].dtype, *inputs)
            case _:
                raise AssertionError(f"{value} has no meaning here")
    return known[value]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_what_is_chosen_under_a_condition(dtype: DType) -> None:
    """Intervals hold on either side of a `select`, for conditions and functions of a number (all of bytes, indices)."""
    rng, random = np.random.default_rng(4), Random(str(dtype))
    b, (x, y) = block(dtype, dtype)
    pairs = list(combinations_with_replacement(ends(dtype), 2))
    chosen = [(c, v, b.select(c, v, x), b.select(c, x, v)) for c in conditions(b, x, y) for v in values(b, x, y)]
    intervals = Intervals(of(b))
    for condition, value, first, second in chosen if dtype in (I8, U8, INDEX) else random.sample(chosen, 300):
        given = {x: random.choice(pairs), y: random.choice(pairs)}
        if dtype.bits == 8:
            axes = [np.arange(low, high + 1).astype(semantics.numpy_dtype(dtype)) for low, high in given.values()]
        else:
            axes = [sampled(rng, dtype, interval, 12) for interval in given.values()]
        known: dict[Value, Array] = dict(zip((x, y), np.broadcast_arrays(axes[0][:, None], axes[1]), strict=True))
        holds, some, other = (computed(v, known) for v in (condition, value, x))
        for select, results in ((first, np.where(holds, some, other)), (second, np.where(holds, other, some))):
            intervals.known = dict(given)
            found = intervals.of(select)
            where = f"{condition.op} {value.op} {given}: {found}"
            assert found[0] <= int(results.min()) and int(results.max()) <= found[1], where


@pytest.mark.parametrize("dtype", [I8, I64, INDEX], ids=str)
def test_variables_of_loops(dtype: DType) -> None:
    """The interval of a loop variable holds all of its values, also near the ends of the dtype and for steps < 0."""
    random, around = Random(3), ends(dtype)
    b, bounds = block(dtype, dtype, dtype)
    body = Block([dtype], ["i"])
    b.op(control.For, *bounds, blocks=[body])
    intervals = Intervals(of(b))
    for _ in range(3000):
        lo, hi = random.choice(around), random.choice(around)
        step = random.choice([v for v in around if abs(v) < 70] if random.random() < 0.7 else around)
        intervals.known = {v: (n, n) for v, n in zip(bounds, (lo, hi, step), strict=True)}
        counted = range(lo, hi, step) if step else range(0)
        found = intervals.of(body.args[0])
        if counted:
            assert found[0] <= min(counted[0], counted[-1]) and max(counted[0], counted[-1]) <= found[1]
        assert dtype.limits[0] <= found[0] and found[1] <= dtype.limits[1]


def test_an_interval_is_the_smallest_one_that_holds_both() -> None:
    assert hull((-3, 2), (1, 9)) == (-3, 9)


# -- folding ---------------------------------------------------------------------------------------


def edges(dtype: DType) -> list[int]:
    least, most = dtype.limits
    around = {0, 1, 2, 3, 7, 8, dtype.bits - 1, dtype.bits, least, least + 1, most - 1, most, -1, -2, -8}
    return sorted(v for v in around if least <= v <= most)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("row", [r for r in SCALAR.values() if any(map(r.accepts, INTEGERS))], ids=lambda r: r.name)
def test_what_is_folded_is_what_is_computed(row: ScalarFn, dtype: DType) -> None:
    """This holds for every number at an edge of the dtype: constants on one side, on both, and a number and itself."""
    if not row.accepts(dtype):
        return
    body = Block([dtype], ["x"])
    (x,), column = body.args, np.array(edges(dtype), semantics.numpy_dtype(dtype))

    def check(*operands: Value) -> None:
        op = arith.scalar(row.name, *operands)
        expected = semantics.apply(row.name, dtype, *(computed(v, {x: column}) for v in operands))
        assert isinstance(op, arith.Scalar)
        found = simplify_scalar(Simplifier(body), op) or Builder(body).value(op)
        assert np.array_equal(np.broadcast_to(computed(found, {x: column}), expected.shape), expected), op

    if row.arity == 2:
        check(x, x)
    constants = [Builder(body).constant(v, dtype) for v in edges(dtype)]
    for operands in product([x, *constants], repeat=row.arity):
        check(*operands)


def test_ceiling_division_is_written_as_a_floor_division_where_that_is_the_same() -> None:
    """This holds whatever the intervals of the operands are, also if they are not known, or if it wraps."""
    for dtype in (I8, U8):
        b, (x, y) = block(dtype, dtype)
        column = numbers(dtype)
        known: dict[Value, Array] = dict(zip((x, y), np.broadcast_arrays(column[:, None], column), strict=True))
        pairs = [b.constant(v, dtype) for v in edges(dtype)] + [y]
        low = [b.scalar("and", x, b.constant(mask, dtype)) for mask in (1, 7, 100)]
        divided = [b.scalar("ceildiv", a, c) for a in [x, *low] for c in pairs]
        users = [b.scalar("neg", v) for v in divided]
        expected = [computed(v, dict(known)) for v in divided]
        lower_ceil_divisions(of(b))
        found = [user.op.operands[0] for user in users if user.op]
        assert sum(v.op.name == "arith.floordiv" for v in found if v.op) > 20
        assert all(np.array_equal(computed(v, known), e) for v, e in zip(found, expected, strict=True))


# -- other analyses --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [I8, U8], ids=str)
@pytest.mark.parametrize("row", BYTES, ids=lambda r: r.name)
def test_divisors_of_bytes(row: ScalarFn, dtype: DType) -> None:
    """This holds for all powers of two that divide the operands, and for every constant as the second operand."""
    column = numbers(dtype)
    powers = [1 << i for i in range(LIMIT.bit_length())]
    b, (x, y) = block(dtype, dtype)

    def check(op: Value, divisors: dict[Value, int], *operands: Array) -> None:
        results = semantics.apply(row.name, dtype, *np.broadcast_arrays(*operands)).astype(int)
        divisor = divisor_of(op.op, lambda v: divisors.get(v, 1))
        assert not (results % divisor).any(), (op.op, divisors, divisor)

    multiples = {power: column[column.astype(int) % power == 0] for power in powers}
    if row.arity == 1:
        for power in powers:
            check(b.scalar(row.name, x), {x: power}, multiples[power])
        return
    for p, q in product(powers, repeat=2):
        check(b.scalar(row.name, x, y), {x: p, y: q}, multiples[p][:, None], multiples[q])
    for constant in column:
        right = b.constant(int(constant), dtype)
        for power in powers:
            check(b.scalar(row.name, x, right), {x: power, right: 1}, multiples[power], constant[None])


@pytest.mark.parametrize("seed", range(20))
def test_sums_are_the_values_they_stand_for(seed: int) -> None:
    random = Random(seed)
    dtype = random.choice(INTEGERS)
    b, made = block(dtype, dtype)
    column = np.array(ends(dtype), semantics.numpy_dtype(dtype))
    known: dict[Value, Array] = dict(zip(made, np.broadcast_arrays(column[:, None], column), strict=True))
    for _ in range(30):
        row = random.choice([r for r in ROWS if r.accepts(dtype)])
        constant = b.constant(random.choice(ends(dtype)), dtype)
        made.append(b.scalar(row.name, *random.choices([*made, constant], k=row.arity)))
    sums = Sums(of(b))

    def number(each: Sum) -> Any:
        named = sums._values  # pyright: ignore[reportPrivateUsage]
        parts = [computed(named[n], known).astype(object) * c for n, c in each.terms]
        return sum(parts, np.array(each.constant, object))

    for value in made:
        wrong = (number(sums.of(value)) - computed(value, known).astype(object)) % (1 << dtype.bits)
        assert not np.any(wrong), value.op


@pytest.mark.parametrize("seed", range(40))
def test_forms_of_lanes_are_the_values_they_stand_for(seed: int) -> None:
    """Forms of 32-bit dtypes are equal modulo 2**32; those of wider dtypes, and of conditions, exactly."""
    random = Random(seed)
    b, given = block(I32, DTYPES["u32"], I64)
    thread = b.value(gpu.ThreadId(axis=0))
    low, high = random.choice([(-5, 5), (I32.limits[0], I32.limits[0] + 9), (I32.limits[1] - 9, I32.limits[1])])
    arrays = [semantics.cast(np.array(random.randint(low, high), np.int64), I64, v.dtype) for v in given]
    known = dict(zip(given, arrays, strict=True)) | {thread: np.arange(64)}
    made: dict[DType, list[Value]] = {INDEX: [thread]}
    for value in given:
        made.setdefault(value.dtype, []).append(value)
    for _ in range(40):
        dtype = random.choice(list(made))
        x, y = random.choices([*made[dtype], b.constant(random.randint(0, 9), dtype)], k=2)
        match random.choice(["scalar", "scalar", "cast", "condition"]):
            case "scalar":
                value = b.scalar(random.choice(["add", "sub", "mul", "shl", "and", "mod", "floordiv", "shr"]), x, y)
            case "cast":
                value = b.cast(x, random.choice([I32, I64, INDEX, DTYPES["u32"], I8]))
            case _:
                value = b.scalar(random.choice(list(OPPOSITE)), x, y)
        numbers_ = computed(value, known)
        if value.dtype is INDEX and np.abs(numbers_).max() > 1 << 48:
            continue  # an index is what a launch proves to fit
        if value.dtype is not BOOL:
            made.setdefault(value.dtype, []).append(value)
        lanes = Lanes(of(b))
        form = lanes.of(value)
        if form is None:
            continue
        parts = [computed(symbol, known).astype(object) * c for symbol, c in form.terms.items()]  # type: ignore[arg-type]
        found = sum(parts, form.lanes.reshape(-1).astype(object))
        exact = value.dtype in (BOOL, INDEX)
        wrong = (
            (found - numbers_.astype(object)) if exact else (found - numbers_.astype(object)) % (1 << value.dtype.bits)
        )
        assert not np.any(wrong), value.op
