"""Random programs of integers near the ends of their dtypes, and what they mean.

A program is written once, by `_Writer`, for a machine: `_IrMachine` builds tile-level IR of it, and `_Lanes` computes
it by `ir.semantics`, for all threads at once. Both draw the same random numbers. A program loads numbers, computes with
all integer dtypes under conditions and in loops, and reads tables at what it has computed, with guards and without;
its result is one i64 per thread. `Pack` is a kernel of several programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import numpy as np

from tiledsl.ir import semantics
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Value
from tiledsl.ir.ops import control, gpu, tile
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.scalar import OPPOSITE, SCALAR
from tiledsl.ir.types import BOOL, DTYPES, I32, I64, INDEX, DType

__all__ = ["THREADS", "Pack", "random_pack"]

Array = np.ndarray[Any, Any]
Handle = Any
"""A value of a machine: an IR value, or the numbers of all threads."""

THREADS = 32
EXTENTS = (4, 16, 128, 200)
"""Extents of the axis of a table, [3, extent, 2], that is read; neighbors along the others show where an index went."""
NUMBERS = tuple(d for d in DTYPES.values() if d.is_integer)
STORED = tuple(d for d in NUMBERS if d is not INDEX)
UNARY = tuple(r for r in SCALAR.values() if r.arity == 1 and any(map(r.accepts, NUMBERS)))
BINARY = tuple(r for r in SCALAR.values() if r.arity == 2 and not r.to_bool and any(map(r.accepts, NUMBERS)))
COMPARE = tuple(OPPOSITE)


def near(random: Random, dtype: DType) -> int:
    """Return a number near an end of a dtype, near 0, near an extent, or near a power of two."""
    least, most = dtype.limits
    base = random.choice((0, 0, 0, least, most, 1 << random.randrange(dtype.bits), *EXTENTS))
    found = base + random.choice((-3, -2, -1, 0, 0, 0, 1, 2, 7))
    return min(max(found, least), most)


class _Machine:
    """A target that programs are written for: a handle for each value, and blocks as functions of handles."""

    def constant(self, value: int, dtype: DType) -> Handle:
        raise NotImplementedError

    def given(self, number: int, dtype: DType) -> Handle:
        """Return what this thread loads of input `number` of a dtype."""
        raise NotImplementedError

    def scalar(self, fn: str, *operands: Handle) -> Handle:
        raise NotImplementedError

    def cast(self, value: Handle, to: DType) -> Handle:
        raise NotImplementedError

    def select(self, condition: Handle, a: Handle, b: Handle) -> Handle:
        raise NotImplementedError

    def branch(self, condition: Handle, then: Callable[[], Handle], orelse: Callable[[], Handle]) -> Handle:
        raise NotImplementedError

    def loop(self, bounds: Sequence[Handle], init: Handle, body: Callable[[Handle, Handle], Handle]) -> Handle:
        raise NotImplementedError

    def repeat(
        self, init: Handle, test: Callable[[Handle, Handle], Handle], body: Callable[[Handle], Handle], most: int
    ) -> Handle:
        """Return what `body` makes of `init` while `test`, of the value and the number of the turn, holds."""
        raise NotImplementedError

    def load(self, extent: int, at: Handle, guarded: bool) -> Handle:
        raise NotImplementedError


class _IrMachine(_Machine):
    """Builder of tile-level IR. safe: every load has a guard. lane: inputs are constants, those of this thread."""

    def __init__(self, b: Builder, memories: dict[str, Value], thread: Value) -> None:
        self.b, self.memories, self.thread = b, memories, thread
        self.safe, self.inputs, self.lane = False, dict[str, Array](), -1

    def constant(self, value: int, dtype: DType) -> Handle:
        return self.b.constant(value, dtype)

    def given(self, number: int, dtype: DType) -> Handle:
        name = f"{'XY'[number]}_{dtype}"
        if self.lane >= 0:
            return self.constant(int(self.inputs[name][self.lane]), dtype)
        return self.b.value(tile.Load(self.memories[name], self.thread))

    def scalar(self, fn: str, *operands: Handle) -> Handle:
        return self.b.scalar(fn, *operands)

    def cast(self, value: Handle, to: DType) -> Handle:
        return self.b.cast(value, to)

    def select(self, condition: Handle, a: Handle, b: Handle) -> Handle:
        return self.b.select(condition, a, b)

    def _block(self, dtypes: Sequence[DType], end: Callable[..., Any]) -> Block:
        block = Block(list(dtypes))
        with self.b.inside(block):
            end(*block.args)
        return block

    def _yields(self, fn: Callable[..., Handle]) -> Callable[..., Any]:
        return lambda *args: self.b.op(control.Yield, fn(*args))

    def branch(self, condition: Handle, then: Callable[[], Handle], orelse: Callable[[], Handle]) -> Handle:
        blocks = [self._block((), self._yields(fn)) for fn in (then, orelse)]
        return self.b.op(control.If, condition, blocks=blocks).result

    def loop(self, bounds: Sequence[Handle], init: Handle, body: Callable[[Handle, Handle], Handle]) -> Handle:
        block = self._block((bounds[0].dtype, init.dtype), self._yields(body))
        return self.b.op(control.For, *bounds, init, blocks=[block]).result

    def repeat(
        self, init: Handle, test: Callable[[Handle, Handle], Handle], body: Callable[[Handle], Handle], most: int
    ) -> Handle:
        def before(value: Value, turn: Value) -> None:
            few = self.scalar("lt", turn, self.constant(most, I32))
            self.b.op(control.Condition, self.scalar("and", few, test(value, turn)), value, turn)

        def after(value: Value, turn: Value) -> None:
            self.b.op(control.Yield, body(value), self.scalar("add", turn, self.constant(1, I32)))

        dtypes = (init.dtype, I32)
        blocks = [self._block(dtypes, before), self._block(dtypes, after)]
        return self.b.op(control.While, init, self.constant(0, I32), blocks=blocks).results[0]

    def load(self, extent: int, at: Handle, guarded: bool) -> Handle:
        memory, one, zero = self.memories[f"T{extent}"], self.constant(1, INDEX), self.constant(0, INDEX)
        if guarded or self.safe:
            return self.b.value(tile.Get(memory, one, at, zero, self.constant(-7, I32)))
        return self.b.value(tile.Load(memory, one, at, zero))


@dataclass
class _Number:
    """The numbers of all threads."""

    dtype: DType
    array: Array


class _Lanes(_Machine):
    """A machine that computes a program for all threads. `outside`: those that have read outside a table, unguarded."""

    def __init__(self, inputs: dict[str, Array], tables: dict[str, Array]) -> None:
        self.inputs, self.tables = inputs, tables
        self.active = np.ones(THREADS, bool)
        self.outside = np.zeros(THREADS, bool)

    def constant(self, value: int, dtype: DType) -> Handle:
        return _Number(dtype, np.full(THREADS, value, semantics.numpy_dtype(dtype)))

    def given(self, number: int, dtype: DType) -> Handle:
        return _Number(dtype, self.inputs[f"{'XY'[number]}_{dtype}"])

    def scalar(self, fn: str, *operands: Handle) -> Handle:
        result = semantics.apply(fn, operands[0].dtype, *(v.array for v in operands))
        return _Number(BOOL if SCALAR[fn].to_bool else operands[0].dtype, result)

    def cast(self, value: Handle, to: DType) -> Handle:
        return _Number(to, semantics.cast(value.array, value.dtype, to))

    def select(self, condition: Handle, a: Handle, b: Handle) -> Handle:
        return _Number(a.dtype, np.where(condition.array, a.array, b.array))

    def _under(self, mask: Array, fn: Callable[[], Handle]) -> Handle:
        outer, self.active = self.active, self.active & mask
        found = fn()
        self.active = outer
        return found

    def branch(self, condition: Handle, then: Callable[[], Handle], orelse: Callable[[], Handle]) -> Handle:
        return self.select(condition, self._under(condition.array, then), self._under(~condition.array, orelse))

    def loop(self, bounds: Sequence[Handle], init: Handle, body: Callable[[Handle, Handle], Handle]) -> Handle:
        ranges = [
            range(*map(int, each)) if each[2] else range(0) for each in zip(*(v.array for v in bounds), strict=True)
        ]
        value, dtype = init, bounds[0].dtype
        for turn in range(max(map(len, ranges))):
            runs = np.array([turn < len(r) for r in ranges])
            index = np.array([r[turn] if turn < len(r) else 0 for r in ranges], semantics.numpy_dtype(dtype))
            new = self._under(runs, lambda index=index, value=value: body(_Number(dtype, index), value))
            value = _Number(value.dtype, np.where(runs, new.array, value.array))
        return value

    def repeat(
        self, init: Handle, test: Callable[[Handle, Handle], Handle], body: Callable[[Handle], Handle], most: int
    ) -> Handle:
        value, runs = init, np.ones(THREADS, bool)
        for turn in range(most):
            tested = self._under(runs, lambda turn=turn, value=value: test(value, self.constant(turn, I32)))
            runs = runs & tested.array
            new = self._under(runs, lambda value=value: body(value))
            value = _Number(value.dtype, np.where(runs, new.array, value.array))
        return value

    def load(self, extent: int, at: Handle, guarded: bool) -> Handle:
        inside = (at.array >= 0) & (at.array < extent)
        if not guarded:
            self.outside |= self.active & ~inside
        found = self.tables[f"T{extent}"][1, np.where(inside, at.array, 0), 0]
        return _Number(I32, np.where(inside, found, np.int32(-7)))


class _Writer:
    """Writer of a program for a machine. Each block has random numbers of its own, since a loop's is run repeatedly."""

    def __init__(self, m: _Machine) -> None:
        self.m = m

    def program(self, seed: int) -> Handle:
        random = Random(seed)
        pool = [self.m.given(random.randrange(2), dtype) for dtype in random.sample(STORED, 3)]
        return self.block(random.getrandbits(60), pool, 0)

    def block(self, seed: int, scope: Sequence[Handle], depth: int) -> Handle:
        """Return the digest of what a block of statements computes."""
        random, pool = Random(seed), list(scope)
        digest = self.m.constant(seed % 1000, I64)
        for _ in range(random.randint(2, 5) if depth else random.randint(4, 9)):
            made = self.statement(random, pool, depth)
            pool.append(made)
            if random.random() < 0.75:
                digest = self.mixed(digest, made)
        return digest

    def mixed(self, digest: Handle, value: Handle) -> Handle:
        return self.m.scalar("add", self.m.scalar("mul", digest, self.m.constant(31, I64)), self.m.cast(value, I64))

    def statement(self, random: Random, pool: Sequence[Handle], depth: int) -> Handle:
        kinds = ["chosen"] * 3 + ["number"] * 2 + ["read"] * 3 + ["index"]
        kinds += ["branch", "loop", "repeat"] if depth < 2 else []
        return getattr(self, random.choice(kinds))(random, pool, depth)

    # -- numbers -------------------------------------------------------------------------------

    def some(self, random: Random, pool: Sequence[Handle], dtype: DType | None = None) -> Handle:
        """Return a value, one of a wanted dtype if there is one, else a constant."""
        fitting = [v for v in pool if v.dtype is not BOOL and (dtype is None or v.dtype is dtype)]
        if fitting and random.random() < 0.8:
            return random.choice(fitting)
        wanted = dtype or random.choice(NUMBERS)
        return self.m.constant(near(random, wanted), wanted)

    def of(self, random: Random, x: Handle, pool: Sequence[Handle]) -> Handle:
        """Return what a function makes of x."""
        if random.random() < 0.2:
            return self.m.scalar(random.choice([r.name for r in UNARY if r.accepts(x.dtype)]), x)
        fn = random.choice([r.name for r in BINARY if r.accepts(x.dtype)] + ["add", "mul", "shl", "sub"])
        other = self.m.constant(near(random, x.dtype), x.dtype)
        if fn in ("shl", "shr") and random.random() < 0.7:
            other = self.m.constant(random.randrange(min(x.dtype.bits, 16)), x.dtype)
        elif random.random() < 0.4:
            other = self.some(random, pool, x.dtype)
        return self.m.scalar(fn, *((x, other) if random.random() < 0.85 else (other, x)))

    def number(self, random: Random, pool: Sequence[Handle], depth: int) -> Handle:
        x = self.some(random, pool)
        return self.of(random, x, pool) if random.random() < 0.7 else self.m.cast(x, random.choice(NUMBERS))

    def condition(self, random: Random, x: Handle, pool: Sequence[Handle]) -> Handle:
        """Return a condition that says something of x."""
        left = x
        if random.random() < 0.25:
            left = self.m.scalar("add", x, self.m.constant(near(random, x.dtype), x.dtype))
        right = self.m.constant(near(random, x.dtype), x.dtype)
        if random.random() < 0.3:
            right = self.some(random, pool, x.dtype)
        sides = (left, right) if random.random() < 0.7 else (right, left)
        found = self.m.scalar(random.choice(COMPARE), *sides)
        if random.random() < 0.15:
            found = self.m.scalar("not", found)
        if random.random() < 0.3:
            found = self.m.scalar(random.choice(("and", "or")), found, self.condition(random, x, pool))
        return found

    def chosen(self, random: Random, pool: Sequence[Handle], depth: int) -> Handle:
        """Return f(x) or another number, by a condition on x: what analyses narrow."""
        x = self.some(random, pool)
        condition, value = self.condition(random, x, pool), self.of(random, x, pool)
        other = self.m.constant(near(random, x.dtype), x.dtype) if random.random() < 0.6 else x
        sides = (value, other) if random.random() < 0.7 else (other, value)
        return self.m.select(condition, *sides)

    def index(self, random: Random, pool: Sequence[Handle], depth: int) -> Handle:
        x = self.some(random, pool)
        found = x if x.dtype is INDEX else self.m.cast(x, INDEX)
        return self.of(random, found, pool) if random.random() < 0.6 else found

    # -- blocks --------------------------------------------------------------------------------

    def branch(self, random: Random, pool: Sequence[Handle], depth: int) -> Handle:
        x = self.some(random, pool)
        condition, seeds = self.condition(random, x, pool), (random.getrandbits(60), random.getrandbits(60))
        if random.random() < 0.5:
            return self.m.branch(
                condition,
                lambda: self.of(Random(seeds[0]), x, pool),
                lambda: self.m.constant(near(Random(seeds[1]), x.dtype), x.dtype),
            )
        blocks = [partial(self.block, seed, pool, depth + 1) for seed in seeds]
        return self.m.branch(condition, *blocks)

    def loop(self, random: Random, pool: Sequence[Handle], depth: int) -> Handle:
        """Write a loop of a few iterations from anywhere; if its last bound wraps, of none or some."""
        dtype = random.choice([d for d in NUMBERS if d.kind != "uint"])
        step, seed = random.choice((1, 1, 2, 3, 100, -1, -7)), random.getrandbits(60)
        lo = self.some(random, pool, dtype)
        by = self.m.constant(step, dtype)
        distance = self.m.scalar("mul", by, self.m.constant(random.randrange(5), dtype))
        init = self.some(random, pool)

        def body(i: Handle, carried: Handle) -> Handle:
            inner = Random(seed)
            if inner.random() < 0.5:
                x = self.m.cast(i, carried.dtype)
                return self.m.scalar(inner.choice(("add", "mul", "sub", "max", "min")), carried, x)
            digest = self.block(inner.getrandbits(60), [*pool, i, carried], depth + 1)
            return self.m.scalar("xor", self.m.cast(digest, carried.dtype), carried)

        return self.m.loop((lo, self.m.scalar("add", lo, distance), by), init, body)

    def repeat(self, random: Random, pool: Sequence[Handle], depth: int) -> Handle:
        init, seeds = self.some(random, pool), (random.getrandbits(60), random.getrandbits(60))
        return self.m.repeat(
            init,
            lambda value, turn: self.condition(Random(seeds[0]), value, pool),
            lambda value: self.of(Random(seeds[1]), value, pool),
            random.randint(1, 4),
        )

    # -- accesses ------------------------------------------------------------------------------

    def read(self, random: Random, pool: Sequence[Handle], depth: int) -> Handle:
        """Read a table at a number that is made to lie inside, that a condition seems to put there, or at any."""
        extent = random.choice(EXTENTS)
        x = random.choice((self.chosen, self.number, self.index))(random, pool, depth)
        m, most = self.m, min(extent - 1, x.dtype.limits[1])
        how = random.choice(("get", "get", "clamp", "clamp", "low", "mod", "if", "if", "if", "near", "any"))
        match how:
            case "clamp":
                x = m.scalar("min", m.scalar("max", x, m.constant(0, x.dtype)), m.constant(most, x.dtype))
            case "low":  # in bounds unless it is negative
                x = m.scalar("min", x, m.constant(most, x.dtype))
            case "mod":
                x = m.scalar("mod", x, m.constant(most, x.dtype))
            case "near":
                x = m.scalar("and", x, m.constant(random.choice((3, 15, 127)), x.dtype))
            case _:
                pass
        moved = near(random, I32) if random.random() < 0.1 else 0

        def at() -> Handle:
            found = x if x.dtype is INDEX else m.cast(x, INDEX)
            return m.scalar("add", found, m.constant(moved, INDEX)) if moved else found

        if how != "if":
            return m.load(extent, at(), how == "get")
        inside = m.scalar("lt", x, m.constant(min(extent, x.dtype.limits[1]), x.dtype))
        if x.dtype.is_signed and random.random() < 0.8:
            inside = m.scalar("and", m.scalar("ge", x, m.constant(0, x.dtype)), inside)
        return m.branch(inside, lambda: m.load(extent, at(), False), lambda: m.constant(-9, I32))


# -- packs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pack:
    """Programs by their seeds, on common inputs. expected: the result of each program in each thread. outside: the
    programs that read outside a table, without a guard."""

    seeds: tuple[int, ...]
    inputs: dict[str, Array]
    tables: dict[str, Array]
    expected: Array
    outside: tuple[bool, ...]

    def kernel(
        self, chosen: Sequence[int], *, safe: Sequence[bool] = (), lane: int = -1, index_bits: int = 32
    ) -> Kernel:
        """Return a tile-level kernel of the programs of these numbers.

        Args:
            chosen: The numbers of the programs, in the order of their results.
            safe: For each of them, whether every load gets a guard. (default: none does)
            lane: A thread whose inputs are constants of the kernel; -1 for none.
            index_bits: 32 or 64.
        """
        sizes = {name: (name[2:], array.itemsize) for name, array in self.inputs.items()}
        params = [f"%{name}: global<{dtype}, [N], unit=0, align={size}>" for name, (dtype, size) in sizes.items()]
        params += [f"%T{e}: global<i32, [3, {e}, 2], unit=2, align=4>" for e in EXTENTS]
        params.append("%OUT: global<i64, [P, N], unit=1, align=8>")
        shape = f"grid(1) threads({THREADS}) level(tile) index_bits({index_bits})"
        made = parse_kernel(f"kernel integers({', '.join(params)})\n  {shape} {{\n  control.return\n}}")
        made.body.ops.clear()
        b = Builder(made.body)
        memories = {arg.name: arg for arg in made.body.args}
        machine = _IrMachine(b, memories, b.value(gpu.ThreadId(axis=0)))
        machine.inputs, machine.lane = self.inputs, lane
        for row, number in enumerate(chosen):
            machine.safe = bool(safe) and safe[row]
            result = _Writer(machine).program(self.seeds[number])
            b.op(tile.Store, memories["OUT"], b.constant(row, INDEX), machine.thread, result)
        b.op(control.Return)
        return made

    def arguments(self, count: int) -> dict[str, Array]:
        """Return arguments for a kernel of `count` programs."""
        copies = {name: array.copy() for name, array in (self.inputs | self.tables).items()}
        return copies | {"OUT": np.zeros((count, THREADS), np.int64)}


def random_pack(seed: int, count: int) -> Pack:
    random = Random(f"integers {seed}")
    inputs = {
        f"{which}_{dtype}": np.array([near(random, dtype) for _ in range(THREADS)], semantics.numpy_dtype(dtype))
        for which in "XY"
        for dtype in STORED
    }
    rng = np.random.default_rng(seed)
    tables = {f"T{e}": rng.integers(-(1 << 31), 1 << 31, (3, e, 2)).astype(np.int32) for e in EXTENTS}
    seeds = tuple(random.getrandbits(60) for _ in range(count))
    expected, outside = [], []
    for each in seeds:
        lanes = _Lanes(inputs, tables)
        expected.append(_Writer(lanes).program(each).array)
        outside.append(bool(lanes.outside.any()))
    return Pack(seeds, inputs, tables, np.array(expected, np.int64), tuple(outside))
