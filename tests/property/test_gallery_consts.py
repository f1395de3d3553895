"""Whatever consts a kernel of the gallery is given, it is right or says at a line of the gallery what they must meet.

A tuner tries them all. This file under `pytest --hypothesis-profile=explore` tries many more than CI does.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.errors import TileError
from tiledsl.signatures.signature import ConstParam

GEMM = Path(__file__).parent.parent.parent / "examples" / "gemm"
LIBRARY = Path(__file__).parent.parent.parent / "tiledsl" / "gemm"
sys.path.insert(0, str(GEMM))

from gallery import GALLERY, HOPPER, as_given, load  # noqa: E402
from reference import random_problem, worst_error  # noqa: E402

KERNELS = {entry.kernel: entry for entry in (*GALLERY, *HOPPER)}
TILES = st.sampled_from([-1, 0, 1, 8, 16, 24, 32, 48, 64, 96, 100, 128, 176, 256])
"""Rows, columns or k of a tile: what is usual, what instructions do not divide, and what cannot be."""
COUNTS = st.sampled_from([-1, 0, 1, 2, 3, 4, 6, 8, 33])
PAIRS = st.tuples(COUNTS, COUNTS)


def _values(const: ConstParam) -> st.SearchStrategy[Any] | None:
    """Values for a const; None if only its default is tried: layouts and functions."""
    if const.type is int:
        return TILES if isinstance(const.default, int) and const.default >= 32 else COUNTS
    if const.type is bool and const.name != "ADD_C":  # that one asks for a beta
        return st.booleans()
    return PAIRS if const.type == tuple[int, int] else None


@functools.cache
def _kernel(name: str) -> Any:
    return load(KERNELS[name])


def _tunable(name: str) -> dict[str, st.SearchStrategy[Any]]:
    """The consts of a kernel that are tried, with their values."""
    return {c.name: values for c in _kernel(name).signature.consts if (values := _values(c)) is not None}


def _some_consts(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """One to three of the consts of a kernel: more would seldom fit together."""
    found = _tunable(name)
    chosen = st.lists(st.sampled_from(sorted(found)), min_size=1, max_size=3, unique=True)
    return chosen.flatmap(lambda names: st.fixed_dictionaries({n: found[n] for n in names}))


@pytest.mark.parametrize("name", [name for name in KERNELS if _tunable(name)])
@settings(max_examples=6 if settings.default.max_examples == 100 else settings.default.max_examples)
@given(data=st.data())
def test_right_or_an_error_of_the_kernel(name: str, data: st.DataObject) -> None:
    consts = data.draw(_some_consts(name), "consts")
    entry = KERNELS[name]
    A, B, C = random_problem(*entry.sized(40, 72, 40), format=entry.formats[0])
    if data.draw(st.booleans(), "B along k"):
        B = np.asfortranarray(B)
    refused = ""
    try:
        _kernel(name)(*as_given(_kernel(name), A, B, C), device="emulator", **consts)
    except TileError as caught:
        refused = str(caught)
    error, bound = worst_error(C, A, B, format=entry.formats[0])
    assert str(GEMM) in refused or str(LIBRARY) in refused or error <= bound


@pytest.mark.parametrize(
    ("name", "consts", "along_k"),
    [
        ("hopper_fastest", {"BN": 8}, True),
        ("hopper_fastest", {"BN": 24}, True),
        ("hopper_ring", {"STAGES": 1}, False),
        ("mma_fastest", {"GROUP": 0}, False),
        ("fastest", {"BM": 96}, False),
        ("fastest", {"SLICES": 3, "BK": 32}, False),
        ("coarsen_1d", {"TM": 33}, False),
    ],
)
def test_consts_that_would_leave_elements_out(name: str, consts: dict[str, Any], along_k: bool) -> None:
    """Each of these once compiled, and wrote a part of C or none, or waited for ever."""
    entry = KERNELS[name]
    A, B, C = random_problem(*entry.sized(40, 72, 40), format=entry.formats[0])
    with pytest.raises(TileError, match="assertion failed at compile time"):
        _kernel(name)(
            *as_given(_kernel(name), A, np.asfortranarray(B) if along_k else B, C), device="emulator", **consts
        )
