"""How host arrays go to a GPU: as one span of memory, with what their addresses are known to be multiples of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tiledsl.ir.types import DTYPES
from tiledsl.runtime.arrays import movable
from tiledsl.signatures.specialize import ArrayInfo

WHOLE = np.arange(3 * 5 * 8, dtype=np.int16).reshape(3, 5, 8)
VIEWS = {
    "all": WHOLE,
    "columns first": np.asfortranarray(WHOLE),
    "padded rows": WHOLE[:, :, :7],
    "padded matrices": WHOLE[:, :3, :7],
    "padded columns": WHOLE[:, :, :7].transpose(0, 2, 1),
    "mostly gaps": WHOLE[:, :, :2],
    "backwards": WHOLE[::-1],
    "one row for all": np.broadcast_to(WHOLE[0], (2, 5, 8)),
    "nothing": WHOLE[:, :0],
    "one of something": WHOLE[1:2, :, :7],
}


def info(array: Any) -> ArrayInfo:
    strides = tuple(s // array.itemsize for s in array.strides)
    return ArrayInfo(DTYPES["i16"], array.shape, strides, array.ctypes.data, -1, True, array)


@pytest.mark.parametrize("name", VIEWS)
def test_a_copy_has_the_same_elements_in_one_span(name: str) -> None:
    view = VIEWS[name]
    moved = movable(info(view))
    low, high = info(moved).span()
    assert np.array_equal(moved, view)
    assert min(moved.strides) > 0 and low == 0 and view.nbytes <= high
    memory = np.frombuffer(np.zeros(max(high, 1), np.uint8), np.uint8)
    assert np.ndarray(moved.shape, moved.dtype, memory, 0, moved.strides).shape == view.shape  # within its span


@pytest.mark.parametrize("name", VIEWS)
def test_vectors_stay_aligned_and_no_more_is_sent_than_that_takes(name: str) -> None:
    """Or a kernel that was promised rows of a multiple of 16 bytes, as TMA needs them, would get others."""
    view = info(VIEWS[name])
    moved = info(movable(view))
    unit = moved.unit_axis()
    assert moved.alignment(unit) >= view.alignment(unit)
    vectors = 0 if view.empty else VIEWS[name].size // view.shape[unit]
    assert moved.span()[1] <= vectors * -(-view.shape[unit] * 2 // 16) * 16


def test_what_is_in_one_span_is_not_copied() -> None:
    for name in ("all", "columns first"):
        assert movable(info(VIEWS[name])) is VIEWS[name]
