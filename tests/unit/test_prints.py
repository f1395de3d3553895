"""print() on a GPU: a record in memory of the host, in kernels with wgmma too, which becomes a line of `sys.stdout`."""

from __future__ import annotations

import io
import os
import random
import re
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.unit.module_machine import Machine, driver_of
from tiledsl import (
    Const,
    Global,
    Ring,
    assert_,
    bf16,
    boolean,
    cdiv,
    e4m3,
    f16,
    f32,
    f64,
    grid,
    i8,
    i16,
    i32,
    i64,
    lane_id,
    role,
    shared,
    store,
    swizzle_128b,
    threads,
    tile,
    tile_kernel,
    tiles,
    tma_load,
    u8,
    u16,
    u32,
    u64,
    unroll,
    wgmma,
)
from tiledsl.backends.print_records import CAPACITY, LINES
from tiledsl.backends.protocol import FAILURE
from tiledsl.dims import K, M, N
from tiledsl.errors import DeviceError
from tiledsl.runtime.driver import Driver, has_variable

ROOT = Path(__file__).parents[2]

# -- code ------------------------------------------------------------------------------------------------


@tile_kernel(arch="sm_90a")
def product(A: Global[bf16, M, K], B: Global[bf16, N, K], C: Global[f32, M, N], *, WHERE: Const[str]):
    by, bx = grid(cdiv(M, 64), cdiv(N, 64))
    if WHERE in ("start", "everywhere"):
        print("block", by, bx)
    m, n = tile(by, 64), tile(bx, 64)
    ring = Ring(2, a=shared((64, 64), bf16, layout=swizzle_128b), b=shared((64, 64), bf16, layout=swizzle_128b))
    with role("load", threads=1, registers=40):
        for k in tiles(K, 64):
            with ring.fill() as s:
                if WHERE in ("load", "everywhere"):
                    print("loads", k.start)
                tma_load(A[m, k], s.a)
                tma_load(B[n, k], s.b)
    with role("math", registers=232):
        acc = wgmma.accumulator((64, 64), f32)
        for k in tiles(K, 64):
            with ring.use(in_flight=1) as s:
                if WHERE in ("loop", "everywhere"):
                    print("has", k.start)
                acc = wgmma(s.a, s.b.T, acc)
                if WHERE in ("in flight", "everywhere"):
                    print("multiplies", k.start, lane_id() > 3)
            if WHERE in ("between", "everywhere") and lane_id() == 0:
                print("goes on", f32(k.start))
        x = acc.wait()
        if WHERE in ("end", "everywhere"):
            print("done", by)
        store(x, C[m, n])


@pytest.mark.parametrize("where", ["start", "load", "loop", "in flight", "between", "end", "everywhere"])
def test_print_leaves_wgmma_alone(where: str) -> None:
    """ptxas would wait after every wgmma if there were a call anywhere in the kernel, which is an error here."""
    compiled = product.compile(WHERE=where)
    assert "[$lines]" in compiled.ptx and "call" not in compiled.ptx
    assert compiled.resources.stack == 0


@tile_kernel
def wide(X: Global[f32, M]):
    t = grid(1) + threads(32)
    values = tuple(X[t + i] for i in unroll(60))
    print(*values)


def test_a_line_of_many_values_needs_no_stack() -> None:
    resources = wide.compile("sm_90a").resources
    assert (resources.stack, resources.spill_stores) == (0, 0)


@tile_kernel
def quiet(X: Global[f32, M]):
    t = grid(1) + threads(32)
    assert_(X[t] > 0, "$lines")


def test_a_text_is_not_taken_for_a_variable() -> None:
    """The driver looks for names in the code, where all texts of the kernel stand, too."""
    cubin = quiet.compile("sm_90a").cubin
    assert LINES.encode() in cubin
    assert has_variable(cubin, FAILURE) and not has_variable(cubin, LINES)


# -- what the host makes of it ---------------------------------------------------------------------------


@tile_kernel
def two_sites(X: Global[i32, M]):
    i = grid(cdiv(M, 32)) * 32 + threads(32)
    print("i =", i)
    print("100% {of}", X[i], "and", i > 3)


@tile_kernel
def other(X: Global[i32, M]):
    i = grid(1) + threads(32)
    print("other", i)


Watching = Callable[..., tuple[Driver, list[Machine]]]


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Generator[Watching]:
    """A driver that has loaded these kernels, and their modules.

    `thread`: whether it looks by itself. `small`: whether a ring holds 8 lines.
    """
    monkeypatch.setattr("atexit.register", id)  # the memory here is gone at the end of the process
    drivers: list[Driver] = []

    def watch(*kernels: Any, thread: bool = False, small: bool = False) -> tuple[Driver, list[Machine]]:
        if not thread:
            monkeypatch.setattr("tiledsl.runtime.prints.SECONDS", 3600)
        texts = [kernel.compile("sm_90a").ptx for kernel in kernels]
        if small:
            monkeypatch.setattr("tiledsl.runtime.prints.CAPACITY", 8)
            monkeypatch.setattr("tiledsl.backends.print_records.CAPACITY", 8)
            texts = [text.replace(str(CAPACITY), "8").replace(str(CAPACITY - 1), "7") for text in texts]
        machines = [Machine(text) for text in texts]
        driver = driver_of(machines[0])
        drivers.append(driver)
        for kernel, machine in zip(kernels, machines, strict=True):
            driver.cu = machine.cu
            driver.watch_prints(None, kernel.name)
        return driver, machines

    yield watch
    for driver in drivers:
        driver.prints.finish()


def word(value: int) -> bytes:
    return struct.pack("<q", value)


def test_lines_are_shown_when_somebody_waits(watching: Watching, capsys: pytest.CaptureFixture[str]) -> None:
    driver, (gpu,) = watching(two_sites)
    gpu.print(0, word(7))
    gpu.print(1, word(-5), word(1))
    assert capsys.readouterr().out == ""
    driver.synchronize(0, "the kernel")
    driver.synchronize(0, "the kernel")
    assert capsys.readouterr().out == "i = 7\n100% {of} -5 and True\n"


def test_lines_are_shown_while_a_kernel_runs(watching: Watching, capsys: pytest.CaptureFixture[str]) -> None:
    _, (gpu,) = watching(two_sites, thread=True)
    gpu.print(0, word(7))
    seen, end = "", time.monotonic() + 60
    while not seen and time.monotonic() < end:
        time.sleep(0.001)
        seen = capsys.readouterr().out
    assert seen == "i = 7\n"


def test_lines_come_before_the_error_of_their_kernel(watching: Watching, capsys: pytest.CaptureFixture[str]) -> None:
    """A thread that was stopped between drawing a ticket and its record holds up nobody behind it then."""
    driver, (gpu,) = watching(two_sites)
    gpu.print(0, word(1))
    gpu.begin(0, word(-1))
    gpu.print(0, word(2))
    driver.prints.show()
    assert capsys.readouterr().out == "i = 1\n"
    driver.cu.cuStreamSynchronize = lambda stream: (719,)  # pyright: ignore
    with pytest.raises(DeviceError, match="failed while it ran"):
        driver.synchronize(0, "the kernel")
    assert capsys.readouterr().out == "i = 2\n"


def test_lines_are_in_the_order_of_their_tickets(watching: Watching, capsys: pytest.CaptureFixture[str]) -> None:
    driver, (gpu,) = watching(two_sites)
    begun = [gpu.begin(0, word(i), time=10 - i) for i in range(3)]
    for i in (2, 0, 1):
        assert list(begun[i])
        driver.prints.show()
    assert capsys.readouterr().out == "i = 0\ni = 1\ni = 2\n"


def test_the_ring_is_used_again_and_again(watching: Watching, capsys: pytest.CaptureFixture[str]) -> None:
    driver, (gpu,) = watching(other, small=True)
    count = 0
    for several in (5, 5, 8, 1, 8, 3):
        for number in range(count, count + several):
            gpu.print(0, word(number))
        count += several
        driver.prints.show()
    captured = capsys.readouterr()
    assert captured.out == "".join(f"other {number}\n" for number in range(count)) and captured.err == ""


def test_a_full_ring_says_how_many_lines_were_lost(watching: Watching, capsys: pytest.CaptureFixture[str]) -> None:
    driver, (gpu,) = watching(other, small=True)
    for begin, lost in ((0, 22), (100, 22), (200, 0)):
        for number in range(begin, begin + 8 + lost):
            gpu.print(0, word(number))
        driver.prints.show()
        captured = capsys.readouterr()
        assert captured.out == "".join(f"other {number}\n" for number in range(begin, begin + 8))
        said = f"kernel other(): {lost} lines of print() were lost: the ring holds 8\n"
        assert captured.err == (said if lost else "")


@pytest.mark.parametrize("seed", range(40))
def test_threads_and_host_at_the_same_time(seed: int, watching: Watching, capsys: pytest.CaptureFixture[str]) -> None:
    """In any order of their accesses to memory, each line is shown once or counted, and a thread's in their order."""
    driver, (gpu,) = watching(two_sites, small=True)
    choose = random.Random(seed)

    def thread(number: int) -> Iterator[None]:
        for line in range(6):
            yield from gpu.steps(0, word(10 * number + line))

    running = {number: thread(number) for number in range(30)}
    while running:
        number = choose.choice(list(running)[: choose.choice((2, 10, 30))])
        if next(running[number], "ended") == "ended":
            del running[number]
        if choose.random() < 0.03:
            driver.prints.show()
    driver.prints.show()
    out, err = capsys.readouterr()
    lines = out.splitlines()
    lost = sum(int(n) for n in re.findall(r"(\d+) lines of print", err))
    assert lost > 0 and len(lines) + lost == 180 and len(set(lines)) == len(lines) > 8
    shown = [int(line.removeprefix("i = ")) for line in lines]
    assert sorted(shown, key=lambda i: i // 10) == sorted(shown)


def test_a_module_that_nobody_gave_a_ring_writes_nothing() -> None:
    """As where another program loads the code."""
    gpu = Machine(two_sites.compile("sm_90a").ptx)
    before = gpu["$lines"].raw
    gpu.print(0, word(7))
    assert gpu["$lines"].raw == before


def test_the_docs_say_how_many_lines_the_ring_holds() -> None:
    assert f"There is room for {CAPACITY} unread lines a kernel" in (ROOT / "docs" / "language.md").read_text()


def test_lines_of_several_kernels_are_in_the_order_of_the_clock(
    watching: Watching, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has a ring of its own, and nobody may have looked between them."""
    driver, (one, two) = watching(two_sites, other)
    for step in range(3):
        two.print(0, word(step), time=1000 + 20 * step)
        one.print(0, word(step), time=1010 + 20 * step)
    driver.prints.show()
    assert capsys.readouterr().out == "".join(f"other {step}\ni = {step}\n" for step in range(3))


def test_a_stdout_that_waits_for_the_gpu_itself(watching: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, (gpu,) = watching(other)

    class Waiting(io.StringIO):
        def write(self, text: str) -> int:
            driver.synchronize(0, "the kernel")
            return super().write(text)

    monkeypatch.setattr(sys, "stdout", Waiting())
    gpu.print(0, word(1))
    driver.synchronize(0, "the kernel")
    assert sys.stdout.getvalue() == "other 1\n"  # pyright: ignore


# -- the text, on a GPU and on the emulator --------------------------------------------------------------


@tile_kernel
def every_dtype(
    A: Global[f64, M], B: Global[f32, M], C: Global[f16, M], D: Global[bf16, M], E: Global[e4m3, M],
    F: Global[i8, M], G: Global[i16, M], H: Global[i32, M], J: Global[i64, M],
    P: Global[u8, M], Q: Global[u16, M], R: Global[u32, M], S: Global[u64, M], T: Global[boolean, M],
):  # fmt: skip
    t = grid(1) + threads(8)
    print(A[t], B[t], C[t], D[t], E[t], F[t], G[t], H[t], J[t], P[t], Q[t], R[t], S[t], T[t], t, sep=" | ")


FLOATS = [0.1, -0.0, 1e10, float("nan"), float("inf"), 1.0, 2.0**-20, -1 / 3]
FLOAT_DTYPES = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)
INT_DTYPES = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)


def _of_every_dtype() -> list[Any]:
    with np.errstate(over="ignore"):
        floats = [np.array(FLOATS).astype(dtype) for dtype in FLOAT_DTYPES]
    limits = [np.iinfo(dtype) for dtype in INT_DTYPES]
    integers = [np.array([of.min, of.max, 0, 1, 10, 99, 100, of.max - 1], of.dtype) for of in limits]
    return [*floats, *integers, np.arange(8) % 3 == 0]


def test_text_is_the_emulators_for_every_dtype(watching: Watching, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = _of_every_dtype()
    every_dtype(*arrays, device="emulator")
    emulated = capsys.readouterr().out
    driver, (gpu,) = watching(every_dtype)
    arrays[4] = arrays[4].astype(np.float32)  # what a kernel prints of an 8-bit float
    for t in range(8):
        bits = [array[t].tobytes() for array in arrays]
        gpu.print(0, *bits, word(t))
    driver.prints.show()
    assert capsys.readouterr().out == emulated
    assert emulated.startswith("0.1 | 0.1 | 0.1 | 0.1") and emulated.count("\n") == 8


# -- the process -----------------------------------------------------------------------------------------


def test_a_child_of_a_fork_leaves_the_lines_to_its_parent(
    watching: Watching, capsys: pytest.CaptureFixture[str]
) -> None:
    """It does not have the pinned memory, and another thread may have held the lock."""
    driver, (gpu,) = watching(other)
    gpu.print(0, word(1))
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with driver.prints._lock:  # pyright: ignore[reportPrivateUsage]
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        driver.watch_prints(None, "other")
        driver.prints.finish()
        os._exit(len(capsys.readouterr().out))
    release.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    driver.prints.show()
    assert capsys.readouterr().out == "other 1\n"


AT_THE_END = """
from tests.unit.module_machine import Machine, driver_of
from tests.unit.test_prints import other, word

gpu = Machine(other.compile("sm_90a").ptx)
driver = driver_of(gpu)
driver.watch_prints(None, "other")
for number in range(5000):
    gpu.print(0, word(number))
gpu.begin(0, word(-1))
gpu.print(0, word(5000))
"""


def test_the_end_of_the_process_shows_what_is_left() -> None:
    """The thread looks meanwhile, and must write no more when Python ends."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", AT_THE_END]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "".join(f"other {number}\n" for number in range(5001))
