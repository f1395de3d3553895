"""Layouts of shared tiles: every element has a place of its own, and vectors stay together and aligned."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiledsl.layout.shared import ROW, Layout, Padded, Swizzled, parse_layout, row_major
from tiledsl.passes.banks.bank_conflicts import candidates

VECTORS = (2, 4, 8, 16)


@st.composite
def laid_out(draw: Any) -> tuple[tuple[int, ...], int, Layout]:
    """Extents, bytes of an element, and a layout that fits: any candidate, or one that is harder."""
    element = draw(st.sampled_from((1, 2, 4, 8)))
    dims = (*draw(st.lists(st.integers(1, 9), min_size=1, max_size=2)), draw(st.integers(1, 12)) * 4)
    unit = draw(st.sampled_from((1, 2, 4, 8)))
    harder = [Swizzled(unit, span, draw(st.sampled_from((1, 2, 8)))) for span in (2, 4, 8)]
    fitting = [layout for layout in harder if layout.problem(dims) is None]
    padded = Padded(dims[-1] + draw(st.integers(0, 40)))
    vector = draw(st.sampled_from([v for v in (1, *VECTORS) if v >= element and dims[-1] * element % v == 0]))
    return dims, element, draw(st.sampled_from([*candidates(dims, element, vector), padded, *fitting]))


@given(case=laid_out())
def test_a_layout_is_one_to_one_into_its_footprint(case: tuple[tuple[int, ...], int, Layout]) -> None:
    dims, _, layout = case
    places = [layout.offset(indices, dims) for indices in product(*map(range, dims))]
    assert len(set(places)) == len(places)
    assert min(places) >= 0
    assert max(places) < layout.footprint(dims)
    as_arrays = layout.offset(list(np.indices(dims)), dims)
    assert as_arrays.ravel().tolist() == places


@given(case=laid_out())
def test_vectors_stay_together_and_aligned(case: tuple[tuple[int, ...], int, Layout]) -> None:
    dims, element, layout = case
    widest = layout.vector_bytes(dims, element)
    for size in (v for v in VECTORS if element < v <= widest):
        count = size // element
        for *rows, column in product(*map(range, dims)):
            if column % count or column + count > dims[-1]:
                continue
            start = layout.offset([*rows, column], dims)
            assert start * element % size == 0
            assert [layout.offset([*rows, column + e], dims) for e in range(count)] == [start + e for e in range(count)]


@given(case=laid_out())
def test_a_swizzle_stays_in_its_row(case: tuple[tuple[int, ...], int, Layout]) -> None:
    dims, _, layout = case
    if isinstance(layout, Swizzled):
        assert layout.footprint(dims) == ROW.footprint(dims)
        for *rows, column in product(*map(range, dims)):
            row = layout.offset([*rows, column], dims) // dims[-1]
            assert row == ROW.offset([*rows, column], dims) // dims[-1]


@given(case=laid_out())
def test_the_text_of_a_layout_reads_back(case: tuple[tuple[int, ...], int, Layout]) -> None:
    layout = case[2]
    assert parse_layout(str(layout)) == layout


@pytest.mark.parametrize("text", ["", "rows", "padded", "padded(x)", "swizzled(4, 8)", "swizzled(unit=4)", "row()"])
def test_what_is_no_layout(text: str) -> None:
    with pytest.raises(ValueError, match="not a layout"):
        parse_layout(text)


def test_the_hardware_swizzles() -> None:
    """16-byte chunk c in 128-byte line r lies at c ^ (r & 7), c ^ (r & 3) or c ^ (r & 1): rows of 128, 64, 32 bytes."""
    for span, bits in ((8, 7), (4, 3), (2, 1)):
        dims = (16, 16 * span)  # of bytes: a row is one swizzle span
        layout = Swizzled(16, span, 128 // (16 * span))
        for row, chunk in product(range(16), range(span)):
            line, in_line = (row * 16 * span + chunk * 16) // 128, (row * 16 * span + chunk * 16) % 128 // 16
            place = layout.offset((row, chunk * 16), dims)
            assert (place // 128, place % 128 // 16) == (line, in_line ^ (line & bits))


@pytest.mark.parametrize(
    ("layout", "dims", "message", "fix"),
    [
        (Swizzled(4, 8), (16, 16), "4 = 32 elements, and a row of 16", "units of 4, span=4 fits"),
        (Swizzled(4, 8), (16, 144), "a row of 144 is no whole number of them", "span=4 fits this row"),
        (Swizzled(4, 2), (16, 33), "a row of 33 is no whole number of them", "a multiple of 8 elements (40)"),
        (Swizzled(3, 2), (16, 36), "unit is 3", "make unit a power of two"),
        (Swizzled(4, 2, 0), (16, 32), "every is 0", "make every a power of two"),
        (Swizzled(4, 2), (32,), "a tile of one axis", "leave layout= out"),
        (Padded(36), (32,), "a tile of one axis", "leave layout= out"),
        (Padded(31), (8, 32), "makes rows of 31 elements, but a row of the tile has 32", "pass 32 or more"),
    ],
)  # fmt: skip
def test_what_does_not_fit_says_what_would(layout: Layout, dims: tuple[int, ...], message: str, fix: str) -> None:
    problem = layout.problem(dims)
    assert problem is not None
    assert message in problem.message
    assert fix in problem.fix


def test_a_span_that_is_offered_fits() -> None:
    assert Swizzled(4, 4).problem((16, 16)) is None
    assert Swizzled(4, 4).problem((16, 144)) is None


def test_extents_are_not_powers_of_two() -> None:
    """144 = 9 panels of 16: all of it is permuted, and rows of 144 stay apart."""
    layout = Swizzled(4, 4)
    assert sorted(layout.offset((5, c), (8, 144)) for c in range(144)) == list(range(5 * 144, 6 * 144))
    assert layout.strides((8, 144)) == row_major((8, 144)) == (144, 1)


def test_footprints() -> None:
    assert ROW.footprint((2, 8, 32)) == 512
    assert Padded(36).footprint((2, 8, 32)) == 15 * 36 + 32
    assert Padded(36).strides((2, 8, 32)) == (288, 36, 1)
    assert Swizzled(4, 8).footprint((8, 32)) == 256
