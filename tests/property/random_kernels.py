"""Random small kernels that are valid and deterministic: no races, no access out of bounds, loops that end.

``random_case(seed, size)`` gives a tile-level kernel and arguments for it. It uses every op family but
the approximate scalar rows and debugging: arithmetic on all dtypes, ifs, for and while loops with
carried values, fragments, guarded and vector accesses, shared tiles between barriers, votes, shuffles,
whole-block copies, integer atomics of all orders. Each thread writes only elements of its own, so any schedule gives
the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tiledsl.errors import Loc
from tiledsl.ir.atomics import ATOMICS
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import OPS, Block, Kernel, Value
from tiledsl.ir.ops import arith, control, gpu, tile, warp
from tiledsl.ir.scalar import SCALAR, converts
from tiledsl.ir.types import (
    BF16,
    BOOL,
    DTYPES,
    E4M3,
    E5M2,
    F16,
    F32,
    F64,
    I32,
    I64,
    INDEX,
    U32,
    DType,
    FragmentType,
    GlobalType,
    SharedType,
    Type,
)

__all__ = ["Case", "cases", "random_case", "same_bits"]

Array = NDArray[Any]

BLOCKS = 2
COLUMNS = 24
SHAPES: tuple[tuple[int, ...], ...] = ((32,), (64,), (8, 4), (33,), (5, 3, 2), (1,))
NUMBERS: tuple[DType, ...] = tuple(t for t in DTYPES.values() if t not in (BOOL, INDEX))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 3.0, 2.0**-14, 2.0**-24, 65504.0, float("inf"), float("nan"))
INTEGERS = (0, 1, 2, 3, 5, 7, 8, 31, 32, 100, 127)
SMALL = 1 << 12
"""Bound on index values, so that index arithmetic is the same in 32 and 64 bits."""


@dataclass
class Case:
    """A kernel and a way to make fresh, equal arguments for it."""

    kernel: Kernel
    arguments: Callable[[], dict[str, Any]]


@st.composite
def cases(draw: Any, most: int = 40) -> Case:
    """Cases for hypothesis; shrinking makes them shorter. Few are short from the start."""
    return random_case(draw(st.integers(0, 2**32 - 1)), most - draw(st.integers(0, most - 1)))


def same_bits(a: Array, b: Array) -> bool:
    """Equal element by element, NaN payloads and signs of zero included."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def random_case(seed: int, size: int) -> Case:
    """`size`: about how many statements the kernel has."""
    return _Maker(Random(seed), seed).case(size)


@dataclass
class _Pool:
    """Visible values by type, and index values with a bound on their magnitude. Copied for each block."""

    values: dict[Type, list[Value]] = field(default_factory=dict[Type, list[Value]])
    index: list[tuple[Value, int]] = field(default_factory=list[tuple[Value, int]])

    def copy(self) -> _Pool:
        return _Pool({t: list(v) for t, v in self.values.items()}, list(self.index))

    def add(self, value: Value) -> Value:
        self.values.setdefault(value.type, []).append(value)
        return value


UPDATES = ("add", "min", "max", "and", "or", "xor")
ORDERS = ATOMICS["add"].orders
"""Of atomic operations, by the seed."""


class _Maker:
    """Writes one kernel. `uniform`: all threads of the block reach this place, the same number of times."""

    def __init__(self, random: Random, seed: int) -> None:
        self.random = random
        self.threads = random.choice(SHAPES)
        self.count = int(np.prod(self.threads))
        self.other = random.choice([t for t in NUMBERS if t not in (F32, I32)])
        self.tables = {
            "A": GlobalType(F32, ("M", "K"), random.choice([0, 1, -1]), 4),
            "V": GlobalType(random.choice([F32, F16, F64]), (3, 16), 1, 16),
            "W": GlobalType(random.choice([F32, F16, F64]), ("M", "L"), 1, 16),
            "B": GlobalType(self.other, ("N",), 0, self.other.bytes),
        }
        self.outputs = {
            "OF": GlobalType(F32, ("T",), 0, 4),
            "OI": GlobalType(I32, ("T",), 0, 4),
            "OX": GlobalType(self.other, ("T",), 0, self.other.bytes),
            "OG": GlobalType(F32, ("G",), 0, 4),
            "OV": GlobalType(F32, ("T", 4), 1, 16),
            "OW": GlobalType(F32, ("T", "R"), 1, 4),
            "OC": GlobalType(F32, ("G", 4), 1, 16),
            "COUNT": GlobalType(U32, (4,), 0, 4),
            "BITS": GlobalType(I64, ("T", COLUMNS), 1, 8),
        }
        # The formats of matrix operands come in tensors only.
        self.scalars: dict[str, DType] = {"s": F32, "n": I32, "x": F32 if self.other.is_matrix else self.other}
        self.body = Block(
            [*self.tables.values(), *self.outputs.values(), *self.scalars.values()],
            [*self.tables, *self.outputs, *self.scalars],
        )
        self.param = {a.name: a for a in self.body.args}
        self.seed = seed
        self.b = Builder(self.body)
        self.pool = _Pool()
        self.line = 0
        self.uniform = True
        self.depth = 0

    # -- the whole kernel ----------------------------------------------------------------------

    def case(self, size: int) -> Case:
        self.prologue()
        self.statements(size)
        self.epilogue()
        grid = (BLOCKS,)
        kernel = Kernel("random", self.body, grid, self.threads, index_bits=self.random.choice([32, 64]))
        return Case(kernel, self.arguments_factory())

    def prologue(self) -> None:
        b = self.b
        ids = [b.value(gpu.ThreadId(axis=a)) for a in range(len(self.threads))]
        linear = ids[-1]
        for axis in range(len(self.threads) - 2, -1, -1):
            linear = b.scalar("add", b.scalar("mul", linear, b.constant(self.threads[axis], INDEX)), ids[axis])
        self.block_id = block = b.value(gpu.BlockId(axis=0))
        self.tid = linear
        self.gid = b.scalar("add", b.scalar("mul", block, b.constant(self.count, INDEX)), linear)
        self.gid.name = "gid"
        self.pool.index += [(i, 64) for i in ids] + [(block, BLOCKS), (self.gid, 2 * 64)]
        self.pool.index += [(b.value(tile.Dim(self.param["A"], axis=a)), 8) for a in (0, 1)]
        self.pool.index += [(b.value(tile.Stride(self.param["A"], axis=a)), 32) for a in (0, 1)]
        self.pool.index.append((b.value(gpu.LaneId()), 32))
        self.pool.index.append((b.value(gpu.WarpId()), 32))
        for name in self.scalars:
            self.pool.add(self.param[name])
        self.pool.add(b.value(tile.Load(self.param["B"], self.in_bounds(self.param["B"], 0))))

    def epilogue(self) -> None:
        """Store values of the outermost block as they are, the latest first: nothing may hide a difference."""
        for name, dtype in (("OF", F32), ("OI", I32), ("OX", self.other)):
            self.b.op(tile.Store, self.param[name], self.gid, self.pick(dtype))
        self.b.op(tile.Put, self.param["OG"], self.gid, self.pick(F32))
        values = [v for known in self.pool.values.values() for v in known[-8:]] + [v for v, _ in self.pool.index[-8:]]
        for column, value in enumerate(self.random.sample(values, min(COLUMNS, len(values)))):
            self.b.op(tile.Store, self.param["BITS"], self.gid, self.b.constant(column, INDEX), self.bits(value))
        self.b.block.append(control.Return())

    def bits(self, value: Value) -> Value:
        """A scalar, or the first element of a fragment, as an i64."""
        if isinstance(value.type, FragmentType):
            value = self.b.value(tile.Extract(value, at=(0,) * len(value.type.dims)))
        if value.dtype.python is float:
            value = self.b.value(arith.Bitcast(value, to=DTYPES[f"i{value.dtype.bits}"]))
        return self.b.cast(value, I64)

    def arguments_factory(self) -> Callable[[], dict[str, Any]]:
        seed, tables, outputs, total = self.seed, self.tables, self.outputs, self.count * BLOCKS
        scalar = self.scalars["x"]
        sizes = {"M": 5, "K": 7, "L": 14, "N": 9, "T": total, "G": max(1, total - 3), "R": 6}

        def make() -> dict[str, Any]:
            rng = np.random.default_rng(seed)
            given: dict[str, Any] = {}
            for name, type_ in tables.items():
                shape = tuple(d if isinstance(d, int) else sizes[d] for d in type_.dims)
                given[name] = _strided(_random_array(rng, type_.dtype, shape), type_)
            for name, type_ in outputs.items():
                shape = tuple(d if isinstance(d, int) else sizes[d] for d in type_.dims)
                given[name] = np.zeros(shape, _numpy(type_.dtype))
            x = _random_array(rng, scalar, (1,))[0]
            return {**given, "s": np.float32(rng.standard_normal()), "n": np.int32(rng.integers(-5, 9)), "x": x}

        return make

    # -- values --------------------------------------------------------------------------------

    def next_line(self) -> None:
        self.line += 1
        self.b.loc = Loc("random.py", self.line, 1 + self.depth)

    def pick(self, type_: Type) -> Value:
        """A visible value of `type_`, made on the spot if there is none."""
        known = self.pool.values.get(type_, [])
        if known and self.random.random() < 0.85:
            return self.random.choice(known)
        if isinstance(type_, FragmentType):
            elements = [self.pick(type_.dtype) for _ in range(self.random.choice([1, type_.size]))]
            return self.pool.add(self.b.value(tile.Pack(*elements, type=type_)))
        assert isinstance(type_, DType)
        return self.pool.add(self.constant(type_))

    def constant(self, dtype: DType) -> Value:
        if dtype is BOOL:
            return self.b.constant(self.random.random() < 0.5, BOOL)
        if dtype.python is float:
            from tiledsl.ir import semantics

            return self.b.constant(semantics.fold_cast(self.random.choice(FLOATS), F64, dtype), dtype)
        value = self.random.choice(INTEGERS)
        return self.b.constant(-value if dtype.kind == "int" and self.random.random() < 0.3 else value, dtype)

    def index(self) -> tuple[Value, int]:
        if self.random.random() < 0.2:
            value = self.random.choice(INTEGERS)
            return self.b.constant(value, INDEX), value
        return self.random.choice(self.pool.index)

    def in_bounds(self, memory: Value, axis: int, multiple_of: int = 1) -> Value:
        """An index in [0, extent): some index modulo the extent."""
        type_ = memory.type
        assert isinstance(type_, (GlobalType, SharedType))
        extent = type_.dims[axis]
        size = self.b.constant(extent, INDEX) if isinstance(extent, int) else self.b.value(tile.Dim(memory, axis=axis))
        index, _ = self.index()
        if multiple_of == 1:
            return self.b.scalar("mod", index, size)
        factor = self.b.constant(multiple_of, INDEX)
        return self.b.scalar("mul", self.b.scalar("mod", index, self.b.scalar("floordiv", size, factor)), factor)

    # -- statements ----------------------------------------------------------------------------

    def statements(self, count: int) -> None:
        plain = [self.scalar] * 5 + [self.index_value] * 3 + [self.cast, self.select, self.bitcast, self.compare]
        plain += [self.load, self.get, self.vector_load, self.fragment, self.fragment, self.atomic]
        nested = [self.if_, self.for_, self.while_] if self.depth < 3 else []
        together = [self.exchange, self.warp, self.copy] if self.uniform else []
        for _ in range(count):
            self.next_line()
            self.random.choice(plain + nested * 2 + together + ([self.guarded_store] if self.depth == 0 else []))()

    def scalar(self) -> None:
        rows = [r for r in SCALAR.values() if r.ulp is None]
        while True:
            row, dtype = self.random.choice(rows), self.random.choice((F32, I32, self.other, BOOL, *NUMBERS))
            if row.accepts(dtype):
                break
        operands = [self.pick(dtype) for _ in range(row.arity)]
        if row.arity > 1 and self.random.random() < 0.4:  # constants are what passes look for
            operands[self.random.randrange(row.arity)] = self.pool.add(self.constant(dtype))
        self.pool.add(self.b.scalar(row.name, *operands))
        if self.random.random() < 0.3:  # nearly the same again
            self.random.shuffle(operands)
            self.pool.add(self.b.scalar(row.name, *operands))

    def compare(self) -> None:
        fn = self.random.choice(["eq", "ne", "lt", "le", "gt", "ge"])
        self.pool.add(self.b.scalar(fn, self.index()[0], self.index()[0]))

    def index_value(self) -> None:
        (x, bx), (y, by) = self.index(), self.index()
        fn = self.random.choice(["add", "sub", "mul", "floordiv", "mod", "min", "max", "neg", "abs", "cast"])
        match fn:
            case "mul" if bx * by >= SMALL:
                return
            case "mul":
                value, bound = self.b.scalar(fn, x, y), bx * by
            case "add" | "sub":
                value, bound = self.b.scalar(fn, x, y), bx + by
            case "floordiv" | "mod":
                divisor = self.b.constant(self.random.choice([1, 2, 3, 8, 32]), INDEX)
                value, bound = self.b.scalar(fn, x, divisor), bx + 32
            case "neg" | "abs":
                value, bound = self.b.scalar(fn, x), bx
            case "cast":
                small = self.b.scalar("and", self.pick(I32), self.b.constant(63, I32))
                value, bound = self.b.cast(small, INDEX), 63
            case _:
                value, bound = self.b.scalar(fn, x, y), max(bx, by)
        if bound < SMALL:
            self.pool.index.append((value, bound))

    def cast(self) -> None:
        if self.random.random() < 0.2:
            self.pool.add(self.b.cast(self.index()[0], self.target(INDEX)))
            return
        src = self.random.choice(list(self.pool.values))
        if isinstance(src, DType):
            value = self.pool.add(self.b.cast(self.pick(src), self.target(src)))
            self.pool.add(self.b.cast(value, self.target(value.dtype)))

    def target(self, src: DType) -> DType:
        """What a value of `src` may be converted to."""
        wanted = (F32, I32, self.other, BOOL, *NUMBERS)
        return self.random.choice([to for to in wanted if converts(src, to)])

    def bitcast(self) -> None:
        """Floats to bits only: bits to a float could make a NaN whose payload arithmetic may drop."""
        src = self.random.choice((F32, I32, self.other))
        to = [t for t in NUMBERS if t.bits == src.bits and t.python is int]
        self.pool.add(self.b.value(arith.Bitcast(self.pick(src), to=self.random.choice(to))))

    def select(self) -> None:
        type_ = self.random.choice(list(self.pool.values))
        self.pool.add(self.b.select(self.pick(BOOL), self.pick(type_), self.pick(type_)))

    def load(self) -> None:
        memory = self.param[self.random.choice(list(self.tables))]
        rank = len(self.tables[memory.name].dims)
        self.pool.add(self.b.value(tile.Load(memory, *(self.in_bounds(memory, a) for a in range(rank)))))

    def get(self) -> None:
        memory = self.param[self.random.choice(list(self.tables))]
        type_ = self.tables[memory.name]
        indices = [self.index()[0] for _ in type_.dims]
        self.pool.add(self.b.value(tile.Get(memory, *indices, self.pick(type_.dtype))))

    def vector_load(self) -> None:
        name = self.random.choice(["V", "W"])
        memory, type_ = self.param[name], self.tables[name]
        vec = self.random.choice([2, 2, 4])
        if vec * type_.dtype.bytes > 16:
            vec = 2
        if self.random.random() < 0.5:
            indices = self.in_bounds(memory, 0), self.in_bounds(memory, 1, multiple_of=vec)
            self.pool.add(self.b.value(tile.Load(memory, *indices, vec=vec)))
            return
        column = self.b.scalar("mul", self.index()[0], self.b.constant(vec, INDEX))
        other = self.pick(FragmentType(type_.dtype, (vec,)))
        self.pool.add(self.b.value(tile.Get(memory, self.index()[0], column, other, vec=vec)))

    def fragment(self) -> None:
        type_ = FragmentType(self.random.choice((F32, I32)), self.random.choice([(2,), (2, 2), (3,)]))
        fragment = self.pick(type_)
        at = tuple(self.random.randrange(d) for d in type_.dims)
        if self.random.random() < 0.5:
            self.pool.add(self.b.value(tile.Extract(fragment, at=at)))
        else:
            self.pool.add(self.b.value(tile.Insert(fragment, self.pick(type_.dtype), at=at)))

    def atomic(self) -> None:
        """The old value depends on the order of threads, so nothing uses it; all of a kernel are one function."""
        memory = self.param["COUNT"]
        fn, order = UPDATES[self.seed % len(UPDATES)], ORDERS[self.seed // len(UPDATES) % len(ORDERS)]
        self.b.add(OPS[f"tile.atomic_{fn}"](memory, self.in_bounds(memory, 0), self.pick(U32), order=order))

    def guarded_store(self) -> None:
        """A row that only this thread writes, at columns that may lie outside."""
        kind = self.random.choice(["element", "vector", "row"])
        if kind == "element":
            self.b.op(tile.Put, self.param["OW"], self.gid, self.index()[0], self.pick(F32))
            return
        fragment = self.pick(FragmentType(F32, (4,)))
        column = self.b.constant(0, INDEX)
        if kind == "vector":
            column = self.b.scalar("mul", self.index()[0], self.b.constant(4, INDEX))
        self.b.op(tile.Put if kind == "vector" else tile.Store, self.param["OV"], self.gid, column, fragment, vec=4)

    def exchange(self) -> None:
        """All threads write a shared tile, meet, read each other's element, and meet again."""
        dtype = self.random.choice((F32, I32, self.other))
        made = self.b.value(tile.SharedAlloc(type=SharedType(dtype, (self.count,))))
        self.b.op(tile.Store, made, self.tid, self.pick(dtype))
        self.b.op(gpu.Barrier)
        self.pool.add(self.b.value(tile.Load(made, self.in_bounds(made, 0))))
        self.pool.add(self.b.value(tile.Get(made, self.index()[0], self.pick(dtype))))
        self.b.op(gpu.Barrier)

    def copy(self) -> None:
        """The block copies a part of a table that may lie across its edge, each thread reads an element, and the tile
        leaves to rows that only this block writes, some of them past the edge."""
        width = self.random.choice([1, 2, 4])
        made = self.b.value(tile.SharedAlloc(type=SharedType(F32, (self.count, 4))))
        zero = self.b.constant(0, INDEX)
        begin = [self.b.constant(self.random.randrange(-2, 6), INDEX) for _ in range(2)]
        axes = self.random.choice([(0, 1), (1, 0)])
        source: dict[str, Any] = {"shape": (self.count, 4), "src_axes": axes, "dst_axes": (0, 1), "vec": 4}
        self.b.op(tile.Copy, self.param["A"], *begin, made, zero, zero, **source)
        self.b.op(gpu.Barrier)
        self.pool.add(self.b.value(tile.Load(made, self.in_bounds(made, 0), self.in_bounds(made, 1))))
        row = self.b.scalar("mul", self.block_id, self.b.constant(self.count, INDEX))
        kept: dict[str, Any] = {"shape": (self.count, 4), "src_axes": (0, 1), "dst_axes": (0, 1), "vec": 4 * width}
        self.b.op(tile.Copy, made, zero, zero, self.param["OC"], row, zero, **kept)
        self.b.op(gpu.Barrier)

    def warp(self) -> None:
        if self.random.random() < 0.4:
            mode = self.random.choice(["any", "all", "ballot"])
            self.pool.add(self.b.value(warp.Vote(self.pick(BOOL), mode=mode)))
        elif self.count % 32 == 0:  # a lane that the block does not have gives no value
            mode, width = self.random.choice(["idx", "up", "down", "xor"]), self.random.choice([4, 32])
            lane = self.b.constant(self.random.randrange(width), I32)
            value = self.pick(self.random.choice((F32, I32, self.other)))
            self.pool.add(self.b.value(warp.Shuffle(value, lane, mode=mode, width=width)))

    # -- control flow --------------------------------------------------------------------------

    def nested(self, block: Block, emit: Callable[[], None], *, uniform: bool) -> None:
        outer = self.b.block, self.pool, self.uniform
        self.b.block, self.pool, self.uniform = block, self.pool.copy(), self.uniform and uniform
        self.depth += 1
        emit()
        self.depth -= 1
        self.b.block, self.pool, self.uniform = outer

    def condition(self) -> Value:
        condition = self.pick(BOOL)
        return self.b.scalar("not", condition) if self.random.random() < 0.4 else condition

    def next_of(self, arg: Value) -> Value:
        """What a loop carries on: something of the type, or the old value and a bit more."""
        if isinstance(arg.type, DType) and arg.dtype.is_integer and self.random.random() < 0.6:
            odd = self.b.scalar("mul", arg, self.b.constant(3, arg.dtype))
            return self.b.scalar("add", odd, self.pick(arg.type))
        return self.pick(arg.type)

    def carried_types(self) -> list[Type]:
        return self.random.choices([I32, *self.pool.values], k=self.random.randrange(4))

    def if_(self) -> None:
        condition, types = self.condition(), self.carried_types()
        blocks = [Block(), Block()]

        def emit() -> None:
            self.statements(self.random.randrange(3))
            self.b.op(control.Yield, *(self.pick(t) for t in types))

        for block in blocks:
            self.nested(block, emit, uniform=False)
        for result in self.b.add(control.If(condition, blocks=blocks)).results:
            self.pool.add(result)

    def for_(self) -> None:
        types = self.carried_types()
        inits = [self.pick(t) for t in types]
        block = Block([INDEX, *types], ["i"])
        lo, step = self.random.randrange(-2, 4), self.random.choice([1, 2, 3, -1, -2])
        trips = self.random.randrange(8)
        constant = self.random.random() < 0.6
        hi = self.b.constant(lo + trips * step, INDEX)
        if not constant:  # at most 8 trips, known at run time only; not the same for all threads
            hi = self.b.scalar("mod", self.index()[0], self.b.constant(8, INDEX))
        unroll = self.random.choice([0, 1, 2, 3]) if constant else self.random.choice([1, 1, 2])

        def emit() -> None:
            self.pool.index.append((block.args[0], 16))
            for arg in block.args[1:]:
                self.pool.add(arg)
            self.statements(self.random.randrange(3))
            self.b.op(control.Yield, *(self.next_of(a) for a in block.args[1:]))

        self.nested(block, emit, uniform=constant)
        bounds = self.b.constant(lo, INDEX), hi, self.b.constant(step, INDEX)
        for result in self.b.add(control.For(*bounds, *inits, blocks=[block], unroll=unroll)).results:
            self.pool.add(result)

    def while_(self) -> None:
        """Counts down a number of trips, and may leave early."""
        types = self.carried_types()
        counter = self.b.scalar("and", self.pick(I32), self.b.constant(3, I32))
        inits = [counter, *(self.pick(t) for t in types)]
        before, after = Block([I32, *types], ["left"]), Block([I32, *types])

        def emit_before() -> None:
            for arg in before.args[1:]:
                self.pool.add(arg)
            self.statements(self.random.randrange(2))
            go_on = self.b.scalar("gt", before.args[0], self.b.constant(0, I32))
            if self.random.random() < 0.4:
                go_on = self.b.scalar("and", go_on, self.pick(BOOL))
            self.b.op(control.Condition, go_on, before.args[0], *(self.pick(t) for t in types))

        def emit_after() -> None:
            for arg in after.args[1:]:
                self.pool.add(arg)
            self.statements(self.random.randrange(3))
            fewer = self.b.scalar("sub", after.args[0], self.b.constant(1, I32))
            self.b.op(control.Yield, fewer, *(self.next_of(a) for a in after.args[1:]))

        self.nested(before, emit_before, uniform=False)
        self.nested(after, emit_after, uniform=False)
        for result in self.b.add(control.While(*inits, blocks=[before, after])).results[1:]:
            self.pool.add(result)


def _numpy(dtype: DType) -> np.dtype[Any]:
    from tiledsl.ir import semantics

    return semantics.numpy_dtype(dtype)


def _random_array(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Ordinary values with some special ones among them. NaNs are the canonical one."""
    if dtype in (BF16, E4M3, E5M2):
        return (rng.standard_normal(shape) * 8).astype(_numpy(dtype))
    if dtype.python is float:
        values = (rng.standard_normal(shape) * 8).astype(_numpy(dtype))
        special = np.array([0.0, -0.0, np.inf, -np.inf, 6e-5, 1e-7], values.dtype)
        return np.where(rng.random(shape) < 0.15, rng.choice(special, shape), values)
    limits = np.iinfo(_numpy(dtype))
    wide = rng.integers(limits.min, limits.max, shape, _numpy(dtype), endpoint=True)
    return np.where(rng.random(shape) < 0.6, rng.integers(0, 20, shape).astype(wide.dtype), wide)


def _strided(array: Array, type_: GlobalType) -> Array:
    """The same values laid out as `type_` promises: its unit axis, or none; rows padded to its alignment."""
    if array.ndim != 2:
        return array
    if type_.unit == 0:
        return np.asfortranarray(array)
    step = 1 if type_.unit == 1 else 2
    columns = array.shape[1] * step
    if type_.align == 16:
        columns = -(-columns // 16) * 16
    wide = np.zeros((array.shape[0], columns), array.dtype)
    place = wide[:, : array.shape[1] * step : step]
    place[...] = array
    return place
