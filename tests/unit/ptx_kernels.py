"""Thread-level kernels built by hand, as `expand` makes them from the first programs of the gallery."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tiledsl.errors import Loc
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Value
from tiledsl.ir.expr import parse_expr
from tiledsl.ir.ops import control, gpu, mem
from tiledsl.ir.types import F32, I32, PtrType, Type

FILE = "/project/kernel.py"

Emit = Callable[[Builder], Value]


def at(line: int, caller: Loc | None = None, file: str = FILE, function: str = "kernel") -> Loc:
    return Loc(file, line, 5, 20, function, caller)


def kernel(name: str, params: Sequence[tuple[str, Type]], threads: tuple[int, ...] = (128,)) -> tuple[Kernel, Builder]:
    """An empty thread-level kernel and a builder at its end; the caller adds `control.return`."""
    body = Block([t for _, t in params], [n for n, _ in params])
    made = Kernel(name, body, (parse_expr("1"),), threads, level="thread", loc=at(1))
    return made, Builder(body, at(2))


def guarded(b: Builder, condition: Value, value: Emit, other: Value) -> Value:
    """``value if condition else other`` with a real branch."""
    then, orelse = Block(), Block()
    inner = Builder(then, b.loc)
    inner.op(control.Yield, value(inner))
    Builder(orelse, b.loc).op(control.Yield, other)
    return b.value(control.If(condition, blocks=[then, orelse]))


def guarded_do(b: Builder, condition: Value, act: Callable[[Builder], None]) -> None:
    then, orelse = Block(), Block()
    inner = Builder(then, b.loc)
    act(inner)
    inner.op(control.Yield)
    Builder(orelse, b.loc).op(control.Yield)
    b.op(control.If, condition, blocks=[then, orelse])


def load(b: Builder, base: Value, index: Value) -> Value:
    return b.value(mem.Load(b.value(mem.Offset(base, index))))


def store(b: Builder, base: Value, index: Value, value: Value) -> None:
    b.op(mem.Store, b.value(mem.Offset(base, index)), value)


def _positions(b: Builder, tile: Value) -> tuple[Value, Value, Value, Value]:
    """ty, tx, row, col."""
    ty, tx = (b.value(gpu.ThreadId(axis=axis, dtype=I32)) for axis in (1, 0))
    by, bx = (b.value(gpu.BlockId(axis=axis, dtype=I32)) for axis in (1, 0))
    row = b.scalar("add", b.scalar("mul", by, tile), ty)
    return ty, tx, row, b.scalar("add", b.scalar("mul", bx, tile), tx)


GEMM: tuple[tuple[str, Type], ...] = (
    *((name, PtrType("global", F32)) for name in "ABC"),
    *((name, I32) for name in ("M", "K", "N", "A_stride", "B_stride", "C_stride")),
)


def naive() -> Kernel:
    """One thread an element of C, 16 x 16 threads a block."""
    made, b = kernel("naive", GEMM, (16, 16))
    a, w, c, m, k_extent, n, sa, sb, sc = made.body.args
    _, _, row, col = _positions(b, b.constant(16, I32))

    def compute(b: Builder) -> None:
        b.loc = at(4)
        zero, one, start = b.constant(0, I32), b.constant(1, I32), b.constant(0.0, F32)
        body = Block([I32, F32], ["k", "acc"])
        k, acc = body.args
        inner = Builder(body, at(5))
        x = load(inner, a, inner.scalar("add", inner.scalar("mul", row, sa), k))
        y = load(inner, w, inner.scalar("add", inner.scalar("mul", k, sb), col))
        inner.op(control.Yield, inner.scalar("fma", x, y, acc))
        total = b.value(control.For(zero, k_extent, one, start, blocks=[body]))
        b.loc = at(6)
        store(b, c, b.scalar("add", b.scalar("mul", row, sc), col), total)

    guarded_do(b, b.scalar("and", b.scalar("lt", row, m), b.scalar("lt", col, n)), compute)
    b.op(control.Return)
    return made


def shared_tiled(t: int) -> Kernel:
    """The first program of the design: t x t tiles in shared memory, guarded at the edges; 4 elements of A a load."""
    made, b = kernel("shared_tiled", GEMM, (t, t))
    made.shared_bytes = 2 * t * t * 4
    a, w, c, m, k_extent, n, sa, sb, sc = made.body.args
    tile, zero, start = b.constant(t, I32), b.constant(0, I32), b.constant(0.0, F32)
    ty, tx, row, col = _positions(b, tile)
    a_tile = b.value(mem.SharedBase(dtype=F32, offset=0, bytes=t * t * 4, label="As"))
    b_tile = b.value(mem.SharedBase(dtype=F32, offset=t * t * 4, bytes=t * t * 4, label="Bs"))

    body = Block([I32, F32], ["k0", "acc"])
    k0, acc = body.args
    inner = Builder(body, at(10))
    _copy_in(inner, (a, row, m, sa), (k0, tx, k_extent), a_tile, (ty, tile, tx), start)
    inner.loc = at(11)
    _copy_in(inner, (w, k0, k_extent, sb, ty), (None, col, n), b_tile, (ty, tile, tx), start)
    inner.loc = at(12)
    inner.op(gpu.Barrier)
    inner.loc = at(14)
    total = acc
    xs: list[Value] = []
    for k in range(t):
        step = inner.constant(k, I32)
        if k % 4 == 0:
            place = inner.scalar("add", inner.scalar("mul", ty, tile), step)
            xs += inner.op(mem.Load, inner.value(mem.Offset(a_tile, place)), vec=4).results
        x, y = xs[k], load(inner, b_tile, inner.scalar("add", inner.scalar("mul", step, tile), tx))
        total = inner.scalar("fma", x, y, total)
    inner.loc = at(15)
    inner.op(gpu.Barrier)
    inner.op(control.Yield, total)
    b.loc = at(9)
    result = b.value(control.For(zero, k_extent, tile, start, blocks=[body]))

    b.loc = at(16)
    inside = b.scalar("and", b.scalar("lt", row, m), b.scalar("lt", col, n))
    guarded_do(b, inside, lambda i: store(i, c, i.scalar("add", i.scalar("mul", row, sc), col), result))
    b.op(control.Return)
    return made


def _copy_in(
    b: Builder,
    rows: tuple[Value, ...],
    columns: tuple[Value | None, Value, Value],
    tile: Value,
    place: tuple[Value, Value, Value],
    other: Value,
) -> None:
    """``tile[place] = tensor.get(row, column, other=0)``; rows and columns are a start and an addend."""
    tensor, row, row_extent, stride, *more = rows
    start, column, column_extent = columns
    for addend in more:
        row = b.scalar("add", row, addend)
    if start is not None:
        column = b.scalar("add", start, column)
    inside = b.scalar("and", b.scalar("lt", row, row_extent), b.scalar("lt", column, column_extent))

    def read(i: Builder) -> Value:
        return load(i, tensor, i.scalar("add", i.scalar("mul", row, stride), column))

    value = guarded(b, inside, read, other)
    ty, width, tx = place
    store(b, tile, b.scalar("add", b.scalar("mul", ty, width), tx), value)
