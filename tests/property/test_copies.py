"""Copies of any shape, dtype, axes and width move every element once, at both levels, as NumPy would.

Asynchronous ones too, as far as they can be, with whole vectors past the edge of a tensor and parts of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.backends import emulator
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel
from tiledsl.ir.ops import async_copy, control, gpu, tile
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import BOOL, F16, F32, F64, I8, INDEX, DType, GlobalType, SharedType
from tiledsl.ir.verifier import verify
from tiledsl.passes.distribute.thread_map import ThreadMap
from tiledsl.passes.pipeline import run_pipeline


@settings(max_examples=200)
@given(
    grid=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    axis=st.integers(0, 2),
    width=st.sampled_from([1, 2, 4]),
    threads=st.integers(1, 64),
)
def test_every_access_is_made_once(grid: list[int], axis: int, width: int, threads: int) -> None:
    axis %= len(grid)
    grid[0] *= threads if axis or len(grid) == 1 else 1
    if prod(grid) % threads:
        grid[-1] *= threads
    shape = tuple(n * width if a == axis else n for a, n in enumerate(grid))
    made = ThreadMap(shape, axis, width, threads)
    seen = np.zeros(shape, np.int32)
    thread = np.arange(threads)
    for step in range(made.steps):
        at = [np.broadcast_to(c, (threads,)) for c in made.place(step, thread)]
        for e in range(width):
            np.add.at(seen, tuple(x + e if a == axis else x for a, x in enumerate(at)), 1)
    assert (seen == 1).all()


def test_neighbouring_threads_move_neighbouring_elements() -> None:
    """Along the vectors' axis first, whichever it is, and then row after row."""
    by_rows, by_columns = ThreadMap((16, 64), 1, 4, 128), ThreadMap((16, 64), 0, 4, 128)
    assert [by_rows.place(1, t) for t in (0, 1, 15, 16, 127)] == [[8, 0], [8, 4], [8, 60], [9, 0], [15, 60]]
    assert [by_columns.place(1, t) for t in (0, 1, 3, 4, 127)] == [[0, 32], [4, 32], [12, 32], [0, 33], [12, 63]]


@dataclass
class Case:
    """Global `a` -> shared tile -> global `c`, of one block of `threads`; `shape` is the copied part."""

    dtype: DType
    shape: tuple[int, ...]
    order: tuple[int, ...]  # axis of the tile along which each axis of the copied shape runs
    threads: int
    vec: int
    extents: tuple[int, ...]
    origin: tuple[int, ...]
    asynchronous: bool = False  # into the tile

    def kernel(self) -> Kernel:
        rank = len(self.shape)
        type_ = GlobalType(self.dtype, tuple("XYZ"[:rank]), rank - 1, 16)
        body = Block([type_, type_], ["a", "c"])
        b = Builder(body)
        a, c = body.args
        stored = tuple(self.shape[self.order.index(axis)] for axis in range(rank))
        s = b.value(tile.SharedAlloc(type=SharedType(self.dtype, stored)))
        zero = b.constant(0, INDEX)
        origin = [b.constant(i, INDEX) for i in self.origin]
        axes = tuple(range(rank))
        whole: dict[str, Any] = {"shape": self.shape, "vec": self.vec}
        if self.asynchronous:
            sides: Any = {"src_axes": axes, "dst_axes": self.order}
            b.add(async_copy.Copy(a, *origin, s, *[zero] * rank, grouped=True, **sides, **whole))
            b.add(async_copy.CommitGroup())
            b.add(async_copy.WaitGroup(pending=0))
        else:
            b.add(tile.Copy(a, *origin, s, *[zero] * rank, src_axes=axes, dst_axes=self.order, **whole))
        b.add(gpu.Barrier())
        b.add(tile.Copy(s, *[zero] * rank, c, *origin, src_axes=self.order, dst_axes=axes, **whole))
        b.add(control.Return())
        return Kernel("copies", body, (1,), (self.threads,))


@st.composite
def copies(draw: Any) -> Case:
    dtype = draw(st.sampled_from([F32, F16, I8, F64, BOOL]))
    vec = draw(st.sampled_from([v for v in (1, 2, 4, 8, 16) if v % dtype.bytes == 0]))
    width = vec // dtype.bytes
    threads = draw(st.sampled_from([1, 4, 32, 33, 64]))
    rank = draw(st.integers(1, 3))
    shape = [draw(st.integers(1, 6 if rank < 3 else 3)) for _ in range(rank)]
    shape[-1] *= width
    shape[draw(st.integers(0, len(shape) - 1))] *= threads
    order = draw(st.permutations(range(len(shape))))
    origin = [draw(st.integers(0, 3)) for _ in shape]
    origin[-1] *= width
    extents = [max(1, o + n + draw(st.integers(-5, 1))) for o, n in zip(origin, shape, strict=True)]
    together = width == 1 or order[-1] == len(shape) - 1
    asynchronous = vec in async_copy.CP_BYTES and together and draw(st.booleans())
    return Case(dtype, tuple(shape), tuple(order), threads, vec, tuple(extents), tuple(origin), asynchronous)


def arrays(case: Case) -> tuple[Any, Any]:
    """`a`, random, and `c`, all ones; rows padded so that they are aligned."""
    rng = np.random.default_rng(prod(case.shape))
    numpy = numpy_dtype(case.dtype)
    row = -(-case.extents[-1] * numpy.itemsize // 16) * 16 // numpy.itemsize
    a = np.zeros((*case.extents[:-1], row), numpy)
    a[...] = rng.integers(0, 2 if numpy.kind == "b" else 100, a.shape)
    c = np.ones_like(a)
    return a[..., : case.extents[-1]], c[..., : case.extents[-1]]


def expected(case: Case, a: Any, c: Any) -> Any:
    """Of what is copied, the part inside the tensors arrives."""
    inside = tuple(slice(o, o + n) for o, n in zip(case.origin, case.shape, strict=True))
    result = c.copy()
    result[inside] = a[inside]
    return result


@settings(max_examples=30)
@given(case=copies())
def test_copies_move_what_is_inside(case: Case) -> None:
    made = case.kernel()
    verify(made)
    assert print_kernel(parse_kernel(print_kernel(made))) == print_kernel(made)
    for kernel in (made.clone(), run_pipeline(made.clone(), verify_each=True)):
        a, c = arrays(case)
        wanted = expected(case, a, c)
        emulator.run(kernel, {"a": a, "c": c}, options=emulator.Options(checks=True))
        assert np.array_equal(c, wanted), kernel.level


@settings(max_examples=25)
@given(case=copies())
def test_the_tile_is_zero_past_the_edge(case: Case) -> None:
    """Into the tile as above, and out of it to a tensor that has room for all of it."""
    roomy = replace(case, extents=tuple(o + n for o, n in zip(case.origin, case.shape, strict=True)))
    for lower in (False, True):
        kernel = case.kernel()
        kernel.body.args[1].type = GlobalType(case.dtype, tuple("UVW"[: len(case.shape)]), len(case.shape) - 1, 16)
        if lower:
            run_pipeline(kernel, verify_each=True)
        (a, _), (_, c) = arrays(case), arrays(roomy)
        wanted = np.zeros_like(c)
        outside = np.ones(c.shape, np.bool_)
        whole = tuple(slice(o, None) for o in case.origin)
        outside[whole] = False
        part = tuple(slice(o, min(x, o + n)) for o, n, x in zip(case.origin, case.shape, case.extents, strict=True))
        wanted[outside] = c[outside]
        if all(s.start < s.stop for s in part):
            wanted[part] = a[part]
        emulator.run(kernel, {"a": a, "c": c})
        assert np.array_equal(c, wanted), kernel.level
