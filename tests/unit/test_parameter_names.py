"""A kernel's parameters may be called like anything in our methods and in the code that launches it."""

from __future__ import annotations

import numpy as np

from tiledsl import Global, const, f32, grid, threads, tile_kernel
from tiledsl.dims import M


@tile_kernel
def named(
    self: Global[f32, M], args: f32, kwargs: f32, type: f32, int: f32, fn: f32, values: f32, *,
    arch: const = 1, bound: const = 2, exact: const = 3, reference: const = 4, repeat: const = 5, block: const = 6,
    thread: const = 7, what: const = 8, target: const = 9,
) -> None:  # fmt: skip
    i = grid(1) + threads(4)
    self[i] = args + kwargs + type + int + fn + values + f32(arch + bound + exact + reference + repeat + block + what)


SCALARS = {"args": 1.0, "kwargs": 2.0, "type": 3.0, "int": 4.0, "fn": 5.0, "values": 6.0}


def test_by_name_and_by_position() -> None:
    out = np.zeros(4, np.float32)
    named(self=out, **SCALARS, arch=11, block=16, device="emulator")
    np.testing.assert_array_equal(out, 70)
    named(out, *SCALARS.values(), device="emulator")
    np.testing.assert_array_equal(out, 50)


def test_what_is_called_like_an_option_is_the_kernels_own() -> None:
    out = np.zeros(4, np.float32)
    assert "arch=3, bound=7" in named.compile("sm_80", arch=3, bound=7).label
    assert named.compile("sm_80", arch=3).arch == "sm_80"
    named.check(self=out, **SCALARS)
    assert named.time(self=out, **SCALARS, repeat=6, device="emulator") is not None
    assert named.trace(block=0, thread=1)(self=out, **SCALARS, block=7) is not None
