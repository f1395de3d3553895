"""Random kernels that fill a shared tile, read it and write it at all kinds of indices.

The tile is filled without races and then only read, so that what the loads give does not depend on any
order: the same with every layout. The stores at the end may race; only their addresses are of interest.
Every statement has a line of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from random import Random

from tiledsl.errors import Loc
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Value
from tiledsl.ir.ops import async_copy, control, gpu, matrix, tile
from tiledsl.ir.types import F16, F32, F64, I32, I64, INDEX, U8, U32, DType, FragmentType, GlobalType, SharedType
from tiledsl.layout.shared import AUTO
from tiledsl.passes.banks.bank_conflicts import candidates

__all__ = ["BLOCKS", "OUTPUTS", "SOURCES", "random_shared_kernel"]

SHAPES = ((32,), (64,), (16, 16), (8, 8), (33,), (128,), (4, 8, 2))
ROWS = ((8,), (32,), (5,), (16,), (2, 8), (3, 4))
LENGTHS = (16, 24, 32, 36, 48, 64, 128)
DTYPES: tuple[DType, ...] = (F32, F32, F16, F64, I32, U8)
BLOCKS = 2
OUTPUTS = 6
SOURCES = 512
"""Elements of the tensor that asynchronous copies read."""

Statement = Callable[[], None]


def random_shared_kernel(seed: int) -> Kernel:
    """Parameters: OUT of [threads of the grid, OUTPUTS], SRC of SOURCES elements, and n, an unknown small number."""
    return _Maker(Random(seed)).kernel()


class _Maker:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.threads = random.choice(SHAPES)
        self.dtype = random.choice(DTYPES)
        self.dims = (*random.choice(ROWS), random.choice(LENGTHS))
        self.vectors = [v for v in (1, 2, 4, 8, 16) if v * self.dtype.bytes in (2, 4, 8, 16) or v == 1]
        self.vectors = [v for v in self.vectors if self.dims[-1] % v == 0]
        self.out = GlobalType(I64, ("T", OUTPUTS), 1, 8)
        self.body = Block([self.out, GlobalType(self.dtype, ("S",), 0, 16), I32], ["OUT", "SRC", "n"])
        self.b = Builder(self.body)
        self.line = 0
        self.column = 0

    def kernel(self) -> Kernel:
        self.positions()
        widest = max(self.vectors)
        layouts = [str(x) for x in candidates(self.dims, self.dtype.bytes, widest * self.dtype.bytes)]
        layout = self.random.choice([AUTO, self.random.choice(layouts)])
        self.S = self.b.value(tile.SharedAlloc(type=SharedType(self.dtype, self.dims), layout=layout))
        self.S.name = "S"
        self.fill()
        self.b.op(gpu.Barrier)
        for _ in range(self.random.randint(1, 4)):
            self.statement(self.random.choice((self.load, self.load, *self.by_matrices(self.load_matrices))))
        self.b.op(gpu.Barrier)
        for _ in range(self.random.randint(1, 3)):
            stores = (self.store, *self.copies_into(), *self.by_matrices(self.store_matrices))
            self.statement(self.random.choice(stores))
        self.b.op(async_copy.CommitGroup)
        self.b.op(async_copy.WaitGroup, pending=0)
        self.body.append(control.Return())
        return Kernel("shared", self.body, (BLOCKS,), self.threads)

    def positions(self) -> None:
        b = self.b
        ids = [b.value(gpu.ThreadId(axis=a)) for a in range(len(self.threads))]
        linear = ids[-1]
        for axis in range(len(self.threads) - 2, -1, -1):
            linear = b.scalar("add", b.scalar("mul", linear, self.number(self.threads[axis])), ids[axis])
        block = b.value(gpu.BlockId(axis=0))
        n = b.cast(self.body.args[2], INDEX)
        self.linear = linear
        self.gid = b.scalar("add", b.scalar("mul", block, self.number(prod(self.threads))), linear)
        self.varying = [*ids, linear, b.value(gpu.LaneId())]
        self.uniform = [block, n, b.value(gpu.WarpId()), b.value(tile.Dim(self.body.args[0], axis=0))]

    def number(self, value: int) -> Value:
        return self.b.constant(value, INDEX)

    def next_line(self) -> None:
        self.line += 1
        self.b.loc = Loc("shared.py", self.line)

    # -- indices -------------------------------------------------------------------------------

    def term(self, depth: int = 2) -> Value:
        """Any index that differs by lane, not negative."""
        random, b = self.random, self.b
        if depth == 0 or random.random() < 0.3:
            return random.choice(self.varying)
        value, constant = self.term(depth - 1), self.number(random.choice((1, 2, 3, 4, 7, 8, 16)))
        fn = random.choice(("add", "mul", "floordiv", "mod", "xor", "shr1", "both", "select"))
        if fn == "both":
            return b.scalar(random.choice(("add", "xor")), value, self.term(depth - 1))
        if fn == "select":
            return b.select(b.scalar("lt", value, constant), self.term(depth - 1), constant)
        return b.scalar("shr", value, self.number(1)) if fn == "shr1" else b.scalar(fn, value, constant)

    def index(self, extent: int, vec: int = 1) -> Value:
        """A multiple of `vec` in [0, extent): by lane, uniform, or the sum of both."""
        b, places = self.b, extent // vec
        match self.random.choice(("lane", "lane", "uniform", "sum", "constant")):
            case "constant":
                index = self.number(self.random.randrange(places))
            case "uniform":
                index = b.scalar("mod", self.random.choice(self.uniform), self.number(places))
            case "sum" if places > 1:
                half = self.number(places // 2)
                index = b.scalar("mod", self.term(), half)
                index = b.scalar("add", index, b.scalar("mod", self.random.choice(self.uniform), half))
            case _:
                index = b.scalar("mod", self.term(), self.number(places))
        return b.scalar("mul", index, self.number(vec)) if vec > 1 else index

    def indices(self, vec: int) -> list[Value]:
        return [*(self.index(extent) for extent in self.dims[:-1]), self.index(self.dims[-1], vec)]

    # -- statements ----------------------------------------------------------------------------

    def fill(self) -> None:
        """Element number e is e, written by thread e modulo the number of threads."""
        self.next_line()
        b, size = self.b, prod(self.dims)
        body = Block([INDEX], ["e"])
        loop = Builder(body, b.loc)
        rest = body.args[0]
        indices: list[Value] = []
        for extent in reversed(self.dims):
            count = loop.constant(extent, INDEX)
            indices.insert(0, loop.scalar("mod", rest, count))
            rest = loop.scalar("floordiv", rest, count)
        value = loop.cast(loop.scalar("mod", body.args[0], loop.constant(100, INDEX)), self.dtype)
        loop.add(tile.Store(self.S, *indices, value))
        loop.add(control.Yield())
        b.add(control.For(self.linear, self.number(size), self.number(prod(self.threads)), blocks=[body]))

    def statement(self, access: Statement) -> None:
        """The access as it is, under a condition, or in a loop. Matrix instructions need whole warps."""
        self.next_line()
        match self.random.choice(("plain", "plain", "if", "for", "unknown for")):
            case "if":
                limit = self.number(self.random.randint(1, 40))
                conditions = [self.b.scalar("lt", self.random.choice(self.varying), limit)]
                conditions.append(self.b.scalar("lt", self.random.choice(self.uniform), limit))
                condition = self.random.choice((*conditions, self.b.scalar("and", *conditions)))
                if access in (self.load_matrices, self.store_matrices):
                    condition = conditions[1]
                then, outer = Block(), self.b.block
                self.b.block = then
                access()
                self.b.add(control.Yield())
                self.b.block = outer
                self.b.add(control.If(condition, blocks=[then, _empty()]))
            case "for" | "unknown for" as kind:
                hi = self.number(self.random.randint(1, 9)) if kind == "for" else self.uniform[1]
                body, outer = Block([INDEX], ["i"]), self.b.block
                self.b.block = body
                self.uniform.append(body.args[0])
                access()
                self.uniform.pop()
                self.b.add(control.Yield())
                self.b.block = outer
                bounds = self.number(self.random.randint(0, 2)), hi, self.number(self.random.choice((1, 2, 4)))
                self.b.add(control.For(*bounds, blocks=[body]))
            case _:
                access()

    def load(self) -> None:
        """Read, and add the elements up in a column of OUT that is this thread's."""
        b, vec = self.b, self.random.choice(self.vectors)
        at = self.indices(vec)
        type_: DType | FragmentType = self.dtype if vec == 1 else FragmentType(self.dtype, (vec,))
        if self.random.random() < 0.3:
            zero = b.constant(0.0 if self.dtype.is_float else 0, self.dtype)
            other = zero if vec == 1 else b.value(tile.Pack(zero, type=type_))
            shift = self.number(vec * self.random.randint(0, 2))
            at[-1] = b.scalar("add", at[-1], shift)
            read = b.value(tile.Get(self.S, *at, other, vec=vec))
        else:
            read = b.value(tile.Load(self.S, *at, vec=vec))
        self.add_up(read if vec == 1 else b.value(tile.Extract(read, at=(e,))) for e in range(vec))

    def add_up(self, values: Iterable[Value]) -> None:
        b, total = self.b, self.number(0)
        for value in values:
            total = b.scalar("add", b.scalar("mul", total, self.number(3)), b.cast(value, INDEX))
        column = self.number(self.column % OUTPUTS)
        self.column += 1
        place = self.body.args[0], self.gid, column
        old = b.value(tile.Load(*place))
        b.add(tile.Store(*place, b.scalar("add", b.scalar("mul", old, b.constant(5, I64)), b.cast(total, I64))))

    # -- matrix instructions and asynchronous copies -------------------------------------------

    def by_matrices(self, statement: Statement) -> list[Statement]:
        """The statement, if rows of 16 bytes can be aligned and all warps are whole."""
        return [statement] if prod(self.threads) % 32 == 0 and 16 // self.dtype.bytes in self.vectors else []

    def some_matrices(self) -> dict[str, int | bool]:
        trans = self.dtype.bytes == 2 and self.random.random() < 0.5
        return {"vec": 16 // self.dtype.bytes, "num": self.random.choice((1, 2, 4)), "trans": trans}

    def load_matrices(self) -> None:
        given, b = self.some_matrices(), self.b
        words = b.op(matrix.LdMatrix, self.S, *self.indices(given["vec"]), **given).results
        self.add_up(b.scalar("mod", word, b.constant(1009, U32)) for word in words)  # an index stays below 2**31

    def store_matrices(self) -> None:
        given = self.some_matrices()
        words = [self.b.constant(n, U32) for n in range(given["num"])]
        self.b.op(matrix.StMatrix, self.S, *self.indices(given["vec"]), *words, **given)

    def copies_into(self) -> list[Statement]:
        return [self.copy_async] if any(v * self.dtype.bytes in async_copy.CP_BYTES for v in self.vectors) else []

    def copy_async(self) -> None:
        """Of some threads past the edge of the tensor, where zeros arrive."""
        b = self.b
        vec = self.random.choice([v for v in self.vectors if v * self.dtype.bytes in async_copy.CP_BYTES])
        source = b.scalar("mul", b.scalar("mod", self.linear, self.number(SOURCES // vec + 3)), self.number(vec))
        b.op(async_copy.Cp, self.S, *self.indices(vec), self.body.args[1], source, vec=vec)

    def store(self) -> None:
        b, vec = self.b, self.random.choice(self.vectors)
        value = b.cast(b.scalar("mod", self.term(), self.number(50)), self.dtype)
        if vec > 1:
            value = b.value(tile.Pack(value, type=FragmentType(self.dtype, (vec,))))
        b.add(self.random.choice((tile.Store, tile.Put))(self.S, *self.indices(vec), value, vec=vec))


def _empty() -> Block:
    block = Block()
    block.append(control.Yield())
    return block
