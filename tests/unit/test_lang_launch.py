"""Launch bounds, defaults of scalars, and the axis of stride 1 as a compile-time value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiledsl import Const, Global, boolean, f32, grid, i32, threads, tile_kernel, unroll
from tiledsl.dims import M, N
from tiledsl.errors import CompileErrors, VerifyError
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.verifier import verify
from tiledsl.signatures.specialize import assumed


@tile_kernel
def two_blocks(X: Global[f32, N]):
    i = grid(N) * 256 + threads(256, blocks=2)
    X.put(i, f32(0))


@tile_kernel
def many_blocks(X: Global[f32, N]):
    i = grid(N) + threads(1, blocks=33)
    X.put(i, f32(0))


@tile_kernel
def sums(X: Global[f32, N], *, LEVEL: Const[Any] = 3):
    i = grid(N) + threads(1, assembler_level=LEVEL)
    total = f32(0)
    for k in unroll(8):
        total = total + X[i + k]
    X.put(i, total)


@tile_kernel
def scaled(X: Global[f32, M, N], factor: f32 | float = 2.0, add: i32 | int = 1, negate: boolean | bool = False):
    i, j = grid(N, M)
    t = threads(1)
    if X.unit == 0:
        X.put(j + t, i, f32(10) * X.get(j, i))
    elif X.unit == 1:
        value = factor * X.get(j, i) + f32(add)
        X.put(j + t, i, -value if negate else value)
    else:
        X.put(j + t, i, f32(X.T.unit))


def test_blocks_an_sm_bound_the_registers() -> None:
    """`threads(256, blocks=2)` is `.minnctapersm 2`: 65536 / 512 = 128 registers a thread."""
    compiled = two_blocks.compile(arch="sm_90a")
    assert ".minnctapersm 2" in compiled.ptx
    assert compiled.resources.blocks_per_sm >= 2


def test_blocks_survive_printing_parsing_and_cloning() -> None:
    spec = assumed(two_blocks.signature, {}, {})
    kernel = two_blocks.builds.lowered(spec, "sm_90a").kernel
    assert "blocks_per_sm(2)" in print_kernel(kernel)
    assert parse_kernel(print_kernel(kernel)).blocks_per_sm == kernel.clone().blocks_per_sm == 2


def test_too_many_blocks_are_refused() -> None:
    with pytest.raises(CompileErrors, match=r"threads\(\): blocks is a compile-time int from 0 to 32"):
        many_blocks.compile(arch="sm_90a")


def test_the_assembler_level_changes_the_code_and_is_reported() -> None:
    """A const may decide it; what is built at one level is not taken for another."""
    default, low = sums.compile(arch="sm_90a"), sums.compile(arch="sm_90a", LEVEL=1)
    assert default.ptx == low.ptx
    assert default.cubin != low.cubin
    assert (default.resources.assembler_level, low.resources.assembler_level) == (3, 1)
    assert "assembler level 1" in repr(low) and "assembler level" not in repr(default)


def test_the_assembler_level_survives_printing_parsing_and_cloning() -> None:
    spec = assumed(sums.signature, {}, {"LEVEL": 2})
    kernel = sums.builds.lowered(spec, "sm_90a").kernel
    assert "assembler_level(2)" in print_kernel(kernel)
    assert parse_kernel(print_kernel(kernel)).assembler_level == kernel.clone().assembler_level == 2


@pytest.mark.parametrize("level", [-1, 4, True])
def test_other_assembler_levels_are_refused(level: int) -> None:
    with pytest.raises(CompileErrors, match="assembler_level is a compile-time int from 0 to 3, got") as caught:
        sums.compile(arch="sm_90a", LEVEL=level)
    (error,) = caught.value.errors
    lines = Path(__file__).read_text().splitlines()
    assert "assembler_level=LEVEL" in lines[error.loc.line - 1]


def test_the_assembler_level_of_ir_is_checked() -> None:
    spec = assumed(sums.signature, {}, {"LEVEL": 2})
    kernel = sums.builds.lowered(spec, "sm_90a").kernel
    kernel = kernel.clone()
    kernel.assembler_level = 4
    with pytest.raises(VerifyError, match=r"assembler_level\(4\): 0 to 3"):
        verify(kernel)


def test_scalars_have_defaults() -> None:
    """``f32 | float`` is f32 for the compiler, and lets a type checker accept a number as default."""
    X = np.ones((2, 3), np.float32)
    scaled(X, device="emulator")
    assert np.array_equal(X, np.full((2, 3), 3))
    scaled(X, 1.5, add=2, negate=True, device="emulator")
    assert np.array_equal(X, np.full((2, 3), -6.5))


@pytest.mark.parametrize(("make", "expected"), [(np.asfortranarray, 10), (lambda x: np.repeat(x, 2, 1)[:, ::2], -1)])
def test_the_unit_axis_chooses_a_path(make: Any, expected: float) -> None:
    X = make(np.ones((2, 3), np.float32))
    scaled(X, device="emulator")
    assert np.array_equal(X, np.full((2, 3), expected))
