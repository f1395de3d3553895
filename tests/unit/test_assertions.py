"""assert_ on a GPU: in kernels with wgmma, too, and with message and line in the error that is raised."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.unit.module_machine import Machine, driver_of
from tiledsl import (
    Const,
    Global,
    Ring,
    assert_,
    bf16,
    cdiv,
    f32,
    grid,
    index,
    lane_id,
    role,
    shared,
    store,
    swizzle_128b,
    threads,
    tile,
    tile_function,
    tile_kernel,
    tiles,
    tma_load,
    wgmma,
)
from tiledsl.dims import K, M, N
from tiledsl.errors import DeviceError
from tiledsl.runtime.driver import Driver


@tile_kernel(arch="sm_90a")
def product(A: Global[bf16, M, K], B: Global[bf16, N, K], C: Global[f32, M, N], *, WHERE: Const[str]):
    if WHERE == "start":
        assert_(K % 64 == 0, "K is a multiple of 64")
    by, bx = grid(cdiv(M, 64), cdiv(N, 64))
    m, n = tile(by, 64), tile(bx, 64)
    ring = Ring(2, a=shared((64, 64), bf16, layout=swizzle_128b), b=shared((64, 64), bf16, layout=swizzle_128b))
    with role("load", threads=1, registers=40):
        for k in tiles(K, 64):
            with ring.fill() as s:
                if WHERE == "load":
                    assert_(k.start < 4096, "K is at most 4096")
                tma_load(A[m, k], s.a)
                tma_load(B[n, k], s.b)
    with role("math", registers=232):
        acc = wgmma.accumulator((64, 64), f32)
        for k in tiles(K, 64):
            with ring.use(in_flight=1) as s:
                if WHERE == "loop":
                    assert_(k.start < 4096, "K is at most 4096")
                acc = wgmma(s.a, s.b.T, acc)
            if WHERE == "between":
                assert_(k.start < 4096, "K is at most 4096")
        x = acc.wait()
        if WHERE == "end":
            assert_(by + lane_id() >= 0)
        store(x, C[m, n])


@pytest.mark.parametrize("where", ["start", "load", "loop", "between", "end"])
def test_an_assertion_leaves_wgmma_alone(where: str) -> None:
    """ptxas would wait after every wgmma if there were a call anywhere in the kernel, which is an error here."""
    compiled = product.compile(WHERE=where)
    assert "[$failure]" in compiled.ptx and "call" not in compiled.ptx
    assert compiled.resources.stack == 0


@tile_function
def check(at: index, end: Any) -> index:
    assert_(at < end, "inside of X")
    return at


@tile_kernel
def asserting(X: Global[f32, M, N]):
    bx, by = grid(3, 2)
    x, y = threads(8, 4)
    assert_(X.shape[0] > 0)
    X[check(by * 4 + y, M), check(bx * 8 + x, N)] = f32(1)


@pytest.fixture(autouse=True)
def _no_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records here are gone at the end of the process."""
    monkeypatch.setattr("atexit.register", id)


def watching(machine: Machine) -> Driver:
    driver = driver_of(machine)
    driver.watch_assertions(None, "asserting")
    return driver


def test_the_error_has_message_line_thread_and_block() -> None:
    machine = Machine(asserting.compile(arch="sm_90a").ptx)
    driver = watching(machine)
    machine.fail(2, (5, 3, 0), (2, 1, 0))
    error = str(driver.error(719, "waiting"))
    assert "kernel asserting(): assertion failed: inside of X; thread (5, 3) of block (2, 1)" in error
    assert 'assert_(at < end, "inside of X")' in error
    assert "in check(), called here" in error and "X[check(by * 4 + y, M)" in error
    assert "fix: start a new process" in error
    with pytest.raises(DeviceError, match="inside of X"):
        driver.refuse_if_lost()


def test_an_assertion_without_a_message() -> None:
    machine = Machine(asserting.compile(arch="sm_90a").ptx)
    driver = watching(machine)
    machine.fail(1, (0, 0, 0), (0, 0, 0))
    assert "assertion failed; thread (0, 0) of block (0, 0)" in str(driver.error(715, "waiting"))


def test_other_failures_of_a_kernel_that_asserts() -> None:
    driver = watching(Machine(asserting.compile(arch="sm_90a").ptx))
    assert "kernel another() accessed an illegal address" in str(driver.error(700, "waiting"))


def test_what_nobody_has_asked_for_is_told_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """torch may see the driver's error first, and knows no more than its number."""
    machine = Machine(asserting.compile(arch="sm_90a").ptx)
    driver = watching(machine)
    machine.fail(3, (1, 0, 0), (0, 0, 0))
    driver.assertions.tell()
    driver.assertions.tell()
    assert capsys.readouterr().err.count("inside of X; thread (1, 0)") == 1


def test_a_child_of_a_fork_does_not_look_at_its_parents_records() -> None:
    """It does not have the pinned memory."""
    machine = Machine(asserting.compile(arch="sm_90a").ptx)
    driver = watching(machine)
    machine.fail(3, (1, 0, 0), (0, 0, 0))
    child = os.fork()
    if not child:
        os._exit(bool(driver.assertions.failed()))
    assert os.waitpid(child, 0)[1] == 0
    assert driver.assertions.failed()
