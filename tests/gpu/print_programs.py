"""print() on a GPU: each public function runs in a process of its own.

``PYTHONPATH=. python tests/gpu/print_programs.py NAME`` runs one by hand.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import hopper_kernels as h
import kernels as k
from programs import raises, same_bits

from tiledsl.backends.print_records import CAPACITY
from tiledsl.errors import DeviceError
from tiledsl.runtime.driver import Driver, driver
from tiledsl.runtime.prints import Prints


def _printed(call: Any) -> tuple[list[str], str]:
    """The lines that `call` prints, and the text of `sys.stderr`."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        call()
    return out.getvalue().splitlines(), err.getvalue()


def _lost(text: str) -> int:
    return sum(int(n) for n in re.findall(r"(\d+) lines of print\(\) were lost", text))


def _ends_after_printing() -> None:
    """Run by `lines_at_the_end_of_the_process`: nobody but torch waits for the kernel."""
    import torch

    k.one_line_each(torch.zeros(3000, device="cuda"), 1)
    torch.cuda.synchronize()


def lines_of_every_dtype() -> None:
    """1000 threads with two lines each: all are there once, as on the emulator, a thread's in its order."""
    random = np.random.default_rng(7)
    for dtype in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.uint16, np.int64, np.bool_):
        X = (random.standard_normal(1000) * 100).astype(dtype)
        lines, err = _printed(lambda X=X: k.printing(X, device="gpu"))
        expected, _ = _printed(lambda X=X: k.printing(X, device="emulator"))
        assert len(set(lines)) == 2000 and sorted(lines) == sorted(expected) and err == "", dtype
        seen: set[str] = set()
        for line in lines:
            word, number = line.split()[:2]
            assert word == "first" or number in seen, line
            seen.add(number)


def a_ring_that_nobody_empties() -> None:
    """The ring holds the first lines, and how many came after them is said."""
    X, gpu = np.zeros(200_000, np.float32), driver()
    with gpu.prints._lock:  # the thread that looks has to wait
        lines, err = _printed(lambda: k.one_line_each(X, 1, device="gpu"))
    assert len(set(lines)) == len(lines) == CAPACITY and _lost(err) == X.size - CAPACITY, (len(lines), err)
    lines, err = _printed(lambda: k.one_line_each(X[:100], 2, device="gpu"))
    assert len(set(lines)) == 100 and err == ""


def more_lines_than_the_ring_holds() -> None:
    """The ring is emptied while the kernel runs: each line is shown once, or counted."""
    X = np.zeros(1_000_000, np.float32)
    for step in range(3):
        lines, err = _printed(lambda step=step: k.one_line_each(X, step, device="gpu"))
        assert all(line.endswith(f"of step {step}") for line in lines)
        assert len(set(lines)) == len(lines) >= CAPACITY and len(lines) + _lost(err) == X.size, (len(lines), err)


def lines_while_the_kernel_runs() -> None:
    import torch

    flag, ones = torch.zeros(1, dtype=torch.int32, device="cuda"), torch.ones(1, dtype=torch.int32).pin_memory()
    side, out = torch.cuda.Stream(), io.StringIO()

    def wait_for(text: str) -> str:
        end = time.monotonic() + 20
        while text not in out.getvalue() and time.monotonic() < end:
            time.sleep(0.001)
        return out.getvalue()

    torch.cuda.synchronize()
    with redirect_stdout(out):
        k.printing_then_waiting(flag)
        early = wait_for("waits 0\n")
        with torch.cuda.stream(side):
            flag.copy_(ones, non_blocking=True)
        torch.cuda.synchronize()
        late = wait_for("goes on 0\n")
    assert (early, late) == ("waits 0\n", "waits 0\ngoes on 0\n")


def lines_of_several_kernels_are_in_order() -> None:
    """Of launches that nobody waits for, each kernel with a ring of its own; the second one was loaded first."""
    import torch

    X, gpu = torch.zeros(1, device="cuda"), driver()
    with gpu.prints._lock:
        k.another_line_each(X, -1)
        for step in range(5):
            k.one_line_each(X, step)
            k.another_line_each(X, step)
        torch.cuda.synchronize()
        lines, _ = _printed(gpu.prints.show)
    steps = [f"{kind} 0 of step {step}" for step in range(5) for kind in ("line", "another line")]
    assert lines == ["another line 0 of step -1", *steps], lines


def lines_of_a_graph_and_of_every_gpu() -> None:
    import torch

    for ordinal in range(torch.cuda.device_count()):
        with torch.cuda.device(ordinal):
            X, graph = torch.zeros(300, device="cuda"), torch.cuda.CUDAGraph()
            k.one_line_each(X, 1)
            torch.cuda.synchronize()
            _printed(driver().prints.show)

            def replayed(X: Any = X, graph: Any = graph) -> None:
                with torch.cuda.graph(graph):
                    k.one_line_each(X, 2)
                for _ in range(3):
                    graph.replay()
                torch.cuda.synchronize()
                driver().prints.show()

            lines, _ = _printed(replayed)
            assert sorted(lines) == sorted(f"line {i} of step 2" for i in range(300) for _ in range(3)), ordinal


def lines_at_the_end_of_the_process() -> None:
    command = [sys.executable, __file__, "_ends_after_printing"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = sorted(line for line in done.stdout.splitlines() if line != "done")
    assert lines == sorted(f"line {i} of step 1" for i in range(3000)) and done.stderr == "", done.stderr


def lines_before_a_failed_assertion() -> None:
    X = np.ones(32, np.float32)
    X[7] = 0
    failed = "X is positive; thread (7,) of block (0,)"
    lines, _ = _printed(lambda: raises(DeviceError, lambda: k.printing_then_asserting(X, device="gpu"), failed))
    assert sorted(lines) == ["looks at 0.0", *["looks at 1.0"] * 31], lines


def a_module_that_nobody_gave_a_ring() -> None:
    """As one that another program loads: print() does nothing there."""
    watch, Driver.watch_prints = Driver.watch_prints, lambda *given: None
    try:
        lines, err = _printed(lambda: k.one_line_each(np.zeros(100, np.float32), 1, device="gpu"))
    finally:
        Driver.watch_prints = watch
    assert (lines, err) == ([], "")


def a_context_that_another_library_ends() -> None:
    """The thread that looks for lines goes on looking: the memory is the process's own."""
    k.one_line_each(np.zeros(100, np.float32), 1, device="gpu")
    gpu = driver()
    gpu.check(gpu.cu.cuDevicePrimaryCtxReset(0), "ending the context")
    time.sleep(0.1)
    Prints.show(gpu.prints)


def lines_with_wgmma() -> None:
    """In every role, and while products are in flight: the same lines as on the emulator, and the same product."""
    random = np.random.default_rng(8)
    A, B = (random.standard_normal((rows, 256)).astype(ml_dtypes.bfloat16) for rows in (128, 192))
    C, expected_C = np.zeros((2, 128, 192), np.float32)
    lines, err = _printed(lambda: h.printing(A, B, C, device="gpu"))
    expected, _ = _printed(lambda: h.printing(A, B, expected_C, device="emulator"))
    assert sorted(lines) == sorted(expected) and err == "" and len(lines) > 1000
    assert same_bits(C, expected_C)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("done")
