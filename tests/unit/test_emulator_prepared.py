"""What a second run of a kernel finds done: it is neither lowered nor read into linear code again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tiledsl import Global, barrier, f32, grid, shared, threads, tile_kernel
from tiledsl.backends.emulator import Options, Prepared, launch
from tiledsl.backends.emulator.sanitizer import hazards
from tiledsl.compilation import compiler
from tiledsl.dims import N
from tiledsl.errors import EmulatorError, HazardError
from tiledsl.ir.core import Kernel
from tiledsl.ir.parser import parse_kernel

TWICE = """
kernel twice(%x: global<i32, [N], unit=0, align=4>) grid(1) threads(32) {
  %t = gpu.thread_id {axis = 0} : index
  %v = tile.load %x, %t : i32
  %d = arith.add %v, %v : i32
  tile.store %x, %t, %d
  control.return
}
"""


@tile_kernel
def neighbours(x: Global[f32, N]):
    grid(1)
    t = threads(64)
    S = shared((64,), f32)
    S[t] = x[t]
    barrier()
    x[t] = S[63 - t]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What has been done, by name."""
    done: list[str] = []

    def count(module: Any, name: str) -> None:
        function = getattr(module, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            done.append(name)
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)

    count(launch, "flatten")
    count(hazards, "check_registers")
    count(compiler, "lower")
    return done


def test_a_second_call_does_nothing_again(work: list[str]) -> None:
    x = np.arange(64, dtype=np.float32)
    neighbours(x, device="emulator")
    assert work == ["lower", "flatten"]
    neighbours(x, device="emulator")
    neighbours.check(x)
    neighbours.check(np.zeros(64, np.float32))
    assert work == ["lower", "flatten", "check_registers"]
    np.testing.assert_array_equal(x, np.arange(64)[::-1])


def test_a_prepared_kernel_runs_on_any_arguments(work: list[str]) -> None:
    prepared = Prepared(parse_kernel(TWICE))
    for n in (32, 40):
        x = np.arange(n, dtype=np.int32)
        prepared.run({"x": x})
        assert x.tolist() == [2 * i if i < 32 else i for i in range(n)]
    assert work == ["flatten"]


def test_a_trace_is_of_its_own_run() -> None:
    prepared = Prepared(parse_kernel(TWICE))
    traced = prepared.run({"x": np.ones(32, np.int32)}, options=Options(trace=(0, 3)))
    assert [row.name for row in traced.trace] == ["gpu.thread_id", "tile.load", "arith.add", "tile.store"]
    assert not prepared.run({"x": np.ones(32, np.int32)}).trace
    assert len(traced.trace) == 4


def test_a_run_that_fails_leaves_nothing_behind() -> None:
    prepared = Prepared(parse_kernel(TWICE))
    with pytest.raises(EmulatorError, match="out of bounds"):
        prepared.run({"x": np.ones(8, np.int32)})
    x = np.ones(32, np.int32)
    prepared.run({"x": x})
    assert (x == 2).all()


def racy() -> Kernel:
    text = TWICE.replace("threads(32)", "threads(64)").replace(
        "%v = tile.load %x, %t : i32",
        """%S = tile.shared_alloc : shared<i32, [1]>
  %c0 = arith.constant 0 : index
  %one = arith.constant 1 : i32
  tile.store %S, %c0, %one
  %v = tile.load %x, %t : i32""",
    )
    return parse_kernel(text)


def test_each_checked_run_finds_what_is_wrong() -> None:
    prepared = Prepared(racy())
    x = np.ones(64, np.int32)
    for _ in range(2):
        with pytest.raises(HazardError, match=r"race: thread .* writes byte 0 of S .*, which thread .* wrote at"):
            prepared.run({"x": x}, options=Options(checks=True))
    prepared.run({"x": x})
    assert (x == 2).all()
