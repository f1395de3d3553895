"""Fragments of random layouts hold the elements that `layout.fragments` says, whichever way they are loaded and stored.

Three things are held against each other: the accesses that `distribute` and `expand` make, run on the emulator; the
tile level, which needs no accesses; and, for matrices, what the PTX ISA says of ldmatrix, written down here once more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tiledsl.backends import emulator
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Value
from tiledsl.ir.ops import arith, control, gpu, matrix, tile
from tiledsl.ir.semantics import fold, numpy_dtype
from tiledsl.ir.types import BF16, DTYPES, F16, I32, INDEX, DType, FragmentType, GlobalType, SharedType
from tiledsl.ir.verifier import verify
from tiledsl.layout.fragments import FragmentLayout, parse_fragment_layout
from tiledsl.layout.mma import TABLE
from tiledsl.passes.distribute.distribute import distribute
from tiledsl.passes.distribute.matrix_map import matrices, widths
from tiledsl.passes.pipeline import run_pipeline


@dataclass(frozen=True)
class Case:
    """A fragment of a tensor `a`, by way of a shared tile, at `origin` of both. transposed: its rows run along axis 1.

    vec: bytes of an access of a lane; 0 for matrix instructions. layout: of the tile.
    """

    type: FragmentType
    transposed: bool
    origin: tuple[int, int]
    vec: int
    layout: str = "auto"
    shared: bool = True

    @property
    def axes(self) -> tuple[int, int]:
        return (1, 0) if self.transposed else (0, 1)

    @property
    def dims(self) -> tuple[int, int]:
        """Extents of the memory: a vector more than the fragment needs."""
        more = 16 // self.type.dtype.bytes
        rows, columns = (o + self.type.dims[axis] for o, axis in zip(self.origin, self.axes, strict=True))
        return rows + more, -(-(columns + more) // more) * more

    def view(self, array: Any) -> Any:
        """The part of the memory that the fragment is, rows first."""
        (r, c), extents = self.origin, [self.type.dims[axis] for axis in self.axes]
        part = array[r : r + extents[0], c : c + extents[1]]
        return part.T if self.transposed else part

    @property
    def held(self) -> Any:
        """(row, column) in the fragment of each element of each thread, [threads, elements, 2]."""
        layout = self.type.layout
        assert layout is not None
        registers = range(self.type.size)
        threads = [(t // 32, t % 32) for t in range(layout.threads)]
        bits = self.type.dtype.bits
        return np.array([[layout.place(self.type.dims, bits, r, w, t) for r in registers] for w, t in threads])


@st.composite
def fragments(draw: Any, *, words: bool = False) -> FragmentType:
    """An operand or an accumulator of any product. words: as matrix instructions move it."""
    row = draw(st.sampled_from(TABLE))
    operand = draw(st.sampled_from(["a", "b", "acc"]))
    name = draw(st.sampled_from(["f16", "bf16"])) if operand == "acc" and words else getattr(row, operand)
    assume(not words or DTYPES[name].bits <= 32)
    warps = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2)]))
    layout = FragmentLayout(row.shape, operand, warps)
    dims = [size * parts * draw(st.integers(1, 2)) for size, parts in zip(layout.tile, layout.grid, strict=True)]
    return FragmentType(DTYPES[name], (dims[0], dims[1]), layout)


def along_k(type_: FragmentType) -> int:
    assert type_.layout is not None
    return 0 if type_.layout.operand == "b" else 1


@st.composite
def by_matrices(draw: Any) -> Case:
    """Rows of the tile begin at multiples of 16 bytes, and lie along k unless the elements have 16 bits."""
    type_ = draw(fragments(words=True))
    transposed = draw(st.booleans()) if type_.dtype.bits == 16 else along_k(type_) == 0
    per_row = 16 // type_.dtype.bytes
    case = Case(type_, transposed, (draw(st.integers(0, 3)), draw(st.integers(0, 2)) * per_row), 0)
    row, unit = case.dims[1], per_row
    fitting = [f"swizzled(unit={unit}, span={span})" for span in (2, 4) if row % (span * unit) == 0]
    layout = draw(st.sampled_from(["auto", "row", f"padded({row + per_row})", *fitting]))
    return Case(type_, transposed, case.origin, 0, layout)


@st.composite
def by_elements(draw: Any) -> Case:
    type_ = draw(fragments())
    transposed = draw(st.booleans())
    vec = draw(st.sampled_from(widths(type_, 0 if transposed else 1)))
    column = draw(st.integers(0, 3)) * vec // type_.dtype.bytes
    return Case(type_, transposed, (draw(st.integers(0, 3)), column), vec, shared=draw(st.booleans()))


def kernel_of(case: Case, move: Any) -> Kernel:
    """Parameters: `a`, like the memory; `out`, an element a thread and register; `c`, like the memory."""
    layout, dtype = case.type.layout, case.type.dtype
    assert layout is not None
    memory = GlobalType(dtype, ("X", "Y"), 1, 16)
    held = GlobalType(dtype, (layout.threads, case.type.size), 1, dtype.bytes)
    body = Block([memory, held, memory], ["a", "out", "c"])
    b = Builder(body)
    thread = b.value(gpu.ThreadId(axis=0, dtype=INDEX))
    move(b, thread, *body.args)
    b.add(control.Return())
    return Kernel("fragments", body, (1,), (layout.threads,))


def source_of(case: Case, b: Builder, a: Value) -> Value:
    """The memory that holds `a`: itself, or a tile with a copy of it."""
    if not case.shared:
        return a
    tile_ = b.value(tile.SharedAlloc(type=SharedType(case.type.dtype, case.dims), layout=case.layout))
    fill(case, b, a, tile_)
    b.add(gpu.Barrier())
    return tile_


def fill(case: Case, b: Builder, a: Value, tile_: Value) -> None:
    """Thread t copies the elements t, t + threads, ... of the memory."""
    thread = b.value(gpu.ThreadId(axis=0, dtype=INDEX))
    assert case.type.layout is not None
    total, count = case.dims[0] * case.dims[1], case.type.layout.threads
    body = Block([INDEX])
    inner = Builder(body)
    row, column = (inner.scalar(fn, body.args[0], b.constant(case.dims[1], INDEX)) for fn in ("floordiv", "mod"))
    value = inner.value(tile.Load(a, row, column))
    inner.add(tile.Store(tile_, row, column, value))
    inner.add(control.Yield())
    b.add(control.For(thread, b.constant(total, INDEX), b.constant(count, INDEX), blocks=[body]))


def loading(case: Case) -> Kernel:
    """`out` gets what each thread holds."""

    def move(b: Builder, thread: Value, a: Value, out: Value, c: Value) -> None:
        memory = source_of(case, b, a)
        origin = [b.constant(i, INDEX) for i in case.origin]
        fragment = b.value(matrix.Load(memory, *origin, type=case.type, axes=case.axes, vec=case.vec))
        for register in range(case.type.size):
            element = b.value(tile.Extract(fragment, at=(register,)))
            b.add(tile.Store(out, thread, b.constant(register, INDEX), element))

    return kernel_of(case, move)


def storing(case: Case) -> Kernel:
    """`c` gets the elements of `out`, which each thread holds, where the fragment lies."""

    def move(b: Builder, thread: Value, a: Value, out: Value, c: Value) -> None:
        elements = [b.value(tile.Load(out, thread, b.constant(r, INDEX))) for r in range(case.type.size)]
        fragment = b.value(tile.Pack(*elements, type=case.type))
        memory = source_of(case, b, a) if case.shared else c
        origin = [b.constant(i, INDEX) for i in case.origin]
        b.add(matrix.Store(fragment, memory, *origin, axes=case.axes, vec=case.vec))
        b.add(gpu.Barrier())
        if case.shared:
            fill(case, b, memory, c)

    return kernel_of(case, move)


def values(dtype: DType, *shape: int) -> Any:
    """As good as distinct numbers."""
    rng = np.random.default_rng(shape[0])
    numpy = numpy_dtype(dtype)
    return rng.integers(0, 256, (*shape, numpy.itemsize), np.uint8).view(numpy).reshape(shape)


def bits(array: Any) -> Any:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def lowered(made: Kernel) -> Kernel:
    kernel = run_pipeline(made.clone())
    verify(kernel)
    return kernel


def check_load(case: Case) -> None:
    made = loading(case)
    verify(made)
    a = values(case.type.dtype, *case.dims)
    held = case.held
    wanted = case.view(a)[held[..., 0], held[..., 1]]
    for kernel in (made.clone(), lowered(made)):
        out = np.zeros(wanted.shape, a.dtype)
        emulator.run(kernel, {"a": a, "out": out, "c": a.copy()}, options=emulator.Options(checks=True))
        assert np.array_equal(bits(out), bits(wanted)), kernel.level


def check_store(case: Case) -> None:
    """What several warps hold, the same in all of them as after a load, is written once: there is no race."""
    made = storing(case)
    verify(made)
    a, new, held = values(case.type.dtype, *case.dims), values(case.type.dtype, *case.type.dims), case.held
    out = new[held[..., 0], held[..., 1]]
    wanted = a.copy() if case.shared else np.zeros_like(a)
    case.view(wanted)[...] = new
    for kernel in (made.clone(), lowered(made)):
        c = np.zeros_like(a)
        emulator.run(kernel, {"a": a, "out": out, "c": c}, options=emulator.Options(checks=True))
        assert np.array_equal(bits(c), bits(wanted)), kernel.level


@settings(max_examples=25)
@given(case=by_matrices())
def test_ldmatrix_loads_what_the_layout_says(case: Case) -> None:
    check_load(case)


@settings(max_examples=25)
@given(case=by_elements())
def test_plain_loads_load_what_the_layout_says(case: Case) -> None:
    check_load(case)


@settings(max_examples=20)
@given(case=by_matrices())
def test_stmatrix_stores_what_the_layout_says(case: Case) -> None:
    assume(case.type.dtype.bits == 16)
    check_store(case)


@settings(max_examples=20)
@given(case=by_elements())
def test_plain_stores_store_what_the_layout_says(case: Case) -> None:
    check_store(case)


@settings(max_examples=20)
@given(case=by_elements(), rows=st.integers(0, 20), columns=st.integers(0, 20))
def test_past_the_edge_of_a_tensor_are_zeros_and_nothing_is_written(case: Case, rows: int, columns: int) -> None:
    case = replace(case, shared=False)
    full = values(case.type.dtype, *case.dims)
    inside = (slice(max(1, case.dims[0] - rows)), slice(max(1, case.dims[1] - columns)))
    whole = np.zeros_like(full)
    whole[inside] = full[inside]
    held = case.held
    elements, loads = (case.view(array)[held[..., 0], held[..., 1]] for array in (full, whole))
    written = np.zeros_like(full)
    case.view(written)[...] = case.view(whole)
    for made, loaded, stored in ((loading(case), loads, np.zeros_like(full)), (storing(case), elements, written)):
        for kernel in (made.clone(), lowered(made)):
            c, out = np.zeros_like(full), elements.copy()
            emulator.run(kernel, {"a": full[inside], "out": out, "c": c[inside]})
            assert np.array_equal(bits(out), bits(loaded)), kernel.level
            assert np.array_equal(bits(c), bits(stored)), kernel.level


@settings(max_examples=15)
@given(type_=fragments(), axis=st.sampled_from([0, 1]))
def test_coordinates_are_those_of_the_layout(type_: FragmentType, axis: int) -> None:
    assert type_.layout is not None
    case = Case(FragmentType(I32, type_.dims, type_.layout.acc), False, (0, 0), 4, shared=False)
    assume(case.type.layout is not None and case.type.layout.problem(type_.dims, type_.dtype.bits) is None)

    def move(b: Builder, thread: Value, a: Value, out: Value, c: Value) -> None:
        index = FragmentType(INDEX, case.type.dims, case.type.layout)
        found = b.value(matrix.Coordinates(type=index, axis=axis))
        for register in range(case.type.size):
            element = b.cast(b.value(tile.Extract(found, at=(register,))), I32)
            b.add(tile.Store(out, thread, b.constant(register, INDEX), element))

    made = kernel_of(case, move)
    for kernel in (made.clone(), lowered(made)):
        out = np.zeros(case.held.shape[:2], np.int32)
        emulator.run(kernel, {"a": values(I32, *case.dims), "out": out, "c": values(I32, *case.dims)})
        assert np.array_equal(out, case.held[..., axis]), kernel.level


@settings(max_examples=15)
@given(
    dtype=st.sampled_from([F16, BF16]),
    depth=st.sampled_from([8, 16]),
    warps=st.integers(1, 3),
    tiles=st.tuples(st.integers(1, 2), st.integers(1, 3)),
)
def test_a_result_of_16_bits_is_a_left_operand(dtype: DType, depth: int, warps: int, tiles: tuple[int, int]) -> None:
    """Each warp holds whole rows, so that its threads have all they need."""
    acc = parse_fragment_layout(f"mma.m16n8k{depth}.acc({warps}, 1)")
    dims = (16 * warps * tiles[0], 16 * tiles[1])
    src, dst = (Case(FragmentType(dtype, dims, layout), False, (0, 0), 2) for layout in (acc, acc.a))

    def move(b: Builder, thread: Value, a: Value, out: Value, c: Value) -> None:
        elements = [b.value(tile.Load(out, thread, b.constant(r, INDEX))) for r in range(src.type.size)]
        fragment = b.value(tile.Pack(*elements, type=src.type))
        converted = b.value(matrix.Convert(fragment, type=dst.type))
        for register in range(dst.type.size):
            element = b.value(tile.Extract(converted, at=(register,)))
            b.add(tile.Store(out, thread, b.constant(register, INDEX), element))

    made = kernel_of(src, move)
    new = values(dtype, *dims)
    for kernel in (made.clone(), lowered(made)):
        out = new[src.held[..., 0], src.held[..., 1]]
        emulator.run(kernel, {"a": new, "out": out, "c": new.copy()})
        assert np.array_equal(bits(out), bits(new[dst.held[..., 0], dst.held[..., 1]])), kernel.level


# -- the PTX ISA's words ---------------------------------------------------------------------------


def evaluate(value: Value, warp: int, lane: int) -> int:
    """An index of the distributed kernel, for one thread."""
    match value.op:
        case arith.Constant(value=number):
            return number
        case gpu.LaneId():
            return lane
        case gpu.WarpId():
            return warp
        case arith.Scalar() as op:
            return int(fold(op.fn.name, INDEX, *(evaluate(v, warp, lane) for v in op.operands)))
        case _:
            raise AssertionError(f"no index: {value}")


def ldmatrix(tile_: Any, rows: list[tuple[int, int]], num: int, trans: bool) -> Any:
    """Bytes that each lane gets, [lane, num, 4]. (PTX ISA: ldmatrix.)

    Thread i's address is row i % 8 of matrix i // 8. Of each matrix thread 4g + t gets the t-th four bytes of row g;
    transposed, rows 2t and 2t + 1 of column g.
    """
    result = np.zeros((32, num, 4), np.uint8)
    size = tile_.dtype.itemsize
    for j in range(num):
        lines = [tile_[r, c : c + 16 // size] for r, c in rows[8 * j : 8 * j + 8]]
        block = np.array([np.ascontiguousarray(line).view(np.uint8) for line in lines])
        for lane in range(32):
            g, t = divmod(lane, 4)
            if trans:
                result[lane, j] = np.concatenate([block[2 * t + i, 2 * g : 2 * g + 2] for i in range(2)])
            else:
                result[lane, j] = block[g, 4 * t : 4 * t + 4]
    return result


@settings(max_examples=30)
@given(case=by_matrices())
def test_the_words_of_ldmatrix_are_the_fragment(case: Case) -> None:
    kernel = loading(case)
    distribute(kernel)
    loads = [op for op in kernel.walk() if isinstance(op, matrix.LdMatrix)]
    tile_ = values(case.type.dtype, *case.dims)
    held = case.held
    warps = held.shape[0] // 32
    for warp in range(warps):
        words: list[Any] = []
        for op in loads:
            row, column = op.indices
            rows = [(evaluate(row, warp, lane), evaluate(column, warp, lane)) for lane in range(32)]
            words.append(ldmatrix(tile_, rows, op.num, op.trans))
        got: Any = np.concatenate(words, axis=1).reshape(32, -1)
        mine = held[32 * warp : 32 * warp + 32]
        wanted = case.view(tile_)[mine[..., 0], mine[..., 1]]
        assert np.array_equal(got, np.ascontiguousarray(wanted).view(np.uint8).reshape(32, -1))


@given(type_=fragments(words=True))
def test_four_matrices_at_once_where_their_number_allows(type_: FragmentType) -> None:
    """All matrices once, in order, and as many instructions of four as the common steps leave."""
    parts = matrices(type_)
    words = type_.size * type_.dtype.bits // 32
    assert sum(p.num for p in parts) == words
    assert all(p.steps == parts[0].steps for p in parts)
    assert type_.layout is not None
    if words % 4 == 0 and type_.layout.tiles(type_.dims)[1] % 2 == 0:
        assert len(parts) == words // 4
