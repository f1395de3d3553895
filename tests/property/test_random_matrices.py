"""Random products of matrices have no findings, and the bits that an independent model of the tensor cores has."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.filetests.fragment_text import bits_of
from tests.filetests.reference_mma import dot_bits, wgmma_bits
from tests.property.random_matrices import MatrixCase, random_matrices
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import DTYPES
from tiledsl.layout.mma import MmaRow

PLACES = 4
"""How many elements of a result are compared."""


def expected(case: MatrixCase, i: int, j: int) -> int:
    """The bits of an element of the sum; k is rounded up to the tile's, with zeros."""
    a, b, *c, _ = case.arrays
    depth = -(-a.shape[1] // case.consts["BK"]) * case.consts["BK"]
    left, right = np.zeros(depth, a.dtype), np.zeros(depth, b.dtype)
    left[: a.shape[1]] = a[i]
    right[: a.shape[1]] = b[:, j] if c else b[j]
    x, y = bits_of(left), bits_of(right)
    if case.row.a == "tf32":  # the low 13 bits are ignored
        x, y = x & ~np.uint64(0x1FFF), y & ~np.uint64(0x1FFF)
    step = case.row.shape.k if isinstance(case.row, MmaRow) else case.row.k
    total = int(bits_of(c[0][i : i + 1, j])[0]) if c else 0
    for at in range(0, depth, step):
        part = x[at : at + step].tolist(), y[at : at + step].tolist()
        row = case.row
        total = dot_bits(row, *part, total) if isinstance(row, MmaRow) else wgmma_bits(row, *part, total)
    return total


@settings(max_examples=12 if settings.default.max_examples == 100 else settings.default.max_examples)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_bits_of_the_model(seed: int) -> None:
    case, random = random_matrices(seed), Random(seed)
    *operands, result = case.arrays
    total = np.zeros(result.shape, numpy_dtype(DTYPES[case.row.acc]))
    case.kernel.check(*operands, total, **case.consts)
    m, n = result.shape
    for i, j in {(random.randrange(m), random.randrange(n)) for _ in range(PLACES)}:
        assert bits_of(total[i : i + 1, j])[0] == expected(case, i, j), (str(case), i, j)


@pytest.mark.parametrize("seed", [0, 1])
def test_equal_seeds_give_equal_cases(seed: int) -> None:
    one, same, other = random_matrices(seed), random_matrices(seed), random_matrices(seed + 2)
    assert str(one) == str(same) != str(other)
    assert all(x.tobytes() == y.tobytes() for x, y in zip(one.arrays, same.arrays, strict=True))
