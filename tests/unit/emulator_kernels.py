"""Kernels for the emulator's tests and benchmark, built by hand as the frontend and `expand` make them."""

from __future__ import annotations

from collections.abc import Callable

from tiledsl.errors import Loc
from tiledsl.ir.abi import abi_of
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Value
from tiledsl.ir.expr import parse_expr
from tiledsl.ir.ops import control, gpu, mem, tile
from tiledsl.ir.types import F32, I32, INDEX, DType, GlobalType, SharedType, Type

__all__ = ["naive_tile", "shared_tiled_thread", "shared_tiled_tile"]

FILE = "kernel.py"
Emit = Callable[[Builder], list[Value]]


def at(line: int) -> Loc:
    return Loc(FILE, line, 5, 20, "kernel")


def matrices(dtype: DType = F32) -> list[tuple[str, Type]]:
    dims = (("A", ("M", "K")), ("B", ("K", "N")), ("C", ("M", "N")))
    return [(name, GlobalType(dtype, extents, 1, 16)) for name, extents in dims]


def loop(
    b: Builder, lo: Value, hi: Value, step: Value, inits: list[Value], body: Callable[..., list[Value]]
) -> list[Value]:
    block = Block([lo.type, *(v.type for v in inits)])
    inner = Builder(block, b.loc)
    inner.op(control.Yield, *body(inner, *block.args))
    return b.op(control.For, lo, hi, step, *inits, blocks=[block]).results


def either(b: Builder, condition: Value, then: Emit, orelse: Emit) -> list[Value]:
    blocks = [Block(), Block()]
    for block, emit in zip(blocks, (then, orelse), strict=True):
        inner = Builder(block, b.loc)
        inner.op(control.Yield, *emit(inner))
    return b.op(control.If, condition, blocks=blocks).results


def positions(b: Builder, t: int, dtype: DType) -> tuple[Value, Value, Value, Value]:
    """ty, tx, row, col of a thread in a block of t x t."""
    ty, tx = (b.value(gpu.ThreadId(axis=axis, dtype=dtype)) for axis in (1, 0))
    by, bx = (b.value(gpu.BlockId(axis=axis, dtype=dtype)) for axis in (1, 0))
    tile_size = b.constant(t, dtype)
    row = b.scalar("add", b.scalar("mul", by, tile_size), ty)
    return ty, tx, row, b.scalar("add", b.scalar("mul", bx, tile_size), tx)


def square_grid(t: int) -> tuple[object, ...]:
    return tuple(parse_expr(f"floordiv(add({d}, {t - 1}), {t})") for d in ("N", "M"))


def naive_tile(t: int = 16) -> Kernel:
    """C[row, col] = sum of A[row, k] * B[k, col], one thread an element, guarded at the edges."""
    params = matrices()
    body = Block([x for _, x in params], [n for n, _ in params])
    b = Builder(body, at(3))
    a, b_, c = body.args
    _, _, row, col = positions(b, t, INDEX)
    zero, one, fzero = b.constant(0, INDEX), b.constant(1, INDEX), b.constant(0.0, F32)

    def step(i: Builder, k: Value, acc: Value) -> list[Value]:
        i.loc = at(5)
        x = i.value(tile.Get(a, row, k, fzero))
        y = i.value(tile.Get(b_, k, col, fzero))
        return [i.scalar("fma", x, y, acc)]

    (acc,) = loop(b, zero, b.value(tile.Dim(a, axis=1)), one, [fzero], step)
    b.loc = at(6)
    b.op(tile.Put, c, row, col, acc)
    b.op(control.Return)
    return Kernel("naive", body, square_grid(t), (t, t), loc=at(1))  # pyright: ignore[reportArgumentType]


def shared_tiled_tile(t: int = 16) -> Kernel:
    params = matrices()
    body = Block([x for _, x in params], [n for n, _ in params])
    b = Builder(body, at(3))
    a, b_, c = body.args
    ty, tx, row, col = positions(b, t, INDEX)
    zero, size, fzero = b.constant(0, INDEX), b.constant(t, INDEX), b.constant(0.0, F32)
    shared = [b.value(tile.SharedAlloc(type=SharedType(F32, (t, t)))) for _ in "AB"]
    shared[0].name, shared[1].name = "As", "Bs"

    def step(i: Builder, k0: Value, acc: Value) -> list[Value]:
        i.loc = at(8)
        i.op(tile.Store, shared[0], ty, tx, i.value(tile.Get(a, row, i.scalar("add", k0, tx), fzero)))
        i.op(tile.Store, shared[1], ty, tx, i.value(tile.Get(b_, i.scalar("add", k0, ty), col, fzero)))
        i.op(gpu.Barrier)
        i.loc = at(12)
        for k in range(t):
            at_k = i.constant(k, INDEX)
            acc = i.scalar("fma", i.value(tile.Load(shared[0], ty, at_k)), i.value(tile.Load(shared[1], at_k, tx)), acc)
        i.op(gpu.Barrier)
        return [acc]

    (acc,) = loop(b, zero, b.value(tile.Dim(a, axis=1)), size, [fzero], step)
    b.op(tile.Put, c, row, col, acc)
    b.op(control.Return)
    return Kernel("shared_tiled", body, square_grid(t), (t, t), loc=at(1))  # pyright: ignore[reportArgumentType]


def shared_tiled_thread(t: int = 16, barriers: tuple[bool, bool] = (True, True)) -> Kernel:
    """What `expand` makes of `shared_tiled_tile`; a barrier may be left out, for the race checker."""
    abi = abi_of(matrices(), 32)
    body = Block([x.type for x in abi], [x.name for x in abi])
    by_name = {(x.kind, x.name): arg for x, arg in zip(abi, body.args, strict=True)}
    b = Builder(body, at(3))
    a, b_, c = (by_name["pointer", n] for n in "ABC")
    m, n, k_extent = (by_name["extent", d] for d in "MNK")
    lda, ldb, ldc = (by_name["stride", d] for d in "ABC")
    ty, tx, row, col = positions(b, t, I32)
    fzero = b.constant(0.0, F32)
    tile_bytes = t * t * 4
    s_a = b.value(mem.SharedBase(dtype=F32, offset=0, bytes=tile_bytes, label="As"))
    s_b = b.value(mem.SharedBase(dtype=F32, offset=tile_bytes, bytes=tile_bytes, label="Bs"))
    here = b.scalar("add", b.scalar("mul", ty, b.constant(t, I32)), tx)
    row_start = b.scalar("mul", ty, b.constant(t, I32))

    def guarded(i: Builder, base: Value, r: Value, rows: Value, q: Value, columns: Value, ld: Value) -> Value:
        inside = i.scalar("and", i.scalar("lt", r, rows), i.scalar("lt", q, columns))

        def read(j: Builder) -> list[Value]:
            return [j.value(mem.Load(j.value(mem.Offset(base, j.scalar("add", j.scalar("mul", r, ld), q)))))]

        return either(i, inside, read, lambda j: [fzero])[0]

    def step(i: Builder, k0: Value, acc: Value) -> list[Value]:
        i.loc = at(8)
        x = guarded(i, a, row, m, i.scalar("add", k0, tx), k_extent, lda)
        i.op(mem.Store, i.value(mem.Offset(s_a, here)), x)
        i.loc = at(9)
        y = guarded(i, b_, i.scalar("add", k0, ty), k_extent, col, n, ldb)
        i.op(mem.Store, i.value(mem.Offset(s_b, here)), y)
        i.loc = at(10)
        if barriers[0]:
            i.op(gpu.Barrier)
        i.loc = at(12)
        for k in range(t):
            x = i.value(mem.Load(i.value(mem.Offset(s_a, i.scalar("add", row_start, i.constant(k, I32))))))
            y = i.value(mem.Load(i.value(mem.Offset(s_b, i.scalar("add", tx, i.constant(k * t, I32))))))
            acc = i.scalar("fma", x, y, acc)
        i.loc = at(13)
        if barriers[1]:
            i.op(gpu.Barrier)
        return [acc]

    (acc,) = loop(b, b.constant(0, I32), k_extent, b.constant(t, I32), [fzero], step)
    b.loc = at(14)

    def write(j: Builder) -> list[Value]:
        j.op(mem.Store, j.value(mem.Offset(c, j.scalar("add", j.scalar("mul", row, ldc), col))), acc)
        return []

    either(b, b.scalar("and", b.scalar("lt", row, m), b.scalar("lt", col, n)), write, lambda j: [])
    b.op(control.Return)
    return Kernel(
        "shared_tiled",
        body,
        square_grid(t),  # pyright: ignore[reportArgumentType]
        (t, t),
        level="thread",
        shared_bytes=2 * tile_bytes,
        abi=abi,
        loc=at(1),
    )
